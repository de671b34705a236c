package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/examples/internal/timeline"
)

// Act 4: a request handler that does not wait for long. It tries for a moment,
// then answers that the order is busy, and when to come back at the latest.

// busy holds a lock with one worker and tries it with another.
func (s *story) busy(ctx context.Context) error {
	const lease, wait = 5 * time.Second, 500 * time.Millisecond
	s.Act("A lock that is busy",
		"Worker A has order 2002 in hand. A customer wants to cancel it, and waits for 500 ms at most.")
	mine, err := s.client()
	if err != nil {
		return err
	}
	defer mine.Close()
	theirs, err := s.client()
	if err != nil {
		return err
	}
	defer theirs.Close()

	held, err := mine.NewMutex("lock:order:2002").Lock(ctx, watchlock.WithLeaseTime(lease))
	if err != nil {
		return err
	}
	s.Say("worker A", "holds lock:order:2002 for %s at most", timeline.MS(lease))

	order := theirs.NewMutex("lock:order:2002")
	cancelled := false
	cancelOrder := func(context.Context) error {
		cancelled = true
		return nil
	}
	s.Say("handler", "tries lock:order:2002")
	asked := time.Now()
	err = order.TryDo(ctx, wait, cancelOrder)
	took := time.Since(asked)

	// Busy is one error, "Redis cannot be reached" is another: only the first
	// says anything about the lock. examples/httpservice answers both over HTTP.
	busy := (*watchlock.LockError)(nil)
	isBusy := errors.Is(err, watchlock.ErrNotAcquired) && errors.As(err, &busy)
	if isBusy {
		s.Say("handler", "409 Conflict, Retry-After: %.0f (A's lease still runs for %s)", math.Ceil(busy.TTL.Seconds()), timeline.MS(busy.TTL))
	} else {
		s.Say("handler", "got %v", err)
	}
	s.Claim(isBusy && !cancelled, "the answer was busy, and nothing was cancelled under worker A's hands")
	s.Claim(took >= wait && took < 2*wait, "it came after %s: the time that the handler wanted to wait", timeline.MS(took))
	s.Claim(isBusy && busy.TTL > 0 && busy.TTL < lease, "it tells how long the holder's lease still runs at most")

	if err := held.Unlock(ctx); err != nil && !errors.Is(err, watchlock.ErrLost) {
		return err
	}
	s.Say("worker A", "unlocks lock:order:2002")
	cancelled = false
	err = order.TryDo(ctx, wait, cancelOrder)
	if err != nil {
		s.Say("handler", "tries again: got %v", err)
	} else {
		s.Say("handler", "tries again: order 2002 is cancelled")
	}
	s.Claim(err == nil && cancelled, "the second try got the lock")
	return nil
}
