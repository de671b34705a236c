package renew_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// withoutFailover makes a cluster in which a primary that stands still is not replaced,
// and the others go on.
func withoutFailover(t *testing.T) *redistest.Cluster {
	t.Helper()
	cl := redistest.StartCluster(t)
	for _, n := range cl.Nodes() {
		n.Config("cluster-replica-no-failover", "yes")
		n.Config("cluster-require-full-coverage", "no")
	}
	return cl
}

// splitNames are names at primaries that answer and names at the one that will not.
func splitNames(cl *redistest.Cluster, stopped *redistest.Server, n int) (healthy map[string]*redistest.Server, dead []string) {
	owners := cl.AwaitAgreement()
	healthy = map[string]*redistest.Server{}
	for i := 0; len(healthy) < n || len(dead) < n/2; i++ {
		name := fmt.Sprint("job-", i)
		switch at := owners[transport.KeySlot(name)]; {
		case at == stopped && len(dead) < n/2:
			dead = append(dead, name)
		case at != stopped && len(healthy) < n:
			healthy[name] = at
		}
	}
	return healthy, dead
}

func TestAPrimaryThatStandsStillDelaysNoRenewalAtTheOthers(t *testing.T) {
	t.Parallel() // it is time that it takes
	const timeout, still = 9 * time.Second, 20 * time.Second
	cl := withoutFailover(t)
	c := locktest.NewTestClient(t, cl.Client(), watchlock.WithWatchdogTimeout(timeout))
	stopped := cl.Primaries()[0]
	healthy, dead := splitNames(cl, stopped, 100)
	var leases []*watchlock.Lease
	for name := range healthy {
		leases = append(leases, locktest.MustLock(t, c.NewMutex(name)))
	}
	for _, name := range dead {
		_ = locktest.MustLock(t, c.NewMutex(name)).Done()
	}
	stopped.Stop()
	defer stopped.Cont()
	start := time.Now()
	lowest, at := timeout, ""
	lost := 0
	for time.Since(start) < still && lost == 0 {
		for name, s := range healthy {
			ms, err := s.Do("PTTL", name)
			if err != nil {
				t.Fatal(err)
			}
			if ttl := time.Duration(ms.(int64)) * time.Millisecond; ttl < lowest {
				lowest, at = ttl, fmt.Sprintf("%s after %v", name, time.Since(start).Round(time.Millisecond))
			}
		}
		for _, l := range leases {
			if l.Err() != nil {
				lost++
			}
		}
		<-time.After(50 * time.Millisecond)
	}
	if lost > 0 {
		t.Errorf("%d of %d leases at primaries that answer are lost after %v", lost, len(leases), time.Since(start))
	}
	if least := timeout - timeout/3 - timeout/10; lowest < least {
		t.Errorf("a TTL fell to %v (%s), not below %v if no renewal is later than a tenth", lowest, at, least)
	}
}

func TestAPrimaryThatStandsStillDelaysNoOrphanAtTheOthers(t *testing.T) {
	t.Parallel() // it is time that it takes
	cl := withoutFailover(t)
	stopped := cl.Primaries()[0]
	healthy, dead := splitNames(cl, stopped, 40)
	rdb := cl.Client()
	var b locktest.Breaker
	rdb.AddHook(b.Hook())
	c := locktest.NewTestClient(t, rdb, watchlock.WithUnlockTimeout(300*time.Millisecond))
	var leases []*watchlock.Lease
	for name := range healthy {
		leases = append(leases, locktest.MustLock(t, c.NewMutex(name, watchlock.WithLeaseTime(time.Minute))))
	}
	for _, name := range dead {
		leases = append(leases, locktest.MustLock(t, c.NewMutex(name, watchlock.WithLeaseTime(time.Minute))))
	}
	stopped.Stop()
	defer stopped.Cont()
	// No release gets through for a while: all of them are orphans.
	b.Open(true)
	done := make(chan struct{})
	for _, l := range leases {
		go func() { _ = l.Unlock(context.Background()); done <- struct{}{} }()
	}
	for range leases {
		<-done
	}
	<-time.After(1500 * time.Millisecond) // a pass of them is under way
	b.Open(false)
	start := time.Now()
	left := func() (n int) {
		for name, s := range healthy {
			if there, err := s.Do("EXISTS", name); err != nil || there != int64(0) {
				n++
			}
		}
		return n
	}
	for left() > 0 && time.Since(start) < 1500*time.Millisecond {
		<-time.After(20 * time.Millisecond)
	}
	if n := left(); n > 0 {
		t.Errorf("%d of %d orphans at primaries that answer are there after %v", n, len(healthy), time.Since(start))
	}
}

func TestANodeWithoutAnswersHasNothingVerifiedElsewhere(t *testing.T) {
	t.Parallel() // it is time that it takes
	const timeout = 30 * time.Second
	cl := withoutFailover(t)
	c := locktest.NewTestClient(t, cl.Client(), watchlock.WithWatchdogTimeout(timeout))
	stopped := cl.Primaries()[0]
	healthy, dead := splitNames(cl, stopped, 60)
	for name := range healthy {
		_ = locktest.MustLock(t, c.NewMutex(name)).Done()
	}
	locktest.MustUnlock(t, locktest.MustLock(t, c.NewMutex(dead[0])))
	for _, s := range cl.Primaries() {
		locktest.MustDo(t, s, "CONFIG", "RESETSTAT")
	}
	stopped.Stop()
	defer stopped.Cont()
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Second)
	defer cancel()
	waiter := make(chan struct{})
	go func() { // asks the node that does not answer, again and again
		defer close(waiter)
		_, _ = c.NewMutex(dead[0]).Lock(ctx)
	}()
	var busy string
	for name := range healthy {
		busy = "{" + name + "}busy"
		break
	}
	pairs := 0
	for ctx.Err() == nil { // and the others answer
		locktest.MustUnlock(t, locktest.MustLock(t, c.NewMutex(busy)))
		pairs++
		<-time.After(5 * time.Millisecond)
	}
	<-waiter
	scripts := 0
	for _, s := range cl.Nodes() {
		if s != stopped {
			calls := s.CommandCalls()
			scripts += calls["evalsha"] + calls["eval"]
		}
	}
	// The pairs, and one renewal or none for each lock.
	if extra := scripts - 2*pairs; extra > 2*len(healthy) {
		t.Errorf("%d scripts beyond those of %d pairs, with %d locks held for 6 s", extra, pairs, len(healthy))
	}
}

// On one server: one key gets no answers, all else does.
func TestAKeyWithoutAnswersDoesNotHaveEverythingVerified(t *testing.T) {
	locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		w := redistest.NewWire()
		c := locktest.NewTestClient(t, v.Client(w.Options()))
		locktest.KnowsServer(t, c, kind)
		const held = 300
		var leases []*watchlock.Lease
		for i := range held {
			leases = append(leases, locktest.MustLock(t, locktest.MutexOf(c, kind, fmt.Sprint("held-", i))))
		}
		w.On(redistest.Match(redistest.Any).Mentions("dead"), redistest.DropRequest).Times(0)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = locktest.MutexOf(c, kind, "dead").Lock(ctx)
		}()
		v.Reset()
		for ctx.Err() == nil { // other traffic
			locktest.MustUnlock(t, locktest.MustLock(t, locktest.MutexOf(c, kind, "ok")))
			time.Sleep(10 * time.Millisecond)
		}
		<-done
		renewals := v.CountIf(redistest.Runs(wire.RenewSource)) + v.CountIf(redistest.Runs(wire.RenewStringSource))
		// Three batches are due once; connections that end may have all verified once a second.
		if renewals > 3+3*11 {
			t.Errorf("%d renewals of %d locks in 10 s", renewals, held)
		}
		for _, l := range leases {
			locktest.MustUnlock(t, l)
		}
	})
}
