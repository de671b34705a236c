package watchlock

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

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
	id := func(s *redistest.Server) string { return mustDo(t, s, "CLUSTER", "MYID").(string) }
	mustDo(t, to, "CLUSTER", "SETSLOT", slot, "IMPORTING", id(from))
	mustDo(t, from, "CLUSTER", "SETSLOT", slot, "MIGRATING", id(to))
	host, port, _ := net.SplitHostPort(to.Addr())
	args := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
	for _, k := range keys {
		args = append(args, k)
	}
	mustDo(t, from, args...)
}

func TestRenewalsOfAHalfMovedSlotAllSurvive(t *testing.T) {
	t.Parallel() // it is time that it takes
	for _, family := range []redistest.Family{redistest.Redis70, redistest.Redis86} {
		t.Run(string(family), func(t *testing.T) {
			cl := redistest.StartCluster(t, redistest.On(family))
			c := newTestClient(t, cl.Client(), WithWatchdogTimeout(1500*time.Millisecond))
			type held struct {
				lease *Lease
				key   string
			}
			var all []held
			for i, kind := range []string{"mutex", "fenced", "string"} {
				tag := fmt.Sprintf("{tag-%d}", i)
				var moved []string
				for n := range 6 {
					name := fmt.Sprint(tag, n)
					all = append(all, held{mustLock(t, mutexOf(c, kind, name)), name})
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
	eachKind(t, func(t *testing.T, kind string) {
		rdb := cl.Client()
		var b breaker
		rdb.AddHook(b.hook())
		c := newTestClient(t, rdb, WithUnlockTimeout(100*time.Millisecond))
		tag := "{" + kind + "}"
		var leases []*Lease
		var keys []string
		for n := range 6 {
			keys = append(keys, fmt.Sprint(tag, n))
			leases = append(leases, mustLock(t, mutexOf(c, kind, keys[n]), WithLeaseTime(time.Minute)))
		}
		halfMove(t, cl, transport.KeySlot(tag), keys[:3])
		b.open(true)
		done := make(chan struct{})
		for _, l := range leases {
			go func() { _ = l.Unlock(context.Background()); done <- struct{}{} }()
		}
		for range leases {
			<-done
		}
		b.open(false)
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
