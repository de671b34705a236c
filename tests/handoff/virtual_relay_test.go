package handoff_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestALongSectionIsRelayedInOneCommandWithoutAPause(t *testing.T) {
	locktest.RelayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		const waiters, section = 10, 9 * time.Millisecond
		c, _ := locktest.RelayClient(t, v, watchlock.WithLocalHandoff(500*time.Microsecond))
		lock := locktest.LockNamed(c, kind, "k")
		var p locktest.PassLog
		start := time.Now()
		for n := range waiters {
			p.Wait(t, n, lock, section)
		}
		p.All.Wait()
		token := int64(0)
		for i, s := range p.Sections() {
			if at := s.From.Sub(start); s.N != i || at != time.Duration(i)*section || s.UnlockErr != nil {
				t.Errorf("section %d is waiter %d's, began after %v, Unlock said %v", i, s.N, at, s.UnlockErr)
			}
			if kind == "fenced" && s.Token <= token {
				t.Errorf("token %d after %d", s.Token, token)
			}
			token = s.Token
		}
		if r, rel, all := v.CountIf(locktest.RelayRuns), v.CountIf(locktest.PlainReleases), v.CountIf(locktest.AcquireRuns); r < waiters-1 || rel > 2 || all > waiters+2 {
			t.Errorf("%d relays, %d releases, %d grants for %d sections", r, rel, all, waiters)
		}
		if n := len(locktest.WithoutCounters(v.Mini().Keys())); n != 0 {
			t.Errorf("%d keys are left", n)
		}
	})
}

func TestWhoeverWaitsUnseenFindsTheLockReleasedNowAndThen(t *testing.T) {
	locktest.RelayKinds(t, releasedNowAndThen)
}

func releasedNowAndThen(t *testing.T, v *redistest.Virtual, kind string) {
	t.Helper()
	const waiters, section = 100, 9 * time.Millisecond
	c, _ := locktest.RelayClient(t, v, watchlock.WithLocalHandoff(locktest.WindowByDefault))
	var p locktest.PassLog
	start := time.Now()
	for n := range waiters {
		p.Wait(t, n, locktest.LockNamed(c, kind, "k"), section)
	}
	p.All.Wait()
	last := time.Duration(0)
	times := locktest.VirtualTimes(v.Commands(), start, locktest.PlainReleases)
	for _, at := range times {
		if at-last > locktest.LongestRelaying+2*section {
			t.Errorf("nobody else could have had the lock for %v", at-last)
		}
		last = at
	}
	if most := int(waiters*section/locktest.LongestRelaying) + 1; len(times) < 2 || len(times) > most {
		t.Errorf("released %d times, want %d at most", len(times), most)
	}
}

func TestRelaysPassOverNobodyWhoHasSubscribed(t *testing.T) {
	locktest.RelayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		const section = 5 * time.Millisecond
		a, _ := locktest.RelayClient(t, v)
		b, _ := locktest.RelayClient(t, v)
		end := time.Now().Add(time.Second)
		var p locktest.PassLog
		for range 8 {
			p.All.Go(func() {
				for time.Now().Before(end) {
					l, err := locktest.LockNamed(a, kind, "k")(context.Background())
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(section)
					locktest.MustUnlock(t, l)
				}
			})
		}
		turns := 0
		for time.Now().Before(end) {
			asked := time.Now()
			l, err := locktest.LockNamed(b, kind, "k")(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			turns++
			if took := time.Since(asked); took > 3*section {
				t.Errorf("the other client waited for %v beside sections of %v", took, section)
			}
			locktest.MustUnlock(t, l)
		}
		p.All.Wait()
		if turns < 50 {
			t.Errorf("%d turns", turns)
		}
	})
}

func TestAWindowOfZeroRelaysNothing(t *testing.T) {
	locktest.RelayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		c, _ := locktest.RelayClient(t, v, watchlock.WithLocalHandoff(0))
		var p locktest.PassLog
		for n := range 10 {
			p.Wait(t, n, locktest.LockNamed(c, kind, "k"), 5*time.Millisecond)
		}
		p.All.Wait()
		if n := v.CountIf(locktest.RelayRuns); n != 0 {
			t.Errorf("%d relays", n)
		}
	})
}

// TestARelayWithoutAnAnswerIsBelievedByNobody loses what was sent or the answer: the
// owner that leaves and the one that comes are orphans then, and whichever of the two
// has the lock, the waiters get it soon, one at a time.
func TestARelayWithoutAnAnswerIsBelievedByNobody(t *testing.T) {
	for name := range locktest.LossKinds(nil) {
		t.Run(name, func(t *testing.T) {
			locktest.RelayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
				a, w := locktest.RelayClient(t, v, watchlock.WithLocalHandoff(locktest.WindowByDefault))
				b, _ := locktest.RelayClient(t, v)
				held := make(chan struct{})
				w.On(locktest.RelayRuns, locktest.LossKinds(held)[name]).Times(1)
				var p locktest.PassLog
				inside := 0
				enter := func(c *watchlock.Client) {
					l, err := locktest.LockNamed(c, kind, "k")(context.Background())
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
					p.All.Go(func() { enter(a) })
				}
				time.Sleep(6 * time.Millisecond) // the first relay was sent
				p.All.Go(func() { enter(b) })
				time.AfterFunc(3*time.Second, func() { close(held) })
				p.All.Wait()
				if took := time.Since(start); took > 5*time.Second {
					t.Errorf("all have been inside after %v", took)
				}
				time.Sleep(3 * time.Minute) // what was held has run, and was released again
				if n := len(locktest.WithoutCounters(v.Mini().Keys())); n != 0 {
					t.Errorf("%d keys are left: %v", n, v.Mini().Keys())
				}
			})
		})
	}
}

// relayHeld is a client with the lock, and with the answer to its first relay held back
// until held is closed.
func relayHeld(t *testing.T, v *redistest.Virtual, kind string) (c *watchlock.Client, first *watchlock.Lease, held chan struct{}) {
	t.Helper()
	c, w := locktest.RelayClient(t, v, watchlock.WithLocalHandoff(locktest.WindowByDefault))
	held = make(chan struct{})
	w.On(locktest.RelayRuns, redistest.HoldReply(held)).Times(1)
	first, err := locktest.LockNamed(c, kind, "k")(context.Background())
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
			locktest.RelayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
				c, first, held := relayHeld(t, v, kind)
				ctx, cancel := context.WithCancel(context.Background())
				gone := make(chan error)
				go func() { _, err := locktest.LockNamed(c, kind, "k")(ctx); gone <- err }()
				synctest.Wait()
				var p locktest.PassLog
				for n := range others {
					p.Wait(t, n, locktest.LockNamed(c, kind, "k"), 0)
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
				if n := len(p.Sections()); n != others {
					t.Errorf("%d of %d others were inside", n, others)
				}
				p.All.Wait()
				if n := len(locktest.WithoutCounters(v.Mini().Keys())); n != 0 || len(c.Held()) != 0 {
					t.Errorf("%d keys are left, held %v", n, c.Held())
				}
			})
		})
	}
}

func TestARelayedLockThatIsForcedMeanwhileIsNotBelieved(t *testing.T) {
	locktest.RelayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		c, first, held := relayHeld(t, v, kind)
		var p locktest.PassLog
		p.Wait(t, 0, locktest.LockNamed(c, kind, "k"), time.Millisecond)
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
		p.All.Wait()
		s := p.Sections()
		if len(s) != 1 || s[0].UnlockErr != nil {
			t.Errorf("the waiter: %v", s)
		}
		if n := v.CountIf(locktest.AcquireRuns); n < 3 {
			t.Errorf("%d tries: the waiter entered on the grant that was forced", n)
		}
	})
}

func TestCloseDuringARelayLeavesNothingBehind(t *testing.T) {
	locktest.RelayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		c, first, held := relayHeld(t, v, kind)
		waiting := make(chan error)
		go func() { _, err := locktest.LockNamed(c, kind, "k")(context.Background()); waiting <- err }()
		synctest.Wait()
		time.Sleep(5 * time.Millisecond)
		unlocked, closed := make(chan error), make(chan error)
		go func() { unlocked <- first.Unlock(context.Background()) }()
		synctest.Wait()
		go func() { closed <- c.Close() }()
		if err := <-waiting; !errors.Is(err, watchlock.ErrClosed) {
			t.Errorf("the waiter: %v", err)
		}
		synctest.Wait()
		close(held)
		if err := errors.Join(<-unlocked, <-closed); err != nil {
			t.Error(err)
		}
		if n := len(locktest.WithoutCounters(v.Mini().Keys())); n != 0 {
			t.Errorf("%d keys are left", n)
		}
	})
}
