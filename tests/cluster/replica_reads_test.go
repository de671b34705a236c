package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// routings are the options of a cluster's client that let reads go to replicas.
var routings = map[string]func(*redis.ClusterOptions){
	"ReadOnly":       func(o *redis.ClusterOptions) { o.ReadOnly = true },
	"RouteRandomly":  func(o *redis.ClusterOptions) { o.RouteRandomly = true },
	"RouteByLatency": func(o *redis.ClusterOptions) { o.RouteByLatency = true },
}

// clusterWithListedReplicas is one whose replicas clients are told of: CLUSTER SLOTS
// lists one only when it has copied something.
func clusterWithListedReplicas(t *testing.T) *redistest.Cluster {
	t.Helper()
	cl := redistest.StartCluster(t, redistest.On(redistest.Redis86))
	writer := cl.Client()
	for i := range 100 {
		writer.Set(context.Background(), fmt.Sprint("w", i), "x", 0)
	}
	locktest.Eventually(t, 15*time.Second, "each range of slots has a replica", func() bool {
		reply, err := cl.Nodes()[0].Do("CLUSTER", "SLOTS")
		ranges, _ := reply.([]any)
		for _, r := range ranges {
			if r, _ := r.([]any); len(r) < 4 {
				return false
			}
		}
		return err == nil && len(ranges) > 0
	})
	return cl
}

// replicasOf are the nodes that follow a primary.
func replicasOf(t *testing.T, cl *redistest.Cluster, primary *redistest.Server) (replicas []*redistest.Server) {
	t.Helper()
	text := locktest.MustDo(t, primary, "INFO", "replication").(string)
	for _, n := range cl.Nodes() {
		if _, port, _ := net.SplitHostPort(n.Addr()); strings.Contains(text, "port="+port+",") {
			replicas = append(replicas, n)
		}
	}
	return replicas
}

func TestNothingAboutALockIsReadFromAReplica(t *testing.T) {
	t.Parallel() // it is time that it takes
	cl := clusterWithListedReplicas(t)
	ctx := context.Background()
	for name, route := range routings {
		for _, kind := range []string{"mutex", "fenced", "string"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				c := locktest.NewTestClient(t, cl.Client(route), watchlock.WithWatchdogTimeout(600*time.Millisecond))
				m := locktest.MutexOf(c, kind, "{"+name+"}"+kind)
				locktest.MustUnlock(t, locktest.MustLock(t, m))
				replicas := replicasOf(t, cl, cl.Owner(transport.KeySlot(name)))
				if len(replicas) == 0 {
					t.Fatal("no replica")
				}
				for _, r := range replicas {
					locktest.MustDo(t, r, "CONFIG", "RESETSTAT")
				}
				l := locktest.MustLock(t, m)
				waiter := make(chan error, 1)
				go func() { _, err := m.TryLock(ctx, time.Second); waiter <- err }()
				for range 30 {
					if info, err := m.Info(ctx); err != nil || !info.Mine {
						t.Errorf("Info: %+v, %v", info, err)
					}
				}
				if err := <-waiter; !errors.Is(err, watchlock.ErrNotAcquired) {
					t.Errorf("the waiter: %v", err)
				}
				if err := l.Err(); err != nil {
					t.Error(err)
				}
				if err := m.ForceUnlock(ctx); err != nil {
					t.Errorf("ForceUnlock: %v", err)
				}
				for _, r := range replicas {
					for cmd, n := range r.CommandCalls() {
						if n > 0 && locktest.IsLockCommand(cmd) && cmd != "set" && cmd != "publish" && cmd != "spublish" { // those are replicated
							t.Errorf("a replica ran %s %d times", cmd, n)
						}
					}
				}
			})
		}
	}
}

func TestAReplicaThatLagsEndsNoLease(t *testing.T) {
	t.Parallel() // it is time that it takes
	cl := clusterWithListedReplicas(t)
	for _, n := range cl.Nodes() {
		locktest.MustDo(t, n, "ACL", "SETUSER", "u", "reset", "on", ">p", "~*", "&*", "+@all", "-@scripting")
	}
	for name, route := range routings {
		t.Run(name, func(t *testing.T) {
			rdb := cl.Client(route, func(o *redis.ClusterOptions) { o.Username, o.Password = "u", "p" })
			c := locktest.NewTestClient(t, rdb)
			m := c.NewSetNXMutex("{a}"+name, watchlock.WithLeaseTime(20*time.Second))
			locktest.MustUnlock(t, locktest.MustLock(t, m))
			primary := cl.Owner(transport.KeySlot("a"))
			locktest.MustDo(t, primary, "CONFIG", "SET", "requirepass", "x") // its replica cannot come back: it lags
			defer locktest.MustDo(t, primary, "CONFIG", "SET", "requirepass", "")
			locktest.MustDo(t, primary, "CLIENT", "KILL", "TYPE", "replica")
			l := locktest.MustLock(t, m)
			ctx, cancel := context.WithCancel(context.Background())
			waiter := make(chan struct{})
			go func() { defer close(waiter); _, _ = m.Lock(ctx) }()
			for range 10 { // each has it asked about
				<-time.After(60 * time.Millisecond)
				locktest.MustDo(t, primary, "SPUBLISH", "watchlock_setnx__channel:{a}"+name, "0")
			}
			if err := l.Err(); err != nil {
				t.Errorf("the primary has %v, and the lease says %v", locktest.MustDo(t, primary, "GET", "{a}"+name), err)
			}
			cancel()
			<-waiter
			_ = l.Unlock(context.Background())
		})
	}
}
