package watchlock

import (
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// This file is how the next waiter here gets the lock from an Unlock: its burst passed
// in memory, or the lock relayed to a new owner in the script that releases.

// relayMost is for how long relays go on, until the lock is released once for all to see.
const relayMost = 100 * time.Millisecond

// passLocked hands the burst to the first waiter, in place of h, its last hold.
// Nothing is sent: what Redis last confirmed is young enough for both.
//
//  1. Only between holds that the watchdog renews, of one kind: so the TTL in
//     Redis is what the next one wants, and goes on being renewed.
//  2. Only while Redis's last confirmation of the owner is at most the window
//     old, counted from the question, and a third of the watchdog timeout of trust is left: so no section
//     starts on an old belief, and Unlock's nil rests on that confirmation. Only
//     for the window, or our share of it, after the first pass, whatever was confirmed meanwhile: so
//     others wait that long at most before the lock is released.
//  3. Only for the first in the queue, so that passing is fair.
//  4. Not when a message has told of a release that is not ours, until Redis was
//     asked after it and said no; nor when the client closes.
//  5. Not while a client of another kind takes part, Redisson say: it has one
//     section a turn, and would get little of a lock whose other holders have many.
func (g *gate) passLocked(h *hold, now time.Duration) bool {
	b, to := h.burst, g.queue.first
	if to == nil || !g.passesLocked(h, to, now) {
		return false
	}
	token := h.token
	if token != 0 {
		b.spare--
		token++
	}
	if b.passedAt == 0 {
		b.passedAt = now
	}
	lease := b.holdLocked(to.want, token, bootclock.Never, now, to.caller)
	// The watchdog looks each third of its timeout, and a max hold is no shorter
	// than the whole: it will see the new hold's end in time.
	g.deliverLocked(to, delivery{lease: lease}) // to is its caller's again
	return true
}

// passesLocked reports whether the rules let h's burst be passed to the waiter to.
func (g *gate) passesLocked(h *hold, to *waiter, now time.Duration) bool {
	b, window := h.burst, g.c.cfg.localHandoff
	switch {
	case window == 0: // nothing is passed here
	case b.holds != h || h.next != nil: // it is not the last hold
	case !h.watchdog || !to.want.watchdog || to.want.kind != b.kind(): // 1
	case now-b.answered > window: // 2: the confirmation is too old
	case b.passedAt != 0 && now-b.passedAt > g.yielding.share(window): // 2: it was passed for long enough
	case time.Duration(b.trusted.Load())-now <= g.c.cfg.watchdogTimeout/3: // 2: trust ends too soon
	case b.doubted: // 4
	case h.err != nil || g.closed: // 4: Close has ended it
	case g.yielding.foreign(now): // 5
	case h.token != 0 && b.spare == 0: // no token is reserved for the next
	default:
		return true
	}
	return false
}

// heardOfAll reports whether the node that runs the scripts counts all who listen, but
// for those at its replicas.
func (g *gate) heardOfAll() bool {
	return g.keys.Tell == nil || g.keys.Tell == ChannelsSharded.String()
}

// relay is an attempt that an Unlock makes for the first waiter here, in the script
// that releases: one round trip instead of two, and no instant at which the lock is free.
//
//  1. The attempt is one like any other: an owner of its own, trust from before the
//     script was sent, and the driver's place is the Unlock's for as long. If the script
//     has no reply the new owner is an orphan, and the old one is released again,
//     whichever of the two has the lock.
//  2. Nobody who has subscribed at the server that runs the script is passed over: it
//     looks, at the instant of the release, and if anybody but this client hears it,
//     releases and tries nothing.
//  3. Others may wait unseen: they poll, listen at a replica, or came while our own
//     subscription is dead, still counted, and not yet missed here. So there is a release
//     after relayMost of relays, and they have a chance that often.
//  4. The gate opens again with the grant: until then it is releasing, and nobody else
//     tries. What the script did not try goes on as after any release.
type relay struct {
	first  *waiter
	a      *attempt
	before []wire.Owner
}

// relayLocked begins a relay of b's lock at the instant now, if the first waiter wants one
// of its kind. Where a release is told to more than one node, or the client passes nothing
// on, there is none.
func (g *gate) relayLocked(b *burst, now time.Duration) *relay {
	w := g.queue.first
	if w == nil || !g.relaysLocked(b, w, now) {
		g.relaying = 0
		return nil
	}
	if g.relaying == 0 {
		g.relaying = now
	}
	g.startLocked()
	a := g.c.newAttempt()
	return &relay{w, a, g.beginLocked(w, a)}
}

// relaysLocked reports whether b's lock may be relayed to the waiter w.
func (g *gate) relaysLocked(b *burst, w *waiter, now time.Duration) bool {
	switch {
	case g.c.cfg.localHandoff == 0: // nothing goes on here
	case !b.kind().Traits().Relays || w.want.kind != b.kind():
	case !g.heardOfAll(): // 2: the script could not see everybody who listens
	case g.relaying != 0 && now-g.relaying > relayMost: // 3
	case b.doubted: // it may not be ours to hand on
	case g.closed:
	case g.yielding.foreign(now): // it has one section a turn, as when passing
	case g.c.runner.Settling(): // nothing is taken at a new primary yet
	default:
		return true
	}
	return false
}

// relay makes the attempt in the place of b's release.
func (g *gate) relay(do transport.Doer, b *burst, r *relay) (wire.Answers, transport.Result) {
	_, own := g.c.subs.Hears(g.keys.Channel)
	leaving := b.owned()
	do.Whose = transport.Anyway{} // it takes the lock
	r.a.room[0] = r.a.owned()
	got := b.kind().(wire.Relayer).Relay(do, &leaving, &r.a.room[0], own, r.before)
	if got.Res.Fate == transport.Replied {
		g.heard(got.Released.Mine(0), got.Released.Told(0))
	}
	g.mu.Lock()
	if got.Res.Fate == transport.Replied && got.Tried {
		if _, again := g.settleLocked(r.first, r.a, got.Grant, got.Res); again {
			g.stopDrivingLocked() // giveUp has somebody go on
		}
		if g.held != nil {
			g.releasing = nil
		}
	} else {
		if got.Res.Fate.Unsure() || got.Res.Astray {
			g.c.orphans.Add(r.a.want.kind, r.a.owned(), false)
		}
		g.attempt, g.relaying = nil, 0
		g.stopDrivingLocked()
	}
	g.mu.Unlock()
	g.c.reuseAttempt(r.a)
	return got.Released, got.Res
}
