package handoff_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// A lock that is forced elsewhere while the answer to its relay is on its way: the
// message of that comes before the answer. It is not the echo of a release of ours,
// since a relay publishes nothing.
func TestALockForcedElsewhereDuringItsRelayIsAskedAboutAtOnce(t *testing.T) {
	for name, window := range map[string]time.Duration{"relayed": 500 * time.Microsecond, "released": 0} {
		t.Run(name, func(t *testing.T) {
			locktest.RelayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
				a, w := locktest.RelayClient(t, v, watchlock.WithLocalHandoff(window))
				b, _ := locktest.RelayClient(t, v)
				grant := redistest.Match(locktest.RelayRuns)
				if window == 0 {
					grant = redistest.Match(locktest.AcquireRuns)
				}
				first, err := locktest.LockNamed(a, kind, "k")(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				got := make(chan *watchlock.Lease, 1)
				go func() {
					l, err := locktest.LockNamed(a, kind, "k")(context.Background())
					if err != nil {
						t.Error(err)
					}
					got <- l
				}()
				synctest.Wait()
				time.Sleep(5 * time.Second)
				held := make(chan struct{})
				rule := w.On(grant, redistest.HoldReply(held))
				unlocked := make(chan error, 1)
				go func() { unlocked <- first.Unlock(context.Background()) }()
				time.Sleep(10 * time.Millisecond) // the grant has run and has no answer yet
				if rule.Hits() != 1 {
					t.Fatal("no grant is on its way")
				}
				if err := b.NewMutex("k").ForceUnlock(context.Background()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // the message is here
				close(held)
				l := <-got
				if err := <-unlocked; err != nil {
					t.Error(err)
				}
				time.Sleep(200 * time.Millisecond)
				// It may have noticed before it told the caller, and taken the lock again.
				if owner, _ := v.Mini().HKeys("k"); l.Err() == nil && (len(owner) != 1 || owner[0] != locktest.OwnerOf(l)) {
					t.Errorf("200ms later the holder trusts a lock that was forced; the owner is %v", owner)
				}
				_ = l.Unlock(context.Background())
			})
		})
	}
}

// A client whose requests take a while to arrive is not passed over by those that are near.
func TestAClientFarAwayGetsItsTurnsBesideSeveralThatAreNear(t *testing.T) {
	for _, trip := range []time.Duration{0, 1500 * time.Microsecond, 2500 * time.Microsecond} {
		t.Run(trip.String(), func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c, w := locktest.VirtualWired(t, v)
				clients := []*watchlock.Client{c}
				for range 3 {
					clients = append(clients, locktest.VirtualClient(t, v))
				}
				if trip > 0 {
					w.On(redistest.Any, redistest.Delay(trip)).Times(0)
				}
				list := locktest.CrowdOfClients(t, clients, 8, 100*time.Microsecond, time.Second)
				turns := map[int]int{}
				for _, s := range list {
					turns[s.Client]++
				}
				if turns[0] < turns[1]*9/10 {
					t.Errorf("bursts by client, the first is far: %v", turns)
				}
			})
		})
	}
}
