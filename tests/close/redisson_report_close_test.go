package close_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestA47_CloseIsBoundedAndRepeatable(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		rdb := v.Client()
		a, b := locktest.WarmClient(t, rdb), locktest.WarmClient(t, rdb)
		var held []*watchlock.Lease
		for i := range 3 {
			held = append(held, locktest.MustLock(t, locktest.NewTestMutex(a, fmt.Sprint("held-", i))))
		}
		theirs := locktest.MustLock(t, locktest.NewTestMutex(b, "theirs"))
		var waiting []*locktest.LockCall
		for i := range 5 {
			name := "theirs"
			if i%2 == 1 {
				name = "held-0"
			}
			waiting = append(waiting, locktest.GoLock(func() (*watchlock.Lease, error) { return locktest.NewTestMutex(a, name).Lock(context.Background()) }))
		}
		time.Sleep(3 * time.Second)

		start := time.Now()
		err := a.Close()
		if took := time.Since(start); took < locktest.UnlockTimeoutByDefault || took >= 3*time.Second {
			t.Errorf("Close took %v", took)
		}
		if err == nil {
			t.Error("Close did not tell of the locks that were left")
		}
		for i, l := range held {
			if err != nil && !strings.Contains(err.Error(), l.Name()) {
				t.Errorf("Close does not name %s: %v", l.Name(), err)
			}
			locktest.MustErr(t, fmt.Sprint("lease ", i), l.Err(), watchlock.ErrClosed)
			locktest.MustErr(t, fmt.Sprint("Unlock ", i), l.Unlock(context.Background()), watchlock.ErrClosed)
		}
		for i, w := range waiting {
			w.Wait(t)
			locktest.MustErr(t, fmt.Sprint("waiter ", i), w.Err, watchlock.ErrClosed)
			if w.Took != 3*time.Second {
				t.Errorf("waiter %d came back after %v, want at once at 3 s", i, w.Took)
			}
		}

		// Again, from anywhere, at once.
		start = time.Now()
		if again := a.Close(); again == nil || err == nil || again.Error() != err.Error() {
			t.Errorf("Close again: %v, want %v", again, err)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("Close again took %v", took)
		}
		_, err = locktest.NewTestMutex(a, "new").Lock(context.Background())
		locktest.MustErr(t, "Lock after Close", err, watchlock.ErrClosed)

		// No renewal from here on: what was left is gone when its time is over.
		time.Sleep(locktest.WatchdogTimeoutByDefault)
		if keys := locktest.WithoutCounters(v.Mini().Keys()); len(keys) != 1 || keys[0] != "theirs" {
			t.Errorf("keys one timeout after Close: %q", keys)
		}
		if err := theirs.Err(); err != nil {
			t.Errorf("the other client: %v", err)
		}
		locktest.MustUnlock(t, theirs)
		for _, l := range held {
			locktest.CheckNextEnters(t, locktest.NewTestMutex(b, l.Name()))
		}
		locktest.CheckBubbleEmpty(t, v, b)
	})
}

func TestA47_CloseWhileHoldersUnlockIsClean(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.WarmClient(t, v.Client())
		lease := locktest.MustLock(t, locktest.NewTestMutex(c, "order"))
		ctx := lease.Context(context.Background())
		go func() {
			<-ctx.Done()
			time.Sleep(time.Second)
			locktest.MustErr(t, "the cause", context.Cause(ctx), watchlock.ErrClosed)
			locktest.MustUnlock(t, lease)
		}()
		start := time.Now()
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("Close took %v, the holder needed 1 s", took)
		}
		locktest.CheckBubbleEmpty(t, v, c)
	})
}
