package watchlock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// haunt lets the server have a lock with an owner that it should not have, as another
// server that missed its release would.
func haunt(v *redistest.Virtual, kind, key string, owner wire.Owner, ttl time.Duration) {
	if kind == "string" {
		_ = v.Mini().Set(key, owner.(string))
	} else {
		v.Mini().HSet(key, owner.(string), "1")
	}
	v.Mini().SetTTL(key, ttl)
}

func TestVirtualOwnWhoLetGoIsNotWaitedFor(t *testing.T) {
	eachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		loadAllScripts(t, v)
		w := redistest.NewWire()
		c := newTestClient(t, v.Client(w.Options()))
		knowsServer(t, c, kind)
		m := mutexOf(c, kind, "k")
		l := mustLock(t, m)
		owner := l.hold.burst.owner
		mustUnlock(t, l)
		// Another server answers from now on: connections are new, and nothing else tells.
		w.Cut()
		haunt(v, kind, "k", owner, 29*time.Second)
		start := time.Now()
		l, err := m.TryLock(context.Background(), 10*time.Second)
		if err != nil {
			t.Fatalf("%v after %v: its own client knows that it let go", err, time.Since(start))
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("it took %v", took)
		}
		mustUnlock(t, l)
	})
}

func TestVirtualAReleasedOwnerThatIsBackAfterAnOutageIsReleasedAgain(t *testing.T) {
	eachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		loadAllScripts(t, v)
		w := redistest.NewWire()
		c := newTestClient(t, v.Client(w.Options()))
		knowsServer(t, c, kind)
		l := mustLock(t, mutexOf(c, kind, "k"))
		owner := l.hold.burst.owner
		held := mustLock(t, mutexOf(c, kind, "held"))
		time.Sleep(time.Second) // its server has an ear
		mustUnlock(t, l)
		haunt(v, kind, "k", owner, 29*time.Second)
		w.Cut()
		time.Sleep(3 * time.Second)
		if v.Mini().Exists("k") {
			t.Error("it is still there, and nobody believes in it")
		}
		mustUnlock(t, held)
	})
}

func TestVirtualAConnectionHearsOfARestartSoonAfterTheFirstHoldThatLasts(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := newTestClient(t, v.Client())
		pinged := func(cmd redistest.Command) bool { return cmd.Name == "PING" }
		for range 3 { // of some that do not last: the watchdog may meet nothing that is held
			mustUnlock(t, mustLock(t, c.NewMutex("short")))
			synctest.Wait()
		}
		held := mustLock(t, c.NewMutex("k"))
		time.Sleep(keepAfter - time.Millisecond)
		if n := v.CountIf(pinged); n > 0 {
			t.Error("a connection was opened for a hold that is short so far")
		}
		time.Sleep(2 * time.Millisecond)
		if n := v.CountIf(pinged); n != 1 {
			t.Errorf("%d connections were opened", n)
		}
		mustUnlock(t, held)
	})
}

func TestVirtualALostLeaseIsNoGhost(t *testing.T) {
	eachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		loadAllScripts(t, v)
		w := redistest.NewWire()
		c := newTestClient(t, v.Client(w.Options()))
		knowsServer(t, c, kind)
		m := mutexOf(c, kind, "k")
		mustUnlock(t, mustLock(t, m)) // something of this name is remembered
		l := mustLock(t, m, WithLeaseTime(10*time.Second))
		owner := l.hold.burst.owner
		<-l.Done()
		synctest.Wait()
		haunt(v, kind, "k", owner, 20*time.Second) // its work may still be stopping
		w.Cut()
		if _, err := m.TryLock(context.Background(), 5*time.Second); !errors.Is(err, ErrNotAcquired) {
			t.Errorf("TryLock: %v", err)
		}
		if !v.Mini().Exists("k") {
			t.Error("a lock that was lost, and not unlocked, is released")
		}
	})
}

func TestVirtualWhatWasReleasedIsRememberedForALeaseAndNoMore(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v)
		for i := range 100 {
			mustUnlock(t, mustLock(t, c.NewMutex(fmt.Sprint("k", i))))
		}
		if n := c.ghosts.Count(); n != 100 {
			t.Errorf("%d are remembered, want 100", n)
		}
		time.Sleep(defaultWatchdogTimeout)
		if n := c.ghosts.Count(); n != 0 {
			t.Errorf("%d are remembered after a lease", n)
		}
		keys := c.NewMutex("k").keys
		const most = 10_000
		for range most + 100 {
			c.ghosts.Remember(wire.HashKind{}, &wire.Owned{Keys: &keys, Owner: c.newOwner(), Lease: time.Minute})
		}
		if n := c.ghosts.Count(); n != most {
			t.Errorf("%d are remembered, want %d", n, most)
		}
	})
}
