package locktest

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
)

// How soon a waiter enters.
const (
	WakesBy   = 50 * time.Millisecond // from a release to the waiter's entry, by message
	WakesLate = shortestPoll - 50*time.Millisecond
)

// LockEntry is when a waiter got the lock.
type LockEntry struct {
	At    time.Time
	Lease *watchlock.Lease
	Err   error
}

// LockSoon takes a lock on a goroutine of its own.
func LockSoon(m *watchlock.Mutex) <-chan LockEntry {
	entered := make(chan LockEntry, 1)
	go func() {
		l, err := m.Lock(context.Background())
		entered <- LockEntry{time.Now(), l, err}
	}()
	return entered
}

// Wakes fails unless all of some hand-overs were by message. One of them may be
// late by what the machine had to do besides.
func Wakes(t testing.TB, what string, took []time.Duration) {
	t.Helper()
	slices.Sort(took)
	t.Logf("%s: %v", what, took)
	if took[len(took)-1] > WakesLate || took[len(took)-2] > WakesBy {
		t.Errorf("%s: woken after %v, want %v", what, took, WakesBy)
	}
}

// LockNamed is the Lock of a lock of a kind.
func LockNamed(c *watchlock.Client, kind, name string) LockOfKind {
	switch kind {
	case "setnx":
		return c.NewSetNXMutex(name).Lock
	case "fenced":
		return func(ctx context.Context, opts ...watchlock.LockOption) (*watchlock.Lease, error) {
			l, err := c.NewFencedMutex(name).Lock(ctx, opts...)
			return LeaseOf(l), err
		}
	}
	return c.NewMutex(name).Lock
}

// MustFence takes the fenced lock or ends the test.
func MustFence(t testing.TB, m *watchlock.FencedMutex, opts ...watchlock.LockOption) *watchlock.FencedLease {
	t.Helper()
	l, err := m.Lock(context.Background(), opts...)
	if err != nil {
		t.Fatalf("Lock(%q): %v", m.Name(), err)
	}
	return l
}

// GoLockNamed begins a Lock that waits, and returns when it is queued or granted.
func GoLockNamed(c *watchlock.Client, kind string) *LockCall {
	call := GoLock(func() (*watchlock.Lease, error) { return LockNamed(c, kind, "k")(context.Background()) })
	synctest.Wait()
	return call
}
