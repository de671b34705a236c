package watchlock

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestVirtualEachHandleHasItsOwnEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v)
		m := newTestMutex(c, "job")
		start := time.Now()
		outer := mustLock(t, m)
		timed := virtualReenter(t, m, outer, WithLeaseTime(5*time.Second))
		bounded := virtualReenter(t, m, outer, WithMaxHold(45*time.Second))
		timedCtx := timed.Context(context.Background())
		if at := timed.ExpiresAt().Sub(start); at != 4900*time.Millisecond {
			t.Errorf("the timed handle is trusted until %v, want 4.9s", at)
		}
		<-timed.Done()
		if at := time.Since(start); at != 4900*time.Millisecond {
			t.Errorf("the timed handle ended at %v, want 4.9s", at)
		}
		virtualWantErr(t, "the timed handle", timed.Err(), []error{ErrLost})
		virtualWantErr(t, "its context", context.Cause(timedCtx), []error{ErrLost})
		virtualWantErr(t, "its Unlock", timed.Unlock(context.Background()), []error{ErrLost})
		if outer.Err() != nil || bounded.Err() != nil || !v.Mini().Exists("job") {
			t.Errorf("the others: %v, %v; the key exists: %v", outer.Err(), bounded.Err(), v.Mini().Exists("job"))
		}
		<-bounded.Done()
		if at := time.Since(start); at != 45*time.Second {
			t.Errorf("the bounded handle ended at %v, want 45s", at)
		}
		virtualUntil(start, 10*time.Minute)
		if err := outer.Err(); err != nil {
			t.Errorf("the outer: %v", err)
		}
		mustUnlock(t, outer)
		if v.Mini().Exists("job") {
			t.Error("the key is there after the last Unlock")
		}
	})
}

func TestVirtualInnerLeaseLongerThanWhatRemainsExtendsFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v)
		m := newTestMutex(c, "job")
		start := time.Now()
		outer := mustLock(t, m, WithLeaseTime(10*time.Second))
		virtualUntil(start, 4*time.Second)
		v.Reset()
		short := virtualReenter(t, m, outer, WithLeaseTime(5*time.Second))
		if n := len(v.Commands()); n != 0 {
			t.Errorf("%d commands for a lease that fits in", n)
		}
		inner := virtualReenter(t, m, outer, WithLeaseTime(20*time.Second))
		if n := len(v.Commands()); n != 1 || v.CountIf(renews()) != 1 {
			t.Errorf("commands %v, want one extension", v.Commands())
		}
		if ttl := v.Mini().TTL("job"); ttl != 20*time.Second {
			t.Errorf("TTL is %v when Lock returns, want 20s", ttl)
		}
		for l, want := range map[*Lease]time.Duration{
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
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v)
		m := newTestMutex(c, "job")
		start := time.Now()
		outer := mustLock(t, m, WithLeaseTime(10*time.Second))
		virtualUntil(start, 2*time.Second)
		inner := virtualReenter(t, m, outer)
		if ttl := v.Mini().TTL("job"); ttl != 30*time.Second {
			t.Errorf("TTL is %v when Lock returns, want 30s", ttl)
		}
		<-outer.Done()
		if at := time.Since(start); at != 9850*time.Millisecond {
			t.Errorf("the outer ended at %v, want 9.85s", at)
		}
		virtualUntil(start, 65*time.Second)
		want := []time.Duration{2, 12, 22, 32, 42, 52, 62}
		for i := range want {
			want[i] *= time.Second
		}
		if got := virtualTimes(v.Commands(), start, renews()); !slices.Equal(got, want) {
			t.Errorf("extended and renewed at %v, want %v", got, want)
		}
		if err := inner.Err(); err != nil {
			t.Error(err)
		}
		mustUnlock(t, inner)
		if v.Mini().Exists("job") {
			t.Error("the key is there: the lost outer kept it")
		}
	})
}

func TestVirtualRenewalEndsWithTheLastWatchdogHandle(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v)
		m := newTestMutex(c, "job")
		start := time.Now()
		outer := mustLock(t, m, WithLeaseTime(2*time.Minute))
		inner := virtualReenter(t, m, outer)
		virtualUntil(start, 25*time.Second)
		renewed := v.CountIf(renews())
		if renewed != 2 {
			t.Errorf("%d renewals in 25 s, want 2", renewed)
		}
		mustUnlock(t, inner)
		<-outer.Done()
		if at := time.Since(start); at != 118750*time.Millisecond {
			t.Errorf("the outer ended at %v, want 1m58.75s", at)
		}
		if n := v.CountIf(renews()); n != renewed {
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
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c := virtualClient(t, v)
				m := newTestMutex(c, "job")
				start := time.Now()
				outer := mustLock(t, m, WithMaxHold(time.Duration(hold)*time.Second))
				virtualUntil(start, at)
				inner := virtualReenter(t, m, outer)
				<-outer.Done()
				virtualUntil(start, at+2*time.Minute)
				if err := inner.Err(); err != nil {
					t.Errorf("max hold of the outer %d s, joined at %v, Redis healthy: %v", hold, at, err)
					return
				}
				mustUnlock(t, inner)
			})
		}
	}
}

func TestVirtualReentryThatCannotExtendInTimeSaysSo(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v)
		m := newTestMutex(c, "job")
		start := time.Now()
		outer := mustLock(t, m, WithLeaseTime(20*time.Second))
		ctx := outer.Context(context.Background())
		v.Freeze()
		_, err := m.TryLock(ctx, 0, WithLeaseTime(time.Minute))
		if took := time.Since(start); took > 1050*time.Millisecond {
			t.Errorf("one attempt took %v", took)
		}
		if virtualWantErr(t, "one attempt", err, nil, ErrNotAcquired, ErrLost); !IsUnavailable(err) {
			t.Errorf("one attempt: %v, want it unavailable", err)
		}
		again := time.Now()
		_, err = m.TryLock(ctx, 3*time.Second, WithLeaseTime(time.Minute))
		if took := time.Since(again); took > 3050*time.Millisecond {
			t.Errorf("a wait of 3 s took %v", took)
		}
		if virtualWantErr(t, "a wait of 3 s", err, nil, ErrNotAcquired, ErrLost); !IsUnavailable(err) {
			t.Errorf("a wait of 3 s: %v, want it unavailable", err)
		}
		inner := virtualReenter(t, m, outer, WithLeaseTime(5*time.Second)) // needs nothing of Redis
		mustUnlock(t, inner)
		_, err = m.Lock(ctx, WithLeaseTime(time.Minute))
		virtualWantErr(t, "Lock until the outer is lost", err, []error{ErrLost}, ErrNotAcquired)
		if at := time.Since(start); at < 19750*time.Millisecond || at > 19800*time.Millisecond {
			t.Errorf("Lock returned at %v, want at the outer's end, 19.75s", at)
		}
		v.Thaw()
		time.Sleep(2 * time.Second)
		synctest.Wait()
	})
}

func TestVirtualReentryThatHasToExtendIsBoundByItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v)
		m := newTestMutex(c, "job")
		outer := mustLock(t, m, WithLeaseTime(20*time.Second))
		v.Freeze()
		for _, d := range []time.Duration{time.Millisecond, 300 * time.Millisecond, 2500 * time.Millisecond} {
			ctx, stop := context.WithTimeout(outer.Context(context.Background()), d)
			start := time.Now()
			_, err := m.Lock(ctx, WithLeaseTime(time.Minute))
			virtualWantErr(t, "the deadline", err, []error{context.DeadlineExceeded}, ErrNotAcquired, ErrLost)
			if took := time.Since(start); took != d {
				t.Errorf("a deadline of %v: took %v", d, took)
			}
			stop()
			ctx, cancel := context.WithCancel(outer.Context(context.Background()))
			time.AfterFunc(d, cancel)
			start = time.Now()
			_, err = m.TryLock(ctx, time.Minute, WithLeaseTime(time.Minute))
			virtualWantErr(t, "cancelled", err, []error{context.Canceled}, ErrNotAcquired, ErrLost, context.DeadlineExceeded)
			if took := time.Since(start); took != d {
				t.Errorf("cancelled after %v: took %v", d, took)
			}
		}
		if err := outer.Err(); err != nil {
			t.Errorf("the outer: %v", err)
		}
		v.Thaw()
		time.Sleep(time.Second)
		mustUnlock(t, outer)
		if v.Mini().Exists("job") {
			t.Error("the key is there after Unlock")
		}
	})
}
