package watchlock

import (
	"context"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// This file is what a gate does for the leases that stand on its burst.

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

// unlock is Lease.Unlock.
//
//  1. Under mu the hold is ended first, and with the last hold the burst: from
//     here on nothing renews it, and no other call can end it.
//  2. The gate stays closed while the release is on its way, so no attempt of
//     ours can meet the key we are about to remove: a relay's own runs behind that.
//  3. A renewal that was on its way is waited for, so that none arrives after
//     Unlock returned. It carries the owner, so it could do no harm.
func (g *gate) unlock(ctx context.Context, h *hold) error {
	b := h.burst
	now := g.c.clock.Now()
	g.mu.Lock()
	lost := b.expireLocked(now)
	last := false
	var r *relay
	var ended ending
	var err error
	switch {
	case h.unlocked:
		err = ErrNotHeld
	case g.c.stopped.Load():
		err = ErrClosed
	case h.lost:
		h.unlocked = true
		err = ErrLost
		if b.over {
			g.c.orphans.add(b.kind(), b.owned(), true)
		}
	default:
		h.unlocked = true
		passed := g.passLocked(h, now)
		ended = b.closeLocked(h, now)
		if last = !passed && b.holds == nil; last {
			b.over = true
			g.held, g.releasing, g.releaseAt = nil, b, now
			g.tried = g.hints
			g.yielding.sent()
			if echoes := g.c.subs.expect(g.keys.Channel, g); echoes > 0 {
				g.echoes = int8(echoes) //nolint:gosec // 2 at most
				g.echoBy = now + echoWait
			}
			r = g.relayLocked(b, now)
		}
	}
	renewing := b.renewing
	g.mu.Unlock()
	tellAll(lost)
	ended.tell()
	if last {
		g.c.dog.remove(b)
		err = g.giveUp(ctx, b, renewing, r)
	}
	if err == nil {
		return nil
	}
	return h.wrap("unlock", err)
}

// giveUp releases a burst in Redis after its last Unlock, by the relay r if there is one,
// and opens the gate unless that has.
func (g *gate) giveUp(ctx context.Context, b *burst, renewing chan struct{}, r *relay) error {
	deadline := g.c.clock.Now() + g.c.cfg.unlockTimeout
	err := g.releaseBurst(ctx, b, deadline, r)
	g.mu.Lock()
	if g.releasing == b {
		g.releasing = nil
		g.driveLocked()
	}
	g.mu.Unlock()
	if renewing != nil {
		g.c.clock.Wait(renewing, deadline)
	}
	g.unref()
	return err
}

// releaseBurst removes b's owner from Redis, trying until the deadline. An
// answer that the lock was not ours is no loss when an earlier try, sent while
// the lease was trusted, may have been the one that removed it.
func (g *gate) releaseBurst(ctx context.Context, b *burst, deadline time.Duration, r *relay) error {
	covered := false
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		left := max(deadline-g.c.clock.Now(), time.Millisecond)
		do := g.c.runner.On(ctx, left, nil)
		if left >= transport.MostOfAFlight {
			do = g.c.runner.Here(ctx)
		}
		var got wire.Answers
		var res transport.Result
		if r != nil {
			got, res = g.relay(do, b, r)
			r = nil // once
			if res.Fate == transport.Refused || res.Fate == transport.Later {
				continue // nothing has changed, and a plain release may be answered otherwise
			}
		} else {
			got, res = g.releaseOnce(do, b)
		}
		switch res.Fate {
		case transport.Replied:
			if got.Mine(0) || covered {
				o := b.owned()
				g.c.ghosts.remember(b.kind(), &o)
				return nil
			}
			return ErrLost
		case transport.Unsent:
			covered = covered || res.Astray && res.SentAt < time.Duration(b.trusted.Load())
		case transport.Unknown, transport.Dubious:
			covered = covered || res.SentAt < time.Duration(b.trusted.Load())
		}
		if res.Fate.Vain() || g.c.clock.Now()+pause >= deadline {
			g.c.orphans.add(b.kind(), b.owned(), true)
			return res.Err
		}
		g.c.clock.Wait(nil, g.c.clock.Now()+pause)
	}
}

// owned is what a script needs to act for the burst.
func (b *burst) owned() wire.Owned {
	return wire.Owned{Keys: b.keys(), Owner: b.owner, Lease: b.lease}
}

// reenter makes one more lease on the burst of outer, which the caller's context
// carries. It sends something only when the new lease needs more time than the
// burst has and gets.
//
//  1. Outer is live when the new hold is made, under the same mutex, so the new
//     hold never starts afresh on a lock that was lost in between.
//  2. An extension is confirmed before the hold is made. One whose answer is
//     lost extends no trust; the next carries the same owner and never shortens.
func (g *gate) reenter(ctx context.Context, outer *hold, w want, caller uintptr, wait time.Duration) (*Lease, error) {
	b, start := outer.burst, g.c.clock.Now()
	var missed misses
	end := start + w.lease - bootclock.Margin(w.lease)
	for {
		now := g.c.clock.Now()
		g.mu.Lock()
		endings := b.expireLocked(now)
		err := outer.reasonLocked()
		// Near the end of a max hold a renewal sets a short TTL, which may end
		// before the next is due.
		trusted := time.Duration(b.trusted.Load())
		enough := end <= trusted || w.watchdog && b.due < trusted-g.c.dog.early()
		var l *Lease
		if err == nil && enough {
			l = b.holdLocked(w, outer.token, end, start, caller)
			if w.watchdog && b.due == bootclock.Never {
				b.due = now + w.lease/3
			}
		}
		next := b.nextLocked()
		g.mu.Unlock()
		tellAll(endings)
		if err != nil {
			return nil, err
		}
		if l != nil {
			g.c.dog.schedule(b, next)
			return l, nil
		}
		if err := g.extend(ctx, b, w.lease, wait, start, &missed); err != nil {
			return nil, err
		}
	}
}

// extend asks Redis once for a TTL of lease on b. It returns nil when it is
// worth to look again: trust has moved, or there is still time to try.
func (g *gate) extend(ctx context.Context, b *burst, lease, wait, start time.Duration, missed *misses) error {
	k := b.owned()
	k.Lease, k.Longer = lease, lease != g.c.cfg.watchdogTimeout
	left := wait - (g.c.clock.Now() - start)
	timeout := transport.AttemptTimeout
	if wait > 0 {
		timeout = min(timeout, max(left, time.Millisecond))
	}
	verdicts, res := b.kind().Renew(g.c.runner.On(ctx, timeout, ctx.Done()), []wire.Owned{k})
	switch {
	case res.Fate == transport.Replied && verdicts[0] != wire.Unseen:
		g.judged(b, verdicts[0], res, lease)
		*missed = 0
		return nil
	case res.Fate == transport.Replied:
		res.Err = transport.Unavailable(errUnseen)
	}
	left = wait - (g.c.clock.Now() - start)
	if res.Fate.Final() || wait != forever && left <= 0 {
		return res.Err
	}
	pause := missed.pause()
	if wait != forever {
		pause = min(pause, left)
	}
	g.c.clock.Wait(ctx.Done(), g.c.clock.Now()+pause)
	return ctxError(ctx)
}

// judged applies Redis's answer about b, which was asked for at res.sentAt.
func (g *gate) judged(b *burst, v wire.Verdict, res transport.Result, lease time.Duration) {
	now := g.c.clock.Now()
	g.mu.Lock()
	endings := b.expireLocked(now) // an answer that comes after the end changes nothing
	if !b.over && !g.c.runner.Voids(&res) {
		switch v {
		case wire.Kept:
			b.moved = false
			b.failing, b.answered = false, max(b.answered, res.SentAt)
			b.doubted = b.doubted && res.SentAt < b.doubtAt
			if lease > 0 {
				b.raise(res.SentAt + lease - bootclock.Margin(lease))
			}
		case wire.NotMine:
			endings = append(endings, b.takenLocked("Redis no longer has it")...)
		}
	}
	g.mu.Unlock()
	tellAll(endings)
}

// closeLocked ends a hold by its Unlock. That the watchdog may look earlier than
// it now has to does no harm.
func (b *burst) closeLocked(h *hold, now time.Duration) ending {
	b.dropLocked(h)
	if b.watchTTLLocked(now, b.gate.c.cfg.watchdogTimeout) == 0 {
		b.due = bootclock.Never
	}
	return h.endLocked(ErrNotHeld)
}

// wrap puts the lock's name and the operation around err.
func (h *hold) wrap(op string, err error) error {
	return &LockError{Op: op, Name: h.keys.Name, Err: err}
}

// close ends all waiting with ErrClosed and tells the holders, who may still
// unlock.
func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	for g.queue.first != nil {
		g.deliverLocked(g.queue.first, delivery{err: ErrClosed})
	}
	var endings []ending
	if g.held != nil {
		for h := g.held.holds; h != nil; h = h.next {
			endings = append(endings, h.endLocked(ErrClosed))
		}
	}
	g.wakeLocked()
	g.mu.Unlock()
	tellAll(endings)
}

// abandon leaves what is still held to its TTL, and reports whether anything is.
func (g *gate) abandon() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.held
	if b == nil {
		return false
	}
	b.over, g.held = true, nil
	g.c.dog.remove(b)
	g.unref()
	return true
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

// releaseOnce runs the release of b. A kind's argument lives on the heap, so it comes
// from a pool: every uncontended Unlock passes here.
func (g *gate) releaseOnce(do transport.Doer, b *burst) (wire.Answers, transport.Result) {
	room, _ := g.c.rooms.Get().(*[1]wire.Owned)
	if room == nil {
		room = new([1]wire.Owned)
	}
	room[0] = b.owned()
	got, res := b.kind().Release(do, room[:])
	room[0] = wire.Owned{}
	g.c.rooms.Put(room)
	if res.Fate == transport.Replied {
		g.heard(got.Mine(0), got.Told(0))
	}
	return got, res
}
