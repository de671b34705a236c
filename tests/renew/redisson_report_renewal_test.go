package renew_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// checkRenewed holds for three timeouts from now and fails unless the lock is
// renewed at every tick, its holder trusts it and others are refused.
func checkRenewed(t *testing.T, v *redistest.Virtual, l *watchlock.Lease, other *watchlock.Client) {
	t.Helper()
	v.Reset()
	time.Sleep(3*locktest.WatchdogTimeoutByDefault + time.Second)
	if n := locktest.VirtualRenewals(v); n < 9 || n > 10 { // after an outage what is held may be verified once
		t.Errorf("%d renewals in three timeouts, want 9", n)
	}
	if ttl := v.Mini().TTL(l.Name()); ttl != locktest.WatchdogTimeoutByDefault-time.Second {
		t.Errorf("TTL %v one second after a renewal", ttl)
	}
	if err := l.Err(); err != nil {
		t.Errorf("the holder: %v", err)
	}
	_, err := locktest.NewTestMutex(other, l.Name()).TryLock(context.Background(), 0)
	locktest.MustErr(t, "another client", err, watchlock.ErrNotAcquired)
}

func TestA07_RenewalLivesOnAfterAnOutage(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		wire := redistest.NewWire()
		a, b := locktest.WarmClient(t, v.Client(wire.Options())), locktest.WarmClient(t, v.Client())
		m := locktest.NewTestMutex(a, "order")
		first := locktest.MustLock(t, m)
		time.Sleep(15 * time.Second)
		wire.Refuse(true)
		wire.Cut()
		time.Sleep(locktest.WatchdogTimeoutByDefault + time.Second)
		if v.Mini().Exists("order") {
			t.Fatal("the outage did not lose the lock")
		}
		wire.Refuse(false)
		locktest.MustErr(t, "Unlock after the outage", first.Unlock(context.Background()), watchlock.ErrLost)

		second := locktest.MustLock(t, m)
		checkRenewed(t, v, second, b)
		locktest.MustUnlock(t, second)
		locktest.CheckNextEnters(t, locktest.NewTestMutex(b, "order"))
		locktest.CheckBubbleEmpty(t, v, a, b)
	})
}

func TestA08_NextHoldAfterADeletedKeyIsRenewed(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		name := "on the same goroutine"
		if elsewhere {
			name = "on another goroutine"
		}
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				a, b := locktest.WarmClient(t, v.Client()), locktest.WarmClient(t, v.Client())
				m := locktest.NewTestMutex(a, "order")
				first := locktest.MustLock(t, m)
				start := time.Now()
				time.Sleep(time.Second)
				v.Mini().Del("order")
				<-first.Done()
				if told := time.Since(start); told != locktest.WatchdogTimeoutByDefault/3 {
					t.Errorf("the holder was told after %v, want at its tick", told)
				}
				locktest.MustErr(t, "the first holder", first.Err(), watchlock.ErrLost)

				var second *watchlock.Lease
				if elsewhere {
					c := locktest.GoLock(func() (*watchlock.Lease, error) { return m.Lock(context.Background()) })
					c.Wait(t)
					second = c.Lease
				} else {
					second = locktest.MustLock(t, m)
				}
				checkRenewed(t, v, second, b)
				locktest.MustErr(t, "the first holder's Unlock", first.Unlock(context.Background()), watchlock.ErrLost)
				if err := second.Err(); err != nil || !v.Mini().Exists("order") {
					t.Errorf("the first holder's Unlock ended the second hold: %v", err)
				}
				locktest.MustUnlock(t, second)
				locktest.CheckNextEnters(t, locktest.NewTestMutex(b, "order"))
				locktest.CheckBubbleEmpty(t, v, a, b)
			})
		})
	}
}

func TestA09_RenewalOfAGoneLockStops(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.WarmClient(t, v.Client())
		lease := locktest.MustLock(t, locktest.NewTestMutex(c, "order"))
		v.Mini().Del("order")
		v.Reset()
		for tick := range 10 {
			time.Sleep(locktest.WatchdogTimeoutByDefault / 3)
			if v.Mini().Exists("order") {
				t.Fatalf("tick %d: the key is back", tick)
			}
		}
		if n := locktest.VirtualRenewals(v); n != 1 {
			t.Errorf("%d renewals of a lock that is gone, want the one that learns it", n)
		}
		locktest.MustErr(t, "the holder", lease.Err(), watchlock.ErrLost)
		locktest.MustErr(t, "Unlock", lease.Unlock(context.Background()), watchlock.ErrLost)
		locktest.CheckNextEnters(t, locktest.NewTestMutex(c, "order"))
		locktest.CheckBubbleEmpty(t, v, c)
	})
}

func TestA11_HoldOfADeadWorkerIsBounded(t *testing.T) {
	t.Run("by max hold", func(t *testing.T) {
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			a, b := locktest.WarmClient(t, v.Client()), locktest.WarmClient(t, v.Client())
			const most = 2 * locktest.WatchdogTimeoutByDefault
			start := time.Now()
			var dead *watchlock.Lease
			worker := locktest.GoLock(func() (*watchlock.Lease, error) {
				return locktest.NewTestMutex(a, "order", watchlock.WithMaxHold(most)).Lock(context.Background())
			})
			worker.Wait(t)
			dead = worker.Lease // reachable all the time, and never unlocked
			next, err := locktest.NewTestMutex(b, "order").TryLock(context.Background(), 4*locktest.WatchdogTimeoutByDefault)
			if err != nil {
				t.Fatalf("the next holder: %v", err)
			}
			entered := time.Since(start)
			if entered < most || entered > most+bootclock.Margin(locktest.WatchdogTimeoutByDefault)+20*time.Millisecond {
				t.Errorf("the next holder entered after %v, max hold is %v", entered, most)
			}
			locktest.MustErr(t, "the dead worker's lease", dead.Err(), watchlock.ErrLost)
			locktest.MustUnlock(t, next)
			locktest.CheckNextEnters(t, locktest.NewTestMutex(a, "order"))
			locktest.CheckBubbleEmpty(t, v, a, b)
		})
	})
	t.Run("by forgetting the lease", func(t *testing.T) {
		redistest.NoLeaks(t)
		s := redistest.Start(t)
		const timeout = 600 * time.Millisecond
		log, logs := locktest.Observed()
		a := locktest.NewTestClient(t, s.Client(), log, watchlock.WithWatchdogTimeout(timeout))
		b := locktest.NewTestClient(t, s.Client(), watchlock.WithWatchdogTimeout(timeout))
		worker := make(chan struct{})
		go func() {
			defer close(worker)
			_ = locktest.MustLock(t, locktest.NewTestMutex(a, "order"))
		}()
		<-worker
		waiting := locktest.GoLock(func() (*watchlock.Lease, error) {
			return locktest.NewTestMutex(b, "order").TryLock(context.Background(), 20*timeout)
		})
		locktest.Eventually(t, 20*timeout, "the forgotten lock reaches the next waiter", func() bool {
			runtime.GC()
			select {
			case <-waiting.Done:
				return true
			default:
				return false
			}
		})
		if waiting.Err != nil {
			t.Fatalf("the next holder: %v", waiting.Err)
		}
		dropped := logs.FilterMessageSnippet("dropped without Unlock").All()
		if len(dropped) != 1 {
			t.Fatalf("%d reports of the dropped lease, want 1: %v", len(dropped), logs.All())
		}
		if place, _ := dropped[0].ContextMap()["taken at"].(string); !strings.Contains(place, ".go:") {
			t.Errorf("the report names %q as the place", place)
		}
		locktest.MustUnlock(t, waiting.Lease)
		locktest.CheckServerEmpty(t, s, a, b)
	})
}

func TestA13_ReentryDoesNotConfuseTheWatchdog(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		a, b := locktest.WarmClient(t, v.Client()), locktest.WarmClient(t, v.Client())
		m := locktest.NewTestMutex(a, "order")
		outer := locktest.MustLock(t, m)
		inner, err := m.Lock(outer.Context(context.Background()))
		if err != nil {
			t.Fatalf("re-entry: %v", err)
		}
		locktest.MustUnlock(t, inner)
		locktest.MustUnlock(t, outer)

		next := locktest.GoLock(func() (*watchlock.Lease, error) { return m.Lock(context.Background()) })
		next.Wait(t)
		if next.Err != nil {
			t.Fatalf("the next holder: %v", next.Err)
		}
		v.Reset()
		time.Sleep(10*locktest.WatchdogTimeoutByDefault + time.Second)
		if n := locktest.VirtualRenewals(v); n != 30 {
			t.Errorf("%d renewals in ten timeouts, want 30", n)
		}
		if owner := locktest.FieldOf(t, v, "order"); owner != locktest.OwnerOf(next.Lease) {
			t.Errorf("the lock is %q's", owner)
		}
		locktest.MustUnlock(t, next.Lease)
		locktest.CheckNextEnters(t, locktest.NewTestMutex(b, "order"))
		locktest.CheckBubbleEmpty(t, v, a, b)
	})
}

func TestA55_RenewalNeverOutlivesUnlock(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		wire := redistest.NewWire()
		a, b := locktest.WarmClient(t, v.Client(wire.Options())), locktest.WarmClient(t, v.Client())
		wire.On(redistest.Any, redistest.All(redistest.Delay(time.Millisecond), redistest.DelayReply(time.Millisecond))).Times(0)
		rng := rand.New(rand.NewPCG(1, 2))
		m := locktest.NewTestMutex(a, "order")
		var won, cancelled, gone int
		for round := range locktest.FullCount(1000) {
			var busy *watchlock.Lease
			if round%3 == 0 { // some of them wait for somebody
				busy = locktest.MustLock(t, locktest.NewTestMutex(b, "order"))
			}
			ctx, cancel := context.WithCancel(context.Background())
			call := locktest.GoLock(func() (*watchlock.Lease, error) { return m.Lock(ctx) })
			time.Sleep(time.Duration(rng.Int64N(int64(6 * time.Millisecond))))
			if busy != nil {
				locktest.MustUnlock(t, busy)
			}
			cancel()
			call.Wait(t)
			err := call.Lease.Unlock(context.Background())
			switch {
			case call.Err == nil && err == nil:
				won++
			case call.Err != nil:
				cancelled++
				locktest.MustErr(t, "Lock", call.Err, context.Canceled)
				locktest.MustErr(t, "Unlock of no lease", err, watchlock.ErrNotHeld)
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
		time.Sleep(3 * locktest.WatchdogTimeoutByDefault)
		if n := locktest.VirtualRenewals(v); n != 0 {
			t.Errorf("%d renewals while nobody holds", n)
		}
		locktest.CheckNextEnters(t, locktest.NewTestMutex(b, "order"))
		locktest.CheckBubbleEmpty(t, v, a, b)
	})
}

func TestA56_CutOffHolderIsToldBeforeAnotherEnters(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		wire := redistest.NewWire()
		a, b := locktest.WarmClient(t, v.Client(wire.Options())), locktest.WarmClient(t, v.Client())
		lease := locktest.MustLock(t, locktest.NewTestMutex(a, "order"))
		start := time.Now()
		work := lease.Context(context.Background())
		waiting := locktest.GoLock(func() (*watchlock.Lease, error) { return locktest.NewTestMutex(b, "order").Lock(context.Background()) })
		time.Sleep(25 * time.Second) // renewed twice
		wire.On(redistest.Any, redistest.LoseRequest).Times(0)

		<-work.Done()
		told := time.Since(start)
		const ahead = 350 * time.Millisecond // of the server's expiry
		if want := 50*time.Second - ahead; told != want {
			t.Errorf("the holder was told after %v, want %v", told, want)
		}
		locktest.MustErr(t, "the cause", context.Cause(work), watchlock.ErrLost)
		if left := v.Mini().TTL("order"); left != ahead {
			t.Errorf("the key has %v left when the holder is told, want %v", left, ahead)
		}
		waiting.Wait(t)
		if waiting.Err != nil {
			t.Fatalf("the next holder: %v", waiting.Err)
		}
		if waiting.Took < 50*time.Second {
			t.Errorf("another entered %v after the start, before the key could end", waiting.Took)
		}
		if waiting.Took > 50*time.Second+locktest.AfterTheTTL+locktest.JitterAtTheTTL {
			t.Errorf("another entered only %v after the start", waiting.Took)
		}
		wire.Clear()
		wire.Cut()
		locktest.MustErr(t, "Unlock", lease.Unlock(context.Background()), watchlock.ErrLost)
		time.Sleep(time.Minute)
		if err := waiting.Lease.Err(); err != nil {
			t.Errorf("the next holder: %v", err)
		}
		locktest.MustUnlock(t, waiting.Lease)
		locktest.CheckNextEnters(t, locktest.NewTestMutex(a, "order"))
		locktest.CheckBubbleEmpty(t, v, a, b)
	})
}

func TestC09_InnerLeaseLeavesTheOuterWatchdogRunning(t *testing.T) {
	for _, unlocked := range []bool{true, false} {
		name := "inner unlocked"
		if !unlocked {
			name = "inner run out"
		}
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				a, b := locktest.WarmClient(t, v.Client()), locktest.WarmClient(t, v.Client())
				m := locktest.NewTestMutex(a, "order")
				outer := locktest.MustLock(t, m)
				inner, err := m.Lock(outer.Context(context.Background()), watchlock.WithLeaseTime(time.Second))
				if err != nil {
					t.Fatalf("re-entry: %v", err)
				}
				if unlocked {
					locktest.MustUnlock(t, inner)
				}
				checkRenewed(t, v, outer, b)
				if !unlocked {
					locktest.MustErr(t, "the inner lease", inner.Err(), watchlock.ErrLost)
				}
				locktest.MustUnlock(t, outer)
				locktest.CheckNextEnters(t, locktest.NewTestMutex(b, "order"))
				locktest.CheckBubbleEmpty(t, v, a, b)
			})
		})
	}
}
