package watchlock

import (
	"context"
	"errors"
	"runtime"
	"time"
)

// noCopy makes vet complain about a copied Lease.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// Lease is one successful Lock: whoever has it owns the lock, on any goroutine.
// It must be unlocked, once. A Lease that is dropped without Unlock stops being
// renewed, ends with ErrLost and is logged. All methods are safe for concurrent
// use, and a nil Lease answers as one that is not held.
type Lease struct {
	_    noCopy
	hold *hold
}

// newLease gives a hold the handle that its caller keeps.
func newLease(h *hold) *Lease {
	h.lease = &Lease{hold: h}
	return h.lease
}

// Unlock gives the lease back, and with the last lease on its owner the lock. ctx
// carries values only: a cancelled context does not stop a release, the client's unlock
// timeout does (WithUnlockTimeout).
//
// It returns nil when the lease was held until now. After ErrLost somebody else
// may have worked at the same time; if the key in Redis is still this owner's it
// is released all the same. ErrNotHeld says that Unlock was called before, or on
// a nil Lease; ErrClosed, that the client gave up the lease at Close. Any other
// error says that Redis did not confirm the release: the lease is over here, the
// release is repeated in the background, and at worst the key expires. Of calls at
// once one gets nil, the others ErrNotHeld.
//
// An inner lease, and one whose lock is passed to a waiter of this client
// (WithLocalHandoff), sends nothing: nil then rests on what Redis last confirmed.
func (l *Lease) Unlock(ctx context.Context) error {
	if l == nil {
		return &LockError{Op: "unlock", Err: ErrNotHeld}
	}
	err := l.hold.burst.gate.unlock(ctx, l.hold)
	runtime.KeepAlive(l)
	return err
}

// Err is nil while the lease may be trusted, and after that why not: an error
// that matches ErrLost, ErrNotHeld after Unlock, or ErrClosed. It reads the
// clock, so it is right on the first look after a long pause: ask it before a
// step that cannot be undone. It costs no round trip.
func (l *Lease) Err() error {
	if l == nil {
		return &LockError{Op: "lease", Err: ErrNotHeld}
	}
	l.hold.watched.Store(true)
	err := l.hold.burst.gate.check(l.hold)
	runtime.KeepAlive(l)
	return err
}

// Done is closed when the lease ends, at the latest when another client could
// be granted the lock. A process that was stopped hears it late: see Err.
func (l *Lease) Done() <-chan struct{} {
	if l == nil {
		return closedChan()
	}
	return l.hold.burst.gate.done(l)
}

// ExpiresAt is until when the lease may be trusted as things stand; renewal
// moves it. The server's expiry is later by a margin: 1 % of the lease and 50 ms
// for leases from 5 s, max(2 ms, 2 % and 1 ms) below. Zero for a nil Lease.
func (l *Lease) ExpiresAt() time.Time {
	if l == nil {
		return time.Time{}
	}
	return l.hold.burst.gate.c.clock.Wall(l.hold.until())
}

// Name is the lock's name as given to NewMutex; empty for a nil Lease.
func (l *Lease) Name() string {
	if l == nil {
		return ""
	}
	return l.hold.keys.Name
}

// Context returns a copy of parent that is cancelled when the lease ends; its
// cause is then Err's error. Run the work under it. Its own Err reads the clock
// as the lease's does, and cancels before it answers; contexts derived from it
// follow by timer. A Lock of the same name under it re-enters (see
// WithoutReentry). It keeps the Lease reachable. Contexts of one lease with the same
// parent, or with parents that end together, share what ends them.
func (l *Lease) Context(parent context.Context) context.Context {
	if parent == nil {
		panic("watchlock: nil parent context")
	}
	if l == nil {
		t := newTie(parent)
		t.cancel(&LockError{Op: "lease", Err: ErrNotHeld})
		return &leaseContext{parent, t, nil}
	}
	l.hold.watched.Store(true)
	return &leaseContext{parent, l.hold.burst.gate.tie(l.hold, parent), l}
}

// leaseContext is a context under a lease: deadline and values are its parent's, and its end
// is the tie's. Nothing but its user, and contexts made from it, keeps it.
type leaseContext struct {
	context.Context // the parent
	tie             *tie
	lease           *Lease
}

func (c *leaseContext) Done() <-chan struct{} { return c.tie.core.Done() }

// Err compares the clock before it answers.
func (c *leaseContext) Err() error {
	if err := c.lease.Err(); err != nil {
		c.tie.cancel(err)
	}
	return c.tie.core.Err()
}

// leaseKey finds the lease of one lock in a context.
type leaseKey struct {
	c   *Client
	key string
}

// Value answers for the lease's own key, else for the parent. The core answers for the key
// with which package context finds what ends a context, to hang on it those made from this
// one and to tell its cause; and for no other.
func (c *leaseContext) Value(key any) any {
	if k, ok := key.(leaseKey); ok && c.lease != nil {
		if g := c.lease.hold.burst.gate; k.c == g.c && k.key == g.keys.Key {
			return c.lease
		}
	}
	if v := c.tie.core.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}

// WithoutReentry returns a copy of ctx under which Lock waits like anyone else,
// also for locks whose leases ctx carries; the loss of those leases still
// cancels it. Give it to goroutines that must not be inside together with their
// parent.
func WithoutReentry(ctx context.Context) context.Context { return &strangerContext{ctx} }

type strangerContext struct{ context.Context }

func (c *strangerContext) Value(key any) any {
	if _, ok := key.(leaseKey); ok {
		return nil
	}
	return c.Context.Value(key)
}

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
