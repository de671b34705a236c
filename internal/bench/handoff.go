package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"time"
)

const (
	handoffRest = 3 * time.Millisecond // a waiter sleeps by then
	newHandoffs = 3                    // so many find connections to be made
)

// turn is a lock that somebody waited for.
type turn struct {
	at    time.Time
	lease lease
	err   error
}

// handoff measures from before an Unlock until the Lock of the only waiter, which
// is another client's, has returned. The two take turns.
func handoff(t trial) (figures, error) {
	if t.adapter.jvm {
		return handoffInJVM(t)
	}
	var players [2]mutex
	for i := range players {
		s, err := t.open()
		if err != nil {
			return nil, err
		}
		defer s.close()
		players[i] = s.mutex(t.name)
	}
	ctx := context.Background()
	asks, turns := make(chan mutex), make(chan turn, 1)
	defer close(asks)
	go func() {
		for lock := range asks {
			l, err := lock(ctx)
			turns <- turn{time.Now(), l, err}
		}
	}()
	held, err := players[0](ctx)
	if err != nil {
		return nil, err
	}
	var waits histogram
	seen, n := new(witness), int64(0)
	before, err := t.look(os.Getpid())
	if err != nil {
		return nil, err
	}
	for n <= newHandoffs || time.Since(before.at) < t.plan.span {
		asks <- players[(n+1)%2]
		pause(handoffRest + rand.N(handoffRest/2))
		seen.section(0)
		n++
		left := time.Now()
		err := held.Unlock(ctx)
		var next turn
		select {
		case next = <-turns:
		case <-time.After(t.plan.drain):
			next.err = asleepError(1)
		}
		if err := errors.Join(err, next.err); err != nil {
			return nil, err
		}
		held = next.lease
		if n > newHandoffs {
			waits.add(next.at.Sub(left))
		}
	}
	after, err := t.look(os.Getpid())
	f := figures{}
	if err := errors.Join(err, held.Unlock(ctx), seen.check(n), t.connections(f)); err != nil {
		return nil, err
	}
	t.costs(f, before, after, float64(n))
	waits.into(f)
	return f, nil
}
