package interop

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/bsm/redislock"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

const sections = 2000 // in full, a twentieth by default

func fullCount(n int) int {
	if os.Getenv("WATCHLOCK_FULL") != "" {
		return n
	}
	return n / 20
}

// newMutex makes a lock of the string form, on a client of its own.
func newMutex(t *testing.T, s *redistest.Server) *watchlock.Mutex {
	t.Helper()
	c, err := watchlock.New(s.Client(), watchlock.WithMaxPollInterval(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.NewSetNXMutex("k")
}

// patient makes redislock wait for as long as it takes.
func patient() *redislock.Options {
	return &redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Millisecond)}
}

func TestTheStringFormAndRedislockExcludeEachOther(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		each := fullCount(sections) / 4
		n, inside := 0, 0 // only the lock protects them
		section := func() {
			inside++
			if inside != 1 {
				t.Errorf("%d inside", inside)
			}
			n++
			inside--
		}
		var all sync.WaitGroup
		for range 2 {
			m, peer := newMutex(t, s), redislock.New(s.Client())
			all.Go(func() {
				for range each {
					if err := m.Do(ctx, func(context.Context) error { section(); return nil }); err != nil {
						t.Errorf("Do: %v", err)
					}
				}
			})
			all.Go(func() {
				for range each {
					lock, err := peer.Obtain(ctx, "k", 30*time.Second, patient())
					if err != nil {
						t.Errorf("Obtain: %v", err)
						return
					}
					section()
					if err := lock.Release(ctx); err != nil {
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
		all.Wait()
		if n != 4*each {
			t.Errorf("the unprotected counter is %d, want %d", n, 4*each)
		}
		if left := s.Client().Exists(ctx, "k").Val(); left != 0 {
			t.Error("the key is left")
		}
	})
}

func TestNeitherDeletesNorRenewsTheOthersKey(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb := t.Context(), s.Client()
		m, peer := newMutex(t, s), redislock.New(rdb)

		// Ours ran out, theirs is held.
		ours, err := m.Lock(ctx, watchlock.WithLeaseTime(20*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := peer.Obtain(ctx, "k", time.Minute, patient())
		if err != nil {
			t.Fatal(err)
		}
		before := rdb.Get(ctx, "k").Val()
		if err := ours.Extend(ctx, time.Hour); !errors.Is(err, watchlock.ErrLost) {
			t.Errorf("Extend of ours: %v", err)
		}
		if err := ours.Unlock(ctx); !errors.Is(err, watchlock.ErrLost) {
			t.Errorf("Unlock of ours: %v", err)
		}
		if _, err := m.TryLock(ctx, 0); !errors.Is(err, watchlock.ErrNotAcquired) {
			t.Errorf("TryLock while theirs is held: %v", err)
		}
		if left, err := theirs.TTL(ctx); rdb.Get(ctx, "k").Val() != before || err != nil || left > time.Minute || left < 30*time.Second {
			t.Errorf("theirs is %q for %v, %v, was %q", rdb.Get(ctx, "k").Val(), left, err, before)
		}
		if err := theirs.Release(ctx); err != nil {
			t.Errorf("Release of theirs: %v", err)
		}

		// Theirs ran out, ours is held.
		theirs, err = peer.Obtain(ctx, "k", 20*time.Millisecond, nil)
		if err != nil {
			t.Fatal(err)
		}
		if ours, err = m.Lock(ctx); err != nil {
			t.Fatal(err)
		}
		if err := theirs.Refresh(ctx, time.Hour, nil); !errors.Is(err, redislock.ErrNotObtained) {
			t.Errorf("Refresh of theirs: %v", err)
		}
		if err := theirs.Release(ctx); !errors.Is(err, redislock.ErrLockNotHeld) {
			t.Errorf("Release of theirs: %v", err)
		}
		if _, err := peer.Obtain(ctx, "k", time.Minute, nil); !errors.Is(err, redislock.ErrNotObtained) {
			t.Errorf("Obtain while ours is held: %v", err)
		}
		if err := ours.Unlock(ctx); err != nil {
			t.Errorf("Unlock of ours: %v", err)
		}
	})
}
