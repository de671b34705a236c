package wire_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

func TestARelayHandsTheLockOnWhenOnlyItsClientHearsOfIt(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		for own := range 3 {
			b.Do("FLUSHALL")
			k := wire.Keys{Key: "a", Channel: "news:{a}"}
			var ear *redis.PubSub
			if own > 0 {
				ear, _ = b.Ears(k.Channel)
			}
			b.Hash("a", time.Minute, locktest.Me)
			reply, err := b.Run(b.Rdb, locktest.RelayCall(k, own))
			b.Answers(reply, err, []any{1, 0, 1})
			b.Holds("a", locktest.ScriptLease, locktest.RelayNext)
			if own > 0 {
				b.Do("PUBLISH", k.Channel, "after")
				b.Gets(ear, k.Channel+" after") // and nothing before
			}
			b.Only("a")
		}
	})
}

func TestARelayReleasesAndTellsWhenAnybodyElseHearsOfIt(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		k := wire.Keys{Key: "a", Channel: "news:{a}"}
		ear, sharded := b.Ears(k.Channel)
		for _, c := range []struct {
			mode any
			ear  *redis.PubSub
		}{{nil, ear}, {"sharded", sharded}} {
			if c.ear == nil {
				continue
			}
			k.Tell = c.mode
			b.Hash("a", time.Minute, locktest.Me)
			reply, err := b.Run(b.Rdb, locktest.RelayCall(k, 0))
			b.Answers(reply, err, []any{1, 1})
			b.Gets(c.ear, k.Channel+" 00")
			b.Only()
			b.Hash("a", time.Minute, locktest.Me)
			reply, err = b.Run(b.Rdb, locktest.RelayCall(k, 1))
			b.Answers(reply, err, []any{1, 0, 1})
			b.Do("FLUSHALL")
		}
	})
}

func TestARelayLooksForSubscribersWhereItWouldTellThem(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		b := locktest.ScriptBench{TB: t, Rdb: s.Client(), Real: s}
		ctx := context.Background()
		for tell, ear := range map[any]*redis.PubSub{
			nil:       b.Rdb.Subscribe(ctx, "classic:{a}"),
			"sharded": b.Rdb.SSubscribe(ctx, "sharded:{a}"),
		} {
			if _, err := ear.Receive(ctx); err != nil {
				t.Fatal(err)
			}
			for channel, alone := range map[string]bool{"classic:{a}": tell != nil, "sharded:{a}": tell == nil} {
				b.Hash("a", time.Minute, locktest.Me)
				reply, err := b.Run(b.Rdb, locktest.RelayCall(wire.Keys{Key: "a", Channel: channel, Tell: tell}, 0))
				if alone {
					b.Answers(reply, err, []any{1, 0, 1})
				} else {
					b.Answers(reply, err, []any{1, 1})
				}
				b.Do("DEL", "a")
			}
			_ = ear.Close()
		}
	})
}

func TestARelayTouchesNothingThatIsNotItsOwners(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		k := wire.Keys{Key: "a", Channel: "news:{a}"}
		reply, err := b.Run(b.Rdb, locktest.RelayCall(k, 0))
		b.Answers(reply, err, []any{0, 0})
		b.Only()
		b.Hash("a", time.Minute, "stranger:1")
		reply, err = b.Run(b.Rdb, locktest.RelayCall(k, 0))
		b.Answers(reply, err, []any{0, 0})
		b.Holds("a", time.Minute, "stranger:1")
		// A field of somebody else beside ours: that is no lock of this client.
		b.Hash("a", time.Minute, locktest.Me)
		reply, err = b.Run(b.Rdb, locktest.RelayCall(k, 0))
		b.Answers(reply, err, []any{1, 0, 0, time.Minute})
		b.Holds("a", time.Minute, "stranger:1")
		b.Do("FLUSHALL")
		b.Text("a", locktest.Me, time.Minute)
		reply, err = b.Run(b.Rdb, locktest.RelayCall(k, 0))
		b.Answers(reply, err, []any{0, 0})
		b.Do("FLUSHALL")
		b.Hash("a", time.Minute, locktest.Me, "earlier:1")
		reply, err = b.Run(b.Rdb, locktest.RelayCall(k, 0, "earlier:1"))
		b.Answers(reply, err, []any{1, 0, 1})
		b.Holds("a", locktest.ScriptLease, locktest.RelayNext)
	})
}

func TestARelayOfAFencedLockTakesATokenAndReservesMore(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		k := wire.Keys{Key: "a", Channel: "news:{a}", Token: locktest.CounterOf("a")}
		first := b.FencedGrant("a", 0, 0)
		b.Do("DEL", "a")
		b.Hash("a", time.Minute, locktest.Me)
		reply, err := b.Run(b.Rdb, locktest.RelayCall(k, 0))
		a, g, tried, readErr := wire.ReadRelay(locktest.Integers(reply))
		if err != nil || readErr != nil || !tried || !a.Mine(0) || a.Told(0) != 0 || !g.Taken || g.Token <= first.Last {
			t.Errorf("%v, %v, %v after a token of %d", reply, err, readErr, first.Last)
		}
		b.Holds("a", locktest.ScriptLease, locktest.RelayNext)
		// A counter that is none: the lock is free, and the next try will say why.
		b.Do("SET", locktest.CounterOf("a"), "many")
		b.Do("DEL", "a")
		b.Hash("a", time.Minute, locktest.Me)
		reply, err = b.Run(b.Rdb, locktest.RelayCall(k, 0))
		b.Answers(reply, err, []any{1, 0})
		b.Only(locktest.CounterOf("a"))
	})
}

func TestARelayNeedsNoRightsAndNoMemoryThatAReleaseDoesNot(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		b := locktest.ScriptBench{TB: t, Rdb: s.Client(), Real: s}
		k := wire.Keys{Key: "a", Channel: "news:{a}"}
		b.Hash("a", time.Minute, locktest.Me)
		reply, err := b.Run(b.User("-pubsub"), locktest.RelayCall(k, 0))
		b.Answers(reply, err, []any{1, 0})
		b.Only()
		b.Hash("a", time.Minute, locktest.Me)
		s.Config("maxmemory", "1")
		reply, err = b.Run(b.Rdb, locktest.RelayCall(k, 0))
		s.Config("maxmemory", "0")
		b.Answers(reply, err, []any{1, 0, 1}) // what it takes it has freed
		b.Holds("a", locktest.ScriptLease, locktest.RelayNext)
	})
}

// TestARelayWhoseUserMayNotAcquireReleasesAllTheSame is about what raises an error in
// the middle of the script, behind the release.
func TestARelayWhoseUserMayNotAcquireReleasesAllTheSame(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		b := locktest.ScriptBench{TB: t, Rdb: s.Client(), Real: s}
		for _, k := range []wire.Keys{
			{Key: "a", Channel: "news:{a}"},
			{Key: "a", Channel: "news:{a}", Token: locktest.CounterOf("a")},
		} {
			for _, rule := range []string{"-hlen", "-hset", "-pexpire"} {
				b.Hash("a", time.Minute, locktest.Me)
				reply, err := b.Run(b.User(rule), locktest.RelayCall(k, 0))
				b.Answers(reply, err, []any{1, 0})
				b.Do("DEL", locktest.CounterOf("a"))
				b.Only()
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
