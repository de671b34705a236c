package cluster_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestAutoChannelsAreClassicWhereTheTypeIsAClustersAndTheServersAreNone(t *testing.T) {
	slots := func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: "127.0.0.1:1"}}}}, nil
	}
	for name, rdb := range map[string]redis.UniversalClient{
		"sentinel": redis.NewFailoverClusterClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}}),
		"slots":    redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: slots}),
	} {
		t.Run(name, func(t *testing.T) {
			defer rdb.Close()
			c, err := watchlock.New(rdb)
			if err != nil {
				// A refusal is an answer too, if it says why.
				if !strings.Contains(err.Error(), "watchlock: ") {
					t.Error(err)
				}
				return
			}
			defer c.Close()
			if locktest.ChannelsOf(c) != watchlock.ChannelsClassic {
				t.Errorf("channels are %v", locktest.ChannelsOf(c))
			}
		})
	}
}

// Slots that the caller lists, of one plain server: what others hear of a release is
// classic, and locks work.
func TestAClusterClientWithSlotsOfItsOwnIsHeardOnClassicChannels(t *testing.T) {
	t.Parallel() // it is time that it takes
	s := redistest.Start(t, redistest.WithTCP())
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: s.Addr()}}}}, nil
		},
		DisableIdentity: true,
	})
	defer rdb.Close()
	c := locktest.NewTestClient(t, rdb)
	plain := locktest.NewTestClient(t, s.Client())
	for _, kind := range []string{"mutex", "fenced", "string"} {
		for direction, pair := range map[string][2]*watchlock.Client{"hears": {plain, c}, "is heard": {c, plain}} {
			m := locktest.MutexOf(pair[0], kind, kind)
			held, err := m.TryLock(context.Background(), 2*time.Second)
			if err != nil {
				t.Errorf("%s, %s: %v", kind, direction, err)
				continue
			}
			entered := locktest.LockSoon(locktest.MutexOf(pair[1], kind, kind))
			channel := locktest.KeysOf(locktest.MutexOf(c, kind, kind)).Channel
			locktest.Eventually(t, 3*time.Second, kind+": the waiter listens on the classic channel", func() bool {
				reply := locktest.MustDo(t, s, "PUBSUB", "NUMSUB", channel)
				switch r := reply.(type) {
				case []any:
					return len(r) == 2 && r[1] != int64(0)
				case map[any]any:
					return r[channel] != int64(0)
				}
				return false
			})
			<-time.After(600 * time.Millisecond)
			locktest.MustUnlock(t, held)
			released := time.Now()
			got := <-entered
			if got.Err != nil {
				t.Fatal(got.Err)
			}
			locktest.MustUnlock(t, got.Lease)
			if took := got.At.Sub(released); took > locktest.WakesBy {
				t.Errorf("%s, %s: the waiter entered after %v", kind, direction, took)
			}
		}
	}
}

// A client that only ever talks to a replica can take nothing. It says so.
func TestAClientOfAReplicaDoesNotWaitForEver(t *testing.T) {
	t.Parallel() // it is time that it takes
	primary := redistest.Start(t, redistest.WithTCP())
	host, port, _ := strings.Cut(primary.Addr(), ":")
	replica := redistest.Start(t, redistest.WithTCP(), redistest.WithArgs("--replicaof", host+" "+port))
	log, lines := locktest.Observed()
	c := locktest.NewTestClient(t, replica.Client(), log)
	for _, kind := range []string{"mutex", "fenced", "string"} {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		_, err := locktest.MutexOf(c, kind, kind).Lock(ctx)
		cancel()
		if err == nil || !watchlock.IsUnavailable(err) && !strings.Contains(err.Error(), "READONLY") {
			t.Errorf("%s: %v", kind, err)
		}
		if err != nil && !strings.Contains(err.Error(), "READONLY") {
			t.Errorf("%s: the reason is missing: %v", kind, err)
		}
	}
	if lines.Len() == 0 {
		t.Error("it waited for 3 s for a server that cannot grant, three times, without a word")
	}
}

// Sentinel's client of replicas only.
func TestAFailoverClientOfReplicasOnlyIsRefusedOrSaysWhy(t *testing.T) {
	t.Parallel() // it is time that it takes
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}, ReplicaOnly: true, DisableIdentity: true,
	})
	defer rdb.Close()
	log, lines := locktest.Observed()
	c, err := watchlock.New(rdb, log)
	if err != nil {
		return
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	start := time.Now()
	if _, err := c.NewMutex("k").Lock(ctx); err == nil || time.Since(start) > 1500*time.Millisecond && lines.Len() == 0 {
		t.Errorf("waited for %v without a word: %v", time.Since(start), err)
	}
}
