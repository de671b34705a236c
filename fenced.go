package watchlock

import (
	"context"
	"runtime"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// FencedMutex is a Mutex whose leases carry a fencing token: a number that is
// larger for each new hold, to be checked by the storage that the lock protects
// (Kleppmann, "How to do distributed locking"). On the wire it is Redisson's
// RFencedLock of the same name; all who share the name must use the fenced form.
//
// A token is one more than the last, or the server's time in µs at the grant if
// that is more (less by up to 1,024, when waiters here may get those between). So tokens rise even when a failover or a flush loses the
// counter, as long as no Redisson client, which counts from 1, grants on the name
// first, and the new server's clock is not behind the last token. They are below
// 2^53, exact in every language. Safe for concurrent use.
type FencedMutex struct{ m *Mutex }

// NewFencedMutex returns the fenced lock called name. Names and options are as
// for NewMutex; see also WithTokenTTL.
func (c *Client) NewFencedMutex(name string, opts ...LockOption) *FencedMutex {
	return &FencedMutex{c.newMutex(wire.FencedKind{}, name, opts)}
}

// Name is the lock's name as given to NewFencedMutex.
func (m *FencedMutex) Name() string { return m.m.Name() }

// Do is Mutex.Do, and hands f the token.
func (m *FencedMutex) Do(ctx context.Context, f func(ctx context.Context, token int64) error) error {
	return m.m.do(ctx, "lock", forever, withToken(f))
}

// TryDo is Mutex.TryDo, and hands f the token.
func (m *FencedMutex) TryDo(ctx context.Context, wait time.Duration, f func(ctx context.Context, token int64) error) error {
	return m.m.do(ctx, "try lock", wait, withToken(f))
}

func withToken(f func(context.Context, int64) error) func(context.Context, *Lease) error {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, l *Lease) error { return f(ctx, l.hold.token) }
}

// Lock is Mutex.Lock. When the counter in Redis is not an integer below 2^53 - 1
// nothing is taken, and the error matches ErrTokenRange.
func (m *FencedMutex) Lock(ctx context.Context, opts ...LockOption) (*FencedLease, error) {
	return fenced(m.m.lock(ctx, "lock", forever, opts, callSite(1)))
}

// TryLock is Mutex.TryLock, with the error that Lock adds.
func (m *FencedMutex) TryLock(ctx context.Context, wait time.Duration, opts ...LockOption) (*FencedLease, error) {
	return fenced(m.m.lock(ctx, "try lock", wait, opts, callSite(1)))
}

// Info is Mutex.Info, with the token counter.
func (m *FencedMutex) Info(ctx context.Context) (LockInfo, error) { return m.m.Info(ctx) }

// ForceUnlock is Mutex.ForceUnlock. The counter stays.
func (m *FencedMutex) ForceUnlock(ctx context.Context) error { return m.m.ForceUnlock(ctx) }

func fenced(l *Lease, err error) (*FencedLease, error) {
	if err != nil {
		return nil, err
	}
	return &FencedLease{lease: l}, nil
}

// FencedLease is a Lease with a token. All methods are safe for concurrent use,
// and a nil FencedLease answers as one that is not held.
type FencedLease struct{ lease *Lease }

// Token is the fencing token of this hold; 0 for a nil FencedLease. Leases that
// re-enter have the same.
func (l *FencedLease) Token() int64 {
	if l == nil {
		return 0
	}
	token := l.lease.hold.token
	runtime.KeepAlive(l.lease)
	return token
}

// plain is the lease without its token.
func (l *FencedLease) plain() *Lease {
	if l == nil {
		return nil
	}
	return l.lease
}

// Unlock is Lease.Unlock.
func (l *FencedLease) Unlock(ctx context.Context) error { return l.plain().Unlock(ctx) }

// Context is Lease.Context.
func (l *FencedLease) Context(parent context.Context) context.Context {
	return l.plain().Context(parent)
}

// Done is Lease.Done.
func (l *FencedLease) Done() <-chan struct{} { return l.plain().Done() }

// Err is Lease.Err.
func (l *FencedLease) Err() error { return l.plain().Err() }

// ExpiresAt is Lease.ExpiresAt.
func (l *FencedLease) ExpiresAt() time.Time { return l.plain().ExpiresAt() }

// Name is Lease.Name.
func (l *FencedLease) Name() string { return l.plain().Name() }

// Extend is Lease.Extend.
func (l *FencedLease) Extend(ctx context.Context, d time.Duration) error {
	return l.plain().Extend(ctx, d)
}
