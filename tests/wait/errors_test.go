package wait_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

func TestLockErrorNamesOperationLockAndReason(t *testing.T) {
	for want, err := range map[string]*watchlock.LockError{
		`watchlock: unlock "order:1": lease lost`:                      {Op: "unlock", Name: "order:1", Err: watchlock.ErrLost},
		`watchlock: try lock "n": not acquired, held for 12.5s more`:   {Op: "try lock", Name: "n", TTL: 12500 * time.Millisecond, Err: watchlock.ErrNotAcquired},
		`watchlock: try lock "n": not acquired`:                        {Op: "try lock", Name: "n", TTL: -time.Millisecond, Err: watchlock.ErrNotAcquired},
		`watchlock: lock "line\nbreak \"quoted\" \x00": client closed`: {Op: "lock", Name: "line\nbreak \"quoted\" \x00", Err: watchlock.ErrClosed},
	} {
		if got := err.Error(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	hostile := strings.Repeat("\xff", 32<<10)
	if got := (&watchlock.LockError{Op: "lock", Name: hostile, Err: watchlock.ErrClosed}).Error(); len(got) > 600 || !strings.HasSuffix(got, "client closed") {
		t.Errorf("%d bytes: %.100s", len(got), got)
	}
}

func TestSentinelsAreTellable(t *testing.T) {
	all := []error{watchlock.ErrNotAcquired, watchlock.ErrLost, watchlock.ErrNotHeld, watchlock.ErrClosed, watchlock.ErrWrongType}
	for i, is := range all {
		err := fmt.Errorf("in a caller: %w", &watchlock.LockError{Op: "lock", Name: "n", Err: is})
		for j, other := range all {
			if errors.Is(err, other) != (i == j) {
				t.Errorf("%v matches %v: %v", err, other, errors.Is(err, other))
			}
		}
		if watchlock.IsUnavailable(err) {
			t.Errorf("%v is called unavailable", err)
		}
	}
	if watchlock.IsUnavailable(nil) || watchlock.IsUnavailable(context.DeadlineExceeded) || watchlock.IsUnavailable(os.ErrDeadlineExceeded) {
		t.Error("what is not ours is called unavailable")
	}
}

func TestNoAnswerMatchesTheDeadlineOfTheOperatingSystem(t *testing.T) {
	err := &watchlock.LockError{Op: "lock", Name: "n", Err: transport.Unavailable(transport.NoAnswer(time.Second))}
	var timeout interface{ Timeout() bool }
	if !errors.Is(err, os.ErrDeadlineExceeded) || !watchlock.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if got := err.Error(); got != `watchlock: lock "n": no answer from Redis within 1s` {
		t.Errorf("%s", got)
	}
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Error("it is no timeout")
	}
}

func TestEveryErrorOfALeaseIsALockErrorOfThatLock(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.NewTestClient(t, v.Client())
		m := c.NewMutex("n")
		l := locktest.MustLock(t, m)
		busy := func() error { _, err := m.TryLock(t.Context(), 0); return err }()
		locktest.MustUnlock(t, l)
		lost := locktest.MustLock(t, m)
		v.Mini().Del("n")
		<-lost.Done()
		var none *watchlock.Lease
		for what, e := range map[string]struct {
			err      error
			op, name string
			is       error
		}{
			"busy":               {busy, "try lock", "n", watchlock.ErrNotAcquired},
			"unlock twice":       {l.Unlock(t.Context()), "unlock", "n", watchlock.ErrNotHeld},
			"Err after Unlock":   {l.Err(), "lease", "n", watchlock.ErrNotHeld},
			"cause after Unlock": {context.Cause(l.Context(t.Context())), "lease", "n", watchlock.ErrNotHeld},
			"Err after a loss":   {lost.Err(), "lease", "n", watchlock.ErrLost},
			"unlock of the lost": {lost.Unlock(t.Context()), "unlock", "n", watchlock.ErrLost},
			"unlock of nil":      {none.Unlock(t.Context()), "unlock", "", watchlock.ErrNotHeld},
			"Err of nil":         {none.Err(), "lease", "", watchlock.ErrNotHeld},
		} {
			var le *watchlock.LockError
			if !errors.As(e.err, &le) || le.Op != e.op || le.Name != e.name || !errors.Is(e.err, e.is) || watchlock.IsUnavailable(e.err) {
				t.Errorf("%s: %v, want %s %q: %v", what, e.err, e.op, e.name, e.is)
			}
		}
		if again := lost.Unlock(t.Context()); !errors.Is(again, watchlock.ErrNotHeld) {
			t.Errorf("second unlock of the lost: %v", again)
		}
		select {
		case <-none.Done():
		default:
			t.Error("a nil lease is not done")
		}
		if none.Context(t.Context()).Err() == nil || !none.ExpiresAt().IsZero() || none.Name() != "" {
			t.Error("a nil lease looks held")
		}
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		_, err := m.Lock(t.Context())
		var le *watchlock.LockError
		if !errors.As(err, &le) || !errors.Is(err, watchlock.ErrClosed) || le.Op != "lock" || le.Name != "n" {
			t.Errorf("Lock after Close: %v", err)
		}
	})
}

func TestBusyErrorTellsTheTTLThatTheRefusalSaw(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		m, other := locktest.NewTestClient(t, v.Client()).NewMutex("n"), locktest.NewTestClient(t, v.Client()).NewMutex("n")
		l := locktest.MustLock(t, other)
		time.Sleep(3 * time.Second)
		_, err := m.TryLock(t.Context(), 0)
		var le *watchlock.LockError
		if !errors.As(err, &le) || le.TTL != 27*time.Second {
			t.Errorf("%v, want a TTL of 27s", err)
		}
		_, err = m.TryLock(t.Context(), 2*time.Second) // the last look was on the way
		if !errors.As(err, &le) || le.TTL > 25*time.Second || le.TTL <= 25*time.Second-time.Millisecond {
			t.Errorf("after 2 s: %v, want a TTL of 25s, as exact as Redis told it", err)
		}
		locktest.MustUnlock(t, l)
		v.Mini().HSet("n", locktest.Stranger, "1")
		_, err = m.TryLock(t.Context(), 0)
		if !errors.As(err, &le) || le.TTL >= 0 || !errors.Is(err, watchlock.ErrNotAcquired) {
			t.Errorf("key without TTL: %v, TTL %v, want it negative", err, le.TTL)
		}
	})
}
