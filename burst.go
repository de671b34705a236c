package watchlock

import (
	"sync/atomic"
	"time"

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

// raise moves trust to at, never back.
func (b *burst) raise(at time.Duration) {
	if int64(at) > b.trusted.Load() {
		b.trusted.Store(int64(at))
	}
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

// nextLocked is when the watchdog must look at b again: a renewal, the end of
// trust or the end of a hold.
func (b *burst) nextLocked() time.Duration {
	next := time.Duration(b.trusted.Load())
	if b.renewing == nil { // else Redis is being asked about it
		next = min(next, b.due, b.verifyAt)
	}
	for h := b.holds; h != nil; h = h.next {
		next = min(next, time.Duration(h.end.Load()))
	}
	return next
}

// verifyLocked has Redis asked about b at the instant at, or earlier if that is
// planned, and returns when the watchdog must look.
func (b *burst) verifyLocked(at time.Duration) time.Duration {
	b.doubted, b.doubtAt = true, b.gate.c.clock.Now()
	b.verifyAt = min(b.verifyAt, at)
	return b.nextLocked()
}

// owned is what a script needs to act for the burst.
func (b *burst) owned() wire.Owned {
	return wire.Owned{Keys: b.keys(), Owner: b.owner, Lease: b.lease}
}
