package transport

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
)

const (
	leastPatience = 50 * time.Millisecond // before a flight without an answer holds nobody back
	mostPatience  = 250 * time.Millisecond
	MostOfAFlight = 2*AttemptTimeout - mostPatience // from entering the lane to the result, at the most
	mostTogether  = 512                             // calls in one flight
	FlightsShare  = leastPatience                   // a context, when they start within this
	flightMost    = AttemptTimeout + 2*FlightsShare // until a flight knows its outcome, or that it has none
)

// lane carries calls to one node. While one flight, a pipeline, is on its way,
// further calls gather, and leave together in the next. A lone call leaves at
// once, on the goroutine that makes it if that may block. A flight that has had
// no answer for max(4 round trips, 50 ms) holds the others back no longer: they
// leave on another connection.
//
// Each call has a ticket. It is queued or flying, never both; a flight belongs to
// one goroutine, its leader, which sends it, hands the results out and starts the
// next. So each result is written once, by the leader, before its ticket is
// signalled.
type lane struct {
	// immutable
	r       *Runner
	clock   *bootclock.Clock
	spawn   func(func()) bool
	exact   bool            // a flight's context ends with the timeout of its calls
	root    context.Context // has no values
	tickets sync.Pool       // of callers that stay until their ticket is answered

	// atomic
	forgot atomic.Bool // the server was found to have forgotten scripts

	mu sync.Mutex
	// guarded by mu
	queue    []*ticket
	spare    []*ticket     // an empty queue to reuse
	flight   int           // number of the one that holds the others back; 0 none
	flights  int           // started so far
	startAt  time.Duration // of flight
	trip     time.Duration // smoothed round trip
	patience *time.Timer   // armed while somebody is queued
	shared   *flightContext
	sharedAt time.Duration
	known    map[*Script]bool // that have run since it was
}

// wanter knows whether anybody still waits for the lock that a call is to take. A call
// without one takes none.
type wanter interface{ Wanted() bool }

// Anyway is the wanter of what is wanted until it is answered.
type Anyway struct{}

func (Anyway) Wanted() bool { return true }

// ticket is one call on its way.
type ticket struct {
	call    Call
	values  context.Context
	whose   wanter // nil: it is wanted until it is answered
	timeout time.Duration
	here    bool      // its goroutine can lead a flight
	signal  chan bool // one slot: false, answered; true, lead the batch
	batch   []*ticket // to lead
	number  int       // of that flight
	wire    commands
	res     Result
	self    [1]*ticket
}

// enter queues t, or returns the flight that it begins.
func (l *lane) enter(t *ticket) ([]*ticket, int) {
	now := l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flight == 0 {
		t.self[0] = t
		return t.self[:], l.beginLocked(now)
	}
	l.queue = append(l.queue, t)
	if len(l.queue) == 1 {
		l.armLocked(now)
	}
	return nil, 0
}

func (l *lane) beginLocked(now time.Duration) int {
	l.flights++
	l.flight, l.startAt = l.flights, now
	return l.flight
}

// patienceLocked is how long the present flight may hold the others back.
func (l *lane) patienceLocked() time.Duration {
	return min(max(4*l.trip, leastPatience), mostPatience)
}

// armLocked has the queue looked at when the flight before it has had its time.
func (l *lane) armLocked(now time.Duration) {
	left := max(l.startAt+l.patienceLocked()-now, 0)
	if l.patience == nil {
		l.patience = time.AfterFunc(left, l.overtake)
	} else {
		l.patience.Reset(left)
	}
}

// overtake starts the next flight while the one before is still unanswered. It
// runs on a timer's goroutine, which Close does not wait for: what flies has its
// own.
func (l *lane) overtake() {
	now := l.clock.Now()
	l.mu.Lock()
	if len(l.queue) == 0 {
		l.mu.Unlock()
		return
	}
	if l.flight != 0 && now < l.startAt+l.patienceLocked() {
		l.armLocked(now) // another flight by now
		l.mu.Unlock()
		return
	}
	batch, n := l.nextLocked(now)
	l.mu.Unlock()
	l.lead(batch, n)
}

// nextLocked takes what is queued for a flight.
func (l *lane) nextLocked(now time.Duration) ([]*ticket, int) {
	batch := l.queue
	if len(batch) > mostTogether {
		l.queue = slices.Clone(batch[mostTogether:])
		batch = batch[:mostTogether]
	} else {
		l.queue, l.spare = l.spare[:0], nil
		if l.patience != nil {
			l.patience.Stop()
		}
	}
	n := l.beginLocked(now)
	if len(l.queue) > 0 {
		l.armLocked(now)
	}
	return batch, n
}

// land ends flight n and returns the next, if anybody waits for it.
func (l *lane) land(n int, trip time.Duration, answered bool) ([]*ticket, int) {
	now := l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if answered {
		l.trip += (trip - l.trip) / 8
	}
	if l.flight != n {
		return nil, 0 // it was overtaken
	}
	l.flight = 0
	if len(l.queue) == 0 {
		return nil, 0
	}
	return l.nextLocked(now)
}

// lead finds a goroutine for a flight: one of those that wait for it, else a new
// one.
func (l *lane) lead(batch []*ticket, n int) {
	for _, t := range batch {
		if t.here {
			t.batch, t.number = batch, n
			t.signal <- true
			return
		}
	}
	if !l.spawn(func() { l.fly(batch, n, nil) }) {
		for _, t := range batch {
			t.res = Result{Fate: Refused, Err: ErrClosed, SentAt: l.clock.Now()}
			t.signal <- false
		}
	}
}

// fly sends a flight, answers its tickets and starts the next. self is the
// leader's own ticket, nil for a goroutine that does nothing else.
func (l *lane) fly(batch []*ticket, n int, self *ticket) {
	for {
		trip, answered := l.send(batch)
		next, m := l.land(n, trip, answered)
		if next != nil && self != nil {
			l.lead(next, m)
			next = nil
		}
		for _, t := range batch {
			if t != self {
				t.signal <- false
			}
		}
		l.recycle(batch)
		if next == nil {
			return
		}
		batch, n = next, m
	}
}

func (l *lane) recycle(batch []*ticket) {
	if cap(batch) <= 1 {
		return
	}
	clear(batch)
	l.mu.Lock()
	if l.spare == nil {
		l.spare = batch[:0]
	}
	l.mu.Unlock()
}

// run passes c through the lane and returns within timeout, or when stop is
// closed, whatever the connection does.
func (l *lane) run(ctx context.Context, c Call, whose wanter, timeout time.Duration, stop <-chan struct{}) Result {
	timeout = min(timeout, flightMost)
	began := l.clock.Now()
	t := &ticket{call: c, values: ctx, whose: whose, timeout: timeout, signal: make(chan bool, 1)}
	if batch, n := l.enter(t); batch != nil {
		l.lead(batch, n)
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-t.signal:
		return t.res
	case <-timer.C:
	case <-stop:
	}
	now := l.clock.Now()
	res := Result{Fate: Unknown, Err: Unavailable(&noAnswerError{now - began}), SentAt: began, Took: now - began, term: l.r.Term()}
	if res.Took >= timeout {
		l.r.observe(l.r.Site(t.call.key()), &res, began)
	}
	return res
}

// runHere passes c through the lane on the caller's goroutine, which leads its
// flight or one that it has to wait for.
func (l *lane) runHere(ctx context.Context, c Call, whose wanter) Result {
	t, _ := l.tickets.Get().(*ticket)
	if t == nil {
		t = &ticket{signal: make(chan bool, 1)}
	}
	t.call, t.values, t.whose, t.timeout, t.here = c, ctx, whose, AttemptTimeout, true
	batch, n := l.enter(t)
	if batch == nil && <-t.signal {
		batch, n = t.batch, t.number
	}
	if batch != nil {
		l.fly(batch, n, t)
	}
	res := t.res
	t.forget()
	l.tickets.Put(t)
	return res
}

// forget empties a ticket for its next use.
func (t *ticket) forget() {
	t.call, t.values, t.whose, t.batch, t.res = Call{}, nil, nil, nil, Result{}
	t.self[0] = nil
}

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
func (c *flightContext) Done() <-chan struct{}       { return c.done }
func (c *flightContext) Value(any) any               { return nil }

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
