package renew_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// Sixteen goroutines of one client contend for one lock, in virtual time, where nothing but
// round trips and sections takes any: how many sections a second, and in how many bursts.
func TestVirtualContendedSectionsByRoundTrip(t *testing.T) {
	const span = 500 * time.Millisecond
	for _, trip := range []time.Duration{100 * time.Microsecond, time.Millisecond, 5 * time.Millisecond} {
		// Without any time inside virtual time would stand still.
		for _, section := range []time.Duration{10 * time.Microsecond, time.Millisecond, 5 * time.Millisecond} {
			t.Run(fmt.Sprint("trip ", trip, " section ", section), func(t *testing.T) {
				locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
					c, w := locktest.VirtualWired(t, v)
					locktest.VirtualTrip(w, trip)
					var mu sync.Mutex
					var all sync.WaitGroup
					var work locktest.Counter
					bursts := map[any]bool{}
					n, start := 0, time.Now()
					for range 16 {
						all.Go(func() {
							m := locktest.NewTestMutex(c, "k")
							for time.Since(start) < span {
								l := locktest.MustLock(t, m)
								mu.Lock()
								n++
								bursts[locktest.BurstOf(l)] = true
								mu.Unlock()
								work.Section(section)
								locktest.MustUnlock(t, l)
							}
						})
					}
					all.Wait()
					work.Check(t, n)
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
