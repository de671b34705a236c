package interop

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// shardedModes are those of Redisson. The first is its default.
var shardedModes = []string{"auto", "on", "off"}

// allChannels are those of Go. The first is its default.
var allChannels = []watchlock.Channels{
	watchlock.ChannelsAuto, watchlock.ChannelsClassic, watchlock.ChannelsSharded, watchlock.ChannelsBoth,
}

// way is how a release is published: classic or sharded.
type way bool

func (w way) command() string {
	if w {
		return "SHARDNUMSUB"
	}
	return "NUMSUB"
}

// wayOf is where Redisson listens and publishes on a cluster.
func wayOf(mode string) way { return mode != "off" }

// waysOf are where Go does.
func waysOf(c watchlock.Channels) []way {
	switch c {
	case watchlock.ChannelsClassic:
		return []way{false}
	case watchlock.ChannelsBoth:
		return []way{false, true}
	}
	return []way{true}
}

// clusterTalk is a conversation on a cluster: Redisson in each of its modes, and Go
// with each kind of channels.
type clusterTalk struct {
	*redistest.Cluster
	version string
	owners  []*redistest.Server // by slot; none moves
	prefix  string              // of the names of locks in Redis
	names   int                 // that were given out

	peers map[string]*jvmClient
	goes  map[watchlock.Channels]*watchlock.Client
}

// clusterPair is one side each.
type clusterPair struct {
	mode     string
	channels watchlock.Channels
	peer     *jvmClient
	client   *watchlock.Client
}

func (p clusterPair) String() string {
	return fmt.Sprintf("%s on the JVM, %v in Go", p.mode, p.channels)
}

// pairs are all that can hear each other, or all that cannot, for a test of t.
func (k *clusterTalk) pairs(t testing.TB, hear bool) (pairs []clusterPair) {
	for _, mode := range shardedModes {
		peer := *k.peers[mode]
		peer.t = t
		for _, channels := range allChannels {
			heard := false
			for _, w := range waysOf(channels) {
				heard = heard || w == wayOf(mode)
			}
			if heard == hear {
				pairs = append(pairs, clusterPair{mode, channels, &peer, k.goes[channels]})
			}
		}
	}
	return pairs
}

// addrs are those of all nodes.
func addrs(c *redistest.Cluster) (addrs []string) {
	for _, s := range c.Nodes() {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// newClusterClient makes a client with a Redis client of its own, closed when the
// test ends.
func newClusterClient(t testing.TB, c *redistest.Cluster, opts ...watchlock.Option) *watchlock.Client {
	t.Helper()
	rdb := c.Client()
	client, err := watchlock.New(rdb, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		_ = rdb.Close()
	})
	return client
}

// name is one that no lock had before, on that primary.
func (k *clusterTalk) name(primary *redistest.Server) string {
	for {
		k.names++
		name := fmt.Sprintf("order:%s:%d", k.version, k.names)
		if k.owner(name) == primary {
			return name
		}
	}
}

// owner is the primary that has the lock.
func (k *clusterTalk) owner(name string) *redistest.Server { return k.owners[k.Slot(k.prefix+name)] }

// listeners are how many connections hear a release of the lock in that way.
func (k *clusterTalk) listeners(t testing.TB, name string, w way) (n int64) {
	t.Helper()
	nodes := k.Nodes()
	if w {
		nodes = []*redistest.Server{k.owner(name)}
	}
	for _, s := range nodes {
		reply, err := s.Do("PUBSUB", w.command(), "redisson_lock__channel:{"+k.prefix+name+"}")
		if err != nil {
			t.Fatal(err)
		}
		one, _ := reply.([]any)[1].(int64)
		n += one
	}
	return n
}

// asleepOnCluster is asleep for a lock that nobody waited for before.
func asleepOnCluster[T any](t testing.TB, k *clusterTalk, name string, ways []way, start func() T) T {
	t.Helper()
	owner := k.owner(name)
	before := owner.CommandCalls()["evalsha"]
	started := start()
	until(t, "a waiter sleeps", func() bool {
		for _, w := range ways {
			if k.listeners(t, name, w) == 0 {
				return false
			}
		}
		return owner.CommandCalls()["evalsha"] >= before+2
	})
	return started
}

// jvmWaits returns when the JVM sleeps before the lock.
func (k *clusterTalk) jvmWaits(t testing.TB, p clusterPair, name string) <-chan reply {
	t.Helper()
	return asleepOnCluster(t, k, name, []way{wayOf(p.mode)}, func() <-chan reply { return p.peer.start("lock", name, name) })
}

// goWaits returns when Go sleeps before the lock.
func (k *clusterTalk) goWaits(t testing.TB, p clusterPair, name string) <-chan entry {
	t.Helper()
	return asleepOnCluster(t, k, name, waysOf(p.channels), func() <-chan entry { return startLock(t, p.client.NewMutex(name)) })
}

// toJVM has Go hand the lock to the JVM, and returns how long that took.
func (k *clusterTalk) toJVM(t testing.TB, p clusterPair, name string) time.Duration {
	t.Helper()
	lease := mustLock(t, p.client.NewMutex(name))
	waiting := k.jvmWaits(t, p, name)
	mustStillWait(t, waiting, "the JVM")
	released := time.Now()
	mustUnlock(t, lease)
	r := await(t, waiting)
	value[any](t, r)
	mustBe(t, p.peer, 1, "getHoldCount", name, name)
	p.peer.must("unlock", name, name)
	return r.ended().Sub(released)
}

// toGo has the JVM hand the lock to Go, and returns how long that took.
func (k *clusterTalk) toGo(t testing.TB, p clusterPair, name string) time.Duration {
	t.Helper()
	p.peer.must("lock", name, name)
	entered := k.goWaits(t, p, name)
	mustStillWait(t, entered, "Go")
	released := time.Now()
	p.peer.must("unlock", name, name)
	e := mustEnter(t, entered)
	mustUnlock(t, e.lease)
	return e.at.Sub(released)
}

// wakes fails the test unless the waiter of a hand-over enters at the message, before
// anything else would wake it. When the machine has others to serve that may take
// longer than it should, so then it is seen again whether it does.
func wakes(t testing.TB, who string, others time.Duration, handOver func() time.Duration) {
	t.Helper()
	took := handOver()
	for again := 2; took > messageWake && took < others && again > 0; again-- {
		woke(t, took)
		t.Logf("%s entered %v after the release", who, took)
		took = handOver()
	}
	soon(t, who, took)
}

// wakesJVM is wakes for the JVM, which but for messages sleeps for the TTL.
func (k *clusterTalk) wakesJVM(t testing.TB, p clusterPair, primary *redistest.Server) {
	t.Helper()
	wakes(t, fmt.Sprintf("the JVM (%v)", p), deafLease/2, func() time.Duration { return k.toJVM(t, p, k.name(primary)) })
}

// wakesGo is wakes for Go, which but for messages polls.
func (k *clusterTalk) wakesGo(t testing.TB, p clusterPair, primary *redistest.Server) {
	t.Helper()
	wakes(t, fmt.Sprintf("Go (%v)", p), deafPoll*3/4, func() time.Duration { return k.toGo(t, p, k.name(primary)) })
}

// newClusterTalk opens all clients, and has each do once what is measured later.
func newClusterTalk(t *testing.T, c *redistest.Cluster, j *jvm) *clusterTalk {
	t.Helper()
	k := &clusterTalk{
		Cluster: c, version: j.version, owners: c.AwaitAgreement(),
		peers: make(map[string]*jvmClient), goes: make(map[watchlock.Channels]*watchlock.Client),
	}
	for _, mode := range shardedModes {
		k.peers[mode] = j.open(t, nil, jvmOptions{cluster: addrs(c), sharded: mode, watchdog: deafLease})
	}
	for _, channels := range allChannels {
		k.goes[channels] = newClusterClient(t, c,
			watchlock.WithChannels(channels), watchlock.WithMaxPollInterval(deafPoll), watchlock.WithWatchdogTimeout(deafLease))
	}
	for _, primary := range c.Primaries() {
		for _, p := range k.pairs(t, true) {
			k.toJVM(t, p, k.name(primary))
			k.toGo(t, p, k.name(primary))
		}
	}
	return k
}

// waits are how often clients have waited for replicas, on all nodes.
func (k *clusterTalk) waits() (n int) {
	for _, s := range k.Nodes() {
		n += s.CommandCalls()["wait"]
	}
	return n
}
