package watchlock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// relayKinds runs f for each kind whose locks are relayed.
func relayKinds(t *testing.T, f func(t *testing.T, v *redistest.Virtual, kind string)) {
	for _, kind := range []string{"mutex", "fenced"} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) { f(t, v, kind) })
		})
	}
}

// relayClient is a client of a server that knows all scripts.
func relayClient(t *testing.T, v *redistest.Virtual, opts ...Option) (*Client, *redistest.Wire) {
	t.Helper()
	raw := v.Client()
	defer raw.Close()
	for _, source := range []string{wire.AcquireSource, wire.AcquireFencedSource, wire.ReleaseSource, wire.RenewSource, wire.RelayScript.Source, wire.RelayFencedScript.Source} {
		if err := raw.ScriptLoad(context.Background(), source).Err(); err != nil {
			t.Fatalf("SCRIPT LOAD: %v", err)
		}
	}
	v.Reset()
	w := redistest.NewWire()
	return newTestClient(t, v.Client(w.Options()), opts...), w
}

// plainReleases matches the runs of the script that only releases a hash.
var plainReleases = redistest.Runs(wire.ReleaseSource)

func TestALongSectionIsRelayedInOneCommandWithoutAPause(t *testing.T) {
	relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		const waiters, section = 10, 9 * time.Millisecond
		c, _ := relayClient(t, v, WithLocalHandoff(500*time.Microsecond))
		lock := lockNamed(c, kind, "k")
		var p passLog
		start := time.Now()
		for n := range waiters {
			p.wait(t, n, lock, section)
		}
		p.all.Wait()
		token := int64(0)
		for i, s := range p.sections() {
			if at := s.from.Sub(start); s.n != i || at != time.Duration(i)*section || s.unlockErr != nil {
				t.Errorf("section %d is waiter %d's, began after %v, Unlock said %v", i, s.n, at, s.unlockErr)
			}
			if kind == "fenced" && s.token <= token {
				t.Errorf("token %d after %d", s.token, token)
			}
			token = s.token
		}
		if r, rel, all := v.CountIf(relayRuns), v.CountIf(plainReleases), v.CountIf(acquireRuns); r < waiters-1 || rel > 2 || all > waiters+2 {
			t.Errorf("%d relays, %d releases, %d grants for %d sections", r, rel, all, waiters)
		}
		if n := len(withoutCounters(v.Mini().Keys())); n != 0 {
			t.Errorf("%d keys are left", n)
		}
	})
}

func TestWhoeverWaitsUnseenFindsTheLockReleasedNowAndThen(t *testing.T) {
	relayKinds(t, releasedNowAndThen)
}

func releasedNowAndThen(t *testing.T, v *redistest.Virtual, kind string) {
	t.Helper()
	const waiters, section = 100, 9 * time.Millisecond
	c, _ := relayClient(t, v, WithLocalHandoff(defaultLocalHandoff))
	var p passLog
	start := time.Now()
	for n := range waiters {
		p.wait(t, n, lockNamed(c, kind, "k"), section)
	}
	p.all.Wait()
	last := time.Duration(0)
	times := virtualTimes(v.Commands(), start, plainReleases)
	for _, at := range times {
		if at-last > relayMost+2*section {
			t.Errorf("nobody else could have had the lock for %v", at-last)
		}
		last = at
	}
	if most := int(waiters*section/relayMost) + 1; len(times) < 2 || len(times) > most {
		t.Errorf("released %d times, want %d at most", len(times), most)
	}
}

func TestRelaysPassOverNobodyWhoHasSubscribed(t *testing.T) {
	relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		const section = 5 * time.Millisecond
		a, _ := relayClient(t, v)
		b, _ := relayClient(t, v)
		end := time.Now().Add(time.Second)
		var p passLog
		for range 8 {
			p.all.Go(func() {
				for time.Now().Before(end) {
					l, err := lockNamed(a, kind, "k")(context.Background())
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(section)
					mustUnlock(t, l)
				}
			})
		}
		turns := 0
		for time.Now().Before(end) {
			asked := time.Now()
			l, err := lockNamed(b, kind, "k")(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			turns++
			if took := time.Since(asked); took > 3*section {
				t.Errorf("the other client waited for %v beside sections of %v", took, section)
			}
			mustUnlock(t, l)
		}
		p.all.Wait()
		if turns < 50 {
			t.Errorf("%d turns", turns)
		}
	})
}

func TestAWindowOfZeroRelaysNothing(t *testing.T) {
	relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		c, _ := relayClient(t, v, WithLocalHandoff(0))
		var p passLog
		for n := range 10 {
			p.wait(t, n, lockNamed(c, kind, "k"), 5*time.Millisecond)
		}
		p.all.Wait()
		if n := v.CountIf(relayRuns); n != 0 {
			t.Errorf("%d relays", n)
		}
	})
}

// TestARelayWithoutAnAnswerIsBelievedByNobody loses what was sent or the answer: the
// owner that leaves and the one that comes are orphans then, and whichever of the two
// has the lock, the waiters get it soon, one at a time.
func TestARelayWithoutAnAnswerIsBelievedByNobody(t *testing.T) {
	for name := range lossKinds(nil) {
		t.Run(name, func(t *testing.T) {
			relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
				a, w := relayClient(t, v, WithLocalHandoff(defaultLocalHandoff))
				b, _ := relayClient(t, v)
				held := make(chan struct{})
				w.On(relayRuns, lossKinds(held)[name]).Times(1)
				var p passLog
				inside := 0
				enter := func(c *Client) {
					l, err := lockNamed(c, kind, "k")(context.Background())
					if err != nil {
						t.Error(err)
						return
					}
					if inside++; inside != 1 || l.Err() != nil {
						t.Errorf("%d are inside; %v", inside, l.Err())
					}
					time.Sleep(5 * time.Millisecond)
					inside--
					if err := l.Unlock(context.Background()); err != nil {
						t.Errorf("Unlock: %v", err)
					}
				}
				start := time.Now()
				for range 4 {
					p.all.Go(func() { enter(a) })
				}
				time.Sleep(6 * time.Millisecond) // the first relay was sent
				p.all.Go(func() { enter(b) })
				time.AfterFunc(3*time.Second, func() { close(held) })
				p.all.Wait()
				if took := time.Since(start); took > 5*time.Second {
					t.Errorf("all have been inside after %v", took)
				}
				time.Sleep(3 * time.Minute) // what was held has run, and was released again
				if n := len(withoutCounters(v.Mini().Keys())); n != 0 {
					t.Errorf("%d keys are left: %v", n, v.Mini().Keys())
				}
			})
		})
	}
}

// relayHeld is a client with the lock, and with the answer to its first relay held back
// until held is closed.
func relayHeld(t *testing.T, v *redistest.Virtual, kind string) (c *Client, first *Lease, held chan struct{}) {
	t.Helper()
	c, w := relayClient(t, v, WithLocalHandoff(defaultLocalHandoff))
	held = make(chan struct{})
	w.On(relayRuns, redistest.HoldReply(held)).Times(1)
	first, err := lockNamed(c, kind, "k")(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return c, first, held
}

// TestAWaiterThatLeavesDuringARelayLosesTheLockForNobody holds the answer to a relay
// while the waiter that it was made for goes.
func TestAWaiterThatLeavesDuringARelayLosesTheLockForNobody(t *testing.T) {
	for others := range 2 {
		t.Run(fmt.Sprint(others, " others"), func(t *testing.T) {
			relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
				c, first, held := relayHeld(t, v, kind)
				ctx, cancel := context.WithCancel(context.Background())
				gone := make(chan error)
				go func() { _, err := lockNamed(c, kind, "k")(ctx); gone <- err }()
				synctest.Wait()
				var p passLog
				for n := range others {
					p.wait(t, n, lockNamed(c, kind, "k"), 0)
				}
				time.Sleep(5 * time.Millisecond)
				unlocked := make(chan error)
				go func() { unlocked <- first.Unlock(context.Background()) }()
				synctest.Wait()
				cancel()
				if err := <-gone; !errors.Is(err, context.Canceled) {
					t.Errorf("who left: %v", err)
				}
				close(held)
				if err := <-unlocked; err != nil {
					t.Errorf("Unlock: %v", err)
				}
				synctest.Wait()
				if n := len(p.sections()); n != others {
					t.Errorf("%d of %d others were inside", n, others)
				}
				p.all.Wait()
				if n := len(withoutCounters(v.Mini().Keys())); n != 0 || len(c.Held()) != 0 {
					t.Errorf("%d keys are left, held %v", n, c.Held())
				}
			})
		})
	}
}

func TestARelayedLockThatIsForcedMeanwhileIsNotBelieved(t *testing.T) {
	relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		c, first, held := relayHeld(t, v, kind)
		var p passLog
		p.wait(t, 0, lockNamed(c, kind, "k"), time.Millisecond)
		time.Sleep(5 * time.Millisecond)
		unlocked := make(chan error)
		go func() { unlocked <- first.Unlock(context.Background()) }()
		synctest.Wait() // the relay has run, and has no answer yet
		if err := c.NewMutex("k").ForceUnlock(context.Background()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		close(held)
		if err := <-unlocked; err != nil {
			t.Errorf("Unlock: %v", err)
		}
		p.all.Wait()
		s := p.sections()
		if len(s) != 1 || s[0].unlockErr != nil {
			t.Errorf("the waiter: %v", s)
		}
		if n := v.CountIf(acquireRuns); n < 3 {
			t.Errorf("%d tries: the waiter entered on the grant that was forced", n)
		}
	})
}

func TestCloseDuringARelayLeavesNothingBehind(t *testing.T) {
	relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		c, first, held := relayHeld(t, v, kind)
		waiting := make(chan error)
		go func() { _, err := lockNamed(c, kind, "k")(context.Background()); waiting <- err }()
		synctest.Wait()
		time.Sleep(5 * time.Millisecond)
		unlocked, closed := make(chan error), make(chan error)
		go func() { unlocked <- first.Unlock(context.Background()) }()
		synctest.Wait()
		go func() { closed <- c.Close() }()
		if err := <-waiting; !errors.Is(err, ErrClosed) {
			t.Errorf("the waiter: %v", err)
		}
		synctest.Wait()
		close(held)
		if err := errors.Join(<-unlocked, <-closed); err != nil {
			t.Error(err)
		}
		if n := len(withoutCounters(v.Mini().Keys())); n != 0 {
			t.Errorf("%d keys are left", n)
		}
	})
}
