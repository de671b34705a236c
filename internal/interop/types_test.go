package interop

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func formatted(n int64) string { return strconv.FormatInt(n, 10) }

// mustBeWrongType fails the test unless each of what a lock can be asked is
// refused because the key holds something else, and the key stays what it is.
func mustBeWrongType(t *testing.T, s *redistest.Server, key string, tries map[string]func() error) {
	t.Helper()
	check := unchanged(t, s, key)
	ttl := s.Client().PTTL(t.Context(), key).Val()
	for what, try := range tries {
		err := try()
		var locked *watchlock.LockError
		if !errors.Is(err, watchlock.ErrWrongType) || !errors.As(err, &locked) || locked.Name != key {
			t.Errorf("%s: %v, want ErrWrongType for %q", what, err, key)
		}
		if errors.Is(err, watchlock.ErrNotAcquired) || watchlock.IsUnavailable(err) {
			t.Errorf("%s looks as if another try could help: %v", what, err)
		}
		check(what)
	}
	if now := s.Client().PTTL(t.Context(), key).Val(); now > ttl {
		t.Errorf("the TTL of %q was %v, is %v", key, ttl, now)
	}
}

func triesOf(t *testing.T, m *watchlock.Mutex) map[string]func() error {
	ctx := t.Context()
	return map[string]func() error{
		"Lock":        func() error { _, err := m.Lock(ctx); return err },
		"TryLock":     func() error { _, err := m.TryLock(ctx, 0); return err },
		"a wait":      func() error { _, err := m.TryLock(ctx, time.Second); return err },
		"Info":        func() error { _, err := m.Info(ctx); return err },
		"ForceUnlock": func() error { return m.ForceUnlock(ctx) },
	}
}

func triesOfFenced(t *testing.T, m *watchlock.FencedMutex) map[string]func() error {
	ctx := t.Context()
	return map[string]func() error{
		"fenced Lock":        func() error { _, err := m.Lock(ctx); return err },
		"fenced TryLock":     func() error { _, err := m.TryLock(ctx, time.Second); return err },
		"fenced Info":        func() error { _, err := m.Info(ctx); return err },
		"fenced ForceUnlock": func() error { return m.ForceUnlock(ctx) },
	}
}

func TestBothFailWithAReasonOnALockOfTheStringFormAndChangeNothing(t *testing.T) {
	onEachPeerAtOnce(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		c, peer := newClient(t, s), j.open(t, s)
		holder := newClient(t, s).NewSetNXMutex("order:1")
		lease := mustLock(t, holder, watchlock.WithLeaseTime(time.Minute))
		mustBeWrongType(t, s, "order:1", triesOf(t, c.NewMutex("order:1")))
		mustBeWrongType(t, s, "order:1", triesOfFenced(t, c.NewFencedMutex("order:1")))

		check := unchanged(t, s, "order:1")
		for _, fenced := range []bool{false, true} {
			for _, op := range []string{"lock", "lockInterruptibly", "tryLock", "unlock", "isHeldByCurrentThread"} {
				r := peer.call(op, "main", "order:1", "fenced", fenced, "wait", 1000)
				if op == "isHeldByCurrentThread" && r.OK && string(r.Value) == "false" {
					continue
				}
				if r.OK || !strings.Contains(r.Message, "WRONGTYPE") {
					t.Errorf("the JVM's %s, fenced %v: ok %v %s, %s: %s, want WRONGTYPE", op, fenced, r.OK, r.Value, r.Error, r.Message)
				}
				check("the JVM's " + op)
			}
		}
		if exists(t, s, tokenCounter) {
			t.Error("a token was given out")
		}
		if err := lease.Err(); err != nil {
			t.Errorf("Err of the holder: %v", err)
		}
		mustUnlock(t, lease)

		// Free again, the name is anybody's.
		peer.must("lock", "main", "order:1")
		peer.must("unlock", "main", "order:1")
	})
}

func TestTheStringFormFailsWithAReasonOnALockThatTheJVMHoldsAndChangesNothing(t *testing.T) {
	onEachPeerAtOnce(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		c, peer := newClient(t, s), j.open(t, s)
		for _, fenced := range []bool{false, true} {
			peer.must("lock", "main", "order:1", "fenced", fenced)
			mustBeWrongType(t, s, "order:1", triesOf(t, c.NewSetNXMutex("order:1")))
			mustBe(t, peer, true, "isHeldByCurrentThread", "main", "order:1", "fenced", fenced)
			peer.must("unlock", "main", "order:1", "fenced", fenced)
		}
	})
}

// All who share a name must use the fenced form: a holder of the plain one is
// excluded, but what it writes is not.
func TestAFencedLockAndAPlainOneOfTheOtherSideExcludeEachOtherAndThePlainTakesNoToken(t *testing.T) {
	onEachPeerAtOnce(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		ctx := t.Context()
		c, peer := newClient(t, s), j.open(t, s)
		plain, fenced := c.NewMutex("order:1"), c.NewFencedMutex("order:1")

		// Fenced in Go, plain on the JVM.
		lease, err := fenced.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		mustBe(t, peer, false, "tryLock", "main", "order:1")
		if err := lease.Unlock(ctx); err != nil {
			t.Errorf("Unlock: %v", err)
		}
		peer.must("lock", "main", "order:1")
		if _, err := fenced.TryLock(ctx, 0); !errors.Is(err, watchlock.ErrNotAcquired) {
			t.Errorf("TryLock of the fenced lock while the JVM holds the plain one: %v", err)
		}
		counterIs(t, s, lease.Token(), "a plain hold of the JVM")
		peer.must("unlock", "main", "order:1")

		// Fenced on the JVM, plain in Go.
		token := value[int64](t, peer.must("lockAndGetToken", "main", "order:1"))
		if token <= lease.Token() {
			t.Errorf("the JVM has the token %d after %d", token, lease.Token())
		}
		if _, err := plain.TryLock(ctx, 0); !errors.Is(err, watchlock.ErrNotAcquired) {
			t.Errorf("TryLock of the plain lock while the JVM holds the fenced one: %v", err)
		}
		peer.must("unlock", "main", "order:1", "fenced", true)
		held := mustLock(t, plain)
		mustBe(t, peer, false, "tryLock", "main", "order:1", "fenced", true)
		counterIs(t, s, token, "a plain hold in Go")
		mustUnlock(t, held)
	})
}

func counterIs(t *testing.T, s *redistest.Server, want int64, after string) {
	t.Helper()
	if got := do(t, s, "GET", tokenCounter); got != formatted(want) {
		t.Errorf("after %s the counter is %v, want %d", after, got, want)
	}
}
