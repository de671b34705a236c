package watchlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestAPoolThatIsUsedUpCostsNoLock(t *testing.T) {
	redistest.NoLeaks(t)
	s := redistest.Start(t)
	const timeout = time.Second // BLPOP counts in seconds
	const conns = 3
	rdb := s.Client(func(o *redis.Options) { o.PoolSize, o.MaxActiveConns = conns, conns })
	c := newTestClient(t, rdb, WithWatchdogTimeout(timeout))
	var held []*Lease
	for i := range 5 {
		held = append(held, mustLock(t, newTestMutex(c, fmt.Sprint("held-", i))))
	}
	start := time.Now()
	var blocked sync.WaitGroup
	for range conns {
		blocked.Go(func() {
			if err := rdb.BLPop(context.Background(), 5*timeout, "nothing").Err(); !errors.Is(err, redis.Nil) {
				t.Errorf("BLPOP: %v", err)
			}
		})
	}
	eventually(t, timeout, "the pool is exhausted", func() bool {
		n, err := s.Do("INFO", "clients")
		return err == nil && strings.Contains(fmt.Sprint(n), fmt.Sprint("blocked_clients:", conns))
	})
	l, err := timedCall(t, "a try beside the pool", oneAttempt, func() (*Lease, error) {
		return newTestMutex(c, "order").TryLock(context.Background(), 0)
	})
	if err != nil {
		t.Fatalf("a try beside the pool: %v", err)
	}
	mustUnlock(t, l)
	for time.Since(start) < 4*timeout {
		for _, l := range held {
			if err := l.Err(); err != nil {
				t.Fatalf("%s after %v: %v", l.Name(), time.Since(start), err)
			}
			if ttl := serverTTL(t, s, l.Name()); ttl <= 0 {
				t.Fatalf("%s after %v: TTL %v", l.Name(), time.Since(start), ttl)
			}
		}
		<-time.After(20 * time.Millisecond)
	}
	blocked.Wait()
	if took := time.Since(start); took < 5*timeout {
		t.Errorf("the pool was exhausted for %v only", took)
	}
	for _, l := range held {
		mustUnlock(t, l)
	}
	checkNextEnters(t, newTestMutex(c, "order"))
	checkServerEmpty(t, s, c)
}
