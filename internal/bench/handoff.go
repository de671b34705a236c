package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	handoffRest = 3 * time.Millisecond // a waiter sleeps by then
	handoffs    = 3                    // spans: one handoff takes a rest
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
	asks, turns := make(chan mutex), make(chan turn, 1)
	defer close(asks)
	go func() {
		for m := range asks {
			l, err := m.lock(context.Background())
			turns <- turn{time.Now(), l, err}
		}
	}()
	held, err := players[0].lock(context.Background())
	if err != nil {
		return nil, err
	}
	var waits histogram
	seen, n := new(witness), int64(0)
	before, err := t.begin()
	if err != nil {
		return nil, err
	}
	for time.Since(before.at) < handoffs*t.plan.span {
		asks <- players[(n+1)%2]
		seen.section(handoffRest + rand.N(handoffRest/2))
		n++
		left := time.Now()
		err := held.Unlock(context.Background())
		var next turn
		select {
		case next = <-turns:
		case <-time.After(drainTimeout):
			next.err = asleepError(1)
		}
		if err := errors.Join(err, next.err); err != nil {
			return nil, err
		}
		held = next.lease
		if n > 3 { // the first find connections to be made
			waits.add(next.at.Sub(left))
		}
	}
	after, err := t.end()
	f := figures{}
	if err := errors.Join(err, held.Unlock(context.Background()), seen.check(n), t.connections(f)); err != nil {
		return nil, err
	}
	t.perOperation(f, before, after, after.usage.since(before.usage), n)
	delete(f, rate)
	waits.into(f)
	return f, nil
}

// floor is the least that a handoff by message can take: from before a release
// script is sent by raw go-redis until the message has reached a subscriber, and
// with acquire, until the subscriber's acquire script is answered.
type floor struct{ acquire bool }

func (fl floor) measure(t trial) (figures, error) {
	ctx := context.Background()
	s, err := rawAdapter().open(conditions{t.srv.addr, lockTTL})
	if err != nil {
		return nil, err
	}
	defer s.close()
	holder, next := s.mutex(t.name).(*rawMutex), s.mutex(t.name).(*rawMutex)
	rdb := newRedis(conditions{addr: t.srv.addr})
	defer rdb.Close()
	sub := rdb.Subscribe(ctx, holder.channel)
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		return nil, err
	}
	turns := make(chan turn)
	go fl.listen(sub, next, turns)
	var waits histogram
	for began, n := time.Now(), 0; time.Since(began) < handoffs*t.plan.span; n++ {
		if _, err := holder.lock(ctx); err != nil {
			return nil, err
		}
		pause(handoffRest + rand.N(handoffRest/2))
		left := time.Now()
		err := holder.Unlock(ctx)
		got := <-turns
		if err := errors.Join(err, got.err); err != nil {
			return nil, err
		}
		if n > 3 {
			waits.add(got.at.Sub(left))
		}
		if fl.acquire {
			if err := next.s.rdb.Del(ctx, t.name).Err(); err != nil {
				return nil, err
			}
		}
	}
	f := figures{}
	waits.into(f)
	return f, nil
}

// listen tells of each message until the subscription is closed.
func (fl floor) listen(sub *redis.PubSub, m *rawMutex, turns chan<- turn) {
	ctx := context.Background()
	for {
		_, err := sub.ReceiveMessage(ctx)
		if err != nil {
			return
		}
		if fl.acquire {
			_, err = m.lock(ctx)
		}
		turns <- turn{at: time.Now(), err: err}
	}
}
