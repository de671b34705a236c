package watchlock

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// virtualBooted makes a client whose boot clock runs ahead by what is stored in
// the returned number, as it does while the machine is suspended.
func virtualBooted(t *testing.T, rdb redis.UniversalClient, opts ...Option) (*Client, *atomic.Int64) {
	t.Helper()
	var slept atomic.Int64
	c, err := newClient(rdb, func() time.Duration { return 5*time.Hour + time.Duration(slept.Load()) }, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	knowRights(c)
	return c, &slept
}

func TestVirtualFirstLookAfterAnHourOfSuspendSaysLost(t *testing.T) {
	looks := map[string]func(l *Lease, ctx context.Context) error{
		"Err of the lease":      func(l *Lease, _ context.Context) error { return l.Err() },
		"Err of its context":    func(_ *Lease, ctx context.Context) error { _ = ctx.Err(); return context.Cause(ctx) },
		"Unlock":                func(l *Lease, _ context.Context) error { return l.Unlock(context.Background()) },
		"re-entry":              func(l *Lease, ctx context.Context) error { return virtualReenterError(l, ctx) },
		"re-entry, uncancelled": func(l *Lease, ctx context.Context) error { return virtualReenterError(l, context.WithoutCancel(ctx)) },
	}
	for name, look := range looks {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c, slept := virtualBooted(t, v.Client())
				l := mustLock(t, newTestMutex(c, "job"))
				ctx := l.Context(context.Background())
				child, cancel := context.WithTimeout(ctx, time.Hour)
				defer cancel()
				time.Sleep(12 * time.Second)
				synctest.Wait()
				if err := l.Err(); err != nil || ctx.Err() != nil {
					t.Fatalf("before the suspend: %v", err)
				}
				time.Sleep(2 * time.Millisecond) // how old a look at the boot clock may be
				slept.Store(int64(time.Hour))
				virtualWantErr(t, "first look", look(l, ctx), []error{ErrLost})
				if child.Err() == nil {
					t.Error("a derived context is alive after its parent knew")
				}
				virtualWantErr(t, "cause of the derived context", context.Cause(child), []error{ErrLost})
				if !virtualClosed(l.Done()) {
					t.Error("Done is open after a look said lost")
				}
				if held := c.Held(); len(held) != 0 {
					t.Errorf("Held lists %v", held)
				}
			})
		})
	}
}

func virtualReenterError(l *Lease, ctx context.Context) error {
	_, err := newTestMutex(l.hold.burst.gate.c, l.Name()).TryLock(ctx, 0)
	return err
}

func TestVirtualDerivedContextsLearnOfASuspendByTimer(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, slept := virtualBooted(t, v.Client())
		l := mustLock(t, newTestMutex(c, "job"))
		child, cancel := context.WithCancel(l.Context(context.Background()))
		defer cancel()
		start := time.Now()
		virtualUntil(start, 12*time.Second)
		slept.Store(int64(time.Hour))
		select {
		case <-child.Done():
		case <-time.After(time.Minute):
		}
		if at := time.Since(start); at > 13*time.Second {
			t.Errorf("told at %v, want within a second of waking", at)
		}
		virtualWantErr(t, "cause", context.Cause(child), []error{ErrLost})
	})
}

// A machine is suspended for so long that what it holds is over when it wakes. Whoever only
// waits for the end hears of it within a second, however far off the end was.
func TestVirtualWhatIsHeldEndsSoonAfterASuspend(t *testing.T) {
	for name, opts := range map[string][]LockOption{
		"a lease time": {WithLeaseTime(time.Hour)},
		"a max hold":   {WithMaxHold(time.Hour)},
		"renewed":      nil,
	} {
		for what, done := range map[string]func(*Lease) <-chan struct{}{
			"context":           func(l *Lease) <-chan struct{} { return l.Context(context.Background()).Done() },
			"Done":              (*Lease).Done,
			"context of a loan": func(l *Lease) <-chan struct{} { return virtualInner(l).Done() },
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				inBubble(t, func(t *testing.T, v *redistest.Virtual) {
					c, slept := virtualBooted(t, v.Client())
					other := newTestClient(t, v.Client())
					m := newTestMutex(c, "job", opts...)
					l := mustLock(t, m)
					over := done(l)
					waiting := goLock(func() (*Lease, error) { return m.Lock(context.Background()) })
					time.Sleep(65500 * time.Millisecond) // between two looks
					slept.Store(int64(2 * time.Hour))
					v.Mini().FastForward(2 * time.Hour) // the server's clock went on
					woke := time.Now()
					mustUnlock(t, mustLock(t, newTestMutex(other, "job")))
					<-over
					if d := time.Since(woke); d > time.Second {
						t.Errorf("told %v after the machine woke", d)
					}
					<-waiting.done
					if d := time.Since(woke); d > 2*time.Second {
						t.Errorf("the next in the queue here had the lock %v after the machine woke", d)
					}
					mustUnlock(t, waiting.lease)
					runtime.KeepAlive(l)
				})
			})
		}
	}
}

// virtualInner is the context of a lease that re-entered l.
func virtualInner(l *Lease) context.Context {
	g := l.hold.burst.gate
	inner, err := g.c.newMutex(l.hold.burst.kind(), l.Name(), nil).Lock(l.Context(context.Background()))
	if err != nil {
		panic(err)
	}
	return inner.Context(context.Background())
}

// The look at the boot clock goes on for as long as anything is held, and no longer.
func TestVirtualTheBootClockIsLookedAtEachSecondWhileSomethingIsHeld(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		var looks atomic.Int64
		c, err := newClient(v.Client(), func() time.Duration { looks.Add(1); return time.Hour }, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		l := mustLock(t, newTestMutex(c, "job", WithLeaseTime(time.Hour)))
		looks.Store(0)
		time.Sleep(10 * time.Minute)
		if n := looks.Load(); n < 598 || n > 660 { // others look too
			t.Errorf("%d looks in 600 s of a hold", n)
		}
		mustUnlock(t, l)
		time.Sleep(time.Minute)
		looks.Store(0)
		time.Sleep(10 * time.Minute)
		if n := looks.Load(); n > 1 {
			t.Errorf("%d looks in 600 s without a hold", n)
		}
	})
}

func TestVirtualShortSuspendMovesTheEndOfTrust(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, slept := virtualBooted(t, v.Client())
		l := mustLock(t, newTestMutex(c, "job"), WithLeaseTime(30*time.Second))
		start := time.Now()
		virtualUntil(start, 5*time.Second)
		slept.Store(int64(4 * time.Second))
		virtualUntil(start, 25650*time.Millisecond-time.Microsecond)
		if err := l.Err(); err != nil {
			t.Errorf("after 29.65 s less 1 µs, 4 s of it asleep: %v", err)
		}
		virtualUntil(start, 25650*time.Millisecond)
		virtualWantErr(t, "after 29.65 s, 4 s of it asleep", l.Err(), []error{ErrLost})
	})
}

func TestVirtualBootClockThatJittersChangesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, slept := virtualBooted(t, v.Client())
		start := time.Now()
		l := mustLock(t, newTestMutex(c, "job"), WithLeaseTime(30*time.Second))
		for i := range 1000 {
			virtualUntil(start, time.Duration(i)*20*time.Millisecond)
			slept.Store(int64(time.Duration(i%10) * 100 * time.Microsecond))
			if err := l.Err(); err != nil {
				t.Fatal(err)
			}
		}
		<-l.Done()
		if at := time.Since(start); at != 29650*time.Millisecond {
			t.Errorf("trust ended at %v, want 29.65s", at)
		}
	})
}

func TestVirtualLockGrantedBeforeASuspendAndReturnedAfterItIsNoLock(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		virtualLoad(t, v)
		w := redistest.NewWire()
		c, slept := virtualBooted(t, v.Client(w.Options()))
		suspend := redistest.All(redistest.DelayReply(5*time.Millisecond), redistest.CallReply(func() { slept.Add(int64(time.Hour)) }))
		w.On(acquires(), suspend)
		_, err := newTestMutex(c, "job").TryLock(context.Background(), 0)
		virtualWantErr(t, "one attempt", err, nil, ErrNotAcquired)
		if err == nil || !IsUnavailable(err) {
			t.Errorf("one attempt: %v, want an error that says the grant came too late", err)
		}
		w.On(acquires(), suspend)
		l, err := newTestMutex(c, "job").TryLock(context.Background(), time.Second)
		if err != nil {
			t.Fatalf("with time to try again: %v", err)
		}
		if err := l.Err(); err != nil {
			t.Error(err)
		}
		mustUnlock(t, l)
	})
}
