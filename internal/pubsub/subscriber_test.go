package pubsub_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/pubsub"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// notes is a Listener that writes down what it hears.
type notes struct {
	mu    sync.Mutex
	heard []pubsub.Hint
	echos int
}

func (n *notes) Hear(h pubsub.Hint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heard = append(n.heard, h)
}

func (n *notes) HearEcho() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.echos++
}

// take returns what was heard since the last call.
func (n *notes) take() []pubsub.Hint {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	heard := n.heard
	n.heard = nil
	return heard
}

// subscribed runs f with a subscriber on virtual time.
func subscribed(t *testing.T, f func(t *testing.T, v *redistest.Virtual, s *pubsub.Subscriber)) {
	synctest.Test(t, func(t *testing.T) {
		v := redistest.NewVirtual(t)
		run, err := transport.NewRunner(v.Client())
		if err != nil {
			t.Fatal(err)
		}
		var work sync.WaitGroup
		ended, end := context.WithCancel(context.Background())
		run.Clock, run.Root, run.Ended = bootclock.New(func() time.Duration { return 0 }), context.Background(), ended
		run.Spawn = func(f func()) bool { work.Go(f); return true }
		run.OnBack = func(*transport.Site) {}
		run.Start()
		s := pubsub.New(run, "classic", func(_ bool, text string, err error) { t.Logf("%s: %v", text, err) }, func(*transport.Site) {})
		f(t, v, s)
		end()
		s.Close()
		run.Close()
		work.Wait()
	})
}

func TestAListenerHearsOfReleasesByWhoseTheyAre(t *testing.T) {
	subscribed(t, func(t *testing.T, v *redistest.Virtual, s *pubsub.Subscriber) {
		var l notes
		if s.Join("news", 0, &l) {
			t.Error("it was subscribed before")
		}
		if got := l.take(); !slices.Equal(got, []pubsub.Hint{pubsub.HintConfirmed}) {
			t.Errorf("when it was subscribed it heard %v", got)
		}
		for _, payload := range []string{"00", "0", "other"} {
			v.Mini().Publish("news", payload)
		}
		v.Mini().Publish("elsewhere", "00")
		if got, want := l.take(), []pubsub.Hint{pubsub.HintReleased, pubsub.HintForeign, pubsub.HintStrange}; !slices.Equal(got, want) {
			t.Errorf("it heard %v, want %v", got, want)
		}
		for range 100 {
			v.Mini().Publish("news", "garbage")
		}
		if got := l.take(); len(got) > 1 {
			t.Errorf("it heard of garbage %d times at once", len(got))
		}
	})
}

func TestAChannelThatNobodyWantsIsGivenUpAfterASecond(t *testing.T) {
	subscribed(t, func(t *testing.T, v *redistest.Virtual, s *pubsub.Subscriber) {
		var l, later notes
		s.Join("news", 0, &l)
		l.take()
		s.Leave("news", &l)
		time.Sleep(900 * time.Millisecond)
		if !s.Join("news", 0, &later) {
			t.Error("the subscription was gone before a second was over")
		}
		s.Leave("news", &later)
		time.Sleep(2100 * time.Millisecond)
		synctest.Wait()
		if n := v.Mini().PubSubNumSub("news")["news"]; n != 0 || !s.Idle() {
			t.Errorf("%d subscriptions are left, idle %v", n, s.Idle())
		}
		v.Mini().Publish("news", "00")
		if got := l.take(); len(got) > 0 {
			t.Errorf("who has left heard %v", got)
		}
	})
}

func TestTheMessageOfOnesOwnReleaseIsAnEchoForWhoDoesNotWait(t *testing.T) {
	subscribed(t, func(t *testing.T, v *redistest.Virtual, s *pubsub.Subscriber) {
		var waits, released notes
		s.Join("news", 0, &waits)
		waits.take()
		if n := s.Expect("news", &released); n != 1 {
			t.Errorf("%d messages are to come back, want 1", n)
		}
		v.Mini().Publish("news", "00")
		if got := waits.take(); !slices.Equal(got, []pubsub.Hint{pubsub.HintReleased}) || released.echos != 1 {
			t.Errorf("who waits heard %v, who released %d echoes", got, released.echos)
		}
	})
}
