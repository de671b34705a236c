package watchlock

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/wire"
)

const (
	firstPoll    = 250 * time.Millisecond // the shortest poll interval of a waiter
	afterExpiry  = 2 * time.Millisecond   // how long after a lease's end to try
	expiryJitter = 10 * time.Millisecond  // so that not all clients try at once
	echoWait     = 100 * time.Millisecond // for the message of our own release
	firstRetry   = 5 * time.Millisecond   // after a try that got no reply
	lastRetry    = 500 * time.Millisecond
	tokensEach   = 64                    // tokens to reserve for each waiter
	mostTokens   = 1024                  // and at most, for one grant
	confirmedAge = time.Second           // of Redis's last word, to ask when a subscription begins
	verifyGap    = 50 * time.Millisecond // between looks caused by messages
	verifyPace   = time.Second           // between looks at all that is held at a server
	longSilence  = time.Second           // without an answer to a wait, to log it
	slowGrants   = 3                     // grants too slow to use before Lock says so
)

// gate stands before one lock of one client while somebody here holds it or
// waits for it. Waiters queue in it in their order; at most one attempt at a
// time, for the first of them, talks to Redis: that of the driver, a goroutine or
// a caller that may block.
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
	keys *wire.Keys

	mu sync.Mutex
	// guarded by mu
	queue     queue
	once      int32 // how many of the queue want one answer only
	driving   bool  // the driver runs
	joined    bool  // subscribed, or asked to be
	closed    bool
	echoes    int8 // messages of our own release that may come yet
	misses    misses
	told      bool          // of the present outage
	silent    time.Duration // since when a wait has no answer; 0: it has
	held      *burst
	releasing *burst        // its release is on its way: not held, not free; nil: none
	releaseAt time.Duration // since when
	relaying  time.Duration // since when the lock is relayed, with no release for all to see; 0: not
	yielding  *yielding     // nil while nobody else was heard of
	echoBy    time.Duration // a release of our like before this is one of those
	attempt   *attempt      // under way; nil: none
	attempts  int           // number of the newest
	want      int           // number of the attempt that somebody new needs
	poke      chan struct{} // one slot, made for the first driver that may sleep
	hints     uint64        // messages and confirmations seen
	tried     uint64        // hints as they stood before the newest attempt
	last      answer
	lastHeld  int // number of the newest attempt answered "held"

	// atomic
	refs atomic.Int64 // calls, bursts and the driver
}

// gateDead is the count of references of a gate that is forgotten.
const gateDead = math.MinInt64 / 2

// ref adds a reference, unless the gate is dead.
func (g *gate) ref() bool {
	for {
		n := g.refs.Load()
		if n < 0 {
			return false
		}
		if g.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// unref drops a reference.
func (g *gate) unref() {
	if g.refs.Add(-1) == 0 && g.c.closed.Load() {
		g.c.checkIdle()
	}
}

// wakeLocked lets the driver look what is new.
func (g *gate) wakeLocked() {
	select {
	case g.poke <- struct{}{}:
	default:
	}
}

// driveLocked has an attempt made for the first waiter, soon.
func (g *gate) driveLocked() {
	if g.held != nil || g.releasing != nil || g.closed || g.queue.n == 0 {
		return
	}
	if g.driving {
		g.wakeLocked()
		return
	}
	g.startLocked()
	g.spawnLocked(0)
}

// startLocked makes the caller the driver.
func (g *gate) startLocked() {
	g.driving = true
	g.ref()
}

// spawnLocked has a goroutine of its own go on with driving.
func (g *gate) spawnLocked(pause time.Duration) {
	if g.poke == nil {
		g.poke = make(chan struct{}, 1)
	}
	if !g.c.spawn(func() { g.drive(pause) }) {
		g.stopDrivingLocked()
	}
}

// tryHere makes the driver's first attempt on the goroutine of the caller, who
// has time for it.
func (g *gate) tryHere() {
	if pause, again := g.try(); again {
		g.mu.Lock()
		g.spawnLocked(pause)
		g.mu.Unlock()
	}
}

func (g *gate) stopDrivingLocked() {
	g.driving = false
	if g.queue.n == 0 {
		g.misses, g.silent = 0, 0 // the next wait is another's
		g.unsubscribeLocked()
	}
	g.unref()
}

// drive makes attempts until the lock is granted or nobody waits.
func (g *gate) drive(pause time.Duration) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for again := true; again; {
		if pause > 0 && g.haunted() {
			pause = firstRetry
		}
		if pause > 0 {
			g.sleep(timer, pause)
		}
		g.yield()
		pause, again = g.try()
	}
}

// try makes one attempt, or ends the driver.
func (g *gate) try() (pause time.Duration, again bool) {
	g.c.runner.Settled(g.c.stopping)
	w, a, before, ok := g.begin()
	if !ok {
		return 0, false
	}
	a.room[0] = a.owned()
	a.room[0].First = !g.c.rights.Known(a.want.kind)
	do := g.c.runner.Here(w.ctx)
	do.Whose = g
	got, res := a.want.kind.Acquire(do, &a.room[0], before)
	if a.room[0].First && got.Taken {
		g.c.rights.Learn(a.want.kind)
	}
	g.mu.Lock()
	pause, again = g.settleLocked(w, a, got, res)
	g.mu.Unlock()
	g.c.reuseAttempt(a)
	return pause, again
}

// haunted reports whether the newest attempt was refused for an owner that this client has
// released, and that another server still has.
func (g *gate) haunted() bool {
	g.mu.Lock()
	refused := g.lastHeld == g.attempts && g.attempts > 0
	g.mu.Unlock()
	return refused && g.c.ghosts.Suspects(g.keys.Key) && g.c.ghosts.Exorcise(g.keys.Kind, g.keys)
}

// Wanted reports whether anybody still waits for an attempt.
func (g *gate) Wanted() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.queue.n > 0 && !g.closed
}

// begin starts an attempt for the first waiter, or ends the driver.
func (g *gate) begin() (w *waiter, a *attempt, before []wire.Owner, ok bool) {
	a = g.c.newAttempt()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.held != nil || g.releasing != nil || g.queue.n == 0 {
		g.stopDrivingLocked()
		g.c.reuseAttempt(a)
		return nil, nil, nil, false
	}
	w = g.queue.first
	return w, a, g.beginLocked(w, a), true
}

// beginLocked makes a the attempt under way, for w, and returns the owners that it is
// to take over.
func (g *gate) beginLocked(w *waiter, a *attempt) []wire.Owner {
	g.tried = g.hints
	g.yielding.try()
	g.attempts++
	a.n, a.owner, a.want, a.sentAt = g.attempts, g.c.newOwner(), w.want, g.c.clock.Now()
	if others := g.queue.n - 1; others > 0 && g.c.cfg.localHandoff > 0 {
		a.reserve = min(others*tokensEach, mostTokens)
	}
	g.attempt = a
	return g.c.orphans.Of(g.keys.Key)
}

// sleep waits for a reason to try: a hint, somebody who needs an answer of its
// own, or the end of pause. It also returns when there is nobody to try for.
// The hints were counted before the attempt that came to nothing, so one that
// came during it is not slept over.
func (g *gate) sleep(timer *time.Timer, pause time.Duration) {
	timer.Reset(pause)
	for {
		g.mu.Lock()
		try := g.closed || g.queue.n == 0 || g.hints != g.tried || g.want > g.attempts
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
	g.unref()
}

// heard notes how many a release of ours was told to. When some of them are not
// this client, they go first.
func (g *gate) heard(freed bool, told int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	echoes, counted := g.c.subs.Hears(g.keys.Channel)
	if told == 0 && (!freed || counted == echoes) {
		g.echoBy = 0 // nothing comes back
	}
	switch {
	case freed && told > counted:
		g.othersLocked().begin(int16(min(told-counted, mostTurns)), g.c.clock.Now()) //nolint:gosec // it fits
	case freed && g.yielding != nil:
		g.yielding.others = 0
	}
}

// yield has the driver wait while others go first.
func (g *gate) yield() {
	for {
		g.mu.Lock()
		now := g.c.clock.Now()
		for w := g.queue.first; w != nil && g.yielding.until() > now; w = w.behind {
			if w.hurried(now) { // it came before the release, or has waited since
				g.yielding.stop()
			}
		}
		left := g.yielding.until() - now
		if left > 0 {
			g.yielding.listened = true
			g.subscribeLocked() // to hear that they have been
		}
		g.mu.Unlock()
		if left <= 0 {
			return
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-g.poke: // a turn was had, or somebody came who cannot wait
		case <-g.c.stopping:
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// othersLocked is the gate's yielding, made for the first other client.
func (g *gate) othersLocked() *yielding {
	if g.yielding == nil {
		g.yielding = &yielding{}
	}
	return g.yielding
}
