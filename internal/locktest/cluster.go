package locktest

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// StartCluster starts a cluster of one node that serves all slots, and enforces
// them.
func StartCluster(t *testing.T) (*redistest.Server, *redis.ClusterClient) {
	t.Helper()
	s := redistest.Start(t, redistest.WithTCP(), redistest.WithArgs("--cluster-enabled", "yes"))
	if _, err := s.Do("CLUSTER", "ADDSLOTSRANGE", "0", "16383"); err != nil {
		t.Fatal(err)
	}
	Eventually(t, 5*time.Second, "the cluster is up", func() bool {
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
