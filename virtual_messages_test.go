package watchlock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestAReleaseOfAClientOfAnotherKindIsKnownAtOnce(t *testing.T) {
	for payload, foreign := range map[string]bool{"0": true, "00": false, "2": false, "hello": false} {
		t.Run(payload, func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				m := newTestMutex(virtualClient(t, v, WithLocalHandoff(time.Second)), "k")
				first := mustLock(t, m)
				var waiters []*lockCall
				for range 4 {
					waiters = append(waiters, goLock(func() (*Lease, error) { return m.Lock(context.Background()) }))
					synctest.Wait()
				}
				time.Sleep(10 * time.Millisecond) // it listens
				mustUnlock(t, first)
				<-waiters[0].done
				holder := waiters[0].lease // of a fenced lock, with tokens for those behind
				start := time.Now()
				v.Mini().Publish(channelOfTest("k"), payload)
				synctest.Wait()
				for i, at := range []time.Duration{0, foreignFor - time.Millisecond, foreignFor + time.Millisecond} {
					virtualUntil(start, at)
					mustUnlock(t, holder)
					next := waiters[i+1]
					<-next.done
					passed := next.lease.hold.burst == holder.hold.burst
					if want := !foreign || at > foreignFor; passed != want {
						t.Errorf("%v after it, the lock was passed in memory: %v, want %v", at, passed, want)
					}
					holder = next.lease
				}
				mustUnlock(t, holder)
			})
		})
	}
}

func TestNoReleaseOfAClientOfThisKindIsForeign(t *testing.T) {
	for number := 1; number <= 3; number++ {
		inBubble(t, func(t *testing.T, v *redistest.Virtual) {
			var clients []*Client
			for range number {
				clients = append(clients, virtualClient(t, v, WithLocalHandoff(0)))
			}
			list := crowdOfClients(t, clients, 4, 100*time.Microsecond, 20*time.Millisecond)
			for i, c := range clients {
				g, err := c.gate(&newTestMutex(c, "k").keys)
				if err != nil {
					t.Fatal(err)
				}
				g.mu.Lock()
				y := g.yielding
				switch {
				case number == 1 && y != nil:
					t.Errorf("a client alone takes its own releases for others': %+v", *y)
				case number > 1 && (y == nil || y.foreignTo != 0):
					t.Errorf("of %d clients and %d bursts, client %d knows of others %+v", number, len(list), i, y)
				}
				g.mu.Unlock()
				g.unref()
			}
		})
	}
}

func TestAForeignReleaseIsNotTakenForTheMessageOfOurOwn(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := virtualWired(t, v, WithLocalHandoff(0))
		m := newTestMutex(c, "k")
		lost := w.OnPush(func(_, payload string) bool { return payload == "00" }, true)
		first := mustLock(t, m)
		next := goLock(func() (*Lease, error) { return m.Lock(context.Background()) })
		synctest.Wait()
		behind := goLock(func() (*Lease, error) { return m.Lock(context.Background()) })
		time.Sleep(confirmedAge)
		mustUnlock(t, first) // its message is still to come
		<-next.done
		v.Reset()
		v.Mini().Publish(channelOfTest("k"), "0")
		synctest.Wait()
		if n := v.CountIf(renews()); n != 1 || lost.Hits() != 1 {
			t.Errorf("%d questions at once after %d messages of our own that were lost, want 1 and 1", n, lost.Hits())
		}
		g, err := c.gate(&m.keys)
		if err != nil {
			t.Fatal(err)
		}
		g.mu.Lock()
		if foreign := g.yielding.foreign(c.clock.Now()); !foreign || g.echoBy == 0 {
			t.Errorf("known to be foreign: %v; our own is still to come until %v", foreign, g.echoBy)
		}
		g.mu.Unlock()
		g.unref()
		mustUnlock(t, next.lease)
		<-behind.done
		mustUnlock(t, behind.lease)
	})
}

// TestAReleaseInTwoMessagesWakesAWaiterAndHarmsNoHolder is about versions of this library
// that published "0" and a "2" behind it.
func TestAReleaseInTwoMessagesWakesAWaiterAndHarmsNoHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		m := newTestMutex(virtualClient(t, v), "k")
		release := func() {
			v.Mini().Publish(m.keys.Channel, "0")
			v.Mini().Publish(m.keys.Channel, "2")
		}
		virtualTake(v, "k", time.Minute)
		next := goLock(func() (*Lease, error) { return m.Lock(context.Background()) })
		synctest.Wait()
		behind := goLock(func() (*Lease, error) { return m.Lock(context.Background()) })
		time.Sleep(10 * time.Millisecond)
		v.Mini().Del("k")
		start := time.Now()
		release()
		<-next.done
		if took := time.Since(start); took != 0 {
			t.Errorf("the waiter entered after %v", took)
		}
		time.Sleep(time.Second)
		v.Reset()
		release()
		time.Sleep(time.Second / 2)
		if n := v.CountIf(renews()); n < 1 || n > 2 {
			t.Errorf("%d questions, want one for each message at most", n)
		}
		if err := next.lease.Err(); err != nil {
			t.Errorf("the holder's lease: %v", err)
		}
		mustUnlock(t, next.lease)
		<-behind.done
		mustUnlock(t, behind.lease)
	})
}
