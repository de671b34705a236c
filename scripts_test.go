package watchlock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// scriptBench is a server that scripts are tried on.
type scriptBench struct {
	testing.TB
	rdb  *redis.Client
	mini *redistest.Virtual // nil on a real server
	real *redistest.Server  // nil on miniredis
}

// onScriptServers runs f on miniredis and on a server of each family, each empty.
func onScriptServers(t *testing.T, f func(t *testing.T, b scriptBench)) {
	t.Run("miniredis", func(t *testing.T) {
		inBubble(t, func(t *testing.T, v *redistest.Virtual) { f(t, scriptBench{t, v.Client(), v, nil}) })
	})
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) { f(t, scriptBench{t, s.Client(), nil, s}) })
}

func (b scriptBench) do(args ...any) any {
	b.Helper()
	reply, err := b.rdb.Do(context.Background(), args...).Result()
	if err != nil {
		b.Fatalf("%v: %v", args, err)
	}
	return reply
}

// run runs the source of a script for a client.
func (b scriptBench) run(rdb *redis.Client, c transport.Call) (any, error) {
	// Read as it comes, not as integers.
	return rdb.Do(context.Background(), append([]any{"eval", c.Script.Source, c.Nkeys}, c.Params()...)...).Result()
}

// ownedBy is a lock as a script acts on it for an owner.
func ownedBy(k wire.Keys, name string, lease time.Duration) wire.Owned {
	k.KeyArg, k.ChannelArg = k.Key, k.Channel
	return wire.Owned{Keys: &k, Owner: name, Lease: lease, LeaseArg: wire.LeaseArg(lease)}
}

// integers is a reply as the library takes it from a script of integers: nil when
// it is anything else.
func integers(reply any) []int64 {
	list, _ := reply.([]any)
	ints := make([]int64, len(list))
	for i, r := range list {
		n, ok := r.(int64)
		if !ok {
			return nil
		}
		ints[i] = n
	}
	return ints
}

// hash makes a hash with these fields, each of value 1, and a TTL unless it is 0.
func (b scriptBench) hash(key string, ttl time.Duration, fields ...string) {
	b.Helper()
	for _, f := range fields {
		b.do("HSET", key, f, "1")
	}
	if ttl > 0 {
		b.do("PEXPIRE", key, ttl.Milliseconds())
	}
}

// holds fails unless key is a hash of exactly these fields, each of value 1,
// with about this TTL; none at all if ttl is negative.
func (b scriptBench) holds(key string, ttl time.Duration, fields ...string) {
	b.Helper()
	want := map[string]string{}
	for _, f := range fields {
		want[f] = "1"
	}
	got, err := b.rdb.HGetAll(context.Background(), key).Result()
	if err != nil || !maps.Equal(got, want) {
		b.Errorf("fields of %q are %v, %v, want %v", key, got, err, want)
	}
	b.lasts(key, b.do("PTTL", key), ttl)
}

// lasts fails unless a PTTL says about ttl. Real servers have let a little pass.
func (b scriptBench) lasts(key string, pttl any, ttl time.Duration) {
	b.Helper()
	got := time.Duration(pttl.(int64)) * time.Millisecond
	slack := 10 * time.Second
	if b.mini != nil {
		slack = 0
	}
	if ttl < 0 {
		ttl, slack = -time.Millisecond, 0
	}
	if got > ttl || got < ttl-slack {
		b.Errorf("TTL of %q is %v, want %v", key, got, ttl)
	}
}

// only fails unless these are all keys there are.
func (b scriptBench) only(keys ...string) {
	b.Helper()
	got, err := b.rdb.Keys(context.Background(), "*").Result()
	slices.Sort(got)
	slices.Sort(keys)
	if err != nil || !slices.Equal(got, keys) {
		b.Errorf("keys are %q, %v, want %q", got, err, keys)
	}
}

// hears subscribes to a channel; the result returns the next message, or fails.
func (b scriptBench) hears(channel string) func() string {
	b.Helper()
	ctx := context.Background()
	sub := b.rdb.Subscribe(ctx, channel)
	b.Cleanup(func() { _ = sub.Close() })
	if _, err := sub.Receive(ctx); err != nil {
		b.Fatalf("subscribe: %v", err)
	}
	return func() string {
		b.Helper()
		m, err := sub.ReceiveTimeout(ctx, 5*time.Second)
		if err != nil {
			b.Fatalf("receive: %v", err)
		}
		return m.(*redis.Message).Channel + " " + m.(*redis.Message).Payload
	}
}

// user makes an ACL user who has every right but those that rules take away.
func (b scriptBench) user(rules ...any) *redis.Client {
	b.Helper()
	if _, err := b.real.Do(append([]any{"ACL", "SETUSER", "u", "reset", "on", ">p", "~*", "&*", "+@all"}, rules...)...); err != nil {
		b.Fatalf("ACL SETUSER: %v", err)
	}
	return b.real.Client(func(o *redis.Options) { o.Username, o.Password = "u", "p" })
}

// scriptCase is one branch of a script. name is also its lock.
type scriptCase struct {
	name  string
	setup func(b scriptBench, key string)
	call  func(k wire.Keys) transport.Call
	want  []any  // the reply; a time.Duration stands for that PTTL
	fails string // or the first word of the error
	after func(b scriptBench, key string)
}

func runScriptCases(t *testing.T, cases []scriptCase) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		for _, c := range cases {
			b.do("FLUSHALL")
			k, err := wire.NewKeys(wire.HashKind{}, c.name, nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.setup != nil {
				c.setup(b, k.Key)
			}
			reply, err := b.run(b.rdb, c.call(k))
			b.TB = caseTB{t, c.name}
			if c.fails != "" {
				// Miniredis puts words of its own before what a call in a script says.
				if err == nil || !strings.HasPrefix(err.Error(), c.fails) && (b.mini == nil || !strings.Contains(err.Error(), c.fails)) {
					b.Errorf("reply %v, error %v, want %s", reply, err, c.fails)
				}
			} else {
				b.answers(reply, err, c.want)
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

func (b scriptBench) answers(reply any, err error, want []any) {
	b.Helper()
	got, ok := reply.([]any)
	if err != nil || !ok || len(got) != len(want) {
		b.Errorf("reply %v, %v, want %v", reply, err, want)
		return
	}
	for i, w := range want {
		if d, ok := w.(time.Duration); ok {
			b.lasts("reply", got[i], d)
		} else if n, ok := w.(int); ok && got[i] != int64(n) || !ok && got[i] != w {
			b.Errorf("reply %v, want %v", got, want)
		}
	}
}

const (
	scriptLease = 30 * time.Second
	me          = "2f6f1f4e-8a7b-4d0c-9d36-1a2b3c4d5e6f:1"
	earlier     = "2f6f1f4e-8a7b-4d0c-9d36-1a2b3c4d5e6f:2"
	stranger    = "00000000-0000-4000-8000-000000000000:7"
)

func TestAcquireScriptOnEveryBranch(t *testing.T) {
	acquire := func(before ...wire.Owner) func(wire.Keys) transport.Call {
		return func(k wire.Keys) transport.Call {
			o := ownedBy(k, me, scriptLease)
			return wire.AcquireHash(&o, before)
		}
	}
	untouched := func(b scriptBench, key string) {
		b.holds(key, time.Minute, stranger)
		b.only(key)
	}
	taken := func(b scriptBench, key string) {
		b.holds(key, scriptLease, me)
		b.only(key)
	}
	runScriptCases(t, []scriptCase{
		{name: "free", call: acquire(), want: []any{1}, after: taken},
		{
			name: "free, earlier owners left nothing", call: acquire(earlier, stranger),
			want: []any{1}, after: taken,
		},
		{
			name: "held", call: acquire(), want: []any{0, time.Minute}, after: untouched,
			setup: func(b scriptBench, key string) { b.hash(key, time.Minute, stranger) },
		},
		{
			name: "held, not by an earlier owner", call: acquire(earlier), want: []any{0, time.Minute}, after: untouched,
			setup: func(b scriptBench, key string) { b.hash(key, time.Minute, stranger) },
		},
		{
			name: "taken over from an earlier owner", call: acquire(earlier), want: []any{1}, after: taken,
			setup: func(b scriptBench, key string) { b.hash(key, time.Minute, earlier) },
		},
		{
			name: "taken over from the last of many", call: acquire("a:1", "b:2", earlier), want: []any{1}, after: taken,
			setup: func(b scriptBench, key string) { b.hash(key, time.Minute, earlier) },
		},
		{
			name: "earlier owner beside a foreign field", call: acquire(earlier),
			want: []any{0, time.Minute}, after: untouched,
			setup: func(b scriptBench, key string) { b.hash(key, time.Minute, earlier, stranger) },
		},
		{
			name: "key without TTL", call: acquire(), want: []any{0, -1},
			setup: func(b scriptBench, key string) { b.hash(key, 0, stranger) },
			after: func(b scriptBench, key string) { b.holds(key, -1, stranger) },
		},
		{
			name: "wrong type", call: acquire(), fails: "WRONGTYPE", after: stillText,
			setup: func(b scriptBench, key string) { b.do("SET", key, "x") },
		},
		{
			name: "wrong type under an earlier owner", call: acquire(earlier), fails: "WRONGTYPE", after: stillText,
			setup: func(b scriptBench, key string) { b.do("SET", key, "x") },
		},
	})
}

// stillText fails unless key is the text that was there before.
func stillText(b scriptBench, key string) {
	b.Helper()
	if got := b.do("GET", key); got != "x" {
		b.Errorf("the other type became %v", got)
	}
	b.only(key)
}

func TestAcquireScriptRefusesBadLeasesBeforeItWrites(t *testing.T) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		for _, lease := range []string{
			"0", "-1", "0.5", "1.5", "", "x", "30s", "nan", "inf", "-inf", "1e400", "1e17", "9223372036854775808",
		} {
			_, err := b.run(b.rdb, transport.Call{Script: wire.AcquireScript, Nkeys: 1, Long: []any{"k", lease, me, earlier}})
			if err == nil || !strings.Contains(err.Error(), "lease out of range") {
				t.Errorf("lease %q: %v", lease, err)
			}
			b.only()
		}
	})
}

func TestAcquireScriptNeverLeavesAKeyWithoutTTL(t *testing.T) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		for _, lease := range []string{"1e4", " 20000 ", "0x7530", "30000.0", "+30000"} {
			b.do("FLUSHALL")
			reply, err := b.run(b.rdb, transport.Call{Script: wire.AcquireScript, Nkeys: 1, Long: []any{"k", lease, me}})
			if ttl := b.do("PTTL", "k").(int64); ttl == -1 {
				t.Errorf("lease %q: reply %v, %v, and a key without TTL", lease, reply, err)
			}
		}
	})
}

func TestRenewScriptOnEveryBranch(t *testing.T) {
	renew := func(lease time.Duration) func(wire.Keys) transport.Call {
		return func(k wire.Keys) transport.Call {
			return wire.RenewAll(wire.RenewScript, []wire.Owned{ownedBy(k, me, lease)})
		}
	}
	stays := func(ttl time.Duration, fields ...string) func(b scriptBench, key string) {
		return func(b scriptBench, key string) {
			b.Helper()
			b.holds(key, ttl, fields...)
			b.only(key)
		}
	}
	has := func(ttl time.Duration, fields ...string) func(b scriptBench, key string) {
		return func(b scriptBench, key string) { b.hash(key, ttl, fields...) }
	}
	runScriptCases(t, []scriptCase{
		{name: "raised", call: renew(time.Minute), want: []any{1}, setup: has(scriptLease, me), after: stays(time.Minute, me)},
		{name: "never lowered", call: renew(scriptLease), want: []any{1}, setup: has(time.Minute, me), after: stays(time.Minute, me)},
		{name: "only looked at", call: renew(0), want: []any{1}, setup: has(scriptLease, me), after: stays(scriptLease, me)},
		{name: "only looked at, without TTL", call: renew(0), want: []any{1}, setup: has(0, me), after: stays(-1, me)},
		{name: "without TTL gets one", call: renew(time.Minute), want: []any{1}, setup: has(0, me), after: stays(time.Minute, me)},
		{name: "not mine", call: renew(time.Minute), want: []any{0}, setup: has(scriptLease, stranger), after: stays(scriptLease, stranger)},
		{name: "not mine, only looked at", call: renew(0), want: []any{0}, setup: has(scriptLease, stranger), after: stays(scriptLease, stranger)},
		{name: "not mine, without TTL", call: renew(time.Minute), want: []any{0}, setup: has(0, stranger), after: stays(-1, stranger)},
		{
			name: "mine beside a foreign field", call: renew(time.Minute), want: []any{1},
			setup: has(scriptLease, me, stranger), after: stays(time.Minute, me, stranger),
		},
		{name: "gone", call: renew(time.Minute), want: []any{0}, after: func(b scriptBench, _ string) { b.only() }},
		{
			name: "wrong type beside good ones", want: []any{1, 0, 1, 0, 1},
			call: func(k wire.Keys) transport.Call {
				gone, good, looked := wire.Keys{Key: "gone"}, wire.Keys{Key: "good"}, wire.Keys{Key: "looked"}
				return wire.RenewAll(wire.RenewScript, []wire.Owned{
					ownedBy(good, me, time.Minute),
					ownedBy(k, me, time.Minute),
					ownedBy(looked, stranger, 0),
					ownedBy(gone, me, time.Minute),
					ownedBy(good, me, scriptLease),
				})
			},
			setup: func(b scriptBench, key string) {
				b.do("SET", key, "x")
				b.hash("good", scriptLease, me)
				b.hash("looked", scriptLease, stranger)
			},
			after: func(b scriptBench, key string) {
				b.holds("good", time.Minute, me)
				b.holds("looked", scriptLease, stranger)
				b.only(key, "good", "looked")
			},
		},
	})
}

func TestRenewScriptSaysUnseenOfWhatItMayNotLookAt(t *testing.T) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		b.hash("a", scriptLease, me)
		rdb := b.rdb
		if b.mini != nil {
			b.mini.Mini().Server().SetPreHook(func(p *server.Peer, cmd string, args ...string) bool {
				if cmd != "HEXISTS" || args[0] != "a" {
					return false
				}
				p.WriteError("ERR out of order")
				return true
			})
		} else {
			rdb = b.user("-hexists")
		}
		reply, err := b.run(rdb, wire.RenewAll(wire.RenewScript, []wire.Owned{ownedBy(wire.Keys{Key: "a"}, me, time.Minute)}))
		b.answers(reply, err, []any{-1})
		if b.mini != nil {
			b.mini.Mini().Server().SetPreHook(nil)
		}
		b.holds("a", scriptLease, me)
		if v, err := wire.ReadRenew(integers(reply), 1); err != nil || v[0] != wire.Unseen {
			t.Errorf("read as %v, %v", v, err)
		}
	})
}

func TestReleaseScriptOnEveryBranch(t *testing.T) {
	release := func(k wire.Keys) transport.Call {
		return wire.ReleaseAll(wire.ReleaseScript, []wire.Owned{ownedBy(k, me, 0)})
	}
	free := func(b scriptBench, _ string) { b.only() }
	runScriptCases(t, []scriptCase{
		{
			name: "freed", call: release, want: []any{1, 0}, after: free,
			setup: func(b scriptBench, key string) { b.hash(key, scriptLease, me) },
		},
		{
			name: "freed, without TTL", call: release, want: []any{1, 0}, after: free,
			setup: func(b scriptBench, key string) { b.hash(key, 0, me) },
		},
		{name: "gone", call: release, want: []any{0, 0}, after: free},
		{
			name: "not mine", call: release, want: []any{0, 0},
			setup: func(b scriptBench, key string) { b.hash(key, scriptLease, stranger) },
			after: func(b scriptBench, key string) { b.holds(key, scriptLease, stranger) },
		},
		{
			name: "foreign fields stay", call: release, want: []any{1, 0},
			setup: func(b scriptBench, key string) { b.hash(key, scriptLease, me, stranger) },
			after: func(b scriptBench, key string) { b.holds(key, scriptLease, stranger) },
		},
		{
			name: "wrong type beside good ones", want: []any{1, 0, 0, 0, 0, 0, 1, 0},
			call: func(k wire.Keys) transport.Call {
				return wire.ReleaseAll(wire.ReleaseScript, []wire.Owned{
					ownedBy(wire.Keys{Key: "a"}, me, 0),
					ownedBy(k, me, 0),
					ownedBy(wire.Keys{Key: "gone"}, me, 0),
					ownedBy(wire.Keys{Key: "b"}, me, 0),
				})
			},
			setup: func(b scriptBench, key string) {
				b.do("SET", key, "x")
				b.hash("a", scriptLease, me)
				b.hash("b", scriptLease, me)
			},
			after: stillText,
		},
	})
}

func TestReleaseScriptTellsEverySubscriberByOneMessage(t *testing.T) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		k, err := wire.NewKeys(wire.HashKind{}, "order:1", nil)
		if err != nil {
			t.Fatal(err)
		}
		const channel = "redisson_lock__channel:{order:1}"
		first, second := b.hears(channel), b.hears(channel)
		other := b.hears("redisson_lock__channel:{order:2}")

		for _, owner := range []string{stranger, me} {
			b.hash(k.Key, scriptLease, stranger)
			reply, err := b.run(b.rdb, wire.ReleaseAll(wire.ReleaseScript, []wire.Owned{ownedBy(k, me, 0)}))
			b.answers(reply, err, []any{0, 0}) // says nothing
			b.do("DEL", k.Key)
			b.hash(k.Key, scriptLease, owner)
			reply, err = b.run(b.rdb, wire.ReleaseAll(wire.ReleaseScript, []wire.Owned{ownedBy(k, owner, 0)}))
			b.answers(reply, err, []any{1, 2})
			for _, next := range []func() string{first, second} {
				if got, want := next(), channel+" 00"; got != want {
					t.Errorf("message %q, want %q", got, want)
				}
			}
		}
		b.do("PUBLISH", channel, "end")
		for _, next := range []func() string{first, second} {
			if got := next(); got != channel+" end" {
				t.Errorf("after the messages of two releases came %q", got)
			}
		}
		b.do("PUBLISH", "redisson_lock__channel:{order:2}", "end")
		if got := other(); got != "redisson_lock__channel:{order:2} end" {
			t.Errorf("another lock's channel heard %q", got)
		}
		b.only()
	})
}

func TestInfoScriptOnEveryBranch(t *testing.T) {
	info := func(k wire.Keys) transport.Call { k.KeyArg = k.Key; return wire.InfoHash(&k) }
	has := func(ttl time.Duration, fields ...string) func(b scriptBench, key string) {
		return func(b scriptBench, key string) { b.hash(key, ttl, fields...) }
	}
	nothing := func(scriptBench, string) {}
	runScriptCases(t, []scriptCase{
		{name: "free", call: info, want: []any{0, -2, "", "0", ""}, after: func(b scriptBench, _ string) { b.only() }},
		{name: "one owner", call: info, want: []any{1, scriptLease, me, "1", ""}, setup: has(scriptLease, me), after: nothing},
		{
			name: "a Redisson owner who entered thrice", call: info, want: []any{1, scriptLease, stranger, "3", ""}, after: nothing,
			setup: func(b scriptBench, key string) {
				b.do("HSET", key, stranger, "3")
				b.do("PEXPIRE", key, scriptLease.Milliseconds())
			},
		},
		{name: "many fields", call: info, want: []any{2, scriptLease, "", "0", ""}, setup: has(scriptLease, me, stranger), after: nothing},
		{name: "no TTL", call: info, want: []any{1, -1, me, "1", ""}, setup: has(0, me), after: nothing},
		{
			name: "wrong type", call: info, fails: "WRONGTYPE", after: stillText,
			setup: func(b scriptBench, key string) { b.do("SET", key, "x") },
		},
	})
}
