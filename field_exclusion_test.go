package watchlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Tests named after Snn are failures that were reported against other clients.

func TestS06_OneOfManyGoroutinesIsInside(t *testing.T) {
	const goroutines = 64
	s, _ := realScene(t)
	c := s.client()
	loadScripts06(t, c)
	for range fullCount(200) {
		var list []*Mutex
		for range goroutines {
			list = append(list, newTestMutex(c, "report")) // each a handle of its own
		}
		countTogether(t, list, 1, upTo(200*time.Microsecond))
	}

	// Only one try of many gets a free lock.
	m := newTestMutex(c, "report")
	var mu sync.Mutex
	var winners []*Lease
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range goroutines {
		wg.Go(func() {
			<-start
			l, err := m.TryLock(context.Background(), 0)
			if err == nil {
				mu.Lock()
				winners = append(winners, l)
				mu.Unlock()
			} else if !errors.Is(err, ErrNotAcquired) {
				t.Errorf("try lock: %v", err)
			}
		})
	}
	close(start)
	wg.Wait()
	if len(winners) != 1 {
		t.Fatalf("%d goroutines are inside", len(winners))
	}
	for range goroutines {
		wg.Go(func() { refusesNow(t, newTestMutex(c, "report")) })
	}
	wg.Wait()

	// An owner that is shared on purpose re-enters: all are inside together.
	shared := winners[0].Context(t.Context())
	var inside, out sync.WaitGroup
	inside.Add(goroutines)
	for range goroutines {
		out.Go(func() {
			l, err := m.TryLock(shared, 5*time.Second)
			inside.Done()
			if err != nil {
				t.Errorf("re-entry: %v", err)
				return
			}
			inside.Wait() // nobody leaves before all are in
			mustUnlock(t, l)
		})
	}
	out.Wait()
	mustUnlock(t, winners[0])
	s.handsOver("report")
	s.end()
}

// loadScripts06 runs acquire and release once, so that goroutines that start
// together meet at the lock and not at the script cache.
func loadScripts06(t *testing.T, c *Client) {
	t.Helper()
	mustUnlock(t, mustLock(t, newTestMutex(c, "first")))
}

func TestS07_NestedUnlocksReleaseExactlyOnce(t *testing.T) {
	s, _ := realScene(t)
	c, other := s.client(), s.client()
	m, theirs := newTestMutex(c, "report"), newTestMutex(other, "report")
	nest := func(opts ...LockOption) []*Lease {
		t.Helper()
		leases := []*Lease{mustLock(t, m, opts...)}
		for range 2 {
			leases = append(leases, mustReenter(t, m, leases[len(leases)-1], opts...))
		}
		return leases
	}

	var count counter
	leases := nest()
	entered := make(chan *Lease, 1)
	go func() {
		l := mustLock(t, theirs)
		count.section(0)
		entered <- l
	}()
	s.awaitQueue(theirs, 1)
	for _, l := range []*Lease{leases[2], leases[1]} {
		mustUnlock(t, l)
		refusesNow(t, m)
		refusesNow(t, theirs)
	}
	count.section(time.Millisecond)
	left := time.Now()
	mustUnlock(t, leases[0])
	next := <-entered
	if took := time.Since(left); took >= sceneHandOver {
		t.Errorf("the waiter was in %v after the last unlock", took)
	}
	count.check(t, 2)
	owner := s.owner(m)
	if err := leases[0].Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
		t.Errorf("a fourth unlock: %v, want ErrNotHeld", err)
	}
	if s.owner(m) != owner || next.Err() != nil {
		t.Errorf("a fourth unlock changed the owner from %q to %q, lease %v", owner, s.owner(m), next.Err())
	}
	mustUnlock(t, next)

	// The lease runs out between the unlocks.
	leases = nest(WithLeaseTime(50 * time.Millisecond))
	mustUnlock(t, leases[2])
	<-leases[1].Done()
	next = mustLock(t, theirs)
	owner = s.owner(m)
	for _, l := range []*Lease{leases[1], leases[0]} {
		if err := l.Unlock(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("unlock of a lease that ran out: %v, want ErrLost", err)
		}
	}
	if err := leases[0].Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
		t.Errorf("a fourth unlock: %v, want ErrNotHeld", err)
	}
	redisAnswered(t, c)
	if s.owner(m) != owner || next.Err() != nil {
		t.Errorf("late unlocks changed the owner from %q to %q, lease %v", owner, s.owner(m), next.Err())
	}
	mustUnlock(t, next)
	s.handsOver("report")
	s.end()
}

func TestS18_HandlesAreMadeConcurrently(t *testing.T) {
	const goroutines = 64
	s, _ := realScene(t)
	shared := []LockOption{WithLeaseTime(5 * time.Second)}
	c := s.client(WithLockDefaults(shared...))
	shared[0] = WithLeaseTime(time.Hour) // the client has its own copy
	var count counter
	var wg sync.WaitGroup
	start := make(chan struct{})
	turns := fullCount(100)
	for range goroutines {
		wg.Go(func() {
			<-start
			for range turns {
				lease := time.Duration(1+rand.N(4)) * time.Second
				opts := []LockOption{WithLeaseTime(lease)}
				m := newTestMutex(c, "report", opts...)
				opts[0] = WithLeaseTime(time.Hour) // and so has the handle
				plain := newTestMutex(c, "report")
				if rand.N(4) == 0 {
					m, lease = plain, 5*time.Second
				}
				l, err := m.Lock(context.Background())
				if err != nil {
					t.Errorf("lock: %v", err)
					return
				}
				count.section(rand.N(100 * time.Microsecond))
				if left := time.Until(l.ExpiresAt()); left > lease || left < lease/2 {
					t.Errorf("a lease of %v has %v left", lease, left)
				}
				if err := l.Unlock(context.Background()); err != nil {
					t.Errorf("unlock: %v", err)
				}
			}
		})
	}
	close(start)
	wg.Wait()
	count.check(t, goroutines*turns)
	s.handsOver("report")
	s.end()
}

func TestS24_LosersOfARaceGoOnWaiting(t *testing.T) {
	const clients, each = 4, 8
	s, _ := realScene(t)
	var list []*Mutex
	for range clients {
		rdb := s.rdb(func(o *redis.Options) { o.PoolSize = each })
		list = append(list, newTestMutex(s.clientOn(rdb), "report"))
	}
	holder := newTestMutex(s.client(), "report")
	for range fullCount(200) {
		held := mustLock(t, holder)
		var count counter
		var wg sync.WaitGroup
		for i := range clients * each {
			wg.Go(func() {
				l, err := list[i%clients].Lock(context.Background())
				if err != nil {
					t.Errorf("a loser of the race: %v", err)
					return
				}
				count.section(0)
				if err := l.Unlock(context.Background()); err != nil {
					t.Errorf("unlock: %v", err)
				}
			})
		}
		for _, m := range list {
			s.awaitQueue(m, each)
		}
		eventually(t, 5*time.Second, "all clients are subscribed", func() bool {
			n, err := s.probe.PubSubNumSub(t.Context(), holder.keys.Channel).Result()
			return err == nil && n[holder.keys.Channel] >= clients
		})
		mustUnlock(t, held) // every client sees the lock free at once
		wg.Wait()
		count.check(t, clients*each)
	}
	s.handsOver("report")
	s.end()
}
