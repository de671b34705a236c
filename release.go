package watchlock

import (
	"context"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// This file is how a lease is given back: Unlock, as far as Redis.

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
			g.c.orphans.Add(b.kind(), b.owned(), true)
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
			if echoes := g.c.subs.Expect(g.keys.Channel, g); echoes > 0 {
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
				g.c.ghosts.Remember(b.kind(), &o)
				return nil
			}
			return ErrLost
		case transport.Unsent:
			covered = covered || res.Astray && res.SentAt < time.Duration(b.trusted.Load())
		case transport.Unknown, transport.Dubious:
			covered = covered || res.SentAt < time.Duration(b.trusted.Load())
		}
		if res.Fate.Vain() || g.c.clock.Now()+pause >= deadline {
			g.c.orphans.Add(b.kind(), b.owned(), true)
			return res.Err
		}
		g.c.clock.Wait(nil, g.c.clock.Now()+pause)
	}
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

// closeLocked ends a hold by its Unlock. That the watchdog may look earlier than
// it now has to does no harm.
func (b *burst) closeLocked(h *hold, now time.Duration) ending {
	b.dropLocked(h)
	if b.watchTTLLocked(now, b.gate.c.cfg.watchdogTimeout) == 0 {
		b.due = bootclock.Never
	}
	return h.endLocked(ErrNotHeld)
}
