package watchlock

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	leastPatience = 50 * time.Millisecond // before a flight without an answer holds nobody back
	mostPatience  = 250 * time.Millisecond
	mostOfAFlight = 2*attemptTimeout - mostPatience // from entering the lane to the result, at the most
	mostTogether  = 512                             // calls in one flight
	flightsShare  = leastPatience                   // a context, when they start within this
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
	clock   *clock
	spawn   func(func()) bool
	observe func(fate)
	on      func() commander
	exact   bool            // a flight's context ends with the timeout of its calls
	root    context.Context // has no values
	tickets sync.Pool       // of callers that stay until their ticket is answered

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
}

// ticket is one call on its way.
type ticket struct {
	call    call
	values  context.Context
	timeout time.Duration
	here    bool      // its goroutine can lead a flight
	signal  chan bool // one slot: false, answered; true, lead the batch
	batch   []*ticket // to lead
	number  int       // of that flight
	wire    wire
	res     result
	self    [1]*ticket
}

// enter queues t, or returns the flight that it begins.
func (l *lane) enter(t *ticket) ([]*ticket, int) {
	now := l.clock.now()
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
	now := l.clock.now()
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
	now := l.clock.now()
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
			t.res = result{fate: refused, err: ErrClosed, sentAt: l.clock.now()}
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
func (l *lane) run(ctx context.Context, c call, timeout time.Duration, stop <-chan struct{}) result {
	timeout = min(timeout, attemptTimeout)
	began := l.clock.now()
	t := &ticket{call: c, values: ctx, timeout: timeout, signal: make(chan bool, 1)}
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
	now := l.clock.now()
	res := result{fate: unknown, err: unavailable(&noAnswerError{now - began}), sentAt: began, took: now - began}
	if res.took >= timeout {
		l.observe(unknown)
	}
	return res
}

// runHere passes c through the lane on the caller's goroutine, which leads its
// flight or one that it has to wait for.
func (l *lane) runHere(ctx context.Context, c call) result {
	t, _ := l.tickets.Get().(*ticket)
	if t == nil {
		t = &ticket{signal: make(chan bool, 1)}
	}
	t.call, t.values, t.timeout, t.here = c, ctx, attemptTimeout, true
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
	t.call, t.values, t.batch, t.res = call{}, nil, nil, result{}
	t.self[0] = nil
}

// send carries one flight to Redis and back.
func (l *lane) send(batch []*ticket) (trip time.Duration, answered bool) {
	ctx, cancel := l.context(batch)
	defer cancel()
	sentAt := l.clock.now()
	on := l.on()
	for _, t := range batch {
		t.wire.fill(ctx, &t.call, false)
	}
	carry(ctx, on, batch)
	var again []*ticket
	for _, t := range batch {
		if t.wire.unknownScript(&t.call) {
			again = append(again, t) // it certainly did not run
		}
	}
	if len(again) > 0 && l.clock.now()-sentAt < attemptTimeout/2 {
		for _, t := range again {
			t.wire.fill(ctx, &t.call, true)
		}
		carry(ctx, on, again)
	}
	trip = l.clock.now() - sentAt
	for _, t := range batch {
		t.res = t.wire.result(ctx, &t.call)
		t.res.sentAt, t.res.took = sentAt, trip
		answered = answered || t.res.fate != unknown && t.res.fate != unsent
		l.observe(t.res.fate)
	}
	return trip, answered
}

// carry sends the commands of tickets, alone or in a pipeline.
func carry(ctx context.Context, on commander, batch []*ticket) {
	if len(batch) == 1 && len(batch[0].wire.cmds) == 1 {
		_ = on.Process(ctx, batch[0].wire.cmds[0]) // the command keeps its error
		return
	}
	pipe := on.Pipeline()
	for _, t := range batch {
		for _, cmd := range t.wire.cmds {
			_ = pipe.Process(ctx, cmd) // only queues
		}
	}
	_, _ = pipe.Exec(ctx) // each command keeps its own
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
	now := l.clock.now()
	l.mu.Lock()
	if l.shared == nil || now-l.sharedAt >= flightsShare {
		l.shared, l.sharedAt = newFlightContext(attemptTimeout+flightsShare), now
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
