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

// passed is one section of a waiter.
type passed struct {
	n         int // of the waiter
	from      time.Time
	token     int64
	burst     any
	unlockErr error
}

// passLog is what waiters did, in the order of their sections.
type passLog struct {
	mu   sync.Mutex
	list []passed
	all  sync.WaitGroup
}

func (p *passLog) sections() []passed {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.list)
}

// wait starts a waiter, that stays inside for section, and returns when it is
// queued.
func (p *passLog) wait(t testing.TB, n int, lock lockOfKind, section time.Duration, opts ...LockOption) {
	t.Helper()
	p.all.Go(func() {
		l, err := lock(context.Background(), opts...)
		if err != nil {
			t.Errorf("waiter %d: %v", n, err)
			return
		}
		from := time.Now()
		p.mu.Lock()
		i := len(p.list)
		p.list = append(p.list, passed{n: n, from: from, token: tokenOf(l), burst: burstOf(l)})
		p.mu.Unlock()
		time.Sleep(section)
		err = l.Unlock(context.Background())
		p.mu.Lock()
		p.list[i].unlockErr = err
		p.mu.Unlock()
	})
	synctest.Wait()
}

// acquireRuns matches the runs of the scripts that acquire a hash.
func acquireRuns(c redistest.Command) bool {
	return redistest.Runs(wire.AcquireSource)(c) || redistest.Runs(wire.AcquireFencedSource)(c) || relayRuns(c)
}

// relayRuns matches the runs of the scripts that release a hash and acquire it again.
func relayRuns(c redistest.Command) bool {
	return redistest.Runs(wire.RelayScript.Source)(c) || redistest.Runs(wire.RelayFencedScript.Source)(c)
}

func TestNoSectionStartsLaterThanTheWindowAfterRedisConfirmedTheLock(t *testing.T) {
	for _, window := range []time.Duration{500 * time.Microsecond, 2 * time.Millisecond, 20 * time.Millisecond, time.Second} {
		t.Run(window.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				const waiters = 60
				section := window / 7
				c := virtualClient(t, v, WithLocalHandoff(window))
				m := c.NewMutex("k")
				first := mustLock(t, m)
				var p passLog
				for n := range waiters {
					p.wait(t, n, m.Lock, section)
				}
				mustUnlock(t, first)
				p.all.Wait()
				var confirmed []time.Time // with a round trip of 0
				for _, cmd := range v.Commands() {
					if acquireRuns(cmd) || redistest.Runs(wire.RenewSource)(cmd) {
						confirmed = append(confirmed, cmd.Time)
					}
				}
				for _, s := range p.sections() {
					ok := slices.ContainsFunc(confirmed, func(at time.Time) bool {
						return !s.from.Before(at) && s.from.Sub(at) <= window
					})
					if !ok {
						t.Errorf("section %d started at %v, Redis had confirmed at %v", s.n, s.from, confirmed)
					}
				}
				if runs, least := v.CountIf(acquireRuns), waiters/8; runs < least || runs > waiters/3 {
					t.Errorf("%d grants for %d sections: it passes too rarely, or for too long", runs, waiters)
				}
			})
		})
	}
}

func TestAWindowOfZeroNeverPasses(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const waiters = 20
		m := virtualClient(t, v, WithLocalHandoff(0)).NewMutex("k")
		first := mustLock(t, m)
		var p passLog
		for n := range waiters {
			p.wait(t, n, m.Lock, 0)
		}
		mustUnlock(t, first)
		p.all.Wait()
		if n := v.CountIf(redistest.Runs(wire.ReleaseSource)); n != waiters+1 {
			t.Errorf("%d releases for %d sections", n, waiters+1)
		}
		if n := v.CountIf(acquireRuns); n < waiters+1 {
			t.Errorf("%d grants for %d sections", n, waiters+1)
		}
	})
}

func TestAPassGoesToTheFirstInTheQueueAndSendsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const waiters = 50
		m := virtualClient(t, v, WithLocalHandoff(time.Second)).NewMutex("k")
		first := mustLock(t, m)
		var p passLog
		for n := range waiters {
			p.wait(t, n, m.Lock, time.Millisecond)
		}
		time.Sleep(time.Millisecond)
		v.Reset()
		mustUnlock(t, first)
		time.Sleep((waiters - 1) * time.Millisecond)
		for _, cmd := range v.Commands() {
			if cmd.Name != "PING" {
				t.Errorf("%d passes sent %v", len(p.sections()), cmd)
			}
		}
		p.all.Wait()
		for i, s := range p.sections() {
			if s.n != i || s.unlockErr != nil {
				t.Errorf("section %d was waiter %d's, its Unlock returned %v", i, s.n, s.unlockErr)
			}
		}
		if v.Mini().Exists("k") || v.CountIf(redistest.Runs(wire.ReleaseSource)) != 1 {
			t.Errorf("at the end: key there %v, %d releases", v.Mini().Exists("k"), v.CountIf(redistest.Runs(wire.ReleaseSource)))
		}
	})
}

func TestABurstIsNotPassedToWhomItDoesNotSuit(t *testing.T) {
	explicit, renewed := []LockOption{WithLeaseTime(30 * time.Second)}, []LockOption(nil)
	for name, c := range map[string]struct {
		holder, waiter string
		hold, wait     []LockOption
		passes         bool
	}{
		"the same kind":               {"mutex", "mutex", renewed, renewed, true},
		"the same kind, with tokens":  {"fenced", "fenced", renewed, renewed, true},
		"a plain one to a fenced one": {"mutex", "fenced", renewed, renewed, false},
		"a fenced one to a plain one": {"fenced", "mutex", renewed, renewed, false},
		"to a lease time":             {"mutex", "mutex", renewed, explicit, false},
		"from a lease time":           {"mutex", "mutex", explicit, renewed, false},
		"between lease times":         {"mutex", "mutex", explicit, explicit, false},
		"string form":                 {"setnx", "setnx", renewed, renewed, true},
		"string form to a lease time": {"setnx", "setnx", renewed, explicit, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				client := newTestClient(t, v.Client(), WithLocalHandoff(time.Second))
				var p passLog
				// A fenced grant reserves tokens for those who wait by then, from the
				// time since the last grant.
				before, err := lockNamed(client, c.holder, "k")(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				p.wait(t, 0, lockNamed(client, c.holder, "k"), 10*time.Millisecond, c.hold...)
				p.wait(t, 1, lockNamed(client, c.waiter, "k"), 0, c.wait...)
				p.wait(t, 2, lockNamed(client, c.holder, "k"), 0, c.hold...) // must not overtake
				time.Sleep(time.Millisecond)
				before.hold.burst.gate.mu.Lock()
				before.hold.watchdog = false // ends in Redis
				before.hold.burst.gate.mu.Unlock()
				mustUnlock(t, before)
				time.Sleep(20 * time.Millisecond)
				sections := p.sections()
				if len(sections) < 2 || sections[1].n != 1 {
					t.Fatalf("sections %v", sections)
				}
				if passed := sections[1].burst == sections[0].burst; passed != c.passes {
					t.Errorf("passed %v, want %v", passed, c.passes)
				}
				if c.waiter == "fenced" && sections[1].token <= sections[0].token {
					t.Errorf("tokens %d, then %d", sections[0].token, sections[1].token)
				}
				p.all.Wait()
			})
		})
	}
}

func TestABurstWithMoreThanOneLeaseIsNotPassed(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		m := virtualClient(t, v, WithLocalHandoff(time.Second)).NewMutex("k")
		outer := mustLock(t, m)
		inner := mustReenter(t, m, outer)
		var p passLog
		p.wait(t, 0, m.Lock, 0)
		mustUnlock(t, outer)
		time.Sleep(100 * time.Millisecond)
		if n := len(p.sections()); n != 0 {
			t.Fatal("the waiter is inside with the inner lease")
		}
		mustUnlock(t, inner)
		p.all.Wait()
	})
}

func TestAPassedLeaseIsRenewedAndToldOfALoss(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		m := virtualClient(t, v, WithLocalHandoff(time.Second)).NewMutex("k")
		start := time.Now()
		first := mustLock(t, m)
		got := make(chan *Lease)
		go func() { got <- mustLock(t, m) }()
		synctest.Wait()
		time.Sleep(500 * time.Millisecond)
		mustUnlock(t, first)
		l := <-got
		if n := v.CountIf(acquireRuns); n != 1 {
			t.Fatalf("%d grants, want the second lease to be passed", n)
		}
		virtualUntil(start, 95*time.Second)
		times := virtualTimes(v.Commands(), start, redistest.Runs(wire.RenewSource))
		if len(times) != 9 || times[0] != 10*time.Second || times[8] != 90*time.Second {
			t.Errorf("renewed at %v", times)
		}
		if err := first.Err(); !errors.Is(err, ErrNotHeld) {
			t.Errorf("the lease before: %v", err)
		}
		v.Mini().FlushAll()
		ctx := l.Context(context.Background())
		virtualUntil(start, 100*time.Second)
		if err := context.Cause(ctx); !errors.Is(err, ErrLost) {
			t.Errorf("after the loss: %v", err)
		}
		if err := l.Unlock(context.Background()); !errors.Is(err, ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
	})
}

func TestTheMaxHoldOfTheNextHolderCounts(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		m := virtualClient(t, v, WithLocalHandoff(time.Second)).NewMutex("k")
		first := mustLock(t, m, WithMaxHold(31*time.Second))
		got := make(chan *Lease, 2)
		go func() { got <- mustLock(t, m, WithMaxHold(40*time.Second)) }()
		synctest.Wait()
		time.Sleep(900 * time.Millisecond)
		mustUnlock(t, first)
		l := <-got
		if n := v.CountIf(acquireRuns); n != 1 {
			t.Fatalf("%d grants, want the second lease to be passed", n)
		}
		start := time.Now()
		ctx := l.Context(context.Background())
		virtualUntil(start, 40*time.Second-time.Millisecond)
		if err := l.Err(); err != nil {
			t.Errorf("before its max hold: %v", err)
		}
		virtualUntil(start, 40*time.Second)
		if err := context.Cause(ctx); !errors.Is(err, ErrLost) {
			t.Errorf("at its max hold: %v", err)
		}
	})
}

func TestABurstIsNotPassedNearTheEndOfItsTrust(t *testing.T) {
	const timeout = 900 * time.Millisecond
	edge := timeout - bootclock.Margin(timeout) - timeout/3
	for at, passes := range map[time.Duration]bool{edge - time.Millisecond: true, edge: false, edge + time.Millisecond: false} {
		inBubble(t, func(t *testing.T, v *redistest.Virtual) {
			c, w := virtualWired(t, v, WithLocalHandoff(time.Second), WithWatchdogTimeout(timeout))
			m := c.NewMutex("k")
			start := time.Now()
			first := mustLock(t, m)
			var p passLog
			p.wait(t, 0, m.Lock, 0)
			w.On(redistest.Runs(wire.RenewSource), redistest.DropRequest).Times(0)
			virtualUntil(start, at)
			mustUnlock(t, first)
			p.all.Wait()
			if n := v.CountIf(acquireRuns); (n == 1) != passes {
				t.Errorf("unlocked after %v, %v before the edge: %d grants", at, edge-at, n)
			}
		})
	}
}

func TestALostBurstIsNotPassed(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, v *redistest.Virtual, c *Client, w *redistest.Wire){
		"the renewal said no": func(_ *testing.T, v *redistest.Virtual, c *Client, _ *redistest.Wire) {
			v.Mini().FlushAll()
			time.Sleep(301 * time.Millisecond)
		},
		"forced by this client": func(t *testing.T, _ *redistest.Virtual, c *Client, w *redistest.Wire) {
			hold := make(chan struct{})
			w.On(redistest.Runs(wire.ReleaseSource), redistest.HoldRequest(hold))
			go func() { _ = c.NewMutex("k").ForceUnlock(context.Background()) }()
			synctest.Wait()
			time.AfterFunc(20*time.Millisecond, func() { close(hold) })
		},
		"forced elsewhere, the message is here": func(t *testing.T, v *redistest.Virtual, _ *Client, _ *redistest.Wire) {
			if err := newTestClient(t, v.Client()).NewMutex("k").ForceUnlock(context.Background()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		},
		"forced elsewhere, the question about it is on its way": func(t *testing.T, v *redistest.Virtual, _ *Client, w *redistest.Wire) {
			time.Sleep(100 * time.Millisecond)
			hold := make(chan struct{})
			w.On(redistest.Runs(wire.RenewSource), redistest.HoldReply(hold))
			if err := newTestClient(t, v.Client()).NewMutex("k").ForceUnlock(context.Background()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			time.AfterFunc(20*time.Millisecond, func() { close(hold) })
		},
		"a message of a release, the question is not yet sent": func(t *testing.T, v *redistest.Virtual, _ *Client, w *redistest.Wire) {
			v.Mini().Publish(channelKeys("k"), "0")
			time.Sleep(time.Millisecond) // answered: still held
			v.Mini().FlushAll()
			v.Mini().Publish(channelKeys("k"), "0")
			synctest.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c, w := virtualWired(t, v, WithLocalHandoff(time.Second), WithWatchdogTimeout(900*time.Millisecond))
				m := c.NewMutex("k")
				first := mustLock(t, m)
				var p passLog
				p.wait(t, 0, m.Lock, time.Second)
				lose(t, v, c, w)
				v.Reset()
				_ = first.Unlock(context.Background()) // lost or not: the waiter must not have it
				time.Sleep(100 * time.Millisecond)
				if sections := p.sections(); len(sections) != 1 {
					t.Fatalf("%d sections, want the waiter inside", len(sections))
				}
				owner, _ := v.Mini().HKeys("k")
				held := c.Held()
				if len(owner) != 1 || owner[0] == ownerOf(first) || len(held) != 1 {
					t.Errorf("the waiter is inside on a burst that Redis does not have: field %v, held %v", owner, held)
				}
				p.all.Wait()
				if s := p.sections()[0]; s.unlockErr != nil {
					t.Errorf("the waiter's Unlock: %v", s.unlockErr)
				}
			})
		})
	}
}

func TestNothingIsPassedWhileTheClientCloses(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v, WithLocalHandoff(time.Second))
		m := c.NewMutex("k")
		first := mustLock(t, m)
		waiting := make(chan error)
		go func() { _, err := m.Lock(context.Background()); waiting <- err }()
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- c.Close() }()
		if err := <-waiting; !errors.Is(err, ErrClosed) {
			t.Errorf("the waiter: %v", err)
		}
		mustUnlock(t, first)
		if err := <-closed; err != nil || v.Mini().Exists("k") {
			t.Errorf("Close: %v, key there %v", err, v.Mini().Exists("k"))
		}
	})
}
