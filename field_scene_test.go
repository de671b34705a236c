package watchlock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// sceneHandOver is how long after a release the next waiter may take to be in.
const sceneHandOver = 500 * time.Millisecond

// scene is a server, the clients that a test makes of it, and what has to hold
// when everything is over. It works on a real server and on virtual time.
type scene struct {
	t       testing.TB
	connect func(...func(*redis.Options)) *redis.Client
	conns   func() int    // connections of the scene's clients
	probe   *redis.Client // looks at the server
	rdbs    []*redis.Client
	clients []*Client
}

// realScene starts a server. The test ends with no goroutine more than before.
func realScene(t testing.TB, opts ...redistest.ServerOption) (*scene, *redistest.Server) {
	t.Helper()
	redistest.NoLeaks(t)
	server := redistest.Start(t, opts...)
	s := &scene{t: t, connect: server.Client, probe: server.Client()}
	s.conns = func() int {
		list, err := s.probe.ClientList(context.Background()).Result()
		if err != nil {
			t.Fatalf("CLIENT LIST: %v", err)
		}
		return strings.Count(list, " name=scene ")
	}
	return s, server
}

// virtualScene is a scene in a bubble, which looks after goroutines itself.
func virtualScene(t testing.TB, v *redistest.Virtual) *scene {
	t.Helper()
	s := &scene{t: t, connect: v.Client, probe: v.Client()}
	s.keys() // opens the probe's connection
	own := v.Conns()
	s.conns = func() int { return v.Conns() - own }
	return s
}

// client makes a lock client on a Redis client of its own.
func (s *scene) client(opts ...Option) *Client {
	s.t.Helper()
	return s.clientOn(s.rdb(), opts...)
}

func (s *scene) rdb(opts ...func(*redis.Options)) *redis.Client {
	named := func(o *redis.Options) { o.ClientName = "scene" }
	rdb := s.connect(append(opts, named)...)
	s.rdbs = append(s.rdbs, rdb)
	return rdb
}

func (s *scene) clientOn(rdb *redis.Client, opts ...Option) *Client {
	s.t.Helper()
	c := newTestClient(s.t, rdb, opts...)
	s.clients = append(s.clients, c)
	return c
}

// keys lists what is in Redis, counters of tokens left out.
func (s *scene) keys() []string {
	s.t.Helper()
	keys, err := s.probe.Keys(context.Background(), "*").Result()
	if err != nil {
		s.t.Fatalf("KEYS: %v", err)
	}
	return withoutCounters(keys)
}

// ttl is what Redis keeps the lock for; negative when there is no key.
func (s *scene) ttl(m *Mutex) time.Duration {
	s.t.Helper()
	ttl, err := s.probe.PTTL(context.Background(), m.keys.Key).Result()
	if err != nil {
		s.t.Fatalf("PTTL: %v", err)
	}
	return ttl
}

// owner is the lock's owner in Redis, empty when there is none.
func (s *scene) owner(m *Mutex) string {
	s.t.Helper()
	if kindOfTest() == "setnx" {
		owner, err := s.probe.Get(context.Background(), m.keys.Key).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			s.t.Fatalf("GET: %v", err)
		}
		return owner
	}
	fields, err := s.probe.HKeys(context.Background(), m.keys.Key).Result()
	if err != nil {
		s.t.Fatalf("HKEYS: %v", err)
	}
	return strings.Join(fields, " ")
}

// channels lists the channels with subscribers.
func (s *scene) channels() []string {
	s.t.Helper()
	channels, err := s.probe.PubSubChannels(context.Background(), "*").Result()
	if err != nil {
		s.t.Fatalf("PUBSUB CHANNELS: %v", err)
	}
	return channels
}

// force opens the lock as an operator would: it deletes the key and says so.
func (s *scene) force(m *Mutex) {
	s.t.Helper()
	ctx := context.Background()
	if n, err := s.probe.Del(ctx, m.keys.Key).Result(); err != nil || n != 1 {
		s.t.Fatalf("DEL: %d, %v", n, err)
	}
	if err := s.probe.Publish(ctx, m.keys.Channel, wire.ReleasePayload).Err(); err != nil {
		s.t.Fatalf("PUBLISH: %v", err)
	}
}

// handsOver checks that the lock is sound after what has happened to it: two
// clients that are new to it exclude each other, and the second is in soon
// after the first has left.
func (s *scene) handsOver(name string) {
	s.t.Helper()
	ctx := context.Background()
	a, b := newTestMutex(s.client(), name), newTestMutex(s.client(), name)
	first, err := a.TryLock(ctx, 5*time.Second)
	if err != nil {
		s.t.Fatalf("the lock cannot be taken any more: %v", err)
	}
	var c counter
	var in time.Time
	second := make(chan error, 1)
	go func() {
		l, err := b.TryLock(ctx, 10*time.Second)
		in = time.Now()
		if err == nil {
			c.section(0)
			err = l.Unlock(ctx)
		}
		second <- err
	}()
	eventually(s.t, 5*time.Second, "the waiter is subscribed", func() bool { return len(s.channels()) > 0 })
	// Two tries, and polls after 250 and 500 ms: the next comes too late to help.
	eventually(s.t, 5*time.Second, "the waiter polls slowly", func() bool { return attemptsOn(b) >= 4 })
	if n := s.conns(); n < 3 {
		s.t.Errorf("two clients and a subscription have %d connections: the count is wrong", n)
	}
	c.section(time.Millisecond)
	left := time.Now()
	mustUnlock(s.t, first)
	if err := <-second; err != nil {
		s.t.Fatalf("the waiter: %v", err)
	}
	if took := in.Sub(left); took >= sceneHandOver {
		s.t.Errorf("the waiter was in %v after the release, want less than %v", took, sceneHandOver)
	}
	c.check(s.t, 2)
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

// end checks that nothing is left: no key, no subscription once it has
// lingered, and no connection after the clients are closed.
func (s *scene) end() {
	s.t.Helper()
	eventually(s.t, 5*time.Second, "no key is left", func() bool { return len(s.keys()) == 0 })
	eventually(s.t, channelLinger+2*time.Second, "no channel is left", func() bool { return len(s.channels()) == 0 })
	for _, c := range s.clients {
		_ = c.Close() // tests that are about its error have looked at it
	}
	for _, rdb := range s.rdbs {
		_ = rdb.Close()
	}
	eventually(s.t, 2*time.Second, "no connection is left", func() bool { return s.conns() == 0 })
	if keys := s.keys(); len(keys) > 0 {
		s.t.Errorf("keys that came after the last unlock: %q", keys)
	}
}

// gateOf is the lock's gate in this client, nil when it has none yet.
func gateOf(m *Mutex) *gate {
	for _, g := range m.c.allGates() {
		if g.keys.Key == m.keys.Key && g.keys.Channel == m.keys.Channel {
			return g
		}
	}
	return nil
}

// queuedOn is how many calls wait in this client for the lock.
func queuedOn(m *Mutex) int {
	g := gateOf(m)
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.queue.n
}

// attemptsOn is how often this client has tried to take the lock since it began
// to wait for it.
func attemptsOn(m *Mutex) int {
	g := gateOf(m)
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.attempts
}

// awaitQueue returns when n calls wait in this client for the lock.
func (s *scene) awaitQueue(m *Mutex, n int) {
	s.t.Helper()
	eventually(s.t, 10*time.Second, "the waiters have queued", func() bool { return queuedOn(m) == n })
}
