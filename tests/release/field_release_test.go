package release_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestS09_UnlockOfWhatIsNotHeldIsOneError(t *testing.T) {
	s, _ := locktest.RealScene(t)
	c := s.Client()
	m := locktest.NewTestMutex(c, "report")
	busy := locktest.MustLock(t, m)
	never, err := locktest.NewTestMutex(s.Client(), "report").TryLock(t.Context(), 0)
	if !errors.Is(err, watchlock.ErrNotAcquired) {
		t.Fatalf("a try on a held lock: %v", err)
	}
	locktest.MustUnlock(t, busy)
	expired := locktest.MustLock(t, m, watchlock.WithLeaseTime(20*time.Millisecond))
	locktest.Eventually(t, 5*time.Second, "the key expired", func() bool { return s.TTL(m) < 0 })
	// Expired and taken by another since.
	replaced := locktest.MustLock(t, m, watchlock.WithLeaseTime(20*time.Millisecond))
	locktest.Eventually(t, 5*time.Second, "the key expired", func() bool { return s.TTL(m) < 0 })
	holder := locktest.MustLock(t, locktest.NewTestMutex(s.Client(), "report"))
	owner := s.Owner(m)

	sentinels := []error{watchlock.ErrNotHeld, watchlock.ErrLost, watchlock.ErrNotAcquired, watchlock.ErrClosed, watchlock.ErrWrongType}
	for _, test := range []struct {
		name  string
		lease *watchlock.Lease
		want  error
	}{
		{"never taken", never, watchlock.ErrNotHeld},
		{"unlocked before", busy, watchlock.ErrNotHeld},
		{"expired", expired, watchlock.ErrLost},
		{"expired and unlocked before", expired, watchlock.ErrNotHeld},
		{"expired and taken by another", replaced, watchlock.ErrLost},
	} {
		err := test.lease.Unlock(t.Context())
		matched := 0
		for _, sentinel := range sentinels {
			if errors.Is(err, sentinel) {
				matched++
			}
		}
		if matched != 1 || !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v and nothing else", test.name, err, test.want)
		}
		var lock *watchlock.LockError
		if !errors.As(err, &lock) || lock.Op != "unlock" || watchlock.IsUnavailable(err) {
			t.Errorf("%s: %v, want a LockError of unlock", test.name, err)
		}
	}
	locktest.RedisAnswered(t, c)
	if s.Owner(m) != owner || holder.Err() != nil {
		t.Errorf("the owner was %q and is %q, lease %v", owner, s.Owner(m), holder.Err())
	}
	locktest.MustUnlock(t, holder)
	s.HandsOver("report")
	s.End()
}

func TestS13_UnlockWithACancelledContextReleases(t *testing.T) {
	s, _ := locktest.RealScene(t)
	m, other := locktest.NewTestMutex(s.Client(), "report"), locktest.NewTestMutex(s.Client(), "report")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for _, ctx := range []context.Context{cancelled, late} {
		var count locktest.Counter
		lease := locktest.MustLock(t, m)
		entered := make(chan time.Time, 1)
		go func() {
			next := locktest.MustLock(t, other)
			entered <- time.Now()
			count.Section(0)
			locktest.MustUnlock(t, next)
		}()
		s.AwaitQueue(other, 1)
		count.Section(time.Millisecond)
		owner, left := s.Owner(m), time.Now()
		if err := lease.Unlock(ctx); err != nil {
			t.Errorf("unlock with an ended context: %v", err)
		}
		if s.Owner(m) == owner {
			t.Error("unlock returned, and the key is there")
		}
		if took := (<-entered).Sub(left); took >= locktest.SceneHandOver {
			t.Errorf("the waiter was in %v after the release", took)
		}
		locktest.Eventually(t, 5*time.Second, "the waiter has left", func() bool { return len(s.Keys()) == 0 })
		count.Check(t, 2)
	}

	// Do with a context that ends under f releases as well.
	ctx, cancel := context.WithCancel(t.Context())
	err := m.Do(ctx, func(ctx context.Context) error { cancel(); return ctx.Err() })
	if !errors.Is(err, context.Canceled) || len(s.Keys()) != 0 {
		t.Errorf("do: %v, keys %q", err, s.Keys())
	}
	s.HandsOver("report")
	s.End()
}

func TestS15_EveryCleanUpReturnsPromptly(t *testing.T) {
	s, _ := locktest.RealScene(t)
	a, b := s.Client(), s.Client(watchlock.WithUnlockTimeout(200*time.Millisecond))
	held := locktest.MustLock(t, locktest.NewTestMutex(a, "report"))
	failed, err := locktest.NewTestMutex(b, "report").TryLock(t.Context(), 0)
	if !errors.Is(err, watchlock.ErrNotAcquired) {
		t.Fatalf("a try on a held lock: %v", err)
	}
	left := locktest.MustLock(t, locktest.NewTestMutex(b, "left"), watchlock.WithLeaseTime(time.Second))
	prompt := func(what string, want error, f func() error) {
		t.Helper()
		start, done := time.Now(), make(chan error, 1)
		go func() { done <- f() }()
		select {
		case err := <-done:
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
			if took := time.Since(start); took > 500*time.Millisecond {
				t.Errorf("%s took %v", what, took)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s hangs", what)
		}
	}
	unlock := func(l *watchlock.Lease) func() error {
		return func() error { return l.Unlock(context.Background()) }
	}
	prompt("unlock after a failed try", watchlock.ErrNotHeld, unlock(failed))
	prompt("unlock", nil, unlock(held))
	prompt("unlock again", watchlock.ErrNotHeld, unlock(held))
	closing := time.Now()
	closed := b.Close()
	if closed == nil {
		t.Error("Close did not say that a lock was left")
	}
	if took := time.Since(closing); took > 700*time.Millisecond {
		t.Errorf("Close took %v, with 200 ms for its holders", took)
	}
	prompt("unlock after Close", watchlock.ErrClosed, unlock(left))
	prompt("unlock of a failed try after Close", watchlock.ErrNotHeld, unlock(failed))
	prompt("Close again", closed, b.Close)
	prompt("unlock after another client's Close", watchlock.ErrNotHeld, unlock(held))
	s.HandsOver("report")
	s.End()
}

func TestS17_FlushIsToldAndRenewalEnds(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		s := locktest.VirtualScene(t, v)
		m := locktest.NewTestMutex(s.Client(), "report")
		for _, unlockFirst := range []bool{false, true} {
			start := time.Now()
			lease := locktest.MustLock(t, m)
			ctx := lease.Context(t.Context())
			time.Sleep(13 * time.Second)
			if err := s.Probe.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			if unlockFirst {
				time.Sleep(time.Second)
			} else {
				<-lease.Done()
				if at := time.Since(start); at != 20*time.Second {
					t.Errorf("told after %v, want at the next renewal after 20 s", at)
				}
				if !errors.Is(lease.Err(), watchlock.ErrLost) || !errors.Is(context.Cause(ctx), watchlock.ErrLost) {
					t.Errorf("lease %v, context %v", lease.Err(), context.Cause(ctx))
				}
			}
			if err := lease.Unlock(t.Context()); !errors.Is(err, watchlock.ErrLost) {
				t.Errorf("unlock: %v, want ErrLost", err)
			}
			v.Reset()
			time.Sleep(time.Minute)
			if n := v.CountIf(locktest.Renews()); n != 0 {
				t.Errorf("%d renewals after the loss", n)
			}
			if keys := s.Keys(); len(keys) > 0 {
				t.Errorf("the lock came back: %q", keys)
			}
		}
		s.HandsOver("report")
		s.End()
	})
}
