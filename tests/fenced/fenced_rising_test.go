package fenced_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// rising keeps tokens in the order of the sections they were given to. Only the
// lock protects last and n.
type rising struct {
	locktest.Counter
	last  int64
	worst int64 // by how much a token fell, 0 if none did
}

// section is one critical section under token.
func (r *rising) section(token int64) {
	r.Section(0)
	if token <= r.last {
		r.worst = max(r.worst, r.last-token+1)
	}
	r.last = max(r.last, token)
}

// check fails unless want sections had rising tokens.
func (r *rising) check(t testing.TB, want int) {
	t.Helper()
	r.Check(t, want)
	if r.worst != 0 {
		t.Errorf("a token was %d below what must follow the one before", r.worst)
	}
}

// fencedStorm runs sections under name by clients with some goroutines each, and
// returns when all are done.
func fencedStorm(t testing.TB, clients []*watchlock.Client, goroutines, sections int, r *rising) {
	t.Helper()
	var left atomic.Int64
	left.Store(int64(sections))
	var all sync.WaitGroup
	for _, c := range clients {
		m := c.NewFencedMutex("storm")
		for range goroutines {
			all.Go(func() {
				for left.Add(-1) >= 0 {
					err := m.Do(context.Background(), func(_ context.Context, token int64) error {
						r.section(token)
						return nil
					})
					if err != nil {
						t.Errorf("Do: %v", err)
						return
					}
				}
			})
		}
	}
	all.Wait()
}

// clientsOf makes n clients with pools of their own.
func clientsOf(t testing.TB, s *redistest.Server, n int, opts ...watchlock.Option) []*watchlock.Client {
	t.Helper()
	clients := make([]*watchlock.Client, n)
	for i := range clients {
		clients[i] = locktest.NewTestClient(t, s.Client(), opts...)
	}
	return clients
}

func TestTokensRiseOverManyGrantsByFourClients(t *testing.T) {
	for name, opts := range map[string][]watchlock.Option{
		"passing": nil, "not passing": {watchlock.WithLocalHandoff(0)},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t)
			n := locktest.FullCount(100_000)
			var r rising
			fencedStorm(t, clientsOf(t, s, 4, opts...), 4, n, &r)
			r.check(t, n)
			// Written out in full, and not below what was given out.
			text, err := s.Client().Get(context.Background(), locktest.CounterOf("storm")).Int64()
			if err != nil || text < r.last {
				t.Errorf("the counter is %d, %v, the last token %d", text, err, r.last)
			}
		})
	}
}

// loneGrant takes and returns the lock and gives its token.
func loneGrant(t testing.TB, m *watchlock.FencedMutex, opts ...watchlock.LockOption) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l, err := m.Lock(ctx, opts...)
	if err != nil {
		t.Fatalf("Lock: %v", err)
	}
	if err := l.Unlock(ctx); err != nil {
		t.Fatalf("Unlock: %v", err)
	}
	return l.Token()
}

func TestTokensRiseWhenTheCounterIsDeletedOrEverythingIs(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		clients := clientsOf(t, s, 2)
		var last int64
		for i := range locktest.FullCount(4000) {
			switch i % 4 {
			case 1:
				locktest.MustDo(t, s, "DEL", locktest.CounterOf("k"))
			case 3:
				locktest.MustDo(t, s, "FLUSHALL")
			}
			token := loneGrant(t, clients[i%2].NewFencedMutex("k"))
			if token <= last {
				t.Fatalf("grant %d: token %d after %d", i, token, last)
			}
			last = token
		}
	})
}

func TestTokensRiseInAStormWhoseCounterIsDeleted(t *testing.T) {
	for name, opts := range map[string][]watchlock.Option{
		"passing": nil, "not passing": {watchlock.WithLocalHandoff(0)},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t)
			n := locktest.SectionsOf(2_000_000)
			if len(opts) > 0 {
				n /= 100 // each is a grant of Redis
			}
			stop, deletes := make(chan struct{}), make(chan int)
			go func() {
				deleted := 0
				for {
					select {
					case <-stop:
						deletes <- deleted
						return
					default:
					}
					if gone, _ := s.Do("DEL", locktest.CounterOf("storm")); gone == int64(1) {
						deleted++
					}
				}
			}()
			m := locktest.NewTestClient(t, s.Client(), opts...).NewFencedMutex("storm")
			var last, fell int64 // only the lock protects them
			var left atomic.Int64
			left.Store(int64(n))
			var all sync.WaitGroup
			for range 32 {
				all.Go(func() {
					for left.Add(-1) >= 0 { // with nothing to do inside, tokens are used as fast as can be
						l, err := m.Lock(context.Background())
						if err != nil {
							t.Errorf("Lock: %v", err)
							return
						}
						if l.Token() <= last {
							fell++
						}
						last = l.Token()
						_ = l.Unlock(context.Background()) // the race detector and last would tell
					}
				})
			}
			all.Wait()
			close(stop)
			if deleted := <-deletes; fell != 0 || deleted == 0 {
				t.Errorf("the counter was deleted %d times; %d tokens of %d were not above the one before", deleted, fell, n)
			}
		})
	}
}

func TestTokensRiseOverTheCrashOfAServerThatForgets(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		clients := clientsOf(t, s, 2)
		var last int64
		for i := range 3 {
			for j := range 3 {
				token := loneGrant(t, clients[j%2].NewFencedMutex("k"))
				if token <= last {
					t.Fatalf("crash %d: token %d after %d", i, token, last)
				}
				last = token
			}
			s.Kill()
			s.Restart()
			if n := locktest.MustDo(t, s, "EXISTS", locktest.CounterOf("k")); n != int64(0) {
				t.Fatal("the server remembers the counter")
			}
		}
	})
}

func TestAHolderBeforeTheCrashHasALowerTokenThanTheOneAfter(t *testing.T) {
	s := redistest.Start(t)
	clients := clientsOf(t, s, 2)
	ctx := context.Background()
	old, err := clients[0].NewFencedMutex("k").Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s.Kill()
	s.Restart()
	if token := loneGrant(t, clients[1].NewFencedMutex("k")); token <= old.Token() {
		t.Errorf("token %d after the crash, %d before", token, old.Token())
	}
	_ = old.Unlock(ctx) // lost or not: what matters is its token
}

func TestTokensRiseWhenTheServersClockStepsBackAnHour(t *testing.T) {
	for _, family := range redistest.Families() {
		t.Run(string(family), func(t *testing.T) {
			clock := newSkew(t)
			s := redistest.Start(t, redistest.On(family), redistest.WithEnv(clock.env()...))
			c := locktest.NewTestClient(t, s.Client())
			m := c.NewFencedMutex("k")
			before := loneGrant(t, m)
			clock.step(-time.Hour)
			locktest.Eventually(t, 5*time.Second, "the server's clock is behind", func() bool {
				now, err := s.Client().Time(context.Background()).Result()
				return err == nil && now.UnixMicro() < before
			})
			for i := range int64(5) {
				if token := loneGrant(t, m); token != before+i+1 {
					t.Fatalf("token %d after %d with the clock an hour behind, want the next number", token, before+i)
				}
			}
			clock.step(0)
			locktest.Eventually(t, 5*time.Second, "the server's clock is right again", func() bool {
				now, err := s.Client().Time(context.Background()).Result()
				return err == nil && now.UnixMicro() > before+5
			})
			if token := loneGrant(t, m); token <= before+5 {
				t.Errorf("token %d after %d", token, before+5)
			}
		})
	}
}

func TestNoTokensAreReservedWhileTheCounterIsAheadOfTheClock(t *testing.T) {
	clock := newSkew(t)
	s := redistest.Start(t, redistest.WithEnv(clock.env()...))
	var r rising
	clients := clientsOf(t, s, 2)
	n := locktest.FullCount(4000)
	fencedStorm(t, clients, 4, n, &r)
	clock.step(-time.Hour)
	before := r.last
	fencedStorm(t, clients, 4, n, &r)
	r.check(t, 2*n)
	if r.last > before+int64(2*n)+2048 {
		t.Errorf("the counter ran from %d to %d in %d sections", before, r.last, n)
	}
}

func TestTokensOfRedissonsOrderOfCallsRise(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		m := locktest.NewTestClient(t, s.Client()).NewFencedMutex("k")
		ctx := context.Background()
		var last int64
		for i, lock := range []func() (*watchlock.FencedLease, error){
			func() (*watchlock.FencedLease, error) { return m.Lock(ctx) },
			func() (*watchlock.FencedLease, error) { return m.Lock(ctx) },
			func() (*watchlock.FencedLease, error) { return m.Lock(ctx, watchlock.WithLeaseTime(10*time.Second)) },
			func() (*watchlock.FencedLease, error) { return m.TryLock(ctx, 0) },
			func() (*watchlock.FencedLease, error) {
				return m.TryLock(ctx, time.Second, watchlock.WithLeaseTime(10*time.Second))
			},
		} {
			l, err := lock()
			if err != nil {
				t.Fatal(err)
			}
			text, err := s.Client().Get(ctx, locktest.CounterOf("k")).Result()
			if l.Token() <= last || err != nil || text != fmt.Sprint(l.Token()) {
				t.Errorf("call %d: token %d after %d, counter %q, %v", i, l.Token(), last, text, err)
			}
			last = l.Token()
			if err := l.Unlock(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Do(ctx, func(_ context.Context, token int64) error {
			if token <= last {
				t.Errorf("Do: token %d after %d", token, last)
			}
			last = token
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := m.TryDo(ctx, 0, func(_ context.Context, token int64) error {
			if token <= last {
				t.Errorf("TryDo: token %d after %d", token, last)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}
