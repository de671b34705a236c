package watchlock

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

const relayNext = "next:1" // the owner that a lock is relayed to

// relayCall relays the lock of k from me to relayNext, for a client that has own
// subscriptions.
func relayCall(k wire.Keys, own int, before ...wire.Owner) transport.Call {
	from, to := ownedBy(k, me, 0), ownedBy(k, relayNext, scriptLease)
	if k.Token != "" {
		return wire.RelayHash(wire.RelayFencedScript, &from, own, wire.AcquireFenced(&to, before))
	}
	return wire.RelayHash(wire.RelayScript, &from, own, wire.AcquireHash(&to, before))
}

func TestARelayHandsTheLockOnWhenOnlyItsClientHearsOfIt(t *testing.T) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		for own := range 3 {
			b.do("FLUSHALL")
			k := wire.Keys{Key: "a", Channel: "news:{a}"}
			var ear *redis.PubSub
			if own > 0 {
				ear, _ = b.ears(k.Channel)
			}
			b.hash("a", time.Minute, me)
			reply, err := b.run(b.rdb, relayCall(k, own))
			b.answers(reply, err, []any{1, 0, 1})
			b.holds("a", scriptLease, relayNext)
			if own > 0 {
				b.do("PUBLISH", k.Channel, "after")
				b.gets(ear, k.Channel+" after") // and nothing before
			}
			b.only("a")
		}
	})
}

func TestARelayReleasesAndTellsWhenAnybodyElseHearsOfIt(t *testing.T) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		k := wire.Keys{Key: "a", Channel: "news:{a}"}
		ear, sharded := b.ears(k.Channel)
		for _, c := range []struct {
			mode any
			ear  *redis.PubSub
		}{{nil, ear}, {"sharded", sharded}} {
			if c.ear == nil {
				continue
			}
			k.Tell = c.mode
			b.hash("a", time.Minute, me)
			reply, err := b.run(b.rdb, relayCall(k, 0))
			b.answers(reply, err, []any{1, 1})
			b.gets(c.ear, k.Channel+" 00")
			b.only()
			b.hash("a", time.Minute, me)
			reply, err = b.run(b.rdb, relayCall(k, 1))
			b.answers(reply, err, []any{1, 0, 1})
			b.do("FLUSHALL")
		}
	})
}

func TestARelayLooksForSubscribersWhereItWouldTellThem(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		b := scriptBench{t, s.Client(), nil, s}
		ctx := context.Background()
		for tell, ear := range map[any]*redis.PubSub{
			nil:       b.rdb.Subscribe(ctx, "classic:{a}"),
			"sharded": b.rdb.SSubscribe(ctx, "sharded:{a}"),
		} {
			if _, err := ear.Receive(ctx); err != nil {
				t.Fatal(err)
			}
			for channel, alone := range map[string]bool{"classic:{a}": tell != nil, "sharded:{a}": tell == nil} {
				b.hash("a", time.Minute, me)
				reply, err := b.run(b.rdb, relayCall(wire.Keys{Key: "a", Channel: channel, Tell: tell}, 0))
				if alone {
					b.answers(reply, err, []any{1, 0, 1})
				} else {
					b.answers(reply, err, []any{1, 1})
				}
				b.do("DEL", "a")
			}
			_ = ear.Close()
		}
	})
}

func TestARelayTouchesNothingThatIsNotItsOwners(t *testing.T) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		k := wire.Keys{Key: "a", Channel: "news:{a}"}
		reply, err := b.run(b.rdb, relayCall(k, 0))
		b.answers(reply, err, []any{0, 0})
		b.only()
		b.hash("a", time.Minute, "stranger:1")
		reply, err = b.run(b.rdb, relayCall(k, 0))
		b.answers(reply, err, []any{0, 0})
		b.holds("a", time.Minute, "stranger:1")
		// A field of somebody else beside ours: that is no lock of this client.
		b.hash("a", time.Minute, me)
		reply, err = b.run(b.rdb, relayCall(k, 0))
		b.answers(reply, err, []any{1, 0, 0, time.Minute})
		b.holds("a", time.Minute, "stranger:1")
		b.do("FLUSHALL")
		b.text("a", me, time.Minute)
		reply, err = b.run(b.rdb, relayCall(k, 0))
		b.answers(reply, err, []any{0, 0})
		b.do("FLUSHALL")
		b.hash("a", time.Minute, me, "earlier:1")
		reply, err = b.run(b.rdb, relayCall(k, 0, "earlier:1"))
		b.answers(reply, err, []any{1, 0, 1})
		b.holds("a", scriptLease, relayNext)
	})
}

func TestARelayOfAFencedLockTakesATokenAndReservesMore(t *testing.T) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		k := wire.Keys{Key: "a", Channel: "news:{a}", Token: counterOf("a")}
		first := b.fencedGrant("a", 0, 0)
		b.do("DEL", "a")
		b.hash("a", time.Minute, me)
		reply, err := b.run(b.rdb, relayCall(k, 0))
		a, g, tried, readErr := wire.ReadRelay(integers(reply))
		if err != nil || readErr != nil || !tried || !a.Mine(0) || a.Told(0) != 0 || !g.Taken || g.Token <= first.Last {
			t.Errorf("%v, %v, %v after a token of %d", reply, err, readErr, first.Last)
		}
		b.holds("a", scriptLease, relayNext)
		// A counter that is none: the lock is free, and the next try will say why.
		b.do("SET", counterOf("a"), "many")
		b.do("DEL", "a")
		b.hash("a", time.Minute, me)
		reply, err = b.run(b.rdb, relayCall(k, 0))
		b.answers(reply, err, []any{1, 0})
		b.only(counterOf("a"))
	})
}

func TestARelayNeedsNoRightsAndNoMemoryThatAReleaseDoesNot(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		b := scriptBench{t, s.Client(), nil, s}
		k := wire.Keys{Key: "a", Channel: "news:{a}"}
		b.hash("a", time.Minute, me)
		reply, err := b.run(b.user("-pubsub"), relayCall(k, 0))
		b.answers(reply, err, []any{1, 0})
		b.only()
		b.hash("a", time.Minute, me)
		s.Config("maxmemory", "1")
		reply, err = b.run(b.rdb, relayCall(k, 0))
		s.Config("maxmemory", "0")
		b.answers(reply, err, []any{1, 0, 1}) // what it takes it has freed
		b.holds("a", scriptLease, relayNext)
	})
}

// TestARelayWhoseUserMayNotAcquireReleasesAllTheSame is about what raises an error in
// the middle of the script, behind the release.
func TestARelayWhoseUserMayNotAcquireReleasesAllTheSame(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		b := scriptBench{t, s.Client(), nil, s}
		for _, k := range []wire.Keys{
			{Key: "a", Channel: "news:{a}"},
			{Key: "a", Channel: "news:{a}", Token: counterOf("a")},
		} {
			for _, rule := range []string{"-hlen", "-hset", "-pexpire"} {
				b.hash("a", time.Minute, me)
				reply, err := b.run(b.user(rule), relayCall(k, 0))
				b.answers(reply, err, []any{1, 0})
				b.do("DEL", counterOf("a"))
				b.only()
			}
		}
	})
}

func TestAnAnswerToARelayThatIsNoneIsRefused(t *testing.T) {
	for _, bad := range [][]int64{nil, {1}, {2, 0}, {1, 0, 2}, {1, 0, 1, 5}, {1, 0, 0}, {1, 0, 1, 5, 4}} {
		if _, _, _, err := wire.ReadRelay(bad); err == nil {
			t.Errorf("%v was read", bad)
		}
	}
}
