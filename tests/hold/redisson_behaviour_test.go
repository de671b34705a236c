package hold_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// Tests named after RLnn state what Redisson's RedissonLockTest asserts.

func TestRL05_InnerUnlocksLeaveTheLeaseTime(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		s := locktest.VirtualScene(t, v)
		m := locktest.NewTestMutex(s.Client(), "report", watchlock.WithLeaseTime(10*time.Second))
		leases := []*watchlock.Lease{locktest.MustLock(t, m)}
		for range 2 {
			time.Sleep(500 * time.Millisecond)
			leases = append(leases, locktest.MustReenter(t, m, leases[len(leases)-1]))
			if ttl := s.TTL(m); ttl != 10*time.Second {
				t.Fatalf("an inner lock of 10 s left a TTL of %v", ttl)
			}
		}
		time.Sleep(300 * time.Millisecond)
		for _, inner := range []*watchlock.Lease{leases[2], leases[1]} {
			locktest.MustUnlock(t, inner)
			if ttl := s.TTL(m); ttl != 9700*time.Millisecond {
				t.Errorf("an inner unlock after 300 ms left a TTL of %v, want 9.7 s", ttl)
			}
		}
		locktest.MustUnlock(t, leases[0])
		if ttl := s.TTL(m); ttl >= 0 {
			t.Errorf("the last unlock left the key, TTL %v", ttl)
		}
		s.HandsOver("report")
		s.End()
	})
}

func TestRL10_LeaseTimeDoesNotLeakIntoTheNextLock(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		s := locktest.VirtualScene(t, v)
		m := locktest.NewTestMutex(s.Client(), "report")
		for range 2 {
			for _, want := range []struct {
				ttl  time.Duration
				opts []watchlock.LockOption
			}{
				{time.Hour, []watchlock.LockOption{watchlock.WithLeaseTime(time.Hour)}},
				{locktest.WatchdogTimeoutByDefault, nil},
			} {
				l := locktest.MustLock(t, m, want.opts...)
				if ttl := s.TTL(m); ttl != want.ttl {
					t.Errorf("TTL %v, want %v", ttl, want.ttl)
				}
				locktest.MustUnlock(t, l)
				if ttl := s.TTL(m); ttl >= 0 {
					t.Errorf("unlock left the key, TTL %v", ttl)
				}
			}
		}
		s.End()
	})
}

func TestRL13_HoldsAreCounted(t *testing.T) {
	s, _ := locktest.RealScene(t)
	m := locktest.NewTestMutex(s.Client(), "report")
	holds := func(want int) {
		t.Helper()
		info, err := m.Info(t.Context())
		if err != nil || info.Holds != want || info.Held != (want > 0) || info.Mine != (want > 0) {
			t.Errorf("info %+v, %v, want %d holds", info, err, want)
		}
	}
	holds(0)
	outer := locktest.MustLock(t, m)
	holds(1)
	locktest.MustUnlock(t, outer)
	holds(0)
	outer = locktest.MustLock(t, m)
	inner := locktest.MustReenter(t, m, outer)
	holds(2)
	locktest.MustUnlock(t, inner)
	holds(1)
	locktest.MustUnlock(t, outer)
	holds(0)
	s.End()
}

// grantsNow fails unless one attempt on m, from a goroutine and a context of its
// own, gets the lock.
func grantsNow(t *testing.T, m *watchlock.Mutex) {
	t.Helper()
	errs := make(chan error, 1)
	go func() {
		l, err := m.TryLock(context.Background(), 0)
		if err == nil {
			err = l.Unlock(context.Background())
		}
		errs <- err
	}()
	if err := <-errs; err != nil {
		t.Errorf("a try on a free lock: %v", err)
	}
}

func TestRL14_AnotherGoroutineIsNotTheHolder(t *testing.T) {
	s, _ := locktest.RealScene(t)
	c := s.Client()
	m := locktest.NewTestMutex(c, "report")
	lease := locktest.MustLock(t, m)
	owner := s.Owner(m)
	// Neither through the same handle nor through one of its own.
	locktest.RefusesNow(t, m)
	locktest.RefusesNow(t, locktest.NewTestMutex(c, "report"))
	if now := s.Owner(m); now != owner || lease.Err() != nil {
		t.Errorf("the tries changed the owner from %s to %s, lease %v", owner, now, lease.Err())
	}
	locktest.MustUnlock(t, lease)
	grantsNow(t, m)
	grantsNow(t, locktest.NewTestMutex(c, "report"))
	if err := lease.Err(); !errors.Is(err, watchlock.ErrNotHeld) {
		t.Errorf("after another goroutine's turn the old lease says %v", err)
	}
	s.End()
}

func TestRL15_LeaseTellsWhetherItIsHeld(t *testing.T) {
	s, _ := locktest.RealScene(t)
	m := locktest.NewTestMutex(s.Client(), "report")
	var lease *watchlock.Lease
	if err := lease.Err(); !errors.Is(err, watchlock.ErrNotHeld) {
		t.Errorf("before: %v, want ErrNotHeld", err)
	}
	lease = locktest.MustLock(t, m)
	ctx := lease.Context(t.Context())
	select {
	case <-lease.Done():
		t.Error("held, and Done is closed")
	default:
	}
	if lease.Err() != nil || ctx.Err() != nil {
		t.Errorf("held: %v, context %v", lease.Err(), ctx.Err())
	}
	locktest.MustUnlock(t, lease)
	<-lease.Done()
	if !errors.Is(lease.Err(), watchlock.ErrNotHeld) || !errors.Is(context.Cause(ctx), watchlock.ErrNotHeld) || ctx.Err() == nil {
		t.Errorf("after: %v, context %v with cause %v", lease.Err(), ctx.Err(), context.Cause(ctx))
	}
	s.End()
}

func TestRL16_AnotherGoroutineSeesTheLockTakenThenFree(t *testing.T) {
	s, _ := locktest.RealScene(t)
	mine, other := locktest.NewTestMutex(s.Client(), "report"), locktest.NewTestMutex(s.Client(), "report")
	// Both a goroutine of this client and one of another look.
	look := func(held bool) {
		t.Helper()
		for _, m := range []*watchlock.Mutex{mine, other} {
			infos, errs := make(chan watchlock.LockInfo, 1), make(chan error, 1)
			go func() {
				info, err := m.Info(context.Background())
				infos <- info
				errs <- err
			}()
			info, err := <-infos, <-errs
			if err != nil || info.Held != held || info.Mine != (held && m == mine) {
				t.Errorf("info %+v, %v, want held %v", info, err, held)
			}
		}
	}
	lease := locktest.MustLock(t, mine)
	look(true)
	locktest.MustUnlock(t, lease)
	look(false)
	s.End()
}

func TestRL18_InfoSeesFreeTakenFree(t *testing.T) {
	s, _ := locktest.RealScene(t)
	m := locktest.NewTestMutex(s.Client(), "report")
	look := func(held bool) {
		t.Helper()
		info, err := m.Info(t.Context())
		if err != nil || info.Held != held || info.Owner != s.Owner(m) || (info.TTL > 0) != held {
			t.Errorf("info %+v, %v, want held %v by %q", info, err, held, s.Owner(m))
		}
	}
	look(false)
	lease := locktest.MustLock(t, m)
	look(true)
	locktest.MustUnlock(t, lease)
	look(false)
	s.End()
}

func TestRL19_UnlockOfANonHolderIsRefused(t *testing.T) {
	s, _ := locktest.RealScene(t)
	c, other := s.Client(), s.Client()
	m := locktest.NewTestMutex(c, "report")
	unlocked := locktest.MustLock(t, m)
	locktest.MustUnlock(t, unlocked)
	expired := locktest.MustLock(t, m, watchlock.WithLeaseTime(20*time.Millisecond))
	<-expired.Done()

	holder, err := locktest.NewTestMutex(other, "report").TryLock(t.Context(), 5*time.Second, watchlock.WithLeaseTime(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	owner := s.Owner(m)
	for _, l := range []struct {
		name  string
		lease *watchlock.Lease
		want  error
	}{{"none", nil, watchlock.ErrNotHeld}, {"unlocked", unlocked, watchlock.ErrNotHeld}, {"expired", expired, watchlock.ErrLost}} {
		if err := l.lease.Unlock(t.Context()); !errors.Is(err, l.want) {
			t.Errorf("unlock of a lease that is %s: %v, want %v", l.name, err, l.want)
		}
	}
	// The release of the lost lease goes out in the background, with its owner.
	locktest.RedisAnswered(t, c)
	if now, ttl := s.Owner(m), s.TTL(m); now != owner || ttl < 50*time.Second {
		t.Errorf("the holder was %s with 1 min, now %s with %v", owner, now, ttl)
	}
	locktest.MustUnlock(t, holder)
	s.End()
}

func TestRL20_LockAndUnlockRepeat(t *testing.T) {
	s, _ := locktest.RealScene(t)
	m := locktest.NewTestMutex(s.Client(), "report")
	seen := map[string]bool{}
	for range 2 {
		lease := locktest.MustLock(t, m)
		seen[s.Owner(m)] = true
		locktest.MustUnlock(t, lease)
		if keys := s.Keys(); len(keys) > 0 {
			t.Fatalf("unlock left %q", keys)
		}
	}
	if len(seen) != 2 || seen[""] {
		t.Errorf("owners %v, want one for each turn", seen)
	}
	s.End()
}

func TestRL21_OneUnlockOfTwoKeepsOthersOut(t *testing.T) {
	s, _ := locktest.RealScene(t)
	m, other := locktest.NewTestMutex(s.Client(), "report"), locktest.NewTestMutex(s.Client(), "report")
	outer, err := m.TryLock(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := m.TryLock(outer.Context(t.Context()), 0)
	if err != nil {
		t.Fatalf("the holder's second try: %v", err)
	}
	locktest.MustUnlock(t, inner)
	locktest.RefusesNow(t, m)
	locktest.RefusesNow(t, other)
	if outer.Err() != nil {
		t.Errorf("after the inner unlock: %v", outer.Err())
	}
	locktest.MustUnlock(t, outer)
	grantsNow(t, m)
	grantsNow(t, other)
	s.End()
}
