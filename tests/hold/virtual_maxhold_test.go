package hold_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestVirtualMaxHoldEndsTheLeaseAtItsInstantAndTheKeyWithinTheMargin(t *testing.T) {
	for _, hold := range []time.Duration{
		30 * time.Second, 30001 * time.Millisecond, 31 * time.Second, 35 * time.Second,
		39999 * time.Millisecond, 40 * time.Second, 40001 * time.Millisecond, 59500 * time.Millisecond, time.Hour,
	} {
		t.Run(hold.String(), func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c := locktest.VirtualClient(t, v)
				start := time.Now()
				l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"), watchlock.WithMaxHold(hold))
				ctx := l.Context(context.Background())
				locktest.VirtualUntil(start, hold-time.Microsecond)
				if err := l.Err(); err != nil {
					t.Errorf("before the max hold: %v", err)
				}
				locktest.VirtualUntil(start, hold)
				locktest.VirtualWantErr(t, "at the max hold", l.Err(), []error{watchlock.ErrLost})
				locktest.VirtualWantErr(t, "cause", context.Cause(ctx), []error{watchlock.ErrLost})
				if !locktest.VirtualClosed(l.Done()) {
					t.Error("Done is open")
				}
				// Redis counts whole milliseconds: the TTL may be rounded up by one.
				if ttl := v.Mini().TTL("job"); ttl > 351*time.Millisecond || ttl <= 0 && hold > 30*time.Second {
					t.Errorf("the key has %v left, want above 0 and at most 350 ms", ttl)
				}
				renewals := v.CountIf(locktest.Renews())
				locktest.VirtualUntil(start, hold+time.Minute)
				if v.CountIf(locktest.Renews()) != renewals {
					t.Error("renewed after the max hold")
				}
				locktest.VirtualWantErr(t, "Unlock", l.Unlock(context.Background()), []error{watchlock.ErrLost})
			})
		})
	}
}

func TestVirtualMaxHoldLeavesAnExplicitLeaseItsOwnEnd(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		start := time.Now()
		l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"), watchlock.WithLeaseTime(10*time.Second), watchlock.WithMaxHold(20*time.Second))
		<-l.Done()
		if at := time.Since(start); at != 9850*time.Millisecond {
			t.Errorf("ended at %v, want 9.85s", at)
		}
	})
}

func TestVirtualMaxHoldCanBeUndercutByUnlock(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		start := time.Now()
		l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"), watchlock.WithMaxHold(time.Minute))
		locktest.VirtualUntil(start, 55*time.Second)
		locktest.MustUnlock(t, l)
		again := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
		locktest.VirtualUntil(start, 2*time.Minute)
		if err := again.Err(); err != nil {
			t.Errorf("the next hold, without a bound: %v", err)
		}
		locktest.MustUnlock(t, again)
	})
}
