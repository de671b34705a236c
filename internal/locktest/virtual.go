package locktest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// VirtualClient makes a client of a server that knows the scripts already, so
// that each run of one is one command.
func VirtualClient(t testing.TB, v *redistest.Virtual, opts ...watchlock.Option) *watchlock.Client {
	t.Helper()
	VirtualLoad(t, v)
	return KnowServer(NewTestClient(t, v.Client(), opts...), true)
}

// VirtualWired is virtualClient with a wire in between.
func VirtualWired(t testing.TB, v *redistest.Virtual, opts ...watchlock.Option) (*watchlock.Client, *redistest.Wire) {
	t.Helper()
	VirtualLoad(t, v)
	w := redistest.NewWire()
	return KnowServer(NewTestClient(t, v.Client(w.Options()), opts...), true), w
}

// VirtualLoad gives the server the scripts and empties its list of commands.
func VirtualLoad(t testing.TB, v *redistest.Virtual) {
	t.Helper()
	raw := v.Client()
	defer raw.Close()
	for _, source := range sourcesOfTest() {
		if err := raw.ScriptLoad(context.Background(), source).Err(); err != nil {
			t.Fatalf("SCRIPT LOAD: %v", err)
		}
	}
	v.Reset()
}

// VirtualTimes returns when those of the commands that match came, since start.
func VirtualTimes(commands []redistest.Command, start time.Time, match redistest.Match) []time.Duration {
	var times []time.Duration
	for _, c := range commands {
		if match(c) {
			times = append(times, c.Time.Sub(start))
		}
	}
	return times
}

// VirtualUntil sleeps until d after start and lets everything due then finish.
func VirtualUntil(start time.Time, d time.Duration) {
	time.Sleep(time.Until(start.Add(d)))
	synctest.Wait()
}

// VirtualTake gives the lock to a stranger for ttl; 0 is without end.
func VirtualTake(v *redistest.Virtual, key string, ttl time.Duration) {
	if KindOfTest() == "setnx" {
		_ = v.Mini().Set(key, "stranger:1")
	} else {
		v.Mini().HSet(key, "stranger:1", "1")
	}
	if ttl > 0 {
		v.Mini().SetTTL(key, ttl)
	}
}

// VirtualClosed reports whether done is closed.
func VirtualClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// VirtualWantErr fails unless err matches each of all and none of none.
func VirtualWantErr(t testing.TB, what string, err error, all []error, none ...error) {
	t.Helper()
	for _, want := range all {
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want it to match %q", what, err, want)
		}
	}
	for _, not := range none {
		if errors.Is(err, not) {
			t.Errorf("%s: %v matches %q, want it not to", what, err, not)
		}
	}
	var named *watchlock.LockError
	if err != nil && !errors.As(err, &named) {
		t.Errorf("%s: %v is no LockError", what, err)
	}
}

// VirtualPurge empties the sync.Pools. go-redis keeps timers in one for callers
// that queue for a connection, and one of an earlier bubble is fatal in the next.
func VirtualPurge() {
	runtime.GC()
	runtime.GC()
}

// VirtualTrip makes each round trip through w take that long.
func VirtualTrip(w *redistest.Wire, trip time.Duration) {
	w.On(redistest.Any, redistest.All(redistest.Delay(trip/2), redistest.DelayReply(trip/2))).Times(0)
}

// VirtualReenter takes the lock once more under outer's context.
func VirtualReenter(t testing.TB, m *watchlock.Mutex, outer *watchlock.Lease, opts ...watchlock.LockOption) *watchlock.Lease {
	t.Helper()
	l, err := m.Lock(outer.Context(context.Background()), opts...)
	if err != nil {
		t.Fatalf("re-entry: %v", err)
	}
	return l
}

// VirtualLockMany takes n locks called "lock 0" and on.
func VirtualLockMany(t *testing.T, c *watchlock.Client, n int) []*watchlock.Lease {
	t.Helper()
	leases := make([]*watchlock.Lease, n)
	for i := range leases {
		leases[i] = MustLock(t, NewTestMutex(c, fmt.Sprintf("lock %d", i)))
		leases[i].Done()
	}
	return leases
}

// VirtualWarnings are the warnings so far that contain text.
func VirtualWarnings(logs *observer.ObservedLogs, text string) []observer.LoggedEntry {
	return logs.Filter(func(e observer.LoggedEntry) bool {
		return e.Level >= zapcore.WarnLevel && strings.Contains(e.Message, text)
	}).All()
}
