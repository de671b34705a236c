package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/examples/internal/timeline"
)

// Act 5: an explicit lease ends while its job still runs. Nothing renews it: that
// is what was asked for. What matters is the order of things then. The job must
// hear that its time is over before Redis can give the lock to the next, or two
// workers are inside at once. So the client counts from before it asked Redis,
// takes a margin off, and ends the lease by its own clock.

// explicitLease lets a job overrun its lease while somebody waits for the lock.
func (s *story) explicitLease(story context.Context) error {
	const lease, step, steps = 1500 * time.Millisecond, 250 * time.Millisecond, 8
	s.Act("A lease that is too short for its job",
		"Worker A takes lock:prices for 1500 ms, and its 8 steps of 250 ms need 2000. Worker B waits.")
	var waiting sync.WaitGroup
	defer waiting.Wait()
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

	type grant struct {
		at  time.Time
		err error
	}
	granted := make(chan grant, 1)
	var told, lastStep time.Time
	err = mine.NewMutex("lock:prices", watchlock.WithLeaseTime(lease)).Do(story, func(ctx context.Context) error {
		s.Say("worker A", "holds lock:prices for %s", timeline.MS(lease))
		waiting.Go(func() {
			s.Say("worker B", "waits for lock:prices")
			var g grant
			// Under the story's context, not worker A's: B's wait outlives A's lease.
			g.err = theirs.NewMutex("lock:prices").Do(story, func(context.Context) error {
				g.at = time.Now()
				s.Say("worker B", "holds lock:prices")
				return nil
			})
			granted <- g
		})
		for n := 1; n <= steps; n++ {
			// Ask before each step that cannot be undone. Err reads the clock, so
			// it is right even when this goroutine has just slept through the end.
			if ctx.Err() != nil {
				break
			}
			lastStep = time.Now()
			s.Say("worker A", "step %d", n)
			if pass(ctx, step) != nil {
				break
			}
		}
		if told = time.Now(); ctx.Err() == nil {
			return nil // all steps done
		}
		s.Say("worker A", "is told: %v; stops", context.Cause(ctx))
		// Stopping takes its time too. Nothing is written in it.
		_ = pass(story, 150*time.Millisecond)
		s.Say("worker A", "has stopped")
		return context.Cause(ctx)
	})
	if err != nil && !errors.Is(err, watchlock.ErrLost) {
		return err
	}
	lost := errors.Is(err, watchlock.ErrLost)
	next := <-granted
	if next.err != nil {
		return next.err
	}
	s.Claim(lost, "Do returned ErrLost, so worker A knows that its job is unfinished")
	s.Claim(lost && told.Before(next.at), "worker A was told %s before worker B got the lock", timeline.MS(next.at.Sub(told)))
	s.Claim(lastStep.Before(next.at), "no step of worker A began after that")
	return nil
}
