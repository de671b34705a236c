package main

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// rest is waiters of one client for a lock that another client keeps.
type rest struct{ waiters int }

func (r rest) measure(t trial) (f figures, err error) {
	holding, err1 := t.open()
	waiting, err2 := t.open()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	defer holding.close()
	defer waiting.close()
	held, err := holding.mutex(t.name).lock(context.Background())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, held.Unlock(context.Background())) }()

	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var entered atomic.Int64
	defer all.Wait()
	defer cancel()
	join := func(n int) {
		for _, m := range t.adapter.mutexes(waiting, t.name, n) {
			all.Go(func() {
				if l, err := m.lock(ctx); err == nil {
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
	pause(t.plan.settling(t.adapter))

	before, err := t.begin()
	if err != nil {
		return nil, err
	}
	pause(t.plan.watching(t.adapter))
	after, err := t.end()
	f = figures{}
	if err := errors.Join(err, t.connections(f)); err != nil {
		return nil, err
	}
	t.perSecond(f, before, after)
	f[goroutines] = float64(runtime.NumGoroutine()-goroutinesBefore) / float64(r.waiters-1)
	f[memoryEach] = (memory() - memoryBefore) / float64(r.waiters-1)
	if n := entered.Load(); n > 0 {
		return nil, &brokenError{"a waiter entered while the lock was held"}
	}
	return f, nil
}
