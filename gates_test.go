package watchlock

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// Gates count what speed is made of, so that they fail on any machine alike. A
// change that raises a bound here says why.
const (
	gateAllocsPerPair     = 14    // Lock and Unlock that nobody else wants
	gateAllocsPerReentry  = 4     // Lock under a lease's context, and Unlock
	gateAllocsPerPass     = 3     // a section whose lock was passed in memory
	gateCommandsPerPair   = 2     // acquire and release
	gateCommandsPerPass   = 0.001 // bursts end by time, so it is never quite 0
	gateCommandsPerRound  = 100   // renewals of gateHeld locks
	gateGoroutinesPerHeld = 0
	gateGoroutinesPerWait = 1 // the caller's own

	gateHeld    = 10_000
	gatePasses  = 20_000
	gatePassing = 16          // goroutines
	gateWindow  = time.Second // of passing: long, so that a slow machine passes as often
)

// gateAllocs is the allocations of one run of f, the whole process counted.
func gateAllocs(t *testing.T, f func()) float64 {
	t.Helper()
	if raceEnabled {
		t.Skip("the race detector allocates: ci/gates.sh counts without it")
	}
	for range 50 {
		f() // fills pools, opens connections
	}
	return testing.AllocsPerRun(1000, f)
}

// gateSent is how many commands clients have sent over w, those that open a
// connection or keep one alive excepted.
func gateSent(w *redistest.Wire) int {
	return w.Count(func(c redistest.Command) bool {
		return c.Name != "HELLO" && c.Name != "CLIENT" && c.Name != "PING"
	})
}

// gateSections runs n short sections from gatePassing goroutines on m.
func gateSections(t *testing.T, m *Mutex, n int) {
	t.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	var c counter
	var all sync.WaitGroup
	for range gatePassing {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				l, err := m.Lock(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				c.section(0)
				if err := l.Unlock(context.Background()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	c.check(t, n)
}

func TestGateAllocationsOfAnUncontendedPair(t *testing.T) {
	m := newTestClient(t, redistest.Start(t).Client()).NewMutex("order:42")
	n := gateAllocs(t, func() { mustUnlock(t, mustLock(t, m)) })
	t.Logf("%.0f allocations", n)
	if n > gateAllocsPerPair {
		t.Errorf("%.0f allocations for Lock and Unlock, want at most %d", n, gateAllocsPerPair)
	}
}

func TestGateAllocationsOfAReentry(t *testing.T) {
	m := newTestClient(t, redistest.Start(t).Client()).NewMutex("order:42")
	outer := mustLock(t, m)
	defer mustUnlock(t, outer)
	ctx := outer.Context(context.Background())
	n := gateAllocs(t, func() {
		inner, err := m.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, inner)
	})
	t.Logf("%.0f allocations", n)
	if n > gateAllocsPerReentry {
		t.Errorf("%.0f allocations for a re-entry, want at most %d", n, gateAllocsPerReentry)
	}
}

func TestGateAllocationsOfAPassedSection(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates: ci/gates.sh counts without it")
	}
	m := newTestClient(t, redistest.Start(t).Client(), WithLocalHandoff(gateWindow)).NewMutex("order:42")
	gateSections(t, m, 1000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	gateSections(t, m, gatePasses)
	runtime.ReadMemStats(&after)
	n := float64(after.Mallocs-before.Mallocs) / gatePasses
	t.Logf("%.2f allocations", n)
	if n > gateAllocsPerPass {
		t.Errorf("%.2f allocations for a passed section, want at most %d", n, gateAllocsPerPass)
	}
}

func TestGateCommandsOfAnUncontendedPair(t *testing.T) {
	const pairs = 500
	w := redistest.NewWire()
	m := newTestClient(t, redistest.Start(t).Client(w.Options())).NewMutex("order:42")
	mustUnlock(t, mustLock(t, m)) // the server learns the scripts
	w.Reset()
	for range pairs {
		mustUnlock(t, mustLock(t, m))
	}
	if n := gateSent(w); n != gateCommandsPerPair*pairs {
		t.Errorf("%d commands for %d pairs, want %d each", n, pairs, gateCommandsPerPair)
	}
}

func TestGateCommandsOfAPassedSection(t *testing.T) {
	w := redistest.NewWire()
	m := newTestClient(t, redistest.Start(t).Client(w.Options()), WithLocalHandoff(gateWindow)).NewMutex("order:42")
	gateSections(t, m, 1000)
	w.Reset()
	began := time.Now()
	gateSections(t, m, gatePasses)
	windows := 1 + int(time.Since(began)/gateWindow)
	n := gateSent(w)
	t.Logf("%d commands for %d sections in %d windows", n, gatePasses, windows)
	// Each window has one burst. At the start and the end the last to come and
	// the last to leave may meet nobody, and take and release on their own.
	most := gateCommandsPerPass*gatePasses + float64(2*windows)
	if float64(n) > most {
		t.Errorf("%d commands for %d sections, want at most %.0f", n, gatePasses, most)
	}
}

func TestGateCommandsOfARenewalRound(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v)
		leases := make([]*Lease, gateHeld)
		for i := range leases {
			leases[i] = mustLock(t, c.NewMutex(fmt.Sprint("order:", i)))
			_ = leases[i].Done() // or each would be warned about
		}
		time.Sleep(2 * keepAfter) // the connection that hears of a restart is open
		v.Reset()
		time.Sleep(c.dog.interval() + c.dog.early())
		synctest.Wait()
		n, renewals := sent(v), v.CountIf(redistest.Runs(wire.RenewSource))
		t.Logf("%d commands, %d of them renewals", n, renewals)
		if n > gateCommandsPerRound {
			t.Errorf("%d commands in a renewal round of %d locks, want at most %d", n, gateHeld, gateCommandsPerRound)
		}
		if renewals < gateHeld/1000 {
			t.Errorf("%d renewals: the round did not happen", renewals)
		}
		for _, l := range leases {
			if err := l.Err(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestGateGoroutinesOfHeldLocks(t *testing.T) {
	const held = 1000
	c := newTestClient(t, redistest.Start(t).Client())
	first := mustLock(t, c.NewMutex("order:first"))
	defer mustUnlock(t, first)
	eventually(t, 2*time.Second, "the connection that hears of a restart is open", func() bool { return earIsOpen(c) })
	before := gateGoroutines(t)
	leases := make([]*Lease, held)
	for i := range leases {
		leases[i] = mustLock(t, c.NewMutex(fmt.Sprint("order:", i)))
	}
	after := gateGoroutines(t)
	if more := after - before; more > gateGoroutinesPerHeld*held {
		t.Errorf("%d goroutines for %d more held locks, want %d each", more, held, gateGoroutinesPerHeld)
	}
	for _, l := range leases {
		mustUnlock(t, l)
	}
}

func TestGateGoroutinesOfWaiters(t *testing.T) {
	const few, many = 100, 1100
	s := redistest.Start(t)
	other := newTestClient(t, s.Client())
	holder := mustLock(t, other.NewMutex("order:42"))
	eventually(t, 2*time.Second, "the holder's connection that hears of a restart is open", func() bool { return earIsOpen(other) })
	c := newTestClient(t, s.Client(func(o *redis.Options) { o.PoolSize = 2 }))
	m := c.NewMutex("order:42")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var all sync.WaitGroup
	join := func(n int) int {
		for range n {
			all.Go(func() { _, _ = m.Lock(ctx) })
		}
		return n
	}
	queued := join(few)
	gateQueue(t, m, queued)
	before := gateGoroutines(t)
	queued += join(many - few)
	gateQueue(t, m, queued)
	after := gateGoroutines(t)
	if more := after - before; more != gateGoroutinesPerWait*(many-few) {
		t.Errorf("%d goroutines for %d more waiters, want %d each", more, many-few, gateGoroutinesPerWait)
	}
	cancel()
	all.Wait()
	mustUnlock(t, holder)
}

// gateQueue waits until n callers are queued for m.
func gateQueue(t *testing.T, m *Mutex, n int) {
	t.Helper()
	eventually(t, 10*time.Second, fmt.Sprintf("%d waiters", n), func() bool {
		g, err := m.c.gate(&m.keys)
		if err != nil {
			t.Fatal(err)
		}
		defer g.unref()
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.queue.n == n
	})
}

// gateGoroutines is how many goroutines there are once their number stands still.
func gateGoroutines(t *testing.T) int {
	t.Helper()
	n, since := runtime.NumGoroutine(), time.Now()
	eventually(t, 10*time.Second, "a steady number of goroutines", func() bool {
		if now := runtime.NumGoroutine(); now != n {
			n, since = now, time.Now()
		}
		return time.Since(since) > 200*time.Millisecond
	})
	return n
}

// earIsOpen reports whether a client hears its server.
func earIsOpen(c *Client) bool { return c.subs.Open(c.runner.Site("")) }
