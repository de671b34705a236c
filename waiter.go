package watchlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// waiter is one call of Lock or TryLock in the queue.
type waiter struct {
	// immutable
	ctx    context.Context // for its values
	op     string
	want   want
	once   bool          // one attempt is all it wants
	here   bool          // its goroutine may make the attempt
	until  time.Duration // when the wait ends; never when nothing but a cancellation ends it
	self   bool          // found the lock held by this client; set by join, for its caller
	caller uintptr
	since  time.Duration
	ready  chan delivery // one slot; at most one delivery

	// guarded by gate.mu
	queued         bool
	before, behind *waiter // in the queue
	from           int     // the first attempt whose answer is for it too
	met            bool    // found the lock held by this client
	slow           int     // grants that came too late for it
}

// delivery ends a wait.
type delivery struct {
	lease *Lease
	err   error
}

// join queues w at the instant now, or answers it on the spot.
func (g *gate) join(w *waiter, now time.Duration, ends bool) (d delivery, answered, lead bool) {
	g.mu.Lock()
	endings := g.expireLocked(now)
	defer tellAll(endings)
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return delivery{err: ErrClosed}, true, false
	case g.held != nil && w.once:
		return delivery{err: g.busyLocked(w, now)}, true, false
	}
	g.queue.push(w)
	w.met, w.self = g.held != nil, g.held != nil
	w.from = g.attempts + 1
	if w.once {
		// "Held" from an attempt that started before this call would be stale.
		g.once++
	} else if g.attempt != nil {
		w.from = g.attempt.n
	}
	if (ends || w.once) && g.held == nil && g.releasing == nil {
		// It may have to answer "busy", which only Redis can say.
		g.want = max(g.want, w.from)
	}
	if w.hurried(now) {
		g.yielding.stop()
	}
	if g.held != nil {
		g.subscribeLocked()
		return delivery{}, false, false
	}
	if w.here && !g.c.runner.Settling() && !g.driving && g.releasing == nil && g.yielding.until() <= now {
		g.startLocked()
		return delivery{}, false, true
	}
	g.driveLocked()
	return delivery{}, false, false
}

// warnSelf tells once that a wait is behind this very client.
func (g *gate) warnSelf(w *waiter) {
	g.c.warnOnce(&g.c.warnedSelf, "waiting for a lock that this client holds; "+
		"to re-enter instead, lock with the context from Lease.Context", w.want.keys.Name)
}

// leave ends a wait from outside: by its own timer or context. It returns what
// was delivered meanwhile, or why nothing was.
func (g *gate) leave(w *waiter) (delivery, error) {
	now := g.c.clock.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case d := <-w.ready:
		return d, nil
	default:
	}
	err := g.whyLocked(w, now)
	g.removeLocked(w)
	// The wake-up it may have had goes to whoever is first now.
	g.wakeLocked()
	return delivery{}, err
}

// whyLocked is the reason that a wait ended without the lock, from what is
// known at now: a truth about the lock only if Redis, or this client as the
// holder, said so.
func (g *gate) whyLocked(w *waiter, now time.Duration) error {
	a := g.attempt
	switch {
	case g.held != nil:
		return g.busyLocked(w, now)
	case a != nil && a.n >= w.from && now-a.sentAt >= transport.AttemptTimeout:
		return transport.Unavailable(transport.NoAnswer(now - a.sentAt))
	case g.releasing != nil && now-g.releaseAt >= transport.AttemptTimeout:
		return transport.Unavailable(transport.NoAnswer(now - g.releaseAt))
	case g.last.n >= w.from && g.last.err != nil:
		return g.last.err
	case g.last.n >= w.from:
		return g.busyLocked(w, now)
	case w.met:
		return &LockError{Op: w.op, Name: w.want.keys.Name, Err: ErrNotAcquired}
	}
	return transport.Unavailable(transport.NoAnswer(now - w.since))
}

// busyLocked is ErrNotAcquired with what is known of the holder's lease.
func (g *gate) busyLocked(w *waiter, now time.Duration) error {
	err := &LockError{Op: w.op, Name: w.want.keys.Name, Err: ErrNotAcquired}
	switch {
	case g.held != nil:
		err.TTL = time.Duration(g.held.trusted.Load()) - now
	case g.last.ttl < 0:
		err.TTL = g.last.ttl
	case g.last.err == nil:
		err.TTL = max(0, g.last.ttl-(now-g.last.at))
	}
	return err
}

// removeLocked takes w out of the queue, if it is in it.
func (g *gate) removeLocked(w *waiter) {
	if !w.queued {
		return
	}
	g.queue.remove(w)
	if w.once {
		g.once--
	}
	if g.queue.n == 0 && !g.driving {
		g.unsubscribeLocked()
	}
}

// deliverLocked ends w's wait.
func (g *gate) deliverLocked(w *waiter, d delivery) {
	g.removeLocked(w)
	w.ready <- d
}

// answerOnceLocked ends the waits that asked for one answer and have it now.
func (g *gate) answerOnceLocked(n int, err func(*waiter) error) {
	for w, left := g.queue.first, g.once; w != nil && left > 0; {
		behind := w.behind
		if w.once {
			left--
			if w.from <= n {
				g.deliverLocked(w, delivery{err: err(w)})
			}
		}
		w = behind
	}
}

// lock waits in the queue for a lease. A grant whose trust is gone before it
// reaches the caller is no grant.
func (g *gate) lock(ctx context.Context, op string, wait time.Duration, want want, caller uintptr) (*Lease, error) {
	start, left := g.c.clock.Now(), wait
	now := start
	for tries := 1; ; tries++ {
		w := g.c.newWaiter()
		w.ctx, w.op, w.want, w.once, w.caller, w.since = ctx, op, want, left <= 0, caller, start
		d, err := g.wait(ctx, w, now, left)
		if err != nil {
			return nil, err
		}
		if d.lease != nil {
			// No attempt is under way for it any more: a grant was its end.
			g.c.reuseWaiter(w)
		}
		if d.err != nil || g.check(d.lease.hold) == nil {
			return d.lease, d.err
		}
		_ = d.lease.Unlock(ctx)
		now = g.c.clock.Now()
		if tries >= slowGrants || wait <= 0 {
			return nil, transport.Unavailable(&slowError{now - start, want.lease})
		}
		if wait != forever {
			left = wait - (now - start)
		}
	}
}

// wait queues w at the instant now and returns when something is delivered, the wait
// is over or ctx ends.
func (g *gate) wait(ctx context.Context, w *waiter, now, limit time.Duration) (delivery, error) {
	deadline, ends := ctx.Deadline()
	// An attempt made here must end before the wait does.
	w.here = ctx.Done() == nil && (limit == forever || limit >= transport.MostOfAFlight && w.want.kind.Traits().Trips == 1)
	w.until = bootclock.Never
	if limit != forever {
		w.until = now + max(limit, 0)
	}
	if ends {
		w.until = min(w.until, now+max(time.Until(deadline), 0))
	}
	d, answered, lead := g.join(w, now, ends || limit != forever)
	if answered {
		return d, nil
	}
	if w.self {
		g.warnSelf(w)
	}
	if lead {
		g.tryHere()
		select {
		case d := <-w.ready:
			return d, nil
		default:
		}
		if limit != forever {
			limit = max(0, limit-(g.c.clock.Now()-now))
		}
	}
	if w.once {
		limit = transport.AttemptTimeout
	}
	if limit == forever && ctx.Done() == nil {
		return <-w.ready, nil
	}
	var over <-chan time.Time
	if limit != forever {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case d := <-w.ready:
		return d, nil
	case <-over:
		return g.leave(w)
	case <-ctx.Done():
		return g.gone(ctx, w)
	}
}

// gone is the end of a wait whose context has ended.
func (g *gate) gone(ctx context.Context, w *waiter) (delivery, error) {
	d, why := g.leave(w)
	if d.lease != nil {
		// Granted after the caller had gone: pretend it was not.
		values := w.ctx
		g.c.spawn(func() { _ = d.lease.Unlock(values) })
	}
	err := ctxError(ctx)
	var busy *LockError
	switch {
	case why == nil || !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return delivery{}, err
	case errors.As(why, &busy):
		busy.Err = fmt.Errorf("%w: %w", busy.Err, err)
		return delivery{}, busy
	}
	return delivery{}, errors.Join(why, err)
}

// hurried reports whether w cannot wait for others to go first.
func (w *waiter) hurried(now time.Duration) bool { return w.once || w.until-now <= 2*yieldMost }

// newWaiter is an empty waiter.
func (c *Client) newWaiter() *waiter {
	if w, _ := c.waiters.Get().(*waiter); w != nil {
		return w
	}
	return &waiter{ready: make(chan delivery, 1)}
}

// reuseWaiter takes back a waiter that nobody refers to any more.
func (c *Client) reuseWaiter(w *waiter) {
	*w = waiter{ready: w.ready}
	c.waiters.Put(w)
}
