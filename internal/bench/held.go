package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// held is locks that one client holds and renews. It is watched for one round of
// renewals, and for a second while a lock of the same client is taken and given
// back again and again, which the renewals must not delay.
type held struct{ locks int }

const (
	takers    = 32 // goroutines that take the locks
	probeRest = 2 * time.Millisecond
)

func (h held) measure(t trial) (figures, error) {
	s, err := t.openFor(t.plan.heldTTL())
	if err != nil {
		return nil, err
	}
	defer s.close()
	first := make([]lease, 4*takers) // makes the connections
	err = take(held{len(first)}.mutexes(s, t.name+":first"), first)
	if err != nil {
		return nil, err
	}
	giveBack(first)
	mutexes, leases := h.mutexes(s, t.name), make([]lease, h.locks)
	memoryBefore, goroutinesBefore := memory(), runtime.NumGoroutine()
	if err := take(mutexes, leases); err != nil {
		return nil, err
	}
	defer giveBack(leases)
	f := figures{}
	f[memoryEach] = (memory() - memoryBefore) / float64(h.locks)
	f[goroutines] = float64(runtime.NumGoroutine()-goroutinesBefore) / float64(h.locks)
	if !t.adapter.renews {
		return f, nil
	}
	round := t.plan.heldTTL() / 3
	before, err := t.begin()
	if err != nil {
		return nil, err
	}
	pause(round)
	after, err := t.end()
	if err != nil {
		return nil, err
	}
	t.perSecond(f, before, after)
	f[sentRound] = f[sentSecond] * round.Seconds()
	delete(f, sentSecond)

	waits, err := probeFor(s.mutex(t.name+":probe"), round+round/20)
	waits.into(f)
	n, err2 := t.srv.admin.DBSize(context.Background()).Result()
	if err := errors.Join(err, err2, t.connections(f)); err != nil {
		return nil, err
	}
	if n < int64(h.locks) {
		return nil, &brokenError{fmt.Sprintf("%d of %d locks are gone from Redis", int64(h.locks)-n, h.locks)}
	}
	return f, nil
}

// mutexes makes the locks, which does not take them.
func (h held) mutexes(s session, name string) []mutex {
	list := make([]mutex, h.locks)
	for n := range list {
		list[n] = s.mutex(fmt.Sprint(name, ":", n))
	}
	return list
}

// take takes locks, a few at a time.
func take(mutexes []mutex, leases []lease) error {
	failures := make([]error, takers)
	var next atomic.Int64
	var all sync.WaitGroup
	for i := range takers {
		all.Go(func() {
			for n := int(next.Add(1)) - 1; n < len(mutexes) && failures[i] == nil; n = int(next.Add(1)) - 1 {
				leases[n], failures[i] = mutexes[n].lock(context.Background())
			}
		})
	}
	all.Wait()
	return errors.Join(failures...)
}

func giveBack(leases []lease) {
	var all sync.WaitGroup
	for i := range takers {
		all.Go(func() {
			for n := i; n < len(leases); n += takers {
				_ = leases[n].Unlock(context.Background())
			}
		})
	}
	all.Wait()
}

// probeFor takes and gives back m for d, and returns how long the taking took.
func probeFor(m mutex, d time.Duration) (*histogram, error) {
	waits := new(histogram)
	for end := time.Now().Add(d); time.Now().Before(end); pause(probeRest) {
		asked := time.Now()
		l, err := m.lock(context.Background())
		if err != nil {
			return waits, err
		}
		waits.add(time.Since(asked))
		if err := l.Unlock(context.Background()); err != nil {
			return waits, err
		}
	}
	return waits, nil
}
