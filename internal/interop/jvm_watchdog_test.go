package interop

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestGoDoesNotEnterWhileTheJVMHoldsByAReentry(t *testing.T) {
	onEachPeer(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		c, peer := newClient(t, s), j.open(t, s)
		warm(t, s, peer, c.NewMutex("warm"))
		m := c.NewMutex("order:1")
		for range 3 {
			peer.must("lock", "main", "order:1")
		}
		entered := asleep(t, s, "order:1", 1, func() <-chan entry { return startLock(t, m) })
		for left := 2; left > 0; left-- {
			peer.must("unlock", "main", "order:1")
			mustBe(t, peer, left, "getHoldCount", "main", "order:1")
			if _, err := m.TryLock(t.Context(), 300*time.Millisecond); !errors.Is(err, watchlock.ErrNotAcquired) {
				t.Errorf("TryLock with %d holds left: %v", left, err)
			}
			mustStillWait(t, entered, "Go")
		}
		released := time.Now()
		peer.must("unlock", "main", "order:1")
		e := mustEnter(t, entered)
		soon(t, "Go", e.at.Sub(released))
		mustUnlock(t, e.lease)
	})
}

func TestTheJVMDoesNotEnterWhileGoHoldsByAReentry(t *testing.T) {
	onEachPeer(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		c, peer := newClient(t, s), j.open(t, s)
		warm(t, s, peer, c.NewMutex("warm"))
		m := c.NewMutex("order:1")
		outer := mustLock(t, m)
		inner, err := m.Lock(outer.Context(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		waiting := asleep(t, s, "order:1", 2, func() <-chan reply { return peer.start("lock", "main", "order:1") })
		mustUnlock(t, inner)
		mustBe(t, peer, false, "tryLock", "other", "order:1", "wait", 300)
		mustStillWait(t, waiting, "the JVM")
		released := time.Now()
		mustUnlock(t, outer)
		r := await(t, waiting)
		value[any](t, r)
		soon(t, "the JVM", r.ended().Sub(released))
		peer.must("unlock", "main", "order:1")
	})
}

// Both kinds of watchdog have a lock to keep, and both kinds of waiter ask for
// it, for four timeouts.
func TestNeitherWatchdogLetsGo(t *testing.T) {
	const timeout, held = 2 * time.Second, 8 * time.Second
	onEachPeerAtOnce(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		c := newClient(t, s, watchlock.WithWatchdogTimeout(timeout))
		peer := j.open(t, s, jvmOptions{watchdog: timeout})
		lease := mustLock(t, c.NewMutex("go"))
		peer.must("lock", "main", "jvm")
		owner := peer.owner("main")

		refused := peer.start("tryLock", "other", "go", "wait", held.Milliseconds())
		if _, err := c.NewMutex("jvm").TryLock(t.Context(), held); !errors.Is(err, watchlock.ErrNotAcquired) {
			t.Errorf("TryLock while the JVM's watchdog renews: %v", err)
		}
		if value[bool](t, await(t, refused)) {
			t.Error("tryLock succeeds while Go's watchdog renews")
		}

		if err := lease.Err(); err != nil {
			t.Errorf("Go's lease: %v", err)
		}
		mustUnlock(t, lease)
		if got := onlyField(s.Client().HGetAll(context.Background(), "jvm").Val()); got != owner {
			t.Errorf("the JVM's lock is held by %q, want %q", got, owner)
		}
		mustBe(t, peer, true, "isHeldByCurrentThread", "main", "jvm")
		peer.must("unlock", "main", "jvm")
	})
}
