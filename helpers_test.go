package watchlock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// entry is when a waiter got the lock.
type lockEntry struct {
	at    time.Time
	lease *Lease
	err   error
}

func lockSoon(m *Mutex) <-chan lockEntry {
	entered := make(chan lockEntry, 1)
	go func() {
		l, err := m.Lock(context.Background())
		entered <- lockEntry{time.Now(), l, err}
	}()
	return entered
}

// lockOfKind takes a lock of one kind.
type lockOfKind func(ctx context.Context, opts ...LockOption) (*Lease, error)

// mustDo sends one command to a server.
func mustDo(t testing.TB, s *redistest.Server, args ...any) any {
	t.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return reply
}

// mustReenter takes the lock once more under l, or ends the test. A re-entry that
// waits would wait for ever.
func mustReenter(t testing.TB, m *Mutex, l *Lease, opts ...LockOption) *Lease {
	t.Helper()
	inner, err := m.TryLock(l.Context(context.Background()), 5*time.Second, opts...)
	if err != nil {
		t.Fatalf("re-entry: %v", err)
	}
	return inner
}

// channelKeys is the channel of the lock of a kind.
func channelKeys(kind string) string {
	if kind == "setnx" {
		return "watchlock_setnx__channel:{setnx}"
	}
	return "redisson_lock__channel:{" + kind + "}"
}

// knowsServer has c take and release a lock, so that the string form knows what the
// server can, and a hash has its scripts there.
func knowsServer(t testing.TB, c *Client, kind string) {
	t.Helper()
	mustUnlock(t, mustLock(t, mutexOf(c, kind, "warm")))
}

// eachKind runs f as a subtest for each lock kind, as mutexOf names them.
func eachKind(t *testing.T, f func(t *testing.T, kind string)) {
	for _, kind := range []string{"mutex", "fenced", "string"} {
		t.Run(kind, func(t *testing.T) { f(t, kind) })
	}
}

// eachKindInBubble is eachKind on virtual time, each with a server of its own that
// knows all scripts.
func eachKindInBubble(t *testing.T, f func(t *testing.T, v *redistest.Virtual, kind string)) {
	eachKind(t, func(t *testing.T, kind string) {
		inBubble(t, func(t *testing.T, v *redistest.Virtual) {
			loadAllScripts(t, v)
			f(t, v, kind)
		})
	})
}

// loadAllScripts gives the server the scripts of all kinds.
func loadAllScripts(t testing.TB, v *redistest.Virtual) {
	t.Helper()
	raw := v.Client()
	defer raw.Close()
	for _, source := range []string{
		wire.AcquireSource, wire.RenewSource, wire.ReleaseSource, wire.InfoSource, wire.AcquireFencedSource,
		wire.AcquireStringSource, wire.RenewStringSource, wire.ReleaseStringSource,
		wire.RelayScript.Source, wire.RelayFencedScript.Source,
	} {
		if err := raw.ScriptLoad(context.Background(), source).Err(); err != nil {
			t.Fatalf("SCRIPT LOAD: %v", err)
		}
	}
	v.Reset()
}

// fieldOf is the owner of a lock in the virtual server, "" when it is free.
func fieldOf(t testing.TB, v *redistest.Virtual, key string) string {
	t.Helper()
	if !v.Mini().Exists(key) {
		return ""
	}
	if kindOfTest() == "setnx" {
		owner, err := v.Mini().Get(key)
		if err != nil {
			t.Fatalf("value of %s: %v", key, err)
		}
		return owner
	}
	fields, err := v.Mini().HKeys(key)
	if err != nil || len(fields) != 1 {
		t.Fatalf("fields of %s: %q, %v", key, fields, err)
	}
	return fields[0]
}

// lockCall is a call of Lock or TryLock on a goroutine of its own and what came of it.
type lockCall struct {
	lease *Lease
	err   error
	took  time.Duration
	done  chan struct{}
}

// goLock calls lock on a goroutine of its own.
func goLock(lock func() (*Lease, error)) *lockCall {
	c := &lockCall{done: make(chan struct{})}
	start := time.Now()
	go func() {
		defer close(c.done)
		c.lease, c.err = lock()
		c.took = time.Since(start)
	}()
	return c
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

const (
	scriptLease = 30 * time.Second
	me          = "2f6f1f4e-8a7b-4d0c-9d36-1a2b3c4d5e6f:1"
	earlier     = "2f6f1f4e-8a7b-4d0c-9d36-1a2b3c4d5e6f:2"
	stranger    = "00000000-0000-4000-8000-000000000000:7"
)

// lockNamed is the Lock of a lock of a kind.
func lockNamed(c *Client, kind, name string) lockOfKind {
	switch kind {
	case "setnx":
		return c.NewSetNXMutex(name).Lock
	case "fenced":
		return func(ctx context.Context, opts ...LockOption) (*Lease, error) {
			l, err := c.NewFencedMutex(name).Lock(ctx, opts...)
			return leaseOf(l), err
		}
	}
	return c.NewMutex(name).Lock
}

// userWith makes a user with every right but those taken, and returns an option of clients
// that log in as that user.
func userWith(t testing.TB, s *redistest.Server, rules ...any) func(*redis.Options) {
	t.Helper()
	mustDo(t, s, append([]any{"ACL", "SETUSER", "w", "reset", "on", ">p", "~*", "&*", "+@all"}, rules...)...)
	return func(o *redis.Options) { o.Username, o.Password = "w", "p" }
}

// sent is how many commands the server has read, besides those that open a
// connection. The first run of a script, EVALSHA and then EVAL, counts once.
func sent(v *redistest.Virtual) int {
	n := 0
	for _, c := range v.Commands() {
		if c.Name != "HELLO" && c.Name != "EVAL" {
			n++
		}
	}
	return n
}

// relayKinds runs f for each kind whose locks are relayed.
func relayKinds(t *testing.T, f func(t *testing.T, v *redistest.Virtual, kind string)) {
	for _, kind := range []string{"mutex", "fenced"} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) { f(t, v, kind) })
		})
	}
}

// relayClient is a client of a server that knows all scripts.
func relayClient(t *testing.T, v *redistest.Virtual, opts ...Option) (*Client, *redistest.Wire) {
	t.Helper()
	raw := v.Client()
	defer raw.Close()
	for _, source := range []string{wire.AcquireSource, wire.AcquireFencedSource, wire.ReleaseSource, wire.RenewSource, wire.RelayScript.Source, wire.RelayFencedScript.Source} {
		if err := raw.ScriptLoad(context.Background(), source).Err(); err != nil {
			t.Fatalf("SCRIPT LOAD: %v", err)
		}
	}
	v.Reset()
	w := redistest.NewWire()
	return newTestClient(t, v.Client(w.Options()), opts...), w
}

// plainReleases matches the runs of the script that only releases a hash.
var plainReleases = redistest.Runs(wire.ReleaseSource)

// virtualWarnings are the warnings so far that contain text.
func virtualWarnings(logs *observer.ObservedLogs, text string) []observer.LoggedEntry {
	return logs.Filter(func(e observer.LoggedEntry) bool {
		return e.Level >= zapcore.WarnLevel && strings.Contains(e.Message, text)
	}).All()
}
