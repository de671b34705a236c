package watchlock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestS09_UnlockOfWhatIsNotHeldIsOneError(t *testing.T) {
	s, _ := realScene(t)
	c := s.client()
	m := newTestMutex(c, "report")
	busy := mustLock(t, m)
	never, err := newTestMutex(s.client(), "report").TryLock(t.Context(), 0)
	if !errors.Is(err, ErrNotAcquired) {
		t.Fatalf("a try on a held lock: %v", err)
	}
	mustUnlock(t, busy)
	expired := mustLock(t, m, WithLeaseTime(20*time.Millisecond))
	eventually(t, 5*time.Second, "the key expired", func() bool { return s.ttl(m) < 0 })
	// Expired and taken by another since.
	replaced := mustLock(t, m, WithLeaseTime(20*time.Millisecond))
	eventually(t, 5*time.Second, "the key expired", func() bool { return s.ttl(m) < 0 })
	holder := mustLock(t, newTestMutex(s.client(), "report"))
	owner := s.owner(m)

	sentinels := []error{ErrNotHeld, ErrLost, ErrNotAcquired, ErrClosed, ErrWrongType}
	for _, test := range []struct {
		name  string
		lease *Lease
		want  error
	}{
		{"never taken", never, ErrNotHeld},
		{"unlocked before", busy, ErrNotHeld},
		{"expired", expired, ErrLost},
		{"expired and unlocked before", expired, ErrNotHeld},
		{"expired and taken by another", replaced, ErrLost},
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
		var lock *LockError
		if !errors.As(err, &lock) || lock.Op != "unlock" || IsUnavailable(err) {
			t.Errorf("%s: %v, want a LockError of unlock", test.name, err)
		}
	}
	redisAnswered(t, c)
	if s.owner(m) != owner || holder.Err() != nil {
		t.Errorf("the owner was %q and is %q, lease %v", owner, s.owner(m), holder.Err())
	}
	mustUnlock(t, holder)
	s.handsOver("report")
	s.end()
}

func TestS13_UnlockWithACancelledContextReleases(t *testing.T) {
	s, _ := realScene(t)
	m, other := newTestMutex(s.client(), "report"), newTestMutex(s.client(), "report")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for _, ctx := range []context.Context{cancelled, late} {
		var count counter
		lease := mustLock(t, m)
		entered := make(chan time.Time, 1)
		go func() {
			next := mustLock(t, other)
			entered <- time.Now()
			count.section(0)
			mustUnlock(t, next)
		}()
		s.awaitQueue(other, 1)
		count.section(time.Millisecond)
		owner, left := s.owner(m), time.Now()
		if err := lease.Unlock(ctx); err != nil {
			t.Errorf("unlock with an ended context: %v", err)
		}
		if s.owner(m) == owner {
			t.Error("unlock returned, and the key is there")
		}
		if took := (<-entered).Sub(left); took >= sceneHandOver {
			t.Errorf("the waiter was in %v after the release", took)
		}
		eventually(t, 5*time.Second, "the waiter has left", func() bool { return len(s.keys()) == 0 })
		count.check(t, 2)
	}

	// Do with a context that ends under f releases as well.
	ctx, cancel := context.WithCancel(t.Context())
	err := m.Do(ctx, func(ctx context.Context) error { cancel(); return ctx.Err() })
	if !errors.Is(err, context.Canceled) || len(s.keys()) != 0 {
		t.Errorf("do: %v, keys %q", err, s.keys())
	}
	s.handsOver("report")
	s.end()
}

func TestS15_EveryCleanUpReturnsPromptly(t *testing.T) {
	s, _ := realScene(t)
	a, b := s.client(), s.client(WithUnlockTimeout(200*time.Millisecond))
	held := mustLock(t, newTestMutex(a, "report"))
	failed, err := newTestMutex(b, "report").TryLock(t.Context(), 0)
	if !errors.Is(err, ErrNotAcquired) {
		t.Fatalf("a try on a held lock: %v", err)
	}
	left := mustLock(t, newTestMutex(b, "left"), WithLeaseTime(time.Second))
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
	unlock := func(l *Lease) func() error {
		return func() error { return l.Unlock(context.Background()) }
	}
	prompt("unlock after a failed try", ErrNotHeld, unlock(failed))
	prompt("unlock", nil, unlock(held))
	prompt("unlock again", ErrNotHeld, unlock(held))
	closing := time.Now()
	if err := b.Close(); err == nil {
		t.Error("Close did not say that a lock was left")
	}
	if took := time.Since(closing); took > 700*time.Millisecond {
		t.Errorf("Close took %v, with 200 ms for its holders", took)
	}
	prompt("unlock after Close", ErrClosed, unlock(left))
	prompt("unlock of a failed try after Close", ErrNotHeld, unlock(failed))
	prompt("Close again", b.closeErr, b.Close)
	prompt("unlock after another client's Close", ErrNotHeld, unlock(held))
	s.handsOver("report")
	s.end()
}

func TestS17_FlushIsToldAndRenewalEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		s := virtualScene(t, v)
		m := newTestMutex(s.client(), "report")
		for _, unlockFirst := range []bool{false, true} {
			start := time.Now()
			lease := mustLock(t, m)
			ctx := lease.Context(t.Context())
			time.Sleep(13 * time.Second)
			if err := s.probe.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			if unlockFirst {
				time.Sleep(time.Second)
			} else {
				<-lease.Done()
				if at := time.Since(start); at != 20*time.Second {
					t.Errorf("told after %v, want at the next renewal after 20 s", at)
				}
				if !errors.Is(lease.Err(), ErrLost) || !errors.Is(context.Cause(ctx), ErrLost) {
					t.Errorf("lease %v, context %v", lease.Err(), context.Cause(ctx))
				}
			}
			if err := lease.Unlock(t.Context()); !errors.Is(err, ErrLost) {
				t.Errorf("unlock: %v, want ErrLost", err)
			}
			v.Reset()
			time.Sleep(time.Minute)
			if n := v.CountIf(renews()); n != 0 {
				t.Errorf("%d renewals after the loss", n)
			}
			if keys := s.keys(); len(keys) > 0 {
				t.Errorf("the lock came back: %q", keys)
			}
		}
		s.handsOver("report")
		s.end()
	})
}
