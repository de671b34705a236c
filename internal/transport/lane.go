package transport

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
)

// How long flights take, and how long they hold back those behind them.
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

// Wanted is true.
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
