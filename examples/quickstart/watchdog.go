package main

import (
	"context"
	"errors"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/examples/internal/timeline"
)

// Act 3: a job of unknown length. The key in Redis has a short TTL, so that a
// crashed worker blocks the others for no longer than that. While the worker
// lives, its client renews the TTL every third of it: that is the watchdog.

// longJob runs a job for three times the TTL while somebody else tries to get in.
func (s *story) longJob(ctx context.Context) error {
	// One second makes the act short. The default is 30 s, renewed every 10 s.
	const ttl = time.Second
	s.Act("A job that takes three times as long as the lock's TTL",
		"The TTL is 1 s. The watchdog of worker A's client renews it while the job runs.")
	mine, err := s.client(watchlock.WithWatchdogTimeout(ttl))
	if err != nil {
		return err
	}
	defer mine.Close()
	theirs, err := s.client(watchlock.WithWatchdogTimeout(ttl))
	if err != nil {
		return err
	}
	defer theirs.Close()
	rival := theirs.NewMutex("lock:report")

	began, intruded := time.Now(), 0
	var took time.Duration
	err = mine.NewMutex("lock:report").Do(ctx, func(ctx context.Context) error {
		s.Say("worker A", "holds lock:report and starts a report")
		defer func() { took = time.Since(began) }()
		for time.Since(began) <= 3*ttl {
			if err := pass(ctx, ttl/2); err != nil {
				return err // the lock was lost
			}
			if s.tryReport(ctx, rival) {
				intruded++
			}
		}
		s.Say("worker A", "the report is done")
		return nil
	})
	if err != nil && !errors.Is(err, watchlock.ErrLost) {
		return err
	}
	s.Claim(err == nil && intruded == 0, "a TTL of %s lasted a job of %s: the lock was never lost, and nobody else got in", timeline.MS(ttl), timeline.MS(took))

	lease, err := rival.TryLock(ctx, 0)
	if err != nil {
		s.Say("worker B", "tries lock:report: %v", err)
	} else {
		s.Say("worker B", "tries lock:report: gets it at once")
		err = lease.Unlock(ctx)
	}
	s.Claim(err == nil, "the lock was free as soon as the job was done")
	return nil
}

// tryReport tries the lock once, without waiting, and reports whether it got it.
func (s *story) tryReport(ctx context.Context, lock *watchlock.Mutex) bool {
	lease, err := lock.TryLock(ctx, 0)
	if err == nil {
		s.Say("worker B", "tries lock:report: GETS IT, beside worker A")
		_ = lease.Unlock(ctx)
		return true
	}
	if busy := (*watchlock.LockError)(nil); errors.Is(err, watchlock.ErrNotAcquired) && errors.As(err, &busy) {
		s.Say("worker B", "tries lock:report: busy, the TTL has %s left", timeline.MS(busy.TTL))
	} else {
		s.Say("worker B", "tries lock:report: %v", err)
	}
	return false
}
