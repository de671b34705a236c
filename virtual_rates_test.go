package watchlock

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// virtualTrip makes each round trip through w take that long.
func virtualTrip(w *redistest.Wire, trip time.Duration) {
	w.On(redistest.Any, redistest.All(redistest.Delay(trip/2), redistest.DelayReply(trip/2))).Times(0)
}

// Sixteen goroutines of one client contend for one lock, in virtual time, where nothing but
// round trips and sections takes any: how many sections a second, and in how many bursts.
func TestVirtualContendedSectionsByRoundTrip(t *testing.T) {
	const span = 500 * time.Millisecond
	for _, trip := range []time.Duration{100 * time.Microsecond, time.Millisecond, 5 * time.Millisecond} {
		// Without any time inside virtual time would stand still.
		for _, section := range []time.Duration{10 * time.Microsecond, time.Millisecond, 5 * time.Millisecond} {
			t.Run(fmt.Sprint("trip ", trip, " section ", section), func(t *testing.T) {
				inBubble(t, func(t *testing.T, v *redistest.Virtual) {
					c, w := virtualWired(t, v)
					virtualTrip(w, trip)
					var mu sync.Mutex
					var all sync.WaitGroup
					var work counter
					bursts := map[*burst]bool{}
					n, start := 0, time.Now()
					for range 16 {
						all.Go(func() {
							m := newTestMutex(c, "k")
							for time.Since(start) < span {
								l := mustLock(t, m)
								mu.Lock()
								n++
								bursts[l.hold.burst] = true
								mu.Unlock()
								work.section(section)
								mustUnlock(t, l)
							}
						})
					}
					all.Wait()
					work.check(t, n)
					took := time.Since(start)
					second := func(n int) int { return int(time.Duration(n) * time.Second / took) }
					t.Logf("%d sections a second, in %d bursts", second(n), second(len(bursts)))
					// Each in a round trip of its own, or two where nothing is relayed.
					if least := int(took / (section + 2*trip + time.Millisecond)); n < least {
						t.Errorf("%d sections in %v, want %d at least", n, took, least)
					}
				})
			})
		}
	}
}
