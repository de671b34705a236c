package wire_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// stays returns a check that key is the string value with about this TTL, and
// the only key.
func stays(value string, ttl time.Duration) func(locktest.ScriptBench, string) {
	return func(b locktest.ScriptBench, key string) {
		b.Helper()
		if got := b.Do("GET", key); got != value {
			b.Errorf("value of %q is %v, want %q", key, got, value)
		}
		b.Lasts(key, b.Do("PTTL", key), ttl)
		b.Only(key)
	}
}

// holding returns a setup that makes key a string of value.
func holding(value string, ttl time.Duration) func(locktest.ScriptBench, string) {
	return func(b locktest.ScriptBench, key string) { b.Text(key, value, ttl) }
}

// hashHeld makes key a lock of the other form.
func hashHeld(b locktest.ScriptBench, key string) { b.Hash(key, time.Minute, locktest.Me) }

func hashStays(b locktest.ScriptBench, key string) {
	b.Helper()
	b.Holds(key, time.Minute, locktest.Me)
	b.Only(key)
}

func nothingThere(b locktest.ScriptBench, _ string) { b.Only() }

// stringOwned is a lock of the string form, by name, for an owner.
func stringOwned(key, owner string, lease time.Duration) wire.Owned {
	return locktest.OwnedBy(wire.Keys{Key: key, Channel: "watchlock_setnx__channel:{" + key + "}"}, owner, lease)
}

func TestAcquireStringScriptOnEveryBranch(t *testing.T) {
	acquire := func(before ...string) func(wire.Keys) transport.Call {
		return func(k wire.Keys) transport.Call {
			owned := stringOwned(k.Key, locktest.Me, locktest.ScriptLease)
			return wire.AcquireString(&owned, locktest.OwnersCalled(before))
		}
	}
	taken := stays(locktest.Me, locktest.ScriptLease)
	runScriptCases(t, []scriptCase{
		{name: "free", call: acquire(), want: []any{1}, after: taken},
		{name: "free, earlier owners left nothing", call: acquire(locktest.Earlier, locktest.Stranger), want: []any{1}, after: taken},
		{
			name: "held", call: acquire(), want: []any{0, time.Minute},
			setup: holding(locktest.Stranger, time.Minute), after: stays(locktest.Stranger, time.Minute),
		},
		{
			name: "held, not by an earlier owner", call: acquire(locktest.Earlier), want: []any{0, time.Minute},
			setup: holding(locktest.Stranger, time.Minute), after: stays(locktest.Stranger, time.Minute),
		},
		{
			name: "held with an empty value", call: acquire(locktest.Earlier), want: []any{0, time.Minute},
			setup: holding("", time.Minute), after: stays("", time.Minute),
		},
		{
			name: "held without TTL", call: acquire(), want: []any{0, -1},
			setup: holding(locktest.Stranger, 0), after: stays(locktest.Stranger, -1),
		},
		{
			name: "taken over from an earlier owner", call: acquire(locktest.Earlier), want: []any{1},
			setup: holding(locktest.Earlier, time.Minute), after: taken,
		},
		{
			name: "taken over from the last of many", call: acquire("a:1", "b:2", locktest.Earlier), want: []any{1},
			setup: holding(locktest.Earlier, 0), after: taken,
		},
		{name: "wrong type", call: acquire(locktest.Me), fails: "WRONGTYPE", setup: hashHeld, after: hashStays},
	})
}

func TestAcquireStringScriptRefusesBadLeasesBeforeItWrites(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		for _, lease := range []string{"0", "-1", "0.5", "", "x", "30s", "nan", "inf", "-inf", "1e400", "1e17", "9223372036854775808"} {
			reply, err := b.Rdb.Eval(context.Background(), wire.AcquireStringSource, []string{"k"}, lease, locktest.Me).Result()
			if err == nil || !strings.Contains(err.Error(), "lease out of range") {
				t.Errorf("lease %q: %v, %v", lease, reply, err)
			}
			b.Only()
		}
	})
}

func TestRenewStringScriptOnEveryBranch(t *testing.T) {
	renew := func(lease time.Duration) func(wire.Keys) transport.Call {
		return func(k wire.Keys) transport.Call {
			return wire.RenewAll(wire.RenewStringScript, []wire.Owned{stringOwned(k.Key, locktest.Me, lease)})
		}
	}
	runScriptCases(t, []scriptCase{
		{name: "raised", call: renew(time.Minute), want: []any{1}, setup: holding(locktest.Me, locktest.ScriptLease), after: stays(locktest.Me, time.Minute)},
		{name: "never lowered", call: renew(locktest.ScriptLease), want: []any{1}, setup: holding(locktest.Me, time.Minute), after: stays(locktest.Me, time.Minute)},
		{name: "only looked at", call: renew(0), want: []any{1}, setup: holding(locktest.Me, locktest.ScriptLease), after: stays(locktest.Me, locktest.ScriptLease)},
		{name: "only looked at, without TTL", call: renew(0), want: []any{1}, setup: holding(locktest.Me, 0), after: stays(locktest.Me, -1)},
		{name: "without TTL gets one", call: renew(time.Minute), want: []any{1}, setup: holding(locktest.Me, 0), after: stays(locktest.Me, time.Minute)},
		{name: "not mine", call: renew(time.Minute), want: []any{0}, setup: holding(locktest.Stranger, locktest.ScriptLease), after: stays(locktest.Stranger, locktest.ScriptLease)},
		{name: "mine is a prefix", call: renew(time.Minute), want: []any{0}, setup: holding(locktest.Me+"1", locktest.ScriptLease), after: stays(locktest.Me+"1", locktest.ScriptLease)},
		{name: "gone", call: renew(time.Minute), want: []any{0}, after: nothingThere},
		{
			name: "wrong type beside good ones", want: []any{1, 0, 0, 1},
			call: func(k wire.Keys) transport.Call {
				return wire.RenewAll(wire.RenewStringScript, []wire.Owned{
					stringOwned("good", locktest.Me, time.Minute), stringOwned(k.Key, locktest.Me, time.Minute),
					stringOwned("gone", locktest.Me, time.Minute), stringOwned("looked", locktest.Me, 0),
				})
			},
			setup: func(b locktest.ScriptBench, key string) {
				hashHeld(b, key)
				b.Text("good", locktest.Me, locktest.ScriptLease)
				b.Text("looked", locktest.Me, locktest.ScriptLease)
			},
			after: func(b locktest.ScriptBench, key string) {
				b.Holds(key, time.Minute, locktest.Me)
				b.Lasts("good", b.Do("PTTL", "good"), time.Minute)
				b.Lasts("looked", b.Do("PTTL", "looked"), locktest.ScriptLease)
				b.Only(key, "good", "looked")
			},
		},
	})
}

func TestReleaseStringScriptOnEveryBranch(t *testing.T) {
	release := func(k wire.Keys) transport.Call {
		return wire.ReleaseAll(wire.ReleaseStringScript, []wire.Owned{stringOwned(k.Key, locktest.Me, 0)})
	}
	runScriptCases(t, []scriptCase{
		{name: "freed", call: release, want: []any{1, 0}, setup: holding(locktest.Me, locktest.ScriptLease), after: nothingThere},
		{name: "freed, without TTL", call: release, want: []any{1, 0}, setup: holding(locktest.Me, 0), after: nothingThere},
		{name: "gone", call: release, want: []any{0, 0}, after: nothingThere},
		{name: "not mine", call: release, want: []any{0, 0}, setup: holding(locktest.Stranger, locktest.ScriptLease), after: stays(locktest.Stranger, locktest.ScriptLease)},
		{name: "wrong type", call: release, want: []any{0, 0}, setup: hashHeld, after: hashStays},
		{
			name: "wrong type beside good ones", want: []any{1, 0, 0, 0, 1, 0},
			call: func(k wire.Keys) transport.Call {
				return wire.ReleaseAll(wire.ReleaseStringScript, []wire.Owned{
					stringOwned("a", locktest.Me, 0), stringOwned(k.Key, locktest.Me, 0), stringOwned("b", locktest.Earlier, 0),
				})
			},
			setup: func(b locktest.ScriptBench, key string) {
				hashHeld(b, key)
				b.Text("a", locktest.Me, locktest.ScriptLease)
				b.Text("b", locktest.Earlier, locktest.ScriptLease)
			},
			after: hashStays,
		},
	})
}

func TestReleaseStringScriptTellsTheWaitersOfWhatItFreedOnly(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		k := stringOwned("k", locktest.Me, 0)
		next := b.Hears(k.Keys.Channel)
		b.Text("k", locktest.Stranger, 0)
		reply, err := b.Run(b.Rdb, wire.ReleaseAll(wire.ReleaseStringScript, []wire.Owned{k}))
		b.Answers(reply, err, []any{0, 0})
		b.Text("k", locktest.Me, 0)
		reply, err = b.Run(b.Rdb, wire.ReleaseAll(wire.ReleaseStringScript, []wire.Owned{k}))
		b.Answers(reply, err, []any{1, 1})
		if got, want := next(), k.Keys.Channel+" 00"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
	})
}

func TestReleaseStringScriptReleasesForAUserWhoMayNotPublish(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		if b.Real == nil {
			t.Skip("miniredis has no users")
		}
		b.Text("k", locktest.Me, locktest.ScriptLease)
		reply, err := b.Run(b.User("-publish"), wire.ReleaseAll(wire.ReleaseStringScript, []wire.Owned{stringOwned("k", locktest.Me, 0)}))
		b.Answers(reply, err, []any{1, -1})
		b.Only()
	})
}

// plainRun runs plain commands in one pipeline. An error reply stands as an error.
func plainRun(rdb *redis.Client, c transport.Call) []any {
	ctx := context.Background()
	pipe := rdb.Pipeline()
	replies := make([]any, len(c.Plain))
	cmds := make([]*redis.Cmd, len(c.Plain))
	for i, args := range c.Plain {
		cmds[i] = pipe.Do(ctx, args...)
	}
	_, _ = pipe.Exec(ctx)
	for i, cmd := range cmds {
		reply, err := cmd.Result()
		if replies[i] = reply; err != nil && !errors.Is(err, redis.Nil) {
			replies[i] = err
		}
	}
	return replies
}

// onPlainServer runs f on a server that compares values itself.
func onPlainServer(t *testing.T, f func(t *testing.T, b locktest.ScriptBench)) {
	t.Helper()
	s := redistest.Start(t, redistest.On(redistest.Redis86))
	f(t, locktest.ScriptBench{TB: t, Rdb: s.Client(), Real: s})
}

func TestPlainCommandsDoWhatTheScriptsDo(t *testing.T) {
	onPlainServer(t, func(t *testing.T, b locktest.ScriptBench) {
		mine := stringOwned("k", locktest.Me, time.Minute)
		look := stringOwned("k", locktest.Me, 0)
		for _, c := range []struct {
			name  string
			setup func(locktest.ScriptBench, string)
			call  transport.Call
			want  []any // ErrWrongType stands for an error that is taken for it
			after func(locktest.ScriptBench, string)
		}{
			{"acquire, free", nil, wire.AcquirePlain(&mine), []any{nil}, stays(locktest.Me, time.Minute)},
			{"acquire, held", holding(locktest.Stranger, locktest.ScriptLease), wire.AcquirePlain(&mine), []any{locktest.Stranger}, stays(locktest.Stranger, locktest.ScriptLease)},
			{"acquire, held without TTL", holding(locktest.Stranger, 0), wire.AcquirePlain(&mine), []any{locktest.Stranger}, stays(locktest.Stranger, -1)},
			{"acquire, wrong type", hashHeld, wire.AcquirePlain(&mine), []any{watchlock.ErrWrongType}, hashStays},
			{"take over", holding(locktest.Earlier, locktest.ScriptLease), wire.TakeOverPlain(&mine, locktest.Earlier), []any{"OK"}, stays(locktest.Me, time.Minute)},
			{"take over, somebody else's", holding(locktest.Stranger, locktest.ScriptLease), wire.TakeOverPlain(&mine, locktest.Earlier), []any{nil}, stays(locktest.Stranger, locktest.ScriptLease)},
			{"take over, gone", nil, wire.TakeOverPlain(&mine, locktest.Earlier), []any{nil}, nothingThere},
			{"renew", holding(locktest.Me, locktest.ScriptLease), wire.RenewPlain([]wire.Owned{mine}), []any{"OK"}, stays(locktest.Me, time.Minute)},
			{"renew, not mine", holding(locktest.Stranger, locktest.ScriptLease), wire.RenewPlain([]wire.Owned{mine}), []any{nil}, stays(locktest.Stranger, locktest.ScriptLease)},
			{"renew, gone", nil, wire.RenewPlain([]wire.Owned{mine}), []any{nil}, nothingThere},
			{"renew, wrong type", hashHeld, wire.RenewPlain([]wire.Owned{mine}), []any{watchlock.ErrWrongType}, hashStays},
			{"look", holding(locktest.Me, locktest.ScriptLease), wire.RenewPlain([]wire.Owned{look}), []any{locktest.Me}, stays(locktest.Me, locktest.ScriptLease)},
			{"release", holding(locktest.Me, locktest.ScriptLease), wire.ReleasePlain([]wire.Owned{mine}), []any{int64(1)}, nothingThere},
			{"release, not mine", holding(locktest.Stranger, locktest.ScriptLease), wire.ReleasePlain([]wire.Owned{mine}), []any{int64(0)}, stays(locktest.Stranger, locktest.ScriptLease)},
			{"release, gone", nil, wire.ReleasePlain([]wire.Owned{mine}), []any{int64(0)}, nothingThere},
			{"release, wrong type", hashHeld, wire.ReleasePlain([]wire.Owned{mine}), []any{watchlock.ErrWrongType}, hashStays},
			{"info", holding(locktest.Stranger, 0), wire.InfoPlain(mine.Keys), []any{locktest.Stranger, int64(-1)}, stays(locktest.Stranger, -1)},
			{"info, free", nil, wire.InfoPlain(mine.Keys), []any{nil, int64(-2)}, nothingThere},
		} {
			b.Do("FLUSHALL")
			if c.setup != nil {
				c.setup(b, "k")
			}
			got := plainRun(b.Rdb, c.call)
			if len(got) == 1 && wire.NotAString(wire.ReplyError(got[0])) && !transport.DoesNotKnow(wire.ReplyError(got[0])) {
				got[0] = watchlock.ErrWrongType
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: %v, want %v", c.name, got, c.want)
			}
			c.after(locktest.ScriptBench{TB: caseTB{t, c.name}, Rdb: b.Rdb, Real: b.Real}, "k")
		}
	})
}

func TestPlainVerdictsAreReadOnEveryBranch(t *testing.T) {
	mine, look := stringOwned("k", locktest.Me, time.Minute), stringOwned("k", locktest.Me, 0)
	for _, c := range []struct {
		name  string
		owned wire.Owned
		reply any
		want  wire.Verdict
	}{
		{"renewed", mine, "OK", wire.Kept},
		{"not renewed", mine, nil, wire.NotMine},
		{"looked at", look, locktest.Me, wire.Kept},
		{"looked at, another's", look, locktest.Stranger, wire.NotMine},
		{"looked at, gone", look, nil, wire.NotMine},
		{"another type", mine, scriptError("WRONGTYPE Operation against a key"), wire.NotMine},
		{"another type, as 8.6 says it", mine, scriptError("ERR Key should be of string type if conditional"), wire.NotMine},
		{"refused", mine, scriptError("OOM command not allowed"), wire.Unseen},
		{"refused, looked at", look, scriptError("LOADING the dataset"), wire.Unseen},
	} {
		if got := wire.ReadRenewPlain(c.owned, c.reply); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	for reply, want := range map[any]time.Duration{int64(1500): 1500 * time.Millisecond, int64(-1): -time.Millisecond, int64(-2): 0, nil: -1, "x": -1} {
		if got := wire.ReadPTTL(reply); got != want {
			t.Errorf("PTTL %v read as %v, want %v", reply, got, want)
		}
	}
}

// scriptError is a server's error reply.
type scriptError string

func (e scriptError) Error() string { return string(e) }

func (scriptError) RedisError() {}
