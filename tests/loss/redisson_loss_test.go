package loss_test

import (
	"errors"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestRL08_LockForcedOpenIsFreeForEveryHandle(t *testing.T) {
	free := func(t *testing.T, handles ...*watchlock.Mutex) {
		t.Helper()
		for _, m := range handles {
			if info, err := m.Info(t.Context()); err != nil || info.Held || info.Mine {
				t.Errorf("info %+v, %v, want free", info, err)
			}
		}
	}
	t.Run("the holder is told by the next renewal", func(t *testing.T) {
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			s := locktest.VirtualScene(t, v)
			c := s.Client()
			m := locktest.NewTestMutex(c, "report")
			start := time.Now()
			lease := locktest.MustLock(t, m)
			time.Sleep(3 * time.Second)
			s.Force(m)
			free(t, m, locktest.NewTestMutex(c, "report"), locktest.NewTestMutex(s.Client(), "report"))
			<-lease.Done()
			if at := time.Since(start); at != 10*time.Second {
				t.Errorf("told after %v, want 10 s", at)
			}
			if err := lease.Unlock(t.Context()); !errors.Is(err, watchlock.ErrLost) {
				t.Errorf("unlock: %v, want ErrLost", err)
			}
			free(t, m)
			s.HandsOver("report")
			s.End()
		})
	})
	t.Run("a holder with a waiter is told at once", func(t *testing.T) {
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			s := locktest.VirtualScene(t, v)
			m := locktest.NewTestMutex(s.Client(), "report")
			lease := locktest.MustLock(t, m)
			entered := make(chan *watchlock.Lease, 1)
			go func() {
				next := locktest.MustLock(t, m)
				if err := lease.Err(); !errors.Is(err, watchlock.ErrLost) {
					t.Errorf("the waiter is in, and the lease says %v", err)
				}
				entered <- next
			}()
			time.Sleep(3 * time.Second)
			forced := time.Now()
			s.Force(m)
			<-lease.Done()
			next := <-entered
			if took := time.Since(forced); took != 0 {
				t.Errorf("told after %v, want at once", took)
			}
			owner := s.Owner(m)
			if err := lease.Unlock(t.Context()); !errors.Is(err, watchlock.ErrLost) {
				t.Errorf("unlock: %v, want ErrLost", err)
			}
			time.Sleep(20 * time.Second)
			if next.Err() != nil || s.Owner(m) != owner {
				t.Errorf("the next holder's lease says %v, owner %q, was %q", next.Err(), s.Owner(m), owner)
			}
			locktest.MustUnlock(t, next)
			s.HandsOver("report")
			s.End()
		})
	})
	t.Run("unlock comes first", func(t *testing.T) {
		s, _ := locktest.RealScene(t)
		m, other := locktest.NewTestMutex(s.Client(), "report"), locktest.NewTestMutex(s.Client(), "report")
		lease := locktest.MustLock(t, m)
		s.Force(m)
		free(t, m, other)
		next := locktest.MustLock(t, other)
		if err := lease.Unlock(t.Context()); !errors.Is(err, watchlock.ErrLost) {
			t.Errorf("unlock: %v, want ErrLost", err)
		}
		locktest.RefusesNow(t, m)
		locktest.MustUnlock(t, next)
		free(t, m, other)
		s.End()
	})
}

func TestRL12_LocksOfAClosedClientExpire(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		s := locktest.VirtualScene(t, v)
		a, b := s.Client(), s.Client()
		m := locktest.NewTestMutex(a, "report")
		lease := locktest.MustLock(t, m)
		time.Sleep(9 * time.Second) // the first renewal falls into Close
		entered := make(chan time.Time, 1)
		go func() {
			next := locktest.MustLock(t, locktest.NewTestMutex(b, "report"))
			entered <- time.Now()
			locktest.MustUnlock(t, next)
		}()
		if err := a.Close(); err == nil {
			t.Error("Close did not say that a lock was left")
		}
		closed := time.Now()
		v.Reset()
		if ttl := s.TTL(m); ttl <= 0 || ttl > locktest.WatchdogTimeoutByDefault {
			t.Errorf("Close left a TTL of %v", ttl)
		}
		in := (<-entered).Sub(closed)
		if in <= 0 || in > locktest.WatchdogTimeoutByDefault+20*time.Millisecond {
			t.Errorf("the next holder was in %v after Close, want within one watchdog timeout", in)
		}
		if n := v.CountIf(locktest.Renews()); n != 0 {
			t.Errorf("%d renewals after Close", n)
		}
		if err := lease.Unlock(t.Context()); !errors.Is(err, watchlock.ErrClosed) {
			t.Errorf("unlock after Close: %v, want ErrClosed", err)
		}
		s.HandsOver("report")
		s.End()
	})
}
