package sentinel_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// twoSentinels are a server and two sentinels, of which a client has chosen one.
type twoSentinels struct {
	*redistest.Server
	chosen, other *redistest.FakeSentinel
	rdb           *redis.Client
}

func startTwoSentinels(t *testing.T, opts ...func(*redis.FailoverOptions)) twoSentinels {
	t.Helper()
	s := redistest.Start(t, redistest.WithTCP())
	a, b := redistest.NewFakeSentinel(t, s.Addr()), redistest.NewFakeSentinel(t, s.Addr())
	both := func(o *redis.FailoverOptions) { o.SentinelAddrs = append(o.SentinelAddrs, b.Addr()) }
	rdb := a.Client(append(opts, both)...)
	if err := rdb.Ping(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	locktest.Eventually(t, 5*time.Second, "the client listens to one", func() bool { return a.Listeners()+b.Listeners() > 0 })
	if b.Listeners() > 0 {
		a, b = b, a
	}
	return twoSentinels{s, a, b, rdb}
}

// cut closes all connections of clients, as a proxy does that is restarted.
func (s twoSentinels) cut(t *testing.T) {
	t.Helper()
	if _, err := s.Do("CLIENT", "KILL", "TYPE", "normal"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Do("CLIENT", "KILL", "TYPE", "pubsub"); err != nil {
		t.Fatal(err)
	}
}

// openAnother has c open a second connection for commands, as one does whose first has had no
// answer for a moment: a renewal that meets a command needs it.
func (s twoSentinels) openAnother(t *testing.T, c *watchlock.Client) {
	t.Helper()
	s.Stop()
	var asked sync.WaitGroup
	for range 2 {
		asked.Go(func() {
			if _, err := c.NewMutex("any").Info(context.Background()); err != nil {
				t.Errorf("Info: %v", err)
			}
		})
	}
	<-time.After(3 * locktest.FlightPatience)
	s.Cont()
	asked.Wait()
}

func TestAFrozenSentinelLeavesLocksAloneWhoseConnectionsStand(t *testing.T) {
	s := startTwoSentinels(t)
	const short = 3 * time.Second
	log, logs := locktest.Observed()
	c := locktest.NewTestClient(t, s.rdb, watchlock.WithWatchdogTimeout(short), log)
	held := lockEachKind(c, t, "held")
	<-time.After(short/3 + 200*time.Millisecond) // the connection for messages is open
	s.openAnother(t, c)
	s.chosen.Freeze()
	for start := time.Now(); time.Since(start) < 2*short; {
		began := time.Now()
		for _, l := range lockEachKind(c, t, "taken") {
			locktest.MustUnlock(t, l)
		}
		if d := time.Since(began); d > 500*time.Millisecond {
			t.Errorf("three locks took %v", d)
		}
		<-time.After(50 * time.Millisecond)
	}
	if n := logs.FilterMessageSnippet("the sentinels do not say").Len(); n != 1 {
		t.Errorf("it is warned of %d times, want once", n)
	}
	for _, l := range held {
		if err := l.Err(); err != nil {
			t.Errorf("%s: %v", l.Name(), err)
		}
		locktest.MustUnlock(t, l)
	}
}

func TestLocksGoOnWhenAFrozenSentinelAnswersAgain(t *testing.T) {
	t.Parallel()              // it is time that it takes
	s := startTwoSentinels(t) // its timeouts are go-redis's defaults
	c := locktest.NewTestClient(t, s.rdb)
	held := lockEachKind(c, t, "held")
	s.chosen.Freeze()
	s.cut(t)
	<-time.After(6 * time.Second)
	s.chosen.Thaw()
	m := c.NewMutex("next")
	began := time.Now()
	l, err := m.TryLock(context.Background(), 5*time.Second)
	if err != nil {
		t.Fatalf("after the sentinel answers again: %v after %v", err, time.Since(began))
	}
	locktest.MustUnlock(t, l)
	for _, l := range held {
		if err := l.Err(); err != nil {
			t.Errorf("%s: %v", l.Name(), err)
		}
		locktest.MustUnlock(t, l)
	}
}

// The caller's own client drops the sentinel that it has chosen when two questions
// have ended by the read timeout within one dial, which with go-redis's defaults (3 s
// and 5 s) never is. Where it goes on, locks do.
func TestLocksGoOnByAnotherSentinelWhenTheChosenOneIsFrozen(t *testing.T) {
	t.Parallel() // it is time that it takes
	s := startTwoSentinels(t, func(o *redis.FailoverOptions) { o.ReadTimeout = time.Second })
	const lease = 15 * time.Second
	const within = 2 * lease / 3 // what is held has a renewal's time left then
	c := locktest.NewTestClient(t, s.rdb, watchlock.WithWatchdogTimeout(lease))
	held := lockEachKind(c, t, "held")
	s.chosen.Freeze()
	s.cut(t)
	began := time.Now()
	l, err := c.NewMutex("next").TryLock(context.Background(), within)
	t.Logf("locked after %v", time.Since(began))
	if err != nil {
		t.Errorf("another sentinel answers, and a lock is free: %v", err)
	} else {
		locktest.MustUnlock(t, l)
	}
	if n := s.other.Asked(); n == 0 {
		t.Error("the other sentinel was not asked")
	}
	<-time.After(time.Until(began.Add(lease + time.Second)))
	for _, l := range held {
		if err := l.Err(); err != nil {
			t.Errorf("%s: %v", l.Name(), err)
			continue
		}
		locktest.MustUnlock(t, l)
	}
}

// TestTheCallersClientGoesOnByAnotherSentinel is what the test above compares with.
func TestTheCallersClientGoesOnByAnotherSentinel(t *testing.T) {
	t.Parallel() // it is time that it takes
	s := startTwoSentinels(t, func(o *redis.FailoverOptions) { o.ReadTimeout = time.Second })
	s.chosen.Freeze()
	s.cut(t)
	began := time.Now()
	locktest.Eventually(t, 12*time.Second, "the caller's client is connected again", func() bool {
		return s.rdb.Ping(context.Background()).Err() == nil
	})
	t.Logf("connected after %v", time.Since(began))
}
