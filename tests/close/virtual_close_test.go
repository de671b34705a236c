package close_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// virtualClose runs Close and returns where its error will be.
func virtualClose(c *watchlock.Client) <-chan error {
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	synctest.Wait()
	return closed
}

func TestVirtualCloseSendsNewCallsAndWaitersAwayAtOnce(t *testing.T) {
	for name, frozen := range map[string]bool{"Redis answers": false, "Redis hangs": true} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c := locktest.VirtualClient(t, v)
				locktest.VirtualTake(v, "foreign", time.Hour)
				mine := locktest.MustLock(t, locktest.NewTestMutex(c, "mine"))
				ctx, end := context.WithTimeout(context.Background(), time.Hour)
				defer end()
				var waiters sync.WaitGroup
				sent := make(chan time.Time, 100)
				for _, lock := range []string{"mine", "foreign", "foreign"} {
					for _, call := range []func() (*watchlock.Lease, error){
						func() (*watchlock.Lease, error) { return locktest.NewTestMutex(c, lock).Lock(context.Background()) },
						func() (*watchlock.Lease, error) { return locktest.NewTestMutex(c, lock).Lock(ctx) },
						func() (*watchlock.Lease, error) {
							return locktest.NewTestMutex(c, lock).TryLock(context.Background(), time.Hour)
						},
					} {
						waiters.Go(func() {
							_, err := call()
							sent <- time.Now()
							locktest.VirtualWantErr(t, "a waiter", err, []error{watchlock.ErrClosed}, watchlock.ErrNotAcquired)
						})
					}
				}
				time.Sleep(3100 * time.Millisecond)
				if frozen {
					v.Freeze()
					time.Sleep(1500 * time.Millisecond)
				}
				if len(sent) != 0 {
					t.Fatalf("%d waiters gave up before Close", len(sent))
				}
				start := time.Now()
				closed := virtualClose(c)
				waiters.Wait()
				for range len(sent) {
					if at := (<-sent).Sub(start); at != 0 {
						t.Errorf("a waiter heard %v after Close", at)
					}
				}
				v.Reset()
				for what, call := range map[string]func() error{
					"Lock":    func() error { _, err := locktest.NewTestMutex(c, "new").Lock(context.Background()); return err },
					"TryLock": func() error { _, err := locktest.NewTestMutex(c, "new").TryLock(context.Background(), 0); return err },
					"Info":    func() error { _, err := locktest.NewTestMutex(c, "new").Info(context.Background()); return err },
					"Do":      func() error { return locktest.NewTestMutex(c, "new").Do(context.Background(), virtualNeverRuns(t)) },
					"TryDo": func() error {
						return locktest.NewTestMutex(c, "new").TryDo(context.Background(), 0, virtualNeverRuns(t))
					},
					"re-entry": func() error {
						_, err := locktest.NewTestMutex(c, "mine").Lock(context.WithoutCancel(mine.Context(context.Background())))
						return err
					},
				} {
					locktest.VirtualWantErr(t, what, call(), []error{watchlock.ErrClosed}, watchlock.ErrNotAcquired)
				}
				if at := time.Since(start); at != 0 {
					t.Errorf("new calls took %v", at)
				}
				for _, cmd := range v.Commands() {
					if cmd.Arg(2) == "new" {
						t.Errorf("sent %v", cmd)
					}
				}
				err := mine.Unlock(context.Background())
				if !frozen && err != nil {
					t.Errorf("Unlock: %v", err)
				}
				if err := <-closed; !frozen && err != nil {
					t.Errorf("Close: %v, though everything was given back", err)
				}
				v.Thaw()
				time.Sleep(2 * time.Second)
				runtime.KeepAlive(mine)
			})
		})
	}
}

// virtualNeverRuns is a function that must not run.
func virtualNeverRuns(t *testing.T) func(context.Context) error {
	return func(context.Context) error {
		t.Error("the function ran without the lock")
		return nil
	}
}

func TestVirtualCloseTellsHoldersAndGivesThemTheUnlockTimeout(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v, watchlock.WithUnlockTimeout(45*time.Second))
		start := time.Now()
		l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
		inner := locktest.VirtualReenter(t, locktest.NewTestMutex(c, "job"), l)
		ctx := l.Context(context.Background())
		locktest.VirtualUntil(start, 5*time.Second)
		closed := virtualClose(c)
		for _, l := range []*watchlock.Lease{l, inner} {
			locktest.VirtualWantErr(t, "Err", l.Err(), []error{watchlock.ErrClosed}, watchlock.ErrLost)
			if !locktest.VirtualClosed(l.Done()) {
				t.Error("Done is open after Close")
			}
		}
		if ctx.Err() == nil {
			t.Error("the context is alive after Close")
		}
		locktest.VirtualWantErr(t, "cause", context.Cause(ctx), []error{watchlock.ErrClosed}, watchlock.ErrLost)
		locktest.VirtualWantErr(t, "cause of a context made after it", context.Cause(l.Context(context.Background())), []error{watchlock.ErrClosed})
		for _, at := range []time.Duration{10, 20, 30, 40} {
			locktest.VirtualUntil(start, at*time.Second)
			if ttl := v.Mini().TTL("job"); ttl != 30*time.Second {
				t.Errorf("TTL is %v at %d s: not renewed while its holder may still unlock", ttl, at)
			}
		}
		if len(closed) != 0 {
			t.Error("Close did not wait for the holder")
		}
		locktest.MustUnlock(t, l)
		if !v.Mini().Exists("job") {
			t.Error("released before its last handle was unlocked")
		}
		locktest.MustUnlock(t, inner)
		if v.Mini().Exists("job") {
			t.Error("the key is there after the last Unlock")
		}
		if err := <-closed; err != nil {
			t.Errorf("Close: %v, though everything was given back", err)
		}
		if at := time.Since(start); at != 40*time.Second {
			t.Errorf("Close returned at %v, want with the last Unlock at 40 s", at)
		}
		locktest.VirtualWantErr(t, "second Unlock", l.Unlock(context.Background()), []error{watchlock.ErrNotHeld})
	})
}

func TestVirtualCloseLeavesToExpireWhatIsNotGivenBackAndNamesIt(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		start := time.Now()
		kept, timed := locktest.MustLock(t, locktest.NewTestMutex(c, "kept")), locktest.MustLock(t, locktest.NewTestMutex(c, "timed"), watchlock.WithLeaseTime(time.Minute))
		back, late := locktest.MustLock(t, locktest.NewTestMutex(c, "given back")), locktest.MustLock(t, locktest.NewTestMutex(c, "late"))
		locktest.VirtualUntil(start, 15*time.Second)
		closed := virtualClose(c)
		locktest.VirtualUntil(start, 16*time.Second)
		locktest.MustUnlock(t, back)
		err := <-closed
		if at := time.Since(start); at != 17*time.Second {
			t.Errorf("Close returned at %v, want at 17 s, after the unlock timeout", at)
		}
		for name, named := range map[string]bool{"kept": true, "timed": true, "late": true, "given back": false} {
			if err == nil || strings.Contains(err.Error(), `"`+name+`"`) != named {
				t.Errorf("Close: %v; it names %q: want %v", err, name, named)
			}
		}
		for range 3 {
			if again := c.Close(); !errors.Is(again, err) {
				t.Errorf("Close again: %v, want the same as before", again)
			}
		}
		v.Reset()
		for _, l := range []*watchlock.Lease{kept, timed, late} {
			locktest.VirtualWantErr(t, "Unlock after Close", l.Unlock(context.Background()), []error{watchlock.ErrClosed}, watchlock.ErrLost, watchlock.ErrNotHeld)
			locktest.VirtualWantErr(t, "Err after Close", l.Err(), []error{watchlock.ErrClosed})
		}
		locktest.VirtualUntil(start, 40*time.Second-time.Millisecond)
		if ttl := v.Mini().TTL("kept"); ttl != time.Millisecond {
			t.Errorf("the key has a TTL of %v, want what its last renewal at 10 s left", ttl)
		}
		if got := v.Commands(); len(got) != 0 {
			t.Errorf("sent %v after Close", got)
		}
		if v.Conns() != 0 {
			t.Errorf("%d connections are left", v.Conns())
		}
	})
}

func TestVirtualCloseAtOnceFromManyGoroutinesIsOneClose(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
		start := time.Now()
		errs := make(chan error, 10)
		for range cap(errs) {
			go func() { errs <- c.Close() }()
		}
		first := <-errs
		for range cap(errs) - 1 {
			if err := <-errs; err == nil || !errors.Is(err, first) {
				t.Errorf("%v and %v", first, err)
			}
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("took %v", took)
		}
		runtime.KeepAlive(l)
	})
}

func TestVirtualCloseOfAnIdleClientIsImmediate(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		start := time.Now()
		for range 20 {
			locktest.MustUnlock(t, locktest.MustLock(t, locktest.NewTestMutex(c, "job")))
		}
		locktest.VirtualTake(v, "foreign", time.Minute)
		_, _ = locktest.NewTestMutex(c, "foreign").TryLock(context.Background(), time.Second)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("Close took %v", took-time.Second)
		}
		if c := locktest.NewTestClient(t, v.Client()); c.Close() != nil {
			t.Error("Close of a client that was never used failed")
		}
	})
}

func TestVirtualCloseIsBoundedWhenRedisHangs(t *testing.T) {
	scenes := map[string]func(t *testing.T, c *watchlock.Client, v *redistest.Virtual){
		"a lease is held": func(t *testing.T, c *watchlock.Client, v *redistest.Virtual) {
			l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
			t.Cleanup(func() { runtime.KeepAlive(l) })
			v.Freeze()
		},
		"an Unlock hangs": func(t *testing.T, c *watchlock.Client, v *redistest.Virtual) {
			l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
			v.Freeze()
			go func() { _ = l.Unlock(context.Background()) }()
		},
		"attempts hang": func(_ *testing.T, c *watchlock.Client, v *redistest.Virtual) {
			v.Freeze()
			for range 5 {
				go func() { _, _ = locktest.NewTestMutex(c, "job").Lock(context.Background()) }()
			}
			time.Sleep(4500 * time.Millisecond)
		},
		"a renewal hangs": func(t *testing.T, c *watchlock.Client, v *redistest.Virtual) {
			l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
			t.Cleanup(func() { runtime.KeepAlive(l) })
			time.Sleep(9900 * time.Millisecond)
			v.Freeze()
			time.Sleep(200 * time.Millisecond)
		},
		"a waiter is subscribed": func(_ *testing.T, c *watchlock.Client, v *redistest.Virtual) {
			locktest.VirtualTake(v, "job", time.Hour)
			go func() { _, _ = locktest.NewTestMutex(c, "job").Lock(context.Background()) }()
			time.Sleep(700 * time.Millisecond)
			v.Freeze()
			time.Sleep(1500 * time.Millisecond)
		},
	}
	for name, scene := range scenes {
		for what, timeout := range map[string]time.Duration{"": 0, ", and the caller's client reads without end": -1} {
			t.Run(name+what, func(t *testing.T) {
				locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
					locktest.VirtualLoad(t, v)
					c := locktest.NewTestClient(t, v.Client(func(o *redis.Options) { o.ReadTimeout = timeout }))
					scene(t, c, v)
					start := time.Now()
					closed := virtualClose(c)
					select {
					case err := <-closed:
						t.Logf("Close: %v", err)
					case <-time.After(20 * time.Second):
					}
					// The unlock timeout for the holders, an attempt's for what is on its way.
					if took := time.Since(start); took > 3050*time.Millisecond {
						t.Errorf("Close took %v", took)
					}
					v.Thaw()
					synctest.Wait()
				})
			})
		}
	}
}

// A grant that comes while the client closes belongs to nobody.
func TestVirtualCloseGivesBackAGrantThatIsOnItsWay(t *testing.T) {
	for _, delay := range []time.Duration{10 * time.Millisecond, 500 * time.Millisecond, 990 * time.Millisecond} {
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			c, w := locktest.VirtualWired(t, v)
			w.On(locktest.Acquires(), redistest.DelayReply(delay))
			got := make(chan error, 1)
			go func() {
				_, err := locktest.NewTestMutex(c, "job").Lock(context.Background())
				got <- err
			}()
			time.Sleep(time.Millisecond)
			if !v.Mini().Exists("job") {
				t.Fatal("no grant on its way")
			}
			if err := c.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			locktest.VirtualWantErr(t, "Lock", <-got, []error{watchlock.ErrClosed})
			if v.Mini().Exists("job") {
				t.Errorf("a grant whose reply took %v is there after Close", delay)
			}
		})
	}
}

// virtualGoroutines counts the goroutines of the caller's bubble. The runtime's
// own count also has some of its own, which come and go.
func virtualGoroutines() (int, string) {
	buf := make([]byte, 1<<20)
	stacks := string(buf[:runtime.Stack(buf, true)])
	first, _, _ := strings.Cut(stacks, "\n")
	_, bubble, _ := strings.Cut(first, "synctest bubble ")
	return strings.Count(stacks, ", synctest bubble "+bubble), stacks
}

func TestVirtualCloseLeavesNoGoroutineAndNoConnectionOfItsOwn(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		locktest.VirtualLoad(t, v)
		rdb := v.Client()
		synctest.Wait()
		before, _ := virtualGoroutines()
		c, err := watchlock.New(rdb)
		if err != nil {
			t.Fatal(err)
		}
		m := locktest.NewTestMutex(c, "job")
		l := locktest.MustLock(t, m)
		var waiter sync.WaitGroup
		waiter.Go(func() { _, _ = m.Lock(context.Background()) })
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if v.Conns() < 2 {
			t.Errorf("%d connections in use: the test shows nothing", v.Conns())
		}
		locktest.MustUnlock(t, l)
		_ = c.Close()
		waiter.Wait()
		_ = rdb.Close()
		synctest.Wait()
		if n := v.Conns(); n != 0 {
			t.Errorf("%d connections are left when the caller's client is closed, too", n)
		}
		if after, stacks := virtualGoroutines(); after > before {
			t.Errorf("%d goroutines, %d before:\n%s", after, before, stacks)
		}
	})
}
