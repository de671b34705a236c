package watchlock

import (
	"context"
	"errors"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// This file is what takes a lock away, or lets it be kept for longer.

// Extend makes a lease with a lease time end d from now, unless it already ends
// later: it never shortens, and then it changes nothing and returns nil. d is in
// whole milliseconds, at least 10 ms; a WithMaxHold still bounds the hold. It
// makes one attempt, of at most 1 s or until ctx ends. After an error the lease
// ends when it did before, whatever Redis may have done.
//
// On a lease that the watchdog renews it returns errors.ErrUnsupported, and so in
// the string form for a user who may not run scripts; on one that has ended, that
// lease's error.
func (l *Lease) Extend(ctx context.Context, d time.Duration) error {
	if l == nil {
		return &LockError{Op: "extend", Err: ErrNotHeld}
	}
	h := l.hold
	if err := checkDuration("extension", d, minLeaseTime); err != nil {
		return h.wrap("extend", err)
	}
	if h.watchdog {
		return h.wrap("extend", errors.ErrUnsupported)
	}
	return h.burst.gate.extendHold(ctx, l, d)
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

// force releases owner, whoever that is, and ends the burst if it is ours.
//
//  1. The burst ends first, so that its holder is told before anybody else can
//     be granted the lock.
//  2. The release names the owner that was read. However often it is sent, it
//     can only remove that one. An answer that it was gone is as good: it had
//     been there, and is no longer.
func (g *gate) force(ctx context.Context, k wire.Kind, keys *wire.Keys, owner wire.Owner) error {
	g.mu.Lock()
	var endings []ending
	switch b := g.held; {
	case b != nil && b.owner == owner:
		endings = b.takenLocked("it was forced open")
	case g.attempt != nil && g.attempt.owner == owner:
		g.attempt.forced = true // its grant is on its way here
	}
	g.mu.Unlock()
	tellAll(endings)
	deadline := g.c.clock.Now() + g.c.cfg.unlockTimeout
	o := wire.Owned{Keys: keys, Owner: owner}
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		left := max(deadline-g.c.clock.Now(), time.Millisecond)
		_, res := k.Release(g.c.runner.On(ctx, left, ctx.Done()), []wire.Owned{o})
		if res.Fate == transport.Replied {
			return nil
		}
		if err := ctxError(ctx); err != nil {
			return err
		}
		if res.Fate.Vain() || g.c.clock.Now()+pause >= deadline {
			return res.Err
		}
		g.c.clock.Wait(ctx.Done(), g.c.clock.Now()+pause)
	}
}
