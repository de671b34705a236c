package wait_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// TestVirtualWaiterWhoseMessageWasDroppedEntersByThePollBound releases the lock
// after random times without the waiter hearing of it.
func TestVirtualWaiterWhoseMessageWasDroppedEntersByThePollBound(t *testing.T) {
	for seed := range uint64(60) {
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			rng := rand.New(rand.NewPCG(seed, 3))
			holder := locktest.VirtualClient(t, v)
			w := redistest.NewWire()
			waiter := locktest.NewTestClient(t, v.Client(w.Options()))
			dropped := w.DropPush(0)
			held := locktest.MustLock(t, locktest.NewTestMutex(holder, "job"))
			wait := time.Duration(rng.ExpFloat64() * float64(4*time.Second))
			start := time.Now()
			entered := make(chan time.Duration, 1)
			go func() {
				l, err := locktest.NewTestMutex(waiter, "job").Lock(context.Background())
				if err != nil {
					t.Errorf("Lock: %v", err)
				}
				entered <- time.Since(start)
				_ = l.Unlock(context.Background())
			}()
			locktest.VirtualUntil(start, wait)
			locktest.MustUnlock(t, held)
			at := <-entered
			// As long again as it had waited, or 250 ms, or 5 s, and a tenth of jitter.
			bound := min(max(wait, 250*time.Millisecond), 5*time.Second)
			bound += bound/10 + 10*time.Millisecond
			if late := at - wait; late > bound {
				t.Errorf("released after %v, entered %v later, want at most %v", wait, late, bound)
			}
			if wait > 10*time.Millisecond && dropped.Hits() == 0 {
				t.Errorf("no message was lost (released after %v)", wait)
			}
		})
	}
}

func TestVirtualPollIntervalDoublesFrom250MillisecondsTo5Seconds(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		longest := 5 * time.Second
		if locktest.KindOfTest() == "setnx" {
			longest = wire.ForeignPoll
		}
		c := locktest.VirtualClient(t, v)
		locktest.VirtualTake(v, "job", 0)
		start := time.Now()
		_, err := locktest.NewTestMutex(c, "job").TryLock(context.Background(), 2*time.Minute)
		locktest.VirtualWantErr(t, "TryLock", err, []error{watchlock.ErrNotAcquired})
		times := locktest.VirtualTimes(v.Commands(), start, locktest.Acquires())
		times = slices.Compact(times) // the first, and the one after the subscription, at once
		if len(times) < 24 {
			t.Fatalf("asked at %v: too seldom", times)
		}
		for i := 1; i < len(times); i++ {
			gap, least := times[i]-times[i-1], min(max(times[i-1], 250*time.Millisecond), longest)
			if gap < least || gap > least+least/10+time.Millisecond {
				t.Errorf("asked %v after having waited %v, want %v and at most a tenth more", gap, times[i-1], least)
			}
		}
	})
}

func TestVirtualMaxPollIntervalBoundsTheSleep(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v, watchlock.WithMaxPollInterval(100*time.Millisecond))
		locktest.VirtualTake(v, "job", 0)
		start := time.Now()
		_, err := locktest.NewTestMutex(c, "job").TryLock(context.Background(), 10*time.Second)
		locktest.VirtualWantErr(t, "TryLock", err, []error{watchlock.ErrNotAcquired})
		times := locktest.VirtualTimes(v.Commands(), start, locktest.Acquires())
		for i := 1; i < len(times); i++ {
			if gap := times[i] - times[i-1]; gap > 110*time.Millisecond {
				t.Errorf("slept for %v", gap)
			}
		}
		if len(times) < 90 {
			t.Errorf("asked %d times in 10 s", len(times))
		}
	})
}

func TestVirtualWaiterEntersRightAfterTheHoldersKeyExpires(t *testing.T) {
	for seed := range 40 {
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			c := locktest.VirtualClient(t, v)
			ttl := time.Duration(100+seed*777) * time.Millisecond
			locktest.VirtualTake(v, "job", ttl)
			start := time.Now()
			l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
			if at := time.Since(start); at < ttl || at > ttl+13*time.Millisecond {
				t.Errorf("a key of %v: entered at %v", ttl, at)
			}
			locktest.MustUnlock(t, l)
		})
	}
}

func TestVirtualWaiterIsWokenByTheReleaseAtOnce(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		holder, waiter := locktest.VirtualClient(t, v), locktest.NewTestClient(t, v.Client())
		for _, wait := range []time.Duration{time.Millisecond, 100 * time.Millisecond, 7 * time.Second, 9 * time.Minute} {
			held := locktest.MustLock(t, locktest.NewTestMutex(holder, "job"))
			start := time.Now()
			entered := make(chan time.Duration, 1)
			go func() {
				l, err := locktest.NewTestMutex(waiter, "job").Lock(context.Background())
				if err != nil {
					t.Errorf("Lock: %v", err)
				}
				entered <- time.Since(start)
				_ = l.Unlock(context.Background())
			}()
			locktest.VirtualUntil(start, wait)
			locktest.MustUnlock(t, held)
			if at := <-entered; at != wait {
				t.Errorf("released at %v, entered at %v", wait, at)
			}
			synctest.Wait()
		}
	})
}

func TestVirtualMessageWhileHeldIsVerifiedAtOnce(t *testing.T) {
	channel := locktest.ChannelOfTest("job")
	gone := func(v *redistest.Virtual) { v.Mini().Del("job") }
	taken := func(v *redistest.Virtual) { gone(v); locktest.VirtualTake(v, "job", time.Minute) }
	for name, c := range map[string]struct {
		before []time.Duration // other messages, before the one that counts
		change func(v *redistest.Virtual)
		opts   []watchlock.LockOption
	}{
		"forced by an operator":              {nil, gone, nil},
		"taken by a stranger":                {nil, taken, nil},
		"of an explicit lease":               {nil, gone, []watchlock.LockOption{watchlock.WithLeaseTime(20 * time.Second)}},
		"with another message before it":     {[]time.Duration{time.Second}, gone, nil},
		"with another message just before":   {[]time.Duration{20 * time.Millisecond}, gone, nil},
		"with others in a row just before":   {[]time.Duration{45 * time.Millisecond, 30 * time.Millisecond, time.Millisecond}, gone, nil},
		"with another message at once again": {[]time.Duration{0}, gone, nil},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				client := locktest.VirtualClient(t, v)
				m := locktest.NewTestMutex(client, "job")
				l := locktest.MustLock(t, m, c.opts...)
				ctx, cancel := context.WithCancel(context.Background())
				var waiter sync.WaitGroup
				waiter.Go(func() {
					if l, err := m.Lock(ctx); err == nil {
						_ = l.Unlock(context.Background())
					}
				})
				start := time.Now()
				for _, before := range c.before {
					locktest.VirtualUntil(start, 3*time.Second-before)
					v.Mini().Publish(channel, "0")
					synctest.Wait()
				}
				locktest.VirtualUntil(start, 3*time.Second)
				if err := l.Err(); err != nil {
					t.Fatalf("lost by a message alone: %v", err)
				}
				c.change(v)
				v.Mini().Publish(channel, "0")
				<-l.Done()
				if late := time.Since(start) - 3*time.Second; late > 60*time.Millisecond {
					t.Errorf("told %v after the message", late)
				}
				locktest.VirtualWantErr(t, "Err", l.Err(), []error{watchlock.ErrLost})
				cancel()
				waiter.Wait()
			})
		})
	}
}

func TestVirtualMessageDuringARenewalIsVerifiedRightAfterIt(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := locktest.VirtualWired(t, v)
		m := locktest.NewTestMutex(c, "job")
		l := locktest.MustLock(t, m)
		ctx, cancel := context.WithCancel(context.Background())
		var waiter sync.WaitGroup
		waiter.Go(func() { _, _ = m.Lock(ctx) })
		start := time.Now()
		locktest.VirtualUntil(start, 9*time.Second)
		w.On(locktest.Renews(), redistest.DelayReply(200*time.Millisecond))
		locktest.VirtualUntil(start, 10100*time.Millisecond)
		virtualTakeOver(v)
		<-l.Done()
		if at := time.Since(start); at > 10300*time.Millisecond {
			t.Errorf("told at %v: the renewal was answered at 10.2s", at)
		}
		cancel()
		waiter.Wait()
	})
}

// virtualTakeOver gives "job" to a stranger and says so.
func virtualTakeOver(v *redistest.Virtual) {
	v.Mini().Del("job")
	locktest.VirtualTake(v, "job", time.Minute)
	v.Mini().Publish(locktest.ChannelOfTest("job"), "0")
}

func TestVirtualLeasesAreVerifiedWhenTheConnectionIsBack(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		for name, outage := range map[string]func(c *watchlock.Client, w *redistest.Wire){
			"the subscription's": func(_ *watchlock.Client, w *redistest.Wire) { w.Cut() },
			"a command's": func(c *watchlock.Client, w *redistest.Wire) {
				w.Refuse(true)
				w.Cut()
				if _, err := locktest.NewTestMutex(c, "other").TryLock(context.Background(), 0); err == nil {
					t.Error("TryLock without a connection succeeded")
				}
				w.Refuse(false)
				time.Sleep(time.Second) // go-redis's pool dials again once a second
				if l, err := locktest.NewTestMutex(c, "other").TryLock(context.Background(), 0); err != nil {
					t.Errorf("TryLock with the connection back: %v", err)
				} else {
					_ = l.Unlock(context.Background())
				}
			},
		} {
			c, w := locktest.VirtualWired(t, v)
			m := locktest.NewTestMutex(c, "job "+name)
			kept, gone := locktest.MustLock(t, locktest.NewTestMutex(c, "kept "+name)), locktest.MustLock(t, m)
			ctx, cancel := context.WithCancel(context.Background())
			var waiter sync.WaitGroup
			waiter.Go(func() {
				if l, err := m.Lock(ctx); err == nil {
					_ = l.Unlock(context.Background())
				}
			})
			start := time.Now()
			locktest.VirtualUntil(start, 3*time.Second)
			v.Mini().Del(m.Name())
			locktest.VirtualTake(v, m.Name(), time.Minute)
			outage(c, w)
			<-gone.Done()
			if at := time.Since(start); at > 5*time.Second {
				t.Errorf("%s connection: told at %v, want soon after 3 s and before the renewal at 10 s", name, at)
			}
			if err := kept.Err(); err != nil {
				t.Errorf("%s connection: the lease that is still there: %v", name, err)
			}
			cancel()
			waiter.Wait()
			locktest.MustUnlock(t, kept)
			_ = c.Close()
		}
		time.Sleep(2 * time.Second)
	})
}
