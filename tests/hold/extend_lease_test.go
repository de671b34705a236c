package hold_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

func TestExtendMakesAnExplicitLeaseEndLater(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.NewTestClient(t, v.Client())
		for kind, lock := range locktest.LocksOfKinds(c) {
			l, err := lock(context.Background(), watchlock.WithLeaseTime(2*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			ctx := l.Context(context.Background())
			time.Sleep(time.Second)
			start := time.Now()
			if err := l.Extend(context.Background(), 10*time.Second); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			if ttl := v.Mini().TTL(kind); ttl != 10*time.Second {
				t.Errorf("%s: the TTL is %v", kind, ttl)
			}
			if got, want := l.ExpiresAt().Sub(start), 10*time.Second-bootclock.Margin(10*time.Second); got != want {
				t.Errorf("%s: trusted for %v, want %v", kind, got, want)
			}
			locktest.VirtualUntil(start, 10*time.Second-bootclock.Margin(10*time.Second)-time.Millisecond)
			if ctx.Err() != nil || l.Err() != nil {
				t.Errorf("%s: ended early: %v", kind, l.Err())
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if !errors.Is(context.Cause(ctx), watchlock.ErrLost) {
				t.Errorf("%s: not ended in time: %v", kind, context.Cause(ctx))
			}
		}
	})
}

func TestExtendToLessThanWhatRemainsIsNilAndSendsNothing(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		l := locktest.MustLock(t, locktest.NewTestClient(t, v.Client()).NewMutex("k"), watchlock.WithLeaseTime(10*time.Second))
		synctest.Wait()
		v.Reset()
		ends := l.ExpiresAt()
		for _, d := range []time.Duration{10 * time.Millisecond, time.Second, 9 * time.Second, 10 * time.Second} {
			if err := l.Extend(context.Background(), d); err != nil {
				t.Errorf("Extend(%v): %v", d, err)
			}
		}
		if n := len(v.Commands()); n != 0 || !l.ExpiresAt().Equal(ends) || v.Mini().TTL("k") != 10*time.Second {
			t.Errorf("%d commands; ends at %v, before at %v; TTL %v", n, l.ExpiresAt(), ends, v.Mini().TTL("k"))
		}
	})
}

func TestAnExtensionWhoseReplyIsLostExtendsNoTrust(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := locktest.VirtualWired(t, v)
		l := locktest.MustLock(t, c.NewMutex("k"), watchlock.WithLeaseTime(2*time.Second))
		ends, start := l.ExpiresAt(), time.Now()
		rule := w.On(redistest.Runs(wire.RenewSource), redistest.DropReply).Times(0)
		err := l.Extend(context.Background(), time.Minute)
		if !watchlock.IsUnavailable(err) || errors.Is(err, watchlock.ErrLost) {
			t.Errorf("Extend: %v, want the network's error", err)
		}
		if rule.Hits() != 1 || v.Mini().TTL("k") != time.Minute || !l.ExpiresAt().Equal(ends) {
			t.Errorf("%d attempts, TTL %v, ends at %v, before at %v", rule.Hits(), v.Mini().TTL("k"), l.ExpiresAt(), ends)
		}
		locktest.VirtualUntil(start, ends.Sub(start))
		if err := l.Err(); !errors.Is(err, watchlock.ErrLost) {
			t.Errorf("at the old end: %v", err)
		}
		w.Clear()
		if err := l.Extend(context.Background(), time.Minute); !errors.Is(err, watchlock.ErrLost) {
			t.Errorf("Extend after the end: %v", err)
		}
	})
}

func TestAnExtensionConfirmedAfterTheEndRevivesNothing(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := locktest.VirtualWired(t, v)
		l := locktest.MustLock(t, c.NewMutex("k"), watchlock.WithLeaseTime(500*time.Millisecond))
		w.On(redistest.Runs(wire.RenewSource), redistest.DelayReply(600*time.Millisecond))
		if err := l.Extend(context.Background(), time.Minute); !errors.Is(err, watchlock.ErrLost) || l.Err() == nil {
			t.Errorf("Extend: %v, then %v, want it lost", err, l.Err())
		}
	})
}

func TestExtendOfWhatCannotBeExtendedSaysWhyAndSendsNothing(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.NewTestClient(t, v.Client())
		ctx := context.Background()
		for kind, lock := range locktest.LocksOfKinds(c) {
			renewed, err := lock(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			v.Reset()
			if err := renewed.Extend(ctx, time.Hour); !errors.Is(err, errors.ErrUnsupported) || renewed.Err() != nil {
				t.Errorf("%s: on a watchdog lease: %v, lease %v", kind, err, renewed.Err())
			}
			locktest.MustUnlock(t, renewed)
			l, err := lock(context.Background(), watchlock.WithLeaseTime(time.Second))
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range []time.Duration{0, -time.Second, 9 * time.Millisecond, 500 * time.Microsecond, time.Second + 1, 1 << 62} {
				if err := l.Extend(ctx, d); err == nil || !strings.Contains(err.Error(), d.String()) {
					t.Errorf("%s: Extend(%v): %v", kind, d, err)
				}
			}
			cancelled, cancel := context.WithCancel(ctx)
			cancel()
			if err := l.Extend(cancelled, time.Hour); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: with a cancelled context: %v", kind, err)
			}
			locktest.MustUnlock(t, l)
			if err := l.Extend(ctx, time.Hour); !errors.Is(err, watchlock.ErrNotHeld) {
				t.Errorf("%s: after Unlock: %v", kind, err)
			}
			if l, err = lock(context.Background(), watchlock.WithLeaseTime(time.Second)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			if err := l.Extend(ctx, time.Hour); !errors.Is(err, watchlock.ErrLost) {
				t.Errorf("%s: after the end: %v", kind, err)
			}
			for _, c := range v.Commands() {
				for _, arg := range c.Args {
					if arg == "3600000" {
						t.Errorf("%s: sent %v", kind, c)
					}
				}
			}
		}
	})
}

func TestExtendLeavesALaterOwnerAlone(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		for kind, lock := range locktest.LocksOfKinds(locktest.NewTestClient(t, s.Client())) {
			l, err := lock(context.Background(), watchlock.WithLeaseTime(30*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			locktest.MustDo(t, s, "DEL", kind)
			if kind == "setnx" {
				locktest.MustDo(t, s, "SET", kind, locktest.Stranger, "PX", 5000)
			} else {
				locktest.MustDo(t, s, "HSET", kind, locktest.Stranger, "1")
				locktest.MustDo(t, s, "PEXPIRE", kind, 5000)
			}
			if err := l.Extend(context.Background(), time.Hour); !errors.Is(err, watchlock.ErrLost) || !locktest.VirtualClosed(l.Done()) {
				t.Errorf("%s: Extend: %v, want it lost and told", kind, err)
			}
			if ttl := locktest.MustDo(t, s, "PTTL", kind).(int64); ttl <= 0 || ttl > 5000 {
				t.Errorf("%s: the other's TTL became %d ms", kind, ttl)
			}
		}
	})
}

func TestExtendNeverLowersTheTTLThatAnotherLeaseOfTheBurstNeeds(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		for kind, lock := range locktest.LocksOfKinds(locktest.NewTestClient(t, s.Client())) {
			outer, err := lock(context.Background(), watchlock.WithLeaseTime(2*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			inner, err := lock(outer.Context(context.Background()), watchlock.WithLeaseTime(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			if err := outer.Extend(context.Background(), 5*time.Second); err != nil || time.Until(outer.ExpiresAt()) < 4*time.Second {
				t.Errorf("%s: Extend of the outer lease: %v, trusted until %v", kind, err, outer.ExpiresAt())
			}
			left := time.Duration(locktest.MustDo(t, s, "PTTL", kind).(int64)) * time.Millisecond
			if trusted := time.Until(inner.ExpiresAt()); left < trusted {
				t.Errorf("%s: the key lasts %v, the inner lease is trusted for %v", kind, left, trusted)
			}
			locktest.MustUnlock(t, inner)
			locktest.MustUnlock(t, outer)
		}
	})
}

func TestMaxHoldBoundsAnExtension(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		m := locktest.NewTestClient(t, v.Client()).NewMutex("k")
		start := time.Now()
		l := locktest.MustLock(t, m, watchlock.WithLeaseTime(time.Second), watchlock.WithMaxHold(3*time.Second))
		if err := l.Extend(context.Background(), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		if got := l.ExpiresAt().Sub(start); got != 3*time.Second {
			t.Errorf("trusted for %v, want 3s", got)
		}
		done := l.Done()
		locktest.VirtualUntil(start, 3*time.Second)
		if err := l.Err(); !errors.Is(err, watchlock.ErrLost) || !locktest.VirtualClosed(done) {
			t.Errorf("after the max hold: %v", err)
		}
	})
}

func TestExtendIsBoundedByItsContextWhileTheServerHangs(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		l := locktest.MustLock(t, locktest.NewTestClient(t, v.Client()).NewMutex("k"), watchlock.WithLeaseTime(30*time.Second))
		v.Freeze()
		defer v.Thaw()
		for _, c := range []struct{ ctx, want time.Duration }{{100 * time.Millisecond, 100 * time.Millisecond}, {time.Minute, time.Second}} {
			ctx, cancel := context.WithTimeout(context.Background(), c.ctx)
			start := time.Now()
			err := l.Extend(ctx, time.Minute)
			if took := time.Since(start); took < c.want || took > c.want+10*time.Millisecond {
				t.Errorf("within %v: returned after %v, want %v", c.ctx, took, c.want)
			}
			if err == nil || errors.Is(err, context.DeadlineExceeded) != (c.ctx < time.Second) || l.Err() != nil {
				t.Errorf("within %v: %v, lease %v", c.ctx, err, l.Err())
			}
			cancel()
		}
	})
}
