package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

func TestAChannelThatComesBackToItsConnectionIsHeard(t *testing.T) {
	b := clusterBench{t, redistest.StartCluster(t, redistest.On(redistest.Redis70))}
	x, y := b.client(t, watchlock.WithChannels(watchlock.ChannelsClassic)), b.client(t, watchlock.WithChannels(watchlock.ChannelsBoth))
	from, to := x.NewMutex("back"), y.NewMutex("back")
	owner := b.Owner(locktest.KeysOf(to).Slot)
	var near, far *watchlock.Mutex // at the same node, and elsewhere
	for i := 0; near == nil || far == nil; i++ {
		m := y.NewMutex(fmt.Sprint("other", i))
		if b.Owner(locktest.KeysOf(m).Slot) == owner {
			near = m
		} else {
			far = m
		}
	}
	home := locktest.RunnerOf(y).Home
	at, err := home(t.Context(), locktest.KeysOf(to).Channel)
	if err != nil {
		t.Fatal(err)
	}
	away, err := home(t.Context(), locktest.KeysOf(far).Channel)
	if err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int32
	blocked, release := make(chan struct{}), make(chan struct{})
	locktest.RunnerOf(y).Home = func(ctx context.Context, channel string) (transport.Node, error) {
		if channel == locktest.KeysOf(near).Channel && calls.Add(1) == 2 {
			close(blocked) // the ear is about to subscribe it: busy, as when it dials
			<-release
		}
		return home(ctx, channel)
	}
	held, other := locktest.MustLock(t, from), locktest.MustLock(t, x.NewMutex(locktest.KeysOf(near).Name))
	entered := locktest.LockSoon(to)
	b.subscribed(t, to, watchlock.ChannelsBoth)
	second := locktest.LockSoon(near)
	<-blocked
	locktest.SubscriberOf(y).Assign(locktest.KeysOf(to).Channel, away) // go-redis heard of a move,
	locktest.SubscriberOf(y).Assign(locktest.KeysOf(to).Channel, at)   // and from an older node of none
	close(release)
	locktest.Eventually(t, 5*time.Second, "both are subscribed, as it believes", func() bool {
		echoes, _ := locktest.SubscriberOf(y).Hears(locktest.KeysOf(to).Channel)
		return echoes == 2
	})
	<-time.After(time.Second) // what was asked for is done by now
	if n := b.heardBy(to, false); n != 1 {
		t.Errorf("%d connections hear the classic channel", n)
	}
	locktest.MustUnlock(t, held)
	released := time.Now()
	got := <-entered
	if got.Err != nil {
		t.Fatal(got.Err)
	}
	if d := got.At.Sub(released); d > locktest.WakesLate {
		t.Errorf("woken %v after the release", d)
	}
	locktest.MustUnlock(t, got.Lease)
	locktest.MustUnlock(t, other)
	locktest.MustUnlock(t, (<-second).Lease)
}

func TestClassicMessagesAreHeardElsewhereWhenTheirNodeHasNoSlotOfOurs(t *testing.T) {
	b := clusterBench{t, redistest.StartCluster(t, redistest.On(redistest.Redis70))}
	x, y := b.client(t, watchlock.WithChannels(watchlock.ChannelsClassic)), b.client(t, watchlock.WithChannels(watchlock.ChannelsClassic))
	from, to := x.NewMutex("left"), y.NewMutex("left")
	owner := b.Owner(locktest.KeysOf(to).Slot)
	var far *watchlock.Mutex // its slot is at another node
	for i := 0; far == nil || b.Owner(locktest.KeysOf(far).Slot) == owner; i++ {
		far = y.NewMutex(fmt.Sprint("other", i))
	}
	home := locktest.RunnerOf(y).Home
	var moved atomic.Bool
	locktest.RunnerOf(y).Home = func(ctx context.Context, channel string) (transport.Node, error) {
		if moved.Load() {
			channel = locktest.KeysOf(far).Channel
		}
		return home(ctx, channel)
	}
	listens := func(s *redistest.Server) bool {
		n, err := s.Client().PubSubNumSub(context.Background(), locktest.KeysOf(to).Channel).Result()
		return err == nil && n[locktest.KeysOf(to).Channel] == 1
	}
	held := locktest.MustLock(t, from)
	entered := locktest.LockSoon(to)
	b.subscribed(t, to, watchlock.ChannelsClassic)
	if !listens(owner) {
		t.Error("it does not listen at the node that has the slot")
	}
	moved.Store(true) // as go-redis says when the old node has left the cluster: that one answers pings all the same
	locktest.Eventually(t, 10*time.Second, "it listens at the other node", func() bool { return listens(b.Owner(locktest.KeysOf(far).Slot)) })
	locktest.Eventually(t, 10*time.Second, "and only there", func() bool { return !listens(owner) })
	locktest.MustUnlock(t, held)
	locktest.MustUnlock(t, (<-entered).Lease)
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
	locktest.MustUnlock(t, locktest.MustLock(t, m))
	gone := b.Owner(locktest.KeysOf(m).Slot)
	b.takeOut(gone, locktest.KeysOf(m).Slot)
	locktest.MustUnlock(t, locktest.MustLock(t, b.client(t).NewMutex("down"))) // whoever comes anew is served
	start := time.Now()
	l, err := m.TryLock(context.Background(), 12*time.Second)
	if took := time.Since(start); err != nil || took > time.Second {
		t.Errorf("a free lock: %v after %v", err, took)
	}
	if l != nil {
		locktest.MustUnlock(t, l)
	}
}
