package interop

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

const (
	// foreignPoll is how long a waiter for a string key may sleep when the holder
	// publishes nothing: 500 ms, give or take a tenth.
	foreignPoll = 550 * time.Millisecond
	nestName    = "Nest 11, ioredis 5"
	slack       = 250 * time.Millisecond // for two cores with much to do
)

// onEachFamilyWithNest holds a conversation with a server and a Nest service of its
// own on each family, side by side: these tests wait more than they work.
func onEachFamilyWithNest(t *testing.T, conversation string, f func(t *testing.T, s *redistest.Server, n *nest, sec section)) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		tell(t, conversation, string(s.Family()), nestName)
		sec := newSection(t)
		f(t, s, startNest(t, s, sec), sec)
	})
}

// mustShip posts an order and checks the status of the answer.
func mustShip(t *testing.T, n *nest, id string, want int) {
	t.Helper()
	if status, _, err := n.ship(t.Context(), id, 0, time.Minute); status != want || err != nil {
		t.Fatalf("status %d, %v, want %d", status, err, want)
	}
}

func TestNestAnswersConflictForAsLongAsGoHolds(t *testing.T) {
	onEachFamilyWithNest(t, "string form: Go holds", func(t *testing.T, s *redistest.Server, n *nest, sec section) {
		const ttl = 600 * time.Millisecond
		m := newStringClient(t, s, watchlock.WithWatchdogTimeout(ttl)).NewSetNXMutex(orderLock("1"))
		mustShip(t, n, "1", http.StatusCreated)
		lease, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for began := time.Now(); time.Since(began) < 4*ttl; time.Sleep(10 * time.Millisecond) {
			mustShip(t, n, "1", http.StatusConflict)
		}
		mustShip(t, n, "2", http.StatusCreated)
		if err := lease.Unlock(t.Context()); err != nil {
			t.Errorf("Unlock: %v", err)
		}
		mustShip(t, n, "1", http.StatusCreated)
		sec.check(t, 3)
	})
}

func TestGoIsRefusedWhileNestHoldsAndEntersSoonAfter(t *testing.T) {
	onEachFamilyWithNest(t, "string form: the peer holds, Go waits", func(t *testing.T, s *redistest.Server, n *nest, sec section) {
		const hold = 3 * time.Second // a waiter that does not cap its polls sleeps longer by then
		ctx := t.Context()
		m := newStringClient(t, s).NewSetNXMutex(orderLock("1"))
		answer := n.startShipping(ctx, s, "1", hold, time.Minute)

		info, err := m.Info(ctx)
		if token := do(t, s, "GET", m.Name()); err != nil || !info.Held || info.Mine || info.Owner != token || info.TTL < 50*time.Second || info.TTL > time.Minute {
			t.Errorf("Info: %+v, %v, the token is %v", info, err, token)
		}
		for _, wait := range []time.Duration{0, 700 * time.Millisecond} {
			began := time.Now()
			_, err := m.TryLock(ctx, wait)
			var refused *watchlock.LockError
			if !errors.Is(err, watchlock.ErrNotAcquired) || !errors.As(err, &refused) || refused.TTL < 50*time.Second || refused.TTL > time.Minute {
				t.Errorf("TryLock: %v", err)
			}
			if took := time.Since(began); took < wait || took > wait+slack {
				t.Errorf("TryLock for %v took %v", wait, took)
			}
		}
		err = m.Do(ctx, func(context.Context) error {
			entered := time.Now()
			shipped := <-answer
			if shipped.status != http.StatusCreated || shipped.shipped != 1 || shipped.err != nil {
				t.Errorf("the shipment: %+v", shipped)
			}
			late := entered.Sub(shipped.answered)
			if late > foreignPoll+slack {
				t.Errorf("entered %v after the release", late)
			}
			woke(t, late)
			return sec.run("watchlock")
		})
		if err != nil {
			t.Errorf("Do: %v", err)
		}
		sec.check(t, 2)
	})
}

func TestEveryPeerInGoIsRefusedUntilNestsJobEnds(t *testing.T) {
	onEachFamilyWithNest(t, "string form: the peer holds, three try", func(t *testing.T, s *redistest.Server, n *nest, _ section) {
		ctx := t.Context()
		reply := n.start("hold", "k", nestArgs{"ms": 500})
		waitUntil(t, "the Nest service holds the lock", func() bool { return exists(t, s, "k") })
		check := unchanged(t, s, "k")
		for _, p := range stringPeers(t, s) {
			if _, err := p.lock(ctx, "k", time.Minute); !errors.Is(err, errBusy) {
				t.Errorf("%s: %v", p.name, err)
			}
			check(p.name)
		}
		if r := n.await(reply); !r.OK {
			t.Errorf("the job: %+v", r)
		}
		for _, p := range stringPeers(t, s) {
			if err := withLock(ctx, p, "k", time.Minute, func() error { return nil }); err != nil {
				t.Errorf("%s after the job: %v", p.name, err)
			}
		}
	})
}

func TestNestEntersAfterGosLeaseEndsAndGosLateUnlockDeletesNothing(t *testing.T) {
	onEachFamilyWithNest(t, "string form: Go's lease ends", func(t *testing.T, s *redistest.Server, n *nest, sec section) {
		ctx := t.Context()
		m := newStringClient(t, s).NewSetNXMutex(orderLock("1"))
		mustShip(t, n, "2", http.StatusCreated) // the first request takes longest
		lease, err := m.Lock(ctx, watchlock.WithLeaseTime(2*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		mustShip(t, n, "1", http.StatusConflict)
		<-lease.Done() // before the key's end
		waitUntil(t, "the key's end", func() bool { return !exists(t, s, m.Name()) })
		answer := n.startShipping(ctx, s, "1", time.Second, time.Minute)
		check := unchanged(t, s, m.Name())
		if err := lease.Unlock(ctx); !errors.Is(err, watchlock.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		if err := lease.Unlock(ctx); err == nil {
			t.Error("Unlock again: nil")
		}
		check("after Go's late Unlock")
		if a := <-answer; a.status != http.StatusCreated || a.err != nil {
			t.Errorf("the shipment: %+v", a)
		}
		if exists(t, s, m.Name()) {
			t.Error("the key is left")
		}
		sec.check(t, 2)
	})
}

func TestGoEntersBesideANestServiceThatStoodStillAndItsReleaseTouchesNothing(t *testing.T) {
	onEachFamilyWithNest(t, "string form: the peer stands still past its TTL", func(t *testing.T, s *redistest.Server, n *nest, _ section) {
		const ttl, still = 400 * time.Millisecond, 2 * time.Second
		ctx := t.Context()
		m := newStringClient(t, s).NewSetNXMutex("k")
		reply := n.start("pause", m.Name(), nestArgs{"ttl": ttl.Milliseconds(), "ms": still.Milliseconds()})
		waitUntil(t, "the Nest service holds the lock", func() bool { return exists(t, s, m.Name()) })
		began := time.Now()
		lease, err := m.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		woke(t, time.Since(began)-ttl)
		if took := time.Since(began); took > ttl+foreignPoll+slack {
			t.Errorf("entered %v after a grant of %v", took, ttl)
		}
		select {
		case r := <-reply:
			t.Errorf("the service had not stood still for long enough: %+v", r)
		default:
		}
		check := unchanged(t, s, m.Name())
		if r := n.await(reply); !r.OK { // the recipe does not notice that it was not alone
			t.Errorf("the service's section: %+v", r)
		}
		check("after the service's late release")
		if err := errors.Join(lease.Err(), lease.Unlock(ctx)); err != nil {
			t.Errorf("Go's lease: %v", err)
		}
	})
}

func TestGoEntersAfterTheTTLOfANestServiceThatDied(t *testing.T) {
	for name, death := range map[string]func(n *nest){
		"is killed": (*nest).kill,
		"dies":      func(n *nest) { n.start("die", "", nil); <-n.exited },
	} {
		t.Run(name, func(t *testing.T) {
			onEachFamilyWithNest(t, "string form: the peer "+name, func(t *testing.T, s *redistest.Server, n *nest, sec section) {
				const ttl = 2 * time.Second
				ctx := t.Context()
				m := newStringClient(t, s).NewSetNXMutex(orderLock("1"))
				answer := n.startShipping(ctx, s, "1", time.Minute, ttl)
				left := time.Duration(do(t, s, "PTTL", m.Name()).(int64)) * time.Millisecond
				end := time.Now().Add(left)
				death(n)
				if a := <-answer; a.err == nil {
					t.Errorf("a service that died answered: %+v", a)
				}
				if _, err := m.TryLock(ctx, 0); !errors.Is(err, watchlock.ErrNotAcquired) {
					t.Errorf("TryLock within the TTL: %v", err)
				}
				lease, err := m.Lock(ctx)
				if err != nil {
					t.Fatal(err)
				}
				// The TTL was known to the ms, and was read a little earlier.
				late := time.Since(end)
				if late < -slack || late > foreignPoll+slack {
					t.Errorf("entered %v after the key's end", late)
				}
				woke(t, late)
				if err := lease.Unlock(ctx); err != nil {
					t.Errorf("Unlock: %v", err)
				}
				sec.check(t, 0)
			})
		})
	}
}

func TestForceUnlockTakesTheLockFromANestServiceOnce(t *testing.T) {
	onEachFamilyWithNest(t, "string form: forced", func(t *testing.T, s *redistest.Server, n *nest, _ section) {
		ctx := t.Context()
		m := newStringClient(t, s).NewSetNXMutex("k")
		token, err := n.lock(m.Name(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.ForceUnlock(ctx); err != nil {
			t.Errorf("ForceUnlock: %v", err)
		}
		lease, err := m.TryLock(ctx, 0)
		if err != nil {
			t.Fatal(err)
		}
		check := unchanged(t, s, m.Name())
		if mine, err := n.unlock(m.Name(), token); mine || err != nil {
			t.Errorf("the service released %v, %v", mine, err)
		}
		check("after the service's release")
		if err := errors.Join(lease.Err(), lease.Unlock(ctx)); err != nil {
			t.Errorf("Go's lease: %v", err)
		}
		if err := m.ForceUnlock(ctx); !errors.Is(err, watchlock.ErrNotHeld) {
			t.Errorf("ForceUnlock of a free lock: %v", err)
		}
	})
}

func TestALockOfTheOtherFormIsAnErrorAndNothingIsDeleted(t *testing.T) {
	onEachFamilyWithNest(t, "string form: a lock of the other form", func(t *testing.T, s *redistest.Server, n *nest, _ section) {
		ctx := t.Context()
		c := newStringClient(t, s)
		m, fenced := c.NewMutex("k"), c.NewFencedMutex("k")
		token, err := n.lock("k", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		check := unchanged(t, s, "k")
		for what, try := range map[string]func() error{
			"Mutex.Lock":              func() error { _, err := m.Lock(ctx); return err },
			"Mutex.TryLock":           func() error { _, err := m.TryLock(ctx, time.Second); return err },
			"Mutex.Info":              func() error { _, err := m.Info(ctx); return err },
			"Mutex.ForceUnlock":       func() error { return m.ForceUnlock(ctx) },
			"FencedMutex.Lock":        func() error { _, err := fenced.Lock(ctx); return err },
			"FencedMutex.TryLock":     func() error { _, err := fenced.TryLock(ctx, time.Second); return err },
			"FencedMutex.Info":        func() error { _, err := fenced.Info(ctx); return err },
			"FencedMutex.ForceUnlock": func() error { return fenced.ForceUnlock(ctx) },
		} {
			if err := try(); !errors.Is(err, watchlock.ErrWrongType) || errors.Is(err, watchlock.ErrNotAcquired) {
				t.Errorf("%s on the service's key: %v", what, err)
			}
			check(what)
		}
		if mine, err := n.unlock("k", token); !mine || err != nil {
			t.Errorf("the service released %v, %v", mine, err)
		}

		// The recipe sees a lock of any other form as busy.
		lease, err := m.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		check = unchanged(t, s, "k")
		if _, err := n.lock("k", time.Minute); !errors.Is(err, errBusy) {
			t.Errorf("the service on Go's key: %v", err)
		}
		check("after the service's try")
		if err := lease.Unlock(ctx); err != nil {
			t.Errorf("Unlock: %v", err)
		}
	})
}
