package watchlock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

const (
	wakesBy   = 50 * time.Millisecond // from a release to the waiter's entry, by message
	wakesLate = firstPoll - 50*time.Millisecond
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
func (b clusterBench) client(t testing.TB, opts ...Option) *Client {
	rdb := b.Client(func(o *redis.ClusterOptions) { o.ReadTimeout = transport.AttemptTimeout })
	t.Cleanup(func() { _ = rdb.Close() })
	return newTestClient(t, rdb, opts...)
}

// heardBy is how many connections hear a release of m at the node that runs it, in
// either way; a classic one at any node.
func (b clusterBench) heardBy(m *Mutex, sharded bool) int {
	b.Helper()
	command, nodes := "NUMSUB", b.Nodes()
	if sharded {
		command, nodes = "SHARDNUMSUB", []*redistest.Server{b.Owner(m.keys.Slot)}
	}
	n := 0
	for _, s := range nodes {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		reply, err := s.Client().Do(ctx, "PUBSUB", command, m.keys.Channel).Slice()
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
func (b clusterBench) subscribed(t testing.TB, m *Mutex, mode Channels) {
	t.Helper()
	mode = mode.on(true)
	if mode != ChannelsClassic {
		eventually(t, 10*time.Second, "a sharded subscription at the slot's node", func() bool { return b.heardBy(m, true) == 1 })
	}
	if mode != ChannelsSharded {
		eventually(t, 10*time.Second, "a classic subscription", func() bool { return b.heardBy(m, false) == 1 })
	}
}

// entry is when a waiter got the lock.
type lockEntry struct {
	at    time.Time
	lease *Lease
	err   error
}

func lockSoon(m *Mutex) <-chan lockEntry {
	entered := make(chan lockEntry, 1)
	go func() {
		l, err := m.Lock(context.Background())
		entered <- lockEntry{time.Now(), l, err}
	}()
	return entered
}

// mutexOf is a lock of one of the three kinds.
func mutexOf(c *Client, kind, name string) *Mutex {
	switch kind {
	case "fenced":
		return c.NewFencedMutex(name).m
	case "string":
		return c.NewSetNXMutex(name)
	}
	return c.NewMutex(name)
}

// handOver has one client hold a lock and release it when the other one waits and
// is subscribed. It returns how long that took to enter.
func (b clusterBench) handOver(t testing.TB, from, to *Mutex, listens Channels) time.Duration {
	t.Helper()
	held := mustLock(t, from)
	entered := lockSoon(to)
	b.subscribed(t, to, listens)
	mustUnlock(t, held)
	released := time.Now()
	got := <-entered
	if got.err != nil {
		t.Fatal(got.err)
	}
	mustUnlock(t, got.lease)
	return got.at.Sub(released)
}

// hintsOf is how many hints the gate of m has had.
func hintsOf(t testing.TB, m *Mutex) uint64 {
	t.Helper()
	g, err := m.c.gate(&m.keys)
	if err != nil {
		t.Fatal(err)
	}
	defer g.unref()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hints
}

// wakes fails unless all of some hand-overs were by message. One of them may be
// late by what the machine had to do besides.
func wakes(t testing.TB, what string, took []time.Duration) {
	t.Helper()
	slices.Sort(took)
	t.Logf("%s: %v", what, took)
	if took[len(took)-1] > wakesLate || took[len(took)-2] > wakesBy {
		t.Errorf("%s: woken after %v, want %v", what, took, wakesBy)
	}
}

func TestClientsOfAClusterWakeEachOtherInEachMode(t *testing.T) {
	onClusters(t, func(t *testing.T, b clusterBench) {
		for _, mode := range []Channels{ChannelsAuto, ChannelsClassic, ChannelsSharded, ChannelsBoth} {
			x, y := b.client(t, WithChannels(mode)), b.client(t, WithChannels(mode))
			for _, kind := range []string{"hash", "fenced", "string"} {
				var took []time.Duration
				for i, pair := range [][2]*Client{{x, y}, {y, x}, {x, y}, {y, x}} {
					// A name of its own: a subscription outlives its waiter a little.
					name := fmt.Sprintf("%v:%s:%d", mode, kind, i)
					took = append(took, b.handOver(t, mutexOf(pair[0], kind, name), mutexOf(pair[1], kind, name), mode))
				}
				wakes(t, fmt.Sprintf("%v, %s", mode, kind), took)
			}
			_, _ = x.Close(), y.Close()
		}
	})
}

func TestClientsOfDifferentModesPollAndBothHearsEither(t *testing.T) {
	const poll = time.Second
	onClusters(t, func(t *testing.T, b clusterBench) {
		classic := b.client(t, WithChannels(ChannelsClassic), WithMaxPollInterval(poll))
		sharded := b.client(t, WithChannels(ChannelsSharded), WithMaxPollInterval(poll))
		both := b.client(t, WithChannels(ChannelsBoth), WithMaxPollInterval(poll))
		for i, pair := range [][2]*Client{{classic, sharded}, {sharded, classic}} {
			from, to := pair[0].NewMutex(fmt.Sprint("deaf", i)), pair[1].NewMutex(fmt.Sprint("deaf", i))
			held := mustLock(t, from)
			entered := lockSoon(to)
			eventually(t, 5*time.Second, "the waiter is subscribed", func() bool { return hintsOf(t, to) == 1 })
			b.subscribed(t, to, pair[1].channels)
			mustUnlock(t, held)
			released := time.Now()
			got := <-entered
			if got.err != nil {
				t.Fatal(got.err)
			}
			if n := hintsOf(t, to); n != 1 {
				t.Errorf("%v to %v: %d hints, want that of the subscription alone", pair[0].channels, pair[1].channels, n)
			}
			if d := got.at.Sub(released); d > poll+poll/10+wakesLate {
				t.Errorf("%v to %v: entered after %v, want at most the poll interval %v", pair[0].channels, pair[1].channels, d, poll)
			}
			mustUnlock(t, got.lease)
		}
		for _, pair := range [][2]*Client{{classic, both}, {sharded, both}, {both, classic}, {both, sharded}} {
			var took []time.Duration
			what := fmt.Sprintf("%v to %v", pair[0].channels, pair[1].channels)
			for i := range 4 {
				name := fmt.Sprint(what, i)
				took = append(took, b.handOver(t, pair[0].NewMutex(name), pair[1].NewMutex(name), pair[1].channels))
			}
			wakes(t, what, took)
		}
	})
}

func TestSlotThatMovesUnderWaitersIsFollowed(t *testing.T) {
	onClusters(t, func(t *testing.T, b clusterBench) {
		for _, mode := range []Channels{ChannelsSharded, ChannelsBoth, ChannelsClassic} {
			x, y := b.client(t, WithChannels(mode)), b.client(t, WithChannels(mode))
			var took []time.Duration
			for i := range 3 {
				name := fmt.Sprintf("moved:%v:%d", mode, i)
				from, to := x.NewMutex(name), y.NewMutex(name)
				held := mustLock(t, from)
				entered := lockSoon(to)
				b.subscribed(t, to, mode)
				owner, primaries := b.Owner(to.keys.Slot), b.Primaries()
				next := primaries[(slices.Index(primaries, owner)+1)%len(primaries)]
				before := hintsOf(t, to)
				b.MoveSlot(to.keys.Slot, next)
				moved := time.Now()
				b.subscribed(t, to, mode)
				if mode != ChannelsClassic {
					eventually(t, time.Second, "a hint from the new subscription", func() bool { return hintsOf(t, to) > before })
					t.Logf("%v: subscribed %v after the move", mode, time.Since(moved))
				}
				mustUnlock(t, held)
				released := time.Now()
				got := <-entered
				if got.err != nil {
					t.Fatal(got.err)
				}
				took = append(took, got.at.Sub(released))
				mustUnlock(t, got.lease)
			}
			wakes(t, fmt.Sprintf("%v, after a move", mode), took)
			_, _ = x.Close(), y.Close()
		}
	})
}

func TestSubscriptionRefusedByAWrongNodeCostsTheOthersThereNothing(t *testing.T) {
	onClusters(t, func(t *testing.T, b clusterBench) {
		log, logs := observed()
		x, y := b.client(t), b.client(t, log)
		from, to := x.NewMutex("refused"), y.NewMutex("refused")
		home := y.runner.Home
		var right atomic.Bool
		// go-redis knows an old owner of the slot, where another lock is heard.
		var other *Mutex
		owner := b.Owner(to.keys.Slot)
		for i := 0; other == nil; i++ {
			if m := y.NewMutex(fmt.Sprint("other", i)); b.Owner(m.keys.Slot) != owner {
				other = m
			}
		}
		y.runner.Home = func(ctx context.Context, channel string) (transport.Node, error) {
			if channel == to.keys.Channel && !right.Load() {
				channel = other.keys.Channel
			}
			return home(ctx, channel)
		}
		first, second := mustLock(t, x.NewMutex(other.keys.Name)), mustLock(t, from)
		entered := lockSoon(other)
		b.subscribed(t, other, ChannelsSharded)
		refused := lockSoon(to)
		eventually(t, 5*time.Second, "it was refused", func() bool { return y.subs.Refused(to.keys.Channel) })
		if _, counted := y.subs.Hears(other.keys.Channel); counted != 1 {
			t.Error("the other lock is not heard any more")
		}
		right.Store(true)
		b.subscribed(t, to, ChannelsSharded)
		took := make([]time.Duration, 2)
		for i, held := range []*Lease{first, second} {
			mustUnlock(t, held)
			released := time.Now()
			got := <-[]<-chan lockEntry{entered, refused}[i]
			if got.err != nil {
				t.Fatal(got.err)
			}
			took[i] = got.at.Sub(released)
			mustUnlock(t, got.lease)
		}
		wakes(t, "after a refusal", took)
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
		stays, err := y.runner.Home(t.Context(), to.keys.Channel)
		if err != nil {
			t.Fatal(err)
		}
		y.runner.Home = func(context.Context, string) (transport.Node, error) { return stays, nil }
		held := mustLock(t, from)
		entered := lockSoon(to)
		b.subscribed(t, to, ChannelsSharded)
		owner, primaries := b.Owner(to.keys.Slot), b.Primaries()
		b.MoveSlot(to.keys.Slot, primaries[(slices.Index(primaries, owner)+1)%len(primaries)])
		b.MoveSlot(to.keys.Slot, owner)
		b.subscribed(t, to, ChannelsSharded)
		mustUnlock(t, held)
		released := time.Now()
		got := <-entered
		if got.err != nil {
			t.Fatal(got.err)
		}
		if d := got.at.Sub(released); d > wakesLate {
			t.Errorf("entered after %v", d)
		}
		mustUnlock(t, got.lease)
	})
}

func TestWaitersWakeByMessageAgainAfterAPrimaryWasKilled(t *testing.T) {
	const poll = time.Second
	onClusters(t, func(t *testing.T, b clusterBench) {
		modes := []Channels{ChannelsSharded}
		if b.Nodes()[0].Family() == redistest.Redis70 { // a failover takes seconds
			modes = append(modes, ChannelsBoth, ChannelsClassic)
		}
		for _, mode := range modes {
			x := b.client(t, WithChannels(mode), WithMaxPollInterval(poll))
			y := b.client(t, WithChannels(mode), WithMaxPollInterval(poll))
			from, to, alone := x.NewMutex(fmt.Sprintf("{k}:%v", mode)), y.NewMutex(fmt.Sprintf("{k}:%v", mode)), y.NewMutex(fmt.Sprintf("{k}:%v:alone", mode))
			primary := b.Owner(to.keys.Slot)
			// Somebody who dies with the primary, and tells nobody.
			if _, err := primary.Do("HSET", alone.keys.Key, stranger, 1); err != nil {
				t.Fatal(err)
			}
			if _, err := primary.Do("PEXPIRE", alone.keys.Key, 2000); err != nil {
				t.Fatal(err)
			}
			held := mustLock(t, from)
			entered, later := lockSoon(to), lockSoon(alone)
			b.subscribed(t, to, mode)
			eventually(t, 5*time.Second, "the replica has it all", func() bool {
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
			if got.err != nil {
				t.Fatal(got.err)
			}
			if d := got.at.Sub(recovered); d > poll+poll/10+transport.AttemptTimeout+time.Second {
				t.Errorf("%v: the waiter for a free lock entered %v after the failover", mode, d)
			}
			mustUnlock(t, got.lease)
			mustUnlock(t, held)
			released := time.Now()
			if got = <-entered; got.err != nil {
				t.Fatal(got.err)
			}
			took := []time.Duration{got.at.Sub(released)}
			mustUnlock(t, got.lease)
			for i := range 3 {
				name := fmt.Sprintf("{k}:%v:%d", mode, i)
				took = append(took, b.handOver(t, x.NewMutex(name), y.NewMutex(name), mode))
			}
			wakes(t, fmt.Sprintf("%v, after a failover", mode), took)
			_, _ = x.Close(), y.Close()
			primary.Restart()
			b.AwaitAgreement()
			eventually(t, 20*time.Second, "the primary is a replica with its data", func() bool {
				return b.follows(primary, b.Owner(to.keys.Slot))
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
		for mode, most := range map[Channels]int{ChannelsClassic: 1, ChannelsSharded: 3, ChannelsBoth: 3} {
			x, y := b.client(t, WithChannels(mode)), b.client(t, WithChannels(mode))
			var held []*Lease
			var entered []<-chan lockEntry
			for i := range locks {
				name := fmt.Sprintf("slot:%v:%d", mode, i)
				held = append(held, mustLock(t, x.NewMutex(name)))
				entered = append(entered, lockSoon(y.NewMutex(name)))
			}
			heard := func() (n int) {
				for i := range locks {
					if echoes, _ := y.subs.Hears(fmt.Sprintf("redisson_lock__channel:{slot:%v:%d}", mode, i)); echoes > 0 {
						n++
					}
				}
				return n
			}
			eventually(t, 20*time.Second, "all are subscribed", func() bool { return heard() == locks })
			if n := b.listeners(t); n == 0 || n > most {
				t.Errorf("%v: %d connections listen for %d locks, want at most %d", mode, n, locks, most)
			}
			for i := range locks {
				mustUnlock(t, held[i])
				got := <-entered[i]
				if got.err != nil {
					t.Fatal(got.err)
				}
				mustUnlock(t, got.lease)
			}
			eventually(t, channelLinger+4*time.Second, "no connection listens any more", func() bool { return b.listeners(t) == 0 })
			eventually(t, 2*pingEach, "nothing is left of it here", y.subs.Idle)
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
		c := b.client(t, WithWatchdogTimeout(timeout))
		var leases []*Lease
		for i := range 45 {
			kind := []string{"hash", "fenced", "string"}[i%3]
			leases = append(leases, mustLock(t, mutexOf(c, kind, fmt.Sprintf("%s:%d", kind, i))))
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
			mustUnlock(t, l)
		}
	})
}
