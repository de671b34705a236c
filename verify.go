package watchlock

import (
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/orphans"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// This file is how the watchdog has Redis asked, before a renewal is due, whether what is
// held still stands.

const (
	tickPace  = time.Second            // between looks at where things are held
	keepAfter = 250 * time.Millisecond // what is held for longer has an ear at its server
)

// back follows a server's first answer after it had given none: unless a connection with a
// reader proves to have been open to it all the time, it may be another, or empty.
func (d *watchdog) back(at *transport.Site) {
	if !d.c.subs.Prove(at) {
		d.verify(at)
	}
}

// tick does what is due each second while something is held, and soon after the first of it.
// It returns when to come back.
func (d *watchdog) tick(now time.Duration) time.Duration {
	d.mu.Lock()
	due, held := now >= d.tickAt, len(d.heap) > 0
	if due && held {
		d.tickAt = now + tickPace
	}
	at := d.tickAt
	if !due { // planned, also if what it was planned for has ended: there may be more by then
		d.wakeAt = min(d.wakeAt, at)
	}
	d.mu.Unlock()
	if !due {
		return at
	}
	cluster := d.c.runner.Cluster != nil
	if !held {
		if !cluster || d.c.ghosts.Count() == 0 {
			return bootclock.Never
		}
		at = now + tickPace
	}
	if cluster {
		d.replaced()
		d.c.ghosts.Moved()
	}
	if held {
		d.keepEars(now)
		if p := d.c.runner.Primary; p != nil {
			p.Touch()
		}
	}
	return at
}

// keepEars has a connection with a reader open to each server at which something has been
// held for some time.
func (d *watchdog) keepEars(now time.Duration) {
	at := make(map[*transport.Site]bool)
	for _, g := range d.c.allGates() {
		if d.c.runner.Cluster == nil && len(at) > 0 {
			break
		}
		g.mu.Lock()
		old := g.held != nil && now-g.held.first.since >= keepAfter
		g.mu.Unlock()
		if old {
			at[d.c.runner.Site(g.keys.Key)] = true
		}
	}
	d.mu.Lock()
	d.eared = len(at) > 0
	d.mu.Unlock()
	d.c.subs.Keep(at)
}

// replaced has asked about what is held in slots that another node of the cluster has by now.
func (d *watchdog) replaced() {
	for _, g := range d.c.allGates() {
		at := d.c.runner.Site(g.keys.Key)
		g.mu.Lock()
		b, next := g.held, bootclock.Never
		if b != nil && b.at != at {
			b.at = at
			next = b.verifyLocked(d.c.clock.Now())
		}
		g.mu.Unlock()
		if next != bootclock.Never {
			d.schedule(b, next)
		}
	}
}

// moved has everything asked about that is held, since another server is the primary. What
// the old one kept since the change does not count there: trust is cut to what is sure, if
// the change was named as soon as it is as a rule.
func (d *watchdog) moved() {
	now := d.c.clock.Now()
	sure := max(d.c.cfg.watchdogTimeout*2/3-transport.NamedWithin, transport.LeastVerified)
	for _, g := range d.c.allGates() {
		g.mu.Lock()
		b, next := g.held, bootclock.Never
		if b != nil {
			if b.moved = true; b.due != bootclock.Never {
				b.trusted.Store(min(b.trusted.Load(), int64(now+sure)))
			}
			next = b.verifyLocked(now)
		}
		g.mu.Unlock()
		if b != nil {
			d.schedule(b, next)
		}
	}
}

// verify has a server asked about everything that is held there: after an outage it may
// have lost it. It does so once in verifyPace.
func (d *watchdog) verify(at *transport.Site) {
	now := d.c.clock.Now()
	due := now
	for {
		last := at.VerifiedAt.Load()
		if last > int64(now) {
			return // it is planned
		}
		if last != 0 {
			due = max(now, time.Duration(last)+verifyPace)
		}
		if at.VerifiedAt.CompareAndSwap(last, int64(due)) {
			break
		}
	}
	d.c.ghosts.Again(func(r *orphans.Released) bool { return r.At == at })
	for _, g := range d.c.allGates() {
		if d.c.runner.Site(g.keys.Key) != at {
			continue
		}
		g.mu.Lock()
		b, next := g.held, bootclock.Never
		if b != nil {
			next = b.verifyLocked(due)
		}
		g.mu.Unlock()
		if b != nil {
			d.schedule(b, next)
		}
	}
}
