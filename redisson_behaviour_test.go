package watchlock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// Tests named after RLnn state what Redisson's RedissonLockTest asserts.

func TestRL05_InnerUnlocksLeaveTheLeaseTime(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		s := virtualScene(t, v)
		m := newTestMutex(s.client(), "report", WithLeaseTime(10*time.Second))
		leases := []*Lease{mustLock(t, m)}
		for range 2 {
			time.Sleep(500 * time.Millisecond)
			leases = append(leases, mustReenter(t, m, leases[len(leases)-1]))
			if ttl := s.ttl(m); ttl != 10*time.Second {
				t.Fatalf("an inner lock of 10 s left a TTL of %v", ttl)
			}
		}
		time.Sleep(300 * time.Millisecond)
		for _, inner := range []*Lease{leases[2], leases[1]} {
			mustUnlock(t, inner)
			if ttl := s.ttl(m); ttl != 9700*time.Millisecond {
				t.Errorf("an inner unlock after 300 ms left a TTL of %v, want 9.7 s", ttl)
			}
		}
		mustUnlock(t, leases[0])
		if ttl := s.ttl(m); ttl >= 0 {
			t.Errorf("the last unlock left the key, TTL %v", ttl)
		}
		s.handsOver("report")
		s.end()
	})
}

func TestRL10_LeaseTimeDoesNotLeakIntoTheNextLock(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		s := virtualScene(t, v)
		m := newTestMutex(s.client(), "report")
		for range 2 {
			for _, want := range []struct {
				ttl  time.Duration
				opts []LockOption
			}{
				{time.Hour, []LockOption{WithLeaseTime(time.Hour)}},
				{defaultWatchdogTimeout, nil},
			} {
				l := mustLock(t, m, want.opts...)
				if ttl := s.ttl(m); ttl != want.ttl {
					t.Errorf("TTL %v, want %v", ttl, want.ttl)
				}
				mustUnlock(t, l)
				if ttl := s.ttl(m); ttl >= 0 {
					t.Errorf("unlock left the key, TTL %v", ttl)
				}
			}
		}
		s.end()
	})
}

func TestRL13_HoldsAreCounted(t *testing.T) {
	s, _ := realScene(t)
	m := newTestMutex(s.client(), "report")
	holds := func(want int) {
		t.Helper()
		info, err := m.Info(t.Context())
		if err != nil || info.Holds != want || info.Held != (want > 0) || info.Mine != (want > 0) {
			t.Errorf("info %+v, %v, want %d holds", info, err, want)
		}
	}
	holds(0)
	outer := mustLock(t, m)
	holds(1)
	mustUnlock(t, outer)
	holds(0)
	outer = mustLock(t, m)
	inner := mustReenter(t, m, outer)
	holds(2)
	mustUnlock(t, inner)
	holds(1)
	mustUnlock(t, outer)
	holds(0)
	s.end()
}

// refusesNow fails unless m is held for a goroutine and a context of its own, in
// one attempt and in a wait.
func refusesNow(t *testing.T, m *Mutex) {
	t.Helper()
	for _, wait := range []time.Duration{0, 100 * time.Millisecond} {
		errs := make(chan error, 1)
		go func() {
			l, err := m.TryLock(context.Background(), wait)
			if err == nil {
				_ = l.Unlock(context.Background())
			}
			errs <- err
		}()
		if err := <-errs; !errors.Is(err, ErrNotAcquired) {
			t.Errorf("a try of %v on a held lock: %v, want ErrNotAcquired", wait, err)
		}
	}
}

// grantsNow fails unless one attempt on m, from a goroutine and a context of its
// own, gets the lock.
func grantsNow(t *testing.T, m *Mutex) {
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
	s, _ := realScene(t)
	c := s.client()
	m := newTestMutex(c, "report")
	lease := mustLock(t, m)
	owner := s.owner(m)
	// Neither through the same handle nor through one of its own.
	refusesNow(t, m)
	refusesNow(t, newTestMutex(c, "report"))
	if now := s.owner(m); now != owner || lease.Err() != nil {
		t.Errorf("the tries changed the owner from %s to %s, lease %v", owner, now, lease.Err())
	}
	mustUnlock(t, lease)
	grantsNow(t, m)
	grantsNow(t, newTestMutex(c, "report"))
	if err := lease.Err(); !errors.Is(err, ErrNotHeld) {
		t.Errorf("after another goroutine's turn the old lease says %v", err)
	}
	s.end()
}

func TestRL15_LeaseTellsWhetherItIsHeld(t *testing.T) {
	s, _ := realScene(t)
	m := newTestMutex(s.client(), "report")
	var lease *Lease
	if err := lease.Err(); !errors.Is(err, ErrNotHeld) {
		t.Errorf("before: %v, want ErrNotHeld", err)
	}
	lease = mustLock(t, m)
	ctx := lease.Context(t.Context())
	select {
	case <-lease.Done():
		t.Error("held, and Done is closed")
	default:
	}
	if lease.Err() != nil || ctx.Err() != nil {
		t.Errorf("held: %v, context %v", lease.Err(), ctx.Err())
	}
	mustUnlock(t, lease)
	<-lease.Done()
	if !errors.Is(lease.Err(), ErrNotHeld) || !errors.Is(context.Cause(ctx), ErrNotHeld) || ctx.Err() == nil {
		t.Errorf("after: %v, context %v with cause %v", lease.Err(), ctx.Err(), context.Cause(ctx))
	}
	s.end()
}

func TestRL16_AnotherGoroutineSeesTheLockTakenThenFree(t *testing.T) {
	s, _ := realScene(t)
	mine, other := newTestMutex(s.client(), "report"), newTestMutex(s.client(), "report")
	// Both a goroutine of this client and one of another look.
	look := func(held bool) {
		t.Helper()
		for _, m := range []*Mutex{mine, other} {
			infos, errs := make(chan LockInfo, 1), make(chan error, 1)
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
	lease := mustLock(t, mine)
	look(true)
	mustUnlock(t, lease)
	look(false)
	s.end()
}

func TestRL18_InfoSeesFreeTakenFree(t *testing.T) {
	s, _ := realScene(t)
	m := newTestMutex(s.client(), "report")
	look := func(held bool) {
		t.Helper()
		info, err := m.Info(t.Context())
		if err != nil || info.Held != held || info.Owner != s.owner(m) || (info.TTL > 0) != held {
			t.Errorf("info %+v, %v, want held %v by %q", info, err, held, s.owner(m))
		}
	}
	look(false)
	lease := mustLock(t, m)
	look(true)
	mustUnlock(t, lease)
	look(false)
	s.end()
}

func TestRL19_UnlockOfANonHolderIsRefused(t *testing.T) {
	s, _ := realScene(t)
	c, other := s.client(), s.client()
	m := newTestMutex(c, "report")
	unlocked := mustLock(t, m)
	mustUnlock(t, unlocked)
	expired := mustLock(t, m, WithLeaseTime(20*time.Millisecond))
	<-expired.Done()

	holder, err := newTestMutex(other, "report").TryLock(t.Context(), 5*time.Second, WithLeaseTime(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	owner := s.owner(m)
	for _, l := range []struct {
		name  string
		lease *Lease
		want  error
	}{{"none", nil, ErrNotHeld}, {"unlocked", unlocked, ErrNotHeld}, {"expired", expired, ErrLost}} {
		if err := l.lease.Unlock(t.Context()); !errors.Is(err, l.want) {
			t.Errorf("unlock of a lease that is %s: %v, want %v", l.name, err, l.want)
		}
	}
	// The release of the lost lease goes out in the background, with its owner.
	redisAnswered(t, c)
	if now, ttl := s.owner(m), s.ttl(m); now != owner || ttl < 50*time.Second {
		t.Errorf("the holder was %s with 1 min, now %s with %v", owner, now, ttl)
	}
	mustUnlock(t, holder)
	s.end()
}

// redisAnswered returns when the background releases of c are answered.
func redisAnswered(t *testing.T, c *Client) {
	t.Helper()
	eventually(t, 5*time.Second, "the background releases are answered", func() bool { return len(c.orphans.All()) == 0 })
}

func TestRL20_LockAndUnlockRepeat(t *testing.T) {
	s, _ := realScene(t)
	m := newTestMutex(s.client(), "report")
	seen := map[string]bool{}
	for range 2 {
		lease := mustLock(t, m)
		seen[s.owner(m)] = true
		mustUnlock(t, lease)
		if keys := s.keys(); len(keys) > 0 {
			t.Fatalf("unlock left %q", keys)
		}
	}
	if len(seen) != 2 || seen[""] {
		t.Errorf("owners %v, want one for each turn", seen)
	}
	s.end()
}

func TestRL21_OneUnlockOfTwoKeepsOthersOut(t *testing.T) {
	s, _ := realScene(t)
	m, other := newTestMutex(s.client(), "report"), newTestMutex(s.client(), "report")
	outer, err := m.TryLock(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := m.TryLock(outer.Context(t.Context()), 0)
	if err != nil {
		t.Fatalf("the holder's second try: %v", err)
	}
	mustUnlock(t, inner)
	refusesNow(t, m)
	refusesNow(t, other)
	if outer.Err() != nil {
		t.Errorf("after the inner unlock: %v", outer.Err())
	}
	mustUnlock(t, outer)
	grantsNow(t, m)
	grantsNow(t, other)
	s.end()
}
