package porting

import (
	"context"
	"errors"
	"time"

	"github.com/seed-8c25f305/watchlock"
)

// RunIfFree runs job, or returns an ErrNotAcquired when somebody holds the lock.
// guide: try-now
func RunIfFree(ctx context.Context, m *watchlock.Mutex, job func(context.Context) error) error {
	return m.TryDo(ctx, 0, job)
}

// end

// RunSoonAndBriefly waits 3 s at most and holds the lock 10 s at most.
// guide: try-lease
func RunSoonAndBriefly(ctx context.Context, m *watchlock.Mutex, job func(context.Context) error) (err error) {
	lease, err := m.TryLock(ctx, 3*time.Second, watchlock.WithLeaseTime(10*time.Second))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	return job(lease.Context(ctx))
}

// end
