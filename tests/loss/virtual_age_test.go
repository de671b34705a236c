package loss_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// clientOfAnyKind is a client of a server that knows the scripts of all kinds, which forgets
// none when it loses its keys.
func clientOfAnyKind(t *testing.T, v *redistest.Virtual, opts ...watchlock.Option) (*watchlock.Client, *redistest.Wire) {
	t.Helper()
	raw := v.Client()
	defer raw.Close()
	for _, source := range []string{wire.AcquireStringSource, wire.RenewStringSource, wire.ReleaseStringSource} {
		if err := raw.ScriptLoad(context.Background(), source).Err(); err != nil {
			t.Fatalf("SCRIPT LOAD: %v", err)
		}
	}
	c, w := locktest.RelayClient(t, v, opts...)
	return locktest.KnowServer(c, true), w
}

// What confirms a burst is what Redis found when it ran the script, however late the answer
// is. A grant's answer is late here, and Redis loses the lock meanwhile.
func TestNoSectionIsPassedOnAGrantThatIsOlderThanTheWindow(t *testing.T) {
	for _, kind := range []string{"mutex", "fenced", "setnx"} {
		t.Run(kind, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				const late = 500 * time.Millisecond
				c, w := clientOfAnyKind(t, v, watchlock.WithLocalHandoff(2*time.Millisecond))
				grant := redistest.Match(locktest.AcquireRuns)
				if kind == "setnx" {
					grant = redistest.Runs(wire.AcquireStringSource)
				}
				rule := w.On(grant, redistest.DelayReply(late))
				first, second := locktest.GoLockNamed(c, kind), locktest.GoLockNamed(c, kind)
				time.Sleep(200 * time.Millisecond)
				v.Mini().FlushAll()
				other, _ := clientOfAnyKind(t, v)
				theirs, err := locktest.LockNamed(other, kind, "k")(context.Background())
				if err != nil || rule.Hits() != 1 {
					t.Fatalf("the lock was lost, and is not to be had: %v", err)
				}
				<-first.Done
				if err := first.Lease.Unlock(context.Background()); !errors.Is(err, watchlock.ErrLost) {
					t.Errorf("Unlock: %v", err)
				}
				synctest.Wait()
				if locktest.VirtualClosed(second.Done) {
					t.Error("the next here is inside with whom Redis granted the lock to")
				}
				locktest.MustUnlock(t, theirs)
				<-second.Done
				locktest.MustUnlock(t, second.Lease)
			})
		})
	}
}

// The same of a lock that is relayed: its answer is that to the relay.
func TestNoSectionIsPassedOnARelayThatIsOlderThanTheWindow(t *testing.T) {
	locktest.RelayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		c, w := locktest.RelayClient(t, v, watchlock.WithLocalHandoff(2*time.Millisecond))
		first, second, third := locktest.GoLockNamed(c, kind), locktest.GoLockNamed(c, kind), locktest.GoLockNamed(c, kind)
		time.Sleep(30 * time.Millisecond)
		w.On(locktest.RelayRuns, redistest.DelayReply(10*time.Millisecond))
		locktest.MustUnlock(t, first.Lease)
		<-second.Done
		_ = second.Lease.Unlock(context.Background())
		<-third.Done
		if locktest.BurstOf(third.Lease) == locktest.BurstOf(second.Lease) {
			t.Error("passed on a relay that was 10 ms old")
		}
		locktest.MustUnlock(t, third.Lease)
	})
}

// The same of a renewal: it says that the lock was ours when it ran.
func TestNoSectionIsPassedOnARenewalThatIsOlderThanTheWindow(t *testing.T) {
	for _, kind := range []string{"mutex", "fenced", "setnx"} {
		t.Run(kind, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				const late = 500 * time.Millisecond
				c, w := clientOfAnyKind(t, v, watchlock.WithLocalHandoff(2*time.Millisecond))
				renewal := redistest.Runs(wire.RenewSource)
				if kind == "setnx" {
					renewal = redistest.Runs(wire.RenewStringSource)
				}
				w.On(renewal, redistest.DelayReply(late))
				start := time.Now()
				first, second := locktest.GoLockNamed(c, kind), locktest.GoLockNamed(c, kind)
				locktest.VirtualUntil(start, 10*time.Second+late/2)
				v.Mini().FlushAll()
				other, _ := clientOfAnyKind(t, v)
				theirs, err := locktest.LockNamed(other, kind, "k")(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				locktest.VirtualUntil(start, 10*time.Second+late)
				if err := first.Lease.Unlock(context.Background()); !errors.Is(err, watchlock.ErrLost) {
					t.Errorf("Unlock: %v", err)
				}
				synctest.Wait()
				if locktest.VirtualClosed(second.Done) {
					t.Error("the next here is inside with whom Redis granted the lock to")
				}
				locktest.MustUnlock(t, theirs)
				<-second.Done
				locktest.MustUnlock(t, second.Lease)
			})
		})
	}
}

// A client whose round trip takes longer than the window passes nothing.
func TestAClientFartherAwayThanTheWindowPassesNothing(t *testing.T) {
	for trip, passes := range map[time.Duration]bool{time.Millisecond: true, 3 * time.Millisecond: false} {
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			const waiters = 40
			c, w := locktest.VirtualWired(t, v, watchlock.WithLocalHandoff(2*time.Millisecond))
			locktest.VirtualTrip(w, trip)
			var p locktest.PassLog
			for n := range waiters {
				p.Wait(t, n, c.NewMutex("k").Lock, 100*time.Microsecond)
			}
			p.All.Wait()
			bursts := map[any]bool{}
			for _, s := range p.Sections() {
				bursts[s.Burst] = true
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
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const late = 300 * time.Millisecond
		c, w := locktest.VirtualWired(t, v)
		w.On(locktest.Acquires(), redistest.DelayReply(late)).Times(2)
		m := locktest.NewTestMutex(c, "k")
		locktest.VirtualTake(v, "k", 10*time.Second)
		start := time.Now()
		_, err := m.TryLock(context.Background(), 0)
		var busy *watchlock.LockError
		if !errors.As(err, &busy) || busy.TTL != 10*time.Second-late {
			t.Errorf("after %v of 10 s: %v", time.Since(start), err)
		}
		_, err = m.TryLock(context.Background(), late+time.Second)
		if !errors.As(err, &busy) || busy.TTL > 10*time.Second-time.Since(start) {
			t.Errorf("after %v of 10 s: %v", time.Since(start), err)
		}
		// Refused when a little less is left than the answer takes to come.
		locktest.VirtualUntil(start, 10*time.Second-late/2)
		w.On(locktest.Acquires(), redistest.DelayReply(late))
		l, err := m.TryLock(context.Background(), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if at := time.Since(start); at > 10*time.Second+late/2+locktest.AfterTheTTL+locktest.JitterAtTheTTL {
			t.Errorf("granted at %v, want as soon as it is known that 10 s are over", at)
		}
		locktest.MustUnlock(t, l)
	})
}
