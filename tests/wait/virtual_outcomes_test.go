package wait_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// virtualOutcome is what a call that got no lock must look like.
type virtualOutcome struct {
	took        time.Duration // exactly; below 0: up to the timeout of one attempt
	is          []error
	not         []error
	unavailable bool
	ttl         time.Duration // of the LockError; 0 is not looked at
}

func (o virtualOutcome) check(t *testing.T, what string, start time.Time, l *watchlock.Lease, err error) {
	t.Helper()
	if l != nil || err == nil {
		t.Errorf("%s: lease %v, error %v", what, l, err)
		return
	}
	locktest.VirtualWantErr(t, what, err, o.is, append(o.not, watchlock.ErrLost, watchlock.ErrNotHeld)...)
	if watchlock.IsUnavailable(err) != o.unavailable {
		t.Errorf("%s: IsUnavailable(%v) is %v", what, err, !o.unavailable)
	}
	if took := time.Since(start); took != o.took && (o.took >= 0 || took > transport.AttemptTimeout) {
		t.Errorf("%s took %v, want %v", what, took, o.took)
	}
	var le *watchlock.LockError
	if errors.As(err, &le); le == nil || le.Name != "job" {
		t.Errorf("%s: %v does not name the lock", what, err)
	} else if o.ttl != 0 && le.TTL != o.ttl {
		t.Errorf("%s: TTL %v, want %v", what, le.TTL, o.ttl)
	}
}

func TestVirtualTryLockOutcomes(t *testing.T) {
	cause := errors.New("the user went away")
	busy := []error{watchlock.ErrNotAcquired}
	silent := []error{os.ErrDeadlineExceeded}
	type scene struct {
		v      *redistest.Virtual
		w      *redistest.Wire
		c      *watchlock.Client
		cancel context.CancelCauseFunc
	}
	bg := context.Background()
	after := func(d time.Duration, f func()) { time.AfterFunc(d, f) }
	for name, c := range map[string]struct {
		wait     time.Duration
		lock     bool // Lock, with the deadline or cancellation alone
		deadline time.Duration
		before   func(s scene)
		want     virtualOutcome
	}{
		"held throughout": {
			wait: 3 * time.Second, before: func(s scene) { locktest.VirtualTake(s.v, "job", time.Minute) },
			want: virtualOutcome{took: 3 * time.Second, is: busy, not: []error{context.DeadlineExceeded}},
		},
		"held, one attempt": {
			before: func(s scene) { locktest.VirtualTake(s.v, "job", time.Minute) },
			want:   virtualOutcome{is: busy, not: []error{context.DeadlineExceeded}, ttl: time.Minute},
		},
		"held, a negative wait": {
			wait: -time.Hour, before: func(s scene) { locktest.VirtualTake(s.v, "job", time.Minute) },
			want: virtualOutcome{is: busy, ttl: time.Minute},
		},
		"held by a key without an end": {
			before: func(s scene) { locktest.VirtualTake(s.v, "job", 0) },
			want:   virtualOutcome{is: busy, ttl: -time.Millisecond},
		},
		"held, the context's deadline first": {
			wait: time.Minute, deadline: 2 * time.Second, before: func(s scene) { locktest.VirtualTake(s.v, "job", time.Minute) },
			want: virtualOutcome{took: 2 * time.Second, is: []error{watchlock.ErrNotAcquired, context.DeadlineExceeded}, not: []error{context.Canceled}},
		},
		"held, Lock with a deadline": {
			lock: true, deadline: 2 * time.Second, before: func(s scene) { locktest.VirtualTake(s.v, "job", time.Minute) },
			want: virtualOutcome{took: 2 * time.Second, is: []error{watchlock.ErrNotAcquired, context.DeadlineExceeded}},
		},
		"cancelled": {
			wait: time.Minute,
			before: func(s scene) {
				locktest.VirtualTake(s.v, "job", time.Minute)
				after(time.Second, func() { s.cancel(cause) })
			},
			want: virtualOutcome{took: time.Second, is: []error{context.Canceled, cause}, not: []error{watchlock.ErrNotAcquired, context.DeadlineExceeded}},
		},
		"cancelled, by somebody's deadline as the cause": {
			wait: time.Minute,
			before: func(s scene) {
				locktest.VirtualTake(s.v, "job", time.Minute)
				after(time.Second, func() { s.cancel(context.DeadlineExceeded) })
			},
			want: virtualOutcome{took: time.Second, is: []error{context.Canceled}, not: []error{watchlock.ErrNotAcquired}},
		},
		"cancelled, while Redis hangs": {
			lock:   true,
			before: func(s scene) { s.v.Freeze(); after(700*time.Millisecond, func() { s.cancel(cause) }) },
			want:   virtualOutcome{took: 700 * time.Millisecond, is: []error{context.Canceled, cause}, not: []error{watchlock.ErrNotAcquired}},
		},
		"cancelled before": {
			lock: true, before: func(s scene) { s.cancel(cause) },
			want: virtualOutcome{is: []error{context.Canceled, cause}, not: []error{watchlock.ErrNotAcquired}},
		},
		"no answer at all": {
			wait: 300 * time.Millisecond, before: func(s scene) { s.v.Freeze() },
			want: virtualOutcome{took: 300 * time.Millisecond, is: silent, not: []error{watchlock.ErrNotAcquired}, unavailable: true},
		},
		"no answer to one attempt": {
			before: func(s scene) { s.v.Freeze() },
			want:   virtualOutcome{took: time.Second, is: silent, not: []error{watchlock.ErrNotAcquired}, unavailable: true},
		},
		"no answer within several attempts": {
			wait: 5 * time.Second, before: func(s scene) { s.v.Freeze() },
			want: virtualOutcome{took: 5 * time.Second, is: silent, not: []error{watchlock.ErrNotAcquired}, unavailable: true},
		},
		"no answer before the context's deadline": {
			lock: true, deadline: 400 * time.Millisecond, before: func(s scene) { s.v.Freeze() },
			want: virtualOutcome{
				took: 400 * time.Millisecond, is: []error{os.ErrDeadlineExceeded, context.DeadlineExceeded},
				not: []error{watchlock.ErrNotAcquired}, unavailable: true,
			},
		},
		"no connection": {
			wait: 5 * time.Second, before: func(s scene) { s.w.Refuse(true) },
			// go-redis dials a few times before it says so.
			want: virtualOutcome{took: -1, not: []error{watchlock.ErrNotAcquired, os.ErrDeadlineExceeded}, unavailable: true},
		},
		"waited, then an outage of more than an attempt": {
			wait: 20 * time.Second,
			before: func(s scene) {
				locktest.VirtualTake(s.v, "job", time.Minute)
				after(5*time.Second, s.v.Freeze)
			},
			want: virtualOutcome{took: 20 * time.Second, is: silent, not: []error{watchlock.ErrNotAcquired}, unavailable: true},
		},
		"waited, then connections were refused": {
			wait: 20 * time.Second,
			before: func(s scene) {
				locktest.VirtualTake(s.v, "job", time.Minute)
				after(5*time.Second, func() { s.w.Refuse(true); s.w.Cut() })
			},
			want: virtualOutcome{took: 20 * time.Second, not: []error{watchlock.ErrNotAcquired}, unavailable: true},
		},
		"waited, then an outage, until the context's deadline": {
			lock: true, deadline: 20 * time.Second,
			before: func(s scene) {
				locktest.VirtualTake(s.v, "job", time.Minute)
				after(5*time.Second, s.v.Freeze)
			},
			want: virtualOutcome{took: 20 * time.Second, is: []error{context.DeadlineExceeded}, not: []error{watchlock.ErrNotAcquired}, unavailable: true},
		},
		"waited, and the newest attempt is young": {
			wait: 950 * time.Millisecond, // asks at 0, 250 to 275, 500 to 605 ms
			before: func(s scene) {
				locktest.VirtualTake(s.v, "job", time.Minute)
				after(400*time.Millisecond, s.v.Freeze)
			},
			want: virtualOutcome{took: 950 * time.Millisecond, is: busy},
		},
		"waited, and the holder's attempt to answer is old": {
			wait: 2500 * time.Millisecond,
			before: func(s scene) {
				locktest.VirtualTake(s.v, "job", time.Minute)
				after(400*time.Millisecond, s.v.Freeze)
			},
			want: virtualOutcome{took: 2500 * time.Millisecond, is: silent, not: []error{watchlock.ErrNotAcquired}, unavailable: true},
		},
		"behind a local holder": {
			wait: 2 * time.Second, before: func(s scene) { _, _ = locktest.NewTestMutex(s.c, "job").Lock(bg) },
			want: virtualOutcome{took: 2 * time.Second, is: busy, not: []error{context.DeadlineExceeded}, ttl: 27650 * time.Millisecond},
		},
		"behind a local holder, one attempt": {
			before: func(s scene) { _, _ = locktest.NewTestMutex(s.c, "job").Lock(bg) },
			want:   virtualOutcome{is: busy, ttl: 29650 * time.Millisecond},
		},
		"behind a local holder, the context's deadline first": {
			lock: true, deadline: 2 * time.Second, before: func(s scene) { _, _ = locktest.NewTestMutex(s.c, "job").Lock(bg) },
			want: virtualOutcome{took: 2 * time.Second, is: []error{watchlock.ErrNotAcquired, context.DeadlineExceeded}},
		},
		"behind a local holder while Redis hangs": {
			wait: 2 * time.Second, before: func(s scene) { _, _ = locktest.NewTestMutex(s.c, "job").Lock(bg); s.v.Freeze() },
			want: virtualOutcome{took: 2 * time.Second, is: busy},
		},
		"a wait without its unit": {
			wait: 3, want: virtualOutcome{not: []error{watchlock.ErrNotAcquired}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				client, w := locktest.VirtualWired(t, v)
				ctx, cancel := context.WithCancelCause(bg)
				defer cancel(nil)
				if c.deadline > 0 {
					var stop context.CancelFunc
					ctx, stop = context.WithTimeout(ctx, c.deadline)
					defer stop()
				}
				if c.before != nil {
					c.before(scene{v, w, client, cancel})
				}
				m, start := locktest.NewTestMutex(client, "job"), time.Now()
				var l *watchlock.Lease
				var err error
				if c.lock {
					l, err = m.Lock(ctx)
				} else {
					l, err = m.TryLock(ctx, c.wait)
				}
				c.want.check(t, name, start, l, err)
				w.Refuse(false)
				v.Thaw()
				time.Sleep(1100 * time.Millisecond) // go-redis dials again once a second
			})
		})
	}
}

func TestVirtualWaiterRidesAnOutageOut(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := locktest.VirtualWired(t, v)
		for name, outage := range map[string]struct{ begin, end func() }{
			"frozen":  {v.Freeze, v.Thaw},
			"refused": {func() { w.Refuse(true); w.Cut() }, func() { w.Refuse(false) }},
		} {
			locktest.VirtualTake(v, "job", 12*time.Second)
			start := time.Now()
			time.AfterFunc(5*time.Second, outage.begin)
			time.AfterFunc(20*time.Second, outage.end)
			l, err := locktest.NewTestMutex(c, "job").Lock(context.Background())
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if at := time.Since(start); at < 20*time.Second || at > 22*time.Second {
				t.Errorf("%s: entered at %v, want soon after the outage ended at 20 s", name, at)
			}
			locktest.MustUnlock(t, l)
			time.Sleep(1100 * time.Millisecond) // go-redis dials again once a second
		}
	})
}

func TestVirtualErrorNamesTheLockThatWasWaitedFor(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		outer := locktest.MustLock(t, locktest.NewTestMutex(c, "outer"), watchlock.WithLeaseTime(10*time.Second))
		locktest.VirtualTake(v, "inner", time.Minute)
		ctx := outer.Context(context.Background())
		for _, when := range []string{"while waiting", "before"} {
			_, err := locktest.NewTestMutex(c, "inner").Lock(ctx)
			locktest.VirtualWantErr(t, when, err, []error{context.Canceled, watchlock.ErrLost}, watchlock.ErrNotAcquired)
			var le *watchlock.LockError
			if errors.As(err, &le); le == nil || le.Name != "inner" || le.Op != "lock" {
				t.Errorf("lost %s: the LockError around %q is %+v, want it to say lock \"inner\"", when, err, le)
			}
		}
	})
}

func TestVirtualTryLockOfZeroSharesOneFreshTry(t *testing.T) {
	for name, inFlight := range map[string]bool{"beside a sleeping head": false, "beside an attempt in flight": true} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c, w := locktest.VirtualWired(t, v)
				m := locktest.NewTestMutex(c, "job")
				locktest.VirtualTake(v, "job", time.Hour)
				if inFlight {
					w.On(locktest.Acquires(), redistest.DelayReply(600*time.Millisecond))
				}
				head := make(chan error, 1)
				start := time.Now()
				go func() {
					l, err := m.TryLock(context.Background(), time.Minute)
					if err == nil {
						defer func() { _ = l.Unlock(context.Background()) }()
					}
					head <- err
				}()
				locktest.VirtualUntil(start, 400*time.Millisecond)
				if !inFlight {
					locktest.VirtualUntil(start, 12*time.Second)
				}
				w.Reset()
				w.On(locktest.Acquires(), redistest.Delay(10*time.Millisecond)).Times(0)
				var tries sync.WaitGroup
				for range 20 {
					tries.Go(func() {
						_, err := m.TryLock(context.Background(), 0)
						locktest.VirtualWantErr(t, "TryLock(0)", err, []error{watchlock.ErrNotAcquired})
					})
				}
				tries.Wait()
				synctest.Wait()
				// Without one in flight the first of the 20 starts one, which comes too early for the rest.
				if n := w.Count(locktest.Acquires()); n < 1 || n > 2 {
					t.Errorf("20 of them made %d tries, want them to share", n)
				}
				w.Clear()
				// Free, and nobody was told: the shared try finds out, and the head has it.
				locktest.VirtualUntil(start, 20*time.Second)
				v.Mini().Del("job")
				_, err := m.TryLock(context.Background(), 0)
				locktest.VirtualWantErr(t, "TryLock(0) behind a head that is granted", err, []error{watchlock.ErrNotAcquired})
				if at := time.Since(start); at != 20*time.Second {
					t.Errorf("answered at %v, want at once", at)
				}
				if err := <-head; err != nil {
					t.Errorf("the head: %v", err)
				}
			})
		})
	}
}

func TestVirtualLocalWaiterBehindALocalHolderSendsNothingButItsSubscription(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		m := locktest.NewTestMutex(c, "job")
		l := locktest.MustLock(t, m)
		synctest.Wait()
		v.Reset()
		var waiters sync.WaitGroup
		for range 10 {
			waiters.Go(func() {
				_, err := m.TryLock(context.Background(), 5*time.Second)
				locktest.VirtualWantErr(t, "TryLock", err, []error{watchlock.ErrNotAcquired})
			})
		}
		waiters.Wait()
		synctest.Wait()
		for _, cmd := range v.Commands() {
			switch cmd.Name {
			case "SUBSCRIBE", "HELLO", "PING":
			default:
				t.Errorf("sent %.120v", cmd)
			}
		}
		if n := v.Count("SUBSCRIBE"); n != 1 {
			t.Errorf("%d subscriptions, want 1", n)
		}
		locktest.MustUnlock(t, l)
	})
}

// An attempt that was under way before the call may have run when the lock was
// still held: its answer is no answer to this call.
func TestVirtualTryLockOfZeroDoesNotTakeAnOlderAnswerForItsOwn(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := locktest.VirtualWired(t, v)
		m := locktest.NewTestMutex(c, "job")
		locktest.VirtualTake(v, "job", time.Hour)
		w.On(locktest.Acquires(), redistest.DelayReply(300*time.Millisecond))
		start := time.Now()
		older := make(chan error, 1)
		go func() {
			_, err := m.TryLock(context.Background(), 0)
			older <- err
		}()
		locktest.VirtualUntil(start, 100*time.Millisecond)
		v.Mini().Del("job")
		locktest.VirtualUntil(start, 150*time.Millisecond)
		l, err := m.TryLock(context.Background(), 0)
		if err != nil {
			t.Fatalf("called when the lock was free: %v", err)
		}
		if at := time.Since(start); at != 300*time.Millisecond {
			t.Errorf("granted at %v, want when the older attempt was answered", at)
		}
		locktest.VirtualWantErr(t, "the older call", <-older, []error{watchlock.ErrNotAcquired})
		locktest.MustUnlock(t, l)
	})
}
