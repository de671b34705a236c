package release_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// TestVirtualNoRenewalAfterUnlockReturned runs Unlock against the renewal at its
// due instant: before it, at it, and while its request or its reply is delayed.
func TestVirtualNoRenewalAfterUnlockReturned(t *testing.T) {
	const (
		timeout  = 900 * time.Millisecond
		interval = timeout / 3
		longest  = 140 * time.Millisecond // below the 150 ms that a renewal has for its answer
	)
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := locktest.VirtualWired(t, v, watchlock.WithWatchdogTimeout(timeout))
		m := locktest.NewTestMutex(c, "job")
		rng := rand.New(rand.NewPCG(1, 2))
		renews := locktest.Renews()
		raced, waited, together := 0, 0, 0
		for i := range locktest.FullCount(10_000) {
			v.Reset()
			w.Reset()
			w.Clear()
			before, after := time.Duration(0), time.Duration(0)
			if i%4 > 0 {
				before = time.Duration(rng.Int64N(int64(longest / 2)))
				after = time.Duration(rng.Int64N(int64(longest / 2)))
			}
			w.On(renews, redistest.All(redistest.Delay(before), redistest.DelayReply(after))).Times(0)
			start := time.Now()
			l := locktest.MustLock(t, m)
			at := interval // Unlock starts at the very instant
			if i%2 > 0 {
				at += time.Duration(rng.Int64N(int64(longest)))
			}
			time.Sleep(at)
			if err := l.Unlock(context.Background()); err != nil {
				t.Fatalf("race %d: Unlock: %v", i, err)
			}
			ran := v.CountIf(renews)
			took := time.Since(start) - at
			for _, sent := range locktest.VirtualTimes(w.Seen(), start, renews) {
				if sent <= at && at <= sent+before+after {
					raced++
					if took > 0 {
						waited++
					}
					if sent == at {
						together++
					}
				}
			}
			if took > longest {
				t.Fatalf("race %d: Unlock took %v", i, took)
			}
			time.Sleep(interval)
			synctest.Wait()
			if n := v.CountIf(renews) - ran; n != 0 {
				t.Fatalf("race %d: %d renewals reached Redis after Unlock had returned (request %v late, reply %v, Unlock at %v):\n%v",
					i, n, before, after, at, slices.Collect(virtualRaceRenewals(v)))
			}
			if v.Mini().Exists("job") {
				t.Fatalf("race %d: the key is there after Unlock", i)
			}
		}
		if raced == 0 || waited == 0 || together == 0 {
			t.Errorf("renewal raced Unlock %d times, was waited for %d times, started with it %d times: want each above 0",
				raced, waited, together)
		}
		t.Logf("renewal raced Unlock %d times, was waited for %d times, started with it %d times", raced, waited, together)
	})
}

func virtualRaceRenewals(v *redistest.Virtual) func(yield func(redistest.Command) bool) {
	return func(yield func(redistest.Command) bool) {
		for _, c := range v.Commands() {
			if locktest.Renews()(c) && !yield(c) {
				return
			}
		}
	}
}

// A renewal that lost the race must not cost the next holder anything, nor the
// rest of its batch.
func TestVirtualUnlockInARoundLeavesTheOthersOfTheRoundRenewed(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := locktest.VirtualWired(t, v)
		start := time.Now()
		leases := locktest.VirtualLockMany(t, c, 20)
		release := make(chan struct{})
		held := w.On(locktest.Renews(), redistest.HoldRequest(release))
		locktest.VirtualUntil(start, 10*time.Second)
		if held.Hits() != 1 {
			t.Fatalf("%d renewals on their way", held.Hits())
		}
		done := make(chan error, 1)
		go func() { done <- leases[3].Unlock(context.Background()) }()
		locktest.VirtualUntil(start, 10500*time.Millisecond)
		if len(done) != 0 {
			t.Error("Unlock returned while a renewal of its lock was on its way")
		}
		close(release)
		if err := <-done; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		for i, l := range leases {
			if exists := v.Mini().Exists(l.Name()); exists != (i != 3) {
				t.Errorf("%q exists: %v", l.Name(), exists)
			}
			if i != 3 && (l.Err() != nil || !l.ExpiresAt().Equal(start.Add(39650*time.Millisecond))) {
				t.Errorf("%q: %v, trusted until %v", l.Name(), l.Err(), l.ExpiresAt().Sub(start))
			}
		}
	})
}
