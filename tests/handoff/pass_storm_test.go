package handoff_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestAWaiterElsewhereGetsInWithinTheWindowDuringALocalStorm(t *testing.T) {
	for _, kind := range []string{"mutex", "fenced", "setnx"} {
		t.Run(kind, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				const window, section = 2 * time.Millisecond, 100 * time.Microsecond
				storm, other := locktest.NewTestClient(t, v.Client(), watchlock.WithLocalHandoff(window)), locktest.NewTestClient(t, v.Client())
				stop := make(chan struct{})
				var all sync.WaitGroup
				for range 16 {
					all.Go(func() {
						for !locktest.VirtualClosed(stop) {
							l, err := locktest.LockNamed(storm, kind, "k")(context.Background())
							if err != nil {
								t.Errorf("the storm: %v", err)
								return
							}
							time.Sleep(section)
							locktest.MustUnlock(t, l)
						}
					})
				}
				for range 50 {
					time.Sleep(7 * time.Millisecond)
					start := time.Now()
					l, err := locktest.LockNamed(other, kind, "k")(context.Background())
					if err != nil {
						t.Fatal(err)
					}
					if took := time.Since(start); took > window+5*time.Millisecond {
						t.Errorf("it waited %v", took)
					}
					locktest.MustUnlock(t, l)
				}
				close(stop)
				all.Wait()
			})
		})
	}
}

func TestContendedSectionsCostNextToNoCommands(t *testing.T) {
	for _, kind := range []string{"mutex", "fenced"} {
		t.Run(kind, func(t *testing.T) {
			s := redistest.Start(t)
			// So wide that a slow machine passes as often as it must.
			lock := locktest.LockNamed(locktest.NewTestClient(t, s.Client(), watchlock.WithLocalHandoff(time.Second)), kind, "k")
			n, most := locktest.SectionsOf(2_000_000), 0.001
			if kind == "fenced" {
				most = 0.004 // a grant has tokens for 1,024 passes
			}
			if locktest.RaceEnabled {
				most *= 10 // the fixed cost of fewer sections
			}
			locktest.MustDo(t, s, "CONFIG", "RESETSTAT")
			var shared locktest.Counter
			stormOf(t, 16, n, lock, &shared)
			shared.Check(t, n)
			calls := s.CommandCalls() // those that scripts call were not sent
			sent := calls["evalsha"] + calls["eval"] + calls["subscribe"] + calls["unsubscribe"]
			if each := float64(sent) / float64(n); each > most || calls["publish"] == 0 {
				t.Errorf("%.5f commands a section, want %.3f at most: %v", each, most, calls)
			}
		})
	}
}

// stormOf has goroutines take turns until n sections have been, and tells how
// many each had.
func stormOf(t testing.TB, goroutines, n int, lock locktest.LockOfKind, shared *locktest.Counter) []int {
	t.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	served := make([]int, goroutines)
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range goroutines {
		all.Go(func() {
			<-start
			for left.Add(-1) >= 0 {
				l, err := lock(context.Background())
				if err != nil {
					t.Errorf("Lock: %v", err)
					return
				}
				shared.Section(0)
				served[i]++
				if err := l.Unlock(context.Background()); err != nil {
					t.Errorf("Unlock: %v", err)
				}
			}
		})
	}
	close(start)
	all.Wait()
	return served
}

func TestSixteenLocalWaitersAreServedAlike(t *testing.T) {
	for _, kind := range []string{"mutex", "fenced", "setnx"} {
		t.Run(kind, func(t *testing.T) {
			s := redistest.Start(t)
			lock := locktest.LockNamed(locktest.NewTestClient(t, s.Client(), watchlock.WithLocalHandoff(locktest.WindowByDefault)), kind, "k")
			n := locktest.SectionsOf(10_000_000) // long enough for what the scheduler does to one of them
			// The queue is fair; a busy machine may still keep one goroutine from it
			// for a while, so the best of three runs counts. The race detector slows
			// the runs so much that they are too short to tell: ci/gates.sh runs this
			// without it.
			for try := 1; ; try++ {
				var shared locktest.Counter
				served := stormOf(t, 16, n, lock, &shared)
				shared.Check(t, n)
				least, most := served[0], served[0]
				for _, turns := range served {
					least, most = min(least, turns), max(most, turns)
				}
				if float64(most) <= 1.05*float64(least) || locktest.RaceEnabled && least > 0 {
					break
				}
				if try == 3 {
					t.Fatalf("the one served most had %d turns, the one served least %d: %v", most, least, served)
				}
			}
		})
	}
}

// bareLoops runs a bare loop of sections on each client until n have been, and tells how many each had.
func bareLoops(t testing.TB, n int, section time.Duration, locks ...locktest.LockOfKind) []int {
	t.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	turns := make([]int, len(locks))
	var all sync.WaitGroup
	for i, lock := range locks {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				l, err := lock(context.Background())
				if err != nil {
					t.Errorf("Lock: %v", err)
					return
				}
				<-time.After(section)
				turns[i]++
				if err := l.Unlock(context.Background()); err != nil {
					t.Errorf("Unlock: %v", err)
				}
			}
		})
	}
	all.Wait()
	return turns
}

func TestABareLoopOfSectionsYieldsToAWaiterElsewhere(t *testing.T) {
	const n, section, least = 400, time.Millisecond, 0.35
	check := func(t *testing.T, kind string, turns []int) {
		t.Helper()
		for i, had := range turns {
			if float64(had) < least*n {
				t.Errorf("%s: client %d had %d of %d turns", kind, i, had, n)
			}
		}
	}
	for _, kind := range []string{"mutex", "fenced", "setnx"} {
		t.Run(kind, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				a, b := locktest.NewTestClient(t, v.Client()), locktest.NewTestClient(t, v.Client())
				check(t, "virtual", bareLoops(t, n, section, locktest.LockNamed(a, kind, "k"), locktest.LockNamed(b, kind, "k")))
			})
			s := redistest.Start(t)
			a, b := locktest.NewTestClient(t, s.Client()), locktest.NewTestClient(t, s.Client())
			check(t, "real", bareLoops(t, n, section, locktest.LockNamed(a, kind, "k"), locktest.LockNamed(b, kind, "k")))
		})
	}
}
