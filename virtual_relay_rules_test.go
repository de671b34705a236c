package watchlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// goLockNamed begins a Lock that waits, and returns when it is queued or granted.
func goLockNamed(c *Client, kind string) *lockCall {
	call := goLock(func() (*Lease, error) { return lockNamed(c, kind, "k")(context.Background()) })
	synctest.Wait()
	return call
}

// TestAnUnlockThatRelayedLeavesTheGateToTheOneAfterIt keeps an Unlock that has relayed
// the lock waiting for a renewal, until the next holder's release is on its way.
func TestAnUnlockThatRelayedLeavesTheGateToTheOneAfterIt(t *testing.T) {
	relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		c, w := relayClient(t, v, WithLocalHandoff(defaultLocalHandoff))
		start := time.Now()
		first := goLockNamed(c, kind)
		second := goLockNamed(c, kind)
		renewal, release := make(chan struct{}), make(chan struct{})
		w.On(redistest.Runs(wire.RenewSource), redistest.HoldReply(renewal))
		virtualUntil(start, 10*time.Second)
		unlocked := goLock(func() (*Lease, error) { return nil, first.lease.Unlock(context.Background()) })
		synctest.Wait()
		if n := v.CountIf(relayRuns); n != 1 || !virtualClosed(second.done) || virtualClosed(unlocked.done) {
			t.Fatalf("%d relays; the next is inside: %v; Unlock has returned: %v", n, virtualClosed(second.done), virtualClosed(unlocked.done))
		}
		w.On(plainReleases, redistest.HoldRequest(release))
		leaving := goLock(func() (*Lease, error) { return nil, second.lease.Unlock(context.Background()) })
		synctest.Wait()
		third := goLockNamed(c, kind)
		v.Reset()
		close(renewal)
		<-unlocked.done
		time.Sleep(10 * flightPatience)
		if n := v.CountIf(acquireRuns); n != 0 {
			t.Errorf("%d tries while the release is on its way", n)
		}
		close(release)
		<-leaving.done
		<-third.done
		if unlocked.err != nil || leaving.err != nil || third.err != nil {
			t.Errorf("%v, %v, %v", unlocked.err, leaving.err, third.err)
		}
		mustUnlock(t, third.lease)
	})
}

// TestTrustInARelayedLockBeginsBeforeTheRelayWasSent is about a slow answer: the lease
// counts from the sending, as of any attempt.
func TestTrustInARelayedLockBeginsBeforeTheRelayWasSent(t *testing.T) {
	relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		const slow = 600 * time.Millisecond
		c, w := relayClient(t, v, WithLocalHandoff(defaultLocalHandoff))
		first := goLockNamed(c, kind)
		second := goLockNamed(c, kind)
		w.On(relayRuns, redistest.DelayReply(slow))
		time.Sleep(5 * time.Millisecond)
		sent := time.Now()
		mustUnlock(t, first.lease)
		<-second.done
		if took := time.Since(sent); took != slow || v.CountIf(relayRuns) != 1 {
			t.Fatalf("it was granted after %v, in %d relays", took, v.CountIf(relayRuns))
		}
		lease := defaultWatchdogTimeout
		if want := sent.Add(lease - bootclock.Margin(lease)); second.lease.ExpiresAt().After(want) {
			t.Errorf("trusted for %v more, want %v", time.Until(second.lease.ExpiresAt()), time.Until(want))
		}
		virtualUntil(sent, lease/3)
		if n := v.CountIf(redistest.Runs(wire.RenewSource)); n != 1 {
			t.Errorf("%d renewals a third of the timeout after the relay was sent", n)
		}
		mustUnlock(t, second.lease)
	})
}

// TestARelayNamesTheOrphansOfItsLock loses the answer to the first attempt.
func TestARelayNamesTheOrphansOfItsLock(t *testing.T) {
	relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		c, w := relayClient(t, v, WithLocalHandoff(defaultLocalHandoff))
		w.On(acquireRuns, redistest.DropReply)
		first := goLockNamed(c, kind)
		<-first.done
		second := goLockNamed(c, kind)
		time.Sleep(5 * time.Millisecond)
		mustUnlock(t, first.lease)
		<-second.done
		var orphan string
		for _, cmd := range v.Commands() {
			if acquireRuns(cmd) && orphan == "" {
				orphan = cmd.Args[map[string]int{"mutex": 4, "fenced": 5}[kind]]
			}
			if relayRuns(cmd) && !slices.Contains(cmd.Args, orphan) {
				t.Errorf("the attempt without an answer was %s's; the relay: %v", orphan, cmd)
			}
		}
		if n := v.CountIf(relayRuns); n != 1 || orphan == "" {
			t.Errorf("%d relays after an orphan %q", n, orphan)
		}
		mustUnlock(t, second.lease)
	})
}

// TestAMessageSoonAfterARelayIsNoEchoOfIt is about a relay that told nobody: what comes
// then is somebody else's, and Redis is asked at once.
func TestAMessageSoonAfterARelayIsNoEchoOfIt(t *testing.T) {
	relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		c, _ := relayClient(t, v, WithLocalHandoff(500*time.Microsecond))
		first := goLockNamed(c, kind)
		second := goLockNamed(c, kind)
		third := goLockNamed(c, kind)
		time.Sleep(9 * time.Millisecond)
		mustUnlock(t, first.lease)
		<-second.done
		time.Sleep(echoWait / 2)
		v.Reset()
		v.Mini().FlushAll()
		v.Mini().Publish(channelKeys("k"), "0")
		synctest.Wait()
		if n := v.CountIf(redistest.Runs(wire.RenewSource)); n != 1 {
			t.Errorf("%d questions at once", n)
		}
		if err := second.lease.Err(); !errors.Is(err, ErrLost) {
			t.Errorf("the lease that was taken away: %v", err)
		}
		<-third.done
		mustUnlock(t, third.lease)
	})
}

func TestALockThatIsAskedAboutIsNotRelayed(t *testing.T) {
	relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		c, w := relayClient(t, v, WithLocalHandoff(defaultLocalHandoff))
		first := goLockNamed(c, kind)
		second := goLockNamed(c, kind)
		answer := make(chan struct{})
		w.On(redistest.Runs(wire.RenewSource), redistest.HoldReply(answer))
		time.Sleep(100 * time.Millisecond)
		v.Mini().Publish(channelKeys("k"), "0") // as if somebody had forced it
		synctest.Wait()
		time.AfterFunc(20*time.Millisecond, func() { close(answer) })
		mustUnlock(t, first.lease)
		<-second.done
		if n, rel := v.CountIf(relayRuns), v.CountIf(plainReleases); n != 0 || rel != 1 {
			t.Errorf("%d relays, %d releases", n, rel)
		}
		mustUnlock(t, second.lease)
	})
}

// TestNothingIsRelayedWhileAClientOfAnotherKindTakesPart has a foreign release heard,
// of a lock that Redis says is still held.
func TestNothingIsRelayedWhileAClientOfAnotherKindTakesPart(t *testing.T) {
	relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		c, _ := relayClient(t, v, WithLocalHandoff(500*time.Microsecond))
		var p passLog
		start := time.Now()
		for n := range 20 {
			p.wait(t, n, lockNamed(c, kind, "k"), 9*time.Millisecond)
		}
		time.Sleep(30 * time.Millisecond) // in the middle of a section
		v.Mini().Publish(channelKeys("k"), "0")
		p.all.Wait()
		before, during := 0, 0
		times := virtualTimes(v.Commands(), start, relayRuns)
		for _, at := range times {
			switch {
			case at < 30*time.Millisecond:
				before++
			case at < 30*time.Millisecond+foreignFor:
				during++
			}
		}
		if after := len(times) - before - during; before < 2 || during != 0 || after < 5 {
			t.Errorf("%d relays before, %d for %v after it, %d later", before, during, foreignFor, after)
		}
	})
}

// TestOnlyWhereOneNodeTellsOfReleasesIsALockRelayed makes locks as a client of each kind
// of channels has them.
func TestOnlyWhereOneNodeTellsOfReleasesIsALockRelayed(t *testing.T) {
	for _, c := range []struct {
		channels Channels
		cluster  bool
		relays   bool
	}{
		{ChannelsClassic, false, true},
		{ChannelsSharded, true, true},
		{ChannelsClassic, true, false},
		{ChannelsBoth, true, false},
		{ChannelsBoth, false, false},
	} {
		inBubble(t, func(t *testing.T, v *redistest.Virtual) {
			client, _ := relayClient(t, v, WithLocalHandoff(defaultLocalHandoff))
			m := client.NewMutex("k")
			keysOf(m).Tell = c.channels.publishArg(c.cluster)
			first := mustLock(t, m)
			var p passLog
			for n := range 3 {
				p.wait(t, n, m.Lock, 5*time.Millisecond)
			}
			time.Sleep(5 * time.Millisecond)
			mustUnlock(t, first)
			p.all.Wait()
			if n := v.CountIf(relayRuns); n > 0 != c.relays {
				t.Errorf("channels %v, cluster %v: %d relays", c.channels, c.cluster, n)
			}
		})
	}
}

// TestAClientWhoseCompanyHasGonePassesForTheWholeWindowAgain is about what a release was
// told to: nobody else, once the others no longer listen.
func TestAClientWhoseCompanyHasGonePassesForTheWholeWindowAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const section, window, span = 100 * time.Microsecond, 2 * time.Millisecond, 200 * time.Millisecond
		var clients []*Client
		for range 4 {
			clients = append(clients, virtualClient(t, v, WithLocalHandoff(window)))
		}
		crowdOfClients(t, clients, 8, section, 50*time.Millisecond)
		time.Sleep(5 * time.Second) // the others leave their channels
		bursts := func() int {
			var mu sync.Mutex
			var all sync.WaitGroup
			seen, end, m := map[any]bool{}, time.Now().Add(span), newTestMutex(clients[0], "k")
			for range 8 {
				all.Go(func() {
					for time.Now().Before(end) {
						l := mustLock(t, m)
						mu.Lock()
						seen[burstOf(l)] = true
						mu.Unlock()
						time.Sleep(section)
						mustUnlock(t, l)
					}
				})
			}
			all.Wait()
			return len(seen)
		}
		if n, most := bursts(), int(span/window)+10; n > most {
			t.Errorf("%d bursts in %v, want %d at most", n, span, most)
		}
	})
}
