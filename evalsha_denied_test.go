package watchlock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// TestAUserWhoMayEvalAndNotEvalshaCanLock is about each command of a lock: acquire, refusal,
// renewal, look, extension, relay, forced and plain release.
func TestAUserWhoMayEvalAndNotEvalshaCanLock(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		for kind := range rightsOfKinds {
			t.Run(kind, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				defer cancel()
				as := userWith(t, s, "-evalsha")
				c := newUserClient(t, s.Client(as), WithWatchdogTimeout(600*time.Millisecond))
				m := c.newMutex(c.kindNamed(kind), "k", nil)
				other := newUserClient(t, s.Client(as)).newMutex(c.kindNamed(kind), "k", nil)
				l, err := m.Lock(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := other.TryLock(ctx, 0); !errors.Is(err, ErrNotAcquired) {
					t.Errorf("elsewhere: %v", err)
				}
				if info, err := m.Info(ctx); err != nil || !info.Mine {
					t.Errorf("Info: %+v, %v", info, err)
				}
				since := time.Now()
				eventually(t, 10*time.Second, "three TTLs are over", func() bool { return time.Since(since) > 1800*time.Millisecond })
				if err := l.Err(); err != nil {
					t.Errorf("renewed: %v", err)
				}
				waiter := goLock(func() (*Lease, error) { return m.Lock(ctx) })
				eventually(t, 5*time.Second, "it waits here", func() bool {
					g := l.hold.burst.gate
					g.mu.Lock()
					defer g.mu.Unlock()
					return g.queue.n == 1
				})
				if err := l.Unlock(ctx); err != nil {
					t.Errorf("Unlock with a waiter: %v", err)
				}
				waiter.wait(t)
				if waiter.err != nil {
					t.Fatal(waiter.err)
				}
				if err := waiter.lease.Unlock(ctx); err != nil {
					t.Errorf("Unlock: %v", err)
				}
				timed, err := m.Lock(ctx, WithLeaseTime(5*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				if err := timed.Extend(ctx, 10*time.Second); err != nil {
					t.Errorf("Extend: %v", err)
				}
				if err := m.ForceUnlock(ctx); err != nil || mustDo(t, s, "EXISTS", "k") != int64(0) {
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
		m := newTestClient(t, s.Client(userWith(t, s, "-evalsha"), wire.Options())).NewMutex("k")
		for range 10 {
			l, err := m.TryLock(context.Background(), 0)
			if err != nil {
				t.Fatal(err)
			}
			mustUnlock(t, l)
		}
		if n := wire.Count(redistest.Is("EVALSHA")); n > 2 {
			t.Errorf("EVALSHA was sent %d times", n)
		}
	})
}
