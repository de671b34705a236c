package hold_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// contractOf is what the parts of TestContract share: a server and two clients
// that could be two processes.
type contractOf struct {
	s    *redistest.Server
	a, b *watchlock.Client
}

// TestContract goes through what the package promises, once on each family.
func TestContract(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		for _, part := range []struct {
			name string
			f    func(t *testing.T, c contractOf)
		}{
			{"a lock is one key with an end, and gone after Unlock", contractOnTheWire},
			{"a busy lock is told with its TTL", contractBusy},
			{"a waiter wakes by the message", contractWakes},
			{"Do runs inside and TryDo answers busy", contractDo},
			{"a lease re-enters by its context", contractReentry},
			{"the watchdog renews", contractRenewal},
			{"an explicit lease ends by itself", contractExpiry},
			{"max hold ends a renewed lease", contractMaxHold},
			{"a deleted key is a loss", contractLoss},
			{"Info and Held tell who holds", contractInfo},
			{"a cancelled wait ends at once and leaves nothing", contractCancel},
			{"Unlock goes out on a cancelled context, once", contractUnlock},
			{"Close ends waiters and leaves", contractClose},
		} {
			t.Run(part.name, func(t *testing.T) {
				c := contractOf{s, locktest.NewTestClient(t, s.Client()), locktest.NewTestClient(t, s.Client())}
				part.f(t, c)
				if keys := locktest.WithoutCounters(s.Client().Keys(context.Background(), "*").Val()); len(keys) != 0 && !t.Failed() {
					t.Errorf("left behind: %q", keys)
				}
			})
		}
	})
}

// started is a TryLock on its way.
type started struct {
	lease *watchlock.Lease
	err   error
	at    time.Time // when it returned
}

// tries starts a TryLock and returns when it is subscribed to releases.
func (c contractOf) tries(t *testing.T, ctx context.Context, m *watchlock.Mutex, wait time.Duration) chan started {
	t.Helper()
	result := make(chan started, 1)
	go func() {
		l, err := m.TryLock(ctx, wait)
		result <- started{l, err, time.Now()}
	}()
	channel := locktest.KeysOf(m).Channel
	locktest.Eventually(t, 5*time.Second, "a subscription to "+channel, func() bool {
		n, err := c.s.Client().PubSubNumSub(context.Background(), channel).Result()
		return err == nil && n[channel] == 1
	})
	return result
}

func contractOnTheWire(t *testing.T, c contractOf) {
	b := locktest.ScriptBench{TB: t, Rdb: c.s.Client(), Real: c.s}
	before := time.Now()
	l := locktest.MustLock(t, locktest.NewTestMutex(c.a, "wire"))
	if until := l.ExpiresAt(); until.Before(before.Add(29*time.Second)) || until.After(time.Now().Add(30*time.Second-bootclock.Margin(30*time.Second))) {
		t.Errorf("trusted until %v after the call", until.Sub(before))
	}
	if locktest.KindOfTest() == "setnx" {
		if owner, err := b.Rdb.Get(t.Context(), "wire").Result(); err != nil || !strings.HasPrefix(owner, c.a.ID()+":") {
			t.Fatalf("value %q, %v", owner, err)
		}
		b.Lasts("wire", b.Do("PTTL", "wire"), 30*time.Second)
	} else {
		owners, err := b.Rdb.HKeys(t.Context(), "wire").Result()
		if err != nil || len(owners) != 1 || !strings.HasPrefix(owners[0], c.a.ID()+":") {
			t.Fatalf("fields %q, %v", owners, err)
		}
		b.Holds("wire", 30*time.Second, owners[0])
	}
	if keys := locktest.WithoutCounters(b.Rdb.Keys(t.Context(), "*").Val()); len(keys) != 1 {
		t.Errorf("keys %q", keys)
	}
	heard := b.Hears(locktest.ChannelOfTest("wire"))
	locktest.MustUnlock(t, l)
	if got := heard(); got != locktest.ChannelOfTest("wire")+" 00" {
		t.Errorf("heard %q", got)
	}
}

func contractBusy(t *testing.T, c contractOf) {
	l := locktest.MustLock(t, locktest.NewTestMutex(c.a, "busy"))
	var le *watchlock.LockError
	_, err := locktest.NewTestMutex(c.b, "busy").TryLock(t.Context(), 0)
	if !errors.Is(err, watchlock.ErrNotAcquired) || watchlock.IsUnavailable(err) || !errors.As(err, &le) || le.TTL <= 20*time.Second || le.TTL > 30*time.Second {
		t.Errorf("from elsewhere: %v", err)
	}
	_, err = locktest.NewTestMutex(c.a, "busy").TryLock(t.Context(), 0)
	if !errors.Is(err, watchlock.ErrNotAcquired) || !errors.As(err, &le) || le.TTL <= 20*time.Second || le.TTL > 30*time.Second {
		t.Errorf("from here: %v", err)
	}
	begin := time.Now()
	_, err = locktest.NewTestMutex(c.b, "busy").TryLock(t.Context(), 200*time.Millisecond)
	if took := time.Since(begin); !errors.Is(err, watchlock.ErrNotAcquired) || took < 200*time.Millisecond || took > 700*time.Millisecond {
		t.Errorf("a wait of 200ms took %v: %v", took, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err = locktest.NewTestMutex(c.b, "busy").Lock(ctx); !errors.Is(err, watchlock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("at a deadline: %v", err)
	}
	locktest.MustUnlock(t, l)
}

func contractWakes(t *testing.T, c contractOf) {
	l := locktest.MustLock(t, locktest.NewTestMutex(c.a, "wake"))
	elsewhere := c.tries(t, t.Context(), locktest.NewTestMutex(c.b, "wake"), 20*time.Second)
	// Long enough that the next look without a message is seconds away.
	select {
	case got := <-elsewhere:
		t.Fatalf("it did not wait: %v", got.err)
	case <-time.After(1500 * time.Millisecond):
	}
	freed := time.Now()
	locktest.MustUnlock(t, l)
	got := <-elsewhere
	if got.err != nil {
		t.Fatal(got.err)
	}
	if took := got.at.Sub(freed); took > 500*time.Millisecond {
		t.Errorf("it woke %v after Unlock", took)
	}
	locktest.MustUnlock(t, got.lease)
}

func contractDo(t *testing.T, c contractOf) {
	failure := errors.New("its own")
	err := locktest.NewTestMutex(c.a, "do").Do(t.Context(), func(ctx context.Context) error {
		if ctx.Err() != nil {
			t.Errorf("inside: %v", ctx.Err())
		}
		busy := locktest.NewTestMutex(c.b, "do").TryDo(t.Context(), 0, func(context.Context) error {
			t.Error("two are inside")
			return nil
		})
		if !errors.Is(busy, watchlock.ErrNotAcquired) {
			t.Errorf("TryDo: %v", busy)
		}
		return failure
	})
	if err != failure { //nolint:errorlint // the very value is promised
		t.Errorf("Do: %v, want the function's own error", err)
	}
}

func contractReentry(t *testing.T, c contractOf) {
	m := locktest.NewTestMutex(c.a, "again")
	outer := locktest.MustLock(t, m)
	c.s.Config("maxmemory", "1") // nothing can be acquired in Redis now
	inner, err := m.TryLock(outer.Context(t.Context()), 0)
	c.s.Config("maxmemory", "0")
	if err != nil {
		t.Fatalf("re-entry: %v", err)
	}
	if _, err := m.TryLock(watchlock.WithoutReentry(outer.Context(t.Context())), 0); !errors.Is(err, watchlock.ErrNotAcquired) {
		t.Errorf("without the right to re-enter: %v", err)
	}
	locktest.MustUnlock(t, outer)
	if _, err := locktest.NewTestMutex(c.b, "again").TryLock(t.Context(), 0); !errors.Is(err, watchlock.ErrNotAcquired) {
		t.Errorf("with one of two holds left: %v", err)
	}
	if err := inner.Err(); err != nil {
		t.Errorf("the inner lease: %v", err)
	}
	locktest.MustUnlock(t, inner)
	locktest.MustUnlock(t, locktest.MustLock(t, locktest.NewTestMutex(c.b, "again")))
}

func contractRenewal(t *testing.T, c contractOf) {
	a := locktest.NewTestClient(t, c.s.Client(), watchlock.WithWatchdogTimeout(900*time.Millisecond))
	l := locktest.MustLock(t, locktest.NewTestMutex(a, "kept"))
	begin := l.ExpiresAt()
	locktest.Eventually(t, 10*time.Second, "renewal past three timeouts", func() bool {
		if err := l.Err(); err != nil {
			t.Fatalf("lost: %v", err)
		}
		return l.ExpiresAt().Sub(begin) > 3*900*time.Millisecond
	})
	if _, err := locktest.NewTestMutex(c.b, "kept").TryLock(t.Context(), 0); !errors.Is(err, watchlock.ErrNotAcquired) {
		t.Errorf("TryLock of another: %v", err)
	}
	locktest.MustUnlock(t, l)
}

func contractExpiry(t *testing.T, c contractOf) {
	l := locktest.MustLock(t, locktest.NewTestMutex(c.a, "short"), watchlock.WithLeaseTime(400*time.Millisecond))
	ctx := l.Context(t.Context())
	next := c.tries(t, t.Context(), locktest.NewTestMutex(c.b, "short"), 10*time.Second)
	locktest.Closes(t, ctx.Done())
	told := time.Now()
	if cause := context.Cause(ctx); !errors.Is(cause, watchlock.ErrLost) || !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("cause %v, error %v", cause, ctx.Err())
	}
	got := <-next
	if got.err != nil {
		t.Fatal(got.err)
	}
	if got.at.Before(l.ExpiresAt()) {
		t.Errorf("the next entered %v before the lease ended", l.ExpiresAt().Sub(got.at))
	}
	if late := got.at.Sub(told); late > time.Second {
		t.Errorf("the next entered %v after the lease ended", late)
	}
	if err := l.Unlock(t.Context()); !errors.Is(err, watchlock.ErrLost) {
		t.Errorf("Unlock of the lost lease: %v", err)
	}
	if err := got.lease.Err(); err != nil {
		t.Errorf("the next lease after that: %v", err)
	}
	locktest.MustUnlock(t, got.lease)
}

func contractMaxHold(t *testing.T, c contractOf) {
	a := locktest.NewTestClient(t, c.s.Client(), watchlock.WithWatchdogTimeout(300*time.Millisecond))
	begin := time.Now()
	l := locktest.MustLock(t, locktest.NewTestMutex(a, "bounded"), watchlock.WithMaxHold(700*time.Millisecond))
	locktest.Closes(t, l.Done())
	if held := time.Since(begin); held < 600*time.Millisecond {
		t.Errorf("it ended after %v", held)
	}
	if err := l.Unlock(t.Context()); !errors.Is(err, watchlock.ErrLost) {
		t.Errorf("Unlock: %v", err)
	}
	next, err := locktest.NewTestMutex(c.b, "bounded").TryLock(t.Context(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	locktest.MustUnlock(t, next)
}

func contractLoss(t *testing.T, c contractOf) {
	const timeout = 3 * time.Second
	a := locktest.NewTestClient(t, c.s.Client(), watchlock.WithWatchdogTimeout(timeout))
	l := locktest.MustLock(t, locktest.NewTestMutex(a, "taken"))
	if _, err := c.s.Do("DEL", "taken"); err != nil {
		t.Fatal(err)
	}
	next := locktest.MustLock(t, locktest.NewTestMutex(c.b, "taken"))
	begin := time.Now()
	locktest.Closes(t, l.Done())
	if took := time.Since(begin); took > timeout/3+500*time.Millisecond {
		t.Errorf("told after %v, want at the next renewal", took)
	}
	if err := l.Err(); !errors.Is(err, watchlock.ErrLost) {
		t.Errorf("Err: %v", err)
	}
	if err := l.Unlock(t.Context()); !errors.Is(err, watchlock.ErrLost) {
		t.Errorf("Unlock: %v", err)
	}
	if err := next.Err(); err != nil {
		t.Errorf("the next holder: %v", err)
	}
	locktest.MustUnlock(t, next)
}

func contractInfo(t *testing.T, c contractOf) {
	m := locktest.NewTestMutex(c.a, "info")
	if info, err := m.Info(t.Context()); err != nil || info != (watchlock.LockInfo{}) {
		t.Errorf("free: %+v, %v", info, err)
	}
	outer := locktest.MustLock(t, m)
	inner, err := m.Lock(outer.Context(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	for who, want := range map[*watchlock.Client]watchlock.LockInfo{c.a: {Mine: true, Holds: 2}, c.b: {Mine: false, Holds: 1}} {
		info, err := locktest.NewTestMutex(who, "info").Info(t.Context())
		if err != nil || !info.Held || info.Mine != want.Mine || info.Holds != want.Holds ||
			!strings.HasPrefix(info.Owner, c.a.ID()+":") || info.TTL <= 20*time.Second || info.TTL > 30*time.Second {
			t.Errorf("held: %+v, %v", info, err)
		}
	}
	held := c.a.Held()
	if len(held) != 2 {
		t.Fatalf("Held: %+v", held)
	}
	for _, h := range held {
		if h.Name != "info" || h.Kind != locktest.KeysOf(m).Kind.String() || !strings.Contains(h.Caller, ".go:") || time.Since(h.Since) > 10*time.Second ||
			time.Until(h.ExpiresAt) > 30*time.Second || time.Until(h.ExpiresAt) < 15*time.Second {
			t.Errorf("Held: %+v", h)
		}
	}
	if other := c.b.Held(); len(other) != 0 {
		t.Errorf("Held of the other: %+v", other)
	}
	locktest.MustUnlock(t, inner)
	locktest.MustUnlock(t, outer)
	if held := c.a.Held(); len(held) != 0 {
		t.Errorf("Held after Unlock: %+v", held)
	}
}

func contractCancel(t *testing.T, c contractOf) {
	l := locktest.MustLock(t, locktest.NewTestMutex(c.a, "cancel"))
	cause := errors.New("the request is gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	waiting := c.tries(t, ctx, locktest.NewTestMutex(c.b, "cancel"), time.Minute)
	begin := time.Now()
	cancel(cause)
	got := <-waiting
	if got.lease != nil || !errors.Is(got.err, context.Canceled) || !errors.Is(got.err, cause) || errors.Is(got.err, watchlock.ErrNotAcquired) {
		t.Errorf("%v, %v", got.lease, got.err)
	}
	if took := got.at.Sub(begin); took > 500*time.Millisecond {
		t.Errorf("it returned %v after the cancellation", took)
	}
	locktest.MustUnlock(t, l)
	locktest.MustUnlock(t, locktest.MustLock(t, locktest.NewTestMutex(c.a, "cancel")))
}

func contractUnlock(t *testing.T, c contractOf) {
	ctx, cancel := context.WithCancel(t.Context())
	l, err := locktest.NewTestMutex(c.a, "unlock").Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := l.Err(); err != nil {
		t.Errorf("the context of Lock ended, and the lease: %v", err)
	}
	if err := l.Unlock(ctx); err != nil {
		t.Errorf("Unlock on a cancelled context: %v", err)
	}
	next := locktest.MustLock(t, locktest.NewTestMutex(c.b, "unlock"))
	if err := l.Unlock(t.Context()); !errors.Is(err, watchlock.ErrNotHeld) {
		t.Errorf("second Unlock: %v", err)
	}
	if err := next.Err(); err != nil {
		t.Errorf("the next holder: %v", err)
	}
	locktest.MustUnlock(t, next)
}

func contractClose(t *testing.T, c contractOf) {
	a := locktest.NewTestClient(t, c.s.Client(), watchlock.WithUnlockTimeout(300*time.Millisecond), watchlock.WithWatchdogTimeout(600*time.Millisecond))
	left := locktest.MustLock(t, locktest.NewTestMutex(a, "left"))
	work := left.Context(t.Context())
	l := locktest.MustLock(t, locktest.NewTestMutex(c.b, "close"))
	waiting := c.tries(t, t.Context(), locktest.NewTestMutex(a, "close"), time.Minute)
	begin := time.Now()
	err := a.Close()
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("Close took %v", took)
	}
	if err == nil || !strings.Contains(err.Error(), `"left"`) {
		t.Errorf("Close: %v", err)
	}
	if got := <-waiting; !errors.Is(got.err, watchlock.ErrClosed) || got.at.Sub(begin) > 250*time.Millisecond {
		t.Errorf("the waiter: %v after %v", got.err, got.at.Sub(begin))
	}
	if cause := context.Cause(work); !errors.Is(cause, watchlock.ErrClosed) {
		t.Errorf("the work's context: %v", cause)
	}
	if _, err := locktest.NewTestMutex(a, "new").Lock(t.Context()); !errors.Is(err, watchlock.ErrClosed) {
		t.Errorf("a new call: %v", err)
	}
	if err := left.Unlock(t.Context()); !errors.Is(err, watchlock.ErrClosed) {
		t.Errorf("Unlock after Close: %v", err)
	}
	if again := a.Close(); again == nil || again.Error() != err.Error() {
		t.Errorf("Close again: %v", again)
	}
	locktest.MustUnlock(t, l)
	next, err := locktest.NewTestMutex(c.b, "left").TryLock(t.Context(), 5*time.Second) // it expires
	if err != nil {
		t.Fatal(err)
	}
	locktest.MustUnlock(t, next)
}
