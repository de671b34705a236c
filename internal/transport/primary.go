package transport

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file is which server is the primary, where sentinels say that.
//
// Sentinels name a new primary while the old one may still answer: for seconds when the change was
// planned, and for as long as it likes when it is cut off from the sentinels alone. What it
// grants, keeps or releases then is void. go-redis asks the sentinels when it dials, and at
// no other time. So:
//
//  1. There is one notion of the primary, which all connections share. It is asked for each
//     askPace while anything is held, is waited for, or was released within a lease time,
//     and before the first command after a time without.
//  2. When it changes a new term begins: connections of the old one are closed, and an answer
//     that belongs to it counts as none. All that is held is verified, all that listens does
//     so anew, and what was released lately is released again.
//  3. Others learn of the change up to askPace later than we do, and may have been granted a
//     lock by the old primary since. So for settleTime nothing is taken at the new one. A
//     process that starts just then cannot know that it should wait.
//
// Between the change and its being named nobody can know. A renewal that went to the old
// primary then has not moved the TTL at the new one, which ends at the earliest two thirds of the
// watchdog timeout after the change: two leases are believed at once only if naming it and
// one ask take longer.

// How often the sentinels are asked, and how long what they say takes.
const (
	askPace       = 600 * time.Millisecond
	settleTime    = askPace + 100*time.Millisecond
	askTimeout    = 30 * time.Second       // a sentinel that stands still is given up by go-redis only after its own timeouts
	askSlow       = 2 * time.Second        // without an answer, to say so
	freshWait     = 200 * time.Millisecond // for the answer to the first question after a time without
	staleFor      = 3 * time.Second        // for so long after a change a sentinel may still name the old one
	NamedWithin   = 4 * time.Second        // a new primary is named, and heard of, as a rule
	LeastVerified = time.Second            // of trust that is left for verifying it there
)

// Why a command was not sent, or its answer does not count.
var (
	ErrMoved   = errors.New("another server has become the primary meanwhile")
	errSettles = errors.New("another server has just become the primary: others may not have heard")
	errReplica = errors.New("the sentinels' client leads to a replica, which keeps no locks (ReplicaOnly?)")
)

// primary keeps the notion.
type primary struct {
	// immutable
	r       *Runner
	who     func(ctx context.Context) (addr string, err error) // asks the sentinels
	replace func(addr string) *link                            // makes connections to the server there; nil: the old ones find it
	OnMove  func()                                             // called after a change; must not block
	OnSlow  func()                                             // called when the sentinels do not answer
	Linger  time.Duration                                      // how long after the last use they are asked

	// atomic
	term   atomic.Int64 // how many changes there were
	used   atomic.Int64 // when anything last needed to know
	asked  atomic.Int64 // when the newest question was put that was answered
	settle atomic.Int64 // nothing is taken before this

	mu sync.Mutex
	// guarded by mu
	addr    string        // of the primary; "" until the first connection
	err     error         // of the newest question
	left    string        // the one before
	leftAt  time.Duration // when
	running bool          // run does
	first   chan struct{} // closed when run has had an answer
}

// Touch notes that somebody needs to know, and has the sentinels asked from now on. It
// returns what to wait for if nobody has asked for some time, and for how long.
func (p *primary) Touch() (first <-chan struct{}, most time.Duration) {
	now := p.r.Clock.Now()
	p.used.Store(int64(now))
	if asked := time.Duration(p.asked.Load()); asked != 0 && now-asked < 2*askPace {
		return nil, 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running {
		p.first = make(chan struct{})
		if p.running = p.r.Spawn(p.run); !p.running {
			return nil, 0
		}
	}
	switch {
	case p.addr != "":
		return p.first, freshWait
	case p.replace == nil:
		return p.first, AttemptTimeout // or what go-redis looked up by itself would count for the first answer
	}
	return nil, 0 // the dial itself asks
}

// run asks, until nobody has needed to know for some time.
func (p *primary) run() {
	ctx, cancel := context.WithCancel(p.r.Root)
	defer cancel()
	defer context.AfterFunc(p.r.Ended, cancel)()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for p.ask(ctx); p.goesOn(); p.ask(ctx) {
		timer.Reset(askPace)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// goesOn ends run when nobody needs it.
func (p *primary) goesOn() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.first:
	default:
		close(p.first)
	}
	p.running = p.r.Ended.Err() == nil && p.r.Clock.Now()-time.Duration(p.used.Load()) < p.Linger
	return p.running
}

// ask puts the question once.
func (p *primary) ask(ctx context.Context) {
	began := p.r.Clock.Now()
	slow := time.AfterFunc(askSlow, p.OnSlow)
	defer slow.Stop()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	addr, err := p.who(ctx)
	p.mu.Lock()
	p.err = err
	p.mu.Unlock()
	if err != nil {
		return // nobody says that it is another
	}
	p.leads(nil, addr)
	p.asked.Store(int64(began))
}

// leads notes where the sentinels lead, for a connection of l or, when it is nil, as an answer.
// It reports whether l goes there.
func (p *primary) leads(l *link, addr string) bool {
	p.mu.Lock()
	current := p.r.link()
	if l != nil && l != current {
		p.mu.Unlock()
		return false
	}
	if p.addr == "" || p.addr == addr {
		p.addr = addr
		p.mu.Unlock()
		return true
	}
	now := p.r.Clock.Now()
	if addr == p.left && now-p.leftAt < staleFor {
		p.mu.Unlock()
		return false // a sentinel that lags behind
	}
	p.left, p.leftAt, p.addr = p.addr, now, addr
	// Who reads them takes the term first: so no answer of the old one counts in the new term.
	p.settle.Store(int64(now + settleTime))
	if p.replace != nil {
		p.r.current.Store(p.replace(addr))
		p.r.Spawn(func() { _ = current.close() })
	}
	p.term.Add(1)
	p.mu.Unlock()
	p.OnMove()
	return false
}

// sentinelLink makes the connections of a client of Sentinel: all lead to one server, the
// primary of their term.
func (p *primary) sentinelLink(opts redis.Options) *link {
	l := &link{via: p.r.via}
	dial, onConnect := opts.Dialer, opts.OnConnect
	opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err == nil && !p.leads(l, conn.RemoteAddr().String()) {
			_ = conn.Close()
			return nil, ErrMoved
		}
		return conn, err
	}
	opts.OnConnect = func(ctx context.Context, cn *redis.Conn) error {
		// As the guide for clients of Sentinel asks. A user who may not ask goes without.
		if role, err := cn.Do(ctx, "role").Slice(); err == nil && len(role) > 0 && role[0] == "slave" {
			return errReplica
		}
		if onConnect != nil {
			return onConnect(ctx, cn)
		}
		return nil
	}
	own(&opts, &p.r.Dials)
	opts.DialTimeout = max(opts.DialTimeout, askTimeout)
	c := redis.NewClient(&opts)
	l.commander, l.client, l.close = c, c, c.Close
	return l
}

// Term is that of the primary that is known now; 0 where nobody names one.
func (r *Runner) Term() int64 {
	if r.Primary == nil {
		return 0
	}
	return r.Primary.term.Load()
}

// Voids reports whether an answer belongs to a term that is over.
func (r *Runner) Voids(res *Result) bool {
	return r.Primary != nil && res.term != r.Primary.term.Load()
}

// Stale makes an answer that belongs to a term that is over none.
func (r *Runner) Stale(res *Result) {
	if r.Voids(res) && res.Fate != Unsent {
		res.Fate, res.Err = Unknown, Unavailable(ErrMoved)
	}
}

// noPrimary is why the sentinels could not be asked, if they could not.
func (r *Runner) noPrimary() error {
	if r.Primary == nil {
		return nil
	}
	r.Primary.mu.Lock()
	defer r.Primary.mu.Unlock()
	return r.Primary.err
}

// fresh is for a command that is about to be sent: it makes sure that the notion of the
// primary is not an old one.
func (r *Runner) fresh(ctx context.Context) {
	if r.Primary == nil {
		return
	}
	first, most := r.Primary.Touch()
	if first == nil {
		return
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-first:
	case <-timer.C: // the sentinels may all be away: locks go on
	case <-ctx.Done():
	}
}

// Settled waits until locks may be taken at a new primary, or stop is closed.
func (r *Runner) Settled(stop <-chan struct{}) {
	if r.Primary == nil {
		return
	}
	if at := time.Duration(r.Primary.settle.Load()); at > r.Clock.Now() {
		r.Clock.Wait(stop, at)
	}
}

// Settling reports whether no lock may be taken yet.
func (r *Runner) Settling() bool {
	return r.Primary != nil && time.Duration(r.Primary.settle.Load()) > r.Clock.Now()
}
