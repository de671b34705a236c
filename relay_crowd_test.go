package watchlock

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

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
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		for _, k := range []wire.Keys{
			{Key: "a", Channel: "news:{a}"},
			{Key: "a", Channel: "news:{a}", Token: counterOf("a")},
		} {
			b.hash("a", time.Minute, me)
			reply, err := b.run(b.rdb, relayCall(k, 0, crowdOf(crowded)...))
			_, g, tried, readErr := wire.ReadRelay(integers(reply))
			if err != nil || readErr != nil || !tried || !g.Taken {
				t.Errorf("%.200v, %v, %v", reply, err, readErr)
			}
			b.holds("a", scriptLease, relayNext)
			b.do("DEL", "a")
		}
	})
}

func TestAcquireTakesOverFromTheLastOfManyEarlierOwners(t *testing.T) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		many := crowdOf(crowded)
		last := many[len(many)-1].(string)
		to := ownedBy(wire.Keys{Key: "a", Token: counterOf("a")}, me, scriptLease)
		for name, c := range map[string]transport.Call{
			"mutex": wire.AcquireHash(&to, many), "fenced": wire.AcquireFenced(&to, many), "setnx": wire.AcquireString(&to, many),
		} {
			if name == "setnx" {
				b.text("a", last, time.Minute)
			} else {
				b.hash("a", time.Minute, last)
			}
			reply, err := b.run(b.rdb, c)
			if g, readErr := wire.ReadAcquire(integers(reply)); err != nil || readErr != nil || !g.Taken {
				t.Errorf("%s: %.200v, %v, %v", name, reply, err, readErr)
			}
			b.do("DEL", "a")
		}
	})
}

// ownersNamed is how many owners of c a command names.
func ownersNamed(cmd redistest.Command, c *Client) int {
	n := 0
	for _, arg := range cmd.Args {
		if len(arg) > len(c.ID()) && arg[:len(c.ID())+1] == c.ID()+":" {
			n++
		}
	}
	return n
}

func TestAnUnlockBesideManyOrphansReleasesAndSaysSo(t *testing.T) {
	relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		c, w := relayClient(t, v)
		first := goLockNamed(c, kind)
		keys := first.lease.hold.keys
		newest := wire.Owner(nil)
		for range crowded {
			newest = c.newOwner()
			c.orphans.Add(keys.Kind, wire.Owned{Keys: keys, Owner: newest, Lease: time.Minute}, false)
		}
		second := goLockNamed(c, kind)
		time.Sleep(5 * time.Millisecond) // longer than the window, so that it relays
		w.Reset()
		if err := first.lease.Unlock(context.Background()); err != nil {
			t.Errorf("Unlock: %v", err)
		}
		synctest.Wait()
		if !virtualClosed(second.done) || second.err != nil {
			t.Fatalf("the next is not inside: %v", second.err)
		}
		relays := 0
		for _, cmd := range w.Seen() {
			if !relayRuns(cmd) {
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
		mustUnlock(t, second.lease)
	})
}

// TestAnUnlockWhoseRelayIsRefusedReleasesAllTheSame is about whoever may run what a release
// needs, and not what a relay needs beyond that; or may later.
func TestAnUnlockWhoseRelayIsRefusedReleasesAllTheSame(t *testing.T) {
	for _, text := range []string{"NOPERM User u has no permissions to access a key", "OOM command not allowed"} {
		relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
			c, w := relayClient(t, v)
			first, second := goLockNamed(c, kind), goLockNamed(c, kind)
			time.Sleep(5 * time.Millisecond) // longer than the window, so that it relays
			rule := w.On(relayRuns, redistest.Refuse(text))
			start := time.Now()
			if err := first.lease.Unlock(context.Background()); err != nil || time.Since(start) > 0 {
				t.Errorf("%s: Unlock: %v, after %v", text, err, time.Since(start))
			}
			second.wait(t)
			if second.err != nil || time.Since(start) > 0 || rule.Hits() != 1 {
				t.Errorf("%s: the next: %v, after %v; %d relays", text, second.err, time.Since(start), rule.Hits())
			}
			mustUnlock(t, second.lease)
		})
	}
}
