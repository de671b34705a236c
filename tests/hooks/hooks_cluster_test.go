package hooks_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// oneNodeCluster is startCluster of a family.
func oneNodeCluster(t *testing.T, family redistest.Family) (*redistest.Server, *redis.ClusterClient) {
	t.Helper()
	s := redistest.Start(t, redistest.On(family), redistest.WithTCP(), redistest.WithArgs("--cluster-enabled", "yes"))
	locktest.MustDo(t, s, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	locktest.Eventually(t, 5*time.Second, "the cluster is up", func() bool {
		_, err := s.Do("SET", "up", "1")
		return err == nil
	})
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.Addr()}, DisableIdentity: true})
	t.Cleanup(func() { _ = rdb.Close() })
	return s, rdb
}

// eachKindOnNodes runs f for each kind, on a cluster of one node whose server compares
// strings itself and on one that needs scripts.
func eachKindOnNodes(t *testing.T, f func(t *testing.T, s *redistest.Server, rdb *redis.ClusterClient, kind string)) {
	for _, family := range []redistest.Family{redistest.Redis70, redistest.Redis86} {
		t.Run(string(family), func(t *testing.T) {
			locktest.EachKind(t, func(t *testing.T, kind string) {
				s, rdb := oneNodeCluster(t, family)
				f(t, s, rdb, kind)
			})
		})
	}
}

func TestAHookOfAClustersClientSeesEachCommandOfALock(t *testing.T) {
	t.Parallel() // it is time that it takes
	eachKindOnNodes(t, func(t *testing.T, s *redistest.Server, rdb *redis.ClusterClient, kind string) {
		var seen sightings
		rdb.AddHook(seen.hook())
		c := locktest.NewTestClient(t, rdb, watchlock.WithWatchdogTimeout(300*time.Millisecond))
		m := locktest.MutexOf(c, kind, "k")
		l := locktest.MustLock(t, m)
		<-time.After(250 * time.Millisecond)
		if _, err := m.Info(context.Background()); err != nil {
			t.Error(err)
		}
		locktest.MustUnlock(t, l) // the server has all scripts
		locktest.MustDo(t, s, "CONFIG", "RESETSTAT")
		seen.forget()

		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				l := locktest.MustLock(t, locktest.MutexOf(c, kind, fmt.Sprint("k", i)))
				<-time.After(500 * time.Millisecond)
				locktest.MustUnlock(t, l)
			})
		}
		all.Wait()
		if _, err := m.Info(context.Background()); err != nil {
			t.Error(err)
		}
		calls := s.CommandCalls()
		came, saw := calls["evalsha"]+calls["eval"]+calls["delex"], 0
		renewals := 0
		seen.mu.Lock()
		for text, n := range seen.seen {
			words := strings.Fields(text)
			cmd := redistest.Command{Name: words[0], Args: words[1:]}
			if slices.Contains([]string{"EVAL", "EVALSHA", "DELEX"}, cmd.Name) {
				saw += n
			}
			if redistest.Runs(wire.RenewSource)(cmd) || redistest.Runs(wire.RenewStringSource)(cmd) {
				renewals += n
			}
		}
		seen.mu.Unlock()
		if saw < came || renewals == 0 {
			t.Errorf("%d scripts and DELEX came, the hook saw %d, %d of them renewals", came, saw, renewals)
		}
	})
}

func TestALockUnderAPrefixOfAHookIsRenewedOnACluster(t *testing.T) {
	t.Parallel() // it is time that it takes
	eachKindOnNodes(t, func(t *testing.T, s *redistest.Server, rdb *redis.ClusterClient, kind string) {
		rdb.AddHook(prefix("app:"))
		c := locktest.NewTestClient(t, rdb, watchlock.WithWatchdogTimeout(600*time.Millisecond))
		// Of the last two the slots are the same, and not under the prefix.
		names := append([]string{"{t}1", "{t}2", "a", "b"}, sameSlot()...)
		if kind == "fenced" {
			names = names[:2] // without a hash tag the prefix parts a lock from its counter
		}
		var leases []*watchlock.Lease
		for _, name := range names {
			l, err := locktest.MutexOf(c, kind, name).TryLock(context.Background(), 2*time.Second)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			leases = append(leases, l)
		}
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
			for i, l := range leases {
				if err := l.Err(); err != nil {
					t.Fatalf("%s: %v", names[i], err)
				}
			}
		}
		for i, l := range leases {
			if there := locktest.MustDo(t, s, "EXISTS", "app:"+names[i]); there != int64(1) {
				t.Errorf("app:%s is not there", names[i])
			}
			locktest.MustUnlock(t, l)
			if there := locktest.MustDo(t, s, "EXISTS", "app:"+names[i]); there != int64(0) {
				t.Errorf("app:%s is left", names[i])
			}
		}
	})
}

// sameSlot are two names of one slot that have different ones behind a prefix.
func sameSlot() []string {
	first := map[int]string{}
	for i := 0; ; i++ {
		name := fmt.Sprint("n", i)
		if other, ok := first[transport.KeySlot(name)]; ok && transport.KeySlot("app:"+name) != transport.KeySlot("app:"+other) {
			return []string{other, name}
		}
		first[transport.KeySlot(name)] = name
	}
}

func TestAnErrorOfAHookOfAClustersClientIsNoGrant(t *testing.T) {
	t.Parallel() // it is time that it takes
	eachKindOnNodes(t, func(t *testing.T, s *redistest.Server, rdb *redis.ClusterClient, kind string) {
		var b locktest.Breaker
		rdb.AddHook(locktest.Hook{One: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			<-time.After(20 * time.Millisecond) // so that others gather behind it
			return next(ctx, cmd)
		}})
		rdb.AddHook(b.Hook())
		c := locktest.NewTestClient(t, rdb)
		locktest.MustUnlock(t, locktest.MustLock(t, locktest.MutexOf(c, kind, "{s}warm")))
		for i := range 4 {
			if kind == "string" {
				locktest.MustDo(t, s, "SET", fmt.Sprint("{s}", i), "stranger:1", "PX", "3600000")
			} else {
				locktest.MustDo(t, s, "HSET", fmt.Sprint("{s}", i), "stranger:1", "1")
			}
		}
		b.Open(true)
		defer b.Open(false)
		var all sync.WaitGroup
		for i := range 8 { // four of them are free
			all.Go(func() {
				start := time.Now()
				l, err := locktest.MutexOf(c, kind, fmt.Sprint("{s}", i)).TryLock(context.Background(), 0)
				if err == nil {
					t.Errorf("{s}%d: TryLock returned a lease; Err: %v", i, l.Err())
				} else if !errors.Is(err, locktest.ErrOpen) || !watchlock.IsUnavailable(err) || time.Since(start) > 500*time.Millisecond {
					t.Errorf("{s}%d: %v after %v", i, err, time.Since(start))
				}
			})
		}
		all.Wait()
	})
}

func TestAnErrorOfAHookOfAClustersClientIsNoLossAndNoRelease(t *testing.T) {
	t.Parallel() // it is time that it takes
	eachKindOnNodes(t, func(t *testing.T, s *redistest.Server, rdb *redis.ClusterClient, kind string) {
		var b locktest.Breaker
		rdb.AddHook(b.Hook())
		c := locktest.NewTestClient(t, rdb, watchlock.WithWatchdogTimeout(3*time.Second))
		m := locktest.MutexOf(c, kind, "k")
		locktest.MustUnlock(t, locktest.MustLock(t, m)) // learns what the server can
		l := locktest.MustLock(t, m)
		b.Open(true)
		<-time.After(1500 * time.Millisecond)
		if err := l.Err(); err != nil {
			t.Errorf("with trust left: %v", err)
		}
		b.Open(false)
		<-time.After(1500 * time.Millisecond)
		if err := l.Err(); err != nil {
			t.Errorf("renewed again: %v", err)
		}
		b.Open(true)
		if err := l.Unlock(context.Background()); err == nil || errors.Is(err, watchlock.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		b.Open(false)
		for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
			if locktest.MustDo(t, s, "EXISTS", "k") == int64(0) {
				return
			}
		}
		t.Error("nothing releases it")
	})
}
