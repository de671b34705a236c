package interop

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// mustBeTold returns when the lease has ended, which is by a loss.
func mustBeTold(t testing.TB, l *watchlock.Lease) time.Time {
	t.Helper()
	select {
	case <-l.Done():
	case <-time.After(replyWait):
		t.Fatalf("the holder in Go has not been told for %v", replyWait)
	}
	at := time.Now()
	if err := l.Err(); !errors.Is(err, watchlock.ErrLost) {
		t.Errorf("Err after forceUnlock: %v", err)
	}
	if err := context.Cause(l.Context(t.Context())); !errors.Is(err, watchlock.ErrLost) {
		t.Errorf("the cause of its context after forceUnlock: %v", err)
	}
	if err := l.Unlock(t.Context()); !errors.Is(err, watchlock.ErrLost) {
		t.Errorf("Unlock after forceUnlock: %v", err)
	}
	return at
}

func TestTheJVMsForceUnlockTellsAHolderInGoWithWaitersAtOnce(t *testing.T) {
	onEachPeer(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		c, peer := newClient(t, s), j.open(t, s)
		warm(t, s, peer, c.NewMutex("warm"))
		m := c.NewMutex("order:1")
		lease := mustLock(t, m)
		entered := asleep(t, s, "order:1", 0, func() <-chan entry { return startLock(t, m) })
		forced := time.Now()
		mustBe(t, peer, true, "forceUnlock", "main", "order:1")
		if told := mustBeTold(t, lease).Sub(forced); told > messageWake {
			t.Errorf("the holder was told after %v, want at most %v", told, messageWake)
		}
		e := mustEnter(t, entered)
		soon(t, "Go", e.at.Sub(forced))
		mustUnlock(t, e.lease)
		mustBe(t, peer, false, "forceUnlock", "main", "order:1")
	})
}

func TestTheJVMsForceUnlockTellsAHolderInGoAtTheNextRenewal(t *testing.T) {
	const timeout = 3 * time.Second
	onEachPeerAtOnce(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		m, peer := newClient(t, s, watchlock.WithWatchdogTimeout(timeout)).NewMutex("order:1"), j.open(t, s)
		lease := mustLock(t, m)
		forced := time.Now()
		mustBe(t, peer, true, "forceUnlock", "main", "order:1")
		if told := mustBeTold(t, lease).Sub(forced); told > timeout/3+500*time.Millisecond {
			t.Errorf("the holder was told after %v, want at most a third of %v", told, timeout)
		}
		mustBe(t, peer, true, "tryLock", "main", "order:1")
		peer.must("unlock", "main", "order:1")
	})
}

func TestGosForceUnlockFreesALockOfTheJVMAndWakesEveryWaiter(t *testing.T) {
	onEachPeer(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		c, peer := newClient(t, s), j.open(t, s)
		warm(t, s, peer, c.NewMutex("warm"))
		m := c.NewMutex("order:1")
		force := func() time.Time {
			at := time.Now()
			if err := m.ForceUnlock(t.Context()); err != nil {
				t.Fatalf("ForceUnlock: %v", err)
			}
			return at
		}

		peer.must("lock", "main", "order:1")
		entered := asleep(t, s, "order:1", 1, func() <-chan entry { return startLock(t, m) })
		forced := force()
		e := mustEnter(t, entered)
		soon(t, "Go", e.at.Sub(forced))
		before := s.Client().HGetAll(t.Context(), "order:1").Val()
		mustRaise(t, peer, notHeldOnJVM, "unlock", "main", "order:1")
		if after := s.Client().HGetAll(t.Context(), "order:1").Val(); onlyField(before) != onlyField(after) {
			t.Errorf("the JVM's unlock changed %v to %v", before, after)
		}
		mustUnlock(t, e.lease)

		peer.must("lock", "main", "order:1")
		waiting := asleep(t, s, "order:1", 2, func() <-chan reply { return peer.start("lock", "other", "order:1") })
		forced = force()
		r := await(t, waiting)
		value[any](t, r)
		soon(t, "the JVM", r.ended().Sub(forced))
		mustRaise(t, peer, notHeldOnJVM, "unlock", "main", "order:1")
		mustBe(t, peer, true, "isHeldByCurrentThread", "other", "order:1")
		peer.must("unlock", "other", "order:1")
		if err := m.ForceUnlock(t.Context()); !errors.Is(err, watchlock.ErrNotHeld) {
			t.Errorf("ForceUnlock of a free lock: %v", err)
		}
	})
}
