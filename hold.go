package watchlock

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"weak"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// hold is what one successful Lock has of a burst, and what stays when the
// Lease itself is forgotten.
type hold struct {
	// immutable
	burst   *burst
	keys    *wire.Keys    // with the name that the caller gave
	maxHold time.Duration // 0: none
	token   int64         // of a fenced lock
	caller  uintptr
	since   time.Duration

	// atomic
	end     atomic.Int64 // of this hold alone: its lease time or max hold
	watched atomic.Bool  // somebody can learn of a loss

	watchdog bool // immutable

	// guarded by gate.mu
	lost      bool // it ended by itself, not by Unlock or Close
	unlocked  bool
	warned    bool
	forgotten bool                     // its Lease is unreachable
	pinned    bool                     // lease stays
	next      *hold                    // of the burst's
	err       error                    // why it ended, a sentinel; nil while it is live
	lease     *Lease                   // until the watchdog's first look, or for a caller that has only Done
	seen      weak.Pointer[Lease]      // after that
	done      chan struct{}            // made when it is asked for
	tied      map[<-chan struct{}]*tie // by the Done of the parents
}

// until is the instant from which the hold must not be trusted.
func (h *hold) until() time.Duration {
	return time.Duration(min(h.burst.trusted.Load(), h.end.Load()))
}

// live reports whether the hold may be trusted at now.
func (h *hold) live(now time.Duration) bool { return now < h.until() }

// placeOf is where the lock was taken.
func placeOf(caller uintptr) string {
	f, _ := runtime.CallersFrames([]uintptr{caller}).Next()
	if f.File == "" {
		return "unknown"
	}
	return fmt.Sprintf("%s:%d", f.File, f.Line)
}

// noticeLocked notices a Lease that became unreachable without Unlock. At first the
// hold itself keeps the Lease, which costs a short hold nothing; from the first
// look on only a caller does.
func (h *hold) noticeLocked() {
	switch {
	case h.pinned, h.err != nil: // Close has ended it: its holder may still unlock
	case h.lease != nil:
		h.seen, h.lease = weak.Make(h.lease), nil
	case h.seen.Value() == nil:
		h.forgotten = true
	}
}

// reasonLocked is why the hold ended, for its caller; nil while it is live.
func (h *hold) reasonLocked() error {
	if h.err == nil {
		return nil
	}
	return h.wrap("lease", h.err)
}

// warn logs about a hold.
func (h *hold) warn(note string) {
	h.burst.gate.c.teller.say(line{text: note, lock: h.keys.Name, caller: h.caller})
}

// endLocked gives the hold its end: contexts and Done follow by tell. They have
// heard already when Close ended the hold before.
func (h *hold) endLocked(err error) ending {
	told := h.err != nil
	h.err = err
	if told {
		return ending{}
	}
	e := ending{ties: h.tied, done: h.done}
	if e.ties != nil {
		e.err = h.wrap("lease", err)
	}
	h.tied, h.lease = nil, nil
	return e
}

func closedChan() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// holdLocked makes one more lease on b. since is when its own time began:
// trusted is the end of trust that a grant or an extension of its own earned.
func (b *burst) holdLocked(w want, token int64, trusted, since time.Duration, caller uintptr) *Lease {
	h := &b.first
	if h.burst != nil {
		h = &hold{}
	}
	h.burst, h.keys, h.watchdog, h.maxHold = b, w.keys, w.watchdog, w.maxHold
	h.token, h.caller, h.since = token, caller, since
	end := bootclock.Never
	if !w.watchdog {
		end = trusted
	}
	if w.maxHold > 0 {
		end = min(end, since+w.maxHold)
	}
	h.end.Store(int64(end))
	h.next, b.holds = b.holds, h
	return newLease(h)
}

// check is Lease.Err: it ends what has run out, then answers.
func (g *gate) check(h *hold) error {
	now := g.c.clock.Now()
	g.mu.Lock()
	var endings []ending
	if h.err == nil && !h.live(now) {
		endings = h.burst.expireLocked(now)
	}
	err := h.reasonLocked()
	g.mu.Unlock()
	tellAll(endings)
	return err
}

// done is Lease.Done. A caller that only has the channel still works under the
// lock, so the hold keeps the Lease from then on.
func (g *gate) done(l *Lease) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := l.hold
	h.watched.Store(true)
	switch {
	case h.done != nil:
	case h.err != nil:
		h.done = closedChan()
	default:
		h.done, h.lease, h.pinned = make(chan struct{}), l, true
	}
	return h.done
}

// wrap puts the lock's name and the operation around err.
func (h *hold) wrap(op string, err error) error {
	return &LockError{Op: op, Name: h.keys.Name, Err: err}
}

// heldList lists the live leases.
func (g *gate) heldList() []HeldLock {
	now := g.c.clock.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == nil {
		return nil
	}
	var list []HeldLock
	for h := g.held.holds; h != nil; h = h.next {
		if h.live(now) {
			list = append(list, HeldLock{
				Name: h.keys.Name, Kind: g.held.kind().String(), Caller: placeOf(h.caller),
				Since: g.c.clock.Wall(h.since), ExpiresAt: g.c.clock.Wall(h.until()),
			})
		}
	}
	return list
}

// holdsOf tells how many leases stand on the owner, if it is the burst's.
func (g *gate) holdsOf(owner wire.Owner) (int, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if b := g.held; b != nil && b.owner == owner {
		n := 0
		for h := b.holds; h != nil; h = h.next {
			n++
		}
		return n, true
	}
	return 0, false
}
