package locktest

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// ScriptBench is a server that scripts are tried on.
type ScriptBench struct {
	testing.TB
	Rdb  *redis.Client
	Mini *redistest.Virtual // nil on a real server
	Real *redistest.Server  // nil on miniredis
}

// OnScriptServers runs f on miniredis and on a server of each family, each empty.
func OnScriptServers(t *testing.T, f func(t *testing.T, b ScriptBench)) {
	t.Run("miniredis", func(t *testing.T) {
		InBubble(t, func(t *testing.T, v *redistest.Virtual) { f(t, ScriptBench{t, v.Client(), v, nil}) })
	})
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) { f(t, ScriptBench{t, s.Client(), nil, s}) })
}

// Do runs a command that must not fail.
func (b ScriptBench) Do(args ...any) any {
	b.Helper()
	reply, err := b.Rdb.Do(context.Background(), args...).Result()
	if err != nil {
		b.Fatalf("%v: %v", args, err)
	}
	return reply
}

// Run runs the source of a script for a client.
func (b ScriptBench) Run(rdb *redis.Client, c transport.Call) (any, error) {
	// Read as it comes, not as integers.
	return rdb.Do(context.Background(), append([]any{"eval", c.Script.Source, c.Nkeys}, c.Params()...)...).Result()
}

// OwnedBy is a lock as a script acts on it for an owner.
func OwnedBy(k wire.Keys, name string, lease time.Duration) wire.Owned {
	k.KeyArg, k.ChannelArg = k.Key, k.Channel
	return wire.Owned{Keys: &k, Owner: name, Lease: lease, LeaseArg: wire.LeaseArg(lease)}
}

// Integers is a reply as the library takes it from a script of integers: nil when
// it is anything else.
func Integers(reply any) []int64 {
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

// Hash makes a hash with these fields, each of value 1, and a TTL unless it is 0.
func (b ScriptBench) Hash(key string, ttl time.Duration, fields ...string) {
	b.Helper()
	for _, f := range fields {
		b.Do("HSET", key, f, "1")
	}
	if ttl > 0 {
		b.Do("PEXPIRE", key, ttl.Milliseconds())
	}
}

// Holds fails unless key is a hash of exactly these fields, each of value 1,
// with about this TTL; none at all if ttl is negative.
func (b ScriptBench) Holds(key string, ttl time.Duration, fields ...string) {
	b.Helper()
	want := map[string]string{}
	for _, f := range fields {
		want[f] = "1"
	}
	got, err := b.Rdb.HGetAll(context.Background(), key).Result()
	if err != nil || !maps.Equal(got, want) {
		b.Errorf("fields of %q are %v, %v, want %v", key, got, err, want)
	}
	b.Lasts(key, b.Do("PTTL", key), ttl)
}

// Lasts fails unless a PTTL says about ttl. Real servers have let a little pass.
func (b ScriptBench) Lasts(key string, pttl any, ttl time.Duration) {
	b.Helper()
	got := time.Duration(pttl.(int64)) * time.Millisecond
	slack := 10 * time.Second
	if b.Mini != nil {
		slack = 0
	}
	if ttl < 0 {
		ttl, slack = -time.Millisecond, 0
	}
	if got > ttl || got < ttl-slack {
		b.Errorf("TTL of %q is %v, want %v", key, got, ttl)
	}
}

// Only fails unless these are all keys there are.
func (b ScriptBench) Only(keys ...string) {
	b.Helper()
	got, err := b.Rdb.Keys(context.Background(), "*").Result()
	slices.Sort(got)
	slices.Sort(keys)
	if err != nil || !slices.Equal(got, keys) {
		b.Errorf("keys are %q, %v, want %q", got, err, keys)
	}
}

// Hears subscribes to a channel; the result returns the next message, or fails.
func (b ScriptBench) Hears(channel string) func() string {
	b.Helper()
	ctx := context.Background()
	sub := b.Rdb.Subscribe(ctx, channel)
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

// User makes an ACL user who has every right but those that rules take away.
func (b ScriptBench) User(rules ...any) *redis.Client {
	b.Helper()
	if _, err := b.Real.Do(append([]any{"ACL", "SETUSER", "u", "reset", "on", ">p", "~*", "&*", "+@all"}, rules...)...); err != nil {
		b.Fatalf("ACL SETUSER: %v", err)
	}
	return b.Real.Client(func(o *redis.Options) { o.Username, o.Password = "u", "p" })
}

// Answers checks the reply of a script: numbers, texts, and TTLs as durations.
func (b ScriptBench) Answers(reply any, err error, want []any) {
	b.Helper()
	got, ok := reply.([]any)
	if err != nil || !ok || len(got) != len(want) {
		b.Errorf("reply %v, %v, want %v", reply, err, want)
		return
	}
	for i, w := range want {
		if d, ok := w.(time.Duration); ok {
			b.Lasts("reply", got[i], d)
		} else if n, ok := w.(int); ok && got[i] != int64(n) || !ok && got[i] != w {
			b.Errorf("reply %v, want %v", got, want)
		}
	}
}

// Who and for how long, in tests of scripts.
const (
	ScriptLease = 30 * time.Second
	Me          = "2f6f1f4e-8a7b-4d0c-9d36-1a2b3c4d5e6f:1"
	Earlier     = "2f6f1f4e-8a7b-4d0c-9d36-1a2b3c4d5e6f:2"
	Stranger    = "00000000-0000-4000-8000-000000000000:7"
)

// Of fenced locks.
const (
	FencedDay     = 24 * time.Hour
	TokenBound    = 1 << 53
	counterPrefix = "redisson_lock_token:"
)

// CounterOf is the key of the token counter of a lock without a hash tag.
func CounterOf(key string) string { return counterPrefix + "{" + key + "}" }

// FencedCall is one run of the fenced acquire script for the owner "me".
func FencedCall(k wire.Keys, tokenTTL time.Duration, reserve int, before ...string) transport.Call {
	k.Token = CounterOf(k.Key)
	owned := OwnedBy(k, Me, ScriptLease)
	owned.TokenTTL, owned.Reserve = tokenTTL, reserve
	return wire.AcquireFenced(&owned, OwnersCalled(before))
}

// OwnersCalled boxes the owners of earlier attempts.
func OwnersCalled(names []string) []wire.Owner {
	owners := make([]wire.Owner, len(names))
	for i, name := range names {
		owners[i] = name
	}
	return owners
}

// Micros is the server's clock.
func (b ScriptBench) Micros() int64 {
	b.Helper()
	now, err := b.Rdb.Time(context.Background()).Result()
	if err != nil {
		b.Fatalf("TIME: %v", err)
	}
	return now.UnixMicro()
}

// FencedGrant runs the fenced acquire script and reads the grant.
func (b ScriptBench) FencedGrant(key string, tokenTTL time.Duration, reserve int, before ...string) wire.Grant {
	b.Helper()
	reply, err := b.Run(b.Rdb, FencedCall(wire.Keys{Key: key}, tokenTTL, reserve, before...))
	g, readErr := wire.ReadAcquire(Integers(reply))
	if err != nil || readErr != nil || !g.Taken {
		b.Fatalf("acquire %q: %v, %v, %v", key, reply, err, readErr)
	}
	return g
}

// Counts fails unless the counter of key is text, and lasts ttl.
func (b ScriptBench) Counts(key, text string, ttl time.Duration) {
	b.Helper()
	if got := b.Do("GET", CounterOf(key)); got != text {
		b.Errorf("counter of %q is %q, want %q", key, got, text)
	}
	b.Lasts(CounterOf(key), b.Do("PTTL", CounterOf(key)), ttl)
}

// Text makes a string key with a TTL unless it is 0.
func (b ScriptBench) Text(key, value string, ttl time.Duration) {
	b.Helper()
	b.Do("SET", key, value)
	if ttl > 0 {
		b.Do("PEXPIRE", key, ttl.Milliseconds())
	}
}

// Ears is a subscription of each kind to a channel, as far as the server knows it.
func (b ScriptBench) Ears(channel string) (classic, sharded *redis.PubSub) {
	b.Helper()
	ctx := context.Background()
	classic = b.Rdb.Subscribe(ctx, channel)
	b.Cleanup(func() { _ = classic.Close() })
	b.Gets(classic, "subscribe "+channel)
	if b.Mini == nil {
		sharded = b.Rdb.SSubscribe(ctx, channel)
		b.Cleanup(func() { _ = sharded.Close() })
		b.Gets(sharded, "ssubscribe "+channel)
	}
	return classic, sharded
}

// Gets fails unless this is what a subscription hears next.
func (b ScriptBench) Gets(sub *redis.PubSub, want string) {
	b.Helper()
	got := ""
	msg, err := sub.ReceiveTimeout(context.Background(), 5*time.Second)
	switch m := msg.(type) {
	case *redis.Message:
		got = m.Channel + " " + m.Payload
	case *redis.Subscription:
		got = m.Kind + " " + m.Channel
	}
	if got != want {
		b.Errorf("heard %q, %v, want %q", got, err, want)
	}
}

// RelayNext is the owner that a lock is relayed to.
const RelayNext = "next:1"

// RelayCall relays the lock of k from me to relayNext, for a client that has own
// subscriptions.
func RelayCall(k wire.Keys, own int, before ...wire.Owner) transport.Call {
	from, to := OwnedBy(k, Me, 0), OwnedBy(k, RelayNext, ScriptLease)
	if k.Token != "" {
		return wire.RelayHash(wire.RelayFencedScript, &from, own, wire.AcquireFenced(&to, before))
	}
	return wire.RelayHash(wire.RelayScript, &from, own, wire.AcquireHash(&to, before))
}
