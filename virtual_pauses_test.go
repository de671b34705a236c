package watchlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

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
		return func() { w.On(acquires(), virtualSays(v, text)) }
	}
	return map[string]func(){
		"READONLY": reply("READONLY You can't write against a read only replica."),
		"LOADING":  reply(virtualLoading),
		"a connection that ends": func() {
			w.On(acquires(), redistest.Call(w.Cut))
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
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c, w := virtualWired(t, v, WithMaxPollInterval(time.Second))
				virtualTake(v, "k", 10*time.Second)
				start := time.Now()
				waiting := goLock(func() (*Lease, error) { return newTestMutex(c, "k").Lock(context.Background()) })
				virtualUntil(start, 10*time.Second-time.Millisecond)
				virtualFailures(v, w)[name]() // the attempt at the lease's end meets it
				<-waiting.done
				if waiting.err != nil {
					t.Fatal(waiting.err)
				}
				// Two or three attempts: refused, and told not to hurry so; then 5 ms and 10.
				if at := time.Since(start) - 10*time.Second; at > afterExpiry+expiryJitter+20*time.Millisecond {
					t.Errorf("granted %v after the lease's end", at)
				}
				mustUnlock(t, waiting.lease)
			})
		})
	}
}

// Failures in a row have the pauses grow, up to half a second, whoever waits; an answer ends
// the row.
func TestVirtualPausesGrowWithFailuresInARow(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := virtualWired(t, v, WithMaxPollInterval(250*time.Millisecond))
		virtualTake(v, "k", 0)
		waiting := goLock(func() (*Lease, error) { return newTestMutex(c, "k").Lock(context.Background()) })
		time.Sleep(30 * time.Second)
		for range 2 { // an outage, an answer, another outage
			rule := w.On(acquires(), virtualSays(v, virtualLoading)).Times(0)
			w.Reset()
			begin := time.Now()
			time.Sleep(10 * time.Second)
			times := virtualTimes(w.Seen(), begin, acquires())
			if rule.Hits() < 20 {
				t.Fatalf("%d tries in ten seconds", rule.Hits())
			}
			for i := 1; i < len(times); i++ {
				want := min(firstRetry<<min(i-1, 20), lastRetry)
				if pause := times[i] - times[i-1]; pause < want || pause > want+want/10 {
					t.Errorf("pause %d is %v, want about %v", i, pause, want)
				}
			}
			w.Clear()
			time.Sleep(2 * time.Second)
		}
		v.Mini().FlushAll()
		<-waiting.done
		mustUnlock(t, waiting.lease)
	})
}

// A row ends with the wait: who comes later begins with the short pauses.
func TestVirtualALaterWaitBeginsWithShortPauses(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := virtualWired(t, v)
		rule := w.On(acquires(), virtualSays(v, virtualLoading)).Times(0)
		m := newTestMutex(c, "k")
		_, err := m.TryLock(context.Background(), 5*time.Second)
		if err == nil || !IsUnavailable(err) || errors.Is(err, ErrNotAcquired) {
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
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := virtualWired(t, v)
		m := newTestMutex(c, "k")
		outer := mustLock(t, m, WithLeaseTime(time.Minute))
		ctx := outer.Context(context.Background())
		hold := make(chan struct{})
		// Its first try has no answer for a second, the second is told to come back.
		w.On(renews(), redistest.HoldRequest(hold))
		w.On(renews(), virtualSays(v, virtualLoading))
		start := time.Now()
		inner, err := m.Lock(ctx, WithLeaseTime(10*time.Minute))
		close(hold)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start) - transport.AttemptTimeout; took > 20*time.Millisecond {
			t.Errorf("it was extended %v after the first try was given up", took)
		}
		mustUnlock(t, inner)
		mustUnlock(t, outer)
	})
}
