package wait_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// virtualSays answers a command with an error of the server's.
func virtualSays(v *redistest.Virtual, text string) redistest.Action {
	return redistest.All(redistest.Call(func() { v.Mini().SetError(text) }), redistest.CallReply(func() { v.Mini().SetError("") }))
}

const virtualLoading = "LOADING Redis is loading the dataset in memory"

// virtualFailures are ways in which one attempt comes to nothing at once.
func virtualFailures(v *redistest.Virtual, w *redistest.Wire) map[string]func() {
	reply := func(text string) func() {
		return func() { w.On(locktest.Acquires(), virtualSays(v, text)) }
	}
	return map[string]func(){
		"READONLY": reply("READONLY You can't write against a read only replica."),
		"LOADING":  reply(virtualLoading),
		"a connection that ends": func() {
			w.On(locktest.Acquires(), redistest.Call(w.Cut))
		},
		"a dial that is refused": func() {
			w.Refuse(true)
			w.Cut()
			time.AfterFunc(3*time.Millisecond, func() { w.Refuse(false) })
		},
	}
}

// One failure costs a pause that is as short as after any first failure, however long one has
// waited by then.
func TestVirtualOneFailureCostsALongWaitOneShortPause(t *testing.T) {
	for name := range virtualFailures(nil, nil) {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c, w := locktest.VirtualWired(t, v, watchlock.WithMaxPollInterval(time.Second))
				locktest.VirtualTake(v, "k", 10*time.Second)
				start := time.Now()
				waiting := locktest.GoLock(func() (*watchlock.Lease, error) { return locktest.NewTestMutex(c, "k").Lock(context.Background()) })
				locktest.VirtualUntil(start, 10*time.Second-time.Millisecond)
				virtualFailures(v, w)[name]() // the attempt at the lease's end meets it
				<-waiting.Done
				if waiting.Err != nil {
					t.Fatal(waiting.Err)
				}
				// Two or three attempts: refused, and told not to hurry so; then 5 ms and 10.
				if at := time.Since(start) - 10*time.Second; at > locktest.AfterTheTTL+locktest.JitterAtTheTTL+20*time.Millisecond {
					t.Errorf("granted %v after the lease's end", at)
				}
				locktest.MustUnlock(t, waiting.Lease)
			})
		})
	}
}

// Failures in a row have the pauses grow, up to half a second, whoever waits; an answer ends
// the row.
func TestVirtualPausesGrowWithFailuresInARow(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := locktest.VirtualWired(t, v, watchlock.WithMaxPollInterval(250*time.Millisecond))
		locktest.VirtualTake(v, "k", 0)
		waiting := locktest.GoLock(func() (*watchlock.Lease, error) { return locktest.NewTestMutex(c, "k").Lock(context.Background()) })
		time.Sleep(30 * time.Second)
		for range 2 { // an outage, an answer, another outage
			rule := w.On(locktest.Acquires(), virtualSays(v, virtualLoading)).Times(0)
			w.Reset()
			begin := time.Now()
			time.Sleep(10 * time.Second)
			times := locktest.VirtualTimes(w.Seen(), begin, locktest.Acquires())
			if rule.Hits() < 20 {
				t.Fatalf("%d tries in ten seconds", rule.Hits())
			}
			for i := 1; i < len(times); i++ {
				want := min(locktest.ShortestPause<<min(i-1, 20), locktest.LongestPause)
				if pause := times[i] - times[i-1]; pause < want || pause > want+want/10 {
					t.Errorf("pause %d is %v, want about %v", i, pause, want)
				}
			}
			w.Clear()
			time.Sleep(2 * time.Second)
		}
		v.Mini().FlushAll()
		<-waiting.Done
		locktest.MustUnlock(t, waiting.Lease)
	})
}

// A row ends with the wait: who comes later begins with the short pauses.
func TestVirtualALaterWaitBeginsWithShortPauses(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := locktest.VirtualWired(t, v)
		rule := w.On(locktest.Acquires(), virtualSays(v, virtualLoading)).Times(0)
		m := locktest.NewTestMutex(c, "k")
		_, err := m.TryLock(context.Background(), 5*time.Second)
		if err == nil || !watchlock.IsUnavailable(err) || errors.Is(err, watchlock.ErrNotAcquired) {
			t.Fatal(err)
		}
		synctest.Wait()
		before := rule.Hits()
		_, _ = m.TryLock(context.Background(), 50*time.Millisecond)
		if n := rule.Hits() - before; n < 4 {
			t.Errorf("%d tries in 50 ms", n)
		}
	})
}

// The same of an extension that a re-entry waits for.
func TestVirtualPausesOfAReentryGrowWithFailuresInARow(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := locktest.VirtualWired(t, v)
		m := locktest.NewTestMutex(c, "k")
		outer := locktest.MustLock(t, m, watchlock.WithLeaseTime(time.Minute))
		ctx := outer.Context(context.Background())
		hold := make(chan struct{})
		// Its first try has no answer for a second, the second is told to come back.
		w.On(locktest.Renews(), redistest.HoldRequest(hold))
		w.On(locktest.Renews(), virtualSays(v, virtualLoading))
		start := time.Now()
		inner, err := m.Lock(ctx, watchlock.WithLeaseTime(10*time.Minute))
		close(hold)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start) - transport.AttemptTimeout; took > 20*time.Millisecond {
			t.Errorf("it was extended %v after the first try was given up", took)
		}
		locktest.MustUnlock(t, inner)
		locktest.MustUnlock(t, outer)
	})
}
