package mistakes

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// Each test plays one mistake twice, with the naive code and with watchlock, and
// prints a line for each. docs/mistakes.md has the same lines.

const (
	short = 100 * time.Millisecond // a lease that ends under its job
	long  = 10 * time.Second       // one that does not
)

func TestMistakePlainDel(t *testing.T) {
	s, rdb, ctx := scene{t}, redistest.Start(t).Client(), t.Context()
	const job = "naive:order:1001"
	a, b, c := plainDel{rdb, job}, plainDel{rdb, job}, plainDel{rdb, job}
	s.taken(a.tryLock(ctx, short))
	waitUntilGone(t, rdb, job) // A's job takes longer
	s.taken(b.tryLock(ctx, long))
	s.did(a.unlock(ctx)) // A is done, and deletes B's lock
	inside := 1 + s.count(c.tryLock(ctx, long))
	naive(t, inside == 2, "A's DEL removed the lock of B: B and C, %d workers, are inside at once", inside)

	la, lb, lc := newLock(t, rdb, "order:1001"), newLock(t, rdb, "order:1001"), newLock(t, rdb, "order:1001")
	leaseA := s.lease(la.Lock(ctx, watchlock.WithLeaseTime(short)))
	<-leaseA.Done()
	leaseB := s.lease(lb.Lock(ctx))
	told := leaseA.Unlock(ctx)
	_, err := lc.TryLock(ctx, 0)
	here(t, errors.Is(told, watchlock.ErrLost) && errors.Is(err, watchlock.ErrNotAcquired) && leaseB.Err() == nil,
		"A's Unlock says %q and B keeps the lock: C is told %q", reason(told), reason(err))
	s.did(leaseB.Unlock(ctx))
}

func TestMistakeSetnxThenExpire(t *testing.T) {
	s, server, ctx := scene{t}, redistest.Start(t), t.Context()
	const job = "naive:order:1001"

	// The process dies between two commands: no more of them reach the server.
	dead := redistest.NewWire()
	dead.On(redistest.Is("PEXPIRE"), redistest.DropRequest).Times(0)
	rdb := server.Client(dead.Options(), func(o *redis.Options) { o.MaxRetries = -1 })
	_, err := twoSteps{rdb, job}.tryLock(ctx, short)
	ttl := server.Client().PTTL(ctx, job).Val()
	again, _ := twoSteps{server.Client(), job}.tryLock(ctx, short)
	naive(t, err != nil && ttl == -1 && !again, "the key is there and its TTL is %d, which means for ever: nobody gets the lock again", ttl)

	wire, died := redistest.NewWire(), make(chan struct{})
	mine := newLock(t, server.Client(wire.Options()), "order:1001")
	s.did(s.lease(mine.TryLock(ctx, 0)).Unlock(ctx))
	acquires := func(c redistest.Command) bool { return c.Name == "EVALSHA" || c.Name == "EVAL" }
	wire.On(acquires, redistest.CallReply(func() { // here the server has run the first command of the lock
		wire.Refuse(true)
		wire.Cut()
		close(died)
	}))
	_, _ = mine.TryLock(ctx, 0, watchlock.WithLeaseTime(5*short))
	<-died
	ttl = server.Client().PTTL(ctx, "order:1001").Val()
	next, err := newLock(t, server.Client(), "order:1001").TryLock(ctx, long)
	here(t, ttl > 0 && err == nil, "one command set the key and its TTL (%v at most): the next worker got the lock when that was over", 5*short)
	s.did(next.Unlock(ctx))
}

func TestMistakeSharedHandle(t *testing.T) {
	s, rdb, ctx := scene{t}, redistest.Start(t).Client(), t.Context()
	handle := &sharedHandle{rdb: rdb, key: "naive:order:1001"}
	inside := 0
	for range 2 { // goroutines of one process
		inside += s.count(inGoroutine(func() (bool, error) { return handle.tryLock(ctx, long) }))
	}
	naive(t, inside == 2, "the handle took its own lock for granted: %d goroutines are inside at once", inside)

	mutex := newLock(t, rdb, "order:1001")
	first := s.lease(mutex.TryLock(ctx, 0))
	_, err := inGoroutine(func() (*watchlock.Lease, error) { return mutex.TryLock(ctx, 0) })
	here(t, errors.Is(err, watchlock.ErrNotAcquired), "the lease is the owner, not the Mutex: the second goroutine is told %q", reason(err))
	s.did(first.Unlock(ctx))
}

func TestMistakeCancelledContextAtUnlock(t *testing.T) {
	s, rdb, ctx := scene{t}, redistest.Start(t).Client(), t.Context()
	request, leave := context.WithCancel(ctx)
	lock := newRecipe(rdb, "naive:order:1001")
	s.taken(lock.tryLock(request, long))
	mutex := newLock(t, rdb, "order:1001")
	mine := s.lease(mutex.Lock(request))
	leave() // the client has gone

	err := lock.unlock(request)
	held, _ := newRecipe(rdb, "naive:order:1001").tryLock(ctx, long)
	naive(t, errors.Is(err, context.Canceled) && !held, "unlock says %q and sends nothing: the lock is held until its TTL ends", err)

	err = mine.Unlock(request)
	next, nextErr := mutex.TryLock(ctx, 0)
	here(t, err == nil && nextErr == nil, "Unlock says %v under the same context: the next worker gets the lock at once", err)
	s.did(next.Unlock(ctx))
}

func TestMistakeLeaseShorterThanTheJob(t *testing.T) {
	s, rdb, ctx := scene{t}, redistest.Start(t).Client(), t.Context()
	const job = "naive:order:1001"
	s.taken(newRecipe(rdb, job).tryLock(ctx, short))
	waitUntilGone(t, rdb, job) // and the job runs on: nothing tells it
	inside := 1 + s.count(newRecipe(rdb, job).tryLock(ctx, long))
	naive(t, inside == 2, "the lease of %v ended under its job, which nothing told: %d workers are inside at once", short, inside)

	const ttl = 300 * time.Millisecond // the shortest that the watchdog takes
	mine, theirs := newLock(t, rdb, "order:1001", watchlock.WithWatchdogTimeout(ttl)), newLock(t, rdb, "order:1001")
	renewed := s.lease(mine.Lock(ctx))
	_, err := theirs.TryLock(ctx, 3*ttl) // all the time of a job three times as long
	here(t, errors.Is(err, watchlock.ErrNotAcquired) && renewed.Err() == nil,
		"the watchdog renewed %v for a job of %v: the other worker is told %q", ttl, 3*ttl, reason(err))
	s.did(renewed.Unlock(ctx))

	fixed := s.lease(mine.Lock(ctx, watchlock.WithLeaseTime(short)))
	before := false
	s.did(theirs.Do(ctx, func(context.Context) error {
		before = fixed.Context(ctx).Err() != nil
		return nil
	}))
	here(t, before && errors.Is(fixed.Err(), watchlock.ErrLost), "a lease of %v that was asked for ends too, and says %q by the time the other worker is inside", short, reason(fixed.Err()))
}

// naive and here print what happened, and fail unless it is what was to be shown.
func naive(t *testing.T, ok bool, format string, args ...any) {
	t.Helper()
	outcome(t, ok, "naive", format, args)
}

func here(t *testing.T, ok bool, format string, args ...any) {
	t.Helper()
	outcome(t, ok, "here", format, args)
}

func outcome(t *testing.T, ok bool, who, format string, args []any) {
	t.Helper()
	line := fmt.Sprintf("%-6s %s", who+":", fmt.Sprintf(format, args...))
	if !ok {
		t.Errorf("not so: %s", line)
		return
	}
	t.Log(line)
	wantInDocs(t, line)
}

// reason is the error without the lock's name and its TTL.
func reason(err error) error {
	if lockErr := (*watchlock.LockError)(nil); errors.As(err, &lockErr) {
		return lockErr.Err
	}
	return err
}
