package release_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestA10_ForgottenCancelledTryLeavesNoKey(t *testing.T) {
	redistest.NoLeaks(t)
	s := redistest.Start(t)
	const timeout = 600 * time.Millisecond
	c := locktest.NewTestClient(t, s.Client(), watchlock.WithWatchdogTimeout(timeout))
	var cancelled, won int
	for i := range 200 {
		after := rand.N(10 * time.Millisecond)
		switch i % 4 {
		case 0:
			after = rand.N(500 * time.Microsecond) // about a round trip
		case 1:
			after = 10 * time.Second // whatever else the machine does
		}
		ctx, cancel := context.WithTimeout(context.Background(), after)
		l, err := locktest.NewTestMutex(c, fmt.Sprint("order-", i)).TryLock(ctx, time.Second)
		cancel()
		switch {
		case err != nil:
			cancelled++
		case l != nil:
			won++ // and forgotten
		default:
			t.Error("neither a lease nor an error")
		}
	}
	if cancelled == 0 || won == 0 {
		t.Errorf("%d cancelled and %d won: both should happen", cancelled, won)
	}
	locktest.Eventually(t, 3*timeout, "no key is left", func() bool {
		runtime.GC() // finds the forgotten
		return locktest.ServerKeys(t, s) == 0
	})
	locktest.CheckNextEnters(t, locktest.NewTestMutex(c, "order-0"))
	locktest.CheckServerEmpty(t, s, c)
}

func TestA45_CancelledLockIsAnError(t *testing.T) {
	reason := errors.New("the request is gone")
	for _, when := range []string{"before", "while it waits elsewhere", "while it waits here"} {
		t.Run(when, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				a, b := locktest.WarmClient(t, v.Client()), locktest.WarmClient(t, v.Client())
				holder := a
				if when == "while it waits here" {
					holder = b
				}
				lease := locktest.MustLock(t, locktest.NewTestMutex(holder, "order"))
				ctx, cancel := context.WithCancelCause(context.Background())
				if when == "before" {
					locktest.MustUnlock(t, lease)
					cancel(reason)
				} else {
					time.AfterFunc(10*time.Second, func() { cancel(reason) })
				}
				start := time.Now()
				err := locktest.NewTestMutex(b, "order").Do(ctx, func(context.Context) error {
					t.Error("the section ran")
					return nil
				})
				locktest.MustErr(t, "Do", err, context.Canceled)
				locktest.MustErr(t, "Do", err, reason)
				if errors.Is(err, watchlock.ErrNotAcquired) {
					t.Errorf("Do says busy: %v", err)
				}
				if took := time.Since(start); when != "before" && took != 10*time.Second {
					t.Errorf("Do returned after %v, cancelled after 10 s", took)
				}
				if when != "before" {
					locktest.MustUnlock(t, lease)
				}
				time.Sleep(time.Second)
				if v.Mini().Exists("order") {
					t.Error("the cancelled call took the lock later")
				}
				locktest.CheckNextEnters(t, locktest.NewTestMutex(a, "order"))
				locktest.CheckBubbleEmpty(t, v, a, b)
			})
		})
	}
}

// cancelPoint is where in its way a call is cancelled.
type cancelPoint struct {
	name string
	// arm prepares for cancel to be called at the point.
	arm func(t *testing.T, c *cancelTest, cancel func())
	// granted: the server may have granted before the caller was gone.
	granted bool
}

// cancelTest is the stage of one cancelled call.
type cancelTest struct {
	v       *redistest.Virtual
	wire    *redistest.Wire
	other   *watchlock.Client
	busy    *watchlock.Lease // of B, when the call has to wait
	release chan struct{}
}

// needsHolder has B hold the lock.
func (c *cancelTest) needsHolder(t *testing.T) {
	t.Helper()
	c.busy = locktest.MustLock(t, locktest.NewTestMutex(c.other, "order"))
}

var cancelPoints = []cancelPoint{
	{"before anything is sent", func(_ *testing.T, _ *cancelTest, cancel func()) { cancel() }, false},
	{"while dialling", func(_ *testing.T, c *cancelTest, cancel func()) {
		c.wire.Cut()
		c.wire.On(redistest.Is("HELLO"), redistest.All(redistest.Call(cancel), redistest.HoldRequest(c.release)))
	}, true},
	{"as the request leaves", func(_ *testing.T, c *cancelTest, cancel func()) {
		c.wire.On(locktest.Acquires(), redistest.Call(cancel))
	}, true},
	{"request written, nothing read", func(_ *testing.T, c *cancelTest, cancel func()) {
		c.wire.On(locktest.Acquires(), redistest.All(redistest.Call(cancel), redistest.HoldRequest(c.release)))
	}, true},
	{"granted, reply on its way", func(_ *testing.T, c *cancelTest, cancel func()) {
		c.wire.On(locktest.Acquires(), redistest.All(redistest.CallReply(cancel), redistest.HoldReply(c.release)))
	}, true},
	{"as the reply is read", func(_ *testing.T, c *cancelTest, cancel func()) {
		c.wire.On(locktest.Acquires(), redistest.CallReply(cancel))
	}, true},
	{"between EVALSHA and EVAL", func(t *testing.T, c *cancelTest, cancel func()) {
		if err := locktest.PoolOf(c.other).ScriptFlush(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
		c.wire.On(redistest.Is("EVAL"), redistest.All(redistest.Call(cancel), redistest.HoldRequest(c.release)))
	}, true},
	{"while subscribing", func(t *testing.T, c *cancelTest, cancel func()) {
		c.needsHolder(t)
		c.wire.On(redistest.Is("SUBSCRIBE"), redistest.All(redistest.Call(cancel), redistest.HoldRequest(c.release)))
	}, false},
	{"while waiting", func(t *testing.T, c *cancelTest, cancel func()) {
		c.needsHolder(t)
		time.AfterFunc(7*time.Second, cancel)
	}, false},
	{"while waiting to try again", func(_ *testing.T, c *cancelTest, cancel func()) {
		c.wire.On(locktest.Acquires(), redistest.DropReply).Times(9)
		time.AfterFunc(700*time.Millisecond, cancel)
	}, true},
}

func TestVirtualCancelledCallsReturnAtOnceAndGiveBackTheirGrant(t *testing.T) {
	var grants int // that came though the caller had gone
	for _, p := range cancelPoints {
		for name, lock := range map[string]func(context.Context, *watchlock.Mutex) (*watchlock.Lease, error){
			"Lock": func(ctx context.Context, m *watchlock.Mutex) (*watchlock.Lease, error) { return m.Lock(ctx) },
			"TryLock(wait)": func(ctx context.Context, m *watchlock.Mutex) (*watchlock.Lease, error) {
				return m.TryLock(ctx, time.Minute)
			},
		} {
			t.Run(p.name+" "+name, func(t *testing.T) {
				locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
					grants += cancelAt(t, v, p, lock)
				})
			})
		}
	}
	if grants == 0 {
		t.Error("no cancelled call was granted the lock")
	}
}

// cancelAt cancels one call at p. It returns 1 if the server granted all the same.
func cancelAt(t *testing.T, v *redistest.Virtual, p cancelPoint, lock func(context.Context, *watchlock.Mutex) (*watchlock.Lease, error)) (grants int) {
	wire := redistest.NewWire()
	a, b := locktest.WarmClient(t, v.Client(wire.Options())), locktest.WarmClient(t, v.Client())
	c := &cancelTest{v: v, wire: wire, other: b, release: make(chan struct{})}
	locktest.KnowServer(a, true) // a script is what can be met between EVALSHA and EVAL
	ctx, cancel := context.WithCancelCause(context.Background())
	reason := errors.New("the caller is gone")
	var at time.Time
	p.arm(t, c, func() { at = time.Now(); cancel(reason) })
	call := locktest.GoLock(func() (*watchlock.Lease, error) { return lock(ctx, locktest.NewTestMutex(a, "order")) })
	call.Wait(t)
	took := time.Since(at)
	if at.IsZero() {
		t.Fatalf("it came back before it was cancelled: %v", call.Err)
	}
	if took != 0 {
		t.Errorf("it came back %v after it was cancelled", took)
	}
	if call.Err == nil && p.granted {
		locktest.MustUnlock(t, call.Lease) // the grant was faster
	} else {
		locktest.MustErr(t, "the call", call.Err, context.Canceled)
		locktest.MustErr(t, "the call", call.Err, reason)
		if errors.Is(call.Err, watchlock.ErrNotAcquired) || call.Lease != nil {
			t.Errorf("lease %v, error %v", call.Lease, call.Err)
		}
	}
	if c.busy != nil {
		locktest.MustUnlock(t, c.busy)
	}
	time.Sleep(100 * time.Millisecond)
	close(c.release)
	time.Sleep(time.Nanosecond)
	if v.Mini().Exists("order") || wire.Count(locktest.Releases()) > 0 {
		grants = 1
	}
	time.Sleep(2 * time.Second)
	if v.Mini().Exists("order") {
		t.Errorf("the lock is taken 2 s later, for %v", v.Mini().TTL("order"))
	}
	wire.Clear()
	locktest.CheckNextEnters(t, locktest.NewTestMutex(b, "order"))
	locktest.CheckBubbleEmpty(t, v, a, b)
	return grants
}

func TestVirtualCancelledUnlockReleasesAllTheSame(t *testing.T) {
	for name, action := range map[string]func(cancel func()) redistest.Action{
		"as it leaves":      func(cancel func()) redistest.Action { return redistest.Call(cancel) },
		"as it is answered": func(cancel func()) redistest.Action { return redistest.CallReply(cancel) },
		"and the reply lost": func(cancel func()) redistest.Action {
			return redistest.All(redistest.CallReply(cancel), redistest.DropReply)
		},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				wire := redistest.NewWire()
				c := locktest.WarmClient(t, v.Client(wire.Options()))
				lease := locktest.MustLock(t, locktest.NewTestMutex(c, "order"))
				ctx, cancel := context.WithCancel(context.Background())
				wire.On(locktest.Releases(), action(cancel))
				start := time.Now()
				if err := lease.Unlock(ctx); err != nil {
					t.Errorf("Unlock: %v", err)
				}
				if took := time.Since(start); took > 10*time.Millisecond {
					t.Errorf("Unlock took %v", took)
				}
				if ctx.Err() == nil || v.Mini().Exists("order") {
					t.Errorf("cancelled: %v, key left: %v", ctx.Err(), v.Mini().Exists("order"))
				}
				locktest.CheckNextEnters(t, locktest.NewTestMutex(c, "order"))
				locktest.CheckBubbleEmpty(t, v, c)
			})
		})
	}
}
