package watchlock

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

func TestVirtualWaitCountsTheAttemptMadeHere(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := virtualWired(t, v)
		virtualTake(v, "job", time.Hour)
		w.On(redistest.Runs(wire.AcquireSource), redistest.DelayReply(900*time.Millisecond))
		start := time.Now()
		_, err := c.NewMutex("job").TryLock(context.Background(), 2*time.Second)
		if took := time.Since(start); took > 2050*time.Millisecond {
			t.Errorf("TryLock of 2 s took %v: %v", took, err)
		}
	})
}

func TestVirtualAnEarlierLookIsNeverPutOff(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, _ := virtualWired(t, v)
		outer := mustLock(t, c.NewMutex("job"))
		g, b := outer.hold.burst.gate, outer.hold.burst
		// What look, settle, reenter, extendHold and hint do: next is found under
		// mu, and told after it.
		g.mu.Lock()
		stale := b.nextLocked()
		g.mu.Unlock()
		inner, err := c.NewMutex("job").Lock(outer.Context(context.Background()), WithLeaseTime(100*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		c.dog.schedule(b, stale)
		start := time.Now()
		<-inner.Done()
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("Done of a lease of 100 ms was closed after %v", took)
		}
	})
}

func TestVirtualOwnSubscriptionIsNobodyElse(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, _ := virtualWired(t, v, WithLocalHandoff(0))
		m := c.NewMutex("job")
		l := mustLock(t, m)
		done := make(chan struct{})
		go func() { mustUnlock(t, mustLock(t, m)); close(done) }()
		synctest.Wait()
		mustUnlock(t, l)
		<-done
		time.Sleep(20 * time.Millisecond)
		mustUnlock(t, mustLock(t, m)) // alone: nobody else is there
		start := time.Now()
		mustUnlock(t, mustLock(t, m))
		if took := time.Since(start); took > 0 {
			t.Errorf("a Lock with nobody else there took %v", took)
		}
	})
}

func TestVirtualTwoKeysOfOneChannelAreTwoLocks(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, _ := virtualWired(t, v)
		mustUnlock(t, mustLock(t, c.NewMutex("a")))
		virtualTake(v, "{a}", time.Hour)
		l, err := c.NewMutex("{a}").TryLock(context.Background(), 0)
		if err == nil {
			t.Errorf("{a} is a stranger's, and was granted: key a exists: %v", v.Mini().Exists("a"))
			mustUnlock(t, l)
		}
	})
}

func TestVirtualFencedLockAfterAPlainOneHasItsCounter(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, _ := virtualWired(t, v)
		_, _ = c.NewMutex("job").Info(context.Background())
		l, err := c.NewFencedMutex("job").Lock(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if !v.Mini().Exists("redisson_lock_token:{job}") {
			t.Errorf("token %d, keys %q", l.Token(), v.Mini().Keys())
		}
		_ = l.Unlock(context.Background())
	})
}

func TestVirtualEachLeaseHasTheNameItsCallerGave(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, _ := virtualWired(t, v, WithNameMapper(strings.ToLower))
		mustUnlock(t, mustLock(t, c.NewMutex("JOB")))
		l := mustLock(t, c.NewMutex("job"))
		if l.Name() != "job" {
			t.Errorf("Name is %q", l.Name())
		}
		mustUnlock(t, l)
	})
}

func TestVirtualGrantThatWasForcedOnItsWayIsNotBelieved(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := virtualWired(t, v)
		other := virtualClient(t, v)
		w.On(redistest.Runs(wire.AcquireSource), redistest.DelayReply(300*time.Millisecond))
		m := c.NewMutex("job")
		got := make(chan *Lease, 1)
		go func() { got <- mustLock(t, m) }()
		time.Sleep(100 * time.Millisecond)
		if err := m.ForceUnlock(context.Background()); err != nil {
			t.Fatal(err)
		}
		o := mustLock(t, other.NewMutex("job"))
		synctest.Wait()
		time.Sleep(time.Second)
		select {
		case l := <-got:
			if l.Err() == nil && o.Err() == nil {
				t.Error("two leases are trusted at once")
			}
		default:
			t.Log("still waits")
			mustUnlock(t, o)
			mustUnlock(t, <-got)
		}
	})
}

func virtualCluster(v *redistest.Virtual, w *redistest.Wire) *redis.ClusterClient {
	one := v.Client(w.Options()).Options()
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{"one:1"},
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: "one:1"}}}}, nil
		},
		Dialer:          func(ctx context.Context, n, a string) (net.Conn, error) { return one.Dialer(ctx, n, a) },
		Protocol:        one.Protocol,
		DisableIdentity: true, MaintNotificationsConfig: one.MaintNotificationsConfig,
	})
}

func TestVirtualUnlockOnAClusterIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		virtualLoad(t, v)
		w := redistest.NewWire()
		rdb := virtualCluster(v, w)
		defer rdb.Close()
		c := newTestClient(t, rdb)
		l := mustLock(t, c.NewMutex("job"))
		w.On(redistest.Runs(wire.ReleaseSource), redistest.Swallow).Times(0)
		start := time.Now()
		err := l.Unlock(context.Background())
		if took := time.Since(start); took > 2050*time.Millisecond {
			t.Errorf("Unlock took %v: %v", took, err)
		}
		w.On(redistest.Runs(wire.AcquireSource), redistest.Swallow).Times(0)
		start = time.Now()
		_, err = c.NewMutex("job2").TryLock(context.Background(), 2*time.Second)
		if took := time.Since(start); took > 2050*time.Millisecond {
			t.Errorf("TryLock took %v: %v", took, err)
		}
		start = time.Now()
		_ = c.Close()
		t.Logf("Close took %v", time.Since(start))
	})
}

func TestVirtualLoggerMayAskTheClient(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		var c *Client
		log := zap.NewNop().WithOptions(zap.WrapCore(func(zapcore.Core) zapcore.Core {
			return zapcore.RegisterHooks(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(io.Discard), zap.DebugLevel),
				func(zapcore.Entry) error { c.Held(); return nil })
		}))
		c, _ = virtualWired(t, v, WithLogger(log))
		l := mustLock(t, c.NewMutex("job"), WithLeaseTime(100*time.Millisecond))
		<-l.Done()
	})
}

func TestVirtualPassingEndsThoughRenewalsConfirm(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, _ := virtualWired(t, v, WithWatchdogTimeout(900*time.Millisecond), WithLocalHandoff(time.Second))
		other := virtualClient(t, v)
		m := c.NewMutex("job")
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					l := mustLock(t, m)
					time.Sleep(5 * time.Millisecond)
					mustUnlock(t, l)
				}
			})
		}
		time.Sleep(10 * time.Millisecond)
		start := time.Now()
		l, err := other.NewMutex("job").TryLock(context.Background(), time.Minute)
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("others waited %v: %v", took, err)
		}
		close(stop)
		if l != nil {
			_ = l.Unlock(context.Background())
		}
		wg.Wait()
		synctest.Wait()
	})
}

func TestVirtualUnlockIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := virtualWired(t, v)
		l := mustLock(t, c.NewMutex("job"))
		runs := redistest.Runs(wire.ReleaseSource)
		sha := func(name string) redistest.Match {
			return func(c redistest.Command) bool { return runs(c) && c.Name == name }
		}
		w.On(sha("EVALSHA"), redistest.All(redistest.DelayReply(850*time.Millisecond), redistest.DropReply))
		w.On(sha("EVALSHA"), redistest.DelayReply(900*time.Millisecond))
		w.On(sha("EVAL"), redistest.Swallow).Times(0)
		time.AfterFunc(500*time.Millisecond, func() {
			raw := v.Client()
			raw.ScriptFlush(context.Background())
		})
		start := time.Now()
		err := l.Unlock(context.Background())
		if took := time.Since(start); took > 2050*time.Millisecond {
			t.Errorf("Unlock took %v: %v", took, err)
		}
	})
}

func TestVirtualForceAfterUnlockIsVerifiedAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := virtualWired(t, v, WithLocalHandoff(0))
		w.On(redistest.Is("subscribe"), redistest.Delay(20*time.Millisecond)) // not there yet when we release
		m := c.NewMutex("job")
		l := mustLock(t, m)
		got := make(chan *Lease, 1)
		go func() { got <- mustLock(t, m) }()
		time.Sleep(time.Millisecond)
		go func() { l := mustLock(t, m); _ = l.Unlock(context.Background()) }() // goes on waiting
		time.Sleep(10 * time.Millisecond)
		mustUnlock(t, l)
		l = <-got
		time.Sleep(30 * time.Millisecond) // confirmed
		start := time.Now()
		v.Mini().Del("job")
		v.Mini().Publish("redisson_lock__channel:{job}", "0")
		<-l.Done()
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("told after %v", took)
		}
		_ = l.Unlock(context.Background())
		time.Sleep(time.Second)
	})
}
