package renew_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// shortOrFull is a duration of the short form or of the full one.
func shortOrFull(short, full time.Duration) time.Duration {
	if locktest.FullCount(20) == 20 {
		return full
	}
	return short
}

// lockMany takes n locks of distinct names.
func lockMany(t *testing.T, c *watchlock.Client, n int) []*watchlock.Lease {
	t.Helper()
	leases := make([]*watchlock.Lease, n)
	for i := range leases {
		leases[i] = locktest.MustLock(t, locktest.NewTestMutex(c, fmt.Sprint("held-", i)))
	}
	return leases
}

// lowestTTL returns the smallest PTTL of the locks that lockMany took, and how
// many of them are gone.
func lowestTTL(t *testing.T, rdb *redis.Client, n int) (low time.Duration, gone int) {
	t.Helper()
	pipe := rdb.Pipeline()
	ttls := make([]*redis.DurationCmd, n)
	for i := range ttls {
		ttls[i] = pipe.PTTL(context.Background(), fmt.Sprint("held-", i))
	}
	if _, err := pipe.Exec(context.Background()); err != nil {
		t.Fatalf("PTTL: %v", err)
	}
	low = time.Hour
	for _, ttl := range ttls {
		if ttl.Val() < 0 {
			gone++
		}
		low = min(low, ttl.Val())
	}
	return low, gone
}

func TestA12_HeldLocksSurviveChurn(t *testing.T) {
	redistest.NoLeaks(t)
	timeout := shortOrFull(1200*time.Millisecond, 3*time.Second)
	s := redistest.Start(t)
	rdb := s.Client()
	c := locktest.NewTestClient(t, rdb, watchlock.WithWatchdogTimeout(timeout))
	held := lockMany(t, c, 50)

	stop := make(chan struct{})
	var churn sync.WaitGroup
	var pairs [8]int
	for i := range pairs {
		churn.Go(func() {
			m := locktest.NewTestMutex(c, fmt.Sprint("churn-", i))
			for {
				select {
				case <-stop:
					return
				default:
				}
				l, err := m.Lock(context.Background())
				if err == nil {
					err = l.Unlock(context.Background())
				}
				if err != nil {
					t.Errorf("churn: %v", err)
					return
				}
				pairs[i]++
			}
		})
	}
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(5 * timeout); time.Now().Before(end); <-ticker.C {
		if low, _ := lowestTTL(t, rdb, len(held)); low < timeout/3 {
			t.Errorf("a TTL fell to %v, below a third of %v", low, timeout)
			break
		}
	}
	close(stop)
	churn.Wait()
	for i, n := range pairs {
		if n < 10 {
			t.Errorf("loop %d made %d pairs only", i, n)
		}
	}
	for _, l := range held {
		locktest.MustUnlock(t, l)
	}
	locktest.CheckNextEnters(t, locktest.NewTestMutex(c, "held-0"))
	locktest.CheckServerEmpty(t, s, c)
}

func TestA54_VeryManyLocksAreRenewedInBatches(t *testing.T) {
	n := locktest.FullCount(20000)
	const timeout = 3 * time.Second

	t.Run("in few commands", func(t *testing.T) {
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			c := locktest.WarmClient(t, v.Client(), watchlock.WithWatchdogTimeout(timeout))
			held := lockMany(t, c, n)
			v.Reset()
			time.Sleep(3*timeout + timeout/10)
			batches := (n + 99) / 100
			if got := locktest.VirtualRenewals(v); got != 9*batches {
				t.Errorf("%d renewals of %d locks in 9 ticks, want %d", got, n, 9*batches)
			}
			for _, l := range held {
				if ttl := v.Mini().TTL(l.Name()); ttl != timeout-timeout/10 {
					t.Fatalf("TTL of %s is %v soon after its renewal", l.Name(), ttl)
				}
				locktest.MustUnlock(t, l)
			}
			locktest.CheckBubbleEmpty(t, v, c)
		})
	})
	t.Run("none is lost", func(t *testing.T) {
		redistest.NoLeaks(t)
		s := redistest.Start(t)
		c := locktest.NewTestClient(t, s.Client(), watchlock.WithWatchdogTimeout(timeout))
		before := runtime.NumGoroutine()
		held := lockMany(t, c, n)
		calls, goroutines, memory := s.CommandCalls()["evalsha"], 0, heapInUse()
		for end := time.Now().Add(3 * timeout); time.Now().Before(end); <-time.After(timeout / 30) {
			goroutines = max(goroutines, runtime.NumGoroutine())
		}
		calls = s.CommandCalls()["evalsha"] - calls
		for _, l := range held {
			if err := l.Err(); err != nil {
				t.Fatalf("%s: %v", l.Name(), err)
			}
		}
		// Locks taken one after another are due one after another, in groups of a
		// thirtieth of the timeout.
		if most := 10 * (n/100 + 30); calls > most {
			t.Errorf("%d commands for %d locks in 9 ticks, want at most %d", calls, n, most)
		}
		if most := before + 20 + 2*n/100; goroutines > most {
			t.Errorf("%d goroutines, want at most %d", goroutines, most)
		}
		if grown := heapInUse() - memory; grown > 8<<20 {
			t.Errorf("memory grew by %d bytes", grown)
		}
		for _, l := range held {
			locktest.MustUnlock(t, l)
		}
		locktest.CheckNextEnters(t, locktest.NewTestMutex(c, "held-0"))
		locktest.CheckServerEmpty(t, s, c)
	})
}

// heapInUse is what live objects take.
func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestC13_OneBadKeyCostsNoOtherItsRenewal(t *testing.T) {
	redistest.NoLeaks(t)
	s := redistest.Start(t)
	const timeout = 3 * time.Second
	rdb := s.Client()
	c := locktest.NewTestClient(t, rdb, watchlock.WithWatchdogTimeout(timeout))
	held := lockMany(t, c, 500)
	const bad = 123
	if err := rdb.Set(context.Background(), fmt.Sprint("held-", bad), "precious", 0).Err(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	<-held[bad].Done()
	if told := time.Since(start); told > timeout*2/3 {
		t.Errorf("the holder of the bad key was told after %v", told)
	}
	locktest.MustErr(t, "its lease", held[bad].Err(), watchlock.ErrLost)
	<-time.After(timeout + timeout/2 - time.Since(start))
	for i, l := range held {
		if i == bad {
			locktest.MustErr(t, "Unlock of the bad key", l.Unlock(context.Background()), watchlock.ErrLost)
			continue
		}
		if err := l.Err(); err != nil {
			t.Fatalf("%s: %v", l.Name(), err)
		}
		locktest.MustUnlock(t, l)
	}
	got, err := rdb.Get(context.Background(), fmt.Sprint("held-", bad)).Result()
	if err != nil || got != "precious" {
		t.Errorf("the bad key holds %q, %v: it is not ours to touch", got, err)
	}
	rdb.Del(context.Background(), fmt.Sprint("held-", bad))
	locktest.CheckNextEnters(t, locktest.NewTestMutex(c, fmt.Sprint("held-", bad)))
	locktest.CheckServerEmpty(t, s, c)
}
