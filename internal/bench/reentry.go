package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// reentry measures Lock and Unlock by somebody who holds the lock already.
func reentry(t trial) (figures, error) {
	s, err := t.open()
	if err != nil {
		return nil, err
	}
	defer s.close()
	m, seen := s.mutex(t.name), new(witness)
	outer, err := m.lock(context.Background())
	if err != nil {
		return nil, err
	}
	again, ok := outer.(reentrant)
	if !ok {
		return nil, fmt.Errorf("%s does not re-enter", t.adapter.name)
	}
	ctx := again.Context(context.Background())
	n, err := enterAgain(ctx, m, seen, t.plan.warmUp())
	if err != nil {
		return nil, err
	}
	before, err1 := t.begin()
	counted, err2 := enterAgain(ctx, m, seen, t.plan.span)
	after, err3 := t.end()
	f := figures{}
	if err := errors.Join(err1, err2, err3, outer.Unlock(ctx), seen.check(n+counted), t.connections(f)); err != nil {
		return nil, err
	}
	t.perOperation(f, before, after, after.usage.since(before.usage), counted)
	f[timeEach] = 1 / f[rate]
	return f, nil
}

// enterAgain locks and unlocks for about d and returns how often.
func enterAgain(ctx context.Context, m mutex, seen *witness, d time.Duration) (n int64, err error) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		for range 100 { // a look at the clock costs, too
			l, err := m.lock(ctx)
			if err != nil {
				return n, err
			}
			seen.section(0)
			if err := l.Unlock(ctx); err != nil {
				return n, err
			}
			n++
		}
	}
	return n, nil
}
