package watchlock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// sent is how many commands the server has read, besides those that open a
// connection. The first run of a script, EVALSHA and then EVAL, counts once.
func sent(v *redistest.Virtual) int {
	n := 0
	for _, c := range v.Commands() {
		if c.Name != "HELLO" && c.Name != "EVAL" {
			n++
		}
	}
	return n
}

func TestVirtualCommandsOfAnUncontendedPairAreTwo(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		m := newTestMutex(virtualClient(t, v), "order:42", WithLeaseTime(time.Minute))
		mustUnlock(t, mustLock(t, m))
		if n := sent(v); n != 2 {
			t.Fatalf("%d commands for Lock and Unlock, want 2: %v", n, v.Commands())
		}
	})
}

func TestVirtualCommandsOfReentryAreNone(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		m := newTestMutex(virtualClient(t, v), "order:42")
		outer := mustLock(t, m)
		synctest.Wait()
		v.Reset()
		inner, err := m.Lock(outer.Context(context.Background()))
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, inner)
		if n := sent(v); n != 0 {
			t.Fatalf("%d commands for re-entry, want 0: %v", n, v.Commands())
		}
	})
}

func TestVirtualCommandsOfAFirstWaitAreFour(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		holder := mustLock(t, newTestMutex(virtualClient(t, v), "order:42"))
		waiting := newTestMutex(virtualClient(t, v), "order:42")
		synctest.Wait()
		v.Reset()
		entered := make(chan *Lease)
		go func() {
			// With a lease time, since a watchdog's first hold opens its connection.
			l, err := waiting.Lock(context.Background(), WithLeaseTime(time.Minute))
			if err != nil {
				t.Error(err)
			}
			entered <- l
		}()
		synctest.Wait()
		if n := sent(v); n != 3 { // refused, SUBSCRIBE, refused again
			t.Fatalf("%d commands until the waiter sleeps, want 3: %v", n, v.Commands())
		}
		mustUnlock(t, holder)
		l := <-entered
		if n := sent(v); n != 5 { // the release of the other, and the grant
			t.Fatalf("%d commands until the waiter enters, want 5: %v", n, v.Commands())
		}
		mustUnlock(t, l)
	})
}

func TestVirtualCommandsOfAnIdleWaiterAreAPingASecondAndThePolls(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		holder := virtualClient(t, v)
		l := mustLock(t, newTestMutex(holder, "order:42", WithLeaseTime(time.Hour)))
		waiting := newTestMutex(virtualClient(t, v), "order:42")
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
		pings, tries, least, most := v.Count("PING"), v.CountIf(acquires()), 10, 12
		if kindOfTest() == "setnx" { // it polls each half second
			least, most = 108, 120
		}
		if pings < 55 || pings > 61 || tries < least || tries > most || sent(v) != pings+tries {
			t.Errorf("50 waiters sent in a minute: %d pings, %d tries, %d in all; want about 60, %d to %d and nothing else",
				pings, tries, sent(v), least, most)
		}
		t.Logf("a minute of 50 idle waiters: %d pings, %d tries", pings, tries)
		cancel()
		for range 50 {
			<-ended
		}
		mustUnlock(t, l)
	})
}
