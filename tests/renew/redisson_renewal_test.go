package renew_test

import (
	"errors"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// Tests named after WDnn state what Redisson's RedissonLockExpirationRenewalTest
// asserts.

func TestWD03_LockWorksAgainAfterAServerRestart(t *testing.T) {
	const timeout = time.Second
	s, server := locktest.RealScene(t)
	c := s.Client(watchlock.WithWatchdogTimeout(timeout))
	m := locktest.NewTestMutex(c, "report")

	// again holds the lock past two timeouts: only renewal can keep it.
	again := func() {
		t.Helper()
		for range 2 {
			lease, err := m.TryLock(t.Context(), 5*time.Second)
			if err != nil {
				t.Fatalf("after the restart: %v", err)
			}
			for end := time.Now().Add(2*timeout + timeout/10); time.Now().Before(end); {
				if lease.Err() != nil || s.TTL(m) <= 0 {
					t.Fatalf("not renewed after the restart: %v, TTL %v", lease.Err(), s.TTL(m))
				}
				<-time.After(10 * time.Millisecond)
			}
			locktest.MustUnlock(t, lease)
		}
	}
	lease := locktest.MustLock(t, m)
	server.Restart()
	if err := lease.Unlock(t.Context()); !errors.Is(err, watchlock.ErrLost) {
		t.Errorf("unlock after the restart: %v, want ErrLost", err)
	}
	again()

	// A holder that does not unlock is told by its next renewal, well before its
	// trust runs out by itself.
	slow := 3 * timeout
	lease = locktest.MustLock(t, locktest.NewTestMutex(s.Client(watchlock.WithWatchdogTimeout(slow)), "report"))
	server.Restart()
	trusted := lease.ExpiresAt()
	select {
	case <-lease.Done():
	case <-time.After(slow):
		t.Fatal("not told within a watchdog timeout")
	}
	if early := time.Until(trusted); early < slow/10 {
		t.Errorf("told %v before the trust ended, want by the renewal", early)
	}
	if err := lease.Err(); !errors.Is(err, watchlock.ErrLost) {
		t.Errorf("after the restart: %v, want ErrLost", err)
	}
	if err := lease.Unlock(t.Context()); !errors.Is(err, watchlock.ErrLost) {
		t.Errorf("unlock after the restart: %v, want ErrLost", err)
	}
	s.HandsOver("report")
	s.End()
}

func TestWD04_NextHolderAfterReentryIsRenewed(t *testing.T) {
	for _, order := range []struct {
		name string
		ends [2]int // which lease is unlocked first, and next
	}{{"inner first", [2]int{1, 0}}, {"outer first", [2]int{0, 1}}} {
		t.Run(order.name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				s := locktest.VirtualScene(t, v)
				m := locktest.NewTestMutex(s.Client(), "report")
				outer := locktest.MustLock(t, m)
				inner := locktest.MustReenter(t, m, outer)
				entered := make(chan *watchlock.Lease, 1)
				go func() { entered <- locktest.MustLock(t, m) }()
				time.Sleep(15 * time.Second)
				leases := [2]*watchlock.Lease{outer, inner}
				locktest.MustUnlock(t, leases[order.ends[0]])
				time.Sleep(40 * time.Second) // the hold that stays is renewed
				locktest.MustUnlock(t, leases[order.ends[1]])
				next := <-entered
				v.Reset()
				// Ten timeouts are 30 renewals; the TTL just before one is 20 s.
				for range 10 * 6 {
					time.Sleep(locktest.WatchdogTimeoutByDefault / 6)
					if ttl := s.TTL(m); ttl < locktest.WatchdogTimeoutByDefault*2/3 || next.Err() != nil {
						t.Fatalf("TTL %v, lease %v", ttl, next.Err())
					}
				}
				if n := v.CountIf(locktest.Renews()); n < 29 || n > 31 {
					t.Errorf("%d renewals in ten timeouts, want 30: one of the old holder's would be too many", n)
				}
				locktest.MustUnlock(t, next)
				s.HandsOver("report")
				s.End()
			})
		})
	}
}
