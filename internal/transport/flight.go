package transport

import (
	"context"
	"errors"
	"slices"
	"time"
)

// This file is what happens to one flight of a lane.

// send carries one flight to Redis and back.
func (l *lane) send(batch []*ticket) (trip time.Duration, answered bool) {
	if batch = stillWanted(batch); len(batch) == 0 {
		return 0, false
	}
	ctx, cancel := l.context(batch)
	defer cancel()
	l.r.fresh(ctx)
	if batch = l.settled(batch); len(batch) == 0 {
		return 0, false
	}
	term, on := l.r.Term(), l.r.link() // in this order: see primary
	sentAt := l.clock.Now()
	for _, t := range batch {
		t.wire.fill(ctx, &t.call, on, l.whole(t.call.Script))
	}
	carry(ctx, l.r.rdb, batch)
	if again := l.again(batch); len(again) > 0 && l.clock.Now()-sentAt < AttemptTimeout/2 {
		for _, t := range again {
			t.wire.fill(ctx, &t.call, on, true)
		}
		carry(ctx, l.r.rdb, again)
		l.again(again)
	}
	trip = l.clock.Now() - sentAt
	for _, t := range batch {
		t.res = t.wire.result(ctx, &t.call)
		t.res.SentAt, t.res.Took, t.res.term = sentAt, trip, term
		l.r.unconnected(&t.res)
		l.r.Stale(&t.res)
		answered = answered || t.res.Fate != Unknown && t.res.Fate != Unsent
		l.r.observe(l.r.Site(t.call.key()), &t.res, sentAt)
	}
	return trip, answered
}

// ErrUnwanted is the outcome of a call that nobody waited for when its turn came.
var ErrUnwanted = errors.New("nobody waits for it any more")

// stillWanted is what is left of a batch without what nobody waits for any more: that is
// not sent.
func stillWanted(batch []*ticket) []*ticket {
	for i, t := range batch {
		if t.whose == nil || t.whose.Wanted() {
			continue
		}
		left := slices.Clone(batch[:i])
		t.res = Result{Fate: Unsent, Err: ErrUnwanted}
		return append(left, stillWanted(batch[i+1:])...)
	}
	return batch
}

// settled is what is left of a batch without what takes a lock, when another server has just
// become the primary.
func (l *lane) settled(batch []*ticket) []*ticket {
	if !l.r.Settling() {
		return batch
	}
	return slices.DeleteFunc(slices.Clone(batch), func(t *ticket) bool {
		if t.whose != nil {
			t.res = Result{Fate: Later, Err: Unavailable(errSettles), SentAt: l.clock.Now(), term: l.r.Term()}
		}
		return t.whose != nil
	})
}

// whole reports whether s is to be sent with its whole source: where the user may not name
// it, and once after the server was found to have forgotten scripts.
func (l *lane) whole(s *Script) bool {
	if s == nil || !l.r.unnamed.Load() && !l.forgot.Load() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.r.unnamed.Load() || !l.known[s]
}

// again is the calls of a batch whose scripts the server did not know by name, or would
// not run by name for this user: they certainly did not run. That is remembered, for there
// may be no time left to send them in this attempt.
func (l *lane) again(batch []*ticket) (again []*ticket) {
	for _, t := range batch {
		s := t.call.Script
		if s == nil {
			continue
		}
		switch came, named, err := t.wire.asked(); {
		case err == nil:
			if came && !named && l.forgot.Load() {
				l.note(s)
			}
		case isNoScript(err):
			l.note(nil)
			again = append(again, t)
		case named && noNames(err):
			l.r.unnamed.Store(true)
			again = append(again, t)
		case !named && Forbidden(err):
			l.r.unnamed.Store(false) // that is no way either
		}
	}
	return again
}

// note remembers that the server knows a script again or, without one, that it has
// forgotten them: it forgets all together.
func (l *lane) note(s *Script) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s == nil || l.known == nil {
		l.known = make(map[*Script]bool)
	}
	if s != nil {
		l.known[s] = true
	}
	l.forgot.Store(true)
}

// carry sends the commands of tickets, alone or in a pipeline, through the hooks of the
// caller's client.
func carry(ctx context.Context, rdb commander, batch []*ticket) {
	var said error
	if len(batch) == 1 && len(batch[0].wire.cmds) == 1 {
		said = rdb.Process(ctx, batch[0].wire.cmds[0])
	} else {
		pipe := rdb.Pipeline()
		for _, t := range batch {
			for _, cmd := range t.wire.cmds {
				_ = pipe.Process(ctx, cmd) // only queues
			}
		}
		_, said = pipe.Exec(ctx)
	}
	said = explained(said, batch)
	for _, t := range batch {
		t.wire.arrive(said)
	}
}

// context is the context of a flight. It ends some time after attemptTimeout, so
// that a full pool or a dial that hangs cannot keep the flight for longer; a read
// is bounded by the connection's own timeout. Flights that start at about the
// same time share one. A lone call's values come along, for the hooks of the client.
func (l *lane) context(batch []*ticket) (context.Context, context.CancelFunc) {
	if l.exact {
		longest := time.Duration(0)
		for _, t := range batch {
			longest = max(longest, t.timeout)
		}
		return context.WithTimeout(context.WithoutCancel(batch[0].values), longest)
	}
	now := l.clock.Now()
	l.mu.Lock()
	if l.shared == nil || now-l.sharedAt >= FlightsShare {
		l.shared, l.sharedAt = newFlightContext(AttemptTimeout+FlightsShare), now
	}
	shared := l.shared
	l.mu.Unlock()
	if len(batch) > 1 || batch[0].values == l.root {
		return shared, func() {}
	}
	return valuesContext{shared, batch[0].values}, func() {}
}

// flightContext ends at an instant.
type flightContext struct {
	at   time.Time
	done chan struct{}
}

func newFlightContext(d time.Duration) *flightContext {
	c := &flightContext{time.Now().Add(d), make(chan struct{})}
	time.AfterFunc(d, func() { close(c.done) })
	return c
}

func (c *flightContext) Deadline() (time.Time, bool) { return c.at, true }

func (c *flightContext) Done() <-chan struct{} { return c.done }

func (c *flightContext) Value(any) any { return nil }

func (c *flightContext) Err() error {
	select {
	case <-c.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// valuesContext ends with one context and has the values of another.
type valuesContext struct {
	*flightContext
	values context.Context
}

func (c valuesContext) Value(key any) any { return c.values.Value(key) }
