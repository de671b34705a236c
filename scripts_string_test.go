package watchlock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// text makes a string key with a TTL unless it is 0.
func (b scriptBench) text(key, value string, ttl time.Duration) {
	b.Helper()
	b.do("SET", key, value)
	if ttl > 0 {
		b.do("PEXPIRE", key, ttl.Milliseconds())
	}
}

// stays returns a check that key is the string value with about this TTL, and
// the only key.
func stays(value string, ttl time.Duration) func(scriptBench, string) {
	return func(b scriptBench, key string) {
		b.Helper()
		if got := b.do("GET", key); got != value {
			b.Errorf("value of %q is %v, want %q", key, got, value)
		}
		b.lasts(key, b.do("PTTL", key), ttl)
		b.only(key)
	}
}

// holding returns a setup that makes key a string of value.
func holding(value string, ttl time.Duration) func(scriptBench, string) {
	return func(b scriptBench, key string) { b.text(key, value, ttl) }
}

// hashHeld makes key a lock of the other form.
func hashHeld(b scriptBench, key string) { b.hash(key, time.Minute, me) }

func hashStays(b scriptBench, key string) {
	b.Helper()
	b.holds(key, time.Minute, me)
	b.only(key)
}

func nothingThere(b scriptBench, _ string) { b.only() }

// stringOwned is a lock of the string form, by name, for an owner.
func stringOwned(key, owner string, lease time.Duration) wire.Owned {
	return ownedBy(wire.Keys{Key: key, Channel: "watchlock_setnx__channel:{" + key + "}"}, owner, lease)
}

func TestAcquireStringScriptOnEveryBranch(t *testing.T) {
	acquire := func(before ...string) func(wire.Keys) transport.Call {
		return func(k wire.Keys) transport.Call {
			owned := stringOwned(k.Key, me, scriptLease)
			return wire.AcquireString(&owned, ownersCalled(before))
		}
	}
	taken := stays(me, scriptLease)
	runScriptCases(t, []scriptCase{
		{name: "free", call: acquire(), want: []any{1}, after: taken},
		{name: "free, earlier owners left nothing", call: acquire(earlier, stranger), want: []any{1}, after: taken},
		{
			name: "held", call: acquire(), want: []any{0, time.Minute},
			setup: holding(stranger, time.Minute), after: stays(stranger, time.Minute),
		},
		{
			name: "held, not by an earlier owner", call: acquire(earlier), want: []any{0, time.Minute},
			setup: holding(stranger, time.Minute), after: stays(stranger, time.Minute),
		},
		{
			name: "held with an empty value", call: acquire(earlier), want: []any{0, time.Minute},
			setup: holding("", time.Minute), after: stays("", time.Minute),
		},
		{
			name: "held without TTL", call: acquire(), want: []any{0, -1},
			setup: holding(stranger, 0), after: stays(stranger, -1),
		},
		{
			name: "taken over from an earlier owner", call: acquire(earlier), want: []any{1},
			setup: holding(earlier, time.Minute), after: taken,
		},
		{
			name: "taken over from the last of many", call: acquire("a:1", "b:2", earlier), want: []any{1},
			setup: holding(earlier, 0), after: taken,
		},
		{name: "wrong type", call: acquire(me), fails: "WRONGTYPE", setup: hashHeld, after: hashStays},
	})
}

func TestAcquireStringScriptRefusesBadLeasesBeforeItWrites(t *testing.T) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		for _, lease := range []string{"0", "-1", "0.5", "", "x", "30s", "nan", "inf", "-inf", "1e400", "1e17", "9223372036854775808"} {
			reply, err := b.rdb.Eval(context.Background(), wire.AcquireStringSource, []string{"k"}, lease, me).Result()
			if err == nil || !strings.Contains(err.Error(), "lease out of range") {
				t.Errorf("lease %q: %v, %v", lease, reply, err)
			}
			b.only()
		}
	})
}

func TestRenewStringScriptOnEveryBranch(t *testing.T) {
	renew := func(lease time.Duration) func(wire.Keys) transport.Call {
		return func(k wire.Keys) transport.Call {
			return wire.RenewAll(wire.RenewStringScript, []wire.Owned{stringOwned(k.Key, me, lease)})
		}
	}
	runScriptCases(t, []scriptCase{
		{name: "raised", call: renew(time.Minute), want: []any{1}, setup: holding(me, scriptLease), after: stays(me, time.Minute)},
		{name: "never lowered", call: renew(scriptLease), want: []any{1}, setup: holding(me, time.Minute), after: stays(me, time.Minute)},
		{name: "only looked at", call: renew(0), want: []any{1}, setup: holding(me, scriptLease), after: stays(me, scriptLease)},
		{name: "only looked at, without TTL", call: renew(0), want: []any{1}, setup: holding(me, 0), after: stays(me, -1)},
		{name: "without TTL gets one", call: renew(time.Minute), want: []any{1}, setup: holding(me, 0), after: stays(me, time.Minute)},
		{name: "not mine", call: renew(time.Minute), want: []any{0}, setup: holding(stranger, scriptLease), after: stays(stranger, scriptLease)},
		{name: "mine is a prefix", call: renew(time.Minute), want: []any{0}, setup: holding(me+"1", scriptLease), after: stays(me+"1", scriptLease)},
		{name: "gone", call: renew(time.Minute), want: []any{0}, after: nothingThere},
		{
			name: "wrong type beside good ones", want: []any{1, 0, 0, 1},
			call: func(k wire.Keys) transport.Call {
				return wire.RenewAll(wire.RenewStringScript, []wire.Owned{
					stringOwned("good", me, time.Minute), stringOwned(k.Key, me, time.Minute),
					stringOwned("gone", me, time.Minute), stringOwned("looked", me, 0),
				})
			},
			setup: func(b scriptBench, key string) {
				hashHeld(b, key)
				b.text("good", me, scriptLease)
				b.text("looked", me, scriptLease)
			},
			after: func(b scriptBench, key string) {
				b.holds(key, time.Minute, me)
				b.lasts("good", b.do("PTTL", "good"), time.Minute)
				b.lasts("looked", b.do("PTTL", "looked"), scriptLease)
				b.only(key, "good", "looked")
			},
		},
	})
}

func TestReleaseStringScriptOnEveryBranch(t *testing.T) {
	release := func(k wire.Keys) transport.Call {
		return wire.ReleaseAll(wire.ReleaseStringScript, []wire.Owned{stringOwned(k.Key, me, 0)})
	}
	runScriptCases(t, []scriptCase{
		{name: "freed", call: release, want: []any{1, 0}, setup: holding(me, scriptLease), after: nothingThere},
		{name: "freed, without TTL", call: release, want: []any{1, 0}, setup: holding(me, 0), after: nothingThere},
		{name: "gone", call: release, want: []any{0, 0}, after: nothingThere},
		{name: "not mine", call: release, want: []any{0, 0}, setup: holding(stranger, scriptLease), after: stays(stranger, scriptLease)},
		{name: "wrong type", call: release, want: []any{0, 0}, setup: hashHeld, after: hashStays},
		{
			name: "wrong type beside good ones", want: []any{1, 0, 0, 0, 1, 0},
			call: func(k wire.Keys) transport.Call {
				return wire.ReleaseAll(wire.ReleaseStringScript, []wire.Owned{
					stringOwned("a", me, 0), stringOwned(k.Key, me, 0), stringOwned("b", earlier, 0),
				})
			},
			setup: func(b scriptBench, key string) {
				hashHeld(b, key)
				b.text("a", me, scriptLease)
				b.text("b", earlier, scriptLease)
			},
			after: hashStays,
		},
	})
}

func TestReleaseStringScriptTellsTheWaitersOfWhatItFreedOnly(t *testing.T) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		k := stringOwned("k", me, 0)
		next := b.hears(k.Keys.Channel)
		b.text("k", stranger, 0)
		reply, err := b.run(b.rdb, wire.ReleaseAll(wire.ReleaseStringScript, []wire.Owned{k}))
		b.answers(reply, err, []any{0, 0})
		b.text("k", me, 0)
		reply, err = b.run(b.rdb, wire.ReleaseAll(wire.ReleaseStringScript, []wire.Owned{k}))
		b.answers(reply, err, []any{1, 1})
		if got, want := next(), k.Keys.Channel+" 00"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
	})
}

func TestReleaseStringScriptReleasesForAUserWhoMayNotPublish(t *testing.T) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		if b.real == nil {
			t.Skip("miniredis has no users")
		}
		b.text("k", me, scriptLease)
		reply, err := b.run(b.user("-publish"), wire.ReleaseAll(wire.ReleaseStringScript, []wire.Owned{stringOwned("k", me, 0)}))
		b.answers(reply, err, []any{1, -1})
		b.only()
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
func onPlainServer(t *testing.T, f func(t *testing.T, b scriptBench)) {
	t.Helper()
	s := redistest.Start(t, redistest.On(redistest.Redis86))
	f(t, scriptBench{t, s.Client(), nil, s})
}

func TestPlainCommandsDoWhatTheScriptsDo(t *testing.T) {
	onPlainServer(t, func(t *testing.T, b scriptBench) {
		mine := stringOwned("k", me, time.Minute)
		look := stringOwned("k", me, 0)
		for _, c := range []struct {
			name  string
			setup func(scriptBench, string)
			call  transport.Call
			want  []any // ErrWrongType stands for an error that is taken for it
			after func(scriptBench, string)
		}{
			{"acquire, free", nil, wire.AcquirePlain(&mine), []any{nil}, stays(me, time.Minute)},
			{"acquire, held", holding(stranger, scriptLease), wire.AcquirePlain(&mine), []any{stranger}, stays(stranger, scriptLease)},
			{"acquire, held without TTL", holding(stranger, 0), wire.AcquirePlain(&mine), []any{stranger}, stays(stranger, -1)},
			{"acquire, wrong type", hashHeld, wire.AcquirePlain(&mine), []any{ErrWrongType}, hashStays},
			{"take over", holding(earlier, scriptLease), wire.TakeOverPlain(&mine, earlier), []any{"OK"}, stays(me, time.Minute)},
			{"take over, somebody else's", holding(stranger, scriptLease), wire.TakeOverPlain(&mine, earlier), []any{nil}, stays(stranger, scriptLease)},
			{"take over, gone", nil, wire.TakeOverPlain(&mine, earlier), []any{nil}, nothingThere},
			{"renew", holding(me, scriptLease), wire.RenewPlain([]wire.Owned{mine}), []any{"OK"}, stays(me, time.Minute)},
			{"renew, not mine", holding(stranger, scriptLease), wire.RenewPlain([]wire.Owned{mine}), []any{nil}, stays(stranger, scriptLease)},
			{"renew, gone", nil, wire.RenewPlain([]wire.Owned{mine}), []any{nil}, nothingThere},
			{"renew, wrong type", hashHeld, wire.RenewPlain([]wire.Owned{mine}), []any{ErrWrongType}, hashStays},
			{"look", holding(me, scriptLease), wire.RenewPlain([]wire.Owned{look}), []any{me}, stays(me, scriptLease)},
			{"release", holding(me, scriptLease), wire.ReleasePlain([]wire.Owned{mine}), []any{int64(1)}, nothingThere},
			{"release, not mine", holding(stranger, scriptLease), wire.ReleasePlain([]wire.Owned{mine}), []any{int64(0)}, stays(stranger, scriptLease)},
			{"release, gone", nil, wire.ReleasePlain([]wire.Owned{mine}), []any{int64(0)}, nothingThere},
			{"release, wrong type", hashHeld, wire.ReleasePlain([]wire.Owned{mine}), []any{ErrWrongType}, hashStays},
			{"info", holding(stranger, 0), wire.InfoPlain(mine.Keys), []any{stranger, int64(-1)}, stays(stranger, -1)},
			{"info, free", nil, wire.InfoPlain(mine.Keys), []any{nil, int64(-2)}, nothingThere},
		} {
			b.do("FLUSHALL")
			if c.setup != nil {
				c.setup(b, "k")
			}
			got := plainRun(b.rdb, c.call)
			if len(got) == 1 && wire.NotAString(wire.ReplyError(got[0])) && !transport.DoesNotKnow(wire.ReplyError(got[0])) {
				got[0] = ErrWrongType
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: %v, want %v", c.name, got, c.want)
			}
			c.after(scriptBench{caseTB{t, c.name}, b.rdb, nil, b.real}, "k")
		}
	})
}

func TestPlainVerdictsAreReadOnEveryBranch(t *testing.T) {
	mine, look := stringOwned("k", me, time.Minute), stringOwned("k", me, 0)
	for _, c := range []struct {
		name  string
		owned wire.Owned
		reply any
		want  wire.Verdict
	}{
		{"renewed", mine, "OK", wire.Kept},
		{"not renewed", mine, nil, wire.NotMine},
		{"looked at", look, me, wire.Kept},
		{"looked at, another's", look, stranger, wire.NotMine},
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
func (scriptError) RedisError()     {}
