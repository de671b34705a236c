package storm_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

const (
	stormClients = 3
	stormWorkers = 64 // of each client
	stormNames   = 5
	stormKept    = 4 // locks that each client holds all the time
	stormPool    = 8
	stormTimeout = 6 * time.Second // the watchdog's

	// stormSlack is how much trust a section needs when it writes. Only a
	// goroutine that stands still for longer between the look and the write can
	// write under a lease that it has lost; such a write is noticed after it.
	stormSlack = 2 * time.Second
)

// cell is what one lock of the storm protects. Nothing else does: two sections
// at once lose an increment, see each other's mark, or race.
type cell struct {
	n    int
	mark uint64

	counted  atomic.Int64 // sections whose lease was live at their end
	doubtful atomic.Int64 // sections that wrote and then found their lease lost
	aborted  atomic.Int64 // sections that gave up before they wrote
	overlaps atomic.Int64
}

// section counts once under l, or touches nothing once little trust is left.
func (c *cell) section(l *watchlock.Lease) {
	if time.Until(l.ExpiresAt()) < stormSlack {
		c.aborted.Add(1)
		return
	}
	mark := rand.Uint64()
	c.mark = mark
	n := c.n
	if rand.N(2) == 0 {
		<-time.After(rand.N(time.Millisecond))
	}
	if time.Until(l.ExpiresAt()) < stormSlack || l.Err() != nil {
		c.aborted.Add(1)
		return
	}
	if c.mark != mark {
		c.overlaps.Add(1)
	}
	c.n = n + 1
	if l.Err() != nil {
		c.doubtful.Add(1)
		return
	}
	c.counted.Add(1)
}

// check fails unless n is the number of sections that counted. One in doubt has
// counted or not.
func (c *cell) check(t *testing.T, name string) {
	t.Helper()
	n, counted, doubtful := int64(c.n), c.counted.Load(), c.doubtful.Load()
	if n < counted || n > counted+doubtful || c.overlaps.Load() != 0 {
		t.Errorf("%s: unprotected counter is %d, want %d, %d in doubt; %d overlaps", name, n, counted, doubtful, c.overlaps.Load())
	}
	if counted == 0 {
		t.Errorf("%s: nobody was ever inside", name)
	}
}

// storm is the test's state.
type storm struct {
	t     *testing.T
	cells [stormNames]cell

	mu      sync.Mutex
	results map[string]int // how calls ended
	orphans map[string]bool
}

func (s *storm) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.results[what]++
}

// work locks names at random in every way there is, until ctx ends.
func (s *storm) work(ctx context.Context, c *watchlock.Client) {
	for ctx.Err() == nil {
		i := rand.N(stormNames)
		m := locktest.NewTestMutex(c, stormName(i))
		switch p := rand.N(100); {
		case p < 40:
			s.visit(i, m, func() (*watchlock.Lease, error) { return m.Lock(ctx) })
		case p < 55:
			s.visit(i, m, func() (*watchlock.Lease, error) { return m.TryLock(ctx, time.Microsecond+rand.N(100*time.Millisecond)) })
		case p < 65:
			s.visit(i, m, func() (*watchlock.Lease, error) { return m.TryLock(ctx, 0) })
		case p < 80:
			lease := watchlock.WithLeaseTime(stormTimeout - time.Duration(rand.N(3))*time.Second)
			s.visit(i, m, func() (*watchlock.Lease, error) { return m.Lock(ctx, lease) })
		case p < 95:
			s.visit(i, m, func() (*watchlock.Lease, error) {
				ctx, cancel := context.WithCancel(ctx)
				defer time.AfterFunc(rand.N(50*time.Millisecond), cancel).Stop()
				defer cancel()
				return m.Lock(ctx)
			})
		default:
			s.overstay(ctx, m)
		}
	}
}

// visit is one section, at times with a nested hold.
func (s *storm) visit(i int, m *watchlock.Mutex, lock func() (*watchlock.Lease, error)) {
	l, err := lock()
	if !s.granted(l, err) {
		return
	}
	s.cells[i].section(l)
	if rand.N(4) == 0 {
		inner, err := m.TryLock(l.Context(context.Background()), stormTimeout)
		switch {
		case err == nil:
			s.cells[i].section(inner)
			s.left(inner, "inner unlock")
		case !errors.Is(err, watchlock.ErrLost):
			s.t.Errorf("re-entry: %v", err)
		}
	}
	s.left(l, "unlock")
}

// overstay holds a short lease beyond its end, and touches nothing.
func (s *storm) overstay(ctx context.Context, m *watchlock.Mutex) {
	l, err := m.Lock(ctx, watchlock.WithLeaseTime(time.Duration(10+rand.N(20))*time.Millisecond))
	if !s.granted(l, err) {
		return
	}
	<-l.Done()
	if err := l.Err(); !errors.Is(err, watchlock.ErrLost) {
		s.t.Errorf("a lease that ran out says %v", err)
	}
	if err := l.Unlock(context.Background()); !errors.Is(err, watchlock.ErrLost) {
		s.t.Errorf("unlock of a lease that ran out: %v", err)
	}
	s.note("overstayed")
}

// granted reports whether a call got the lock. It fails on an error that no call
// of the storm may have.
func (s *storm) granted(l *watchlock.Lease, err error) bool {
	switch {
	case err == nil && l != nil:
		s.note("granted")
		return true
	case l != nil || err == nil:
		s.t.Errorf("lease %v, %v", l, err)
	case errors.Is(err, watchlock.ErrNotAcquired) && !watchlock.IsUnavailable(err):
		s.note("busy")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		s.note("cancelled")
	case watchlock.IsUnavailable(err):
		s.note("unavailable")
	default:
		s.t.Errorf("lock: %v", err)
	}
	return false
}

// left unlocks. A lease that was live a moment ago, with much trust left, is not
// found lost.
func (s *storm) left(l *watchlock.Lease, what string) {
	live := time.Until(l.ExpiresAt()) >= stormSlack && l.Err() == nil
	err := l.Unlock(context.Background())
	switch {
	case err == nil:
		s.note(what)
	case watchlock.IsUnavailable(err):
		s.note(what + " unavailable")
	case live || !errors.Is(err, watchlock.ErrLost):
		s.t.Errorf("%s of a lease that is live %v: %v", what, live, err)
	}
}

// collect notes the attempts of unknown outcome that c is releasing.
func (s *storm) collect(c *watchlock.Client) {
	for _, o := range locktest.OrphansOf(c).All() {
		if !o.Known {
			s.orphans[o.Owner.(string)] = true
		}
	}
}

func stormName(i int) string { return fmt.Sprint("name-", i) }

// percent chooses a part of what match chooses.
func percent(p float64, match redistest.Match) redistest.Match {
	return func(c redistest.Command) bool { return match(c) && rand.Float64()*100 < p }
}

// stormFaults are the rules of one client's connections.
type stormFaults struct {
	wire  *redistest.Wire
	rules map[string]*redistest.Rule
}

func newStormFaults() stormFaults {
	f := stormFaults{redistest.NewWire(), map[string]*redistest.Rule{}}
	for _, r := range []struct {
		name           string
		runs           redistest.Match
		reply, request float64 // percent
	}{
		{"acquire", locktest.Acquires(), 2, 0.5},
		{"release", locktest.Releases(), 2, 0.5},
		{"renew", locktest.Renews(), 10, 10}, // there are few
	} {
		f.rules["lost reply: "+r.name] = f.wire.On(percent(r.reply, r.runs), redistest.DropReply).Times(0)
		f.rules["lost request: "+r.name] = f.wire.On(percent(r.request, r.runs), redistest.DropRequest).Times(0)
	}
	f.rules["silence"] = f.wire.On(percent(0.3, locktest.Acquires()), redistest.Swallow).Times(0)
	drop := func(string, string) bool { return rand.N(20) == 0 }
	f.rules["lost message"] = f.wire.OnPush(drop, true).Times(0)
	return f
}

// rage cuts connections and watches for orphans until the time is over.
func (s *storm) rage(d time.Duration, clients []*watchlock.Client, faults []stormFaults) (cuts int) {
	next := make([]time.Time, len(faults))
	for end := time.Now().Add(d); time.Now().Before(end); {
		for i, f := range faults {
			s.collect(clients[i])
			if time.Now().Before(next[i]) {
				continue
			}
			next[i] = time.Now().Add(50*time.Millisecond + rand.N(400*time.Millisecond))
			cuts += f.wire.Conns()
			f.wire.Cut()
			f.wire.Reset() // the list of commands would only grow
		}
		<-time.After(5 * time.Millisecond)
	}
	return cuts
}

func TestExclusionStormOfCutsAndLostReplies(t *testing.T) {
	sc, _ := locktest.RealScene(t)
	s := &storm{t: t, results: map[string]int{}, orphans: map[string]bool{}}
	var clients []*watchlock.Client
	var faults []stormFaults
	var kept []*watchlock.Lease
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	for i := range stormClients {
		f := newStormFaults()
		rdb := sc.Rdb(f.wire.Options(), func(o *redis.Options) { o.PoolSize = stormPool })
		c := sc.ClientOn(rdb, watchlock.WithWatchdogTimeout(stormTimeout))
		for j := range stormKept {
			kept = append(kept, locktest.MustLock(t, locktest.NewTestMutex(c, fmt.Sprintf("kept-%d-%d", i, j))))
		}
		clients, faults = append(clients, c), append(faults, f)
		for range stormWorkers {
			wg.Go(func() { s.work(ctx, c) })
		}
	}
	cuts := s.rage(time.Duration(max(6, locktest.FullCount(60)))*time.Second, clients, faults)
	stop()
	hits := map[string]int{}
	for _, f := range faults {
		for what, rule := range f.rules {
			hits[what] += rule.Hits()
		}
		f.wire.Clear()
	}
	wg.Wait()

	// Everything that is renewed was renewed through it all.
	for _, l := range kept {
		if err := l.Err(); err != nil {
			t.Errorf("%s was lost: %v", l.Name(), err)
		}
		if err := l.Unlock(context.Background()); err != nil {
			t.Errorf("%s: %v", l.Name(), err)
		}
	}
	for i := range s.cells {
		s.cells[i].check(t, stormName(i))
	}
	t.Logf("calls %v", s.results)
	t.Logf("%d connections cut, %d orphans, faults %v", cuts, len(s.orphans), hits)
	hits["cut"], hits["orphan"] = cuts, len(s.orphans)
	for what, n := range hits {
		if n == 0 {
			t.Errorf("it never happened: %s", what)
		}
	}
	for _, what := range []string{"granted", "busy", "cancelled", "overstayed", "inner unlock"} {
		if s.results[what] == 0 {
			t.Errorf("it never happened: %s", what)
		}
	}

	// No key, no subscription, and no connection beyond the pools, while the
	// clients are still open; then not even those, nor a goroutine.
	locktest.Eventually(t, 2*stormTimeout, "no key is left", func() bool { return len(sc.Keys()) == 0 })
	locktest.Eventually(t, locktest.ChannelLinger+2*time.Second, "no channel is left", func() bool { return len(sc.Channels()) == 0 })
	locktest.Eventually(t, 2*stormTimeout, "no connection beyond the pools is left", func() bool {
		return sc.Conns() <= stormClients*stormPool
	})
	for i := range stormNames {
		sc.HandsOver(stormName(i))
	}
	sc.End()
}
