package watchlock

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"weak"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// burst is what a process has of one owner that Redis granted: one trust, one
// renewal, and the leases that stand on it. An owner is in flight until a burst
// is made of it or it is orphaned, both under the gate's mutex, and a burst
// that is over never comes back.
type burst struct {
	// immutable
	gate  *gate
	owner wire.Owner
	lease time.Duration // that the grant took

	// atomic; changes under gate.mu: rises by a confirmed renewal, and is cut when another
	// server becomes the primary
	trusted atomic.Int64

	// guarded by gate.mu
	holds    *hold           // the live ones, the newest first
	first    hold            // the one of the grant: most bursts have no other
	due      time.Duration   // of the next renewal; never when nobody wants one
	verifyAt time.Duration   // when to ask Redis whether the owner still stands; never: no need
	verified time.Duration   // when that was last asked
	answered time.Duration   // when that question was asked which Redis last answered: it is still the owner's
	passedAt time.Duration   // when it was first passed; 0 not yet
	renewing chan struct{}   // closed when the renewal in flight is answered or given up
	spare    int16           // of a fenced lock: tokens reserved with the grant and not given out
	over     bool            // unlocked, lost, or left at Close
	at       *transport.Site // the server that it is renewed at
	moved    bool            // another server has become the primary, and has not confirmed it yet
	alone    bool            // renew in a script of its own: company failed
	apart    bool            // the same, once: company was told to come later
	failing  bool            // the newest renewal failed
	doubted  bool            // a message told of a release that may be ours
	doubtAt  time.Duration   // when; an answer to a later question clears it

	entry entry // guarded by watchdog.mu
}

// keys are those of the first who held it, and the same for all but the name.
func (b *burst) keys() *wire.Keys { return b.first.keys }

func (b *burst) kind() wire.Kind { return b.first.keys.Kind }

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

// lookLocked notices a Lease that became unreachable without Unlock. At first the
// hold itself keeps the Lease, which costs a short hold nothing; from the first
// look on only a caller does.
func (h *hold) lookLocked() {
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

// raise moves trust to at, never back.
func (b *burst) raise(at time.Duration) {
	if int64(at) > b.trusted.Load() {
		b.trusted.Store(int64(at))
	}
}

// ending is a hold that was ended under the gate's mutex and whose contexts are
// to be cancelled after it.
type ending struct {
	ties map[<-chan struct{}]*tie
	done chan struct{}
	err  error
	hold *hold  // to log about; nil for none
	note string // what to log
}

// tell closes what hangs on an ended hold.
func (e ending) tell() {
	for _, t := range e.ties {
		t.untie(e.err)
	}
	if e.done != nil {
		close(e.done)
	}
}

// tellAll tells all holders, and only then the log.
func tellAll(endings []ending) {
	for _, e := range endings {
		e.tell()
	}
	noteAll(endings)
}

// noteAll has what ended logged.
func noteAll(endings []ending) {
	for _, e := range endings {
		if e.hold != nil {
			e.hold.warn(e.note)
		}
	}
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

// dropLocked takes h from the live holds.
func (b *burst) dropLocked(h *hold) {
	for at := &b.holds; *at != nil; at = &(*at).next {
		if *at == h {
			*at, h.next = h.next, nil
			return
		}
	}
}

// expireLocked ends what has run out by now: all of it when the burst's trust
// is over, else each hold past its own end or forgotten. Lost is final.
func (b *burst) expireLocked(now time.Duration) (endings []ending) {
	if b.over {
		return nil
	}
	gone := now >= time.Duration(b.trusted.Load())
	for h := b.holds; h != nil; {
		next := h.next
		if gone || !h.live(now) || h.forgotten {
			endings = append(endings, b.loseLocked(h, "its time ran out")...)
		}
		h = next
	}
	if gone || b.holds == nil {
		b.overLocked()
	}
	return endings
}

// takenLocked ends the whole burst: its owner does not hold any more.
func (b *burst) takenLocked(why string) (endings []ending) {
	for b.holds != nil {
		endings = append(endings, b.loseLocked(b.holds, why)...)
	}
	b.overLocked()
	return endings
}

// loseLocked ends one hold with ErrLost.
func (b *burst) loseLocked(h *hold, why string) []ending {
	b.dropLocked(h)
	h.lost = true
	e := h.endLocked(ErrLost)
	e.hold, e.note = h, "lease lost: "+why
	if h.forgotten {
		e.note = "a lease was dropped without Unlock; its lock is no longer renewed"
	}
	return []ending{e}
}

// overLocked frees the gate after the burst's last hold. Nothing is released in
// Redis: work may still be stopping, so the key is left to its TTL.
func (b *burst) overLocked() {
	b.over = true
	b.gate.freeLocked(b)
}

// watchTTLLocked is the TTL that the watchdog should set at now, 0 when no live
// hold wants renewal. Near the end of the last max hold it shrinks, so that the
// key does not outlive its last possible holder by more than the margin.
func (b *burst) watchTTLLocked(now, timeout time.Duration) time.Duration {
	end := time.Duration(0)
	for h := b.holds; h != nil; h = h.next {
		if h.watchdog {
			end = max(end, time.Duration(h.end.Load()))
		}
	}
	if end <= now {
		return 0
	}
	if end == bootclock.Never {
		return timeout
	}
	left := (end - now + bootclock.Margin(timeout)).Truncate(time.Millisecond) + time.Millisecond
	return min(timeout, left)
}
