package release_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// unlockWithLostReplies has A unlock while n replies of the release are lost and
// B waits. A's Unlock is one success, a second one is not, and B enters at the
// instant of the release that ran.
func unlockWithLostReplies(t *testing.T, n int) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		wire := redistest.NewWire()
		a := locktest.WarmClient(t, v.Client(wire.Options()))
		b := locktest.WarmClient(t, v.Client())
		lease := locktest.MustLock(t, locktest.NewTestMutex(a, "order"))
		waiting := locktest.GoLock(func() (*watchlock.Lease, error) {
			return locktest.NewTestMutex(b, "order").TryLock(context.Background(), time.Minute)
		})
		time.Sleep(time.Second) // B has subscribed

		lost := wire.On(locktest.Releases(), redistest.DropReply).Times(n)
		freed := time.Now()
		locktest.MustUnlock(t, lease)
		waiting.Wait(t)
		if waiting.Err != nil {
			t.Fatalf("the waiter: %v", waiting.Err)
		}
		if late := waiting.Took - time.Second; late > 5*time.Millisecond {
			t.Errorf("the waiter entered %v after the release", late)
		}
		if took := time.Since(freed); took > locktest.UnlockTimeoutByDefault {
			t.Errorf("Unlock took %v", took)
		}
		if lost.Hits() != n {
			t.Errorf("%d replies lost, want %d", lost.Hits(), n)
		}
		locktest.MustErr(t, "Unlock again", lease.Unlock(context.Background()), watchlock.ErrNotHeld)
		if got, want := locktest.FieldOf(t, v, "order"), locktest.OwnerOf(waiting.Lease); got != want {
			t.Errorf("the lock is %q's, want the waiter's %q", got, want)
		}
		time.Sleep(3 * locktest.WatchdogTimeoutByDefault) // releases that are repeated harm nobody
		if err := waiting.Lease.Err(); err != nil {
			t.Errorf("the waiter's lease: %v", err)
		}
		locktest.MustUnlock(t, waiting.Lease)
		locktest.CheckNextEnters(t, locktest.NewTestMutex(a, "order"))
		locktest.CheckBubbleEmpty(t, v, a, b)
	})
}

func TestA01_UnlockWithALostReplySucceedsOnce(t *testing.T) { unlockWithLostReplies(t, 1) }

func TestA02_UnlockWithManyLostRepliesSucceedsOnce(t *testing.T) {
	for _, n := range []int{2, 5, 9} {
		t.Run(fmt.Sprint(n, " lost"), func(t *testing.T) { unlockWithLostReplies(t, n) })
	}
}

func TestA03_ManyUnlocksLeaveNoKey(t *testing.T) {
	redistest.NoLeaks(t)
	s := redistest.Start(t)
	c := locktest.NewTestClient(t, s.Client())
	m := locktest.NewTestMutex(c, "order")
	for range locktest.FullCount(10000) {
		locktest.MustUnlock(t, locktest.MustLock(t, m))
	}
	if n := locktest.ServerKeys(t, s); n != 0 {
		t.Errorf("%d keys after the last unlock", n)
	}
	locktest.CheckNextEnters(t, m)
	locktest.CheckServerEmpty(t, s, c)
}

func TestA04_ExtremeTimesWorkOrAreRefused(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(func(o *redis.Options) { o.MaxRetries = -1 })
	const most = 100 * 365 * 24 * time.Hour

	t.Run("the smallest and largest work", func(t *testing.T) {
		for i, opts := range [][]watchlock.Option{
			{watchlock.WithWatchdogTimeout(300 * time.Millisecond)},
			{watchlock.WithUnlockTimeout(10 * time.Millisecond), watchlock.WithMaxPollInterval(10 * time.Millisecond)},
			{watchlock.WithWatchdogTimeout(most)},
			{watchlock.WithUnlockTimeout(most), watchlock.WithMaxPollInterval(most)},
			{watchlock.WithLockDefaults(watchlock.WithLeaseTime(most))},
			{watchlock.WithLockDefaults(watchlock.WithLeaseTime(most), watchlock.WithMaxHold(most))},
		} {
			c := locktest.NewTestClient(t, rdb, opts...)
			lease := locktest.MustLock(t, locktest.NewTestMutex(c, "order"))
			if ttl := locktest.ServerTTL(t, s, "order"); ttl <= 0 || ttl > most {
				t.Errorf("case %d: TTL %v", i, ttl)
			}
			if err := lease.Err(); err != nil {
				t.Errorf("case %d: %v", i, err)
			}
			if err := lease.Unlock(context.Background()); err != nil && !watchlock.IsUnavailable(err) {
				t.Errorf("case %d: Unlock: %v", i, err)
			}
			locktest.Eventually(t, time.Second, "no key is left", func() bool { return locktest.ServerKeys(t, s) == 0 })
		}
	})
	t.Run("the shortest lease works", func(t *testing.T) {
		// On a busy machine the round trip may leave too little of it, which is
		// said by name.
		c := locktest.NewTestClient(t, rdb)
		lease, err := locktest.NewTestMutex(c, "order", watchlock.WithLeaseTime(10*time.Millisecond)).Lock(context.Background())
		if err != nil && !watchlock.IsUnavailable(err) {
			t.Fatalf("Lock: %v", err)
		}
		if err == nil {
			_ = lease.Unlock(context.Background()) // may be over by now
		}
		locktest.Eventually(t, time.Second, "no key is left", func() bool { return locktest.ServerKeys(t, s) == 0 })
	})
	t.Run("what is beyond is refused by name", func(t *testing.T) {
		before := s.CommandCalls()["evalsha"]
		for _, d := range []time.Duration{-1, 0, 1, 9 * time.Millisecond, 10*time.Millisecond + 1, most + time.Millisecond, 1<<63 - 1} {
			if _, err := watchlock.New(rdb, watchlock.WithUnlockTimeout(d)); err == nil || !strings.Contains(err.Error(), "unlock timeout "+d.String()) {
				t.Errorf("unlock timeout %v: %v", d, err)
			}
			if _, err := watchlock.New(rdb, watchlock.WithMaxPollInterval(d)); err == nil || !strings.Contains(err.Error(), "max poll interval "+d.String()) {
				t.Errorf("max poll interval %v: %v", d, err)
			}
			if _, err := watchlock.New(rdb, watchlock.WithWatchdogTimeout(d)); err == nil || !strings.Contains(err.Error(), "watchdog timeout "+d.String()) {
				t.Errorf("watchdog timeout %v: %v", d, err)
			}
			m := locktest.NewTestMutex(locktest.NewTestClient(t, rdb), "order")
			if _, err := m.Lock(context.Background(), watchlock.WithLeaseTime(d)); err == nil || !strings.Contains(err.Error(), "lease time "+d.String()) {
				t.Errorf("lease time %v: %v", d, err)
			}
		}
		if after := s.CommandCalls()["evalsha"]; after != before {
			t.Errorf("%d commands were sent", after-before)
		}
	})
}

func TestA05_InnerUnlockNeverRaisesTheLease(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, other := locktest.WarmClient(t, v.Client()), locktest.WarmClient(t, v.Client())
		m := locktest.NewTestMutex(c, "order", watchlock.WithLeaseTime(10*time.Second))
		outer := locktest.MustLock(t, m)
		ctx := outer.Context(context.Background())
		var inner []*watchlock.Lease
		for range 2 {
			l, err := m.Lock(ctx)
			if err != nil {
				t.Fatalf("re-entry: %v", err)
			}
			inner = append(inner, l)
		}
		for i, l := range inner {
			time.Sleep(time.Second)
			locktest.MustUnlock(t, l)
			want := 10*time.Second - time.Duration(i+1)*time.Second
			if ttl := v.Mini().TTL("order"); ttl != want {
				t.Errorf("TTL %v after %d inner unlocks, want %v", ttl, i+1, want)
			}
		}
		_, err := locktest.NewTestMutex(other, "order").TryLock(context.Background(), 0)
		locktest.MustErr(t, "another client while the outer hold lasts", err, watchlock.ErrNotAcquired)
		locktest.MustUnlock(t, outer)
		locktest.CheckNextEnters(t, m)
		locktest.CheckBubbleEmpty(t, v, c, other)
	})
}

func TestA06_WatchdogAfterALeaseIsRenewed(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.WarmClient(t, v.Client())
		m := locktest.NewTestMutex(c, "order")
		locktest.MustUnlock(t, locktest.MustLock(t, m, watchlock.WithLeaseTime(2*time.Second)))

		lease := locktest.MustLock(t, m)
		if ttl := v.Mini().TTL("order"); ttl != locktest.WatchdogTimeoutByDefault {
			t.Errorf("TTL %v right after the lock, want %v", ttl, locktest.WatchdogTimeoutByDefault)
		}
		v.Reset()
		time.Sleep(3*locktest.WatchdogTimeoutByDefault + time.Second)
		if n := locktest.VirtualRenewals(v); n != 9 {
			t.Errorf("%d renewals in three timeouts, want 9", n)
		}
		if ttl := v.Mini().TTL("order"); ttl != locktest.WatchdogTimeoutByDefault-time.Second {
			t.Errorf("TTL %v one second after a renewal", ttl)
		}
		locktest.MustUnlock(t, lease)
		locktest.CheckNextEnters(t, m)
		locktest.CheckBubbleEmpty(t, v, c)
	})
}

func TestA46_UnlockOfAnExpiredLockIsAnError(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		a, b := locktest.WarmClient(t, v.Client()), locktest.WarmClient(t, v.Client())
		lease := locktest.MustLock(t, locktest.NewTestMutex(a, "order"), watchlock.WithLeaseTime(time.Second))
		time.Sleep(2 * time.Second)
		if v.Mini().Exists("order") {
			t.Fatal("the key outlived its lease")
		}
		next := locktest.MustLock(t, locktest.NewTestMutex(b, "order"))
		locktest.MustErr(t, "Unlock", lease.Unlock(context.Background()), watchlock.ErrLost)
		locktest.MustErr(t, "Unlock again", lease.Unlock(context.Background()), watchlock.ErrNotHeld)
		time.Sleep(time.Minute)
		if err := next.Err(); err != nil {
			t.Errorf("the next holder: %v", err)
		}
		locktest.MustUnlock(t, next)
		locktest.CheckNextEnters(t, locktest.NewTestMutex(a, "order"))
		locktest.CheckBubbleEmpty(t, v, a, b)
	})
}
