package loss_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// outageSlack is how late a call may return after its time.
const outageSlack = 50 * time.Millisecond

// timedCall measures a call against a plain timer of the length that it is
// allowed, so that a busy machine is not held against it.
func timedCall(t *testing.T, name string, allowed time.Duration, lock func() (*watchlock.Lease, error)) (*watchlock.Lease, error) {
	t.Helper()
	start := time.Now()
	plain := make(chan time.Duration, 1)
	time.AfterFunc(allowed, func() { plain <- time.Since(start) })
	l, err := lock()
	took := time.Since(start)
	if bound := allowed + outageSlack; took > bound {
		if bound = <-plain + outageSlack; took > bound {
			t.Errorf("%s took %v, want at most %v", name, took, bound)
		}
	}
	return l, err
}

func TestWaitsEndInTimeWhileTheServerIsStopped(t *testing.T) {
	redistest.NoLeaks(t)
	s := redistest.Start(t)
	c := locktest.NewTestClient(t, s.Client())
	locktest.MustUnlock(t, locktest.MustLock(t, locktest.NewTestMutex(c, "first"))) // connected, scripts loaded
	s.Stop()
	calls := map[string]struct {
		allowed time.Duration
		lock    func(*watchlock.Mutex) (*watchlock.Lease, error)
	}{
		"wait 0":  {locktest.OneAttempt, func(m *watchlock.Mutex) (*watchlock.Lease, error) { return m.TryLock(context.Background(), 0) }},
		"wait -1": {locktest.OneAttempt, func(m *watchlock.Mutex) (*watchlock.Lease, error) { return m.TryLock(context.Background(), -1) }},
		"wait 20 ms": {20 * time.Millisecond, func(m *watchlock.Mutex) (*watchlock.Lease, error) {
			return m.TryLock(context.Background(), 20*time.Millisecond)
		}},
		"wait 300 ms": {300 * time.Millisecond, func(m *watchlock.Mutex) (*watchlock.Lease, error) {
			return m.TryLock(context.Background(), 300*time.Millisecond)
		}},
		"wait 1.5 s": {1500 * time.Millisecond, func(m *watchlock.Mutex) (*watchlock.Lease, error) {
			return m.TryLock(context.Background(), 1500*time.Millisecond)
		}},
		"deadline": {400 * time.Millisecond, func(m *watchlock.Mutex) (*watchlock.Lease, error) {
			ctx, cancel := context.WithTimeout(context.Background(), 400*time.Millisecond)
			defer cancel()
			return m.Lock(ctx)
		}},
		"cancelled": {600 * time.Millisecond, func(m *watchlock.Mutex) (*watchlock.Lease, error) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			time.AfterFunc(600*time.Millisecond, cancel)
			return m.TryLock(ctx, time.Minute)
		}},
	}
	var all sync.WaitGroup
	for name, call := range calls {
		all.Go(func() {
			l, err := timedCall(t, name, call.allowed, func() (*watchlock.Lease, error) { return call.lock(locktest.NewTestMutex(c, "order "+name)) })
			switch {
			case l != nil || err == nil || errors.Is(err, watchlock.ErrNotAcquired):
				t.Errorf("%s: lease %v, error %v", name, l, err)
			case name == "cancelled" && !errors.Is(err, context.Canceled):
				t.Errorf("%s: %v", name, err)
			case name == "deadline" && !errors.Is(err, context.DeadlineExceeded):
				t.Errorf("%s: %v", name, err)
			case name != "cancelled" && !watchlock.IsUnavailable(err):
				t.Errorf("%s: %v, want an outage", name, err)
			}
		})
	}
	all.Wait()
	s.Cont()
	locktest.Eventually(t, 2*time.Second, "what was granted meanwhile is given back", func() bool { return locktest.ServerKeys(t, s) == 0 })
	<-time.After(1100 * time.Millisecond) // no late one comes after that
	if n := locktest.ServerKeys(t, s); n != 0 {
		t.Errorf("%d keys are back", n)
	}
	for name := range calls {
		locktest.CheckNextEnters(t, locktest.NewTestMutex(c, "order "+name))
	}
	locktest.CheckServerEmpty(t, s, c)
}

func TestStopLongerThanALeaseLeavesNoKeyAndTellsTheHolder(t *testing.T) {
	redistest.NoLeaks(t)
	s := redistest.Start(t)
	const timeout = time.Second
	a := locktest.NewTestClient(t, s.Client(), watchlock.WithWatchdogTimeout(timeout))
	held := locktest.MustLock(t, locktest.NewTestMutex(a, "held"))
	work := held.Context(context.Background())
	locktest.MustUnlock(t, locktest.MustLock(t, locktest.NewTestMutex(a, "first")))

	s.Stop()
	stopped := time.Now()
	attempts := make([]*locktest.LockCall, 12)
	for i := range attempts {
		m := locktest.NewTestMutex(a, fmt.Sprint("order-", i))
		attempts[i] = locktest.GoLock(func() (*watchlock.Lease, error) { return m.TryLock(context.Background(), 1200*time.Millisecond) })
	}
	// The server's clock runs on: the holder must know before it could let
	// somebody else in.
	_, _ = timedCall(t, "telling the holder", timeout, func() (*watchlock.Lease, error) {
		<-work.Done()
		return nil, nil
	})
	locktest.MustErr(t, "the cause", context.Cause(work), watchlock.ErrLost)
	for i, c := range attempts {
		c.Wait(t)
		if c.Lease != nil || !watchlock.IsUnavailable(c.Err) {
			t.Errorf("attempt %d: lease %v, error %v", i, c.Lease, c.Err)
		}
	}
	<-time.After(2*timeout + timeout/2 - time.Since(stopped))

	s.Cont()
	locktest.Eventually(t, 2*time.Second, "every key is gone", func() bool { return locktest.ServerKeys(t, s) == 0 })
	if list := a.Held(); len(list) != 0 {
		t.Errorf("believed: %v", list)
	}
	locktest.MustErr(t, "Unlock of the lost lease", held.Unlock(context.Background()), watchlock.ErrLost)
	for i := range attempts {
		locktest.CheckNextEnters(t, locktest.NewTestMutex(a, fmt.Sprint("order-", i)))
	}
	locktest.CheckServerEmpty(t, s, a)
}

func TestVirtualLateGrantsOfAStoppedServerAreReleasedNotBelieved(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.WarmClient(t, v.Client())
		m := locktest.NewTestMutex(c, "order", watchlock.WithLeaseTime(10*time.Second))
		v.Freeze()
		call := locktest.GoLock(func() (*watchlock.Lease, error) { return m.TryLock(context.Background(), 5*time.Second) })
		time.Sleep(15 * time.Second)
		call.Wait(t)
		if !watchlock.IsUnavailable(call.Err) || call.Took != 5*time.Second {
			t.Fatalf("%v after %v", call.Err, call.Took)
		}
		v.Reset()
		v.Thaw()
		time.Sleep(time.Microsecond)
		ran := v.CountIf(locktest.Acquires())
		if ran == 0 {
			t.Error("no attempt was left for the server to run")
		}
		time.Sleep(2 * time.Second)
		if v.Mini().Exists("order") {
			t.Errorf("the key is there 2 s after the server runs again, for %v", v.Mini().TTL("order"))
		}
		locktest.CheckNextEnters(t, m)
		locktest.CheckBubbleEmpty(t, v, c)
	})
}

func TestCrashThatLosesTheDataIsToldAtTheNextContact(t *testing.T) {
	redistest.NoLeaks(t)
	s := redistest.Start(t)
	a, b := locktest.NewTestClient(t, s.Client()), locktest.NewTestClient(t, s.Client())
	held := locktest.MustLock(t, locktest.NewTestMutex(a, "held"))
	theirs := locktest.MustLock(t, locktest.NewTestMutex(b, "order"))
	waiting := locktest.GoLock(func() (*watchlock.Lease, error) { return locktest.NewTestMutex(a, "order").Lock(context.Background()) })
	locktest.Eventually(t, 2*time.Second, "the waiter has subscribed", func() bool {
		n, err := s.Do("PUBSUB", "CHANNELS")
		topics, ok := n.([]any)
		return err == nil && ok && len(topics) == 1
	})
	s.Kill()
	s.Restart()
	restarted := time.Now()
	// Renewal is due after ten seconds only: it is the new connection that tells.
	<-held.Done()
	if told := time.Since(restarted); told > 3*time.Second {
		t.Errorf("the holder was told %v after the restart", told)
	}
	locktest.MustErr(t, "the holder", held.Err(), watchlock.ErrLost)
	waiting.Wait(t)
	if entered := time.Since(restarted); waiting.Err != nil || entered > 3*time.Second {
		t.Fatalf("the waiter: %v, %v after the restart", waiting.Err, entered)
	}
	// B has nobody waiting: it learns when it asks, and touches nothing of A's.
	locktest.MustErr(t, "B's Unlock", theirs.Unlock(context.Background()), watchlock.ErrLost)
	if ttl := locktest.ServerTTL(t, s, "order"); ttl <= 0 {
		t.Errorf("A's lock has TTL %v after B's Unlock", ttl)
	}
	locktest.MustUnlock(t, waiting.Lease)
	locktest.MustErr(t, "the holder's Unlock", held.Unlock(context.Background()), watchlock.ErrLost)
	locktest.CheckNextEnters(t, locktest.NewTestMutex(b, "order"))
	locktest.CheckServerEmpty(t, s, a, b)
}

func TestCrashThatKeepsTheDataCostsNoLease(t *testing.T) {
	redistest.NoLeaks(t)
	s := redistest.Start(t, redistest.WithAOF())
	const timeout = 3 * time.Second
	a := locktest.NewTestClient(t, s.Client(), watchlock.WithWatchdogTimeout(timeout))
	b := locktest.NewTestClient(t, s.Client(), watchlock.WithWatchdogTimeout(timeout))
	held := locktest.MustLock(t, locktest.NewTestMutex(a, "order"))
	waiting := locktest.GoLock(func() (*watchlock.Lease, error) { return locktest.NewTestMutex(b, "order").Lock(context.Background()) })
	before, err := locktest.NewTestMutex(a, "order").Info(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	locktest.Eventually(t, 2*time.Second, "the waiter listens", func() bool {
		n, err := s.Do("PUBSUB", "NUMSUB", locktest.ChannelOfTest("order"))
		return err == nil && strings.Contains(fmt.Sprint(n), " 1")
	})
	s.Kill()
	s.Restart()
	<-time.After(timeout)
	if err := held.Err(); err != nil {
		t.Fatalf("the holder after the crash: %v", err)
	}
	after, err := locktest.NewTestMutex(a, "order").Info(context.Background())
	if err != nil || after.Owner != before.Owner || !after.Mine {
		t.Errorf("after the crash: %+v, %v; before: %+v", after, err, before)
	}
	freed := time.Now()
	locktest.MustUnlock(t, held)
	waiting.Wait(t)
	if gap := time.Since(freed); waiting.Err != nil || gap > locktest.HandOverBound {
		t.Fatalf("the waiter: %v, %v after the release", waiting.Err, gap)
	}
	locktest.MustUnlock(t, waiting.Lease)
	locktest.CheckServerEmpty(t, s, a, b)
}

func TestVirtualHalfOpenSubscriptionIsReplaced(t *testing.T) {
	for name, silence := range map[string]redistest.Fault{
		"server does not answer": redistest.Swallow,
		"server does not hear":   redistest.LoseRequest,
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				wire := redistest.NewWire()
				a := locktest.WarmClient(t, v.Client(wire.Options()), watchlock.WithMaxPollInterval(time.Hour))
				b := locktest.WarmClient(t, v.Client())
				// Not the string form, which polls too often to need the message.
				held := locktest.MustLock(t, b.NewMutex("order"), watchlock.WithLeaseTime(10*time.Minute))
				waiting := locktest.GoLock(func() (*watchlock.Lease, error) { return a.NewMutex("order").Lock(context.Background()) })
				// Having waited for a minute it polls each minute: only a message or
				// a new subscription lets it in sooner.
				time.Sleep(70 * time.Second)
				if n := wire.Count(redistest.Is("SUBSCRIBE")); n != 1 {
					t.Fatalf("%d subscriptions so far", n)
				}
				subscribed := connOf(wire, "SUBSCRIBE")
				half := wire.On(func(c redistest.Command) bool { return c.Conn == subscribed }, silence)
				select {
				case <-half.Fired():
				case <-time.After(3 * time.Second):
					t.Error("the connection is not asked for a sign of life")
				}
				silent := time.Now()
				time.Sleep(10 * time.Millisecond)
				locktest.MustUnlock(t, held) // unheard
				waiting.Wait(t)
				if gap := time.Since(silent); waiting.Err != nil || gap > 2*time.Second {
					t.Errorf("the waiter: %v, %v after the connection fell silent", waiting.Err, gap)
				}
				if n := wire.Count(redistest.Is("SUBSCRIBE")); n != 2 {
					t.Errorf("%d subscriptions, want a second one", n)
				}
				locktest.MustUnlock(t, waiting.Lease)
				locktest.CheckBubbleEmpty(t, v, a, b)
			})
		})
	}
}

// connOf is the number of the connection that a command was first seen on.
func connOf(wire *redistest.Wire, name string) int {
	for _, c := range wire.Seen() {
		if c.Name == name {
			return c.Conn
		}
	}
	return 0
}

func TestPausedServerIsAnOutageOfItsLength(t *testing.T) {
	for _, mode := range []string{"ALL", "WRITE"} {
		t.Run(mode, func(t *testing.T) {
			redistest.NoLeaks(t)
			s := redistest.Start(t)
			const timeout = 2 * time.Second
			long := locktest.NewTestClient(t, s.Client(), watchlock.WithWatchdogTimeout(3*timeout))
			short := locktest.NewTestClient(t, s.Client(), watchlock.WithWatchdogTimeout(timeout/4))
			kept, lost := locktest.MustLock(t, locktest.NewTestMutex(long, "kept")), locktest.MustLock(t, locktest.NewTestMutex(short, "lost"))
			if _, err := s.Do("CLIENT", "PAUSE", timeout.Milliseconds(), mode); err != nil {
				t.Fatal(err)
			}
			_, err := timedCall(t, "a wait in the pause", 300*time.Millisecond, func() (*watchlock.Lease, error) {
				return locktest.NewTestMutex(long, "order").TryLock(context.Background(), 300*time.Millisecond)
			})
			if !watchlock.IsUnavailable(err) {
				t.Errorf("a wait in the pause: %v", err)
			}
			_, _ = timedCall(t, "telling the holder", timeout/4, func() (*watchlock.Lease, error) {
				<-lost.Done()
				return nil, nil
			})
			locktest.MustErr(t, "the short lease", lost.Err(), watchlock.ErrLost)
			l, err := locktest.NewTestMutex(long, "order").TryLock(context.Background(), 2*timeout)
			if err != nil {
				t.Fatalf("a wait that outlasts the pause: %v", err)
			}
			locktest.MustUnlock(t, l)
			if err := kept.Err(); err != nil {
				t.Errorf("the long lease: %v", err)
			}
			locktest.MustUnlock(t, kept)
			locktest.MustErr(t, "Unlock of the short lease", lost.Unlock(context.Background()), watchlock.ErrLost)
			locktest.Eventually(t, 2*time.Second, "late grants are given back", func() bool { return locktest.ServerKeys(t, s) == 0 })
			locktest.CheckServerEmpty(t, s, long, short)
		})
	}
}

func TestVirtualGarbageOnTheChannelIsNoStorm(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		a, b := locktest.WarmClient(t, v.Client()), locktest.WarmClient(t, v.Client())
		held := locktest.MustLock(t, locktest.NewTestMutex(b, "order"))
		channel := locktest.ChannelOfTest("order")
		waiting := locktest.GoLock(func() (*watchlock.Lease, error) { return locktest.NewTestMutex(a, "order").Lock(context.Background()) })
		time.Sleep(5 * time.Second)
		const seconds, rate = 3, 10000
		for range seconds {
			v.Reset()
			for i := range rate {
				if n := v.Mini().Publish(channel, fmt.Sprint("garbage ", i)); n != 1 {
					t.Fatalf("%d subscribers", n)
				}
				time.Sleep(time.Second / rate)
			}
			n := v.CountIf(locktest.Acquires())
			if n > 20 || n == 0 {
				t.Errorf("%d tries in a second of garbage, want some and at most 20", n)
			}
		}
		// In the middle of it a release is heard at once.
		v.Mini().Publish(channel, "garbage")
		freed := time.Now()
		locktest.MustUnlock(t, held)
		waiting.Wait(t)
		if gap := time.Since(freed); waiting.Err != nil || gap != 0 {
			t.Errorf("the waiter: %v, %v after the release", waiting.Err, gap)
		}
		locktest.MustUnlock(t, waiting.Lease)
		locktest.CheckBubbleEmpty(t, v, a, b)
	})
}

func TestDeletedUserIsToldWithoutTheSecret(t *testing.T) {
	redistest.NoLeaks(t)
	s := redistest.Start(t)
	const timeout, secret = 1200 * time.Millisecond, "s3cr3t-pass"
	create := func() {
		t.Helper()
		if _, err := s.Do("ACL", "SETUSER", "worker", "on", ">"+secret, "~*", "&*", "+@all"); err != nil {
			t.Fatal(err)
		}
	}
	create()
	log, logs := locktest.Observed()
	a := locktest.NewTestClient(t, s.Client(func(o *redis.Options) { o.Username, o.Password = "worker", secret }), log, watchlock.WithWatchdogTimeout(timeout))
	b := locktest.NewTestClient(t, s.Client())
	theirs := locktest.MustLock(t, locktest.NewTestMutex(b, "order"))
	held := locktest.MustLock(t, locktest.NewTestMutex(a, "held"))
	waiting := locktest.GoLock(func() (*watchlock.Lease, error) { return locktest.NewTestMutex(a, "order").Lock(context.Background()) })
	locktest.Eventually(t, 2*time.Second, "the waiter has subscribed", func() bool {
		n, err := s.Do("PUBSUB", "CHANNELS")
		topics, ok := n.([]any)
		return err == nil && ok && len(topics) == 1
	})
	if _, err := s.Do("ACL", "DELUSER", "worker"); err != nil {
		t.Fatal(err)
	}
	_, _ = timedCall(t, "telling the holder", timeout, func() (*watchlock.Lease, error) {
		<-held.Done()
		return nil, nil
	})
	locktest.MustErr(t, "the holder", held.Err(), watchlock.ErrLost)
	waiting.Wait(t) // a password that is wrong is not waited for
	_, again := locktest.NewTestMutex(a, "order").TryLock(context.Background(), time.Second)
	for what, err := range map[string]error{"the waiter": waiting.Err, "the next try": again} {
		switch {
		case err == nil || !strings.Contains(err.Error(), "WRONGPASS"):
			t.Errorf("%s: %v, want the server's text", what, err)
		case strings.Contains(err.Error(), secret):
			t.Errorf("%s tells the password: %v", what, err)
		case errors.Is(err, watchlock.ErrNotAcquired) || watchlock.IsUnavailable(err):
			t.Errorf("%s: %v is neither busy nor an outage", what, err)
		}
	}
	for _, e := range logs.All() {
		if strings.Contains(fmt.Sprint(e.Message, e.ContextMap()), secret) {
			t.Errorf("the log tells the password: %v", e)
		}
	}
	if err := theirs.Err(); err != nil {
		t.Errorf("the other user's lease: %v", err)
	}
	locktest.MustUnlock(t, theirs)
	create()
	locktest.CheckNextEnters(t, locktest.NewTestMutex(a, "order"))
	locktest.MustErr(t, "Unlock of the lost lease", held.Unlock(context.Background()), watchlock.ErrLost)
	locktest.Eventually(t, 2*timeout, "no key is left", func() bool { return locktest.ServerKeys(t, s) == 0 })
	locktest.CheckServerEmpty(t, s, a, b)
}

func TestCloseIsBoundedWhileTheServerIsStopped(t *testing.T) {
	redistest.NoLeaks(t)
	s := redistest.Start(t)
	// The caller's own timeouts must not matter.
	rdb := s.Client(func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = 8*time.Second, 8*time.Second })
	c := locktest.NewTestClient(t, rdb, watchlock.WithUnlockTimeout(500*time.Millisecond))
	locktest.MustLock(t, locktest.NewTestMutex(c, "held"))
	waiting := locktest.GoLock(func() (*watchlock.Lease, error) { return locktest.NewTestMutex(c, "held").Lock(context.Background()) })
	s.Stop()
	trying := locktest.GoLock(func() (*watchlock.Lease, error) { return locktest.NewTestMutex(c, "order").Lock(context.Background()) })
	called := time.Now()
	<-time.After(100 * time.Millisecond)
	closing := time.Since(called)
	_, _ = timedCall(t, "Close", 500*time.Millisecond+2*locktest.OneAttempt, func() (*watchlock.Lease, error) {
		if err := c.Close(); err == nil || !strings.Contains(err.Error(), "held") {
			t.Errorf("Close: %v, want one that names the lock that is left", err)
		}
		return nil, nil
	})
	for what, call := range map[string]*locktest.LockCall{"a waiter": waiting, "an attempt in flight": trying} {
		call.Wait(t)
		locktest.MustErr(t, what, call.Err, watchlock.ErrClosed)
		late := time.Duration(0)
		if call == trying {
			late = locktest.OneAttempt // its context cannot end, so it makes its first attempt itself
		}
		if call.Took > closing+late+5*outageSlack {
			t.Errorf("%s came back %v after its call, want at Close, after %v", what, call.Took, closing)
		}
	}
	s.Cont()
}
