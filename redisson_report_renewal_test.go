package watchlock

import (
	"context"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// checkRenewed holds for three timeouts from now and fails unless the lock is
// renewed at every tick, its holder trusts it and others are refused.
func checkRenewed(t *testing.T, v *redistest.Virtual, l *Lease, other *Client) {
	t.Helper()
	v.Reset()
	time.Sleep(3*defaultWatchdogTimeout + time.Second)
	if n := virtualRenewals(v); n < 9 || n > 10 { // after an outage what is held may be verified once
		t.Errorf("%d renewals in three timeouts, want 9", n)
	}
	if ttl := v.Mini().TTL(l.Name()); ttl != defaultWatchdogTimeout-time.Second {
		t.Errorf("TTL %v one second after a renewal", ttl)
	}
	if err := l.Err(); err != nil {
		t.Errorf("the holder: %v", err)
	}
	_, err := newTestMutex(other, l.Name()).TryLock(context.Background(), 0)
	mustErr(t, "another client", err, ErrNotAcquired)
}

func TestA07_RenewalLivesOnAfterAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		wire := redistest.NewWire()
		a, b := warmClient(t, v.Client(wire.Options())), warmClient(t, v.Client())
		m := newTestMutex(a, "order")
		first := mustLock(t, m)
		time.Sleep(15 * time.Second)
		wire.Refuse(true)
		wire.Cut()
		time.Sleep(defaultWatchdogTimeout + time.Second)
		if v.Mini().Exists("order") {
			t.Fatal("the outage did not lose the lock")
		}
		wire.Refuse(false)
		mustErr(t, "Unlock after the outage", first.Unlock(context.Background()), ErrLost)

		second := mustLock(t, m)
		checkRenewed(t, v, second, b)
		mustUnlock(t, second)
		checkNextEnters(t, newTestMutex(b, "order"))
		checkBubbleEmpty(t, v, a, b)
	})
}

func TestA08_NextHoldAfterADeletedKeyIsRenewed(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		name := "on the same goroutine"
		if elsewhere {
			name = "on another goroutine"
		}
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				a, b := warmClient(t, v.Client()), warmClient(t, v.Client())
				m := newTestMutex(a, "order")
				first := mustLock(t, m)
				start := time.Now()
				time.Sleep(time.Second)
				v.Mini().Del("order")
				<-first.Done()
				if told := time.Since(start); told != defaultWatchdogTimeout/3 {
					t.Errorf("the holder was told after %v, want at its tick", told)
				}
				mustErr(t, "the first holder", first.Err(), ErrLost)

				var second *Lease
				if elsewhere {
					c := goLock(func() (*Lease, error) { return m.Lock(context.Background()) })
					c.wait(t)
					second = c.lease
				} else {
					second = mustLock(t, m)
				}
				checkRenewed(t, v, second, b)
				mustErr(t, "the first holder's Unlock", first.Unlock(context.Background()), ErrLost)
				if err := second.Err(); err != nil || !v.Mini().Exists("order") {
					t.Errorf("the first holder's Unlock ended the second hold: %v", err)
				}
				mustUnlock(t, second)
				checkNextEnters(t, newTestMutex(b, "order"))
				checkBubbleEmpty(t, v, a, b)
			})
		})
	}
}

func TestA09_RenewalOfAGoneLockStops(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := warmClient(t, v.Client())
		lease := mustLock(t, newTestMutex(c, "order"))
		v.Mini().Del("order")
		v.Reset()
		for tick := range 10 {
			time.Sleep(defaultWatchdogTimeout / 3)
			if v.Mini().Exists("order") {
				t.Fatalf("tick %d: the key is back", tick)
			}
		}
		if n := virtualRenewals(v); n != 1 {
			t.Errorf("%d renewals of a lock that is gone, want the one that learns it", n)
		}
		mustErr(t, "the holder", lease.Err(), ErrLost)
		mustErr(t, "Unlock", lease.Unlock(context.Background()), ErrLost)
		checkNextEnters(t, newTestMutex(c, "order"))
		checkBubbleEmpty(t, v, c)
	})
}

func TestA11_HoldOfADeadWorkerIsBounded(t *testing.T) {
	t.Run("by max hold", func(t *testing.T) {
		inBubble(t, func(t *testing.T, v *redistest.Virtual) {
			a, b := warmClient(t, v.Client()), warmClient(t, v.Client())
			const most = 2 * defaultWatchdogTimeout
			start := time.Now()
			var dead *Lease
			worker := goLock(func() (*Lease, error) {
				return newTestMutex(a, "order", WithMaxHold(most)).Lock(context.Background())
			})
			worker.wait(t)
			dead = worker.lease // reachable all the time, and never unlocked
			next, err := newTestMutex(b, "order").TryLock(context.Background(), 4*defaultWatchdogTimeout)
			if err != nil {
				t.Fatalf("the next holder: %v", err)
			}
			entered := time.Since(start)
			if entered < most || entered > most+bootclock.Margin(defaultWatchdogTimeout)+20*time.Millisecond {
				t.Errorf("the next holder entered after %v, max hold is %v", entered, most)
			}
			mustErr(t, "the dead worker's lease", dead.Err(), ErrLost)
			mustUnlock(t, next)
			checkNextEnters(t, newTestMutex(a, "order"))
			checkBubbleEmpty(t, v, a, b)
		})
	})
	t.Run("by forgetting the lease", func(t *testing.T) {
		redistest.NoLeaks(t)
		s := redistest.Start(t)
		const timeout = 600 * time.Millisecond
		log, logs := observed()
		a := newTestClient(t, s.Client(), log, WithWatchdogTimeout(timeout))
		b := newTestClient(t, s.Client(), WithWatchdogTimeout(timeout))
		worker := make(chan struct{})
		go func() {
			defer close(worker)
			_ = mustLock(t, newTestMutex(a, "order"))
		}()
		<-worker
		waiting := goLock(func() (*Lease, error) { return newTestMutex(b, "order").TryLock(context.Background(), 20*timeout) })
		eventually(t, 20*timeout, "the forgotten lock reaches the next waiter", func() bool {
			runtime.GC()
			select {
			case <-waiting.done:
				return true
			default:
				return false
			}
		})
		if waiting.err != nil {
			t.Fatalf("the next holder: %v", waiting.err)
		}
		dropped := logs.FilterMessageSnippet("dropped without Unlock").All()
		if len(dropped) != 1 {
			t.Fatalf("%d reports of the dropped lease, want 1: %v", len(dropped), logs.All())
		}
		if place, _ := dropped[0].ContextMap()["taken at"].(string); !strings.Contains(place, "_test.go:") {
			t.Errorf("the report names %q as the place", place)
		}
		mustUnlock(t, waiting.lease)
		checkServerEmpty(t, s, a, b)
	})
}

func TestA13_ReentryDoesNotConfuseTheWatchdog(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		a, b := warmClient(t, v.Client()), warmClient(t, v.Client())
		m := newTestMutex(a, "order")
		outer := mustLock(t, m)
		inner, err := m.Lock(outer.Context(context.Background()))
		if err != nil {
			t.Fatalf("re-entry: %v", err)
		}
		mustUnlock(t, inner)
		mustUnlock(t, outer)

		next := goLock(func() (*Lease, error) { return m.Lock(context.Background()) })
		next.wait(t)
		if next.err != nil {
			t.Fatalf("the next holder: %v", next.err)
		}
		v.Reset()
		time.Sleep(10*defaultWatchdogTimeout + time.Second)
		if n := virtualRenewals(v); n != 30 {
			t.Errorf("%d renewals in ten timeouts, want 30", n)
		}
		if owner := fieldOf(t, v, "order"); owner != next.lease.hold.burst.owner {
			t.Errorf("the lock is %q's", owner)
		}
		mustUnlock(t, next.lease)
		checkNextEnters(t, newTestMutex(b, "order"))
		checkBubbleEmpty(t, v, a, b)
	})
}

func TestA55_RenewalNeverOutlivesUnlock(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		wire := redistest.NewWire()
		a, b := warmClient(t, v.Client(wire.Options())), warmClient(t, v.Client())
		wire.On(redistest.Any, redistest.All(redistest.Delay(time.Millisecond), redistest.DelayReply(time.Millisecond))).Times(0)
		rng := rand.New(rand.NewPCG(1, 2))
		m := newTestMutex(a, "order")
		var won, cancelled, gone int
		for round := range fullCount(1000) {
			var busy *Lease
			if round%3 == 0 { // some of them wait for somebody
				busy = mustLock(t, newTestMutex(b, "order"))
			}
			ctx, cancel := context.WithCancel(context.Background())
			call := goLock(func() (*Lease, error) { return m.Lock(ctx) })
			time.Sleep(time.Duration(rng.Int64N(int64(6 * time.Millisecond))))
			if busy != nil {
				mustUnlock(t, busy)
			}
			cancel()
			call.wait(t)
			err := call.lease.Unlock(context.Background())
			switch {
			case call.err == nil && err == nil:
				won++
			case call.err != nil:
				cancelled++
				mustErr(t, "Lock", call.err, context.Canceled)
				mustErr(t, "Unlock of no lease", err, ErrNotHeld)
				if v.Mini().Exists("order") {
					gone++ // its grant came all the same
				}
			default:
				t.Fatalf("Unlock: %v", err)
			}
		}
		if won == 0 || cancelled == 0 || gone == 0 {
			t.Errorf("%d won, %d cancelled, %d of them granted: each should happen", won, cancelled, gone)
		}
		time.Sleep(time.Second)
		v.Reset()
		time.Sleep(3 * defaultWatchdogTimeout)
		if n := virtualRenewals(v); n != 0 {
			t.Errorf("%d renewals while nobody holds", n)
		}
		checkNextEnters(t, newTestMutex(b, "order"))
		checkBubbleEmpty(t, v, a, b)
	})
}

func TestA56_CutOffHolderIsToldBeforeAnotherEnters(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		wire := redistest.NewWire()
		a, b := warmClient(t, v.Client(wire.Options())), warmClient(t, v.Client())
		lease := mustLock(t, newTestMutex(a, "order"))
		start := time.Now()
		work := lease.Context(context.Background())
		waiting := goLock(func() (*Lease, error) { return newTestMutex(b, "order").Lock(context.Background()) })
		time.Sleep(25 * time.Second) // renewed twice
		wire.On(redistest.Any, redistest.LoseRequest).Times(0)

		<-work.Done()
		told := time.Since(start)
		const ahead = 350 * time.Millisecond // of the server's expiry
		if want := 50*time.Second - ahead; told != want {
			t.Errorf("the holder was told after %v, want %v", told, want)
		}
		mustErr(t, "the cause", context.Cause(work), ErrLost)
		if left := v.Mini().TTL("order"); left != ahead {
			t.Errorf("the key has %v left when the holder is told, want %v", left, ahead)
		}
		waiting.wait(t)
		if waiting.err != nil {
			t.Fatalf("the next holder: %v", waiting.err)
		}
		if waiting.took < 50*time.Second {
			t.Errorf("another entered %v after the start, before the key could end", waiting.took)
		}
		if waiting.took > 50*time.Second+afterExpiry+expiryJitter {
			t.Errorf("another entered only %v after the start", waiting.took)
		}
		wire.Clear()
		wire.Cut()
		mustErr(t, "Unlock", lease.Unlock(context.Background()), ErrLost)
		time.Sleep(time.Minute)
		if err := waiting.lease.Err(); err != nil {
			t.Errorf("the next holder: %v", err)
		}
		mustUnlock(t, waiting.lease)
		checkNextEnters(t, newTestMutex(a, "order"))
		checkBubbleEmpty(t, v, a, b)
	})
}

func TestC09_InnerLeaseLeavesTheOuterWatchdogRunning(t *testing.T) {
	for _, unlocked := range []bool{true, false} {
		name := "inner unlocked"
		if !unlocked {
			name = "inner run out"
		}
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				a, b := warmClient(t, v.Client()), warmClient(t, v.Client())
				m := newTestMutex(a, "order")
				outer := mustLock(t, m)
				inner, err := m.Lock(outer.Context(context.Background()), WithLeaseTime(time.Second))
				if err != nil {
					t.Fatalf("re-entry: %v", err)
				}
				if unlocked {
					mustUnlock(t, inner)
				}
				checkRenewed(t, v, outer, b)
				if !unlocked {
					mustErr(t, "the inner lease", inner.Err(), ErrLost)
				}
				mustUnlock(t, outer)
				checkNextEnters(t, newTestMutex(b, "order"))
				checkBubbleEmpty(t, v, a, b)
			})
		})
	}
}
