package locktest

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

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// InBubble runs f on virtual time with an empty server.
func InBubble(t *testing.T, f func(t *testing.T, v *redistest.Virtual)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, redistest.NewVirtual(t)) })
}

// NewTestClient makes a client that is closed when the test ends, and knows already that
// its user has the rights that locks need, so that it acquires by one script. With
// WATCHLOCK_HANDOFF=0 it does not pass bursts on, unless the test's options say so.
func NewTestClient(t testing.TB, rdb redis.UniversalClient, opts ...watchlock.Option) *watchlock.Client {
	t.Helper()
	if os.Getenv("WATCHLOCK_HANDOFF") == "0" {
		opts = append([]watchlock.Option{watchlock.WithLocalHandoff(0)}, opts...)
	}
	c, err := watchlock.New(rdb, opts...)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	poolsOfTests.Store(c, rdb)
	knowRights(c)
	return c
}

// KindOfTest is the lock kind that the tests of all kinds are run for:
// WATCHLOCK_KIND is fenced, setnx, or, the default, mutex.
func KindOfTest() string {
	if k := os.Getenv("WATCHLOCK_KIND"); k != "" {
		return k
	}
	return "mutex"
}

// sourcesOfTest are the scripts of the kind that the tests are run for.
func sourcesOfTest() []string {
	switch KindOfTest() {
	case "fenced":
		return []string{wire.AcquireFencedSource, wire.RenewSource, wire.ReleaseSource, wire.InfoSource, wire.RelayFencedScript.Source}
	case "setnx":
		return []string{wire.AcquireStringSource, wire.RenewStringSource, wire.ReleaseStringSource}
	}
	return []string{wire.AcquireSource, wire.RenewSource, wire.ReleaseSource, wire.InfoSource, wire.RelayScript.Source}
}

// ChannelOfTest is where releases of the lock are published.
func ChannelOfTest(name string) string {
	if KindOfTest() == "setnx" {
		return "watchlock_setnx__channel:{" + name + "}"
	}
	return "redisson_lock__channel:{" + name + "}"
}

// Acquires matches acquiring by the kind that the tests are run for, as a script and as
// the plain command of servers that need none.
func Acquires() redistest.Match {
	return runsOfTest(0, func(c redistest.Command) bool { return c.Name == "SET" && c.Arg(2) == "NX" })
}

// Renews matches renewals likewise.
func Renews() redistest.Match {
	return runsOfTest(1, func(c redistest.Command) bool { return c.Name == "SET" && c.Arg(2) == "IFEQ" && c.Arg(1) == c.Arg(3) })
}

// Releases matches releases likewise.
func Releases() redistest.Match {
	return runsOfTest(2, func(c redistest.Command) bool { return c.Name == "DELEX" })
}

func runsOfTest(script int, plain redistest.Match) redistest.Match {
	runs := redistest.Runs(sourcesOfTest()[script])
	if KindOfTest() != "setnx" {
		return runs
	}
	return func(c redistest.Command) bool { return runs(c) || plain(c) }
}

// OwnerIn is the owner of the client that a command names.
func OwnerIn(cmd redistest.Command, c *watchlock.Client) wire.Owner {
	for _, arg := range cmd.Args {
		if strings.HasPrefix(arg, c.ID()+":") {
			return arg
		}
	}
	return nil
}

// WithoutCounters leaves out the counters of tokens, which stay.
func WithoutCounters(keys []string) []string {
	return slices.DeleteFunc(keys, func(k string) bool { return strings.HasPrefix(k, "redisson_lock_token:") })
}

// MustLock takes the lock or ends the test.
func MustLock(t testing.TB, m *watchlock.Mutex, opts ...watchlock.LockOption) *watchlock.Lease {
	t.Helper()
	l, err := m.Lock(context.Background(), opts...)
	if err != nil {
		t.Fatalf("Lock(%q): %v", m.Name(), err)
	}
	return l
}

// MustUnlock gives the lease back or ends the test.
func MustUnlock(t testing.TB, l *watchlock.Lease) {
	t.Helper()
	if err := l.Unlock(context.Background()); err != nil {
		t.Fatalf("Unlock(%q): %v", l.Name(), err)
	}
}

// FullCount is n with WATCHLOCK_FULL set, else a twentieth of it, or a hundredth
// when the tests are run again for another kind or without passing.
func FullCount(n int) int {
	switch {
	case os.Getenv("WATCHLOCK_FULL") != "":
		return n
	case os.Getenv("WATCHLOCK_KIND") != "" || os.Getenv("WATCHLOCK_HANDOFF") != "":
		return max(1, n/100)
	}
	return max(1, n/20)
}

// Counter is a number that only a lock protects: two holders at once lose an
// increment, or are seen inside together. The race detector sees them too.
type Counter struct {
	n      int
	inside int

	mu       sync.Mutex
	overlaps int // guarded by mu
}

// Section is one critical section of about d.
func (c *Counter) Section(d time.Duration) {
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

// Check fails unless the counter is exactly want and nobody met anybody.
func (c *Counter) Check(t testing.TB, want int) {
	t.Helper()
	if c.n != want || c.overlaps != 0 {
		t.Fatalf("unprotected counter is %d, want %d; %d overlaps", c.n, want, c.overlaps)
	}
}

// Observed returns an option that logs to memory, and the memory.
func Observed() (watchlock.Option, *observer.ObservedLogs) {
	core, logs := observer.New(zap.DebugLevel)
	return watchlock.WithLogger(zap.New(core)), logs
}

// Eventually waits until ok holds, for at most within.
func Eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// FlightPatience is how long a flight without an answer holds back what is behind it.
const FlightPatience = 50 * time.Millisecond

// How long subscriptions take.
const (
	PingEach      = time.Second // between two pings while somebody waits
	ChannelLinger = time.Second // for which a channel outlives its last waiter
)

// poolsOfTests are the callers' clients, by ours.
var poolsOfTests sync.Map

// RightsOfKinds are the commands that each kind needs the right to, where it runs scripts.
var RightsOfKinds = map[string][]string{
	"mutex":  {"hdel", "hlen", "hset", "hexists", "pttl", "pexpire"},
	"fenced": {"hdel", "hlen", "hset", "hexists", "pttl", "pexpire", "get", "set", "time"},
	"setnx":  {"get", "set", "del", "pttl", "pexpire"},
}

// NewUserClient is a client that does not know yet what its user may do.
func NewUserClient(t testing.TB, rdb redis.UniversalClient, opts ...watchlock.Option) *watchlock.Client {
	t.Helper()
	c := NewTestClient(t, rdb, opts...)
	ForgetRights(c)
	return c
}

// UserWith makes a user with every right but those taken, and returns an option of clients
// that log in as that user.
func UserWith(t testing.TB, s *redistest.Server, rules ...any) func(*redis.Options) {
	t.Helper()
	MustDo(t, s, append([]any{"ACL", "SETUSER", "w", "reset", "on", ">p", "~*", "&*", "+@all"}, rules...)...)
	return func(o *redis.Options) { o.Username, o.Password = "w", "p" }
}

// KnowsServer has c take and release a lock, so that the string form knows what the
// server can, and a hash has its scripts there.
func KnowsServer(t testing.TB, c *watchlock.Client, kind string) {
	t.Helper()
	MustUnlock(t, MustLock(t, MutexOf(c, kind, "warm")))
}

// LockOfKind takes a lock of one kind.
type LockOfKind func(ctx context.Context, opts ...watchlock.LockOption) (*watchlock.Lease, error)

// LocksOfKinds are a lock of each kind, under the name of its kind.
func LocksOfKinds(c *watchlock.Client) map[string]LockOfKind {
	return map[string]LockOfKind{
		"mutex": c.NewMutex("mutex").Lock,
		"setnx": c.NewSetNXMutex("setnx").Lock,
		"fenced": func(ctx context.Context, opts ...watchlock.LockOption) (*watchlock.Lease, error) {
			l, err := c.NewFencedMutex("fenced").Lock(ctx, opts...)
			return LeaseOf(l), err
		},
	}
}

// Slowly matches lock commands, of several in one pipeline only the first: the wire
// delays reply by reply.
func Slowly(c redistest.Command) bool {
	return IsLockCommand(c.Name) && c.Name != "PTTL" && c.Name != "PUBLISH" && c.Name != "SPUBLISH"
}

// LossKinds are the ways in which the answer to a command does not come. Held
// requests run when release is closed.
func LossKinds(release <-chan struct{}) map[string]redistest.Action {
	return map[string]redistest.Action{
		"DropReply":   redistest.DropReply,
		"Swallow":     redistest.Swallow,
		"DropRequest": redistest.DropRequest,
		"LoseRequest": redistest.LoseRequest,
		"Twice":       redistest.Twice,
		"HoldRequest": redistest.HoldRequest(release),
	}
}
