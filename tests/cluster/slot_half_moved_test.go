package cluster_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// halfMove moves some keys of a slot to another primary and leaves it at that.
func halfMove(t *testing.T, cl *redistest.Cluster, slot int, keys []string) {
	t.Helper()
	from := cl.Owner(slot)
	to := cl.Primaries()[0]
	if to == from {
		to = cl.Primaries()[1]
	}
	id := func(s *redistest.Server) string { return locktest.MustDo(t, s, "CLUSTER", "MYID").(string) }
	locktest.MustDo(t, to, "CLUSTER", "SETSLOT", slot, "IMPORTING", id(from))
	locktest.MustDo(t, from, "CLUSTER", "SETSLOT", slot, "MIGRATING", id(to))
	host, port, _ := net.SplitHostPort(to.Addr())
	args := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
	for _, k := range keys {
		args = append(args, k)
	}
	locktest.MustDo(t, from, args...)
}

func TestRenewalsOfAHalfMovedSlotAllSurvive(t *testing.T) {
	t.Parallel() // it is time that it takes
	for _, family := range []redistest.Family{redistest.Redis70, redistest.Redis86} {
		t.Run(string(family), func(t *testing.T) {
			cl := redistest.StartCluster(t, redistest.On(family))
			c := locktest.NewTestClient(t, cl.Client(), watchlock.WithWatchdogTimeout(1500*time.Millisecond))
			type held struct {
				lease *watchlock.Lease
				key   string
			}
			var all []held
			for i, kind := range []string{"mutex", "fenced", "string"} {
				tag := fmt.Sprintf("{tag-%d}", i)
				var moved []string
				for n := range 6 {
					name := fmt.Sprint(tag, n)
					all = append(all, held{locktest.MustLock(t, locktest.MutexOf(c, kind, name)), name})
					if n%2 == 0 {
						moved = append(moved, name)
					}
				}
				halfMove(t, cl, transport.KeySlot(tag), moved)
			}
			lost := map[string]bool{}
			for end := time.Now().Add(5 * time.Second); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
				for _, h := range all {
					if err := h.lease.Err(); err != nil && !lost[h.key] {
						lost[h.key] = true
						t.Errorf("%s: %v", h.key, err)
					}
				}
			}
			for _, h := range all {
				if err := h.lease.Unlock(context.Background()); err != nil && !lost[h.key] {
					t.Errorf("%s: Unlock: %v", h.key, err)
				}
			}
		})
	}
}

func TestOrphansOfAHalfMovedSlotAreAllReleased(t *testing.T) {
	t.Parallel() // it is time that it takes
	cl := redistest.StartCluster(t)
	locktest.EachKind(t, func(t *testing.T, kind string) {
		rdb := cl.Client()
		var b locktest.Breaker
		rdb.AddHook(b.Hook())
		c := locktest.NewTestClient(t, rdb, watchlock.WithUnlockTimeout(100*time.Millisecond))
		tag := "{" + kind + "}"
		var leases []*watchlock.Lease
		var keys []string
		for n := range 6 {
			keys = append(keys, fmt.Sprint(tag, n))
			leases = append(leases, locktest.MustLock(t, locktest.MutexOf(c, kind, keys[n]), watchlock.WithLeaseTime(time.Minute)))
		}
		halfMove(t, cl, transport.KeySlot(tag), keys[:3])
		b.Open(true)
		done := make(chan struct{})
		for _, l := range leases {
			go func() { _ = l.Unlock(context.Background()); done <- struct{}{} }()
		}
		for range leases {
			<-done
		}
		b.Open(false)
		left := func() (n int64) {
			for _, s := range cl.Primaries() {
				in, err := s.Do("CLUSTER", "COUNTKEYSINSLOT", transport.KeySlot(tag))
				if err != nil {
					t.Fatal(err)
				}
				n += in.(int64)
			}
			return n
		}
		counters := int64(0)
		if kind == "fenced" {
			counters = int64(len(keys))
		}
		for end := time.Now().Add(5 * time.Second); left() > counters && time.Now().Before(end); {
			<-time.After(50 * time.Millisecond)
		}
		if n := left() - counters; n > 0 {
			t.Errorf("%d of %d keys are still there", n, len(keys))
		}
	})
}
