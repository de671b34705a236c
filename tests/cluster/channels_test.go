package cluster_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

func TestChannelsAreNamedAndOthersRefused(t *testing.T) {
	single := redis.NewClient(&redis.Options{})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer single.Close()
	defer cluster.Close()
	for _, c := range []struct {
		mode              watchlock.Channels
		name              string
		onSingle, onMany  watchlock.Channels
		argument, several any
	}{
		{watchlock.ChannelsAuto, "auto", watchlock.ChannelsClassic, watchlock.ChannelsSharded, nil, "sharded"},
		{watchlock.ChannelsClassic, "classic", watchlock.ChannelsClassic, watchlock.ChannelsClassic, nil, "classic"},
		{watchlock.ChannelsSharded, "sharded", watchlock.ChannelsSharded, watchlock.ChannelsSharded, "sharded", "sharded"},
		{watchlock.ChannelsBoth, "both", watchlock.ChannelsBoth, watchlock.ChannelsBoth, "both", "both"},
	} {
		if c.mode.String() != c.name {
			t.Errorf("%d is called %v, want %s", int(c.mode), c.mode, c.name)
		}
		one, many := locktest.NewTestClient(t, single, watchlock.WithChannels(c.mode)), locktest.NewTestClient(t, cluster, watchlock.WithChannels(c.mode))
		if locktest.ChannelsOf(one) != c.onSingle || locktest.ChannelsOf(many) != c.onMany {
			t.Errorf("%v is %v on one server and %v on a cluster, want %v and %v", c.mode, locktest.ChannelsOf(one), locktest.ChannelsOf(many), c.onSingle, c.onMany)
		}
		for _, kind := range []string{"hash", "fenced", "string"} {
			if got := locktest.KeysOf(locktest.MutexOf(one, kind, "n")).Tell; got != c.argument {
				t.Errorf("%v, %s: argument %v, want %v", c.mode, kind, got, c.argument)
			}
			if got := locktest.KeysOf(locktest.MutexOf(many, kind, "n")).Tell; got != c.several {
				t.Errorf("%v, %s on a cluster: argument %v, want %v", c.mode, kind, got, c.several)
			}
		}
	}
	// The default is auto: what it comes to depends on the servers.
	if def := locktest.NewTestClient(t, cluster); locktest.ChannelsOf(def) != watchlock.ChannelsSharded {
		t.Errorf("by default %v on a cluster", locktest.ChannelsOf(def))
	}
	if def := locktest.NewTestClient(t, single); locktest.ChannelsOf(def) != watchlock.ChannelsClassic {
		t.Errorf("by default %v on one server", locktest.ChannelsOf(def))
	}
	for _, bad := range []watchlock.Channels{-1, 4} {
		_, err := watchlock.New(single, watchlock.WithChannels(bad))
		if want := fmt.Sprintf("watchlock: channels %d are not between 0 (auto) and 3 (both)", int(bad)); err == nil || err.Error() != want {
			t.Errorf("%d: %v, want %s", int(bad), err, want)
		}
	}
	if got := watchlock.Channels(7).String(); got != "Channels(7)" {
		t.Error(got)
	}
}

func TestReleaseScriptsTellByTheChannelsOfTheirClient(t *testing.T) {
	scripts := map[string]struct {
		script *transport.Script
		hold   func(b locktest.ScriptBench, key string)
	}{
		"hash":   {wire.ReleaseScript, func(b locktest.ScriptBench, key string) { b.Hash(key, locktest.ScriptLease, locktest.Me) }},
		"string": {wire.ReleaseStringScript, func(b locktest.ScriptBench, key string) { b.Text(key, locktest.Me, locktest.ScriptLease) }},
	}
	for form, s := range scripts {
		t.Run(form, func(t *testing.T) {
			locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
				const channel = "news:{a}"
				classic, sharded := b.Ears(channel)
				release := func(rdb *redis.Client, mode any) any {
					s.hold(b, "a")
					s.hold(b, "b")
					keys := func(key, channel string) wire.Owned {
						k := locktest.OwnedBy(wire.Keys{Key: key, Channel: channel}, locktest.Me, 0)
						k.Keys.Tell = mode
						return k
					}
					reply, err := b.Run(rdb, wire.ReleaseAll(s.script, []wire.Owned{keys("a", channel), keys("gone", channel), keys("b", "others:{b}")}))
					if err != nil {
						t.Fatal(err)
					}
					b.Only()
					return reply
				}
				for _, c := range []struct {
					mode            any
					classic, shards bool
				}{{nil, true, false}, {"classic", true, false}, {"sharded", false, true}, {"both", true, true}} {
					told := 0
					if b.Mini != nil { // it knows classic channels only
						c.classic, c.shards = true, false
					}
					for _, hears := range []bool{c.classic, c.shards} {
						if hears {
							told++
						}
					}
					b.Answers(release(b.Rdb, c.mode), nil, []any{1, told, 0, 0, 1, 0})
					end := fmt.Sprintf("end of %v", c.mode)
					b.Do("PUBLISH", channel, end)
					if c.classic {
						b.Gets(classic, channel+" 00")
					}
					b.Gets(classic, channel+" "+end)
					if sharded != nil {
						b.Do("SPUBLISH", channel, end)
						if c.shards {
							b.Gets(sharded, channel+" 00")
						}
						b.Gets(sharded, channel+" "+end)
					}
				}
				if b.Mini != nil {
					return
				}
				b.Answers(release(b.User("-publish"), "both"), nil, []any{1, 1, 0, 0, 1, 0})
				b.Gets(sharded, channel+" 00")
				b.Answers(release(b.User("-spublish"), "sharded"), nil, []any{1, -1, 0, 0, 1, -1})
				b.Answers(release(b.User("-spublish"), "both"), nil, []any{1, 1, 0, 0, 1, 0})
				b.Answers(release(b.User("-spublish", "-publish"), "both"), nil, []any{1, -1, 0, 0, 1, -1})
			})
		})
	}
}

func TestServerWithoutShardedChannelsGetsClassicOnes(t *testing.T) {
	for _, family := range redistest.Families() {
		t.Run(string(family), func(t *testing.T) {
			args := []string{"--rename-command", "SSUBSCRIBE", "", "--rename-command", "SPUBLISH", ""}
			s := redistest.Start(t, redistest.On(family), redistest.WithArgs(args...))
			for _, mode := range []watchlock.Channels{watchlock.ChannelsSharded, watchlock.ChannelsBoth} {
				log, logs := locktest.Observed()
				x := locktest.NewTestClient(t, s.Client(), watchlock.WithChannels(mode))
				y := locktest.NewTestClient(t, s.Client(), watchlock.WithChannels(mode), log)
				for _, kind := range []string{"hash", "string"} {
					var took []time.Duration
					for i := range 4 {
						name := fmt.Sprintf("%v:%s:%d", mode, kind, i)
						from, to := locktest.MutexOf(x, kind, name), locktest.MutexOf(y, kind, name)
						held := locktest.MustLock(t, from)
						entered := locktest.LockSoon(to)
						locktest.Eventually(t, 5*time.Second, "the waiter listens to the classic channel", func() bool {
							echoes, counted := locktest.SubscriberOf(y).Hears(locktest.KeysOf(to).Channel)
							return echoes == 1 && counted == 1
						})
						took = append(took, handedOver(t, held, entered))
					}
					locktest.Wakes(t, fmt.Sprintf("%v, %s", mode, kind), took)
				}
				if n := logs.FilterMessageSnippet("no sharded channels").Len(); n != 1 || logs.Len() != 1 {
					t.Errorf("%v: logged %v, want one line about the channels", mode, logs.All())
				}
			}
		})
	}
}

func TestWaiterOnAServerWithoutShardedChannelsIsWokenInVirtualTime(t *testing.T) {
	for _, mode := range []watchlock.Channels{watchlock.ChannelsSharded, watchlock.ChannelsBoth} {
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			c := locktest.VirtualClient(t, v, watchlock.WithChannels(mode))
			other := locktest.VirtualClient(t, v, watchlock.WithChannels(mode))
			held := locktest.MustLock(t, locktest.NewTestMutex(other, "n"))
			start := time.Now()
			entered := locktest.LockSoon(locktest.NewTestMutex(c, "n"))
			locktest.VirtualUntil(start, 100*time.Millisecond)
			locktest.MustUnlock(t, held)
			got := <-entered
			if got.Err != nil {
				t.Fatal(got.Err)
			}
			if d := got.At.Sub(start); d != 100*time.Millisecond {
				t.Errorf("%v: entered after %v, want 100 ms", mode, d)
			}
			locktest.MustUnlock(t, got.Lease)
		})
	}
}

func TestUserWhoMayNotListenToShardedChannelsPolls(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		b := locktest.ScriptBench{TB: t, Rdb: s.Client(), Real: s}
		log, logs := locktest.Observed()
		c := locktest.NewTestClient(t, b.User("-ssubscribe"), watchlock.WithChannels(watchlock.ChannelsSharded), watchlock.WithMaxPollInterval(100*time.Millisecond), log)
		held := locktest.MustLock(t, locktest.NewTestClient(t, s.Client()).NewMutex("n"))
		entered := locktest.LockSoon(c.NewMutex("n"))
		locktest.Eventually(t, 5*time.Second, "it is said once", func() bool { return logs.FilterMessageSnippet("cannot subscribe").Len() == 1 })
		locktest.MustUnlock(t, held)
		got := <-entered
		if got.Err != nil {
			t.Fatal(got.Err)
		}
		locktest.MustUnlock(t, got.Lease)
		if entry := logs.All()[0]; logs.Len() != 1 || !strings.Contains(fmt.Sprint(entry.ContextMap()), "NOPERM") {
			t.Errorf("logged %v", logs.All())
		}
	})
}

func TestSubscriptionThatMetABusyServerIsMadeAgain(t *testing.T) {
	s := redistest.Start(t)
	s.Config("lua-time-limit", "5")
	log, logs := locktest.Observed()
	w := redistest.NewWire()
	x, y := locktest.NewTestClient(t, s.Client()), locktest.NewTestClient(t, s.Client(w.Options()), log)
	held := locktest.MustLock(t, x.NewMutex("k"))
	rdb := s.Client()
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	m := y.NewMutex("k")
	release := make(chan struct{})
	w.On(redistest.Is("subscribe"), redistest.HoldRequest(release))
	entered := locktest.LockSoon(m)
	locktest.Eventually(t, 5*time.Second, "the attempt was made", func() bool { return s.CommandCalls()["evalsha"]+s.CommandCalls()["eval"] >= 3 })
	busy := make(chan error, 1)
	go func() {
		busy <- rdb.Eval(context.Background(), `local t = redis.call('TIME'); local e = t[1]*1000000+t[2]+700000; while true do t = redis.call('TIME'); if t[1]*1000000+t[2] > e then return 1 end end`, nil).Err()
	}()
	<-time.After(100 * time.Millisecond) // busy by now
	close(release)
	if err := <-busy; err != nil {
		t.Fatal(err)
	}
	locktest.Eventually(t, 3*time.Second, "it is subscribed after all", func() bool {
		echoes, _ := locktest.SubscriberOf(y).Hears(locktest.KeysOf(m).Channel)
		return echoes == 1
	})
	if n := logs.FilterMessageSnippet("cannot subscribe").Len(); n != 0 {
		t.Error("it says that the user may not subscribe")
	}
	if d := handedOver(t, held, entered); d > locktest.WakesLate {
		t.Errorf("woken %v after the release", d)
	}
}
