package hold_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestVirtualCommandsOfAnUncontendedPairAreTwo(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		m := locktest.NewTestMutex(locktest.VirtualClient(t, v), "order:42", watchlock.WithLeaseTime(time.Minute))
		locktest.MustUnlock(t, locktest.MustLock(t, m))
		if n := locktest.Sent(v); n != 2 {
			t.Fatalf("%d commands for Lock and Unlock, want 2: %v", n, v.Commands())
		}
	})
}

func TestVirtualCommandsOfReentryAreNone(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		m := locktest.NewTestMutex(locktest.VirtualClient(t, v), "order:42")
		outer := locktest.MustLock(t, m)
		synctest.Wait()
		v.Reset()
		inner, err := m.Lock(outer.Context(context.Background()))
		if err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, inner)
		if n := locktest.Sent(v); n != 0 {
			t.Fatalf("%d commands for re-entry, want 0: %v", n, v.Commands())
		}
	})
}

func TestVirtualCommandsOfAFirstWaitAreFour(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		holder := locktest.MustLock(t, locktest.NewTestMutex(locktest.VirtualClient(t, v), "order:42"))
		waiting := locktest.NewTestMutex(locktest.VirtualClient(t, v), "order:42")
		synctest.Wait()
		v.Reset()
		entered := make(chan *watchlock.Lease)
		go func() {
			// With a lease time, since a watchdog's first hold opens its connection.
			l, err := waiting.Lock(context.Background(), watchlock.WithLeaseTime(time.Minute))
			if err != nil {
				t.Error(err)
			}
			entered <- l
		}()
		synctest.Wait()
		if n := locktest.Sent(v); n != 3 { // refused, SUBSCRIBE, refused again
			t.Fatalf("%d commands until the waiter sleeps, want 3: %v", n, v.Commands())
		}
		locktest.MustUnlock(t, holder)
		l := <-entered
		if n := locktest.Sent(v); n != 5 { // the release of the other, and the grant
			t.Fatalf("%d commands until the waiter enters, want 5: %v", n, v.Commands())
		}
		locktest.MustUnlock(t, l)
	})
}

func TestVirtualCommandsOfAnIdleWaiterAreAPingASecondAndThePolls(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		holder := locktest.VirtualClient(t, v)
		l := locktest.MustLock(t, locktest.NewTestMutex(holder, "order:42", watchlock.WithLeaseTime(time.Hour)))
		waiting := locktest.NewTestMutex(locktest.VirtualClient(t, v), "order:42")
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		for range 50 {
			go func() {
				_, _ = waiting.Lock(ctx)
				ended <- struct{}{}
			}()
		}
		time.Sleep(time.Minute + 500*time.Millisecond) // the polls are as far apart as they get
		v.Reset()
		time.Sleep(time.Minute)
		synctest.Wait()
		pings, tries, least, most := v.Count("PING"), v.CountIf(locktest.Acquires()), 10, 12
		if locktest.KindOfTest() == "setnx" { // it polls each half second
			least, most = 108, 120
		}
		if pings < 55 || pings > 61 || tries < least || tries > most || locktest.Sent(v) != pings+tries {
			t.Errorf("50 waiters sent in a minute: %d pings, %d tries, %d in all; want about 60, %d to %d and nothing else",
				pings, tries, locktest.Sent(v), least, most)
		}
		t.Logf("a minute of 50 idle waiters: %d pings, %d tries", pings, tries)
		cancel()
		for range 50 {
			<-ended
		}
		locktest.MustUnlock(t, l)
	})
}
