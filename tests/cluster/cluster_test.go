package cluster_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
)

func TestLocksOnAClusterAreRenewedSlotBySlot(t *testing.T) {
	s, rdb := locktest.StartCluster(t)
	const timeout = 600 * time.Millisecond
	c := locktest.NewTestClient(t, rdb, watchlock.WithWatchdogTimeout(timeout))
	var leases []*watchlock.Lease
	for i := range 50 {
		leases = append(leases, locktest.MustLock(t, c.NewMutex(fmt.Sprintf("order:%d", i))))
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
		locktest.MustUnlock(t, l)
	}
	if n, err := s.Do("DBSIZE"); err != nil || n != int64(1) {
		t.Fatalf("keys left: %v, %v; want the one that was there", n, err)
	}
}

func TestWaiterOnAClusterIsWokenByTheMessage(t *testing.T) {
	_, rdb := locktest.StartCluster(t)
	a, b := locktest.NewTestClient(t, rdb), locktest.NewTestClient(t, rdb)
	ctx := context.Background()
	for i := range 20 {
		name := fmt.Sprintf("{tag%d}:order", i)
		held := locktest.MustLock(t, a.NewMutex(name))
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
		locktest.Eventually(t, 5*time.Second, "the waiter is subscribed", func() bool {
			n, err := rdb.PubSubShardNumSub(ctx, "redisson_lock__channel:"+name).Result()
			return err == nil && n["redisson_lock__channel:"+name] > 0
		})
		locktest.MustUnlock(t, held)
		released := time.Now()
		if d := (<-entered).Sub(released); d > 200*time.Millisecond {
			t.Errorf("entered %v after the release", d)
		}
	}
}
