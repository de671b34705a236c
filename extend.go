package watchlock

import (
	"context"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// This file is how leases on a burst become more, or last longer.

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

// extendHold moves the end of an explicit lease.
//
//  1. Nothing is promised before Redis has confirmed the longer TTL, and then
//     only what was earned from before the command was sent.
//  2. The answer is applied under mu to a hold that is still live: an extension
//     confirmed after the end revives nothing.
func (g *gate) extendHold(ctx context.Context, l *Lease, d time.Duration) error {
	h := l.hold
	b := h.burst
	if err := g.check(h); err != nil {
		return err
	}
	if err := ctxError(ctx); err != nil {
		return h.wrap("extend", err)
	}
	if g.c.clock.Now()+d-bootclock.Margin(d) <= time.Duration(h.end.Load()) {
		return nil
	}
	k := b.owned()
	k.Lease, k.Longer = d, true
	verdicts, res := b.kind().Renew(g.c.runner.On(ctx, transport.AttemptTimeout, ctx.Done()), []wire.Owned{k})
	switch {
	case res.Fate != transport.Replied:
		if err := ctxError(ctx); err != nil {
			res.Err = err
		}
		return h.wrap("extend", res.Err)
	case verdicts[0] == wire.Unseen:
		return h.wrap("extend", transport.Unavailable(errUnseen))
	}
	if g.c.runner.Voids(&res) {
		return h.wrap("extend", transport.Unavailable(transport.ErrMoved))
	}
	g.judged(b, verdicts[0], res, d)
	if err := g.check(h); err != nil {
		return err
	}
	g.mu.Lock()
	end := res.SentAt + d - bootclock.Margin(d)
	if h.maxHold > 0 {
		end = min(end, h.since+h.maxHold)
	}
	if h.err == nil && int64(end) > h.end.Load() {
		h.end.Store(int64(end))
	}
	next := b.nextLocked()
	g.mu.Unlock()
	g.c.dog.schedule(b, next)
	return nil
}
