package sentinel_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// failoverLoops are the locks that everybody takes and releases, by their kinds.
func failoverLoops() map[string]string {
	return map[string]string{"loop-mutex": "mutex", "loop-fenced": "fenced", "loop-string": "string"}
}

// failover is a way to replace a primary, and what holds for it.
type failover struct {
	name   string
	strike func(s *redistest.Sentinel, old *redistest.Server) // until somebody has to be named
	after  func(s *redistest.Sentinel, old *redistest.Server) // when another one is named
	cutOff bool                                               // the old primary serves clients all the time
}

func failovers() []failover {
	nothing := func(*redistest.Sentinel, *redistest.Server) {}
	return []failover{
		{"planned", nil, nothing, false},
		{"killed", func(_ *redistest.Sentinel, old *redistest.Server) { old.Kill() }, nothing, false},
		{
			"stopped, and back", func(_ *redistest.Sentinel, old *redistest.Server) { old.Stop() },
			func(_ *redistest.Sentinel, old *redistest.Server) { old.Cont() }, false,
		},
		{"cut off from the sentinels", (*redistest.Sentinel).Isolate, nothing, true},
	}
}

// failoverRun is one failover under load.
type failoverRun struct {
	testing.TB
	*redistest.Sentinel
	failover
	told  beliefs
	users []user
	old   *redistest.Server

	struck time.Time
	naming redistest.Naming
}

// user adds a client on an rdb of its own.
func (r *failoverRun) user(name string, rdb redis.UniversalClient, timeout time.Duration) {
	c := locktest.NewTestClient(r, rdb, watchlock.WithWatchdogTimeout(timeout), watchlock.WithUnlockTimeout(time.Second))
	r.users = append(r.users, user{c, name, &r.told})
}

// replace strikes the primary and returns when another one is named. What is to
// happen while the old one is struck and nobody is named is meanwhile's.
func (r *failoverRun) replace(meanwhile func()) {
	r.Helper()
	r.old = r.Primary()
	r.struck = time.Now()
	if r.strike == nil {
		r.naming = r.Failover()
	} else {
		r.strike(r.Sentinel, r.old)
		meanwhile()
		r.naming = r.AwaitPrimaryOtherThan(r.old)
	}
	r.after(r.Sentinel, r.old)
	r.Logf("%s: %s named after %v, by all after %v", r.name, r.naming.Primary.Addr(),
		r.naming.First.Sub(r.struck), r.naming.All.Sub(r.struck))
}

// waitUntil is d after all sentinels have named the new primary.
func (r *failoverRun) waitUntil(d time.Duration) { <-time.After(time.Until(r.naming.All.Add(d))) }

// load has everybody take and release some locks, and try for those that others
// hold. The returned stop ends when all of that has ended.
func (r *failoverRun) load(held []*belief) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, u := range r.users {
		for name, kind := range failoverLoops() {
			wg.Go(func() { u.loop(ctx, kind, name) })
		}
		wg.Go(func() { u.pry(ctx, held) })
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// takeEach takes a lock of each kind for each user.
func (r *failoverRun) takeEach(prefix string) []*belief {
	var taken []*belief
	for i, u := range r.users {
		for _, kind := range kindsOfLocks() {
			taken = append(taken, u.take(r, kind, fmt.Sprintf("%s%d-%s", prefix, i, kind)))
		}
	}
	return taken
}

// stays fails unless a lease that was there before the failover is there, here and
// at the new primary.
func (r *failoverRun) stays(x *belief) {
	r.Helper()
	if err := x.lease.Err(); err != nil {
		r.Errorf("%s of %s: %v", x.lease.Name(), x.who, err)
	}
	if at := ownerAt(r, r.naming.Primary, mutexOfLease(r.users[0].Client, x.lease)); at != locktest.OwnerOf(x.lease) {
		r.Errorf("%s of %s: the new primary has owner %q", x.lease.Name(), x.who, at)
	}
}

// looped fails unless each lock of the loops was taken soon after the naming, at
// the new primary, and is free when nobody loops any more.
func (r *failoverRun) looped(stop func()) {
	r.Helper()
	r.waitUntil(2 * time.Second)
	stop()
	for name := range failoverLoops() {
		if at, ok := r.told.firstAfter(name, r.naming.All); !ok {
			r.Errorf("%s: nobody entered within 2 s of the naming", name)
		} else if d := at.Sub(r.naming.All); d > movesBy {
			r.Errorf("%s: entered %v after the naming", name, d)
		}
	}
	r.free(r.loops())
}

// loops are the locks of the loops.
func (r *failoverRun) loops() []*watchlock.Mutex {
	var loops []*watchlock.Mutex
	for name, kind := range failoverLoops() {
		loops = append(loops, locktest.MutexOf(r.users[0].Client, kind, name))
	}
	return loops
}

// free fails unless the new primary soon has nobody in some locks.
func (r *failoverRun) free(locks []*watchlock.Mutex) {
	r.Helper()
	deadline := time.Now().Add(500 * time.Millisecond)
	for _, m := range locks {
		for at := ownerAt(r, r.naming.Primary, m); at != ""; at = ownerAt(r, r.naming.Primary, m) {
			if time.Now().After(deadline) {
				r.Errorf("%s: %q has it at the new primary, and nobody believes in that", m.Name(), at)
				break
			}
			<-time.After(5 * time.Millisecond)
		}
	}
}

// keptAll fails for leases that were lost though they began well before the
// failover, or after it: the new primary has what was written by then.
func (r *failoverRun) keptAll() {
	r.Helper()
	replicated := r.struck.Add(-100 * time.Millisecond)
	for _, x := range r.told.losses(time.Time{}, replicated) {
		r.Errorf("%s of %s: lost %v after the old primary was struck", x.lease.Name(), x.who, since(x.until, r.struck))
	}
	for _, x := range r.told.losses(r.naming.All.Add(movesBy), time.Now()) {
		r.Errorf("%s of %s: granted %v after the naming and lost %s after it",
			x.lease.Name(), x.who, x.from.Sub(r.naming.All), since(x.until, r.naming.All))
	}
}

// eachFailover runs f for each way, once or as often as n is in a full run.
func eachFailover(t *testing.T, s *redistest.Sentinel, n int, f func(r *failoverRun)) {
	if os.Getenv("WATCHLOCK_FULL") == "" {
		n = 1
	}
	for i := range n {
		for _, way := range failovers() {
			name := way.name
			if n > 1 {
				name = fmt.Sprint(name, " ", i)
			}
			t.Run(name, func(t *testing.T) {
				r := &failoverRun{TB: t, Sentinel: s, failover: way}
				f(r)
				if t.Failed() {
					t.Logf("the old primary was %s", r.old.Addr())
				}
			})
			s.Heal()
			if _, err := s.Primary().Do("FLUSHALL"); err != nil { // so that nothing of one is seen in the next
				t.Fatal(err)
			}
		}
	}
}

func TestNobodyBelievesTwiceThroughAFailover(t *testing.T) {
	t.Parallel() // it is time that it takes
	const short = 9 * time.Second
	s := redistest.StartSentinel(t)
	eachFailover(t, s, 10, func(r *failoverRun) {
		for i, timeout := range []time.Duration{short, short, 30 * time.Second, 30 * time.Second} {
			r.user(fmt.Sprintf("client %d with %v", i, timeout), s.Client(), timeout)
		}
		r.user("client of the cluster type", s.ClusterTypeClient(), short)
		held, left, handed := r.takeEach("held"), r.takeEach("left"), r.takeEach("handed")
		entered := make([]<-chan locktest.LockEntry, len(handed))
		for i, x := range handed {
			other := r.users[(i/len(kindsOfLocks())+1)%len(r.users)]
			entered[i] = locktest.LockSoon(mutexOfLease(other.Client, x.lease))
		}
		stop := r.load(held)
		<-time.After(time.Second)
		if r.cutOff {
			r.replace(func() { r.cutOffScene(left) })
		} else {
			r.replace(func() {})
		}
		r.waitUntil(movesBy)
		r.handOver(handed, entered)
		r.looped(stop)
		if r.cutOff {
			var locks []*watchlock.Mutex
			for _, x := range left {
				locks = append(locks, mutexOfLease(r.users[0].Client, x.lease))
			}
			r.free(locks)
		}
		ctx, cancel := context.WithDeadline(context.Background(), r.struck.Add(short+500*time.Millisecond))
		defer cancel()
		var wg sync.WaitGroup
		for _, u := range r.users {
			wg.Go(func() { u.pry(ctx, held) })
		}
		wg.Wait()
		for _, x := range held {
			r.stays(x)
		}
		r.keptAll()
		r.told.check(r, r.struck)
		for _, x := range append(held, left...) {
			_ = r.users[0].give(x)
		}
	})
}

// cutOffScene releases locks at a primary that goes on serving and is no longer to
// be one.
func (r *failoverRun) cutOffScene(left []*belief) {
	for _, x := range left {
		if err := r.users[0].give(x); err != nil {
			r.Errorf("%s: Unlock at the primary: %v", x.lease.Name(), err)
		}
	}
}

// handOver releases locks that others have waited for since before the failover.
func (r *failoverRun) handOver(handed []*belief, entered []<-chan locktest.LockEntry) {
	r.Helper()
	released := make([]time.Time, len(handed))
	for i, x := range handed {
		if err := r.users[0].give(x); err != nil {
			r.Errorf("%s of %s: Unlock: %v", x.lease.Name(), x.who, err)
		}
		released[i] = time.Now()
	}
	late := time.After(time.Second)
	for i, x := range handed {
		select {
		case got := <-entered[i]:
			if got.Err != nil {
				r.Errorf("%s: %v", x.lease.Name(), got.Err)
				continue
			}
			if d := got.At.Sub(released[i]); d > locktest.WakesLate {
				r.Errorf("%s of %s: the waiter entered %v after the release: not by message", x.lease.Name(), x.who, d)
			}
			if err := got.Lease.Unlock(context.Background()); err != nil {
				r.Errorf("%s: the waiter's Unlock: %v", x.lease.Name(), err)
			}
		case <-late:
			late = closedTime()
			r.Errorf("%s of %s: the waiter did not enter within 1 s of the release", x.lease.Name(), x.who)
		}
	}
}

// closedTime is a timer that has fired, as often as it is asked.
func closedTime() <-chan time.Time {
	c := make(chan time.Time)
	close(c)
	return c
}

func TestWithAReplicaToWriteToNobodyBelievesTwiceAtAShortLease(t *testing.T) {
	t.Parallel() // it is time that it takes
	const short = 3 * time.Second
	s := redistest.StartSentinel(t, redistest.WithMinReplicas(1))
	eachFailover(t, s, 10, func(r *failoverRun) {
		for i := range 3 {
			r.user(fmt.Sprintf("client %d", i), s.Client(), short)
		}
		held := r.takeEach("held")
		stop := r.load(held)
		<-time.After(1200 * time.Millisecond)
		r.replace(func() {})
		<-time.After(time.Until(r.struck.Add(short + 2*time.Second)))
		stop()
		r.told.check(r, r.struck)
		r.free(r.loops())
		for _, x := range held {
			_ = r.users[0].give(x)
		}
	})
}
