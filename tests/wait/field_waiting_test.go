package wait_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

func TestS10_EndedWaitNamesItsCause(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const wait = 300 * time.Millisecond
		s := locktest.VirtualScene(t, v)
		held := locktest.MustLock(t, locktest.NewTestMutex(s.Client(), "report"))
		m := locktest.NewTestMutex(s.Client(), "report")
		reason := errors.New("the request was withdrawn")
		byDeadline := func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(t.Context(), wait)
		}
		byCancel := func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(wait, func() { cancel(reason) })
			return ctx, func() { cancel(nil) }
		}
		plain := func() (context.Context, context.CancelFunc) { return t.Context(), func() {} }
		for _, test := range []struct {
			name string
			ctx  func() (context.Context, context.CancelFunc)
			lock func(ctx context.Context) (*watchlock.Lease, error)
			is   []error
			not  []error
		}{
			{
				"wait", plain, func(ctx context.Context) (*watchlock.Lease, error) { return m.TryLock(ctx, wait) },
				[]error{watchlock.ErrNotAcquired},
				[]error{context.DeadlineExceeded, context.Canceled},
			},
			{
				"deadline", byDeadline, func(ctx context.Context) (*watchlock.Lease, error) { return m.Lock(ctx) },
				[]error{watchlock.ErrNotAcquired, context.DeadlineExceeded},
				[]error{context.Canceled},
			},
			{
				"deadline before the wait", byDeadline, func(ctx context.Context) (*watchlock.Lease, error) { return m.TryLock(ctx, time.Minute) },
				[]error{watchlock.ErrNotAcquired, context.DeadlineExceeded},
				[]error{context.Canceled},
			},
			{
				"cancel", byCancel, func(ctx context.Context) (*watchlock.Lease, error) { return m.Lock(ctx) },
				[]error{context.Canceled, reason},
				[]error{watchlock.ErrNotAcquired, context.DeadlineExceeded},
			},
		} {
			ctx, cancel := test.ctx()
			start := time.Now()
			l, err := test.lock(ctx)
			took := time.Since(start)
			cancel()
			if l != nil || took != wait || watchlock.IsUnavailable(err) {
				t.Errorf("%s: lease %v after %v, %v", test.name, l, took, err)
			}
			for _, want := range test.is {
				if !errors.Is(err, want) {
					t.Errorf("%s: %v does not match %v", test.name, err, want)
				}
			}
			for _, no := range test.not {
				if errors.Is(err, no) {
					t.Errorf("%s: %v matches %v", test.name, err, no)
				}
			}
		}
		locktest.MustUnlock(t, held)
		s.HandsOver("report")
		s.End()
	})
}

func TestS11_WaitMayOutlastTheLease(t *testing.T) {
	const lease, hold = 500 * time.Millisecond, 2 * time.Second
	for _, end := range []struct {
		name   string
		unlock bool
		slack  time.Duration
	}{{"the holder unlocks", true, 0}, {"the holder's lease runs out", false, 20 * time.Millisecond}} {
		t.Run(end.name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				s := locktest.VirtualScene(t, v)
				a, b := locktest.NewTestMutex(s.Client(), "report"), locktest.NewTestMutex(s.Client(), "report")
				start := time.Now()
				var count locktest.Counter
				holding := watchlock.WithWatchdog()
				if !end.unlock {
					holding = watchlock.WithLeaseTime(hold)
				}
				held := locktest.MustLock(t, a, holding)
				count.Section(time.Second)
				if end.unlock {
					time.AfterFunc(hold-time.Second, func() { locktest.MustUnlock(t, held) })
				}
				l, err := b.TryLock(t.Context(), 3*time.Second, watchlock.WithLeaseTime(lease))
				took := time.Since(start)
				if err != nil || took < hold || took > hold+end.slack {
					t.Fatalf("%v after %v, want a lease after %v", err, took, hold)
				}
				count.Section(0)
				if ttl, trust := s.TTL(b), time.Until(l.ExpiresAt()); ttl != lease || trust != lease-bootclock.Margin(lease) {
					t.Errorf("TTL %v, trusted for %v: want a whole lease of %v", ttl, trust, lease)
				}
				locktest.MustUnlock(t, l)
				count.Check(t, 2)
				s.HandsOver("report")
				s.End()
			})
		})
	}
}

func TestS12_CancelledWaitLeavesNothing(t *testing.T) {
	const waiters = 20
	s, server := locktest.RealScene(t)
	held := locktest.MustLock(t, locktest.NewTestMutex(s.Client(), "report"))
	m := locktest.NewTestMutex(s.Client(), "report")
	ctx, cancel := context.WithCancel(t.Context())
	type outcome struct {
		lease *watchlock.Lease
		err   error
		at    time.Time
	}
	outcomes := make(chan outcome, waiters)
	for range waiters {
		go func() {
			l, err := m.Lock(ctx)
			outcomes <- outcome{l, err, time.Now()}
		}()
	}
	s.AwaitQueue(m, waiters)
	locktest.Eventually(t, 5*time.Second, "the waiters are subscribed", func() bool { return len(s.Channels()) == 1 })
	cancelled := time.Now()
	cancel()
	prompt := 0
	for range waiters {
		o := <-outcomes
		if o.lease != nil || !errors.Is(o.err, context.Canceled) || errors.Is(o.err, watchlock.ErrNotAcquired) {
			t.Errorf("a cancelled wait: lease %v, %v", o.lease, o.err)
		}
		if o.at.Sub(cancelled) < 50*time.Millisecond {
			prompt++
		}
	}
	if prompt <= waiters/2 { // a slow machine may delay some
		t.Errorf("%d of %d waits ended within 50 ms", prompt, waiters)
	}
	if n := locktest.QueuedOn(m); n != 0 {
		t.Errorf("%d are left in the queue", n)
	}
	locktest.Eventually(t, locktest.ChannelLinger+2*time.Second, "the subscription is given up", func() bool { return len(s.Channels()) == 0 })

	// Nothing that was on its way takes the lock once it is free.
	before := server.CommandCalls()
	locktest.MustUnlock(t, held)
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
		if keys := s.Keys(); len(keys) > 0 {
			t.Fatalf("taken after the wait was cancelled: %q by %q", keys, s.Owner(m))
		}
		<-time.After(5 * time.Millisecond)
	}
	if n := server.CommandCalls()["hset"] - before["hset"]; n != 0 {
		t.Errorf("%d grants after the waits were cancelled", n)
	}
	s.HandsOver("report")
	s.End()
}

func TestS14_WaitersOfAnIdleHolderAreQuiet(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const each, idle = 50, 10 * time.Second
		s := locktest.VirtualScene(t, v)
		a, b := locktest.NewTestMutex(s.Client(), "report"), locktest.NewTestMutex(s.Client(), "report")
		held := locktest.MustLock(t, a, watchlock.WithLeaseTime(time.Minute)) // renewals would be counted
		var count locktest.Counter
		var wg sync.WaitGroup
		for _, m := range []*watchlock.Mutex{a, b} {
			for range each {
				wg.Go(func() {
					l := locktest.MustLock(t, m)
					count.Section(0)
					locktest.MustUnlock(t, l)
				})
			}
		}
		time.Sleep(1500 * time.Millisecond) // so that no ping is due at either end of the count
		if locktest.QueuedOn(a) != each || locktest.QueuedOn(b) != each {
			t.Fatalf("%d and %d wait", locktest.QueuedOn(a), locktest.QueuedOn(b))
		}
		v.Reset()
		time.Sleep(idle)
		// One client's first waiter polls, less and less often; each client asks
		// its subscription for a sign of life each second.
		polls, pings, asks, most := v.CountIf(locktest.Acquires()), v.Count("PING"), 0, 4
		if locktest.KindOfTest() == "setnx" { // it polls for strangers who say nothing, and asks for the TTL each time
			asks, most = v.Count("PTTL"), int(idle/wire.ForeignPoll)
		}
		if polls == 0 || polls > most || asks > polls || pings > 2*int(idle/locktest.PingEach) || len(v.Commands()) != polls+pings+asks {
			t.Errorf("%d commands in %v, of them %d tries and %d pings", len(v.Commands()), idle, polls, pings)
		}
		count.Section(time.Millisecond)
		left := time.Now()
		locktest.MustUnlock(t, held)
		wg.Wait()
		if took := time.Since(left); took >= locktest.SceneHandOver {
			t.Errorf("%d waiters took %v after the release", 2*each, took)
		}
		count.Check(t, 2*each+1)
		s.HandsOver("report")
		s.End()
	})
}

func TestS16_WaitersSurviveKilledConnections(t *testing.T) {
	const clients, each = 3, 8
	s, _ := locktest.RealScene(t)
	var count locktest.Counter
	var turns atomic.Int64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	var list []*watchlock.Mutex
	for range clients {
		m := locktest.NewTestMutex(s.Client(), "report")
		list = append(list, m)
		for range each {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					l, err := m.Lock(context.Background())
					if err != nil {
						t.Errorf("a waiter: %v", err)
						return
					}
					count.Section(time.Millisecond)
					turns.Add(1)
					if err := l.Unlock(context.Background()); err != nil {
						t.Errorf("unlock: %v", err)
					}
				}
			})
		}
	}
	killed := map[string]int{}
	for end := time.Now().Add(time.Duration(locktest.FullCount(40)) * time.Second); time.Now().Before(end); {
		for _, kind := range []string{"normal", "pubsub"} {
			n, err := s.Probe.Do(t.Context(), "client", "kill", "type", kind, "skipme", "yes").Int()
			if err != nil {
				t.Errorf("CLIENT KILL: %v", err)
			}
			killed[kind] += n
			<-time.After(15 * time.Millisecond)
		}
	}
	close(stop)
	wg.Wait()
	if killed["normal"] == 0 || killed["pubsub"] == 0 {
		t.Errorf("killed %v: both kinds have to be", killed)
	}
	t.Logf("%d turns, killed %v", turns.Load(), killed)
	count.Check(t, int(turns.Load()))

	// Only Close says closed.
	held := locktest.MustLock(t, list[0])
	waiting := make(chan error, each)
	for range each {
		go func() {
			_, err := list[1].Lock(context.Background())
			waiting <- err
		}()
	}
	s.AwaitQueue(list[1], each)
	if err := s.Clients[1].Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	for range each {
		select {
		case err := <-waiting:
			if !errors.Is(err, watchlock.ErrClosed) {
				t.Errorf("a waiter of the closed client: %v, want ErrClosed", err)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("a waiter of the closed client is not sent away")
		}
	}
	locktest.MustUnlock(t, held)
	s.HandsOver("report")
	s.End()
}

func TestS20_CloseSendsWaitersAway(t *testing.T) {
	const waiters = 20
	for _, own := range []bool{false, true} {
		name := map[bool]string{false: "behind another client", true: "behind the client's own lease"}[own]
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				s := locktest.VirtualScene(t, v)
				a, b := s.Client(), s.Client()
				holder := a
				if own {
					holder = b
				}
				held := locktest.MustLock(t, locktest.NewTestMutex(holder, "report"))
				m := locktest.NewTestMutex(b, "report")
				type outcome struct {
					lease *watchlock.Lease
					err   error
					at    time.Time
				}
				outcomes := make(chan outcome, waiters)
				for i := range waiters {
					go func() {
						lock := m.Lock
						if i%2 == 1 {
							lock = func(ctx context.Context, opts ...watchlock.LockOption) (*watchlock.Lease, error) {
								return m.TryLock(ctx, time.Hour, opts...)
							}
						}
						l, err := lock(context.Background())
						outcomes <- outcome{l, err, time.Now()}
					}()
				}
				time.Sleep(3 * time.Second)
				if n := locktest.QueuedOn(m); n != waiters {
					t.Fatalf("%d wait", n)
				}
				closing := time.Now()
				closed := make(chan error, 1)
				go func() { closed <- b.Close() }()
				for range waiters {
					var o outcome
					select {
					case o = <-outcomes:
					case <-time.After(time.Minute):
						t.Fatal("a waiter is not sent away")
					}
					if o.lease != nil || !errors.Is(o.err, watchlock.ErrClosed) || o.at != closing {
						t.Errorf("lease %v, %v, %v after Close began", o.lease, o.err, o.at.Sub(closing))
					}
				}
				if own {
					if err := held.Err(); !errors.Is(err, watchlock.ErrClosed) {
						t.Errorf("the holder's lease says %v, want ErrClosed", err)
					}
					time.Sleep(time.Second) // the holder still works
				}
				locktest.MustUnlock(t, held)
				if err := <-closed; err != nil {
					t.Errorf("close: %v", err)
				}
				if _, err := m.TryLock(t.Context(), 0); !errors.Is(err, watchlock.ErrClosed) {
					t.Errorf("a try after Close: %v, want ErrClosed", err)
				}
				s.HandsOver("report")
				s.End()
			})
		})
	}
}
