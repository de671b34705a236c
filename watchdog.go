package watchlock

import (
	"container/heap"
	"sync"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// bootPace is between two looks at the boot clock while something is held.
const bootPace = time.Second

// watchdog renews the bursts of one client and ends what runs out, on one
// goroutine that lives from the first hold until some time after the last.
// Bursts are due by deadline, so that delays do not add up, and renewed in
// batches. All of a round leave together; one that is not answered holds back the
// next for a few round trips, 50 ms at least.
type watchdog struct {
	c    *Client
	poke chan struct{} // one slot: the earliest due time has changed

	mu sync.Mutex
	// guarded by mu
	heap    bursts
	running bool
	wakeAt  time.Duration // until when run sleeps
	sweepAt time.Duration // before this, only what is due is taken
	tickAt  time.Duration // when to look where things are held
	eared   bool          // there is an ear where something is held
	emptyAt time.Duration // since when nothing is held
}

func newWatchdog(c *Client) *watchdog {
	return &watchdog{c: c, poke: make(chan struct{}, 1)}
}

// interval is between two renewals of a burst.
func (d *watchdog) interval() time.Duration { return d.c.cfg.watchdogTimeout / 3 }

// early is how long before its time a burst is renewed along with others, and
// how soon after a failure again.
func (d *watchdog) early() time.Duration { return d.c.cfg.watchdogTimeout / 30 }

// linger is how long the goroutine outlives the last hold: on a cluster for a lease, while
// what was released may come back with another node.
func (d *watchdog) linger() time.Duration {
	if d.c.runner.Cluster != nil {
		return d.c.cfg.watchdogTimeout
	}
	return d.interval()
}

// add watches b from now on.
func (d *watchdog) add(b *burst, at time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b.entry = entry{at: at, known: true}
	heap.Push(&d.heap, b)
	now := d.c.clock.Now()
	if !d.eared {
		if soon := b.first.since + keepAfter; soon < d.tickAt || d.tickAt <= now {
			d.tickAt = soon
		}
		d.wakeLocked(d.tickAt)
	}
	if !d.running {
		d.running = d.c.spawn(d.run)
		return
	}
	d.wakeLocked(at)
}

// remove forgets b.
func (d *watchdog) remove(b *burst) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b.entry.known = false
	if i := b.entry.index; i > 0 {
		heap.Remove(&d.heap, int(i)-1)
	}
	if len(d.heap) == 0 {
		d.emptyAt = d.c.clock.Now() // run sees it when it wakes anyway
	}
}

// schedule has b looked at by the instant at, unless it was removed. It never puts
// an earlier look off: callers find out the instant under the gate's mutex and say
// it after that, so it may be out of date, and a look too many does no harm.
func (d *watchdog) schedule(b *burst, at time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !b.entry.known {
		return
	}
	switch i := b.entry.index; {
	case i == 0:
		b.entry.at = at
		heap.Push(&d.heap, b)
	case at < b.entry.at:
		b.entry.at = at
		heap.Fix(&d.heap, int(i)-1)
	}
	d.wakeLocked(at)
}

// wakeLocked wakes run if it would sleep past the instant at.
func (d *watchdog) wakeLocked(at time.Duration) {
	if at >= d.wakeAt {
		return
	}
	d.wakeAt = at
	select {
	case d.poke <- struct{}{}:
	default:
	}
}

// run is the watchdog's goroutine. It never sleeps for longer than bootPace: its timer
// stands still while the machine is suspended, so what runs out meanwhile is noticed only
// when the clock is read.
func (d *watchdog) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := d.c.clock.Now()
		due, next, idle := d.take(now)
		if idle {
			d.keepEars(now)
			if d.stop() {
				return
			}
			continue
		}
		for _, batch := range wire.InBatches(d.round(due, now), renewal.batch) {
			d.send(batch)
		}
		if len(due) > 0 {
			continue // some of them may be due again
		}
		timer.Reset(min(min(next, d.tick(now))-d.c.clock.Now(), bootPace))
		select {
		case <-timer.C:
		case <-d.poke:
		case <-d.c.stopping:
			return
		}
	}
}

// take removes what is due, or nearly so, from the heap. next is when to come
// back; idle says that nothing has been held for so long that the goroutine and
// the lane can go.
func (d *watchdog) take(now time.Duration) (due []*burst, next time.Duration, idle bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.heap) > 0 && d.heap[0].entry.at <= now {
		soon := now
		if now >= d.sweepAt {
			soon = now + d.early()
			d.sweepAt = soon // a lease that ends must not tear renewals apart
		}
		for len(d.heap) > 0 && d.heap[0].entry.at <= soon {
			due = append(due, heap.Pop(&d.heap).(*burst))
		}
		d.wakeAt = now // it comes back at once
		return due, now, false
	}
	d.wakeAt = d.emptyAt + d.linger()
	idle = len(d.heap) == 0 && now >= d.wakeAt
	if len(d.heap) > 0 {
		d.wakeAt = d.heap[0].entry.at
	}
	return nil, d.wakeAt, idle
}

// stop ends the goroutine unless something was added.
func (d *watchdog) stop() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.heap) > 0 {
		return false
	}
	d.running = false
	return true
}

// renewal is one burst of a round.
type renewal struct {
	b     *burst
	owned wire.Owned
	key   wire.BatchKey
}

func (r renewal) batch() wire.BatchKey { return r.key }

// round looks at each burst that is due: it ends what has run out, returns what
// is to be renewed or verified, and schedules the rest. All holders are told before
// anything is logged.
func (d *watchdog) round(due []*burst, now time.Duration) (renewals []renewal) {
	var endings []ending
	var unwatched []*hold
	for _, b := range due {
		s := d.inspect(b, now)
		endings, unwatched = append(endings, s.endings...), append(unwatched, s.unwatched...)
		if s.renew {
			renewals = append(renewals, s.renewal)
		}
		d.schedule(b, s.next)
	}
	noteAll(endings)
	for _, h := range unwatched {
		h.warn("a lease is renewed, but nobody has asked for its Context, Done or Err: " +
			"its holder would not learn of a loss")
	}
	return renewals
}

// inspection is what came of inspecting one burst.
type inspection struct {
	renewal   renewal
	renew     bool          // there is one
	next      time.Duration // when to look again
	endings   []ending      // told, but not logged
	unwatched []*hold       // to warn of
}

// inspect decides about one burst at now, and tells the holders of what has ended. It marks a
// renewal as on its way, which Unlock then waits for.
func (d *watchdog) inspect(b *burst, now time.Duration) (s inspection) {
	g := b.gate
	g.mu.Lock()
	for h := b.holds; h != nil; h = h.next {
		h.noticeLocked()
	}
	s.endings, s.unwatched = b.expireLocked(now), d.unwatchedLocked(b, now)
	defer func() {
		g.mu.Unlock()
		for _, e := range s.endings {
			e.tell()
		}
	}()
	if s.next = bootclock.Never; b.over {
		return s
	}
	owned := b.owned()
	owned.Lease = b.watchTTLLocked(now, d.c.cfg.watchdogTimeout)
	if owned.Lease == 0 {
		b.due = bootclock.Never
		if left := time.Duration(b.trusted.Load()) - now; b.moved {
			// What was extended at another server counts at this one only from now on.
			owned.Lease = (left + bootclock.Margin(left)).Truncate(time.Millisecond) + time.Millisecond
		}
	} else {
		// Not below what a longer lease on the same owner has taken.
		left := time.Duration(b.trusted.Load()) - now
		owned.Lease = max(owned.Lease, (left+bootclock.Margin(left)).Truncate(time.Millisecond)+time.Millisecond)
	}
	if b.renewing == nil && (b.verifyAt <= now || b.due <= now+d.early()) {
		b.verifyAt, b.verified = bootclock.Never, now
		b.renewing = make(chan struct{})
		for b.due <= now+d.early() {
			b.due += d.interval()
		}
		s.renewal = renewal{b, owned, wire.BatchOf(d.c.runner, b.kind(), g.keys, b.alone || b.apart)}
		s.renew = true
	}
	s.next = b.nextLocked()
	return s
}

// unwatchedLocked returns the holders that could not have learned of a loss, once.
func (d *watchdog) unwatchedLocked(b *burst, now time.Duration) (holds []*hold) {
	for h := b.holds; h != nil; h = h.next {
		if h.watchdog && !h.warned && !h.watched.Load() && now-h.since >= d.c.cfg.watchdogTimeout-d.early() {
			h.warned = true
			holds = append(holds, h)
		}
	}
	return holds
}

// send renews one batch without waiting for it.
func (d *watchdog) send(batch []renewal) {
	if !d.c.spawn(func() { d.renew(batch) }) {
		for _, r := range batch {
			d.settle(r, wire.Unseen, transport.Result{Fate: transport.Unknown, Err: ErrClosed, SentAt: d.c.clock.Now()}, false)
		}
	}
}

// renew asks Redis about one batch and applies the answer to each burst.
func (d *watchdog) renew(batch []renewal) {
	timeout := min(transport.AttemptTimeout, d.c.cfg.watchdogTimeout/6)
	owned := make([]wire.Owned, len(batch))
	for i, r := range batch {
		owned[i] = r.owned
	}
	verdicts, res := batch[0].b.kind().Renew(d.c.runner.OnLane(d.c.root, timeout), owned)
	for i, r := range batch {
		v := wire.Unseen
		if res.Fate == transport.Replied {
			v = verdicts[i]
		}
		d.settle(r, v, res, len(batch) > 1)
	}
}

// settle applies the verdict on one burst and schedules what comes next. A
// failure is tried again soon, alone if the server refused the whole batch.
func (d *watchdog) settle(r renewal, v wire.Verdict, res transport.Result, company bool) {
	b, g := r.b, r.b.gate
	if v != wire.Unseen {
		g.judged(b, v, res, r.owned.Lease)
	}
	failed := false
	g.mu.Lock()
	close(b.renewing)
	b.renewing = nil
	if v == wire.Unseen && !b.over {
		// What is not answered for all is asked for each: one slot that is half moved, or one
		// key without the right to it, refuses the script of all.
		b.alone = b.alone || company && res.Fate == transport.Refused
		b.apart = company && (res.Fate == transport.Later || res.Fate == transport.Dubious)
		// From its send: one that hangs must not halve the number of tries.
		again := max(d.c.clock.Now(), res.SentAt+d.early())
		if b.apart {
			again = d.c.clock.Now()
		}
		if r.owned.Lease > 0 && !b.moved {
			b.due = min(b.due, again)
		} else {
			b.verifyAt = min(b.verifyAt, again)
		}
		failed, b.failing = !b.failing, true
	}
	next := b.nextLocked()
	g.mu.Unlock()
	d.schedule(b, next)
	if failed {
		d.c.teller.say(line{text: "renewal failed, trying again", lock: b.keys().Name, err: res.Err})
	}
}
