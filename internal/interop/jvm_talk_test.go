package interop

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

const notHeldOnJVM = "java.lang.IllegalMonitorStateException"

// newClient makes a client with a Redis client of its own, closed when the
// test ends.
func newClient(t testing.TB, s *redistest.Server, opts ...watchlock.Option) *watchlock.Client {
	t.Helper()
	c, err := watchlock.New(s.Client(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

func mustLock(t testing.TB, m *watchlock.Mutex, opts ...watchlock.LockOption) *watchlock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), replyWait)
	defer cancel()
	lease, err := m.Lock(ctx, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func mustUnlock(t testing.TB, l *watchlock.Lease) {
	t.Helper()
	if err := l.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
}

// mustBe fails the test unless the operation returns want.
func mustBe[T comparable](t testing.TB, c *jvmClient, want T, op, thread, name string, args ...any) {
	t.Helper()
	if got := value[T](t, c.must(op, thread, name, args...)); got != want {
		t.Errorf("the JVM's %s is %v, want %v", op, got, want)
	}
}

// mustRaise fails the test unless the operation raises the exception.
func mustRaise(t testing.TB, c *jvmClient, exception, op, thread, name string) {
	t.Helper()
	if r := c.call(op, thread, name); r.OK || r.Error != exception {
		t.Errorf("the JVM's %s: ok %v, %s: %s, want %s", op, r.OK, r.Error, r.Message, exception)
	}
}

// lasted fails the test unless a wait of d took d, and not much more.
func lasted(t testing.TB, what string, took, d time.Duration) {
	t.Helper()
	if took < d-10*time.Millisecond || took > d+time.Second {
		t.Errorf("%s took %v, want %v", what, took, d)
	}
}

// ttlIs fails the test unless got is a TTL of d that has run for a moment.
func ttlIs(t testing.TB, what string, got, d time.Duration) {
	t.Helper()
	if got > d || got < d-5*time.Second {
		t.Errorf("%s says a TTL of %v, want %v less a moment", what, got, d)
	}
}

func TestTheJVMAsksAboutALockThatGoHolds(t *testing.T) {
	onEachPeerAtOnce(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		m, peer := newClient(t, s).NewMutex("order:1"), j.open(t, s)
		for _, hold := range []struct {
			opts []watchlock.LockOption
			ttl  time.Duration
		}{{nil, 30 * time.Second}, {[]watchlock.LockOption{watchlock.WithLeaseTime(10 * time.Second)}, 10 * time.Second}} {
			lease := mustLock(t, m, hold.opts...)
			before := s.Client().HGetAll(t.Context(), "order:1").Val()

			mustBe(t, peer, false, "tryLock", "main", "order:1")
			r := peer.must("tryLock", "main", "order:1", "wait", 1000)
			if value[bool](t, r) {
				t.Error("tryLock(1 s) succeeds while Go holds the lock")
			}
			lasted(t, "tryLock(1 s)", r.took(), time.Second)
			mustBe(t, peer, true, "isLocked", "main", "order:1")
			mustBe(t, peer, false, "isHeldByCurrentThread", "main", "order:1")
			mustBe(t, peer, 0, "getHoldCount", "main", "order:1")
			ttl := time.Duration(value[int64](t, peer.must("remainTimeToLive", "main", "order:1"))) * time.Millisecond
			ttlIs(t, "remainTimeToLive", ttl, hold.ttl)
			mustRaise(t, peer, notHeldOnJVM, "unlock", "main", "order:1")
			if after := s.Client().HGetAll(t.Context(), "order:1").Val(); len(after) != 1 || after[onlyField(before)] != "1" {
				t.Errorf("the hash was %v, is %v", before, after)
			}

			mustUnlock(t, lease)
			mustBe(t, peer, false, "isLocked", "main", "order:1")
			mustBe(t, peer, -2, "remainTimeToLive", "main", "order:1")
			mustBe(t, peer, true, "tryLock", "main", "order:1")
			peer.must("unlock", "main", "order:1")
		}
	})
}

// onlyField is the only field of a lock's hash.
func onlyField(hash map[string]string) string {
	for field := range hash {
		return field
	}
	return ""
}

func TestGoAsksAboutALockThatTheJVMHolds(t *testing.T) {
	onEachPeerAtOnce(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		m, peer := newClient(t, s).NewMutex("order:1"), j.open(t, s)
		for _, hold := range []struct {
			lease int64
			ttl   time.Duration
		}{{-1, 30 * time.Second}, {10_000, 10 * time.Second}} {
			peer.must("lock", "main", "order:1", "lease", hold.lease)
			want := watchlock.LockInfo{Held: true, Owner: peer.owner("main"), Holds: 1}

			for _, wait := range []time.Duration{0, time.Second} {
				began := time.Now()
				_, err := m.TryLock(t.Context(), wait)
				lasted(t, "TryLock", time.Since(began), wait)
				var locked *watchlock.LockError
				if !errors.Is(err, watchlock.ErrNotAcquired) || !errors.As(err, &locked) {
					t.Fatalf("TryLock(%v) while the JVM holds the lock: %v", wait, err)
				}
				ttlIs(t, "the error", locked.TTL, hold.ttl)
			}
			info, err := m.Info(t.Context())
			ttlIs(t, "Info", info.TTL, hold.ttl)
			if info.TTL = 0; err != nil || info != want {
				t.Errorf("Info: %+v, %v, want %+v", info, err, want)
			}
			peer.must("lock", "main", "order:1", "lease", hold.lease)
			if info, err := m.Info(t.Context()); err != nil || info.Holds != 2 {
				t.Errorf("Info after a re-entry: %+v, %v", info, err)
			}

			peer.must("unlock", "main", "order:1")
			peer.must("unlock", "main", "order:1")
			if info, err := m.Info(t.Context()); err != nil || info != (watchlock.LockInfo{}) {
				t.Errorf("Info of a free lock: %+v, %v", info, err)
			}
			lease, err := m.TryLock(t.Context(), 0)
			if err != nil {
				t.Fatalf("TryLock after the JVM's unlock: %v", err)
			}
			mustUnlock(t, lease)
		}
	})
}
