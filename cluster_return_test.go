package watchlock

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

func TestAChannelThatComesBackToItsConnectionIsHeard(t *testing.T) {
	b := clusterBench{t, redistest.StartCluster(t, redistest.On(redistest.Redis70))}
	x, y := b.client(t, WithChannels(ChannelsClassic)), b.client(t, WithChannels(ChannelsBoth))
	from, to := x.NewMutex("back"), y.NewMutex("back")
	owner := b.Owner(to.keys.Slot)
	var near, far *Mutex // at the same node, and elsewhere
	for i := 0; near == nil || far == nil; i++ {
		m := y.NewMutex(fmt.Sprint("other", i))
		if b.Owner(m.keys.Slot) == owner {
			near = m
		} else {
			far = m
		}
	}
	home := y.runner.Home
	at, err := home(t.Context(), to.keys.Channel)
	if err != nil {
		t.Fatal(err)
	}
	away, err := home(t.Context(), far.keys.Channel)
	if err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int32
	blocked, release := make(chan struct{}), make(chan struct{})
	y.runner.Home = func(ctx context.Context, channel string) (transport.Node, error) {
		if channel == near.keys.Channel && calls.Add(1) == 2 {
			close(blocked) // the ear is about to subscribe it: busy, as when it dials
			<-release
		}
		return home(ctx, channel)
	}
	held, other := mustLock(t, from), mustLock(t, x.NewMutex(near.keys.Name))
	entered := lockSoon(to)
	b.subscribed(t, to, ChannelsBoth)
	second := lockSoon(near)
	<-blocked
	y.subs.Assign(to.keys.Channel, away) // go-redis heard of a move,
	y.subs.Assign(to.keys.Channel, at)   // and from an older node of none
	close(release)
	eventually(t, 5*time.Second, "both are subscribed, as it believes", func() bool {
		echoes, _ := y.subs.Hears(to.keys.Channel)
		return echoes == 2
	})
	<-time.After(time.Second) // what was asked for is done by now
	if n := b.heardBy(to, false); n != 1 {
		t.Errorf("%d connections hear the classic channel", n)
	}
	mustUnlock(t, held)
	released := time.Now()
	got := <-entered
	if got.err != nil {
		t.Fatal(got.err)
	}
	if d := got.at.Sub(released); d > wakesLate {
		t.Errorf("woken %v after the release", d)
	}
	mustUnlock(t, got.lease)
	mustUnlock(t, other)
	mustUnlock(t, (<-second).lease)
}

func TestClassicMessagesAreHeardElsewhereWhenTheirNodeHasNoSlotOfOurs(t *testing.T) {
	b := clusterBench{t, redistest.StartCluster(t, redistest.On(redistest.Redis70))}
	x, y := b.client(t, WithChannels(ChannelsClassic)), b.client(t, WithChannels(ChannelsClassic))
	from, to := x.NewMutex("left"), y.NewMutex("left")
	owner := b.Owner(to.keys.Slot)
	var far *Mutex // its slot is at another node
	for i := 0; far == nil || b.Owner(far.keys.Slot) == owner; i++ {
		far = y.NewMutex(fmt.Sprint("other", i))
	}
	home := y.runner.Home
	var moved atomic.Bool
	y.runner.Home = func(ctx context.Context, channel string) (transport.Node, error) {
		if moved.Load() {
			channel = far.keys.Channel
		}
		return home(ctx, channel)
	}
	listens := func(s *redistest.Server) bool {
		n, err := s.Client().PubSubNumSub(context.Background(), to.keys.Channel).Result()
		return err == nil && n[to.keys.Channel] == 1
	}
	held := mustLock(t, from)
	entered := lockSoon(to)
	b.subscribed(t, to, ChannelsClassic)
	if !listens(owner) {
		t.Error("it does not listen at the node that has the slot")
	}
	moved.Store(true) // as go-redis says when the old node has left the cluster: that one answers pings all the same
	eventually(t, 10*time.Second, "it listens at the other node", func() bool { return listens(b.Owner(far.keys.Slot)) })
	eventually(t, 10*time.Second, "and only there", func() bool { return !listens(owner) })
	mustUnlock(t, held)
	mustUnlock(t, (<-entered).lease)
}

// takeOut empties a primary and takes it out of the cluster, as redis-cli
// del-node does: it goes on running, and answers CLUSTERDOWN.
func (b clusterBench) takeOut(gone *redistest.Server, slot int) {
	b.Helper()
	primaries := b.Primaries()
	next := primaries[(slices.Index(primaries, gone)+1)%len(primaries)]
	id, err := gone.Do("CLUSTER", "MYID")
	if err != nil {
		b.Fatal(err)
	}
	to, err := next.Do("CLUSTER", "MYID")
	if err != nil {
		b.Fatal(err)
	}
	b.MoveSlot(slot, next) // with its keys
	owners := b.AwaitAgreement()
	for _, s := range append([]*redistest.Server{next}, primaries...) {
		pipe := s.Client().Pipeline()
		for slot, o := range owners {
			if o == gone {
				pipe.Do(context.Background(), "CLUSTER", "SETSLOT", slot, "NODE", to)
			}
		}
		if _, err := pipe.Exec(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	b.AwaitAgreement()
	for _, s := range b.Nodes() {
		if s != gone {
			_, _ = s.Do("CLUSTER", "FORGET", id) // its replica may not want to
		}
	}
	if _, err := gone.Do("CLUSTER", "RESET", "SOFT"); err != nil {
		b.Fatal(err)
	}
}

func TestANodeThatSaysClusterdownIsNotAskedForTenSeconds(t *testing.T) {
	b := clusterBench{t, redistest.StartCluster(t, redistest.On(redistest.Redis70))}
	c := b.client(t)
	m := c.NewMutex("down")
	mustUnlock(t, mustLock(t, m))
	gone := b.Owner(m.keys.Slot)
	b.takeOut(gone, m.keys.Slot)
	mustUnlock(t, mustLock(t, b.client(t).NewMutex("down"))) // whoever comes anew is served
	start := time.Now()
	l, err := m.TryLock(context.Background(), 12*time.Second)
	if took := time.Since(start); err != nil || took > time.Second {
		t.Errorf("a free lock: %v after %v", err, took)
	}
	if l != nil {
		mustUnlock(t, l)
	}
}
