package hooks_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// TestAUserWhoMayEvalAndNotEvalshaCanLock is about each command of a lock: acquire, refusal,
// renewal, look, extension, relay, forced and plain release.
func TestAUserWhoMayEvalAndNotEvalshaCanLock(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		for kind := range locktest.RightsOfKinds {
			t.Run(kind, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				defer cancel()
				as := locktest.UserWith(t, s, "-evalsha")
				c := locktest.NewUserClient(t, s.Client(as), watchlock.WithWatchdogTimeout(600*time.Millisecond))
				m := locktest.MutexOf(c, kind, "k")
				other := locktest.MutexOf(locktest.NewUserClient(t, s.Client(as)), kind, "k")
				l, err := m.Lock(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := other.TryLock(ctx, 0); !errors.Is(err, watchlock.ErrNotAcquired) {
					t.Errorf("elsewhere: %v", err)
				}
				if info, err := m.Info(ctx); err != nil || !info.Mine {
					t.Errorf("Info: %+v, %v", info, err)
				}
				since := time.Now()
				locktest.Eventually(t, 10*time.Second, "three TTLs are over", func() bool { return time.Since(since) > 1800*time.Millisecond })
				if err := l.Err(); err != nil {
					t.Errorf("renewed: %v", err)
				}
				waiter := locktest.GoLock(func() (*watchlock.Lease, error) { return m.Lock(ctx) })
				locktest.Eventually(t, 5*time.Second, "it waits here", func() bool { return locktest.QueuedOn(m) == 1 })
				if err := l.Unlock(ctx); err != nil {
					t.Errorf("Unlock with a waiter: %v", err)
				}
				waiter.Wait(t)
				if waiter.Err != nil {
					t.Fatal(waiter.Err)
				}
				if err := waiter.Lease.Unlock(ctx); err != nil {
					t.Errorf("Unlock: %v", err)
				}
				timed, err := m.Lock(ctx, watchlock.WithLeaseTime(5*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				if err := timed.Extend(ctx, 10*time.Second); err != nil {
					t.Errorf("Extend: %v", err)
				}
				if err := m.ForceUnlock(ctx); err != nil || locktest.MustDo(t, s, "EXISTS", "k") != int64(0) {
					t.Errorf("ForceUnlock: %v", err)
				}
			})
		}
	})
}

// TestOneDenialIsEnoughToLearnThatEvalshaIsDenied keeps the ACL LOG from filling up, and each
// lock from costing two round trips.
func TestOneDenialIsEnoughToLearnThatEvalshaIsDenied(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		wire := redistest.NewWire()
		m := locktest.NewTestClient(t, s.Client(locktest.UserWith(t, s, "-evalsha"), wire.Options())).NewMutex("k")
		for range 10 {
			l, err := m.TryLock(context.Background(), 0)
			if err != nil {
				t.Fatal(err)
			}
			locktest.MustUnlock(t, l)
		}
		if n := wire.Count(redistest.Is("EVALSHA")); n > 2 {
			t.Errorf("EVALSHA was sent %d times", n)
		}
	})
}
