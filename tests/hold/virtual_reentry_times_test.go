package hold_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestVirtualEachHandleHasItsOwnEnd(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		m := locktest.NewTestMutex(c, "job")
		start := time.Now()
		outer := locktest.MustLock(t, m)
		timed := locktest.VirtualReenter(t, m, outer, watchlock.WithLeaseTime(5*time.Second))
		bounded := locktest.VirtualReenter(t, m, outer, watchlock.WithMaxHold(45*time.Second))
		timedCtx := timed.Context(context.Background())
		if at := timed.ExpiresAt().Sub(start); at != 4900*time.Millisecond {
			t.Errorf("the timed handle is trusted until %v, want 4.9s", at)
		}
		<-timed.Done()
		if at := time.Since(start); at != 4900*time.Millisecond {
			t.Errorf("the timed handle ended at %v, want 4.9s", at)
		}
		locktest.VirtualWantErr(t, "the timed handle", timed.Err(), []error{watchlock.ErrLost})
		locktest.VirtualWantErr(t, "its context", context.Cause(timedCtx), []error{watchlock.ErrLost})
		locktest.VirtualWantErr(t, "its Unlock", timed.Unlock(context.Background()), []error{watchlock.ErrLost})
		if outer.Err() != nil || bounded.Err() != nil || !v.Mini().Exists("job") {
			t.Errorf("the others: %v, %v; the key exists: %v", outer.Err(), bounded.Err(), v.Mini().Exists("job"))
		}
		<-bounded.Done()
		if at := time.Since(start); at != 45*time.Second {
			t.Errorf("the bounded handle ended at %v, want 45s", at)
		}
		locktest.VirtualUntil(start, 10*time.Minute)
		if err := outer.Err(); err != nil {
			t.Errorf("the outer: %v", err)
		}
		locktest.MustUnlock(t, outer)
		if v.Mini().Exists("job") {
			t.Error("the key is there after the last Unlock")
		}
	})
}

func TestVirtualInnerLeaseLongerThanWhatRemainsExtendsFirst(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		m := locktest.NewTestMutex(c, "job")
		start := time.Now()
		outer := locktest.MustLock(t, m, watchlock.WithLeaseTime(10*time.Second))
		locktest.VirtualUntil(start, 4*time.Second)
		v.Reset()
		short := locktest.VirtualReenter(t, m, outer, watchlock.WithLeaseTime(5*time.Second))
		if n := len(v.Commands()); n != 0 {
			t.Errorf("%d commands for a lease that fits in", n)
		}
		inner := locktest.VirtualReenter(t, m, outer, watchlock.WithLeaseTime(20*time.Second))
		if n := len(v.Commands()); n != 1 || v.CountIf(locktest.Renews()) != 1 {
			t.Errorf("commands %v, want one extension", v.Commands())
		}
		if ttl := v.Mini().TTL("job"); ttl != 20*time.Second {
			t.Errorf("TTL is %v when Lock returns, want 20s", ttl)
		}
		for l, want := range map[*watchlock.Lease]time.Duration{
			short: 8900 * time.Millisecond, outer: 9850 * time.Millisecond, inner: 23750 * time.Millisecond,
		} {
			if at := l.ExpiresAt().Sub(start); at != want {
				t.Errorf("trusted until %v, want %v", at, want)
			}
		}
		<-outer.Done()
		if at := time.Since(start); at != 9850*time.Millisecond {
			t.Errorf("the outer ended at %v, want 9.85s", at)
		}
		<-inner.Done()
		if at := time.Since(start); at != 23750*time.Millisecond {
			t.Errorf("the inner ended at %v, want 23.75s", at)
		}
	})
}

func TestVirtualInnerWatchdogUnderAnExplicitOuterStartsRenewing(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		m := locktest.NewTestMutex(c, "job")
		start := time.Now()
		outer := locktest.MustLock(t, m, watchlock.WithLeaseTime(10*time.Second))
		locktest.VirtualUntil(start, 2*time.Second)
		inner := locktest.VirtualReenter(t, m, outer)
		if ttl := v.Mini().TTL("job"); ttl != 30*time.Second {
			t.Errorf("TTL is %v when Lock returns, want 30s", ttl)
		}
		<-outer.Done()
		if at := time.Since(start); at != 9850*time.Millisecond {
			t.Errorf("the outer ended at %v, want 9.85s", at)
		}
		locktest.VirtualUntil(start, 65*time.Second)
		want := []time.Duration{2, 12, 22, 32, 42, 52, 62}
		for i := range want {
			want[i] *= time.Second
		}
		if got := locktest.VirtualTimes(v.Commands(), start, locktest.Renews()); !slices.Equal(got, want) {
			t.Errorf("extended and renewed at %v, want %v", got, want)
		}
		if err := inner.Err(); err != nil {
			t.Error(err)
		}
		locktest.MustUnlock(t, inner)
		if v.Mini().Exists("job") {
			t.Error("the key is there: the lost outer kept it")
		}
	})
}

func TestVirtualRenewalEndsWithTheLastWatchdogHandle(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		m := locktest.NewTestMutex(c, "job")
		start := time.Now()
		outer := locktest.MustLock(t, m, watchlock.WithLeaseTime(2*time.Minute))
		inner := locktest.VirtualReenter(t, m, outer)
		locktest.VirtualUntil(start, 25*time.Second)
		renewed := v.CountIf(locktest.Renews())
		if renewed != 2 {
			t.Errorf("%d renewals in 25 s, want 2", renewed)
		}
		locktest.MustUnlock(t, inner)
		<-outer.Done()
		if at := time.Since(start); at != 118750*time.Millisecond {
			t.Errorf("the outer ended at %v, want 1m58.75s", at)
		}
		if n := v.CountIf(locktest.Renews()); n != renewed {
			t.Errorf("%d renewals after the inner's Unlock", n-renewed)
		}
	})
}

// An outer handle with a bound lets the TTL shrink towards its end. A handle
// without one that joins then needs a whole watchdog timeout again.
func TestVirtualInnerWatchdogOutlivesAnOuterNearItsMaxHold(t *testing.T) {
	for hold := 31; hold <= 60; hold += 3 {
		for _, joins := range []time.Duration{100 * time.Millisecond, time.Second, 3 * time.Second, 9 * time.Second} {
			at := time.Duration(hold)*time.Second - joins
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c := locktest.VirtualClient(t, v)
				m := locktest.NewTestMutex(c, "job")
				start := time.Now()
				outer := locktest.MustLock(t, m, watchlock.WithMaxHold(time.Duration(hold)*time.Second))
				locktest.VirtualUntil(start, at)
				inner := locktest.VirtualReenter(t, m, outer)
				<-outer.Done()
				locktest.VirtualUntil(start, at+2*time.Minute)
				if err := inner.Err(); err != nil {
					t.Errorf("max hold of the outer %d s, joined at %v, Redis healthy: %v", hold, at, err)
					return
				}
				locktest.MustUnlock(t, inner)
			})
		}
	}
}

func TestVirtualReentryThatCannotExtendInTimeSaysSo(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		m := locktest.NewTestMutex(c, "job")
		start := time.Now()
		outer := locktest.MustLock(t, m, watchlock.WithLeaseTime(20*time.Second))
		ctx := outer.Context(context.Background())
		v.Freeze()
		_, err := m.TryLock(ctx, 0, watchlock.WithLeaseTime(time.Minute))
		if took := time.Since(start); took > 1050*time.Millisecond {
			t.Errorf("one attempt took %v", took)
		}
		if locktest.VirtualWantErr(t, "one attempt", err, nil, watchlock.ErrNotAcquired, watchlock.ErrLost); !watchlock.IsUnavailable(err) {
			t.Errorf("one attempt: %v, want it unavailable", err)
		}
		again := time.Now()
		_, err = m.TryLock(ctx, 3*time.Second, watchlock.WithLeaseTime(time.Minute))
		if took := time.Since(again); took > 3050*time.Millisecond {
			t.Errorf("a wait of 3 s took %v", took)
		}
		if locktest.VirtualWantErr(t, "a wait of 3 s", err, nil, watchlock.ErrNotAcquired, watchlock.ErrLost); !watchlock.IsUnavailable(err) {
			t.Errorf("a wait of 3 s: %v, want it unavailable", err)
		}
		inner := locktest.VirtualReenter(t, m, outer, watchlock.WithLeaseTime(5*time.Second)) // needs nothing of Redis
		locktest.MustUnlock(t, inner)
		_, err = m.Lock(ctx, watchlock.WithLeaseTime(time.Minute))
		locktest.VirtualWantErr(t, "Lock until the outer is lost", err, []error{watchlock.ErrLost}, watchlock.ErrNotAcquired)
		if at := time.Since(start); at < 19750*time.Millisecond || at > 19800*time.Millisecond {
			t.Errorf("Lock returned at %v, want at the outer's end, 19.75s", at)
		}
		v.Thaw()
		time.Sleep(2 * time.Second)
		synctest.Wait()
	})
}

func TestVirtualReentryThatHasToExtendIsBoundByItsContext(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		m := locktest.NewTestMutex(c, "job")
		outer := locktest.MustLock(t, m, watchlock.WithLeaseTime(20*time.Second))
		v.Freeze()
		for _, d := range []time.Duration{time.Millisecond, 300 * time.Millisecond, 2500 * time.Millisecond} {
			ctx, stop := context.WithTimeout(outer.Context(context.Background()), d)
			start := time.Now()
			_, err := m.Lock(ctx, watchlock.WithLeaseTime(time.Minute))
			locktest.VirtualWantErr(t, "the deadline", err, []error{context.DeadlineExceeded}, watchlock.ErrNotAcquired, watchlock.ErrLost)
			if took := time.Since(start); took != d {
				t.Errorf("a deadline of %v: took %v", d, took)
			}
			stop()
			ctx, cancel := context.WithCancel(outer.Context(context.Background()))
			time.AfterFunc(d, cancel)
			start = time.Now()
			_, err = m.TryLock(ctx, time.Minute, watchlock.WithLeaseTime(time.Minute))
			locktest.VirtualWantErr(t, "cancelled", err, []error{context.Canceled}, watchlock.ErrNotAcquired, watchlock.ErrLost, context.DeadlineExceeded)
			if took := time.Since(start); took != d {
				t.Errorf("cancelled after %v: took %v", d, took)
			}
		}
		if err := outer.Err(); err != nil {
			t.Errorf("the outer: %v", err)
		}
		v.Thaw()
		time.Sleep(time.Second)
		locktest.MustUnlock(t, outer)
		if v.Mini().Exists("job") {
			t.Error("the key is there after Unlock")
		}
	})
}
