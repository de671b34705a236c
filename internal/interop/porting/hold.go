package porting

import (
	"context"
	"errors"
	"time"

	"github.com/seed-8c25f305/watchlock"
)

// RunLocked waits for the lock and runs job under it.
// guide: lock
func RunLocked(ctx context.Context, m *watchlock.Mutex, job func(context.Context) error) error {
	return m.Do(ctx, job)
}

// end

// RunLockedByHand is RunLocked for a hold that is not one function.
// guide: lock-byHand
func RunLockedByHand(ctx context.Context, m *watchlock.Mutex, job func(context.Context) error) (err error) {
	lease, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	return job(lease.Context(ctx))
}

// end

// RunForTenSeconds runs job, which loses the lock if it takes longer than 10 s.
// guide: lease
func RunForTenSeconds(ctx context.Context, client *watchlock.Client, name string, job func(context.Context) error) error {
	return client.NewMutex(name, watchlock.WithLeaseTime(10*time.Second)).Do(ctx, job)
}

// end
