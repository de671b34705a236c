package porting

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-8c25f305/watchlock"
)

// Ship runs job while nobody else ships the order.
// guide: order
func Ship(ctx context.Context, client *watchlock.Client, order string, job func(context.Context) error) error {
	err := client.NewMutex("lock:order:"+order).TryDo(ctx, 3*time.Second, job)
	if errors.Is(err, watchlock.ErrNotAcquired) {
		return fmt.Errorf("order %s is busy: %w", order, err)
	}
	return err // also when the lock was lost under job: errors.Is(err, watchlock.ErrLost)
}

// end

// ShipByHand is Ship for a hold that is not one function.
// guide: order-byHand
func ShipByHand(ctx context.Context, client *watchlock.Client, order string, job func(context.Context) error) (err error) {
	lease, err := client.NewMutex("lock:order:"+order).TryLock(ctx, 3*time.Second)
	if errors.Is(err, watchlock.ErrNotAcquired) {
		return fmt.Errorf("order %s is busy: %w", order, err)
	}
	if err != nil {
		return err // Redis was not reached, ctx ended: not the same as busy
	}
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	return job(lease.Context(ctx))
}

// end
