package porting

import (
	"context"
	"errors"

	"github.com/seed-8c25f305/watchlock"
)

// Cancel refunds under the lock that Refund takes for itself.
// guide: reentry
func Cancel(ctx context.Context, client *watchlock.Client, order string, pay func(context.Context) error) error {
	return client.NewMutex(order).Do(ctx, func(ctx context.Context) error {
		return Refund(ctx, client, order, pay) // this ctx carries the lease
	})
}

// Refund re-enters when its ctx carries a lease of the order.
func Refund(ctx context.Context, client *watchlock.Client, order string, pay func(context.Context) error) error {
	return client.NewMutex(order).Do(ctx, pay)
}

// end

// LockTwice has two leases of one hold: the lock is free after both Unlocks.
// guide: reentry-byHand
func LockTwice(ctx context.Context, m *watchlock.Mutex, job func(context.Context) error) (err error) {
	outer, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, outer.Unlock(ctx)) }()
	inner, err := m.Lock(outer.Context(ctx))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, inner.Unlock(ctx)) }()
	return job(inner.Context(ctx))
}

// end
