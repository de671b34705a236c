package watchlock

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// inBubble runs f on virtual time with an empty server.
func inBubble(t *testing.T, f func(t *testing.T, v *redistest.Virtual)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, redistest.NewVirtual(t)) })
}

// newTestClient makes a client that is closed when the test ends, and knows already that
// its user has the rights that locks need, so that it acquires by one script. With
// WATCHLOCK_HANDOFF=0 it does not pass bursts on, unless the test's options say so.
func newTestClient(t testing.TB, rdb redis.UniversalClient, opts ...Option) *Client {
	t.Helper()
	if os.Getenv("WATCHLOCK_HANDOFF") == "0" {
		opts = append([]Option{WithLocalHandoff(0)}, opts...)
	}
	c, err := New(rdb, opts...)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	poolsOfTests.Store(c, rdb)
	knowRights(c)
	return c
}

// kindOfTest is the lock kind that the tests of all kinds are run for:
// WATCHLOCK_KIND is fenced, setnx, or, the default, mutex.
func kindOfTest() string {
	if k := os.Getenv("WATCHLOCK_KIND"); k != "" {
		return k
	}
	return "mutex"
}

// sourcesOfTest are the scripts of the kind that the tests are run for.
func sourcesOfTest() []string {
	switch kindOfTest() {
	case "fenced":
		return []string{wire.AcquireFencedSource, wire.RenewSource, wire.ReleaseSource, wire.InfoSource, wire.RelayFencedScript.Source}
	case "setnx":
		return []string{wire.AcquireStringSource, wire.RenewStringSource, wire.ReleaseStringSource}
	}
	return []string{wire.AcquireSource, wire.RenewSource, wire.ReleaseSource, wire.InfoSource, wire.RelayScript.Source}
}

// channelOfTest is where releases of the lock are published.
func channelOfTest(name string) string {
	if kindOfTest() == "setnx" {
		return "watchlock_setnx__channel:{" + name + "}"
	}
	return "redisson_lock__channel:{" + name + "}"
}

// acquires, renews and releases match the commands of the kind that the tests are
// run for, as a script and as the plain commands of servers that need none.
func acquires() redistest.Match {
	return runsOfTest(0, func(c redistest.Command) bool { return c.Name == "SET" && c.Arg(2) == "NX" })
}

func renews() redistest.Match {
	return runsOfTest(1, func(c redistest.Command) bool { return c.Name == "SET" && c.Arg(2) == "IFEQ" && c.Arg(1) == c.Arg(3) })
}

func releases() redistest.Match {
	return runsOfTest(2, func(c redistest.Command) bool { return c.Name == "DELEX" })
}

func runsOfTest(script int, plain redistest.Match) redistest.Match {
	runs := redistest.Runs(sourcesOfTest()[script])
	if kindOfTest() != "setnx" {
		return runs
	}
	return func(c redistest.Command) bool { return runs(c) || plain(c) }
}

// withoutCounters leaves out the counters of tokens, which stay.
func withoutCounters(keys []string) []string {
	return slices.DeleteFunc(keys, func(k string) bool { return strings.HasPrefix(k, "redisson_lock_token:") })
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

// fullCount is n with WATCHLOCK_FULL set, else a twentieth of it, or a hundredth
// when the tests are run again for another kind or without passing.
func fullCount(n int) int {
	switch {
	case os.Getenv("WATCHLOCK_FULL") != "":
		return n
	case os.Getenv("WATCHLOCK_KIND") != "" || os.Getenv("WATCHLOCK_HANDOFF") != "":
		return max(1, n/100)
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

// flightPatience is how long a flight without an answer holds back what is behind it.
const flightPatience = 50 * time.Millisecond

// poolsOfTests are the callers' clients, by ours.
var poolsOfTests sync.Map
