package main

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// rest is a number of waiters of one client for a lock that another client holds.
type rest struct{ waiters int }

func (r rest) measure(t trial) (f figures, err error) {
	holding, err := t.open()
	if err != nil {
		return nil, err
	}
	defer holding.close()
	held, err := holding.mutex(t.name)(context.Background())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, held.Unlock(context.Background())) }()
	waiting, err := t.open()
	if err != nil {
		return nil, err
	}
	defer waiting.close()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var entered atomic.Int64
	defer all.Wait()
	defer cancel()
	join := func(n int) {
		for range n {
			lock := waiting.mutex(t.name)
			all.Go(func() {
				if l, err := lock(ctx); err == nil {
					entered.Add(1)
					_ = l.Unlock(context.Background())
				}
			})
		}
	}
	join(1) // makes the connections
	pause(200 * time.Millisecond)
	memoryBefore, goroutinesBefore := memory(), runtime.NumGoroutine()
	join(r.waiters - 1)
	pause(t.plan.settle)

	before, err1 := t.look(os.Getpid())
	pause(t.plan.watch)
	after, err2 := t.look(os.Getpid())
	f = figures{}
	if err := errors.Join(err1, err2, t.connections(f)); err != nil {
		return nil, err
	}
	t.costs(f, before, after, after.at.Sub(before.at).Seconds())
	f[goroutines] = float64(runtime.NumGoroutine()-goroutinesBefore) / float64(r.waiters-1)
	f[memoryEach] = (memory() - memoryBefore) / float64(r.waiters-1)
	if entered.Load() > 0 {
		return nil, &brokenError{"a waiter entered while the lock was held"}
	}
	return f, nil
}
