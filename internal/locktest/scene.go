package locktest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// SceneHandOver is how long after a release the next waiter may take to be in.
const SceneHandOver = 500 * time.Millisecond

// Scene is a server, the clients that a test makes of it, and what has to hold
// when everything is over. It works on a real server and on virtual time.
type Scene struct {
	t       testing.TB
	connect func(...func(*redis.Options)) *redis.Client
	Conns   func() int    // connections of the scene's clients
	Probe   *redis.Client // looks at the server
	rdbs    []*redis.Client
	Clients []*watchlock.Client
}

// RealScene starts a server. The test ends with no goroutine more than before.
func RealScene(t testing.TB, opts ...redistest.ServerOption) (*Scene, *redistest.Server) {
	t.Helper()
	redistest.NoLeaks(t)
	server := redistest.Start(t, opts...)
	s := &Scene{t: t, connect: server.Client, Probe: server.Client()}
	s.Conns = func() int {
		list, err := s.Probe.ClientList(context.Background()).Result()
		if err != nil {
			t.Fatalf("CLIENT LIST: %v", err)
		}
		return strings.Count(list, " name=scene ")
	}
	return s, server
}

// VirtualScene is a scene in a bubble, which looks after goroutines itself.
func VirtualScene(t testing.TB, v *redistest.Virtual) *Scene {
	t.Helper()
	s := &Scene{t: t, connect: v.Client, Probe: v.Client()}
	s.Keys() // opens the probe's connection
	own := v.Conns()
	s.Conns = func() int { return v.Conns() - own }
	return s
}

// Client makes a lock client on a Redis client of its own.
func (s *Scene) Client(opts ...watchlock.Option) *watchlock.Client {
	s.t.Helper()
	return s.ClientOn(s.Rdb(), opts...)
}

// Rdb makes a client of go-redis on its server.
func (s *Scene) Rdb(opts ...func(*redis.Options)) *redis.Client {
	named := func(o *redis.Options) { o.ClientName = "scene" }
	rdb := s.connect(append(opts, named)...)
	s.rdbs = append(s.rdbs, rdb)
	return rdb
}

// ClientOn makes a client on rdb.
func (s *Scene) ClientOn(rdb *redis.Client, opts ...watchlock.Option) *watchlock.Client {
	s.t.Helper()
	c := NewTestClient(s.t, rdb, opts...)
	s.Clients = append(s.Clients, c)
	return c
}

// Keys lists what is in Redis, counters of tokens left out.
func (s *Scene) Keys() []string {
	s.t.Helper()
	keys, err := s.Probe.Keys(context.Background(), "*").Result()
	if err != nil {
		s.t.Fatalf("KEYS: %v", err)
	}
	return WithoutCounters(keys)
}

// TTL is what Redis keeps the lock for; negative when there is no key.
func (s *Scene) TTL(m *watchlock.Mutex) time.Duration {
	s.t.Helper()
	ttl, err := s.Probe.PTTL(context.Background(), KeysOf(m).Key).Result()
	if err != nil {
		s.t.Fatalf("PTTL: %v", err)
	}
	return ttl
}

// Owner is the lock's owner in Redis, empty when there is none.
func (s *Scene) Owner(m *watchlock.Mutex) string {
	s.t.Helper()
	if KindOfTest() == "setnx" {
		owner, err := s.Probe.Get(context.Background(), KeysOf(m).Key).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			s.t.Fatalf("GET: %v", err)
		}
		return owner
	}
	fields, err := s.Probe.HKeys(context.Background(), KeysOf(m).Key).Result()
	if err != nil {
		s.t.Fatalf("HKEYS: %v", err)
	}
	return strings.Join(fields, " ")
}

// Channels lists the channels with subscribers.
func (s *Scene) Channels() []string {
	s.t.Helper()
	channels, err := s.Probe.PubSubChannels(context.Background(), "*").Result()
	if err != nil {
		s.t.Fatalf("PUBSUB CHANNELS: %v", err)
	}
	return channels
}

// Force opens the lock as an operator would: it deletes the key and says so.
func (s *Scene) Force(m *watchlock.Mutex) {
	s.t.Helper()
	ctx := context.Background()
	if n, err := s.Probe.Del(ctx, KeysOf(m).Key).Result(); err != nil || n != 1 {
		s.t.Fatalf("DEL: %d, %v", n, err)
	}
	if err := s.Probe.Publish(ctx, KeysOf(m).Channel, wire.ReleasePayload).Err(); err != nil {
		s.t.Fatalf("PUBLISH: %v", err)
	}
}

// HandsOver checks that the lock is sound after what has happened to it: two
// clients that are new to it exclude each other, and the second is in soon
// after the first has left.
func (s *Scene) HandsOver(name string) {
	s.t.Helper()
	ctx := context.Background()
	a, b := NewTestMutex(s.Client(), name), NewTestMutex(s.Client(), name)
	first, err := a.TryLock(ctx, 5*time.Second)
	if err != nil {
		s.t.Fatalf("the lock cannot be taken any more: %v", err)
	}
	var c Counter
	var in time.Time
	second := make(chan error, 1)
	go func() {
		l, err := b.TryLock(ctx, 10*time.Second)
		in = time.Now()
		if err == nil {
			c.Section(0)
			err = l.Unlock(ctx)
		}
		second <- err
	}()
	Eventually(s.t, 5*time.Second, "the waiter is subscribed", func() bool { return len(s.Channels()) > 0 })
	// Two tries, and polls after 250 and 500 ms: the next comes too late to help.
	Eventually(s.t, 5*time.Second, "the waiter polls slowly", func() bool { return AttemptsOn(b) >= 4 })
	if n := s.Conns(); n < 3 {
		s.t.Errorf("two clients and a subscription have %d connections: the count is wrong", n)
	}
	c.Section(time.Millisecond)
	left := time.Now()
	MustUnlock(s.t, first)
	if err := <-second; err != nil {
		s.t.Fatalf("the waiter: %v", err)
	}
	if took := in.Sub(left); took >= SceneHandOver {
		s.t.Errorf("the waiter was in %v after the release, want less than %v", took, SceneHandOver)
	}
	c.Check(s.t, 2)
}

// MustReenter takes the lock once more under l, or ends the test. A re-entry that
// waits would wait for ever.
func MustReenter(t testing.TB, m *watchlock.Mutex, l *watchlock.Lease, opts ...watchlock.LockOption) *watchlock.Lease {
	t.Helper()
	inner, err := m.TryLock(l.Context(context.Background()), 5*time.Second, opts...)
	if err != nil {
		t.Fatalf("re-entry: %v", err)
	}
	return inner
}

// End checks that nothing is left: no key, no subscription once it has
// lingered, and no connection after the clients are closed.
func (s *Scene) End() {
	s.t.Helper()
	Eventually(s.t, 5*time.Second, "no key is left", func() bool { return len(s.Keys()) == 0 })
	Eventually(s.t, ChannelLinger+2*time.Second, "no channel is left", func() bool { return len(s.Channels()) == 0 })
	for _, c := range s.Clients {
		_ = c.Close() // tests that are about its error have looked at it
	}
	for _, rdb := range s.rdbs {
		_ = rdb.Close()
	}
	Eventually(s.t, 2*time.Second, "no connection is left", func() bool { return s.Conns() == 0 })
	if keys := s.Keys(); len(keys) > 0 {
		s.t.Errorf("keys that came after the last unlock: %q", keys)
	}
}

// AwaitQueue returns when n calls wait in this client for the lock.
func (s *Scene) AwaitQueue(m *watchlock.Mutex, n int) {
	s.t.Helper()
	Eventually(s.t, 10*time.Second, "the waiters have queued", func() bool { return QueuedOn(m) == n })
}
