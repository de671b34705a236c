package handoff_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// crowdOf is the owners of n attempts whose outcome nobody knows: two a second for an hour
// make as many.
func crowdOf(n int) []wire.Owner {
	owners := make([]wire.Owner, n)
	for i := range owners {
		owners[i] = fmt.Sprint("earlier:", i)
	}
	return owners
}

const crowded = 8000 // more than Lua unpacks

func TestARelayBesideManyEarlierOwnersFreesAndTakes(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		for _, k := range []wire.Keys{
			{Key: "a", Channel: "news:{a}"},
			{Key: "a", Channel: "news:{a}", Token: locktest.CounterOf("a")},
		} {
			b.Hash("a", time.Minute, locktest.Me)
			reply, err := b.Run(b.Rdb, locktest.RelayCall(k, 0, crowdOf(crowded)...))
			_, g, tried, readErr := wire.ReadRelay(locktest.Integers(reply))
			if err != nil || readErr != nil || !tried || !g.Taken {
				t.Errorf("%.200v, %v, %v", reply, err, readErr)
			}
			b.Holds("a", locktest.ScriptLease, locktest.RelayNext)
			b.Do("DEL", "a")
		}
	})
}

func TestAcquireTakesOverFromTheLastOfManyEarlierOwners(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		many := crowdOf(crowded)
		last := many[len(many)-1].(string)
		to := locktest.OwnedBy(wire.Keys{Key: "a", Token: locktest.CounterOf("a")}, locktest.Me, locktest.ScriptLease)
		for name, c := range map[string]transport.Call{
			"mutex": wire.AcquireHash(&to, many), "fenced": wire.AcquireFenced(&to, many), "setnx": wire.AcquireString(&to, many),
		} {
			if name == "setnx" {
				b.Text("a", last, time.Minute)
			} else {
				b.Hash("a", time.Minute, last)
			}
			reply, err := b.Run(b.Rdb, c)
			if g, readErr := wire.ReadAcquire(locktest.Integers(reply)); err != nil || readErr != nil || !g.Taken {
				t.Errorf("%s: %.200v, %v, %v", name, reply, err, readErr)
			}
			b.Do("DEL", "a")
		}
	})
}

// ownersNamed is how many owners of c a command names.
func ownersNamed(cmd redistest.Command, c *watchlock.Client) int {
	n := 0
	for _, arg := range cmd.Args {
		if len(arg) > len(c.ID()) && arg[:len(c.ID())+1] == c.ID()+":" {
			n++
		}
	}
	return n
}

func TestAnUnlockBesideManyOrphansReleasesAndSaysSo(t *testing.T) {
	locktest.RelayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		c, w := locktest.RelayClient(t, v)
		first := locktest.GoLockNamed(c, kind)
		keys := locktest.KeysOf(locktest.MutexOf(c, kind, "k"))
		newest := wire.Owner(nil)
		for i := range crowded {
			newest = fmt.Sprint(c.ID(), ":", i)
			locktest.OrphansOf(c).Add(keys.Kind, wire.Owned{Keys: keys, Owner: newest, Lease: time.Minute}, false)
		}
		second := locktest.GoLockNamed(c, kind)
		time.Sleep(5 * time.Millisecond) // longer than the window, so that it relays
		w.Reset()
		if err := first.Lease.Unlock(context.Background()); err != nil {
			t.Errorf("Unlock: %v", err)
		}
		synctest.Wait()
		if !locktest.VirtualClosed(second.Done) || second.Err != nil {
			t.Fatalf("the next is not inside: %v", second.Err)
		}
		relays := 0
		for _, cmd := range w.Seen() {
			if !locktest.RelayRuns(cmd) {
				continue
			}
			relays++
			named := false
			for _, arg := range cmd.Args {
				named = named || arg == newest
			}
			if n := ownersNamed(cmd, c); n > 1000+2 || !named {
				t.Errorf("a relay names %d owners, the newest: %v", n, named)
			}
		}
		if relays != 1 {
			t.Errorf("%d relays", relays)
		}
		locktest.MustUnlock(t, second.Lease)
	})
}

// TestAnUnlockWhoseRelayIsRefusedReleasesAllTheSame is about whoever may run what a release
// needs, and not what a relay needs beyond that; or may later.
func TestAnUnlockWhoseRelayIsRefusedReleasesAllTheSame(t *testing.T) {
	for _, text := range []string{"NOPERM User u has no permissions to access a key", "OOM command not allowed"} {
		locktest.RelayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
			c, w := locktest.RelayClient(t, v)
			first, second := locktest.GoLockNamed(c, kind), locktest.GoLockNamed(c, kind)
			time.Sleep(5 * time.Millisecond) // longer than the window, so that it relays
			rule := w.On(locktest.RelayRuns, redistest.Refuse(text))
			start := time.Now()
			if err := first.Lease.Unlock(context.Background()); err != nil || time.Since(start) > 0 {
				t.Errorf("%s: Unlock: %v, after %v", text, err, time.Since(start))
			}
			second.Wait(t)
			if second.Err != nil || time.Since(start) > 0 || rule.Hits() != 1 {
				t.Errorf("%s: the next: %v, after %v; %d relays", text, second.Err, time.Since(start), rule.Hits())
			}
			locktest.MustUnlock(t, second.Lease)
		})
	}
}
