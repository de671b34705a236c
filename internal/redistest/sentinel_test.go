package redistest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// sentinelWay is how a primary is replaced.
type sentinelWay struct {
	name string
	do   func(old *Server) Naming
}

// briefly keeps a client from trying again. What go-redis has begun goes on when the client is
// closed, with goroutines of its own for each try: for ten seconds with its defaults, in
// which the next test looks for what it has left itself. A server that stands still costs it
// no more than a moment either: what the client tries again, the test does.
func briefly(o *redis.FailoverOptions) {
	o.MaxRetries, o.DialerRetries, o.ReadTimeout = -1, 1, 500*time.Millisecond
}

func TestSentinelNamesAnotherPrimaryInEachWay(t *testing.T) {
	for _, family := range Families() {
		t.Run(string(family), func(t *testing.T) {
			began := time.Now()
			s := StartSentinel(t, On(family))
			t.Logf("ready after %v", time.Since(began))
			plain, clusterType := s.Client(briefly), s.ClusterTypeClient(briefly)
			ctx := context.Background()
			if err := plain.Set(ctx, "key", "here", 0).Err(); err != nil {
				t.Fatal(err)
			}
			if len(s.Nodes()) != 3 || len(s.Sentinels()) != 3 || s.Primary() != s.Nodes()[0] {
				t.Fatal("it does not begin with the first of three as the primary")
			}
			ways := []sentinelWay{
				{"planned", func(*Server) Naming { return s.Failover() }},
				{"killed", func(old *Server) Naming { old.Kill(); return s.AwaitPrimaryOtherThan(old) }},
				{"stopped", func(old *Server) Naming { old.Stop(); return s.AwaitPrimaryOtherThan(old) }},
				{"isolated", func(old *Server) Naming { s.Isolate(old); return s.AwaitPrimaryOtherThan(old) }},
				{"planned again", func(*Server) Naming { return s.Failover() }},
			}
			if family != Redis70 {
				ways = ways[3:] // the rest takes as long, and is the sentinels' work
			}
			for _, way := range ways {
				old := s.Primary()
				began = time.Now()
				n := way.do(old)
				t.Logf("%s: named after %v, by all after %v", way.name, n.First.Sub(began), n.All.Sub(began))
				if n.Primary == old || n.Primary != s.Primary() || n.First.IsZero() || n.All.Before(n.First) {
					t.Errorf("%s: named %+v, the old one %s", way.name, n, old.Addr())
				}
				if way.name != "killed" && way.name != "stopped" {
					if err := old.Client().Set(ctx, "only", "there", 0).Err(); err != nil {
						t.Errorf("%s: a client of the old primary: %v", way.name, err)
					}
				}
				for _, rdb := range []redis.UniversalClient{plain, clusterType} {
					eventually(t, way.name+": a key is read of the new primary", func() bool {
						got, err := rdb.Get(ctx, "key").Result()
						return err == nil && got == "here"
					})
				}
				if _, err := n.Primary.Do("GET", "only"); !errors.Is(err, redis.Nil) {
					t.Errorf("%s: what was written at the old primary is at the new one: %v", way.name, err)
				}
				began = time.Now()
				s.Heal()
				t.Logf("%s: healed after %v", way.name, time.Since(began))
				if err := old.Client().Set(ctx, "k", "v", 0).Err(); err == nil || !strings.HasPrefix(err.Error(), "READONLY") {
					t.Errorf("%s: the old primary is not a replica: %v", way.name, err)
				}
			}
		})
	}
}

func TestPrimaryWithoutEnoughReplicasRefusesToWrite(t *testing.T) {
	s := StartSentinel(t, WithMinReplicas(1))
	old := s.Primary()
	rdb := old.Client()
	eventually(t, "the replicas are counted", func() bool { return rdb.Set(t.Context(), "k", "v", 0).Err() == nil })
	s.Isolate(old)
	if err := rdb.Set(t.Context(), "k", "v", 0).Err(); err == nil || !strings.HasPrefix(err.Error(), "NOREPLICAS") {
		t.Errorf("a primary without replicas answers %v", err)
	}
	n := s.AwaitPrimaryOtherThan(old)
	other := n.Primary.Client()
	eventually(t, "the new primary has a replica", func() bool { return other.Set(t.Context(), "k", "v", 0).Err() == nil })
	t.Logf("it takes writes %v after it was named", time.Since(n.All))
}
