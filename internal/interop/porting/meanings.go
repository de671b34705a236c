package porting

import (
	"context"
	"errors"
	"time"

	"github.com/seed-8c25f305/watchlock"
)

// What follows shows what the guide says changes in meaning. The Kotlin
// functions of the same names are in Meanings.kt.

// ShortInLong takes a lease of 2 s within one that is renewed.
func ShortInLong(ctx context.Context, m *watchlock.Mutex, job func(context.Context) error) error {
	return m.Do(ctx, func(ctx context.Context) error {
		inner, err := m.Lock(ctx, watchlock.WithLeaseTime(2*time.Second))
		if err != nil {
			return err
		}
		return errors.Join(job(ctx), inner.Unlock(ctx))
	})
}

// FencedLease takes a fenced lock for 5 s.
func FencedLease(ctx context.Context, m *watchlock.FencedMutex, job func(context.Context, int64) error) error {
	lease, err := m.Lock(ctx, watchlock.WithLeaseTime(5*time.Second))
	if err != nil {
		return err
	}
	return errors.Join(job(ctx, lease.Token()), lease.Unlock(ctx))
}

// FencedReentry gives job how much larger the token of a re-entry is.
func FencedReentry(ctx context.Context, m *watchlock.FencedMutex, job func(context.Context, int64) error) error {
	return m.Do(ctx, func(ctx context.Context, outer int64) error {
		return m.Do(ctx, func(ctx context.Context, inner int64) error {
			return job(ctx, inner-outer)
		})
	})
}

// UnlockTwice runs job between the two.
func UnlockTwice(ctx context.Context, m *watchlock.Mutex, job func(context.Context) error) error {
	lease, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(lease.Unlock(ctx), job(ctx)); err != nil {
		return err
	}
	return lease.Unlock(ctx)
}

// UnlockOnAnotherThread unlocks on a goroutine that did not lock.
func UnlockOnAnotherThread(ctx context.Context, m *watchlock.Mutex, job func(context.Context) error) error {
	lease, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	unlocked := make(chan error)
	err = job(ctx)
	go func() { unlocked <- lease.Unlock(ctx) }()
	return errors.Join(err, <-unlocked)
}

// LockOnAnotherThread tells job whether a goroutine with the lease's context gets the lock too.
func LockOnAnotherThread(ctx context.Context, m *watchlock.Mutex, job func(context.Context, bool) error) error {
	return m.Do(ctx, func(ctx context.Context) error {
		got := make(chan bool)
		go func() {
			inner, err := m.TryLock(ctx, 0)
			got <- err == nil && inner.Unlock(ctx) == nil
		}()
		return job(ctx, <-got)
	})
}
