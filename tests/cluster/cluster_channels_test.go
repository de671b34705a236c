package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// clusterBench is a cluster of three primaries and three replicas, and what the
// tests look at in it.
type clusterBench struct {
	testing.TB
	*redistest.Cluster
}

// onClusters runs f with a cluster of each family.
func onClusters(t *testing.T, f func(t *testing.T, b clusterBench)) {
	for _, family := range redistest.Families() {
		t.Run(string(family), func(t *testing.T) {
			f(t, clusterBench{t, redistest.StartCluster(t, redistest.On(family))})
		})
	}
}

// client is a client with connections of its own.
func (b clusterBench) client(t testing.TB, opts ...watchlock.Option) *watchlock.Client {
	rdb := b.Client(func(o *redis.ClusterOptions) { o.ReadTimeout = transport.AttemptTimeout })
	t.Cleanup(func() { _ = rdb.Close() })
	return locktest.NewTestClient(t, rdb, opts...)
}

// heardBy is how many connections hear a release of m at the node that runs it, in
// either way; a classic one at any node.
func (b clusterBench) heardBy(m *watchlock.Mutex, sharded bool) int {
	b.Helper()
	command, nodes := "NUMSUB", b.Nodes()
	if sharded {
		command, nodes = "SHARDNUMSUB", []*redistest.Server{b.Owner(locktest.KeysOf(m).Slot)}
	}
	n := 0
	for _, s := range nodes {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		reply, err := s.Client().Do(ctx, "PUBSUB", command, locktest.KeysOf(m).Channel).Slice()
		cancel()
		if err != nil {
			continue // it is dead
		}
		one, _ := reply[1].(int64)
		n += int(one)
	}
	return n
}

// subscribed waits until m has a waiter of a client with this mode.
func (b clusterBench) subscribed(t testing.TB, m *watchlock.Mutex, mode watchlock.Channels) {
	t.Helper()
	if mode == watchlock.ChannelsAuto {
		mode = watchlock.ChannelsSharded
	}
	if mode != watchlock.ChannelsClassic {
		locktest.Eventually(t, 10*time.Second, "a sharded subscription at the slot's node", func() bool { return b.heardBy(m, true) == 1 })
	}
	if mode != watchlock.ChannelsSharded {
		locktest.Eventually(t, 10*time.Second, "a classic subscription", func() bool { return b.heardBy(m, false) == 1 })
	}
}

// handOver has one client hold a lock and release it when the other one waits and
// is subscribed. It returns how long that took to enter.
func (b clusterBench) handOver(t testing.TB, from, to *watchlock.Mutex, listens watchlock.Channels) time.Duration {
	t.Helper()
	held := locktest.MustLock(t, from)
	entered := locktest.LockSoon(to)
	b.subscribed(t, to, listens)
	return handedOver(t, held, entered)
}

// handedOver releases held, and returns how long it took whoever waits to enter.
func handedOver(t testing.TB, held *watchlock.Lease, entered <-chan locktest.LockEntry) time.Duration {
	t.Helper()
	locktest.MustUnlock(t, held)
	released := time.Now()
	got := <-entered
	if got.Err != nil {
		t.Fatal(got.Err)
	}
	locktest.MustUnlock(t, got.Lease)
	return got.At.Sub(released)
}

func TestClientsOfAClusterWakeEachOtherInEachMode(t *testing.T) {
	onClusters(t, func(t *testing.T, b clusterBench) {
		for _, mode := range []watchlock.Channels{watchlock.ChannelsAuto, watchlock.ChannelsClassic, watchlock.ChannelsSharded, watchlock.ChannelsBoth} {
			x, y := b.client(t, watchlock.WithChannels(mode)), b.client(t, watchlock.WithChannels(mode))
			for _, kind := range []string{"hash", "fenced", "string"} {
				var took []time.Duration
				for i, pair := range [][2]*watchlock.Client{{x, y}, {y, x}, {x, y}, {y, x}} {
					// A name of its own: a subscription outlives its waiter a little.
					name := fmt.Sprintf("%v:%s:%d", mode, kind, i)
					took = append(took, b.handOver(t, locktest.MutexOf(pair[0], kind, name), locktest.MutexOf(pair[1], kind, name), mode))
				}
				locktest.Wakes(t, fmt.Sprintf("%v, %s", mode, kind), took)
			}
			_, _ = x.Close(), y.Close()
		}
	})
}

func TestClientsOfDifferentModesPollAndBothHearsEither(t *testing.T) {
	const poll = time.Second
	onClusters(t, func(t *testing.T, b clusterBench) {
		classic := b.client(t, watchlock.WithChannels(watchlock.ChannelsClassic), watchlock.WithMaxPollInterval(poll))
		sharded := b.client(t, watchlock.WithChannels(watchlock.ChannelsSharded), watchlock.WithMaxPollInterval(poll))
		both := b.client(t, watchlock.WithChannels(watchlock.ChannelsBoth), watchlock.WithMaxPollInterval(poll))
		for i, pair := range [][2]*watchlock.Client{{classic, sharded}, {sharded, classic}} {
			from, to := pair[0].NewMutex(fmt.Sprint("deaf", i)), pair[1].NewMutex(fmt.Sprint("deaf", i))
			held := locktest.MustLock(t, from)
			entered := locktest.LockSoon(to)
			locktest.Eventually(t, 5*time.Second, "the waiter is subscribed", func() bool { return locktest.HintsOf(t, to) == 1 })
			b.subscribed(t, to, locktest.ChannelsOf(pair[1]))
			locktest.MustUnlock(t, held)
			released := time.Now()
			got := <-entered
			if got.Err != nil {
				t.Fatal(got.Err)
			}
			if n := locktest.HintsOf(t, to); n != 1 {
				t.Errorf("%v to %v: %d hints, want that of the subscription alone", locktest.ChannelsOf(pair[0]), locktest.ChannelsOf(pair[1]), n)
			}
			if d := got.At.Sub(released); d > poll+poll/10+locktest.WakesLate {
				t.Errorf("%v to %v: entered after %v, want at most the poll interval %v", locktest.ChannelsOf(pair[0]), locktest.ChannelsOf(pair[1]), d, poll)
			}
			locktest.MustUnlock(t, got.Lease)
		}
		for _, pair := range [][2]*watchlock.Client{{classic, both}, {sharded, both}, {both, classic}, {both, sharded}} {
			var took []time.Duration
			what := fmt.Sprintf("%v to %v", locktest.ChannelsOf(pair[0]), locktest.ChannelsOf(pair[1]))
			for i := range 4 {
				name := fmt.Sprint(what, i)
				took = append(took, b.handOver(t, pair[0].NewMutex(name), pair[1].NewMutex(name), locktest.ChannelsOf(pair[1])))
			}
			locktest.Wakes(t, what, took)
		}
	})
}

func TestSlotThatMovesUnderWaitersIsFollowed(t *testing.T) {
	onClusters(t, func(t *testing.T, b clusterBench) {
		for _, mode := range []watchlock.Channels{watchlock.ChannelsSharded, watchlock.ChannelsBoth, watchlock.ChannelsClassic} {
			x, y := b.client(t, watchlock.WithChannels(mode)), b.client(t, watchlock.WithChannels(mode))
			var took []time.Duration
			for i := range 3 {
				name := fmt.Sprintf("moved:%v:%d", mode, i)
				from, to := x.NewMutex(name), y.NewMutex(name)
				held := locktest.MustLock(t, from)
				entered := locktest.LockSoon(to)
				b.subscribed(t, to, mode)
				owner, primaries := b.Owner(locktest.KeysOf(to).Slot), b.Primaries()
				next := primaries[(slices.Index(primaries, owner)+1)%len(primaries)]
				before := locktest.HintsOf(t, to)
				b.MoveSlot(locktest.KeysOf(to).Slot, next)
				moved := time.Now()
				b.subscribed(t, to, mode)
				if mode != watchlock.ChannelsClassic {
					locktest.Eventually(t, time.Second, "a hint from the new subscription", func() bool { return locktest.HintsOf(t, to) > before })
					t.Logf("%v: subscribed %v after the move", mode, time.Since(moved))
				}
				took = append(took, handedOver(t, held, entered))
			}
			locktest.Wakes(t, fmt.Sprintf("%v, after a move", mode), took)
			_, _ = x.Close(), y.Close()
		}
	})
}

func TestSubscriptionRefusedByAWrongNodeCostsTheOthersThereNothing(t *testing.T) {
	onClusters(t, func(t *testing.T, b clusterBench) {
		log, logs := locktest.Observed()
		x, y := b.client(t), b.client(t, log)
		from, to := x.NewMutex("refused"), y.NewMutex("refused")
		home := locktest.RunnerOf(y).Home
		var right atomic.Bool
		// go-redis knows an old owner of the slot, where another lock is heard.
		var other *watchlock.Mutex
		owner := b.Owner(locktest.KeysOf(to).Slot)
		for i := 0; other == nil; i++ {
			if m := y.NewMutex(fmt.Sprint("other", i)); b.Owner(locktest.KeysOf(m).Slot) != owner {
				other = m
			}
		}
		locktest.RunnerOf(y).Home = func(ctx context.Context, channel string) (transport.Node, error) {
			if channel == locktest.KeysOf(to).Channel && !right.Load() {
				channel = locktest.KeysOf(other).Channel
			}
			return home(ctx, channel)
		}
		first, second := locktest.MustLock(t, x.NewMutex(locktest.KeysOf(other).Name)), locktest.MustLock(t, from)
		entered := locktest.LockSoon(other)
		b.subscribed(t, other, watchlock.ChannelsSharded)
		refused := locktest.LockSoon(to)
		locktest.Eventually(t, 5*time.Second, "it was refused", func() bool { return locktest.SubscriberOf(y).Refused(locktest.KeysOf(to).Channel) })
		if _, counted := locktest.SubscriberOf(y).Hears(locktest.KeysOf(other).Channel); counted != 1 {
			t.Error("the other lock is not heard any more")
		}
		right.Store(true)
		b.subscribed(t, to, watchlock.ChannelsSharded)
		took := make([]time.Duration, 2)
		for i, held := range []*watchlock.Lease{first, second} {
			took[i] = handedOver(t, held, []<-chan locktest.LockEntry{entered, refused}[i])
		}
		locktest.Wakes(t, "after a refusal", took)
		if logs.Len() != 0 {
			t.Errorf("logged %v", logs.All())
		}
	})
}

func TestSubscriptionThatTheServerEndedIsMadeAgain(t *testing.T) {
	onClusters(t, func(t *testing.T, b clusterBench) {
		x, y := b.client(t), b.client(t)
		from, to := x.NewMutex("ended"), y.NewMutex("ended")
		// The slot comes back before go-redis sees that it was away.
		stays, err := locktest.RunnerOf(y).Home(t.Context(), locktest.KeysOf(to).Channel)
		if err != nil {
			t.Fatal(err)
		}
		locktest.RunnerOf(y).Home = func(context.Context, string) (transport.Node, error) { return stays, nil }
		held := locktest.MustLock(t, from)
		entered := locktest.LockSoon(to)
		b.subscribed(t, to, watchlock.ChannelsSharded)
		owner, primaries := b.Owner(locktest.KeysOf(to).Slot), b.Primaries()
		b.MoveSlot(locktest.KeysOf(to).Slot, primaries[(slices.Index(primaries, owner)+1)%len(primaries)])
		b.MoveSlot(locktest.KeysOf(to).Slot, owner)
		b.subscribed(t, to, watchlock.ChannelsSharded)
		if d := handedOver(t, held, entered); d > locktest.WakesLate {
			t.Errorf("entered after %v", d)
		}
	})
}

func TestWaitersWakeByMessageAgainAfterAPrimaryWasKilled(t *testing.T) {
	const poll = time.Second
	onClusters(t, func(t *testing.T, b clusterBench) {
		modes := []watchlock.Channels{watchlock.ChannelsSharded}
		if b.Nodes()[0].Family() == redistest.Redis70 { // a failover takes seconds
			modes = append(modes, watchlock.ChannelsBoth, watchlock.ChannelsClassic)
		}
		for _, mode := range modes {
			x := b.client(t, watchlock.WithChannels(mode), watchlock.WithMaxPollInterval(poll))
			y := b.client(t, watchlock.WithChannels(mode), watchlock.WithMaxPollInterval(poll))
			from, to, alone := x.NewMutex(fmt.Sprintf("{k}:%v", mode)), y.NewMutex(fmt.Sprintf("{k}:%v", mode)), y.NewMutex(fmt.Sprintf("{k}:%v:alone", mode))
			primary := b.Owner(locktest.KeysOf(to).Slot)
			// Somebody who dies with the primary, and tells nobody.
			if _, err := primary.Do("HSET", locktest.KeysOf(alone).Key, locktest.Stranger, 1); err != nil {
				t.Fatal(err)
			}
			if _, err := primary.Do("PEXPIRE", locktest.KeysOf(alone).Key, 2000); err != nil {
				t.Fatal(err)
			}
			held := locktest.MustLock(t, from)
			entered, later := locktest.LockSoon(to), locktest.LockSoon(alone)
			b.subscribed(t, to, mode)
			locktest.Eventually(t, 5*time.Second, "the replica has it all", func() bool {
				var sizes []any
				for _, s := range b.Nodes() {
					if n, err := s.Do("DBSIZE"); err == nil && b.follows(s, primary) {
						sizes = append(sizes, n)
					}
				}
				n, err := primary.Do("DBSIZE")
				return err == nil && slices.Contains(sizes, n)
			})
			primary.Kill()
			b.AwaitFailover(primary)
			recovered := time.Now()
			b.subscribed(t, to, mode)
			t.Logf("%v: subscribed %v after the failover", mode, time.Since(recovered))
			got := <-later
			if got.Err != nil {
				t.Fatal(got.Err)
			}
			if d := got.At.Sub(recovered); d > poll+poll/10+transport.AttemptTimeout+time.Second {
				t.Errorf("%v: the waiter for a free lock entered %v after the failover", mode, d)
			}
			locktest.MustUnlock(t, got.Lease)
			locktest.MustUnlock(t, held)
			released := time.Now()
			if got = <-entered; got.Err != nil {
				t.Fatal(got.Err)
			}
			took := []time.Duration{got.At.Sub(released)}
			locktest.MustUnlock(t, got.Lease)
			for i := range 3 {
				name := fmt.Sprintf("{k}:%v:%d", mode, i)
				took = append(took, b.handOver(t, x.NewMutex(name), y.NewMutex(name), mode))
			}
			locktest.Wakes(t, fmt.Sprintf("%v, after a failover", mode), took)
			_, _ = x.Close(), y.Close()
			primary.Restart()
			b.AwaitAgreement()
			locktest.Eventually(t, 20*time.Second, "the primary is a replica with its data", func() bool {
				return b.follows(primary, b.Owner(locktest.KeysOf(to).Slot))
			})
		}
	})
}

// follows reports whether a node is a replica in step with a primary.
func (b clusterBench) follows(s, primary *redistest.Server) bool {
	info, err := s.Do("INFO", "replication")
	text, _ := info.(string)
	_, port, _ := strings.Cut(primary.Addr(), ":")
	return err == nil && strings.Contains(text, "master_link_status:up") && strings.Contains(text, "master_port:"+port+"\r")
}

func TestWaitersForManySlotsShareAConnectionToEachNode(t *testing.T) {
	redistest.NoLeaks(t)
	const locks = 100
	onClusters(t, func(t *testing.T, b clusterBench) {
		for mode, most := range map[watchlock.Channels]int{watchlock.ChannelsClassic: 1, watchlock.ChannelsSharded: 3, watchlock.ChannelsBoth: 3} {
			x, y := b.client(t, watchlock.WithChannels(mode)), b.client(t, watchlock.WithChannels(mode))
			var held []*watchlock.Lease
			var entered []<-chan locktest.LockEntry
			for i := range locks {
				name := fmt.Sprintf("slot:%v:%d", mode, i)
				held = append(held, locktest.MustLock(t, x.NewMutex(name)))
				entered = append(entered, locktest.LockSoon(y.NewMutex(name)))
			}
			heard := func() (n int) {
				for i := range locks {
					if echoes, _ := locktest.SubscriberOf(y).Hears(fmt.Sprintf("redisson_lock__channel:{slot:%v:%d}", mode, i)); echoes > 0 {
						n++
					}
				}
				return n
			}
			locktest.Eventually(t, 20*time.Second, "all are subscribed", func() bool { return heard() == locks })
			if n := b.listeners(t); n == 0 || n > most {
				t.Errorf("%v: %d connections listen for %d locks, want at most %d", mode, n, locks, most)
			}
			for i := range locks {
				locktest.MustUnlock(t, held[i])
				got := <-entered[i]
				if got.Err != nil {
					t.Fatal(got.Err)
				}
				locktest.MustUnlock(t, got.Lease)
			}
			locktest.Eventually(t, locktest.ChannelLinger+4*time.Second, "no connection listens any more", func() bool { return b.listeners(t) == 0 })
			locktest.Eventually(t, 2*locktest.PingEach, "nothing is left of it here", locktest.SubscriberOf(y).Idle)
			_, _ = x.Close(), y.Close()
		}
	})
}

// listeners is how many connections of the cluster have a subscription.
func (b clusterBench) listeners(t testing.TB) int {
	t.Helper()
	n := 0
	for _, s := range b.Nodes() {
		list, err := s.Do("CLIENT", "LIST", "TYPE", "pubsub")
		if err != nil {
			t.Fatal(err)
		}
		n += strings.Count(list.(string), "id=")
	}
	return n
}

func TestLocksOfEachKindAreRenewedOnTheNodesOfACluster(t *testing.T) {
	const timeout = 600 * time.Millisecond
	onClusters(t, func(t *testing.T, b clusterBench) {
		c := b.client(t, watchlock.WithWatchdogTimeout(timeout))
		var leases []*watchlock.Lease
		for i := range 45 {
			kind := []string{"hash", "fenced", "string"}[i%3]
			leases = append(leases, locktest.MustLock(t, locktest.MutexOf(c, kind, fmt.Sprintf("%s:%d", kind, i))))
		}
		over := time.After(4 * timeout)
		for done := false; !done; {
			for _, l := range leases {
				if err := l.Err(); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case <-over:
				done = true
			case <-time.After(20 * time.Millisecond):
			}
		}
		for _, l := range leases {
			locktest.MustUnlock(t, l)
		}
	})
}
