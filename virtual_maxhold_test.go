package watchlock

import (
	"context"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestVirtualMaxHoldEndsTheLeaseAtItsInstantAndTheKeyWithinTheMargin(t *testing.T) {
	for _, hold := range []time.Duration{
		30 * time.Second, 30001 * time.Millisecond, 31 * time.Second, 35 * time.Second,
		39999 * time.Millisecond, 40 * time.Second, 40001 * time.Millisecond, 59500 * time.Millisecond, time.Hour,
	} {
		t.Run(hold.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c := virtualClient(t, v)
				start := time.Now()
				l := mustLock(t, newTestMutex(c, "job"), WithMaxHold(hold))
				ctx := l.Context(context.Background())
				virtualUntil(start, hold-time.Microsecond)
				if err := l.Err(); err != nil {
					t.Errorf("before the max hold: %v", err)
				}
				virtualUntil(start, hold)
				virtualWantErr(t, "at the max hold", l.Err(), []error{ErrLost})
				virtualWantErr(t, "cause", context.Cause(ctx), []error{ErrLost})
				if !virtualClosed(l.Done()) {
					t.Error("Done is open")
				}
				// Redis counts whole milliseconds: the TTL may be rounded up by one.
				if ttl := v.Mini().TTL("job"); ttl > 351*time.Millisecond || ttl <= 0 && hold > 30*time.Second {
					t.Errorf("the key has %v left, want above 0 and at most 350 ms", ttl)
				}
				renewals := v.CountIf(renews())
				virtualUntil(start, hold+time.Minute)
				if v.CountIf(renews()) != renewals {
					t.Error("renewed after the max hold")
				}
				virtualWantErr(t, "Unlock", l.Unlock(context.Background()), []error{ErrLost})
			})
		})
	}
}

func TestVirtualMaxHoldLeavesAnExplicitLeaseItsOwnEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v)
		start := time.Now()
		l := mustLock(t, newTestMutex(c, "job"), WithLeaseTime(10*time.Second), WithMaxHold(20*time.Second))
		<-l.Done()
		if at := time.Since(start); at != 9850*time.Millisecond {
			t.Errorf("ended at %v, want 9.85s", at)
		}
	})
}

func TestVirtualMaxHoldCanBeUndercutByUnlock(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v)
		start := time.Now()
		l := mustLock(t, newTestMutex(c, "job"), WithMaxHold(time.Minute))
		virtualUntil(start, 55*time.Second)
		mustUnlock(t, l)
		again := mustLock(t, newTestMutex(c, "job"))
		virtualUntil(start, 2*time.Minute)
		if err := again.Err(); err != nil {
			t.Errorf("the next hold, without a bound: %v", err)
		}
		mustUnlock(t, again)
	})
}
