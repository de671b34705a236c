package wait_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestRL01_ManyWorkersOnOnePubSubConnectionLeaveNoSubscription(t *testing.T) {
	const workers, names = 32, 5
	turns := locktest.FullCount(2000)
	s, _ := locktest.RealScene(t)
	c := s.Client(watchlock.WithMaxPollInterval(30 * time.Second)) // hand-overs go by message
	counters := make([]locktest.Counter, names)
	var done [names]atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range turns {
				i := rand.N(names)
				l, err := locktest.NewTestMutex(c, fmt.Sprint("name-", i)).Lock(context.Background())
				if err != nil {
					t.Errorf("lock: %v", err)
					return
				}
				counters[i].Section(rand.N(time.Millisecond))
				done[i].Add(1)
				if err := l.Unlock(context.Background()); err != nil {
					t.Errorf("unlock: %v", err)
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	most := 0
	for running := true; running; {
		list, err := s.Probe.Do(t.Context(), "client", "list", "type", "pubsub").Text()
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, strings.Count(list, "\n"))
		select {
		case <-finished:
			running = false
		case <-time.After(5 * time.Millisecond):
		}
	}
	if most != 1 {
		t.Errorf("%d pub/sub connections at once, want 1", most)
	}
	for i := range counters {
		counters[i].Check(t, int(done[i].Load()))
	}
	s.End()
}

func TestRL02_TwoNamesShareOnePubSubConnection(t *testing.T) {
	// body has two goroutines contend for each of two names, waiting at most
	// wait behind a holder of hold.
	body := func(t *testing.T, s *locktest.Scene, rounds int, wait, hold time.Duration) {
		c := s.Client()
		counters := make([]locktest.Counter, 2)
		for range rounds {
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					l, err := locktest.NewTestMutex(c, fmt.Sprint("name-", i%2)).TryLock(t.Context(), wait)
					if err != nil {
						t.Errorf("try lock: %v", err)
						return
					}
					counters[i%2].Section(hold)
					if err := l.Unlock(t.Context()); err != nil {
						t.Errorf("unlock: %v", err)
					}
				})
			}
			wg.Wait()
		}
		for i := range counters {
			counters[i].Check(t, 2*rounds)
		}
		s.End()
	}
	t.Run("virtual", func(t *testing.T) {
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			body(t, locktest.VirtualScene(t, v), locktest.FullCount(2000), 100*time.Millisecond, 90*time.Millisecond)
		})
	})
	t.Run("real", func(t *testing.T) {
		s, _ := locktest.RealScene(t)
		body(t, s, locktest.FullCount(2000), locktest.SceneHandOver, time.Millisecond)
	})
}

func TestRL03_CancelledTryLockLeavesNothingRenewed(t *testing.T) {
	// try takes the lock with a context that ends after the given time, gives
	// back what it got, and counts which way it went.
	try := func(t *testing.T, m *watchlock.Mutex, after time.Duration, granted, cancelled *int) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stop := time.AfterFunc(after, cancel)
		defer stop.Stop()
		l, err := m.TryLock(ctx, time.Second)
		switch {
		case err == nil:
			*granted++
			locktest.MustUnlock(t, l)
		case errors.Is(err, context.Canceled) && !errors.Is(err, watchlock.ErrNotAcquired) && l == nil:
			*cancelled++
		default:
			t.Errorf("cancelled after %v: lease %v, %v", after, l, err)
		}
	}
	t.Run("at every moment of the round trip", func(t *testing.T) {
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			s := locktest.VirtualScene(t, v)
			wire := redistest.NewWire()
			c := s.ClientOn(s.Rdb(wire.Options()))
			locktest.MustUnlock(t, locktest.MustLock(t, locktest.NewTestMutex(c, "first"))) // loads the scripts
			slow := redistest.All(redistest.Delay(5*time.Millisecond), redistest.DelayReply(5*time.Millisecond))
			wire.On(locktest.Acquires(), slow).Times(0)
			granted, cancelled := 0, 0
			for after := time.Duration(0); after <= 20*time.Millisecond; after += 250 * time.Microsecond {
				try(t, locktest.NewTestMutex(c, after.String()), after, &granted, &cancelled)
				time.Sleep(10 * time.Millisecond) // an attempt that was left is over: the next does not go behind it
			}
			for i := range max(200, locktest.FullCount(4000)) { // a draw: granted to a caller who is leaving
				try(t, locktest.NewTestMutex(c, fmt.Sprint("draw-", i)), 10*time.Millisecond, &granted, &cancelled)
				time.Sleep(10 * time.Millisecond)
			}
			// 81 more moments; the reply is there after 10 ms.
			if cancelled < 40 || granted < 40 {
				t.Errorf("%d cancelled, %d granted", cancelled, granted)
			}
			// What was granted to nobody is given back, not left to its TTL.
			time.Sleep(20 * time.Millisecond)
			if keys := s.Keys(); len(keys) > 0 {
				t.Errorf("left after the last reply: %q", keys)
			}
			v.Reset()
			time.Sleep(45 * time.Second)
			if n := v.CountIf(locktest.Renews()); n != 0 {
				t.Errorf("%d renewals with nothing held", n)
			}
			s.End()
		})
	})
	t.Run("real", func(t *testing.T) {
		const timeout = 300 * time.Millisecond
		s, server := locktest.RealScene(t)
		c := s.Client(watchlock.WithWatchdogTimeout(timeout))
		locktest.MustUnlock(t, locktest.MustLock(t, locktest.NewTestMutex(c, "first")))
		granted, cancelled := 0, 0
		for i := range locktest.FullCount(8000) {
			try(t, locktest.NewTestMutex(c, fmt.Sprint("name-", i)), rand.N(20*time.Millisecond)/time.Duration(1+i%40), &granted, &cancelled)
		}
		if granted == 0 || cancelled == 0 {
			t.Errorf("%d cancelled, %d granted: both have to happen", cancelled, granted)
		}
		locktest.Eventually(t, timeout, "no key is left", func() bool { return len(s.Keys()) == 0 })
		before := server.CommandCalls()["pexpire"]
		<-time.After(2 * timeout)
		if n := server.CommandCalls()["pexpire"] - before; n != 0 {
			t.Errorf("%d TTLs set with nothing held", n)
		}
		s.End()
	})
}

func TestRL06_TryLockWaitsAsLongAsAsked(t *testing.T) {
	t.Run("virtual", func(t *testing.T) {
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			s := locktest.VirtualScene(t, v)
			held := locktest.MustLock(t, locktest.NewTestMutex(s.Client(), "report"))
			m := locktest.NewTestMutex(s.Client(), "report")
			for _, wait := range []time.Duration{3 * time.Second, 7 * time.Millisecond, 40 * time.Second} {
				start := time.Now()
				l, err := m.TryLock(t.Context(), wait)
				if took := time.Since(start); took != wait {
					t.Errorf("a wait of %v took %v", wait, took)
				}
				var busy *watchlock.LockError
				if l != nil || !errors.Is(err, watchlock.ErrNotAcquired) || !errors.As(err, &busy) ||
					busy.TTL < 10*time.Second || busy.TTL > locktest.WatchdogTimeoutByDefault {
					t.Errorf("a wait of %v: lease %v, %v", wait, l, err)
				}
			}
			locktest.MustUnlock(t, held)
			s.HandsOver("report")
			s.End()
		})
	})
	t.Run("real", func(t *testing.T) {
		const tries, wait = 5, 200 * time.Millisecond
		s, _ := locktest.RealScene(t)
		held := locktest.MustLock(t, locktest.NewTestMutex(s.Client(), "report"))
		m := locktest.NewTestMutex(s.Client(), "report")
		prompt := 0
		for range tries {
			start := time.Now()
			_, err := m.TryLock(t.Context(), wait)
			took := time.Since(start)
			if !errors.Is(err, watchlock.ErrNotAcquired) || took < wait {
				t.Errorf("a wait of %v ended after %v: %v", wait, took, err)
			}
			if took < wait+50*time.Millisecond {
				prompt++
			}
		}
		if prompt <= tries/2 { // the machine may be slow once, the library not
			t.Errorf("%d of %d waits of %v ended within 50 ms", prompt, tries, wait)
		}
		locktest.MustUnlock(t, held)
		s.End()
	})
}

func TestRL07_CancelledLockNeverEntersTheSection(t *testing.T) {
	s, _ := locktest.RealScene(t)
	a, b := locktest.NewTestMutex(s.Client(), "report"), locktest.NewTestMutex(s.Client(), "report")
	var c locktest.Counter
	rounds, entered := locktest.FullCount(4000), 0
	for i := range rounds {
		held := locktest.MustLock(t, a)
		ctx, cancel := context.WithCancel(t.Context())
		type outcome struct {
			lease *watchlock.Lease
			err   error
		}
		out := make(chan outcome, 1)
		go func() {
			l, err := b.Lock(ctx)
			if err == nil {
				c.Section(0)
			}
			out <- outcome{l, err}
		}()
		s.AwaitQueue(b, 1)
		// The cancellation and the release race; two rounds go one way for sure.
		var wg sync.WaitGroup
		if i != 1 {
			after := rand.N(3 * time.Millisecond)
			wg.Go(func() { <-time.After(after); cancel() })
		}
		c.Section(rand.N(time.Millisecond))
		var o outcome
		if i == 0 {
			o = <-out
			locktest.MustUnlock(t, held)
		} else {
			locktest.MustUnlock(t, held)
			o = <-out
		}
		wg.Wait()
		cancel()
		switch {
		case o.err == nil && o.lease != nil:
			entered++
			locktest.MustUnlock(t, o.lease)
		case o.lease == nil && errors.Is(o.err, context.Canceled) && !errors.Is(o.err, watchlock.ErrNotAcquired):
		default:
			t.Fatalf("lease %v, %v", o.lease, o.err)
		}
	}
	if entered == 0 || entered == rounds {
		t.Errorf("%d of %d waiters entered: both have to happen", entered, rounds)
	}
	c.Check(t, rounds+entered)
	s.End()
}

func TestRL09_NextWaiterEntersWhenTheLeaseRunsOut(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		s := locktest.VirtualScene(t, v)
		a, b := s.Client(), s.Client()
		// The waiter is once another client's and once the holder's own.
		for _, waiter := range []*watchlock.Mutex{locktest.NewTestMutex(b, "report"), locktest.NewTestMutex(a, "report")} {
			const lease = 2 * time.Second
			start := time.Now()
			old := locktest.MustLock(t, locktest.NewTestMutex(a, "report"), watchlock.WithLeaseTime(lease))
			next := locktest.MustLock(t, waiter)
			if took := time.Since(start); took < lease || took > lease+20*time.Millisecond {
				t.Errorf("the waiter entered after %v, want %v and at most 20 ms", took, lease)
			}
			if err := old.Err(); !errors.Is(err, watchlock.ErrLost) {
				t.Errorf("the waiter is in, and the old lease says %v", err)
			}
			if err := old.Unlock(t.Context()); !errors.Is(err, watchlock.ErrLost) {
				t.Errorf("the old holder's unlock: %v, want ErrLost", err)
			}
			if err := old.Unlock(t.Context()); !errors.Is(err, watchlock.ErrNotHeld) {
				t.Errorf("the old holder's second unlock: %v, want ErrNotHeld", err)
			}
			time.Sleep(time.Second)
			if next.Err() != nil || s.TTL(waiter) < 20*time.Second {
				t.Errorf("the old unlock harmed the new holder: %v, TTL %v", next.Err(), s.TTL(waiter))
			}
			locktest.MustUnlock(t, next)
		}
		s.HandsOver("report")
		s.End()
	})
}
