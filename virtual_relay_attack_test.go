package watchlock

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// A lock that is forced elsewhere while the answer to its relay is on its way: the
// message of that comes before the answer. It is not the echo of a release of ours,
// since a relay publishes nothing.
func TestALockForcedElsewhereDuringItsRelayIsAskedAboutAtOnce(t *testing.T) {
	for name, window := range map[string]time.Duration{"relayed": 500 * time.Microsecond, "released": 0} {
		t.Run(name, func(t *testing.T) {
			relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
				a, w := relayClient(t, v, WithLocalHandoff(window))
				b, _ := relayClient(t, v)
				grant := redistest.Match(relayRuns)
				if window == 0 {
					grant = redistest.Match(acquireRuns)
				}
				first, err := lockNamed(a, kind, "k")(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				got := make(chan *Lease, 1)
				go func() {
					l, err := lockNamed(a, kind, "k")(context.Background())
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
				if owner, _ := v.Mini().HKeys("k"); l.Err() == nil && (len(owner) != 1 || owner[0] != l.hold.burst.owner) {
					t.Errorf("200ms later the holder trusts a lock that was forced; the owner is %v", owner)
				}
				_ = l.Unlock(context.Background())
			})
		})
	}
}

// An answer to a look ahead that is slow must not hold the lock or its Unlock back.
func TestAnUnlockDoesNotWaitForALookAhead(t *testing.T) {
	const slow, section = 300 * time.Millisecond, 5 * time.Millisecond
	relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		c, w := relayClient(t, v)
		w.On(redistest.Runs(lookScript.source), redistest.DelayReply(slow)).Times(0)
		var mu sync.Mutex
		var longest time.Duration
		var p passLog
		for range 12 {
			p.all.Go(func() {
				l, err := lockNamed(c, kind, "k")(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(section)
				from := time.Now()
				mustUnlock(t, l)
				mu.Lock()
				longest = max(longest, time.Since(from))
				mu.Unlock()
			})
		}
		start := time.Now()
		p.all.Wait()
		if longest > 50*time.Millisecond {
			t.Errorf("an Unlock took %v; all took %v", longest, time.Since(start))
		}
	})
}

// Where a round trip takes longer than what is left of the section, a look ahead never
// comes in time, and asks for nothing.
func TestNobodyLooksAheadWhoHearsTheAnswerTooLate(t *testing.T) {
	const trip, section, waiters = 3 * time.Millisecond, 5 * time.Millisecond, 60
	relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		c, w := relayClient(t, v)
		w.On(redistest.Any, redistest.All(redistest.Delay(trip/2), redistest.DelayReply(trip/2))).Times(0)
		var p passLog
		for n := range waiters {
			p.wait(t, n, lockNamed(c, kind, "k"), section)
		}
		p.all.Wait()
		bursts := map[*burst]bool{}
		for _, s := range p.sections() {
			bursts[s.burst] = true
		}
		if looks := v.CountIf(redistest.Runs(lookScript.source)); looks > waiters/4 {
			t.Errorf("%d looks for %d bursts of %d sections", looks, len(bursts), waiters)
		}
	})
}

// A client whose requests take a while to arrive is not passed over by those that are near.
func TestAClientFarAwayGetsItsTurnsBesideSeveralThatAreNear(t *testing.T) {
	for _, trip := range []time.Duration{0, 1500 * time.Microsecond, 2500 * time.Microsecond} {
		t.Run(trip.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c, w := virtualWired(t, v)
				clients := []*Client{c}
				for range 3 {
					clients = append(clients, virtualClient(t, v))
				}
				if trip > 0 {
					w.On(redistest.Any, redistest.Delay(trip)).Times(0)
				}
				list := crowdOfClients(t, clients, 8, 100*time.Microsecond, time.Second)
				turns := map[int]int{}
				for _, s := range list {
					turns[s.client]++
				}
				if turns[0] < turns[1]*9/10 {
					t.Errorf("bursts by client, the first is far: %v", turns)
				}
			})
		})
	}
}

// The watchdog takes what is due soon along with what is due. A look ahead each few
// milliseconds must not have it renew each lock in a command of its own.
func TestLooksAheadDoNotTearTheRenewalsOfOthersApart(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const others, span = 300, 10 * time.Second
		c, _ := relayClient(t, v, WithLocalHandoff(defaultLocalHandoff))
		for i := range others {
			l := mustLock(t, c.NewMutex(fmt.Sprint("other-", i)))
			defer mustUnlock(t, l)
			time.Sleep(span / others)
		}
		end := time.Now().Add(2 * span)
		var p passLog
		for range 3 {
			p.all.Go(func() {
				m := c.NewMutex("k")
				for time.Now().Before(end) {
					l := mustLock(t, m)
					time.Sleep(5 * time.Millisecond)
					mustUnlock(t, l)
				}
			})
		}
		v.Reset()
		p.all.Wait()
		rounds := int(2 * span / span)
		// A command for each W/30, or for each hundred of those that are due by then.
		if n, most := v.CountIf(redistest.Runs(renewSource)), rounds*12; n > most {
			t.Errorf("%d renewals in %d rounds of %d locks, want %d at most", n, rounds, others, most)
		}
		if n := v.CountIf(redistest.Runs(lookScript.source)); n < 100 {
			t.Errorf("%d looks ahead", n)
		}
	})
}

// A message that a lock was forced is a reason to ask Redis at once. A look ahead shortly
// before, or one whose answer is late, must not put that off.
func TestALockForcedAfterALookAheadIsAskedAboutAtOnce(t *testing.T) {
	// What is on its way holds the next on its connection back for as long as any flight.
	for name, late := range map[string]time.Duration{"answered": 0, "on its way": 500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
				c, w := relayClient(t, v, WithLocalHandoff(defaultLocalHandoff))
				other, _ := relayClient(t, v)
				first, second, third := goLockNamed(c, kind), goLockNamed(c, kind), goLockNamed(c, kind)
				time.Sleep(5 * time.Millisecond)
				if late > 0 {
					w.On(redistest.Runs(lookScript.source), redistest.DelayReply(late)).Times(1)
				}
				mustUnlock(t, first.lease) // the next is likely to take as long
				<-second.done
				time.Sleep(4 * time.Millisecond)
				if n := v.CountIf(redistest.Runs(lookScript.source)); n != 1 {
					t.Fatalf("%d looks ahead", n)
				}
				forced := time.Now()
				if err := other.NewMutex("k").ForceUnlock(context.Background()); err != nil {
					t.Fatal(err)
				}
				<-second.lease.Done()
				if took := time.Since(forced); took > min(late, leastPatience) {
					t.Errorf("its holder learnt of it after %v", took)
				}
				_ = second.lease.Unlock(context.Background())
				<-third.done
				mustUnlock(t, third.lease)
			})
		})
	}
}

// What confirms a burst is what Redis found when it looked, however late the answer is.
func TestNoSectionIsPassedOnALookThatIsOlderThanTheWindow(t *testing.T) {
	for _, kind := range []string{"mutex", "fenced"} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				const section, window, late = 9 * time.Millisecond, 2 * time.Millisecond, 4 * time.Millisecond
				c, w := relayClient(t, v, WithLocalHandoff(window))
				first, second, third := goLockNamed(c, kind), goLockNamed(c, kind), goLockNamed(c, kind)
				time.Sleep(section)
				w.On(redistest.Runs(lookScript.source), redistest.DelayReply(late)).Times(1)
				mustUnlock(t, first.lease)
				<-second.done
				time.Sleep(section - time.Millisecond) // the look has been made
				v.Mini().FlushAll()
				time.Sleep(late)
				_ = second.lease.Unlock(context.Background())
				time.Sleep(0)
				<-third.done
				if third.lease.hold.burst == second.lease.hold.burst {
					t.Errorf("passed on a look that is %v old, after Redis lost the lock", late+500*time.Microsecond)
				}
				_ = third.lease.Unlock(context.Background())
			})
		})
	}
}
