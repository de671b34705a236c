package porting

import (
	"context"
	"errors"

	"github.com/seed-8c25f305/watchlock"
)

// WaitUntilCancelled gives up waiting when ctx ends. Its job is told by the same context.
// guide: interrupt
func WaitUntilCancelled(ctx context.Context, m *watchlock.Mutex, job func(context.Context) error) error {
	return m.Do(ctx, job)
}

// end

// RunAnywhere takes the lock on one goroutine and gives it back on another: the lease is the owner.
// guide: coroutine
func RunAnywhere(ctx context.Context, m *watchlock.Mutex, job func(context.Context) error) error {
	lease, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	done := make(chan error)
	go func() {
		err := job(lease.Context(ctx))
		done <- errors.Join(err, lease.Unlock(ctx))
	}()
	return <-done
}

// end
