package watchlock

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

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestRL01_ManyWorkersOnOnePubSubConnectionLeaveNoSubscription(t *testing.T) {
	const workers, names = 32, 5
	turns := fullCount(2000)
	s, _ := realScene(t)
	c := s.client(WithMaxPollInterval(30 * time.Second)) // hand-overs go by message
	counters := make([]counter, names)
	var done [names]atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range turns {
				i := rand.N(names)
				l, err := newTestMutex(c, fmt.Sprint("name-", i)).Lock(context.Background())
				if err != nil {
					t.Errorf("lock: %v", err)
					return
				}
				counters[i].section(rand.N(time.Millisecond))
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
		list, err := s.probe.Do(t.Context(), "client", "list", "type", "pubsub").Text()
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
		counters[i].check(t, int(done[i].Load()))
	}
	s.end()
}

func TestRL02_TwoNamesShareOnePubSubConnection(t *testing.T) {
	// body has two goroutines contend for each of two names, waiting at most
	// wait behind a holder of hold.
	body := func(t *testing.T, s *scene, rounds int, wait, hold time.Duration) {
		c := s.client()
		counters := make([]counter, 2)
		for range rounds {
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					l, err := newTestMutex(c, fmt.Sprint("name-", i%2)).TryLock(t.Context(), wait)
					if err != nil {
						t.Errorf("try lock: %v", err)
						return
					}
					counters[i%2].section(hold)
					if err := l.Unlock(t.Context()); err != nil {
						t.Errorf("unlock: %v", err)
					}
				})
			}
			wg.Wait()
		}
		for i := range counters {
			counters[i].check(t, 2*rounds)
		}
		s.end()
	}
	t.Run("virtual", func(t *testing.T) {
		inBubble(t, func(t *testing.T, v *redistest.Virtual) {
			body(t, virtualScene(t, v), fullCount(2000), 100*time.Millisecond, 90*time.Millisecond)
		})
	})
	t.Run("real", func(t *testing.T) {
		s, _ := realScene(t)
		body(t, s, fullCount(2000), sceneHandOver, time.Millisecond)
	})
}

func TestRL03_CancelledTryLockLeavesNothingRenewed(t *testing.T) {
	// try takes the lock with a context that ends after the given time, gives
	// back what it got, and counts which way it went.
	try := func(t *testing.T, m *Mutex, after time.Duration, granted, cancelled *int) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stop := time.AfterFunc(after, cancel)
		defer stop.Stop()
		l, err := m.TryLock(ctx, time.Second)
		switch {
		case err == nil:
			*granted++
			mustUnlock(t, l)
		case errors.Is(err, context.Canceled) && !errors.Is(err, ErrNotAcquired) && l == nil:
			*cancelled++
		default:
			t.Errorf("cancelled after %v: lease %v, %v", after, l, err)
		}
	}
	t.Run("at every moment of the round trip", func(t *testing.T) {
		inBubble(t, func(t *testing.T, v *redistest.Virtual) {
			s := virtualScene(t, v)
			wire := redistest.NewWire()
			c := s.clientOn(s.rdb(wire.Options()))
			mustUnlock(t, mustLock(t, newTestMutex(c, "first"))) // loads the scripts
			slow := redistest.All(redistest.Delay(5*time.Millisecond), redistest.DelayReply(5*time.Millisecond))
			wire.On(acquires(), slow).Times(0)
			granted, cancelled := 0, 0
			for after := time.Duration(0); after <= 20*time.Millisecond; after += 250 * time.Microsecond {
				try(t, newTestMutex(c, after.String()), after, &granted, &cancelled)
				time.Sleep(10 * time.Millisecond) // an attempt that was left is over: the next does not go behind it
			}
			for i := range max(200, fullCount(4000)) { // a draw: granted to a caller who is leaving
				try(t, newTestMutex(c, fmt.Sprint("draw-", i)), 10*time.Millisecond, &granted, &cancelled)
				time.Sleep(10 * time.Millisecond)
			}
			// 81 more moments; the reply is there after 10 ms.
			if cancelled < 40 || granted < 40 {
				t.Errorf("%d cancelled, %d granted", cancelled, granted)
			}
			// What was granted to nobody is given back, not left to its TTL.
			time.Sleep(20 * time.Millisecond)
			if keys := s.keys(); len(keys) > 0 {
				t.Errorf("left after the last reply: %q", keys)
			}
			v.Reset()
			time.Sleep(45 * time.Second)
			if n := v.CountIf(renews()); n != 0 {
				t.Errorf("%d renewals with nothing held", n)
			}
			s.end()
		})
	})
	t.Run("real", func(t *testing.T) {
		const timeout = 300 * time.Millisecond
		s, server := realScene(t)
		c := s.client(WithWatchdogTimeout(timeout))
		mustUnlock(t, mustLock(t, newTestMutex(c, "first")))
		granted, cancelled := 0, 0
		for i := range fullCount(8000) {
			try(t, newTestMutex(c, fmt.Sprint("name-", i)), rand.N(20*time.Millisecond)/time.Duration(1+i%40), &granted, &cancelled)
		}
		if granted == 0 || cancelled == 0 {
			t.Errorf("%d cancelled, %d granted: both have to happen", cancelled, granted)
		}
		eventually(t, timeout, "no key is left", func() bool { return len(s.keys()) == 0 })
		before := server.CommandCalls()["pexpire"]
		<-time.After(2 * timeout)
		if n := server.CommandCalls()["pexpire"] - before; n != 0 {
			t.Errorf("%d TTLs set with nothing held", n)
		}
		s.end()
	})
}

func TestRL06_TryLockWaitsAsLongAsAsked(t *testing.T) {
	t.Run("virtual", func(t *testing.T) {
		inBubble(t, func(t *testing.T, v *redistest.Virtual) {
			s := virtualScene(t, v)
			held := mustLock(t, newTestMutex(s.client(), "report"))
			m := newTestMutex(s.client(), "report")
			for _, wait := range []time.Duration{3 * time.Second, 7 * time.Millisecond, 40 * time.Second} {
				start := time.Now()
				l, err := m.TryLock(t.Context(), wait)
				if took := time.Since(start); took != wait {
					t.Errorf("a wait of %v took %v", wait, took)
				}
				var busy *LockError
				if l != nil || !errors.Is(err, ErrNotAcquired) || !errors.As(err, &busy) ||
					busy.TTL < 10*time.Second || busy.TTL > defaultWatchdogTimeout {
					t.Errorf("a wait of %v: lease %v, %v", wait, l, err)
				}
			}
			mustUnlock(t, held)
			s.handsOver("report")
			s.end()
		})
	})
	t.Run("real", func(t *testing.T) {
		const tries, wait = 5, 200 * time.Millisecond
		s, _ := realScene(t)
		held := mustLock(t, newTestMutex(s.client(), "report"))
		m := newTestMutex(s.client(), "report")
		prompt := 0
		for range tries {
			start := time.Now()
			_, err := m.TryLock(t.Context(), wait)
			took := time.Since(start)
			if !errors.Is(err, ErrNotAcquired) || took < wait {
				t.Errorf("a wait of %v ended after %v: %v", wait, took, err)
			}
			if took < wait+50*time.Millisecond {
				prompt++
			}
		}
		if prompt <= tries/2 { // the machine may be slow once, the library not
			t.Errorf("%d of %d waits of %v ended within 50 ms", prompt, tries, wait)
		}
		mustUnlock(t, held)
		s.end()
	})
}

func TestRL07_CancelledLockNeverEntersTheSection(t *testing.T) {
	s, _ := realScene(t)
	a, b := newTestMutex(s.client(), "report"), newTestMutex(s.client(), "report")
	var c counter
	rounds, entered := fullCount(4000), 0
	for i := range rounds {
		held := mustLock(t, a)
		ctx, cancel := context.WithCancel(t.Context())
		type outcome struct {
			lease *Lease
			err   error
		}
		out := make(chan outcome, 1)
		go func() {
			l, err := b.Lock(ctx)
			if err == nil {
				c.section(0)
			}
			out <- outcome{l, err}
		}()
		s.awaitQueue(b, 1)
		// The cancellation and the release race; two rounds go one way for sure.
		var wg sync.WaitGroup
		if i != 1 {
			after := rand.N(3 * time.Millisecond)
			wg.Go(func() { <-time.After(after); cancel() })
		}
		c.section(rand.N(time.Millisecond))
		var o outcome
		if i == 0 {
			o = <-out
			mustUnlock(t, held)
		} else {
			mustUnlock(t, held)
			o = <-out
		}
		wg.Wait()
		cancel()
		switch {
		case o.err == nil && o.lease != nil:
			entered++
			mustUnlock(t, o.lease)
		case o.lease == nil && errors.Is(o.err, context.Canceled) && !errors.Is(o.err, ErrNotAcquired):
		default:
			t.Fatalf("lease %v, %v", o.lease, o.err)
		}
	}
	if entered == 0 || entered == rounds {
		t.Errorf("%d of %d waiters entered: both have to happen", entered, rounds)
	}
	c.check(t, rounds+entered)
	s.end()
}

func TestRL09_NextWaiterEntersWhenTheLeaseRunsOut(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		s := virtualScene(t, v)
		a, b := s.client(), s.client()
		// The waiter is once another client's and once the holder's own.
		for _, waiter := range []*Mutex{newTestMutex(b, "report"), newTestMutex(a, "report")} {
			const lease = 2 * time.Second
			start := time.Now()
			old := mustLock(t, newTestMutex(a, "report"), WithLeaseTime(lease))
			next := mustLock(t, waiter)
			if took := time.Since(start); took < lease || took > lease+20*time.Millisecond {
				t.Errorf("the waiter entered after %v, want %v and at most 20 ms", took, lease)
			}
			if err := old.Err(); !errors.Is(err, ErrLost) {
				t.Errorf("the waiter is in, and the old lease says %v", err)
			}
			if err := old.Unlock(t.Context()); !errors.Is(err, ErrLost) {
				t.Errorf("the old holder's unlock: %v, want ErrLost", err)
			}
			if err := old.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
				t.Errorf("the old holder's second unlock: %v, want ErrNotHeld", err)
			}
			time.Sleep(time.Second)
			if next.Err() != nil || s.ttl(waiter) < 20*time.Second {
				t.Errorf("the old unlock harmed the new holder: %v, TTL %v", next.Err(), s.ttl(waiter))
			}
			mustUnlock(t, next)
		}
		s.handsOver("report")
		s.end()
	})
}
