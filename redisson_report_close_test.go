package watchlock

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestA47_CloseIsBoundedAndRepeatable(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		rdb := v.Client()
		a, b := warmClient(t, rdb), warmClient(t, rdb)
		var held []*Lease
		for i := range 3 {
			held = append(held, mustLock(t, newTestMutex(a, fmt.Sprint("held-", i))))
		}
		theirs := mustLock(t, newTestMutex(b, "theirs"))
		var waiting []*lockCall
		for i := range 5 {
			name := "theirs"
			if i%2 == 1 {
				name = "held-0"
			}
			waiting = append(waiting, goLock(func() (*Lease, error) { return newTestMutex(a, name).Lock(context.Background()) }))
		}
		time.Sleep(3 * time.Second)

		start := time.Now()
		err := a.Close()
		if took := time.Since(start); took < defaultUnlockTimeout || took >= 3*time.Second {
			t.Errorf("Close took %v", took)
		}
		if err == nil {
			t.Error("Close did not tell of the locks that were left")
		}
		for i, l := range held {
			if err != nil && !strings.Contains(err.Error(), l.Name()) {
				t.Errorf("Close does not name %s: %v", l.Name(), err)
			}
			mustErr(t, fmt.Sprint("lease ", i), l.Err(), ErrClosed)
			mustErr(t, fmt.Sprint("Unlock ", i), l.Unlock(context.Background()), ErrClosed)
		}
		for i, w := range waiting {
			w.wait(t)
			mustErr(t, fmt.Sprint("waiter ", i), w.err, ErrClosed)
			if w.took != 3*time.Second {
				t.Errorf("waiter %d came back after %v, want at once at 3 s", i, w.took)
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
		_, err = newTestMutex(a, "new").Lock(context.Background())
		mustErr(t, "Lock after Close", err, ErrClosed)

		// No renewal from here on: what was left is gone when its time is over.
		time.Sleep(defaultWatchdogTimeout)
		if keys := withoutCounters(v.Mini().Keys()); len(keys) != 1 || keys[0] != "theirs" {
			t.Errorf("keys one timeout after Close: %q", keys)
		}
		if err := theirs.Err(); err != nil {
			t.Errorf("the other client: %v", err)
		}
		mustUnlock(t, theirs)
		for _, l := range held {
			checkNextEnters(t, newTestMutex(b, l.Name()))
		}
		checkBubbleEmpty(t, v, b)
	})
}

func TestA47_CloseWhileHoldersUnlockIsClean(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := warmClient(t, v.Client())
		lease := mustLock(t, newTestMutex(c, "order"))
		ctx := lease.Context(context.Background())
		go func() {
			<-ctx.Done()
			time.Sleep(time.Second)
			mustErr(t, "the cause", context.Cause(ctx), ErrClosed)
			mustUnlock(t, lease)
		}()
		start := time.Now()
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("Close took %v, the holder needed 1 s", took)
		}
		checkBubbleEmpty(t, v, c)
	})
}
