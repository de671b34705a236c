package hooks_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// hookedClient is a client of a server that knows all scripts, behind a wire, whose
// hooks were there before it.
func hookedClient(t testing.TB, v *redistest.Virtual, hooks ...redis.Hook) (*watchlock.Client, *redistest.Wire) {
	t.Helper()
	w := redistest.NewWire()
	rdb := v.Client(w.Options())
	for _, h := range hooks {
		rdb.AddHook(h)
	}
	return locktest.NewTestClient(t, rdb), w
}

// wantAllSeen fails unless each hook saw each lock command that came, as often as it came.
func wantAllSeen(t testing.TB, came []redistest.Command, hooks ...*sightings) {
	t.Helper()
	for i, s := range hooks {
		missed, twice := s.differs(came)
		if len(missed) > 0 || len(twice) > 0 {
			t.Errorf("hook %d of %d missed %d commands, say %.100q, and saw %d that did not come, say %.100q",
				i+1, len(hooks), len(missed), slices.Concat(missed, []string{""})[0], len(twice), slices.Concat(twice, []string{""})[0])
		}
	}
}

func TestEveryHookSeesEachCommandOfALock(t *testing.T) {
	locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		var first, second sightings
		c, _ := hookedClient(t, v, first.hook(), second.hook())
		ctx := context.Background()
		m := locktest.MutexOf(c, kind, "k")
		l := locktest.MustLock(t, m)
		if _, err := m.TryLock(ctx, 0); err == nil {
			t.Error("granted twice")
		}
		time.Sleep(25 * time.Second) // two renewals
		if _, err := m.Info(ctx); err != nil {
			t.Errorf("Info: %v", err)
		}
		locktest.MustUnlock(t, l)
		timed := locktest.MustLock(t, m, watchlock.WithLeaseTime(5*time.Second))
		if err := timed.Extend(ctx, 9*time.Second); err != nil {
			t.Errorf("Extend: %v", err)
		}
		if err := m.ForceUnlock(ctx); err != nil {
			t.Errorf("ForceUnlock: %v", err)
		}
		locktest.StrangersKey(v, kind, "theirs")
		if _, err := locktest.MutexOf(c, kind, "theirs").TryLock(ctx, 2*time.Second); err == nil {
			t.Error("took a stranger's lock")
		}
		if alone, _ := first.counts(); alone < 8 {
			t.Errorf("%d commands came to the hook alone", alone)
		}
		wantAllSeen(t, v.Commands(), &first, &second)
	})
}

func TestAHookSeesRelays(t *testing.T) {
	for _, kind := range []string{"mutex", "fenced"} {
		t.Run(kind, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				locktest.LoadAllScripts(t, v)
				var s sightings
				rdb := v.Client()
				rdb.AddHook(s.hook())
				c := locktest.NewTestClient(t, rdb, watchlock.WithLocalHandoff(2*time.Millisecond))
				var all sync.WaitGroup
				for _, section := range []time.Duration{5 * time.Millisecond, 30 * time.Millisecond} {
					for range 4 {
						all.Go(func() {
							for range 10 {
								l := locktest.MustLock(t, locktest.MutexOf(c, kind, "k"))
								time.Sleep(section)
								locktest.MustUnlock(t, l)
							}
						})
					}
					all.Wait()
				}
				relays := v.CountIf(redistest.Runs(wire.RelayScript.Source)) + v.CountIf(redistest.Runs(wire.RelayFencedScript.Source))
				if relays == 0 {
					t.Error("there is no relay to see")
				}
				wantAllSeen(t, v.Commands(), &s)
			})
		})
	}
}

func TestAHookSeesTheReleasesOfOrphans(t *testing.T) {
	locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		var s sightings
		c, w := hookedClient(t, v, s.hook())
		m := locktest.MutexOf(c, kind, "k")
		locktest.MustUnlock(t, locktest.MustLock(t, m)) // the string form learns what the server knows
		w.On(func(cmd redistest.Command) bool { return locktest.IsLockCommand(cmd.Name) }, redistest.Swallow)
		if _, err := m.TryLock(context.Background(), 0); !watchlock.IsUnavailable(err) {
			t.Errorf("an attempt without an answer: %v", err)
		}
		synctest.Wait()
		v.Reset()
		s.forget()
		time.Sleep(5500 * time.Millisecond) // between two releases
		synctest.Wait()
		if n := v.CountIf(redistest.Match(redistest.Any).Mentions("k")); n < 4 || v.Mini().Exists("k") {
			t.Errorf("%d commands in 5.5 s; the key is there: %v", n, v.Mini().Exists("k"))
		}
		wantAllSeen(t, v.Commands(), &s)
	})
}

func TestAHookSeesWhatLeavesTogether(t *testing.T) {
	locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		var s sightings
		c, w := hookedClient(t, v, s.hook())
		locktest.MustUnlock(t, locktest.MustLock(t, locktest.MutexOf(c, kind, "warm")))
		w.On(redistest.Any, redistest.DelayReply(time.Millisecond)).Times(0)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				l, err := locktest.MutexOf(c, kind, fmt.Sprint("k", i)).Lock(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(11 * time.Second) // renewed once, in batches
				locktest.MustUnlock(t, l)
			})
		}
		all.Wait()
		if _, pipelines := s.counts(); pipelines == 0 {
			t.Error("no pipeline came to the hook")
		}
		wantAllSeen(t, v.Commands(), &s)
	})
}

func TestAScriptThatTheServerDoesNotKnowIsSeenByHooksToo(t *testing.T) {
	locktest.EachKind(t, func(t *testing.T, kind string) {
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			var s sightings
			c, _ := hookedClient(t, v, s.hook())
			l := locktest.MustLock(t, locktest.MutexOf(c, kind, "k"))
			time.Sleep(11 * time.Second)
			locktest.MustUnlock(t, l)
			if alone, _ := s.counts(); alone < 3 {
				t.Errorf("the hook saw %d commands of an acquire, a renewal and a release", alone)
			}
		})
	})
}

func TestALockUnderAPrefixOfAHookIsRenewedAndReleasedThere(t *testing.T) {
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprintf("scripts known %v", known), func(t *testing.T) {
			locktest.EachKind(t, func(t *testing.T, kind string) {
				locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
					if known {
						locktest.LoadAllScripts(t, v)
					}
					locksUnderPrefix(t, v, kind)
				})
			})
		})
	}
}

func locksUnderPrefix(t *testing.T, v *redistest.Virtual, kind string) {
	t.Helper()
	c, _ := hookedClient(t, v, prefix("app:"))
	ctx := context.Background()
	names := []string{"a", "b", "c"}
	var leases []*watchlock.Lease
	for _, name := range names {
		leases = append(leases, locktest.MustLock(t, locktest.MutexOf(c, kind, name)))
	}
	time.Sleep(65 * time.Second)
	synctest.Wait()
	for i, l := range leases {
		key := "app:" + names[i]
		if err := l.Err(); err != nil || v.Mini().TTL(key) < 19*time.Second || v.Mini().Exists(names[i]) {
			t.Errorf("%s: %v; TTL %v; the key without the prefix is there: %v", key, err, v.Mini().TTL(key), v.Mini().Exists(names[i]))
		}
		if info, err := locktest.MutexOf(c, kind, names[i]).Info(ctx); err != nil || !info.Mine {
			t.Errorf("Info: %+v, %v", info, err)
		}
		if err := l.Unlock(ctx); err != nil {
			t.Errorf("Unlock: %v", err)
		}
	}
	for _, key := range v.Mini().Keys() {
		if len(locktest.WithoutCounters([]string{strings.TrimPrefix(key, "app:")})) > 0 {
			t.Errorf("%s is left", key)
		}
	}
}

func TestTheCallersOwnCommandsRunAsBefore(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		locktest.LoadAllScripts(t, v)
		rdb := v.Client()
		var before, after sightings
		rdb.AddHook(before.hook())
		c := locktest.NewTestClient(t, rdb)
		rdb.AddHook(after.hook())
		ctx := context.Background()
		l := locktest.MustLock(t, c.NewMutex("k"))
		own := func() {
			t.Helper()
			if err := rdb.Set(ctx, "own", "1", 0).Err(); err != nil {
				t.Error(err)
			}
			pipe := rdb.Pipeline()
			got, missing := pipe.Get(ctx, "own"), pipe.Get(ctx, "nothing")
			if _, err := pipe.Exec(ctx); err != redis.Nil || got.Val() != "1" || missing.Err() != redis.Nil { //nolint:errorlint // it is that very value
				t.Errorf("a pipeline: %v, %q, %v", err, got.Val(), missing.Err())
			}
			if _, err := rdb.TxPipelined(ctx, func(p redis.Pipeliner) error { p.Incr(ctx, "own"); return nil }); err != nil {
				t.Errorf("a transaction: %v", err)
			}
			if err := rdb.Eval(ctx, "return redis.call('incr', KEYS[1])", []string{"own"}).Err(); err != nil {
				t.Errorf("a script: %v", err)
			}
			err := rdb.Watch(ctx, func(tx *redis.Tx) error { return tx.Get(ctx, "own").Err() }, "own")
			if err != nil {
				t.Errorf("a watch: %v", err)
			}
		}
		own()
		locktest.MustUnlock(t, l)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		own()
		if n := after.seen["SET own 1"]; n != 2 {
			t.Errorf("a hook added later saw %d of 2 commands", n)
		}
		if n := before.seen["SET own 1"]; n != 2 {
			t.Errorf("a hook added before saw %d of 2 commands", n)
		}
	})
}

func TestTwoClientsOfOneRedisClientDoNotMix(t *testing.T) {
	locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		rdb := v.Client()
		var s sightings
		rdb.AddHook(s.hook())
		one, two := locktest.NewTestClient(t, rdb), locktest.NewTestClient(t, rdb)
		a, b := locktest.MustLock(t, locktest.MutexOf(one, kind, "a")), locktest.MustLock(t, locktest.MutexOf(two, kind, "b"))
		if _, err := locktest.MutexOf(two, kind, "a").TryLock(context.Background(), 0); err == nil {
			t.Error("two holders")
		}
		time.Sleep(11 * time.Second)
		locktest.MustUnlock(t, a)
		if err := one.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(40 * time.Second)
		if err := b.Err(); err != nil {
			t.Errorf("after the other client was closed: %v", err)
		}
		three := locktest.NewTestClient(t, rdb)
		c := locktest.MustLock(t, locktest.MutexOf(three, kind, "a"))
		time.Sleep(11 * time.Second)
		locktest.MustUnlock(t, b)
		locktest.MustUnlock(t, c)
		wantAllSeen(t, v.Commands(), &s)
	})
}
