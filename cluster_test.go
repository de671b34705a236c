package watchlock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// startCluster starts a cluster of one node that serves all slots, and enforces
// them.
func startCluster(t *testing.T) (*redistest.Server, *redis.ClusterClient) {
	t.Helper()
	s := redistest.Start(t, redistest.WithTCP(), redistest.WithArgs("--cluster-enabled", "yes"))
	if _, err := s.Do("CLUSTER", "ADDSLOTSRANGE", "0", "16383"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "the cluster is up", func() bool {
		_, err := s.Do("SET", "up", "1")
		return err == nil
	})
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                    []string{s.Addr()},
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return s, rdb
}

func TestLocksOnAClusterAreRenewedSlotBySlot(t *testing.T) {
	s, rdb := startCluster(t)
	const timeout = 600 * time.Millisecond
	c := newTestClient(t, rdb, WithWatchdogTimeout(timeout))
	var leases []*Lease
	for i := range 50 {
		leases = append(leases, mustLock(t, c.NewMutex(fmt.Sprintf("order:%d", i))))
	}
	deadline := time.Now().Add(3 * timeout)
	for time.Now().Before(deadline) {
		for _, l := range leases {
			if err := l.Err(); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(10 * time.Millisecond)
	}
	for _, l := range leases {
		mustUnlock(t, l)
	}
	if n, err := s.Do("DBSIZE"); err != nil || n != int64(1) {
		t.Fatalf("keys left: %v, %v; want the one that was there", n, err)
	}
}

func TestWaiterOnAClusterIsWokenByTheMessage(t *testing.T) {
	_, rdb := startCluster(t)
	a, b := newTestClient(t, rdb), newTestClient(t, rdb)
	ctx := context.Background()
	for i := range 20 {
		name := fmt.Sprintf("{tag%d}:order", i)
		held := mustLock(t, a.NewMutex(name))
		entered := make(chan time.Time, 1)
		go func() {
			l, err := b.NewMutex(name).Lock(ctx)
			entered <- time.Now()
			if err == nil {
				err = l.Unlock(ctx)
			}
			if err != nil {
				t.Error(err)
			}
		}()
		eventually(t, 5*time.Second, "the waiter is subscribed", func() bool {
			n, err := rdb.PubSubShardNumSub(ctx, "redisson_lock__channel:"+name).Result()
			return err == nil && n["redisson_lock__channel:"+name] > 0
		})
		mustUnlock(t, held)
		released := time.Now()
		if d := (<-entered).Sub(released); d > 200*time.Millisecond {
			t.Errorf("entered %v after the release", d)
		}
	}
}
