package wait_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

const untilTheLine = "what is heard of others is a hint, and turns end in vain without their order: " +
	"a line of waiting clients in Redis is to close this"

// virtualTurns has two goroutines of one client lock in a loop, and one of another, whose round
// trips take as long as trip; messages reach it at once. With hurry the first client also has
// a caller that tries without a wait, each time after that pause.
func virtualTurns(t *testing.T, v *redistest.Virtual, trip, section, span, hurry time.Duration) (near, far int) {
	t.Helper()
	a := locktest.VirtualClient(t, v)
	b, w := locktest.VirtualWired(t, v)
	locktest.VirtualTrip(w, trip)
	end := time.Now().Add(span)
	loop := func(m *watchlock.Mutex, count *int) {
		ctx, cancel := context.WithDeadline(context.Background(), end)
		defer cancel()
		for time.Now().Before(end) {
			l, err := m.Lock(ctx)
			if err != nil {
				return // the end
			}
			*count++
			time.Sleep(section)
			locktest.MustUnlock(t, l)
		}
	}
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() { loop(locktest.NewTestMutex(a, "k"), &near) })
	}
	if hurry > 0 {
		all.Go(func() { // as a busy handler does
			m := locktest.NewTestMutex(a, "k")
			for time.Now().Before(end) {
				if l, err := m.TryLock(context.Background(), 0); err == nil {
					locktest.MustUnlock(t, l)
				}
				time.Sleep(hurry)
			}
		})
	}
	time.Sleep(10 * time.Millisecond)
	all.Go(func() { loop(locktest.NewTestMutex(b, "k"), &far) })
	all.Wait()
	return near, far
}

// The hurried one must not end the manners of the patient: each release here is told to the
// waiter elsewhere, who goes first.
func TestVirtualTriesWithoutAWaitStarveNobodyElsewhere(t *testing.T) {
	t.Skip(untilTheLine)
	for _, trip := range []time.Duration{500 * time.Microsecond, time.Millisecond, 2 * time.Millisecond} {
		for _, hurry := range []time.Duration{200 * time.Microsecond, time.Millisecond} {
			t.Run(fmt.Sprint("trip ", trip, " tries each ", hurry), func(t *testing.T) {
				locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
					const section, span = 20 * time.Millisecond, 10 * time.Second
					near, far := virtualTurns(t, v, trip, section, span, hurry)
					if far < int(span/section)/10 {
						t.Errorf("%d turns beside %d of the client with the hurried caller", far, near)
					}
				})
			})
		}
	}
}

// From the message of a release to its attempt a client may need longer than a turn is kept.
func TestVirtualAClientFarAwayIsNotStarved(t *testing.T) {
	t.Skip(untilTheLine)
	for _, section := range []time.Duration{10 * time.Millisecond, 50 * time.Millisecond, 500 * time.Millisecond} {
		for _, trip := range []time.Duration{2 * time.Millisecond, 4 * time.Millisecond, 8 * time.Millisecond, 30 * time.Millisecond} {
			t.Run(fmt.Sprint("section ", section, " trip ", trip), func(t *testing.T) {
				locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
					const span = 30 * time.Second
					near, far := virtualTurns(t, v, trip, section, span, 0)
					if far < int(span/section)/10 {
						t.Errorf("%d turns beside %d of the client that is near", far, near)
					}
				})
			})
		}
	}
}
