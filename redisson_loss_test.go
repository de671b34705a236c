package watchlock

import (
	"errors"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestRL08_LockForcedOpenIsFreeForEveryHandle(t *testing.T) {
	free := func(t *testing.T, handles ...*Mutex) {
		t.Helper()
		for _, m := range handles {
			if info, err := m.Info(t.Context()); err != nil || info.Held || info.Mine {
				t.Errorf("info %+v, %v, want free", info, err)
			}
		}
	}
	t.Run("the holder is told by the next renewal", func(t *testing.T) {
		inBubble(t, func(t *testing.T, v *redistest.Virtual) {
			s := virtualScene(t, v)
			c := s.client()
			m := newTestMutex(c, "report")
			start := time.Now()
			lease := mustLock(t, m)
			time.Sleep(3 * time.Second)
			s.force(m)
			free(t, m, newTestMutex(c, "report"), newTestMutex(s.client(), "report"))
			<-lease.Done()
			if at := time.Since(start); at != 10*time.Second {
				t.Errorf("told after %v, want 10 s", at)
			}
			if err := lease.Unlock(t.Context()); !errors.Is(err, ErrLost) {
				t.Errorf("unlock: %v, want ErrLost", err)
			}
			free(t, m)
			s.handsOver("report")
			s.end()
		})
	})
	t.Run("a holder with a waiter is told at once", func(t *testing.T) {
		inBubble(t, func(t *testing.T, v *redistest.Virtual) {
			s := virtualScene(t, v)
			m := newTestMutex(s.client(), "report")
			lease := mustLock(t, m)
			entered := make(chan *Lease, 1)
			go func() {
				next := mustLock(t, m)
				if err := lease.Err(); !errors.Is(err, ErrLost) {
					t.Errorf("the waiter is in, and the lease says %v", err)
				}
				entered <- next
			}()
			time.Sleep(3 * time.Second)
			forced := time.Now()
			s.force(m)
			<-lease.Done()
			next := <-entered
			if took := time.Since(forced); took != 0 {
				t.Errorf("told after %v, want at once", took)
			}
			owner := s.owner(m)
			if err := lease.Unlock(t.Context()); !errors.Is(err, ErrLost) {
				t.Errorf("unlock: %v, want ErrLost", err)
			}
			time.Sleep(20 * time.Second)
			if next.Err() != nil || s.owner(m) != owner {
				t.Errorf("the next holder's lease says %v, owner %q, was %q", next.Err(), s.owner(m), owner)
			}
			mustUnlock(t, next)
			s.handsOver("report")
			s.end()
		})
	})
	t.Run("unlock comes first", func(t *testing.T) {
		s, _ := realScene(t)
		m, other := newTestMutex(s.client(), "report"), newTestMutex(s.client(), "report")
		lease := mustLock(t, m)
		s.force(m)
		free(t, m, other)
		next := mustLock(t, other)
		if err := lease.Unlock(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("unlock: %v, want ErrLost", err)
		}
		refusesNow(t, m)
		mustUnlock(t, next)
		free(t, m, other)
		s.end()
	})
}

func TestRL12_LocksOfAClosedClientExpire(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		s := virtualScene(t, v)
		a, b := s.client(), s.client()
		m := newTestMutex(a, "report")
		lease := mustLock(t, m)
		time.Sleep(9 * time.Second) // the first renewal falls into Close
		entered := make(chan time.Time, 1)
		go func() {
			next := mustLock(t, newTestMutex(b, "report"))
			entered <- time.Now()
			mustUnlock(t, next)
		}()
		if err := a.Close(); err == nil {
			t.Error("Close did not say that a lock was left")
		}
		closed := time.Now()
		v.Reset()
		if ttl := s.ttl(m); ttl <= 0 || ttl > defaultWatchdogTimeout {
			t.Errorf("Close left a TTL of %v", ttl)
		}
		in := (<-entered).Sub(closed)
		if in <= 0 || in > defaultWatchdogTimeout+20*time.Millisecond {
			t.Errorf("the next holder was in %v after Close, want within one watchdog timeout", in)
		}
		if n := v.CountIf(renews()); n != 0 {
			t.Errorf("%d renewals after Close", n)
		}
		if err := lease.Unlock(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("unlock after Close: %v, want ErrClosed", err)
		}
		s.handsOver("report")
		s.end()
	})
}
