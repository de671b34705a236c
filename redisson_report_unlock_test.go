package watchlock

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// unlockWithLostReplies has A unlock while n replies of the release are lost and
// B waits. A's Unlock is one success, a second one is not, and B enters at the
// instant of the release that ran.
func unlockWithLostReplies(t *testing.T, n int) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		wire := redistest.NewWire()
		a := warmClient(t, v.Client(wire.Options()))
		b := warmClient(t, v.Client())
		lease := mustLock(t, newTestMutex(a, "order"))
		waiting := goLock(func() (*Lease, error) { return newTestMutex(b, "order").TryLock(context.Background(), time.Minute) })
		time.Sleep(time.Second) // B has subscribed

		lost := wire.On(releases(), redistest.DropReply).Times(n)
		freed := time.Now()
		mustUnlock(t, lease)
		waiting.wait(t)
		if waiting.err != nil {
			t.Fatalf("the waiter: %v", waiting.err)
		}
		if late := waiting.took - time.Second; late > 5*time.Millisecond {
			t.Errorf("the waiter entered %v after the release", late)
		}
		if took := time.Since(freed); took > defaultUnlockTimeout {
			t.Errorf("Unlock took %v", took)
		}
		if lost.Hits() != n {
			t.Errorf("%d replies lost, want %d", lost.Hits(), n)
		}
		mustErr(t, "Unlock again", lease.Unlock(context.Background()), ErrNotHeld)
		if got, want := fieldOf(t, v, "order"), waiting.lease.hold.burst.owner; got != want {
			t.Errorf("the lock is %q's, want the waiter's %q", got, want)
		}
		time.Sleep(3 * defaultWatchdogTimeout) // releases that are repeated harm nobody
		if err := waiting.lease.Err(); err != nil {
			t.Errorf("the waiter's lease: %v", err)
		}
		mustUnlock(t, waiting.lease)
		checkNextEnters(t, newTestMutex(a, "order"))
		checkBubbleEmpty(t, v, a, b)
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
	c := newTestClient(t, s.Client())
	m := newTestMutex(c, "order")
	for range fullCount(10000) {
		mustUnlock(t, mustLock(t, m))
	}
	if n := serverKeys(t, s); n != 0 {
		t.Errorf("%d keys after the last unlock", n)
	}
	checkNextEnters(t, m)
	checkServerEmpty(t, s, c)
}

func TestA04_ExtremeTimesWorkOrAreRefused(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(func(o *redis.Options) { o.MaxRetries = -1 })
	const most = 100 * 365 * 24 * time.Hour

	t.Run("the smallest and largest work", func(t *testing.T) {
		for i, opts := range [][]Option{
			{WithWatchdogTimeout(300 * time.Millisecond)},
			{WithUnlockTimeout(10 * time.Millisecond), WithMaxPollInterval(10 * time.Millisecond)},
			{WithWatchdogTimeout(most)},
			{WithUnlockTimeout(most), WithMaxPollInterval(most)},
			{WithLockDefaults(WithLeaseTime(most))},
			{WithLockDefaults(WithLeaseTime(most), WithMaxHold(most))},
		} {
			c := newTestClient(t, rdb, opts...)
			lease := mustLock(t, newTestMutex(c, "order"))
			if ttl := serverTTL(t, s, "order"); ttl <= 0 || ttl > most {
				t.Errorf("case %d: TTL %v", i, ttl)
			}
			if err := lease.Err(); err != nil {
				t.Errorf("case %d: %v", i, err)
			}
			if err := lease.Unlock(context.Background()); err != nil && !IsUnavailable(err) {
				t.Errorf("case %d: Unlock: %v", i, err)
			}
			eventually(t, time.Second, "no key is left", func() bool { return serverKeys(t, s) == 0 })
		}
	})
	t.Run("the shortest lease works", func(t *testing.T) {
		// On a busy machine the round trip may leave too little of it, which is
		// said by name.
		c := newTestClient(t, rdb)
		lease, err := newTestMutex(c, "order", WithLeaseTime(10*time.Millisecond)).Lock(context.Background())
		if err != nil && !IsUnavailable(err) {
			t.Fatalf("Lock: %v", err)
		}
		if err == nil {
			_ = lease.Unlock(context.Background()) // may be over by now
		}
		eventually(t, time.Second, "no key is left", func() bool { return serverKeys(t, s) == 0 })
	})
	t.Run("what is beyond is refused by name", func(t *testing.T) {
		before := s.CommandCalls()["evalsha"]
		for _, d := range []time.Duration{-1, 0, 1, 9 * time.Millisecond, 10*time.Millisecond + 1, most + time.Millisecond, 1<<63 - 1} {
			if _, err := New(rdb, WithUnlockTimeout(d)); err == nil || !strings.Contains(err.Error(), "unlock timeout "+d.String()) {
				t.Errorf("unlock timeout %v: %v", d, err)
			}
			if _, err := New(rdb, WithMaxPollInterval(d)); err == nil || !strings.Contains(err.Error(), "max poll interval "+d.String()) {
				t.Errorf("max poll interval %v: %v", d, err)
			}
			if _, err := New(rdb, WithWatchdogTimeout(d)); err == nil || !strings.Contains(err.Error(), "watchdog timeout "+d.String()) {
				t.Errorf("watchdog timeout %v: %v", d, err)
			}
			m := newTestMutex(newTestClient(t, rdb), "order")
			if _, err := m.Lock(context.Background(), WithLeaseTime(d)); err == nil || !strings.Contains(err.Error(), "lease time "+d.String()) {
				t.Errorf("lease time %v: %v", d, err)
			}
		}
		if after := s.CommandCalls()["evalsha"]; after != before {
			t.Errorf("%d commands were sent", after-before)
		}
	})
}

func TestA05_InnerUnlockNeverRaisesTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, other := warmClient(t, v.Client()), warmClient(t, v.Client())
		m := newTestMutex(c, "order", WithLeaseTime(10*time.Second))
		outer := mustLock(t, m)
		ctx := outer.Context(context.Background())
		var inner []*Lease
		for range 2 {
			l, err := m.Lock(ctx)
			if err != nil {
				t.Fatalf("re-entry: %v", err)
			}
			inner = append(inner, l)
		}
		for i, l := range inner {
			time.Sleep(time.Second)
			mustUnlock(t, l)
			want := 10*time.Second - time.Duration(i+1)*time.Second
			if ttl := v.Mini().TTL("order"); ttl != want {
				t.Errorf("TTL %v after %d inner unlocks, want %v", ttl, i+1, want)
			}
		}
		_, err := newTestMutex(other, "order").TryLock(context.Background(), 0)
		mustErr(t, "another client while the outer hold lasts", err, ErrNotAcquired)
		mustUnlock(t, outer)
		checkNextEnters(t, m)
		checkBubbleEmpty(t, v, c, other)
	})
}

func TestA06_WatchdogAfterALeaseIsRenewed(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := warmClient(t, v.Client())
		m := newTestMutex(c, "order")
		mustUnlock(t, mustLock(t, m, WithLeaseTime(2*time.Second)))

		lease := mustLock(t, m)
		if ttl := v.Mini().TTL("order"); ttl != defaultWatchdogTimeout {
			t.Errorf("TTL %v right after the lock, want %v", ttl, defaultWatchdogTimeout)
		}
		v.Reset()
		time.Sleep(3*defaultWatchdogTimeout + time.Second)
		if n := virtualRenewals(v); n != 9 {
			t.Errorf("%d renewals in three timeouts, want 9", n)
		}
		if ttl := v.Mini().TTL("order"); ttl != defaultWatchdogTimeout-time.Second {
			t.Errorf("TTL %v one second after a renewal", ttl)
		}
		mustUnlock(t, lease)
		checkNextEnters(t, m)
		checkBubbleEmpty(t, v, c)
	})
}

func TestA46_UnlockOfAnExpiredLockIsAnError(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		a, b := warmClient(t, v.Client()), warmClient(t, v.Client())
		lease := mustLock(t, newTestMutex(a, "order"), WithLeaseTime(time.Second))
		time.Sleep(2 * time.Second)
		if v.Mini().Exists("order") {
			t.Fatal("the key outlived its lease")
		}
		next := mustLock(t, newTestMutex(b, "order"))
		mustErr(t, "Unlock", lease.Unlock(context.Background()), ErrLost)
		mustErr(t, "Unlock again", lease.Unlock(context.Background()), ErrNotHeld)
		time.Sleep(time.Minute)
		if err := next.Err(); err != nil {
			t.Errorf("the next holder: %v", err)
		}
		mustUnlock(t, next)
		checkNextEnters(t, newTestMutex(a, "order"))
		checkBubbleEmpty(t, v, a, b)
	})
}
