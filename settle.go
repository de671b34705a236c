package watchlock

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// This file is what a gate makes of the end of an attempt.

// settleLocked decides what an attempt came to. It returns how long to pause before
// the next, or false when the driver's work is done.
func (g *gate) settleLocked(w *waiter, a *attempt, got wire.Grant, res transport.Result) (pause time.Duration, again bool) {
	now := g.c.clock.Now()
	g.attempt = nil
	if res.Err == transport.ErrUnwanted { //nolint:errorlint // the lane's own
		if g.queue.n == 0 {
			g.stopDrivingLocked()
			return 0, false
		}
		return 0, true
	}
	g.c.runner.Stale(&res)
	g.last = answer{n: a.n, at: res.SentAt, ttl: got.TTL, err: res.Err}
	switch res.Fate {
	case transport.Replied:
		g.misses, g.silent, g.told = 0, 0, false
	case transport.Refused:
		g.silent, g.told = 0, false
	default:
		defer g.silenceLocked(a, res.Err, now)
	}

	if res.Fate == transport.Replied && got.Taken && a.forced {
		res.Fate, res.Err = transport.Unknown, transport.Unavailable(errForced)
		g.last.err = res.Err
	}
	if res.Fate == transport.Replied && got.Taken {
		return g.grantedLocked(w, a, got, res, now)
	}
	if res.Fate == transport.Replied {
		pause = g.heldElsewhereLocked(w, a, got, res, now)
	} else {
		pause = g.missedLocked(w, a, res)
	}
	if g.queue.n == 0 {
		g.stopDrivingLocked()
		return 0, false
	}
	return pause, true
}

// heldElsewhereLocked follows an attempt that found somebody else. It returns how long to
// sleep.
func (g *gate) heldElsewhereLocked(w *waiter, a *attempt, got wire.Grant, res transport.Result, now time.Duration) time.Duration {
	g.lastHeld = a.n
	g.answerOnceLocked(a.n, func(o *waiter) error { return g.busyLocked(o, now) })
	g.subscribeLocked()
	poll := min(max(now-w.since, firstPoll), g.c.cfg.maxPollInterval, a.want.kind.Traits().Poll)
	pause := poll + jitter(poll/10)
	if got.TTL >= 0 {
		// From the question: if that took long to arrive it is too early, and asks again.
		left := max(got.TTL-(now-res.SentAt), 0)
		pause = min(pause, left+afterExpiry+jitter(expiryJitter))
	}
	return pause
}

// missedLocked follows an attempt to which Redis did not say who has the lock. It returns how
// long to pause.
func (g *gate) missedLocked(w *waiter, a *attempt, res transport.Result) (pause time.Duration) {
	switch res.Fate {
	case transport.Refused, transport.Barred:
		g.failLocked(w, a, res.Err)
	case transport.Dubious:
		g.c.orphans.Add(a.want.kind, a.owned(), false)
		g.failLocked(w, a, res.Err)
	case transport.Unsent:
		if res.Astray {
			g.c.orphans.Add(a.want.kind, a.owned(), false)
		}
		if !w.met && g.lastHeld < w.from {
			g.failLocked(w, a, res.Err) // its first answer is that there is no connection
		}
		g.answerOnceLocked(a.n, func(*waiter) error { return res.Err })
		pause = g.misses.pause()
	case transport.Later:
		g.answerOnceLocked(a.n, func(*waiter) error { return res.Err })
		pause = g.misses.pause()
	case transport.Unknown:
		g.c.orphans.Add(a.want.kind, a.owned(), false)
		g.answerOnceLocked(a.n, func(*waiter) error { return res.Err })
		pause = firstRetry
		if res.Took < transport.AttemptTimeout {
			pause = g.misses.pause()
		}
	}
	return pause
}

// silenceLocked notes an attempt that Redis did not answer, or could not answer for now. A
// wait that goes on is silent otherwise, for as long as the outage lasts: so it is logged,
// once for each lock until there is an answer.
func (g *gate) silenceLocked(a *attempt, err error, now time.Duration) {
	w := g.queue.first
	if w == nil {
		return // nobody waits any more
	}
	if g.silent == 0 {
		g.silent = a.sentAt
	}
	if !g.told && now-max(g.silent, w.since) >= longSilence {
		g.told = true
		g.c.teller.say(line{text: "a wait has no answer from Redis, trying again", lock: w.want.keys.Name, err: err})
	}
}

// failLocked ends the wait of w with err, if it still waits, and of those who
// wanted this one answer.
func (g *gate) failLocked(w *waiter, a *attempt, err error) {
	if w.queued {
		g.deliverLocked(w, delivery{err: err})
	}
	g.answerOnceLocked(a.n, func(*waiter) error { return err })
}

// grantedLocked makes a burst of a grant and gives it to the first waiter whom
// it suits, or gives it back.
func (g *gate) grantedLocked(w *waiter, a *attempt, got wire.Grant, res transport.Result, now time.Duration) (time.Duration, bool) {
	trusted := res.SentAt + a.want.lease - bootclock.Margin(a.want.lease)
	slow := trusted-now < a.want.lease/2
	var to *waiter
	for o := g.queue.first; o != nil && !slow && !g.closed; o = o.behind {
		if a.want.suits(o.want) {
			to = o
			break
		}
	}
	if to == nil {
		g.c.orphans.Add(a.want.kind, a.owned(), true)
		if slow {
			g.tooSlowLocked(w, a, res)
		}
		if g.queue.n == 0 {
			g.stopDrivingLocked()
			return 0, false
		}
		return 0, true
	}
	b := &burst{
		gate: g, owner: a.owner, lease: a.want.lease, at: g.c.runner.Site(g.keys.Key),
		spare: int16(min(got.Last-got.Token, mostTokens)), //nolint:gosec // so it fits
		due:   bootclock.Never, verifyAt: bootclock.Never, verified: now - verifyGap, answered: res.SentAt,
	}
	b.raise(trusted)
	g.held = b
	g.yielding.granted(now)
	g.ref()
	lease := b.holdLocked(to.want, got.Token, trusted, now, to.caller)
	if to.want.watchdog {
		b.due = res.SentAt + g.c.cfg.watchdogTimeout/3
	}
	if a.doubted {
		b.verifyLocked(now)
	}
	g.deliverLocked(to, delivery{lease: lease}) // to is its caller's again
	g.c.dog.add(b, b.nextLocked())
	g.answerOnceLocked(math.MaxInt, func(o *waiter) error { return g.busyLocked(o, now) })
	if g.queue.n > 0 {
		g.subscribeLocked()
	}
	g.stopDrivingLocked()
	return 0, false
}

// tooSlowLocked counts a grant that came too late for w, and says so when that
// was the last it was worth.
func (g *gate) tooSlowLocked(w *waiter, a *attempt, res transport.Result) {
	err := transport.Unavailable(&slowError{res.Took, a.want.lease})
	g.last.err = err
	if w.slow++; w.slow >= slowGrants {
		g.failLocked(w, a, err)
	}
	g.answerOnceLocked(a.n, func(*waiter) error { return err })
}

// misses are tries in a row that came to nothing: no answer, or one to come back later.
type misses int8

// pause counts one more, and is how long to wait before the next try: from firstRetry,
// doubled with each miss, to lastRetry. It does not grow with the time waited, or one miss
// would cost a long wait as much as an outage.
func (m *misses) pause() time.Duration {
	p := min(firstRetry<<*m, lastRetry)
	if p < lastRetry {
		*m++
	}
	return p + jitter(p/10)
}

// jitter is a random time up to most, so that clients do not act in step.
func jitter(most time.Duration) time.Duration {
	return rand.N(most + 1) //nolint:gosec // spread, not secrecy
}
