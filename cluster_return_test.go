package watchlock

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestAChannelThatComesBackToItsConnectionIsHeard(t *testing.T) {
	b := clusterBench{t, redistest.StartCluster(t, redistest.On(redistest.Redis70))}
	x, y := b.client(t, WithChannels(ChannelsClassic)), b.client(t, WithChannels(ChannelsBoth))
	from, to := x.NewMutex("back"), y.NewMutex("back")
	owner := b.Owner(to.keys.slot)
	var near, far *Mutex // at the same node, and elsewhere
	for i := 0; near == nil || far == nil; i++ {
		m := y.NewMutex(fmt.Sprint("other", i))
		if b.Owner(m.keys.slot) == owner {
			near = m
		} else {
			far = m
		}
	}
	home := y.runner.home
	at, err := home(t.Context(), to.keys.channel)
	if err != nil {
		t.Fatal(err)
	}
	away, err := home(t.Context(), far.keys.channel)
	if err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int32
	blocked, release := make(chan struct{}), make(chan struct{})
	y.runner.home = func(ctx context.Context, channel string) (node, error) {
		if channel == near.keys.channel && calls.Add(1) == 2 {
			close(blocked) // the ear is about to subscribe it: busy, as when it dials
			<-release
		}
		return home(ctx, channel)
	}
	held, other := mustLock(t, from), mustLock(t, x.NewMutex(near.keys.name))
	entered := lockSoon(to)
	b.subscribed(t, to, ChannelsBoth)
	second := lockSoon(near)
	<-blocked
	y.subs.assign(to.keys.channel, away) // go-redis heard of a move,
	y.subs.assign(to.keys.channel, at)   // and from an older node of none
	close(release)
	eventually(t, 5*time.Second, "both are subscribed, as it believes", func() bool {
		echoes, _ := y.subs.hears(to.keys.channel)
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
