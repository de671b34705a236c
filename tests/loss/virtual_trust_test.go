package loss_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestVirtualExplicitLeaseIsNeverRenewedAndEndsBeforeItsKey(t *testing.T) {
	for lease, margin := range map[time.Duration]time.Duration{
		10 * time.Millisecond:   2 * time.Millisecond,
		100 * time.Millisecond:  3 * time.Millisecond,
		time.Second:             21 * time.Millisecond,
		4999 * time.Millisecond: 100980 * time.Microsecond,
		5 * time.Second:         100 * time.Millisecond,
		30 * time.Second:        350 * time.Millisecond,
		10 * time.Minute:        6050 * time.Millisecond,
	} {
		t.Run(lease.String(), func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c, other := locktest.VirtualClient(t, v), locktest.NewTestClient(t, v.Client())
				start := time.Now()
				l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"), watchlock.WithLeaseTime(lease))
				if ttl := v.Mini().TTL("job"); ttl != lease {
					t.Errorf("TTL is %v, want %v", ttl, lease)
				}
				entered := make(chan time.Duration, 1)
				go func() {
					got, err := locktest.NewTestMutex(other, "job").Lock(context.Background())
					if err != nil {
						t.Errorf("the waiter: %v", err)
						close(entered)
						return
					}
					entered <- time.Since(start)
					_ = got.Unlock(context.Background())
				}()
				locktest.VirtualUntil(start, lease-margin-time.Microsecond)
				if err := l.Err(); err != nil || locktest.VirtualClosed(l.Done()) {
					t.Errorf("told %v 1 µs before the trust is over", err)
				}
				locktest.VirtualUntil(start, lease-margin)
				locktest.VirtualWantErr(t, "Err at the end of trust", l.Err(), []error{watchlock.ErrLost}, watchlock.ErrNotHeld)
				if !locktest.VirtualClosed(l.Done()) {
					t.Error("Done is open at the end of trust")
				}
				if ttl := v.Mini().TTL("job"); ttl != margin && ttl != margin.Round(time.Millisecond) {
					t.Errorf("the key has %v left at the end of trust, want %v", ttl, margin)
				}
				at, ok := <-entered
				if ok && (at < lease || at > lease+15*time.Millisecond) {
					t.Errorf("the waiter entered at %v, want right after %v", at, lease)
				}
				if n := v.CountIf(locktest.Renews()); n != 0 {
					t.Errorf("%d renewals", n)
				}
				locktest.VirtualWantErr(t, "Unlock", l.Unlock(context.Background()), []error{watchlock.ErrLost})
			})
		})
	}
}

func TestVirtualTrustEnds350MillisecondsBeforeTheKeyWhenRenewalsFail(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		for _, renewed := range []time.Duration{0, 10 * time.Second, 70 * time.Second} {
			start := time.Now()
			l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
			ctx := l.Context(context.Background())
			child, cancel := context.WithCancel(ctx)
			locktest.VirtualUntil(start, renewed+time.Second)
			v.Freeze()
			end := renewed + 29650*time.Millisecond
			if at := l.ExpiresAt().Sub(start); at != end {
				t.Errorf("ExpiresAt is %v, want %v", at, end)
			}
			locktest.VirtualUntil(start, end-time.Microsecond)
			if l.Err() != nil || ctx.Err() != nil || locktest.VirtualClosed(l.Done()) {
				t.Errorf("told before %v: %v, %v", end, l.Err(), ctx.Err())
			}
			<-ctx.Done()
			if at := time.Since(start); at != end {
				t.Errorf("the context was cancelled at %v, want %v", at, end)
			}
			synctest.Wait()
			if !locktest.VirtualClosed(l.Done()) || !locktest.VirtualClosed(child.Done()) {
				t.Error("Done of the lease, or of a derived context, is still open")
			}
			locktest.VirtualWantErr(t, "Err", l.Err(), []error{watchlock.ErrLost}, watchlock.ErrNotHeld, watchlock.ErrClosed)
			locktest.VirtualWantErr(t, "cause", context.Cause(ctx), []error{watchlock.ErrLost})
			locktest.VirtualWantErr(t, "cause of a derived context", context.Cause(child), []error{watchlock.ErrLost})
			if !errors.Is(ctx.Err(), context.Canceled) {
				t.Errorf("Context.Err is %v", ctx.Err())
			}
			if ttl := v.Mini().TTL("job"); ttl != 350*time.Millisecond {
				t.Errorf("the key has %v left, want 350ms", ttl)
			}
			cancel()
			v.Thaw()
			locktest.VirtualUntil(start, end+time.Minute)
			_ = l.Unlock(context.Background())
			synctest.Wait()
			v.Mini().Del("job")
		}
	})
}

func TestVirtualLossIsFinal(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := locktest.VirtualWired(t, v, watchlock.WithWatchdogTimeout(300*time.Millisecond))
		start := time.Now()
		l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
		// Trust ends at 293 ms. From 255 ms on renewals run, and are answered after it.
		fail := w.On(locktest.Renews(), redistest.DropRequest).Times(0)
		locktest.VirtualUntil(start, 255*time.Millisecond)
		w.Clear()
		late := w.On(locktest.Renews(), redistest.DelayReply(45*time.Millisecond)).Times(0)
		locktest.VirtualUntil(start, 292*time.Millisecond)
		if fail.Hits() == 0 || late.Hits() == 0 {
			t.Fatalf("%d renewals failed, %d were slow", fail.Hits(), late.Hits())
		}
		renewed := v.CountIf(locktest.Renews())
		if renewed == 0 || l.Err() != nil {
			t.Fatalf("%d renewals ran, and the lease says %v", renewed, l.Err())
		}
		end := l.ExpiresAt()
		locktest.VirtualUntil(start, 293*time.Millisecond)
		locktest.VirtualWantErr(t, "at the end of trust", l.Err(), []error{watchlock.ErrLost})
		locktest.VirtualUntil(start, 400*time.Millisecond)
		if ttl := v.Mini().TTL("job"); ttl <= 0 {
			t.Errorf("the key has %v left: no late renewal kept it", ttl)
		}
		locktest.VirtualWantErr(t, "after the late reply", l.Err(), []error{watchlock.ErrLost})
		if at := l.ExpiresAt(); at.After(end) {
			t.Errorf("trust moved by %v after it had ended", at.Sub(end))
		}
		v.Reset()
		locktest.VirtualWantErr(t, "Unlock", l.Unlock(context.Background()), []error{watchlock.ErrLost}, watchlock.ErrNotHeld)
		synctest.Wait()
		if n := v.CountIf(locktest.Releases().Mentions("job")); n != 1 {
			t.Errorf("%d releases after the Unlock of a lost lease, want 1", n)
		}
		if v.Mini().Exists("job") {
			t.Error("the key that was still its owner's is there after Unlock")
		}
		locktest.VirtualWantErr(t, "second Unlock", l.Unlock(context.Background()), []error{watchlock.ErrNotHeld}, watchlock.ErrLost)
	})
}

func TestVirtualNothingIsReleasedAtALoss(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		start := time.Now()
		l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"), watchlock.WithLeaseTime(10*time.Second))
		<-l.Done()
		locktest.VirtualUntil(start, 10*time.Second-time.Millisecond)
		if n := v.CountIf(locktest.Releases()); n != 0 || !v.Mini().Exists("job") {
			t.Errorf("%d releases before the key's end; it exists: %v", n, v.Mini().Exists("job"))
		}
	})
}

func TestVirtualUnlockOfALostLeaseLeavesTheNextHolderAlone(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, other := locktest.VirtualClient(t, v), locktest.NewTestClient(t, v.Client())
		l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"), watchlock.WithLeaseTime(time.Second))
		next := locktest.MustLock(t, locktest.NewTestMutex(other, "job"))
		locktest.VirtualWantErr(t, "Unlock", l.Unlock(context.Background()), []error{watchlock.ErrLost})
		time.Sleep(time.Minute)
		if err := next.Err(); err != nil || v.Mini().TTL("job") < 20*time.Second {
			t.Errorf("the next holder: %v, TTL %v", err, v.Mini().TTL("job"))
		}
		locktest.MustUnlock(t, next)
	})
}

func TestVirtualTrustCountsFromBeforeTheCommandLeft(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := locktest.VirtualWired(t, v)
		w.On(locktest.Acquires(), redistest.All(redistest.Delay(200*time.Millisecond), redistest.DelayReply(700*time.Millisecond)))
		start := time.Now()
		l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
		if at := l.ExpiresAt().Sub(start); at != 29650*time.Millisecond {
			t.Errorf("trusted until %v after the call, want 29.65s", at)
		}
		w.On(locktest.Renews(), redistest.DelayReply(700*time.Millisecond))
		locktest.VirtualUntil(start, 10700*time.Millisecond)
		if at := l.ExpiresAt().Sub(start); at != 39650*time.Millisecond {
			t.Errorf("trusted until %v after a slow renewal, want 39.65s", at)
		}
		locktest.MustUnlock(t, l)
	})
}
