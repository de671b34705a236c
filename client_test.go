package watchlock

import (
	"context"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// inBubble runs f on virtual time with an empty server.
func inBubble(t *testing.T, f func(t *testing.T, v *redistest.Virtual)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, redistest.NewVirtual(t)) })
}

// newTestClient makes a client that is closed when the test ends.
func newTestClient(t testing.TB, rdb redis.UniversalClient, opts ...Option) *Client {
	t.Helper()
	c, err := New(rdb, opts...)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// mustLock takes the lock or ends the test.
func mustLock(t testing.TB, m *Mutex, opts ...LockOption) *Lease {
	t.Helper()
	l, err := m.Lock(context.Background(), opts...)
	if err != nil {
		t.Fatalf("Lock(%q): %v", m.Name(), err)
	}
	return l
}

// mustUnlock gives the lease back or ends the test.
func mustUnlock(t testing.TB, l *Lease) {
	t.Helper()
	if err := l.Unlock(context.Background()); err != nil {
		t.Fatalf("Unlock(%q): %v", l.Name(), err)
	}
}

// fullCount is n with WATCHLOCK_FULL set, else a twentieth of it.
func fullCount(n int) int {
	if os.Getenv("WATCHLOCK_FULL") != "" {
		return n
	}
	return max(1, n/20)
}

// counter is a number that only a lock protects: two holders at once lose an
// increment, or are seen inside together. The race detector sees them too.
type counter struct {
	n      int
	inside int

	mu       sync.Mutex
	overlaps int // guarded by mu
}

// section is one critical section of about d.
func (c *counter) section(d time.Duration) {
	c.inside++
	before, n := c.inside, c.n
	if d > 0 {
		<-time.After(d)
	}
	c.n = n + 1
	if before != 1 || c.inside != 1 {
		c.mu.Lock()
		c.overlaps++
		c.mu.Unlock()
	}
	c.inside--
}

// check fails unless the counter is exactly want and nobody met anybody.
func (c *counter) check(t testing.TB, want int) {
	t.Helper()
	if c.n != want || c.overlaps != 0 {
		t.Fatalf("unprotected counter is %d, want %d; %d overlaps", c.n, want, c.overlaps)
	}
}

// observed returns an option that logs to memory, and the memory.
func observed() (Option, *observer.ObservedLogs) {
	core, logs := observer.New(zap.DebugLevel)
	return WithLogger(zap.New(core)), logs
}

// eventually waits until ok holds, for at most within.
func eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
		<-time.After(2 * time.Millisecond)
	}
}
