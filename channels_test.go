package watchlock

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

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
		mode              Channels
		name              string
		onSingle, onMany  Channels
		argument, several any
	}{
		{ChannelsAuto, "auto", ChannelsClassic, ChannelsSharded, nil, "sharded"},
		{ChannelsClassic, "classic", ChannelsClassic, ChannelsClassic, nil, "classic"},
		{ChannelsSharded, "sharded", ChannelsSharded, ChannelsSharded, "sharded", "sharded"},
		{ChannelsBoth, "both", ChannelsBoth, ChannelsBoth, "both", "both"},
	} {
		if c.mode.String() != c.name {
			t.Errorf("%d is called %v, want %s", int(c.mode), c.mode, c.name)
		}
		one, many := newTestClient(t, single, WithChannels(c.mode)), newTestClient(t, cluster, WithChannels(c.mode))
		if one.channels != c.onSingle || many.channels != c.onMany {
			t.Errorf("%v is %v on one server and %v on a cluster, want %v and %v", c.mode, one.channels, many.channels, c.onSingle, c.onMany)
		}
		for _, kind := range []string{"hash", "fenced", "string"} {
			if got := mutexOf(one, kind, "n").keys.Tell; got != c.argument {
				t.Errorf("%v, %s: argument %v, want %v", c.mode, kind, got, c.argument)
			}
			if got := mutexOf(many, kind, "n").keys.Tell; got != c.several {
				t.Errorf("%v, %s on a cluster: argument %v, want %v", c.mode, kind, got, c.several)
			}
		}
	}
	if def := newTestClient(t, cluster); def.cfg.channels != ChannelsAuto {
		t.Errorf("default %v", def.cfg.channels)
	}
	for _, bad := range []Channels{-1, 4} {
		_, err := New(single, WithChannels(bad))
		if want := fmt.Sprintf("watchlock: channels %d are not between 0 (auto) and 3 (both)", int(bad)); err == nil || err.Error() != want {
			t.Errorf("%d: %v, want %s", int(bad), err, want)
		}
	}
	if got := Channels(7).String(); got != "Channels(7)" {
		t.Error(got)
	}
}

// ears is a subscription of each kind to a channel, as far as the server knows it.
func (b scriptBench) ears(channel string) (classic, sharded *redis.PubSub) {
	b.Helper()
	ctx := context.Background()
	classic = b.rdb.Subscribe(ctx, channel)
	b.Cleanup(func() { _ = classic.Close() })
	b.gets(classic, "subscribe "+channel)
	if b.mini == nil {
		sharded = b.rdb.SSubscribe(ctx, channel)
		b.Cleanup(func() { _ = sharded.Close() })
		b.gets(sharded, "ssubscribe "+channel)
	}
	return classic, sharded
}

// gets fails unless this is what a subscription hears next.
func (b scriptBench) gets(sub *redis.PubSub, want string) {
	b.Helper()
	got := ""
	msg, err := sub.ReceiveTimeout(context.Background(), 5*time.Second)
	switch m := msg.(type) {
	case *redis.Message:
		got = m.Channel + " " + m.Payload
	case *redis.Subscription:
		got = m.Kind + " " + m.Channel
	}
	if got != want {
		b.Errorf("heard %q, %v, want %q", got, err, want)
	}
}

func TestReleaseScriptsTellByTheChannelsOfTheirClient(t *testing.T) {
	scripts := map[string]struct {
		script *transport.Script
		hold   func(b scriptBench, key string)
	}{
		"hash":   {wire.ReleaseScript, func(b scriptBench, key string) { b.hash(key, scriptLease, me) }},
		"string": {wire.ReleaseStringScript, func(b scriptBench, key string) { b.text(key, me, scriptLease) }},
	}
	for form, s := range scripts {
		t.Run(form, func(t *testing.T) {
			onScriptServers(t, func(t *testing.T, b scriptBench) {
				const channel = "news:{a}"
				classic, sharded := b.ears(channel)
				release := func(rdb *redis.Client, mode any) any {
					s.hold(b, "a")
					s.hold(b, "b")
					keys := func(key, channel string) wire.Owned {
						k := ownedBy(wire.Keys{Key: key, Channel: channel}, me, 0)
						k.Keys.Tell = mode
						return k
					}
					reply, err := b.run(rdb, wire.ReleaseAll(s.script, []wire.Owned{keys("a", channel), keys("gone", channel), keys("b", "others:{b}")}))
					if err != nil {
						t.Fatal(err)
					}
					b.only()
					return reply
				}
				for _, c := range []struct {
					mode            any
					classic, shards bool
				}{{nil, true, false}, {"classic", true, false}, {"sharded", false, true}, {"both", true, true}} {
					told := 0
					if b.mini != nil { // it knows classic channels only
						c.classic, c.shards = true, false
					}
					for _, hears := range []bool{c.classic, c.shards} {
						if hears {
							told++
						}
					}
					b.answers(release(b.rdb, c.mode), nil, []any{1, told, 0, 0, 1, 0})
					end := fmt.Sprintf("end of %v", c.mode)
					b.do("PUBLISH", channel, end)
					if c.classic {
						b.gets(classic, channel+" 00")
					}
					b.gets(classic, channel+" "+end)
					if sharded != nil {
						b.do("SPUBLISH", channel, end)
						if c.shards {
							b.gets(sharded, channel+" 00")
						}
						b.gets(sharded, channel+" "+end)
					}
				}
				if b.mini != nil {
					return
				}
				b.answers(release(b.user("-publish"), "both"), nil, []any{1, 1, 0, 0, 1, 0})
				b.gets(sharded, channel+" 00")
				b.answers(release(b.user("-spublish"), "sharded"), nil, []any{1, -1, 0, 0, 1, -1})
				b.answers(release(b.user("-spublish"), "both"), nil, []any{1, 1, 0, 0, 1, 0})
				b.answers(release(b.user("-spublish", "-publish"), "both"), nil, []any{1, -1, 0, 0, 1, -1})
			})
		})
	}
}

func TestServerWithoutShardedChannelsGetsClassicOnes(t *testing.T) {
	for _, family := range redistest.Families() {
		t.Run(string(family), func(t *testing.T) {
			args := []string{"--rename-command", "SSUBSCRIBE", "", "--rename-command", "SPUBLISH", ""}
			s := redistest.Start(t, redistest.On(family), redistest.WithArgs(args...))
			for _, mode := range []Channels{ChannelsSharded, ChannelsBoth} {
				log, logs := observed()
				x := newTestClient(t, s.Client(), WithChannels(mode))
				y := newTestClient(t, s.Client(), WithChannels(mode), log)
				for _, kind := range []string{"hash", "string"} {
					var took []time.Duration
					for i := range 4 {
						name := fmt.Sprintf("%v:%s:%d", mode, kind, i)
						from, to := mutexOf(x, kind, name), mutexOf(y, kind, name)
						held := mustLock(t, from)
						entered := lockSoon(to)
						eventually(t, 5*time.Second, "the waiter listens to the classic channel", func() bool {
							echoes, counted := subscriberOf(y).Hears(keysOf(to).Channel)
							return echoes == 1 && counted == 1
						})
						mustUnlock(t, held)
						released := time.Now()
						got := <-entered
						if got.err != nil {
							t.Fatal(got.err)
						}
						took = append(took, got.at.Sub(released))
						mustUnlock(t, got.lease)
					}
					wakes(t, fmt.Sprintf("%v, %s", mode, kind), took)
				}
				if n := logs.FilterMessageSnippet("no sharded channels").Len(); n != 1 || logs.Len() != 1 {
					t.Errorf("%v: logged %v, want one line about the channels", mode, logs.All())
				}
			}
		})
	}
}

func TestWaiterOnAServerWithoutShardedChannelsIsWokenInVirtualTime(t *testing.T) {
	for _, mode := range []Channels{ChannelsSharded, ChannelsBoth} {
		inBubble(t, func(t *testing.T, v *redistest.Virtual) {
			c := virtualClient(t, v, WithChannels(mode))
			other := virtualClient(t, v, WithChannels(mode))
			held := mustLock(t, newTestMutex(other, "n"))
			start := time.Now()
			entered := lockSoon(newTestMutex(c, "n"))
			virtualUntil(start, 100*time.Millisecond)
			mustUnlock(t, held)
			got := <-entered
			if got.err != nil {
				t.Fatal(got.err)
			}
			if d := got.at.Sub(start); d != 100*time.Millisecond {
				t.Errorf("%v: entered after %v, want 100 ms", mode, d)
			}
			mustUnlock(t, got.lease)
		})
	}
}

func TestOwnMessagesOnBothChannelsAreNobodyElses(t *testing.T) {
	const waiters = 12
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		c := newTestClient(t, s.Client(), WithChannels(ChannelsBoth), WithLocalHandoff(0))
		m := c.NewMutex("n")
		held := mustLock(t, m)
		done := make(chan error, waiters)
		for range waiters {
			go func() {
				done <- m.Do(context.Background(), func(context.Context) error {
					<-time.After(5 * time.Millisecond)
					return nil
				})
			}()
		}
		eventually(t, 5*time.Second, "both subscriptions are there", func() bool {
			echoes, counted := subscriberOf(c).Hears(keysOf(m).Channel)
			return echoes == 2 && counted == 2
		})
		before := s.CommandCalls()["hexists"]
		mustUnlock(t, held)
		for range waiters {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		// One is due when a section is held for longer than it wants to be.
		if n := s.CommandCalls()["hexists"] - before; n > 2 {
			t.Errorf("Redis was asked %d times whether somebody else had released the lock", n)
		}
		g, err := c.gate(keysOf(m))
		if err != nil {
			t.Fatal(err)
		}
		defer g.unref()
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.yielding.until() != 0 {
			t.Error("it yields to itself")
		}
	})
}

func TestUserWhoMayNotListenToShardedChannelsPolls(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		b := scriptBench{t, s.Client(), nil, s}
		log, logs := observed()
		c := newTestClient(t, b.user("-ssubscribe"), WithChannels(ChannelsSharded), WithMaxPollInterval(100*time.Millisecond), log)
		held := mustLock(t, newTestClient(t, s.Client()).NewMutex("n"))
		entered := lockSoon(c.NewMutex("n"))
		eventually(t, 5*time.Second, "it is said once", func() bool { return logs.FilterMessageSnippet("cannot subscribe").Len() == 1 })
		mustUnlock(t, held)
		got := <-entered
		if got.err != nil {
			t.Fatal(got.err)
		}
		mustUnlock(t, got.lease)
		if entry := logs.All()[0]; logs.Len() != 1 || !strings.Contains(fmt.Sprint(entry.ContextMap()), "NOPERM") {
			t.Errorf("logged %v", logs.All())
		}
	})
}

func TestSubscriptionThatMetABusyServerIsMadeAgain(t *testing.T) {
	s := redistest.Start(t)
	s.Config("lua-time-limit", "5")
	log, logs := observed()
	w := redistest.NewWire()
	x, y := newTestClient(t, s.Client()), newTestClient(t, s.Client(w.Options()), log)
	held := mustLock(t, x.NewMutex("k"))
	rdb := s.Client()
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	m := y.NewMutex("k")
	release := make(chan struct{})
	w.On(redistest.Is("subscribe"), redistest.HoldRequest(release))
	entered := lockSoon(m)
	eventually(t, 5*time.Second, "the attempt was made", func() bool { return s.CommandCalls()["evalsha"]+s.CommandCalls()["eval"] >= 3 })
	busy := make(chan error, 1)
	go func() {
		busy <- rdb.Eval(context.Background(), `local t = redis.call('TIME'); local e = t[1]*1000000+t[2]+700000; while true do t = redis.call('TIME'); if t[1]*1000000+t[2] > e then return 1 end end`, nil).Err()
	}()
	<-time.After(100 * time.Millisecond) // busy by now
	close(release)
	if err := <-busy; err != nil {
		t.Fatal(err)
	}
	eventually(t, 3*time.Second, "it is subscribed after all", func() bool { echoes, _ := subscriberOf(y).Hears(keysOf(m).Channel); return echoes == 1 })
	if n := logs.FilterMessageSnippet("cannot subscribe").Len(); n != 0 {
		t.Error("it says that the user may not subscribe")
	}
	mustUnlock(t, held)
	released := time.Now()
	got := <-entered
	if d := got.at.Sub(released); d > wakesLate {
		t.Errorf("woken %v after the release", d)
	}
	mustUnlock(t, got.lease)
}
