package hooks_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// limiter is a rate limiter of the caller's own commands.
type limiter struct {
	shut  atomic.Bool
	asked atomic.Int64
}

func (l *limiter) Allow() error {
	l.asked.Add(1)
	if l.shut.Load() {
		return errors.New("over the limit")
	}
	return nil
}

func (l *limiter) ReportResult(error) {}

func TestALimiterOfTheCallersCommandsStopsNothingOfALock(t *testing.T) {
	locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		var lim limiter
		rdb := v.Client(func(o *redis.Options) { o.Limiter = &lim })
		c := locktest.NewTestClient(t, rdb)
		ctx := context.Background()
		m := locktest.MutexOf(c, kind, "k")
		lim.shut.Store(true)
		l, err := m.TryLock(ctx, time.Minute)
		if err != nil {
			t.Fatalf("TryLock: %v", err)
		}
		time.Sleep(40 * time.Second)
		if err := l.Err(); err != nil {
			t.Errorf("Redis was there all the time: %v", err)
		}
		if info, err := m.Info(ctx); err != nil || !info.Mine {
			t.Errorf("Info: %+v, %v", info, err)
		}
		locktest.MustUnlock(t, l)
		timed, err := m.TryLock(ctx, time.Minute, watchlock.WithLeaseTime(time.Second))
		if err != nil {
			t.Fatalf("TryLock: %v", err)
		}
		if err := timed.Extend(ctx, time.Minute); err != nil {
			t.Errorf("Extend: %v", err)
		}
		if err := m.ForceUnlock(ctx); err != nil {
			t.Errorf("ForceUnlock: %v", err)
		}
		if n := lim.asked.Load(); n != 0 {
			t.Errorf("the limiter was asked %d times", n)
		}
		if err := rdb.Get(ctx, "own").Err(); err == nil || errors.Is(err, redis.Nil) {
			t.Errorf("the caller's own command was let through: %v", err)
		}
	})
}

func TestAWaiterUnderALimiterIsWokenByTheMessage(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		var lim limiter
		c := locktest.NewTestClient(t, v.Client(func(o *redis.Options) { o.Limiter = &lim }))
		other := locktest.NewTestClient(t, v.Client())
		lim.shut.Store(true)
		held := locktest.MustLock(t, other.NewMutex("k"))
		entered := make(chan time.Time, 1)
		go func() {
			if l, err := c.NewMutex("k").TryLock(context.Background(), time.Minute); err != nil {
				t.Errorf("TryLock: %v", err)
			} else {
				defer locktest.MustUnlock(t, l)
			}
			entered <- time.Now()
		}()
		time.Sleep(8 * time.Second)
		locktest.MustUnlock(t, held)
		released := time.Now()
		if took := (<-entered).Sub(released); took > 20*time.Millisecond {
			t.Errorf("it entered after %v", took)
		}
	})
}

func TestAPoolThatTheCallerHasUsedUpStopsNothingOfALock(t *testing.T) {
	locktest.EachKind(t, func(t *testing.T, kind string) {
		defer locktest.VirtualPurge()
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) { lockBesideFullPool(t, v, kind) })
	})
}

func lockBesideFullPool(t *testing.T, v *redistest.Virtual, kind string) {
	t.Helper()
	rdb := v.Client(func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 1, 100*time.Millisecond })
	c := locktest.NewTestClient(t, rdb)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = rdb.BLPop(ctx, 2*time.Minute, "queue").Err()
	}()
	time.Sleep(10 * time.Millisecond)
	m := locktest.MutexOf(c, kind, "k")
	l, err := m.TryLock(context.Background(), 0)
	if err != nil {
		t.Errorf("TryLock: %v", err)
	} else {
		time.Sleep(40 * time.Second)
		if err := l.Unlock(context.Background()); err != nil {
			t.Errorf("Unlock: %v", err)
		}
	}
	cancel()
	_, _ = v.Mini().Push("queue", "x")
	<-done
}

func TestMaintenanceNotificationsDoNotChangeTheTimesOfALock(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(func(o *redis.Options) {
			o.MaintNotificationsConfig = &maintnotifications.Config{
				Mode: maintnotifications.ModeAuto, EndpointType: maintnotifications.EndpointTypeNone, RelaxedTimeout: 10 * time.Second,
			}
		})
		c := locktest.NewTestClient(t, rdb, watchlock.WithWatchdogTimeout(600*time.Millisecond))
		ctx := context.Background()
		l, err := c.NewMutex("k").TryLock(ctx, 2*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
			if err := l.Err(); err != nil {
				t.Fatal(err)
			}
		}
		s.Stop()
		defer s.Cont()
		start := time.Now()
		if _, err := c.NewMutex("j").TryLock(ctx, 0); !watchlock.IsUnavailable(err) {
			t.Errorf("of a server that stands still: %v", err)
		}
		if took := time.Since(start); took > transport.AttemptTimeout+500*time.Millisecond {
			t.Errorf("an attempt ended after %v", took)
		}
		start = time.Now()
		if err := l.Unlock(ctx); err == nil {
			t.Error("Unlock of a server that stands still says nil")
		}
		if took := time.Since(start); took > locktest.UnlockTimeoutOf(c)+500*time.Millisecond {
			t.Errorf("Unlock ended after %v", took)
		}
	})
}

// The options of the caller's client that change what a lock's commands do: none of
// them reaches the lock.
func TestOptionsForTheCallersCommandsDoNotReachALocks(t *testing.T) {
	locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		rdb := v.Client(func(o *redis.Options) {
			o.ReadTimeout, o.WriteTimeout = time.Hour, time.Hour
			o.MaxRetries = 5
			o.PoolTimeout, o.DialTimeout = time.Hour, time.Hour
			o.PipelinePoolSize = 1
			o.MinIdleConns = 3
		})
		c := locktest.NewTestClient(t, rdb)
		locktest.KnowsServer(t, c, kind)
		l := locktest.MustLock(t, locktest.MutexOf(c, kind, "held"))
		v.Freeze()
		start := time.Now()
		if _, err := locktest.MutexOf(c, kind, "k").TryLock(context.Background(), 0); !watchlock.IsUnavailable(err) {
			t.Errorf("TryLock(0): %v", err)
		}
		if took := time.Since(start); took > transport.AttemptTimeout+100*time.Millisecond {
			t.Errorf("an attempt ended after %v", took)
		}
		start = time.Now()
		if err := l.Unlock(context.Background()); !watchlock.IsUnavailable(err) {
			t.Errorf("Unlock: %v", err)
		}
		if took := time.Since(start); took > locktest.UnlockTimeoutOf(c)+200*time.Millisecond {
			t.Errorf("Unlock ended after %v", took)
		}
		start = time.Now()
		_ = c.Close()
		if took := time.Since(start); took > locktest.UnlockTimeoutOf(c)+transport.AttemptTimeout+200*time.Millisecond {
			t.Errorf("Close ended after %v", took)
		}
		v.Thaw()
	})
}
