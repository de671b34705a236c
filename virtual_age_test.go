package watchlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// clientOfAnyKind is a client of a server that knows the scripts of all kinds, which forgets
// none when it loses its keys.
func clientOfAnyKind(t *testing.T, v *redistest.Virtual, opts ...Option) (*Client, *redistest.Wire) {
	t.Helper()
	raw := v.Client()
	defer raw.Close()
	for _, source := range []string{wire.AcquireStringSource, wire.RenewStringSource, wire.ReleaseStringSource} {
		if err := raw.ScriptLoad(context.Background(), source).Err(); err != nil {
			t.Fatalf("SCRIPT LOAD: %v", err)
		}
	}
	c, w := relayClient(t, v, opts...)
	return knowServer(c, true), w
}

// What confirms a burst is what Redis found when it ran the script, however late the answer
// is. A grant's answer is late here, and Redis loses the lock meanwhile.
func TestNoSectionIsPassedOnAGrantThatIsOlderThanTheWindow(t *testing.T) {
	for _, kind := range []string{"mutex", "fenced", "setnx"} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				const late = 500 * time.Millisecond
				c, w := clientOfAnyKind(t, v, WithLocalHandoff(2*time.Millisecond))
				grant := redistest.Match(acquireRuns)
				if kind == "setnx" {
					grant = redistest.Runs(wire.AcquireStringSource)
				}
				rule := w.On(grant, redistest.DelayReply(late))
				first, second := goLockNamed(c, kind), goLockNamed(c, kind)
				time.Sleep(200 * time.Millisecond)
				v.Mini().FlushAll()
				other, _ := clientOfAnyKind(t, v)
				theirs, err := lockNamed(other, kind, "k")(context.Background())
				if err != nil || rule.Hits() != 1 {
					t.Fatalf("the lock was lost, and is not to be had: %v", err)
				}
				<-first.done
				if err := first.lease.Unlock(context.Background()); !errors.Is(err, ErrLost) {
					t.Errorf("Unlock: %v", err)
				}
				synctest.Wait()
				if virtualClosed(second.done) {
					t.Error("the next here is inside with whom Redis granted the lock to")
				}
				mustUnlock(t, theirs)
				<-second.done
				mustUnlock(t, second.lease)
			})
		})
	}
}

// The same of a lock that is relayed: its answer is that to the relay.
func TestNoSectionIsPassedOnARelayThatIsOlderThanTheWindow(t *testing.T) {
	relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		c, w := relayClient(t, v, WithLocalHandoff(2*time.Millisecond))
		first, second, third := goLockNamed(c, kind), goLockNamed(c, kind), goLockNamed(c, kind)
		time.Sleep(30 * time.Millisecond)
		w.On(relayRuns, redistest.DelayReply(10*time.Millisecond))
		mustUnlock(t, first.lease)
		<-second.done
		_ = second.lease.Unlock(context.Background())
		<-third.done
		if third.lease.hold.burst == second.lease.hold.burst {
			t.Error("passed on a relay that was 10 ms old")
		}
		mustUnlock(t, third.lease)
	})
}

// The same of a renewal: it says that the lock was ours when it ran.
func TestNoSectionIsPassedOnARenewalThatIsOlderThanTheWindow(t *testing.T) {
	for _, kind := range []string{"mutex", "fenced", "setnx"} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				const late = 500 * time.Millisecond
				c, w := clientOfAnyKind(t, v, WithLocalHandoff(2*time.Millisecond))
				renewal := redistest.Runs(wire.RenewSource)
				if kind == "setnx" {
					renewal = redistest.Runs(wire.RenewStringSource)
				}
				w.On(renewal, redistest.DelayReply(late))
				start := time.Now()
				first, second := goLockNamed(c, kind), goLockNamed(c, kind)
				virtualUntil(start, 10*time.Second+late/2)
				v.Mini().FlushAll()
				other, _ := clientOfAnyKind(t, v)
				theirs, err := lockNamed(other, kind, "k")(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				virtualUntil(start, 10*time.Second+late)
				if err := first.lease.Unlock(context.Background()); !errors.Is(err, ErrLost) {
					t.Errorf("Unlock: %v", err)
				}
				synctest.Wait()
				if virtualClosed(second.done) {
					t.Error("the next here is inside with whom Redis granted the lock to")
				}
				mustUnlock(t, theirs)
				<-second.done
				mustUnlock(t, second.lease)
			})
		})
	}
}

// A client whose round trip takes longer than the window passes nothing.
func TestAClientFartherAwayThanTheWindowPassesNothing(t *testing.T) {
	for trip, passes := range map[time.Duration]bool{time.Millisecond: true, 3 * time.Millisecond: false} {
		inBubble(t, func(t *testing.T, v *redistest.Virtual) {
			const waiters = 40
			c, w := virtualWired(t, v, WithLocalHandoff(2*time.Millisecond))
			virtualTrip(w, trip)
			var p passLog
			for n := range waiters {
				p.wait(t, n, c.NewMutex("k").Lock, 100*time.Microsecond)
			}
			p.all.Wait()
			bursts := map[*burst]bool{}
			for _, s := range p.sections() {
				bursts[s.burst] = true
			}
			if passes != (len(bursts) < waiters) {
				t.Errorf("round trips of %v: %d bursts for %d sections", trip, len(bursts), waiters)
			}
		})
	}
}

// How long the holder's lease runs is as old as the question too: an answer that was long on
// its way tells of less, and a wait that rests on it tries when the lease is over.
func TestVirtualTheTimeLeftIsCountedFromTheQuestion(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const late = 300 * time.Millisecond
		c, w := virtualWired(t, v)
		w.On(acquires(), redistest.DelayReply(late)).Times(2)
		m := newTestMutex(c, "k")
		virtualTake(v, "k", 10*time.Second)
		start := time.Now()
		_, err := m.TryLock(context.Background(), 0)
		var busy *LockError
		if !errors.As(err, &busy) || busy.TTL != 10*time.Second-late {
			t.Errorf("after %v of 10 s: %v", time.Since(start), err)
		}
		_, err = m.TryLock(context.Background(), late+time.Second)
		if !errors.As(err, &busy) || busy.TTL > 10*time.Second-time.Since(start) {
			t.Errorf("after %v of 10 s: %v", time.Since(start), err)
		}
		// Refused when a little less is left than the answer takes to come.
		virtualUntil(start, 10*time.Second-late/2)
		w.On(acquires(), redistest.DelayReply(late))
		l, err := m.TryLock(context.Background(), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if at := time.Since(start); at > 10*time.Second+late/2+afterExpiry+expiryJitter {
			t.Errorf("granted at %v, want as soon as it is known that 10 s are over", at)
		}
		mustUnlock(t, l)
	})
}
