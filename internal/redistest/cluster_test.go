package redistest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestClusterServesAllSlotsMovesThemAndSurvivesItsPrimaries(t *testing.T) {
	for _, family := range Families() {
		t.Run(string(family), func(t *testing.T) {
			began := time.Now()
			c := StartCluster(t, On(family))
			t.Logf("ready after %v", time.Since(began))
			rdb := c.Client()
			ctx := context.Background()
			for i := range 50 {
				if err := rdb.Set(ctx, fmt.Sprint("key", i), i, 0).Err(); err != nil {
					t.Fatal(err)
				}
			}
			primaries := c.Primaries()
			if len(primaries) != 3 || len(c.Nodes()) != 6 {
				t.Fatalf("%d primaries among %d nodes, want 3 among 6", len(primaries), len(c.Nodes()))
			}

			slot := c.Slot("{key}:moved")
			if got := c.Slot("key"); got != slot {
				t.Errorf("slot of a tag is %d, of its text %d", slot, got)
			}
			if err := rdb.Set(ctx, "{key}:moved", "here", 0).Err(); err != nil {
				t.Fatal(err)
			}
			from := c.Owner(slot)
			to := primaries[0]
			if from == to {
				to = primaries[1]
			}
			c.MoveSlot(slot, to)
			if got := c.Owner(slot); got != to {
				t.Errorf("slot is at %s, want %s", got.Addr(), to.Addr())
			}
			if n, err := to.Do("CLUSTER", "COUNTKEYSINSLOT", slot); err != nil || n != int64(1) {
				t.Errorf("keys of the slot after its move: %v, %v", n, err)
			}

			began = time.Now()
			to.Kill()
			c.AwaitFailover(to)
			t.Logf("failed over from a killed primary after %v", time.Since(began))
			stays(t, c, "{key}:moved", "here")
			to.Restart()
			c.AwaitAgreement()

			stopped := c.Owner(slot)
			stopped.Stop()
			c.AwaitFailover(stopped)
			stays(t, c, "{key}:moved", "here")
			stopped.Cont()
			c.AwaitAgreement()
		})
	}
}

// stays fails unless a new client of the cluster soon reads value at key.
func stays(t *testing.T, c *Cluster, key, value string) {
	t.Helper()
	rdb := c.Client(func(o *redis.ClusterOptions) { o.ReadTimeout = time.Second })
	eventually(t, key+" is read", func() bool {
		got, err := rdb.Get(context.Background(), key).Result()
		return err == nil && got == value
	})
}
