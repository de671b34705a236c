package interop

import (
	"context"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// messageWake is how soon a waiter enters that a message wakes. A lease runs
// for 30 s and Go's poll starts at 250 ms, so nothing else is as fast.
const messageWake = 50 * time.Millisecond

// entry is a lease that a waiter in Go got, and when.
type entry struct {
	lease *watchlock.Lease
	at    time.Time
	err   error
}

// startLock calls Lock on a goroutine of its own.
func startLock(t testing.TB, m *watchlock.Mutex, opts ...watchlock.LockOption) <-chan entry {
	entered := make(chan entry, 1)
	ctx, cancel := context.WithTimeout(context.Background(), replyWait)
	t.Cleanup(cancel)
	go func() {
		lease, err := m.Lock(ctx, opts...)
		entered <- entry{lease, time.Now(), err}
	}()
	return entered
}

// mustEnter returns the lease when its waiter has entered.
func mustEnter(t testing.TB, entered <-chan entry) entry {
	t.Helper()
	select {
	case e := <-entered:
		if e.err != nil {
			t.Fatalf("Lock: %v", e.err)
		}
		return e
	case <-time.After(replyWait):
		t.Fatalf("the waiter in Go has not entered for %v", replyWait)
		return entry{}
	}
}

// mustStillWait ends the test when the waiter has entered.
func mustStillWait[T any](t testing.TB, entered <-chan T, who string) {
	t.Helper()
	select {
	case e := <-entered:
		t.Fatalf("%s entered while another held the lock: %+v", who, e)
	default:
	}
}

// until waits for a condition, or ends the test.
func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(replyWait)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", replyWait, what)
		}
		time.Sleep(time.Millisecond)
	}
}

// subscribers are how many connections listen for the release of the lock.
func subscribers(t testing.TB, s *redistest.Server, name string) int64 {
	t.Helper()
	channel := "redisson_lock__channel:{" + name + "}"
	n, err := s.Client().PubSubNumSub(t.Context(), channel).Result()
	if err != nil {
		t.Fatal(err)
	}
	return n[channel]
}

// asleep runs start, which makes one waiter for the lock, and returns when it
// sleeps: it has been refused, listens, and has been refused again. A waiter
// that listened already may do without the second try.
func asleep[T any](t testing.TB, s *redistest.Server, name string, tries int, start func() T) T {
	t.Helper()
	before := s.CommandCalls()["evalsha"]
	started := start()
	until(t, "a waiter sleeps", func() bool {
		return subscribers(t, s, name) > 0 && s.CommandCalls()["evalsha"] >= before+tries
	})
	return started
}

// soon fails the test unless the waiter entered at a message, and notes it. Once in a
// test the machine may have had something else to do; without a message it would have
// taken seconds.
func soon(t testing.TB, who string, took time.Duration) {
	t.Helper()
	late := woke(t, took)
	switch {
	case took <= messageWake:
	case late == 1 && took <= 10*messageWake:
		t.Logf("%s entered %v after the release", who, took)
	default:
		t.Errorf("%s entered %v after the release, want at most %v", who, took, messageWake)
	}
}

// warm has the peer load its scripts and its classes.
func warm(t testing.TB, s *redistest.Server, peer *jvmClient, m *watchlock.Mutex) {
	t.Helper()
	for range 2 {
		lease := mustLock(t, m)
		waiting := asleep(t, s, m.Name(), 2, func() <-chan reply { return peer.start("lock", "warm", m.Name()) })
		mustUnlock(t, lease)
		value[any](t, await(t, waiting))
		entered := asleep(t, s, m.Name(), 1, func() <-chan entry { return startLock(t, m) })
		peer.must("unlock", "warm", m.Name())
		mustUnlock(t, mustEnter(t, entered).lease)
	}
}

func TestAWaiterOnTheJVMEntersAtGosUnlock(t *testing.T) {
	onEachPeer(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		c, peer := newClient(t, s), j.open(t, s)
		warm(t, s, peer, c.NewMutex("warm"))
		m := c.NewMutex("order:1")
		for range 5 {
			lease := mustLock(t, m)
			waiting := asleep(t, s, "order:1", 2, func() <-chan reply { return peer.start("lock", "main", "order:1") })
			released := time.Now()
			mustUnlock(t, lease)
			r := await(t, waiting)
			value[any](t, r)
			soon(t, "the JVM", r.ended().Sub(released))
			mustBe(t, peer, 1, "getHoldCount", "main", "order:1")
			peer.must("unlock", "main", "order:1")
		}
	})
}

func TestAWaiterInGoEntersAtTheJVMsUnlock(t *testing.T) {
	onEachPeer(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		c, peer := newClient(t, s), j.open(t, s)
		warm(t, s, peer, c.NewMutex("warm"))
		m := c.NewMutex("order:1")
		for range 5 {
			peer.must("lock", "main", "order:1")
			entered := asleep(t, s, "order:1", 1, func() <-chan entry { return startLock(t, m) })
			released := time.Now()
			peer.must("unlock", "main", "order:1")
			e := mustEnter(t, entered)
			soon(t, "Go", e.at.Sub(released))
			mustUnlock(t, e.lease)
		}
	})
}

// While one side holds the lock the other sleeps before it; at the start both
// do, before a third.
func TestTheLockAlternatesTenTimesWithBothWaiting(t *testing.T) {
	onEachPeer(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		c, peer := newClient(t, s), j.open(t, s)
		warm(t, s, peer, c.NewMutex("warm"))
		m := c.NewMutex("order:1")
		startJVM := func() <-chan reply { return peer.start("lock", "main", "order:1") }
		startGo := func() <-chan entry { return startLock(t, m) }

		third := mustLock(t, newClient(t, s).NewMutex("order:1"))
		onJVM := asleep(t, s, "order:1", 2, startJVM)
		inGo := asleep(t, s, "order:1", 1, startGo)
		released := time.Now()
		mustUnlock(t, third)
		var held *watchlock.Lease // nil while the JVM holds the lock
		select {
		case r := <-onJVM:
			value[any](t, r)
			soon(t, "the JVM", r.ended().Sub(released))
		case e := <-inGo:
			if e.err != nil {
				t.Fatal(e.err)
			}
			soon(t, "Go", e.at.Sub(released))
			held = e.lease
		case <-time.After(replyWait):
			t.Fatal("neither enters")
		}
		for range 20 { // ten times each way
			released := time.Now()
			if held != nil {
				mustUnlock(t, held)
				r := await(t, onJVM)
				value[any](t, r)
				soon(t, "the JVM", r.ended().Sub(released))
				held, inGo = nil, asleep(t, s, "order:1", 1, startGo)
				continue
			}
			peer.must("unlock", "main", "order:1")
			e := mustEnter(t, inGo)
			soon(t, "Go", e.at.Sub(released))
			held, onJVM = e.lease, asleep(t, s, "order:1", 2, startJVM)
		}
		if held != nil {
			mustUnlock(t, held)
			value[any](t, await(t, onJVM))
			peer.must("unlock", "main", "order:1")
			return
		}
		peer.must("unlock", "main", "order:1")
		mustUnlock(t, mustEnter(t, inGo).lease)
	})
}
