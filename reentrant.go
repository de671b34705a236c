package watchlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// forever is the wait of a Lock: its context alone bounds it.
const forever = time.Duration(math.MaxInt64)

// Mutex is one lock by name, the same as Redisson's RLock of that name. It holds
// no state and needs no I/O to make: share it like a sync.Mutex, or make it
// anew. What owns the lock is the Lease. Safe for concurrent use.
type Mutex struct {
	c        *Client
	kind     wire.Kind
	keys     wire.Keys
	own      any // its leaseKey
	leaseArg any // of its own lease time
	conf     lockConfig
	err      error // why the name or an option was refused

	last atomic.Pointer[gate] // the gate of the last call, while it is kept
}

// LockInfo is what Redis and this process know of a lock. It is advice: it may
// be out of date when it arrives.
type LockInfo struct {
	// Held reports whether anybody holds the lock.
	Held bool
	// Mine reports whether this client does, whichever of its goroutines.
	Mine bool
	// Owner is the holder's field: a client's UUID, ":" and a number. Empty when
	// free, and when the key has more fields than one owner.
	Owner string
	// Holds is how many leases stand on the lock: counted here when it is
	// ours, else as the holder's field says.
	Holds int
	// TTL is how long Redis keeps the lock; negative when the key has no end.
	TTL time.Duration
	// Token is the counter of a fenced lock: no token granted so far is larger,
	// and it may be ahead of the newest by some that are reserved for waiters. 0
	// when there is none, and for locks that are not fenced.
	Token int64
}

// Name is the lock's name as given to NewMutex.
func (m *Mutex) Name() string { return m.keys.Name }

// Do runs f while holding the lock, under the lease's Context, and waits for the
// lock as long as ctx allows. It returns f's error as it is when the release
// succeeded, else both joined: a lock that was lost under f is reported
// (ErrLost) even when f returned nil. Another error of the release, whose LockError
// has the Op "unlock", says that f has run and Redis did not confirm the release.
// When the lock was not obtained f is not run and the error is Lock's. A panic in f releases the lock too. A nil f panics.
func (m *Mutex) Do(ctx context.Context, f func(context.Context) error) error {
	return m.do(ctx, "lock", forever, withLease(f))
}

// TryDo is Do with a bound on the waiting, as TryLock's: an error that matches
// ErrNotAcquired says that somebody else held the lock all the time and f did
// not run. An ErrNotAcquired of f's own is told apart by the LockError's Name.
func (m *Mutex) TryDo(ctx context.Context, wait time.Duration, f func(context.Context) error) error {
	return m.do(ctx, "try lock", wait, withLease(f))
}

func withLease(f func(context.Context) error) func(context.Context, *Lease) error {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, _ *Lease) error { return f(ctx) }
}

// do is called by Do and TryDo of the lock kinds, whose caller it records.
func (m *Mutex) do(ctx context.Context, op string, wait time.Duration, f func(context.Context, *Lease) error) (err error) {
	if f == nil {
		panic("watchlock: nil func")
	}
	lease, err := m.lock(ctx, op, wait, nil, callSite(2))
	if err != nil {
		return err
	}
	defer func() {
		if unlockErr := lease.Unlock(ctx); unlockErr != nil && err != nil {
			err = errors.Join(err, unlockErr)
		} else if unlockErr != nil {
			err = unlockErr
		}
	}()
	return f(lease.Context(ctx), lease)
}

// Lock waits until it holds the lock and returns the lease, which must be
// unlocked. ctx bounds the waiting only: ending it later does not end the hold.
// With a context from Lease.Context of the same lock it re-enters: it returns
// another lease of the same hold, at once.
//
// The error is never about a lock that is merely busy unless ctx has a deadline:
// then it matches ErrNotAcquired and context.DeadlineExceeded. A cancelled ctx
// gives its error and cause. IsUnavailable errors say that Redis could not be
// asked; an outage that begins while waiting is ridden out until ctx ends. A TLS
// certificate that is not accepted ends the wait, and so does an error reply that
// is not Redis's own, a proxy's say. A closed
// client gives ErrClosed, a key of another type ErrWrongType, and a context whose
// lease of this lock has ended that lease's error.
func (m *Mutex) Lock(ctx context.Context, opts ...LockOption) (*Lease, error) {
	return m.lock(ctx, "lock", forever, opts, callSite(1))
}

// TryLock is Lock that waits at most wait, and makes one attempt when wait is
// zero or negative (at most 1 s). Held by somebody else throughout, it returns
// an error that matches ErrNotAcquired, whose LockError tells the TTL left. It
// says so only after Redis, or this client as the holder, did: a wait that ended
// before any answer matches os.ErrDeadlineExceeded, one that ended in an outage
// carries the network's error, and IsUnavailable is true for both. A wait above
// zero but below 1 µs is refused.
func (m *Mutex) TryLock(ctx context.Context, wait time.Duration, opts ...LockOption) (*Lease, error) {
	return m.lock(ctx, "try lock", wait, opts, callSite(1))
}

// lock waits for the lock, or re-enters it.
func (m *Mutex) lock(ctx context.Context, op string, wait time.Duration, opts []LockOption, caller uintptr) (*Lease, error) {
	w, err := m.want(wait, opts)
	if err != nil {
		return nil, m.wrap(op, err)
	}
	if outer, ok := ctx.Value(m.own).(*Lease); ok {
		l, err := m.reenter(ctx, outer, w, wait, caller)
		return l, m.wrap(op, err)
	}
	if err := ctxError(ctx); err != nil {
		return nil, m.wrap(op, err)
	}
	g, err := m.gate()
	if err != nil {
		return nil, m.wrap(op, err)
	}
	defer g.unref()
	l, err := g.lock(ctx, op, wait, w, caller)
	return l, m.wrap(op, err)
}

// reenter makes one more lease on the hold that ctx carries. When that has
// ended, its own error says more than the end of ctx that followed from it.
func (m *Mutex) reenter(ctx context.Context, outer *Lease, w want, wait time.Duration, caller uintptr) (*Lease, error) {
	h := outer.hold
	if h.burst.kind() != m.kind {
		return nil, fmt.Errorf("the context holds this name as %v, not as %v", h.burst.kind(), m.kind)
	}
	if err := outer.Err(); err != nil {
		return nil, err
	}
	if err := ctxError(ctx); err != nil {
		return nil, err
	}
	l, err := h.burst.gate.reenter(ctx, h, w, caller, wait)
	runtime.KeepAlive(outer)
	return l, err
}

// gate is the lock's gate, referenced for the caller, who must release it.
func (m *Mutex) gate() (*gate, error) {
	if m.c.closed.Load() {
		return nil, ErrClosed
	}
	if g := m.last.Load(); g != nil && g.ref() {
		return g, nil
	}
	g, err := m.c.gate(&m.keys)
	if err == nil {
		m.last.Store(g)
	}
	return g, err
}

// want checks what a call asks for.
func (m *Mutex) want(wait time.Duration, opts []LockOption) (want, error) {
	if m.err != nil {
		return want{}, m.err
	}
	if err := checkWait(wait); err != nil {
		return want{}, err
	}
	conf, err := m.conf, error(nil)
	if len(opts) > 0 {
		if conf, err = conf.with(opts, m.c.cfg.watchdogTimeout); err != nil {
			return want{}, err
		}
	}
	if err := conf.suits(m.kind); err != nil {
		return want{}, err
	}
	w := want{m.kind, &m.keys, conf.lease == 0, conf.lease, m.leaseArg, conf.maxHold, conf.tokenTTL}
	if w.watchdog {
		w.lease = m.c.cfg.watchdogTimeout
	}
	if len(opts) > 0 {
		w.leaseArg = wire.LeaseArg(w.lease)
	}
	return w, nil
}

// Info asks Redis who holds the lock: advice, for people and metrics. One round
// trip of at most 1 s.
func (m *Mutex) Info(ctx context.Context) (LockInfo, error) {
	info, err := m.info(ctx)
	return info, m.wrap("info", err)
}

func (m *Mutex) info(ctx context.Context) (LockInfo, error) {
	if m.err != nil {
		return LockInfo{}, m.err
	}
	g, err := m.gate()
	if err != nil {
		return LockInfo{}, err
	}
	defer g.unref()
	at, res := m.kind.Info(m.c.runner.On(ctx, transport.AttemptTimeout, ctx.Done()), &m.keys)
	if err := ctxError(ctx); err != nil {
		return LockInfo{}, err
	}
	if res.Fate != transport.Replied {
		return LockInfo{}, res.Err
	}
	info := LockInfo{Held: at.Held, Owner: at.Owner, Holds: at.Holds, TTL: at.TTL, Token: at.Token}
	if holds, mine := g.holdsOf(info.Owner); mine {
		info.Mine, info.Holds = true, holds
	}
	return info, nil
}

// ForceUnlock takes the lock away from whoever holds it: it reads the owner,
// ends the leases here if it is ours (ErrLost), and then releases that owner, who
// else learns of it at its next contact with Redis. A later owner is never
// touched, also when a reply is lost and the release is sent again. It returns
// ErrNotHeld when the lock was free. It is an operator's tool: whoever held the
// lock may still be working.
func (m *Mutex) ForceUnlock(ctx context.Context) error {
	return m.wrap("force unlock", m.forceUnlock(ctx))
}

func (m *Mutex) forceUnlock(ctx context.Context) error {
	deadline := m.c.clock.Now() + m.c.cfg.unlockTimeout
	info, err := m.info(ctx)
	for IsUnavailable(err) && ctx.Err() == nil && m.c.clock.Now() < deadline {
		m.c.clock.Wait(ctx.Done(), m.c.clock.Now()+firstRetry)
		info, err = m.info(ctx)
	}
	switch {
	case err != nil:
		return err
	case !info.Held:
		return ErrNotHeld
	case info.Owner == "":
		return fmt.Errorf("%w: more than one owner", ErrWrongType)
	}
	g, err := m.gate()
	if err != nil {
		return err
	}
	defer g.unref()
	return g.force(ctx, m.kind, &m.keys, info.Owner)
}

// wrap puts the lock's name and the operation around err, once.
func (m *Mutex) wrap(op string, err error) error {
	if _, done := err.(*LockError); done || err == nil { //nolint:errorlint // one further in may be another lock's
		return err
	}
	return &LockError{Op: op, Name: m.keys.Name, Err: err}
}

// ctxError is the error of an ended context together with its cause.
func ctxError(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); !errors.Is(cause, err) {
		return errors.Join(err, cause)
	}
	return err
}

// callSite is where the function was called that is depth frames above.
func callSite(depth int) uintptr {
	var pc [1]uintptr
	runtime.Callers(depth+2, pc[:])
	return pc[0]
}
