package hold_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
)

// Tests named after Snn are failures that were reported against other clients.

func TestS06_OneOfManyGoroutinesIsInside(t *testing.T) {
	const goroutines = 64
	s, _ := locktest.RealScene(t)
	c := s.Client()
	loadScripts06(t, c)
	for range locktest.FullCount(200) {
		var list []*watchlock.Mutex
		for range goroutines {
			list = append(list, locktest.NewTestMutex(c, "report")) // each a handle of its own
		}
		countTogether(t, list, 1, upTo(200*time.Microsecond))
	}

	// Only one try of many gets a free lock.
	m := locktest.NewTestMutex(c, "report")
	var mu sync.Mutex
	var winners []*watchlock.Lease
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
			} else if !errors.Is(err, watchlock.ErrNotAcquired) {
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
		wg.Go(func() { locktest.RefusesNow(t, locktest.NewTestMutex(c, "report")) })
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
			locktest.MustUnlock(t, l)
		})
	}
	out.Wait()
	locktest.MustUnlock(t, winners[0])
	s.HandsOver("report")
	s.End()
}

// loadScripts06 runs acquire and release once, so that goroutines that start
// together meet at the lock and not at the script cache.
func loadScripts06(t *testing.T, c *watchlock.Client) {
	t.Helper()
	locktest.MustUnlock(t, locktest.MustLock(t, locktest.NewTestMutex(c, "first")))
}

func TestS07_NestedUnlocksReleaseExactlyOnce(t *testing.T) {
	s, _ := locktest.RealScene(t)
	c, other := s.Client(), s.Client()
	m, theirs := locktest.NewTestMutex(c, "report"), locktest.NewTestMutex(other, "report")
	nest := func(opts ...watchlock.LockOption) []*watchlock.Lease {
		t.Helper()
		leases := []*watchlock.Lease{locktest.MustLock(t, m, opts...)}
		for range 2 {
			leases = append(leases, locktest.MustReenter(t, m, leases[len(leases)-1], opts...))
		}
		return leases
	}

	var count locktest.Counter
	leases := nest()
	entered := make(chan *watchlock.Lease, 1)
	go func() {
		l := locktest.MustLock(t, theirs)
		count.Section(0)
		entered <- l
	}()
	s.AwaitQueue(theirs, 1)
	for _, l := range []*watchlock.Lease{leases[2], leases[1]} {
		locktest.MustUnlock(t, l)
		locktest.RefusesNow(t, m)
		locktest.RefusesNow(t, theirs)
	}
	count.Section(time.Millisecond)
	left := time.Now()
	locktest.MustUnlock(t, leases[0])
	next := <-entered
	if took := time.Since(left); took >= locktest.SceneHandOver {
		t.Errorf("the waiter was in %v after the last unlock", took)
	}
	count.Check(t, 2)
	owner := s.Owner(m)
	if err := leases[0].Unlock(t.Context()); !errors.Is(err, watchlock.ErrNotHeld) {
		t.Errorf("a fourth unlock: %v, want ErrNotHeld", err)
	}
	if s.Owner(m) != owner || next.Err() != nil {
		t.Errorf("a fourth unlock changed the owner from %q to %q, lease %v", owner, s.Owner(m), next.Err())
	}
	locktest.MustUnlock(t, next)

	// The lease runs out between the unlocks.
	leases = nest(watchlock.WithLeaseTime(50 * time.Millisecond))
	locktest.MustUnlock(t, leases[2])
	<-leases[1].Done()
	next = locktest.MustLock(t, theirs)
	owner = s.Owner(m)
	for _, l := range []*watchlock.Lease{leases[1], leases[0]} {
		if err := l.Unlock(t.Context()); !errors.Is(err, watchlock.ErrLost) {
			t.Errorf("unlock of a lease that ran out: %v, want ErrLost", err)
		}
	}
	if err := leases[0].Unlock(t.Context()); !errors.Is(err, watchlock.ErrNotHeld) {
		t.Errorf("a fourth unlock: %v, want ErrNotHeld", err)
	}
	locktest.RedisAnswered(t, c)
	if s.Owner(m) != owner || next.Err() != nil {
		t.Errorf("late unlocks changed the owner from %q to %q, lease %v", owner, s.Owner(m), next.Err())
	}
	locktest.MustUnlock(t, next)
	s.HandsOver("report")
	s.End()
}

func TestS18_HandlesAreMadeConcurrently(t *testing.T) {
	const goroutines = 64
	s, _ := locktest.RealScene(t)
	shared := []watchlock.LockOption{watchlock.WithLeaseTime(5 * time.Second)}
	c := s.Client(watchlock.WithLockDefaults(shared...))
	shared[0] = watchlock.WithLeaseTime(time.Hour) // the client has its own copy
	var count locktest.Counter
	var wg sync.WaitGroup
	start := make(chan struct{})
	turns := locktest.FullCount(100)
	for range goroutines {
		wg.Go(func() {
			<-start
			for range turns {
				lease := time.Duration(1+rand.N(4)) * time.Second
				opts := []watchlock.LockOption{watchlock.WithLeaseTime(lease)}
				m := locktest.NewTestMutex(c, "report", opts...)
				opts[0] = watchlock.WithLeaseTime(time.Hour) // and so has the handle
				plain := locktest.NewTestMutex(c, "report")
				if rand.N(4) == 0 {
					m, lease = plain, 5*time.Second
				}
				l, err := m.Lock(context.Background())
				if err != nil {
					t.Errorf("lock: %v", err)
					return
				}
				count.Section(rand.N(100 * time.Microsecond))
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
	count.Check(t, goroutines*turns)
	s.HandsOver("report")
	s.End()
}

func TestS24_LosersOfARaceGoOnWaiting(t *testing.T) {
	const clients, each = 4, 8
	s, _ := locktest.RealScene(t)
	var list []*watchlock.Mutex
	for range clients {
		rdb := s.Rdb(func(o *redis.Options) { o.PoolSize = each })
		list = append(list, locktest.NewTestMutex(s.ClientOn(rdb), "report"))
	}
	holder := locktest.NewTestMutex(s.Client(), "report")
	for range locktest.FullCount(200) {
		held := locktest.MustLock(t, holder)
		var count locktest.Counter
		var wg sync.WaitGroup
		for i := range clients * each {
			wg.Go(func() {
				l, err := list[i%clients].Lock(context.Background())
				if err != nil {
					t.Errorf("a loser of the race: %v", err)
					return
				}
				count.Section(0)
				if err := l.Unlock(context.Background()); err != nil {
					t.Errorf("unlock: %v", err)
				}
			})
		}
		for _, m := range list {
			s.AwaitQueue(m, each)
		}
		locktest.Eventually(t, 5*time.Second, "all clients are subscribed", func() bool {
			n, err := s.Probe.PubSubNumSub(t.Context(), locktest.KeysOf(holder).Channel).Result()
			return err == nil && n[locktest.KeysOf(holder).Channel] >= clients
		})
		locktest.MustUnlock(t, held) // every client sees the lock free at once
		wg.Wait()
		count.Check(t, clients*each)
	}
	s.HandsOver("report")
	s.End()
}
