package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
)

// held is locks that one client holds and renews. It is watched for one round of
// renewals.
type held struct{ locks int }

const takers = 32 // goroutines that take the locks

func (h held) measure(t trial) (figures, error) {
	s, err := t.adapter.open(conditions{t.srv.addr, t.plan.heldTTL})
	if err != nil {
		return nil, err
	}
	defer s.close()
	first := newHeldLocks(s, t.name+":first", 4*takers) // makes the connections
	if err := errors.Join(first.take(), first.giveBack()); err != nil {
		return nil, err
	}
	locks := newHeldLocks(s, t.name, h.locks)
	memoryBefore, goroutinesBefore := memory(), runtime.NumGoroutine()
	if err := locks.take(); err != nil {
		return nil, err
	}
	f := figures{}
	f[memoryEach] = (memory() - memoryBefore) / float64(h.locks)
	f[goroutines] = float64(runtime.NumGoroutine()-goroutinesBefore) / float64(h.locks)
	if err := errors.Join(h.watch(t, f), t.connections(f), locks.giveBack()); err != nil {
		return nil, err
	}
	return f, nil
}

func (h held) watch(t trial, f figures) error {
	round := t.plan.heldTTL / 3
	before, err1 := t.look(os.Getpid())
	pause(round)
	after, err2 := t.look(os.Getpid())
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	t.costs(f, before, after, float64(after.at.Sub(before.at))/float64(round))
	n, err := t.srv.admin.DBSize(context.Background()).Result()
	if err == nil && n < int64(h.locks) {
		err = &brokenError{fmt.Sprintf("%d of %d locks are gone from Redis", int64(h.locks)-n, h.locks)}
	}
	return err
}

// heldLocks are taken, and given back, a few at a time.
type heldLocks struct {
	mutexes []mutex
	leases  []lease
}

func newHeldLocks(s session, name string, n int) heldLocks {
	h := heldLocks{make([]mutex, n), make([]lease, n)}
	for i := range n {
		h.mutexes[i] = s.mutex(fmt.Sprint(name, ":", i))
	}
	return h
}

func (h heldLocks) take() error {
	return h.each(func(i int) (err error) {
		h.leases[i], err = h.mutexes[i](context.Background())
		return err
	})
}

func (h heldLocks) giveBack() error {
	return h.each(func(i int) error { return h.leases[i].Unlock(context.Background()) })
}

func (h heldLocks) each(do func(i int) error) error {
	failures := make([]error, takers)
	var all sync.WaitGroup
	for taker := range takers {
		all.Go(func() {
			for i := taker; i < len(h.mutexes) && failures[taker] == nil; i += takers {
				failures[taker] = do(i)
			}
		})
	}
	all.Wait()
	return errors.Join(failures...)
}
