package wait_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestA23_NoHandOverIsLost(t *testing.T) {
	t.Run("between a refused try and the subscription", func(t *testing.T) {
		for _, late := range []time.Duration{0, 100 * time.Millisecond} {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				wire := redistest.NewWire()
				a, b := locktest.WarmClient(t, v.Client()), locktest.WarmClient(t, v.Client(wire.Options()))
				lease := locktest.MustLock(t, locktest.NewTestMutex(a, "order"))
				// The release runs before the SUBSCRIBE does, so its message
				// reaches nobody.
				heard := wire.OnPush(func(string, string) bool { return true }, false)
				asked := wire.On(redistest.Is("SUBSCRIBE"), redistest.All(
					redistest.Call(func() { locktest.MustUnlock(t, lease) }), redistest.Delay(late)))
				start := time.Now()
				next := locktest.MustLock(t, locktest.NewTestMutex(b, "order"))
				if took := time.Since(start); took != late {
					t.Errorf("the waiter entered after %v, want at the confirmation after %v", took, late)
				}
				if asked.Hits() != 1 || heard.Hits() != 0 {
					t.Errorf("%d subscriptions and %d messages, want 1 and 0", asked.Hits(), heard.Hits())
				}
				locktest.MustUnlock(t, next)
				locktest.CheckBubbleEmpty(t, v, a, b)
			})
		}
	})
	t.Run("in many hand-overs", func(t *testing.T) {
		redistest.NoLeaks(t)
		s := redistest.Start(t)
		clients := make([]*watchlock.Client, 4)
		for i := range clients {
			clients[i] = locktest.NewTestClient(t, s.Client())
		}
		const waiters = 64
		turns := max(1, locktest.FullCount(50000)/waiters)
		var section locktest.Counter
		var freed time.Time // guarded by the lock, as the counter is
		var worst time.Duration
		var all sync.WaitGroup
		for i := range waiters {
			all.Go(func() {
				m := locktest.NewTestMutex(clients[i%len(clients)], "order")
				for range turns {
					l, err := m.Lock(context.Background())
					if err != nil {
						t.Errorf("Lock: %v", err)
						return
					}
					if !freed.IsZero() {
						worst = max(worst, time.Since(freed))
					}
					section.Section(rand.N(2 * time.Millisecond))
					freed = time.Now()
					if err := l.Unlock(context.Background()); err != nil {
						t.Errorf("Unlock: %v", err)
					}
				}
			})
		}
		all.Wait()
		section.Check(t, waiters*turns)
		if worst > locktest.HandOverBound {
			t.Errorf("a hand-over took %v", worst)
		}
		locktest.CheckServerEmpty(t, s, clients...)
	})
}

// checkWaitsEndInTime makes one call of each kind on a lock and fails unless it
// ends with an error of an outage within its time and slack.
func checkWaitsEndInTime(t *testing.T, m *watchlock.Mutex, wait, slack time.Duration) {
	t.Helper()
	for _, call := range []struct {
		name  string
		bound time.Duration
		lock  func() (*watchlock.Lease, error)
	}{
		{"TryLock(0)", locktest.OneAttempt, func() (*watchlock.Lease, error) { return m.TryLock(context.Background(), 0) }},
		{"TryLock(wait)", wait, func() (*watchlock.Lease, error) { return m.TryLock(context.Background(), wait) }},
		{"Lock with a deadline", wait, func() (*watchlock.Lease, error) {
			ctx, cancel := context.WithTimeout(context.Background(), wait)
			defer cancel()
			return m.Lock(ctx)
		}},
	} {
		start := time.Now()
		l, err := call.lock()
		took := time.Since(start)
		if took > call.bound+slack {
			t.Errorf("%s took %v, want at most %v", call.name, took, call.bound)
		}
		if l != nil || err == nil {
			t.Fatalf("%s: lease %v, error %v", call.name, l, err)
		}
		if errors.Is(err, watchlock.ErrNotAcquired) {
			t.Errorf("%s says busy, which nobody told it: %v", call.name, err)
		}
		if !watchlock.IsUnavailable(err) {
			t.Errorf("%s: %v, want an error of an outage", call.name, err)
		}
	}
}

func TestA32_WaitEndsInTimeWhenRedisIsDown(t *testing.T) {
	for _, wait := range []time.Duration{200 * time.Millisecond, 2 * time.Second, 5 * time.Second} {
		t.Run(fmt.Sprint("refused ", wait), func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				wire := redistest.NewWire()
				c := locktest.NewTestClient(t, v.Client(wire.Options()))
				wire.Refuse(true)
				checkWaitsEndInTime(t, locktest.NewTestMutex(c, "order"), wait, 0)
				locktest.CheckBubbleEmpty(t, v, c)
			})
		})
		t.Run(fmt.Sprint("silent ", wait), func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				wire := redistest.NewWire()
				c := locktest.NewTestClient(t, v.Client(wire.Options()))
				wire.On(redistest.Any, redistest.LoseRequest).Times(0)
				checkWaitsEndInTime(t, locktest.NewTestMutex(c, "order"), wait, 0)
				locktest.CheckBubbleEmpty(t, v, c)
			})
		})
		t.Run(fmt.Sprint("stopped ", wait), func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c := locktest.NewTestClient(t, v.Client())
				v.Freeze()
				checkWaitsEndInTime(t, locktest.NewTestMutex(c, "order"), wait, 0)
				v.Thaw()
				time.Sleep(2 * time.Second)
				if v.Mini().Exists("order") {
					t.Error("a late grant is left 2 s after the server ran on")
				}
				locktest.CheckNextEnters(t, locktest.NewTestMutex(c, "order"))
				locktest.CheckBubbleEmpty(t, v, c)
			})
		})
	}
	t.Run("killed", func(t *testing.T) {
		redistest.NoLeaks(t)
		s := redistest.Start(t)
		c := locktest.NewTestClient(t, s.Client())
		s.Kill()
		checkWaitsEndInTime(t, locktest.NewTestMutex(c, "order"), 700*time.Millisecond, 50*time.Millisecond)
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

func TestA42_HandOversRecoverAfterARestart(t *testing.T) {
	for _, cause := range []string{"restart", "killed subscriptions"} {
		t.Run(cause, func(t *testing.T) {
			redistest.NoLeaks(t)
			s := redistest.Start(t)
			a, b := locktest.NewTestClient(t, s.Client()), locktest.NewTestClient(t, s.Client())
			lease := locktest.MustLock(t, locktest.NewTestMutex(a, "order"))
			waiting := locktest.GoLock(func() (*watchlock.Lease, error) { return locktest.NewTestMutex(b, "order").Lock(context.Background()) })
			locktest.Eventually(t, 2*time.Second, "the waiter has subscribed", func() bool {
				n, err := s.Do("PUBSUB", "CHANNELS")
				topics, ok := n.([]any)
				return err == nil && ok && len(topics) == 1
			})
			if cause == "restart" {
				s.Restart()
			} else if _, err := s.Do("CLIENT", "KILL", "TYPE", "pubsub"); err != nil {
				t.Fatal(err)
			}
			recovered := time.Now()
			if cause == "restart" { // it lost the lock, too
				waiting.Wait(t)
			} else {
				<-time.After(2 * time.Second)
				freed := time.Now()
				locktest.MustUnlock(t, lease)
				waiting.Wait(t)
				if gap := time.Since(freed); gap > locktest.HandOverBound {
					t.Errorf("the waiter entered %v after the release", gap)
				}
			}
			if waiting.Err != nil {
				t.Fatalf("the waiter: %v", waiting.Err)
			}
			<-time.After(2*time.Second - time.Since(recovered))
			lease = waiting.Lease
			for i := range 100 {
				m := locktest.NewTestMutex([]*watchlock.Client{a, b}[i%2], "order")
				next := locktest.GoLock(func() (*watchlock.Lease, error) { return m.Lock(context.Background()) })
				<-time.After(time.Millisecond)
				freed := time.Now()
				locktest.MustUnlock(t, lease)
				next.Wait(t)
				if next.Err != nil {
					t.Fatalf("hand-over %d: %v", i, next.Err)
				}
				if gap := time.Since(freed); gap > locktest.HandOverBound {
					t.Errorf("hand-over %d took %v", i, gap)
				}
				lease = next.Lease
			}
			locktest.MustUnlock(t, lease)
			locktest.CheckServerEmpty(t, s, a, b)
		})
	}
}

func TestA44_ShortTriesEndWithKnownErrors(t *testing.T) {
	redistest.NoLeaks(t)
	s := redistest.Start(t)
	a, b := locktest.NewTestClient(t, s.Client()), locktest.NewTestClient(t, s.Client())
	var section locktest.Counter
	var won, busy, late atomic.Int64
	var all sync.WaitGroup
	rounds := locktest.FullCount(10000)
	const workers = 8
	for i := range workers {
		all.Go(func() {
			m := locktest.NewTestMutex([]*watchlock.Client{a, b}[i%2], "order")
			for range rounds / workers {
				l, err := m.TryLock(context.Background(), time.Millisecond+rand.N(19*time.Millisecond))
				switch {
				case err == nil:
					section.Section(rand.N(8 * time.Millisecond))
					won.Add(1)
					if err := l.Unlock(context.Background()); err != nil {
						t.Errorf("Unlock: %v", err)
					}
				case errors.Is(err, watchlock.ErrNotAcquired) && !watchlock.IsUnavailable(err):
					busy.Add(1)
				case errors.Is(err, os.ErrDeadlineExceeded) && watchlock.IsUnavailable(err):
					late.Add(1)
				default:
					t.Errorf("TryLock: %v", err)
				}
			}
		})
	}
	all.Wait()
	section.Check(t, int(won.Load()))
	if won.Load() == 0 || busy.Load() == 0 {
		t.Errorf("%d won, %d busy, %d without an answer in time", won.Load(), busy.Load(), late.Load())
	}
	locktest.Eventually(t, time.Second, "no key is left", func() bool { return locktest.ServerKeys(t, s) == 0 })
	locktest.CheckNextEnters(t, locktest.NewTestMutex(a, "order"))
	locktest.CheckServerEmpty(t, s, a, b)
}

func TestA52_TheLeaseIsTheOwner(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.WarmClient(t, v.Client())
		m := locktest.NewTestMutex(c, "order")

		// Two tasks take turns on one goroutine: neither is inside with the other.
		first := locktest.MustLock(t, m)
		_, err := m.TryLock(context.Background(), 0)
		locktest.MustErr(t, "a second task on the same goroutine", err, watchlock.ErrNotAcquired)
		_, err = m.TryLock(context.Background(), time.Second)
		locktest.MustErr(t, "a second task that waits", err, watchlock.ErrNotAcquired)

		// A task may end on another goroutine than it began on.
		var section locktest.Counter
		handed := make(chan *watchlock.Lease)
		var workers sync.WaitGroup
		for range 2 {
			workers.Go(func() {
				for l := range handed {
					section.Section(time.Millisecond)
					locktest.MustUnlock(t, l)
				}
			})
		}
		handed <- first
		for range 50 {
			handed <- locktest.MustLock(t, m)
		}
		close(handed)
		workers.Wait()
		section.Check(t, 51)
		locktest.CheckNextEnters(t, m)
		locktest.CheckBubbleEmpty(t, v, c)
	})
}

func TestC02_KeyWithoutTTLIsHeldBySomeone(t *testing.T) {
	for _, poll := range []bool{false, true} {
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			c := locktest.WarmClient(t, v.Client())
			m := locktest.NewTestMutex(c, "order")
			locktest.VirtualTake(v, "order", 0)

			_, err := m.TryLock(context.Background(), 0)
			locktest.MustErr(t, "TryLock(0)", err, watchlock.ErrNotAcquired)
			var held *watchlock.LockError
			if !errors.As(err, &held) || held.TTL >= 0 {
				t.Errorf("%v tells a TTL of %v, want a negative one", err, held.TTL)
			}
			_, err = m.TryLock(context.Background(), time.Minute)
			locktest.MustErr(t, "TryLock(1m)", err, watchlock.ErrNotAcquired)
			if owner := locktest.FieldOf(t, v, "order"); owner != "stranger:1" || v.Mini().TTL("order") != 0 {
				t.Fatalf("the key was touched: owner %q, TTL %v", owner, v.Mini().TTL("order"))
			}

			waiting := locktest.GoLock(func() (*watchlock.Lease, error) { return m.Lock(context.Background()) })
			time.Sleep(20 * time.Second)
			v.Mini().Del("order")
			bound := locktest.PollIntervalByDefault * 11 / 10
			if !poll {
				v.Mini().Publish(locktest.ChannelOfTest("order"), "0")
				bound = 0
			}
			waiting.Wait(t)
			if waiting.Err != nil {
				t.Fatalf("the waiter: %v", waiting.Err)
			}
			if took := waiting.Took - 20*time.Second; took > bound {
				t.Errorf("the waiter entered %v after the key went, want at most %v", took, bound)
			}
			locktest.MustUnlock(t, waiting.Lease)
			locktest.CheckBubbleEmpty(t, v, c)
		})
	}
}
