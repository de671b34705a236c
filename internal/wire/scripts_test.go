package wire_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"

	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// scriptCase is one branch of a script. name is also its lock.
type scriptCase struct {
	name  string
	setup func(b locktest.ScriptBench, key string)
	call  func(k wire.Keys) transport.Call
	want  []any  // the reply; a time.Duration stands for that PTTL
	fails string // or the first word of the error
	after func(b locktest.ScriptBench, key string)
}

func runScriptCases(t *testing.T, cases []scriptCase) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		for _, c := range cases {
			b.Do("FLUSHALL")
			k, err := wire.NewKeys(wire.HashKind{}, c.name, nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.setup != nil {
				c.setup(b, k.Key)
			}
			reply, err := b.Run(b.Rdb, c.call(k))
			b.TB = caseTB{t, c.name}
			if c.fails != "" {
				// Miniredis puts words of its own before what a call in a script says.
				if err == nil || !strings.HasPrefix(err.Error(), c.fails) && (b.Mini == nil || !strings.Contains(err.Error(), c.fails)) {
					b.Errorf("reply %v, error %v, want %s", reply, err, c.fails)
				}
			} else {
				b.Answers(reply, err, c.want)
			}
			c.after(b, k.Key)
		}
	})
}

// caseTB puts the case's name before what fails.
type caseTB struct {
	testing.TB
	name string
}

func (c caseTB) Errorf(format string, args ...any) {
	c.Helper()
	c.TB.Errorf("%s: %s", c.name, fmt.Sprintf(format, args...))
}

func TestAcquireScriptOnEveryBranch(t *testing.T) {
	acquire := func(before ...wire.Owner) func(wire.Keys) transport.Call {
		return func(k wire.Keys) transport.Call {
			o := locktest.OwnedBy(k, locktest.Me, locktest.ScriptLease)
			return wire.AcquireHash(&o, before)
		}
	}
	untouched := func(b locktest.ScriptBench, key string) {
		b.Holds(key, time.Minute, locktest.Stranger)
		b.Only(key)
	}
	taken := func(b locktest.ScriptBench, key string) {
		b.Holds(key, locktest.ScriptLease, locktest.Me)
		b.Only(key)
	}
	runScriptCases(t, []scriptCase{
		{name: "free", call: acquire(), want: []any{1}, after: taken},
		{
			name: "free, earlier owners left nothing", call: acquire(locktest.Earlier, locktest.Stranger),
			want: []any{1}, after: taken,
		},
		{
			name: "held", call: acquire(), want: []any{0, time.Minute}, after: untouched,
			setup: func(b locktest.ScriptBench, key string) { b.Hash(key, time.Minute, locktest.Stranger) },
		},
		{
			name: "held, not by an earlier owner", call: acquire(locktest.Earlier), want: []any{0, time.Minute}, after: untouched,
			setup: func(b locktest.ScriptBench, key string) { b.Hash(key, time.Minute, locktest.Stranger) },
		},
		{
			name: "taken over from an earlier owner", call: acquire(locktest.Earlier), want: []any{1}, after: taken,
			setup: func(b locktest.ScriptBench, key string) { b.Hash(key, time.Minute, locktest.Earlier) },
		},
		{
			name: "taken over from the last of many", call: acquire("a:1", "b:2", locktest.Earlier), want: []any{1}, after: taken,
			setup: func(b locktest.ScriptBench, key string) { b.Hash(key, time.Minute, locktest.Earlier) },
		},
		{
			name: "earlier owner beside a foreign field", call: acquire(locktest.Earlier),
			want: []any{0, time.Minute}, after: untouched,
			setup: func(b locktest.ScriptBench, key string) {
				b.Hash(key, time.Minute, locktest.Earlier, locktest.Stranger)
			},
		},
		{
			name: "key without TTL", call: acquire(), want: []any{0, -1},
			setup: func(b locktest.ScriptBench, key string) { b.Hash(key, 0, locktest.Stranger) },
			after: func(b locktest.ScriptBench, key string) { b.Holds(key, -1, locktest.Stranger) },
		},
		{
			name: "wrong type", call: acquire(), fails: "WRONGTYPE", after: stillText,
			setup: func(b locktest.ScriptBench, key string) { b.Do("SET", key, "x") },
		},
		{
			name: "wrong type under an earlier owner", call: acquire(locktest.Earlier), fails: "WRONGTYPE", after: stillText,
			setup: func(b locktest.ScriptBench, key string) { b.Do("SET", key, "x") },
		},
	})
}

// stillText fails unless key is the text that was there before.
func stillText(b locktest.ScriptBench, key string) {
	b.Helper()
	if got := b.Do("GET", key); got != "x" {
		b.Errorf("the other type became %v", got)
	}
	b.Only(key)
}

func TestAcquireScriptRefusesBadLeasesBeforeItWrites(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		for _, lease := range []string{
			"0", "-1", "0.5", "1.5", "", "x", "30s", "nan", "inf", "-inf", "1e400", "1e17", "9223372036854775808",
		} {
			_, err := b.Run(b.Rdb, transport.Call{Script: wire.AcquireScript, Nkeys: 1, Long: []any{"k", lease, locktest.Me, locktest.Earlier}})
			if err == nil || !strings.Contains(err.Error(), "lease out of range") {
				t.Errorf("lease %q: %v", lease, err)
			}
			b.Only()
		}
	})
}

func TestAcquireScriptNeverLeavesAKeyWithoutTTL(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		for _, lease := range []string{"1e4", " 20000 ", "0x7530", "30000.0", "+30000"} {
			b.Do("FLUSHALL")
			reply, err := b.Run(b.Rdb, transport.Call{Script: wire.AcquireScript, Nkeys: 1, Long: []any{"k", lease, locktest.Me}})
			if ttl := b.Do("PTTL", "k").(int64); ttl == -1 {
				t.Errorf("lease %q: reply %v, %v, and a key without TTL", lease, reply, err)
			}
		}
	})
}

func TestRenewScriptOnEveryBranch(t *testing.T) {
	renew := func(lease time.Duration) func(wire.Keys) transport.Call {
		return func(k wire.Keys) transport.Call {
			return wire.RenewAll(wire.RenewScript, []wire.Owned{locktest.OwnedBy(k, locktest.Me, lease)})
		}
	}
	stays := func(ttl time.Duration, fields ...string) func(b locktest.ScriptBench, key string) {
		return func(b locktest.ScriptBench, key string) {
			b.Helper()
			b.Holds(key, ttl, fields...)
			b.Only(key)
		}
	}
	has := func(ttl time.Duration, fields ...string) func(b locktest.ScriptBench, key string) {
		return func(b locktest.ScriptBench, key string) { b.Hash(key, ttl, fields...) }
	}
	runScriptCases(t, []scriptCase{
		{name: "raised", call: renew(time.Minute), want: []any{1}, setup: has(locktest.ScriptLease, locktest.Me), after: stays(time.Minute, locktest.Me)},
		{name: "never lowered", call: renew(locktest.ScriptLease), want: []any{1}, setup: has(time.Minute, locktest.Me), after: stays(time.Minute, locktest.Me)},
		{name: "only looked at", call: renew(0), want: []any{1}, setup: has(locktest.ScriptLease, locktest.Me), after: stays(locktest.ScriptLease, locktest.Me)},
		{name: "only looked at, without TTL", call: renew(0), want: []any{1}, setup: has(0, locktest.Me), after: stays(-1, locktest.Me)},
		{name: "without TTL gets one", call: renew(time.Minute), want: []any{1}, setup: has(0, locktest.Me), after: stays(time.Minute, locktest.Me)},
		{name: "not mine", call: renew(time.Minute), want: []any{0}, setup: has(locktest.ScriptLease, locktest.Stranger), after: stays(locktest.ScriptLease, locktest.Stranger)},
		{name: "not mine, only looked at", call: renew(0), want: []any{0}, setup: has(locktest.ScriptLease, locktest.Stranger), after: stays(locktest.ScriptLease, locktest.Stranger)},
		{name: "not mine, without TTL", call: renew(time.Minute), want: []any{0}, setup: has(0, locktest.Stranger), after: stays(-1, locktest.Stranger)},
		{
			name: "mine beside a foreign field", call: renew(time.Minute), want: []any{1},
			setup: has(locktest.ScriptLease, locktest.Me, locktest.Stranger), after: stays(time.Minute, locktest.Me, locktest.Stranger),
		},
		{name: "gone", call: renew(time.Minute), want: []any{0}, after: func(b locktest.ScriptBench, _ string) { b.Only() }},
		{
			name: "wrong type beside good ones", want: []any{1, 0, 1, 0, 1},
			call: func(k wire.Keys) transport.Call {
				gone, good, looked := wire.Keys{Key: "gone"}, wire.Keys{Key: "good"}, wire.Keys{Key: "looked"}
				return wire.RenewAll(wire.RenewScript, []wire.Owned{
					locktest.OwnedBy(good, locktest.Me, time.Minute),
					locktest.OwnedBy(k, locktest.Me, time.Minute),
					locktest.OwnedBy(looked, locktest.Stranger, 0),
					locktest.OwnedBy(gone, locktest.Me, time.Minute),
					locktest.OwnedBy(good, locktest.Me, locktest.ScriptLease),
				})
			},
			setup: func(b locktest.ScriptBench, key string) {
				b.Do("SET", key, "x")
				b.Hash("good", locktest.ScriptLease, locktest.Me)
				b.Hash("looked", locktest.ScriptLease, locktest.Stranger)
			},
			after: func(b locktest.ScriptBench, key string) {
				b.Holds("good", time.Minute, locktest.Me)
				b.Holds("looked", locktest.ScriptLease, locktest.Stranger)
				b.Only(key, "good", "looked")
			},
		},
	})
}

func TestRenewScriptSaysUnseenOfWhatItMayNotLookAt(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		b.Hash("a", locktest.ScriptLease, locktest.Me)
		rdb := b.Rdb
		if b.Mini != nil {
			b.Mini.Mini().Server().SetPreHook(func(p *server.Peer, cmd string, args ...string) bool {
				if cmd != "HEXISTS" || args[0] != "a" {
					return false
				}
				p.WriteError("ERR out of order")
				return true
			})
		} else {
			rdb = b.User("-hexists")
		}
		reply, err := b.Run(rdb, wire.RenewAll(wire.RenewScript, []wire.Owned{locktest.OwnedBy(wire.Keys{Key: "a"}, locktest.Me, time.Minute)}))
		b.Answers(reply, err, []any{-1})
		if b.Mini != nil {
			b.Mini.Mini().Server().SetPreHook(nil)
		}
		b.Holds("a", locktest.ScriptLease, locktest.Me)
		if v, err := wire.ReadRenew(locktest.Integers(reply), 1); err != nil || v[0] != wire.Unseen {
			t.Errorf("read as %v, %v", v, err)
		}
	})
}

func TestReleaseScriptOnEveryBranch(t *testing.T) {
	release := func(k wire.Keys) transport.Call {
		return wire.ReleaseAll(wire.ReleaseScript, []wire.Owned{locktest.OwnedBy(k, locktest.Me, 0)})
	}
	free := func(b locktest.ScriptBench, _ string) { b.Only() }
	runScriptCases(t, []scriptCase{
		{
			name: "freed", call: release, want: []any{1, 0}, after: free,
			setup: func(b locktest.ScriptBench, key string) { b.Hash(key, locktest.ScriptLease, locktest.Me) },
		},
		{
			name: "freed, without TTL", call: release, want: []any{1, 0}, after: free,
			setup: func(b locktest.ScriptBench, key string) { b.Hash(key, 0, locktest.Me) },
		},
		{name: "gone", call: release, want: []any{0, 0}, after: free},
		{
			name: "not mine", call: release, want: []any{0, 0},
			setup: func(b locktest.ScriptBench, key string) { b.Hash(key, locktest.ScriptLease, locktest.Stranger) },
			after: func(b locktest.ScriptBench, key string) { b.Holds(key, locktest.ScriptLease, locktest.Stranger) },
		},
		{
			name: "foreign fields stay", call: release, want: []any{1, 0},
			setup: func(b locktest.ScriptBench, key string) {
				b.Hash(key, locktest.ScriptLease, locktest.Me, locktest.Stranger)
			},
			after: func(b locktest.ScriptBench, key string) { b.Holds(key, locktest.ScriptLease, locktest.Stranger) },
		},
		{
			name: "wrong type beside good ones", want: []any{1, 0, 0, 0, 0, 0, 1, 0},
			call: func(k wire.Keys) transport.Call {
				return wire.ReleaseAll(wire.ReleaseScript, []wire.Owned{
					locktest.OwnedBy(wire.Keys{Key: "a"}, locktest.Me, 0),
					locktest.OwnedBy(k, locktest.Me, 0),
					locktest.OwnedBy(wire.Keys{Key: "gone"}, locktest.Me, 0),
					locktest.OwnedBy(wire.Keys{Key: "b"}, locktest.Me, 0),
				})
			},
			setup: func(b locktest.ScriptBench, key string) {
				b.Do("SET", key, "x")
				b.Hash("a", locktest.ScriptLease, locktest.Me)
				b.Hash("b", locktest.ScriptLease, locktest.Me)
			},
			after: stillText,
		},
	})
}

func TestReleaseScriptTellsEverySubscriberByOneMessage(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		k, err := wire.NewKeys(wire.HashKind{}, "order:1", nil)
		if err != nil {
			t.Fatal(err)
		}
		const channel = "redisson_lock__channel:{order:1}"
		first, second := b.Hears(channel), b.Hears(channel)
		other := b.Hears("redisson_lock__channel:{order:2}")

		for _, owner := range []string{locktest.Stranger, locktest.Me} {
			b.Hash(k.Key, locktest.ScriptLease, locktest.Stranger)
			reply, err := b.Run(b.Rdb, wire.ReleaseAll(wire.ReleaseScript, []wire.Owned{locktest.OwnedBy(k, locktest.Me, 0)}))
			b.Answers(reply, err, []any{0, 0}) // says nothing
			b.Do("DEL", k.Key)
			b.Hash(k.Key, locktest.ScriptLease, owner)
			reply, err = b.Run(b.Rdb, wire.ReleaseAll(wire.ReleaseScript, []wire.Owned{locktest.OwnedBy(k, owner, 0)}))
			b.Answers(reply, err, []any{1, 2})
			for _, next := range []func() string{first, second} {
				if got, want := next(), channel+" 00"; got != want {
					t.Errorf("message %q, want %q", got, want)
				}
			}
		}
		b.Do("PUBLISH", channel, "end")
		for _, next := range []func() string{first, second} {
			if got := next(); got != channel+" end" {
				t.Errorf("after the messages of two releases came %q", got)
			}
		}
		b.Do("PUBLISH", "redisson_lock__channel:{order:2}", "end")
		if got := other(); got != "redisson_lock__channel:{order:2} end" {
			t.Errorf("another lock's channel heard %q", got)
		}
		b.Only()
	})
}

func TestInfoScriptOnEveryBranch(t *testing.T) {
	info := func(k wire.Keys) transport.Call { k.KeyArg = k.Key; return wire.InfoHash(&k) }
	has := func(ttl time.Duration, fields ...string) func(b locktest.ScriptBench, key string) {
		return func(b locktest.ScriptBench, key string) { b.Hash(key, ttl, fields...) }
	}
	nothing := func(locktest.ScriptBench, string) {}
	runScriptCases(t, []scriptCase{
		{name: "free", call: info, want: []any{0, -2, "", "0", ""}, after: func(b locktest.ScriptBench, _ string) { b.Only() }},
		{name: "one owner", call: info, want: []any{1, locktest.ScriptLease, locktest.Me, "1", ""}, setup: has(locktest.ScriptLease, locktest.Me), after: nothing},
		{
			name: "a Redisson owner who entered thrice", call: info, want: []any{1, locktest.ScriptLease, locktest.Stranger, "3", ""}, after: nothing,
			setup: func(b locktest.ScriptBench, key string) {
				b.Do("HSET", key, locktest.Stranger, "3")
				b.Do("PEXPIRE", key, locktest.ScriptLease.Milliseconds())
			},
		},
		{name: "many fields", call: info, want: []any{2, locktest.ScriptLease, "", "0", ""}, setup: has(locktest.ScriptLease, locktest.Me, locktest.Stranger), after: nothing},
		{name: "no TTL", call: info, want: []any{1, -1, locktest.Me, "1", ""}, setup: has(0, locktest.Me), after: nothing},
		{
			name: "wrong type", call: info, fails: "WRONGTYPE", after: stillText,
			setup: func(b locktest.ScriptBench, key string) { b.Do("SET", key, "x") },
		},
	})
}
