package sentinel_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// beliefs notes who believed to have which lock, from when to when.
type beliefs struct {
	mu sync.Mutex
	// guarded by mu
	all     map[string][]*belief // by the lock's name, in the order of their beginnings
	doubles []*belief            // that began while somebody else believed
}

// belief is one lease, from the return of Lock to Unlock, or to its end.
type belief struct {
	who   string
	lease *watchlock.Lease
	from  time.Time
	stop  func() bool

	// guarded by beliefs.mu
	until  time.Time // zero while it is believed
	lost   bool
	beside *belief // who else believed when it began
}

// enter is called when Lock has returned.
func (b *beliefs) enter(who string, l *watchlock.Lease) *belief {
	x := &belief{who: who, lease: l, from: time.Now()}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, other := range b.all[l.Name()] {
		if other.until.IsZero() && other.lease.Err() == nil {
			x.beside = other
			b.doubles = append(b.doubles, x)
			break
		}
	}
	if b.all == nil {
		b.all = make(map[string][]*belief)
	}
	b.all[l.Name()] = append(b.all[l.Name()], x)
	x.stop = context.AfterFunc(l.Context(context.Background()), func() { b.end(x, true) })
	return x
}

// leave is called before Unlock.
func (b *beliefs) leave(x *belief) {
	x.stop()
	b.end(x, errors.Is(x.lease.Err(), watchlock.ErrLost))
}

func (b *beliefs) end(x *belief, lost bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if x.until.IsZero() {
		x.until, x.lost = time.Now(), lost
	}
}

// firstAfter is when somebody first entered after an instant.
func (b *beliefs) firstAfter(name string, after time.Time) (time.Time, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, x := range b.all[name] {
		if x.from.After(after) {
			return x.from, true
		}
	}
	return time.Time{}, false
}

// check fails for two beliefs at once. It tells the times by when the former primary was
// struck.
func (b *beliefs) check(t testing.TB, struck time.Time) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	longest, said := time.Duration(0), map[string]bool{}
	for _, x := range b.doubles {
		end := time.Now()
		for _, one := range []*belief{x, x.beside} {
			if !one.until.IsZero() && one.until.Before(end) {
				end = one.until
			}
		}
		lasted := end.Sub(x.from)
		longest = max(longest, lasted)
		if !said[x.lease.Name()] {
			said[x.lease.Name()] = true
			t.Errorf("%s: %s believed it from %v to %v, and %s from %v: both for %v",
				x.lease.Name(), x.beside.who, x.beside.from.Sub(struck), since(x.beside.until, struck),
				x.who, x.from.Sub(struck), lasted)
		}
	}
	t.Logf("%d grants, %d while somebody else believed, for %v at most", b.count(), len(b.doubles), longest)
}

func (b *beliefs) count() int {
	n := 0
	for _, all := range b.all {
		n += len(all)
	}
	return n
}

func since(at, start time.Time) string {
	if at.IsZero() {
		return "now"
	}
	return at.Sub(start).String()
}

// losses are the beliefs that began in a span of time and ended by themselves.
func (b *beliefs) losses(from, to time.Time) []*belief {
	b.mu.Lock()
	defer b.mu.Unlock()
	var lost []*belief
	for _, all := range b.all {
		for _, x := range all {
			if x.lost && x.from.After(from) && x.from.Before(to) {
				lost = append(lost, x)
			}
		}
	}
	return lost
}

// user is a client on connections of its own, and what it does with locks.
type user struct {
	*watchlock.Client
	name string
	told *beliefs
}

// take takes a lock for long.
func (u user) take(t testing.TB, kind, name string) *belief {
	t.Helper()
	return u.told.enter(u.name, locktest.MustLock(t, locktest.MutexOf(u.Client, kind, name)))
}

// give ends take. The lease may have ended before.
func (u user) give(x *belief) error {
	u.told.leave(x)
	return x.lease.Unlock(context.Background())
}

// loop takes and releases a lock until ctx ends, whatever happens.
func (u user) loop(ctx context.Context, kind, name string) {
	m := locktest.MutexOf(u.Client, kind, name)
	for n := 0; ctx.Err() == nil; n++ {
		l, err := m.Lock(ctx)
		if err != nil {
			rest(ctx, 20*time.Millisecond)
			continue
		}
		x := u.told.enter(u.name, l)
		<-time.After(time.Duration(5+n%3*10) * time.Millisecond)
		_ = u.give(x) // what it says is in the belief
		rest(ctx, 5*time.Millisecond)
	}
}

// pry tries for locks that others hold until ctx ends.
func (u user) pry(ctx context.Context, held []*belief) {
	for ctx.Err() == nil {
		for _, x := range held {
			if x.who == u.name {
				continue
			}
			l, err := mutexOfLease(u.Client, x.lease).TryLock(ctx, 0)
			if err == nil {
				got := u.told.enter(u.name, l)
				rest(ctx, 300*time.Millisecond)
				_ = u.give(got)
			}
		}
		rest(ctx, 50*time.Millisecond)
	}
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func TestBeliefsFindTwoAtOnce(t *testing.T) {
	s := redistest.Start(t)
	told := &beliefs{}
	a, b := user{locktest.NewTestClient(t, s.Client()), "a", told}, user{locktest.NewTestClient(t, s.Client()), "b", told}
	x := a.take(t, "mutex", "one")
	if _, err := s.Do("DEL", "one"); err != nil {
		t.Fatal(err)
	}
	y := b.take(t, "mutex", "one")
	if len(told.doubles) != 1 || told.doubles[0] != y || y.beside != x {
		t.Errorf("%d doubles, want one", len(told.doubles))
	}
	if err := a.give(x); !errors.Is(err, watchlock.ErrLost) {
		t.Errorf("Unlock of a lock that was taken away: %v", err)
	}
	if err := b.give(y); err != nil {
		t.Error(err)
	}
	if at, ok := told.firstAfter("one", x.from); !ok || at != y.from {
		t.Errorf("the second entered at %v, %v", at, ok)
	}
	z := told.enter("a", locktest.MustLock(t, a.NewMutex("short"), watchlock.WithLeaseTime(50*time.Millisecond)))
	locktest.Eventually(t, time.Second, "a lease that ran out is a loss", func() bool {
		lost := told.losses(y.from, time.Now())
		return len(lost) == 1 && lost[0] == z
	})
}
