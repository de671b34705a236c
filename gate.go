package watchlock

import (
	"container/list"
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	firstPoll    = 250 * time.Millisecond // the shortest poll interval of a waiter
	afterExpiry  = 2 * time.Millisecond   // how long after a lease's end to try
	expiryJitter = 10 * time.Millisecond  // so that not all clients try at once
	messageGrace = 5 * time.Millisecond   // how long to wait for the message of our own release
	firstRetry   = 5 * time.Millisecond   // after a try that got no reply
	lastRetry    = 500 * time.Millisecond
	verifyGap    = 50 * time.Millisecond // between looks caused by messages
	slowGrants   = 3                     // grants too slow to use before Lock says so
)

// gate stands before one lock of one client while somebody here holds it or
// waits for it. Waiters queue in it in their order; at most one attempt at a
// time, for the first of them, talks to Redis, by the driver goroutine.
//
// The rules that decide who holds are kept under mu:
//
//  1. Each attempt has an owner of its own. When the attempt ends it is granted
//     (a burst is made, held is set), refused (nothing is there), or orphaned
//     (outcome unknown, or nobody wants it any more), and never changes again.
//  2. held is set only by a grant whose trust has begun, and cleared by Unlock,
//     by the end of trust, or by Redis saying no. While it is set, no attempt
//     is made.
//  3. An orphan is never believed: the orphanage releases it by its owner, and
//     the next attempt takes over what it may have taken.
type gate struct {
	// immutable
	c    *Client
	keys lockKeys
	poke chan struct{} // one slot; wakes the driver, which then looks what is new

	mu sync.Mutex
	// guarded by mu
	queue     list.List // of *waiter, first come first
	once      []*waiter // those of the queue that want one answer only
	held      *burst
	releasing bool // our Unlock is on its way: not held, not free
	releaseAt time.Duration
	driving   bool // the driver runs
	joined    bool // subscribed, or asked to be
	closed    bool
	attempt   attempt // the newest
	want      int     // number of the attempt that somebody new needs
	hints     uint64  // messages, confirmations, reconnections seen
	tried     uint64  // hints as they stood before the newest attempt
	last      answer
	lastHeld  int // number of the newest attempt answered "held"

	refs int // guarded by Client.mu: calls, bursts and the driver
}

// attempt is one try to acquire.
type attempt struct {
	n      int
	owner  string
	want   want
	flying bool
	sentAt time.Duration
}

// answer is what the newest finished attempt said.
type answer struct {
	n   int
	at  time.Duration
	ttl time.Duration // of the holder's lease, when err is nil
	err error
}

// want is what a waiter asks for.
type want struct {
	kind     kind
	watchdog bool
	lease    time.Duration // the TTL to take
	maxHold  time.Duration // 0: none
}

// suits reports whether a grant for w can be handed to somebody who wants o.
func (w want) suits(o want) bool { return w.kind == o.kind && w.lease == o.lease }

// wake lets the driver look what is new.
func (g *gate) wake() {
	select {
	case g.poke <- struct{}{}:
	default:
	}
}

// hint says that the lock may have become free: a message, a confirmed
// subscription or a new connection. While we believe we hold, a message means
// that somebody released or forced it, so Redis is asked: at once, or when the
// last such question is verifyGap ago.
func (g *gate) hint(message bool) {
	now := g.c.clock.now()
	g.mu.Lock()
	g.hints++
	b := g.held
	next := never
	if message && b != nil {
		next = b.verifyLocked(max(now, b.verified+verifyGap))
	}
	g.mu.Unlock()
	g.wake()
	if next != never {
		g.c.dog.schedule(b, next)
	}
}

// subscribeLocked asks for the messages of this lock. A subscription that was
// still there may have missed nothing or much, so it counts as a hint.
func (g *gate) subscribeLocked() {
	if g.joined {
		return
	}
	g.joined = true
	if g.c.subs.join(g.keys.channel, g) {
		g.hints++
	}
}

func (g *gate) unsubscribeLocked() {
	if g.joined {
		g.joined = false
		g.c.subs.leave(g.keys.channel, g)
	}
}

// driveLocked has an attempt made for the first waiter, soon.
func (g *gate) driveLocked() {
	if g.held != nil || g.releasing || g.closed || g.queue.Len() == 0 {
		return
	}
	if g.driving {
		g.wake()
		return
	}
	g.startLocked(0)
}

// startLocked starts the driver, which first waits for a hint during pause.
func (g *gate) startLocked(pause time.Duration) {
	g.driving = true
	g.c.retain(g)
	if !g.c.spawn(func() { g.drive(pause) }) {
		g.stopDrivingLocked()
	}
}

func (g *gate) stopDrivingLocked() {
	g.driving = false
	if g.queue.Len() == 0 {
		g.unsubscribeLocked()
	}
	g.c.release(g)
}

// drive makes attempts until the lock is granted or nobody waits.
func (g *gate) drive(pause time.Duration) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if pause > 0 {
			g.sleep(timer, pause)
		}
		w, a, before, ok := g.begin()
		if !ok {
			return
		}
		c := a.want.kind.acquire(ownedKey{g.keys, a.owner, a.want.lease}, before)
		res := g.c.runner.do(w.ctx, c, attemptTimeout, nil)
		if pause, ok = g.settle(w, a, res); !ok {
			return
		}
	}
}

// begin starts an attempt for the first waiter, or ends the driver.
func (g *gate) begin() (w *waiter, a attempt, before []string, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.held != nil || g.releasing || g.queue.Len() == 0 {
		g.stopDrivingLocked()
		return nil, a, nil, false
	}
	w = g.queue.Front().Value.(*waiter)
	g.tried = g.hints
	g.attempt = attempt{g.attempt.n + 1, g.c.newOwner(), w.want, true, g.c.clock.now()}
	return w, g.attempt, g.c.orphans.of(g.keys.key), true
}

// sleep waits for a reason to try: a hint, somebody who needs an answer of its
// own, or the end of pause. It also returns when there is nobody to try for.
// The hints were counted before the attempt that came to nothing, so one that
// came during it is not slept over.
func (g *gate) sleep(timer *time.Timer, pause time.Duration) {
	timer.Reset(pause)
	for {
		g.mu.Lock()
		try := g.closed || g.queue.Len() == 0 || g.hints != g.tried || g.want > g.attempt.n
		g.mu.Unlock()
		if try {
			return
		}
		select {
		case <-g.poke:
		case <-timer.C:
			return
		case <-g.c.stopping:
			return
		}
	}
}

// settle decides what an attempt came to. It returns how long to pause before
// the next, or false when the driver's work is done.
func (g *gate) settle(w *waiter, a attempt, res result) (pause time.Duration, again bool) {
	granted, ttl := false, time.Duration(0)
	if res.fate == replied {
		var err error
		if granted, ttl, err = readAcquire(res.reply); err != nil {
			res.fate, res.err = unknown, err
		}
	}
	orphan := ownedKey{g.keys, a.owner, a.want.lease}
	now := g.c.clock.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.attempt.flying = false
	g.last = answer{n: a.n, at: now, ttl: ttl, err: res.err}
	waited := now - w.since

	if res.fate == replied && granted {
		return g.grantedLocked(w, a, res, now)
	}
	switch res.fate {
	case replied:
		g.lastHeld = a.n
		g.answerOnceLocked(a.n, func(o *waiter) error { return g.busyLocked(o, now) })
		g.subscribeLocked()
		poll := min(max(waited, firstPoll), g.c.cfg.maxPollInterval)
		pause = poll + jitter(poll/10)
		if ttl >= 0 {
			pause = min(pause, ttl+afterExpiry+jitter(expiryJitter))
		}
	case refused:
		g.failLocked(w, a, res.err)
	case unsent:
		if !w.met && g.lastHeld < w.from {
			g.failLocked(w, a, res.err) // its first answer is that there is no connection
		}
		g.answerOnceLocked(a.n, func(*waiter) error { return res.err })
		pause = retryPause(waited)
	case later:
		g.answerOnceLocked(a.n, func(*waiter) error { return res.err })
		pause = retryPause(waited)
	case unknown:
		g.c.orphans.add(a.want.kind, orphan, false)
		g.answerOnceLocked(a.n, func(*waiter) error { return res.err })
		pause = firstRetry
		if res.took < attemptTimeout {
			pause = retryPause(waited)
		}
	}
	if g.queue.Len() == 0 {
		g.stopDrivingLocked()
		return 0, false
	}
	return pause, true
}

// failLocked ends the wait of w with err, if it still waits, and of those who
// wanted this one answer.
func (g *gate) failLocked(w *waiter, a attempt, err error) {
	if w.elem != nil {
		g.deliverLocked(w, delivery{err: err})
	}
	g.answerOnceLocked(a.n, func(*waiter) error { return err })
}

// grantedLocked makes a burst of a grant and gives it to the first waiter whom
// it suits, or gives it back.
func (g *gate) grantedLocked(w *waiter, a attempt, res result, now time.Duration) (time.Duration, bool) {
	trusted := res.sentAt + a.want.lease - margin(a.want.lease)
	slow := trusted-now < a.want.lease/2
	var to *waiter
	for e := g.queue.Front(); e != nil && !slow && !g.closed; e = e.Next() {
		if o := e.Value.(*waiter); a.want.suits(o.want) {
			to = o
			break
		}
	}
	if to == nil {
		g.c.orphans.add(a.want.kind, ownedKey{g.keys, a.owner, a.want.lease}, true)
		if slow {
			g.tooSlowLocked(w, a, res)
		}
		if g.queue.Len() == 0 {
			g.stopDrivingLocked()
			return 0, false
		}
		return 0, true
	}
	b := &burst{gate: g, kind: a.want.kind, owner: a.owner, lease: a.want.lease, due: never, verifyAt: never, verified: now - verifyGap}
	b.raise(trusted)
	g.held = b
	g.c.retain(g)
	lease := b.holdLocked(to.want, trusted, now, to.caller)
	if to.want.watchdog {
		b.due = res.sentAt + g.c.cfg.watchdogTimeout/3
	}
	g.c.dog.add(b, b.nextLocked(), to.want.watchdog)
	g.deliverLocked(to, delivery{lease: lease})
	g.answerOnceLocked(math.MaxInt, func(o *waiter) error { return g.busyLocked(o, now) })
	if g.queue.Len() > 0 {
		g.subscribeLocked()
	}
	g.stopDrivingLocked()
	return 0, false
}

// tooSlowLocked counts a grant that came too late for w, and says so when that
// was the last it was worth.
func (g *gate) tooSlowLocked(w *waiter, a attempt, res result) {
	err := unavailable(&slowError{res.took, a.want.lease})
	g.last.err = err
	if w.slow++; w.slow >= slowGrants {
		g.failLocked(w, a, err)
	}
	g.answerOnceLocked(a.n, func(*waiter) error { return err })
}

// retryPause grows with the time already waited.
func retryPause(waited time.Duration) time.Duration {
	p := min(max(waited, firstRetry), lastRetry)
	return p + jitter(p/10)
}

// jitter is a random time up to most, so that clients do not act in step.
func jitter(most time.Duration) time.Duration {
	return rand.N(most + 1) //nolint:gosec // spread, not secrecy
}

// expireLocked ends what has run out here by now.
func (g *gate) expireLocked(now time.Duration) []ending {
	if g.held == nil {
		return nil
	}
	return g.held.expireLocked(now)
}

// freeLocked follows the end of a burst that was not unlocked.
func (g *gate) freeLocked(b *burst) {
	if g.held != b {
		return
	}
	g.held = nil
	g.c.dog.remove(b)
	g.driveLocked()
	g.c.release(g)
}
