package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// crowd is a number of goroutines that lock and unlock as fast as they can.
type crowd struct {
	goroutines  int
	own         bool          // each has a lock of its own
	section     time.Duration // how long each stays inside
	cancellable bool          // their context can end
}

const (
	warming int32 = iota
	measuring
	over
)

// drainTimeout is for how long nobody need enter until it is said that those who
// wait were forgotten.
const drainTimeout = 5 * time.Second

// tally is what one goroutine of a crowd got.
type tally struct {
	entered int64 // sections, all
	served  int64 // those of the measured span
	within  time.Duration
	waits   histogram
	err     error
	ended   atomic.Bool // err is set
}

// gathering is a crowd at work.
type gathering struct {
	crowd
	phase   atomic.Int32
	tallies []*tally
	all     sync.WaitGroup
	inside  []*witness // one, or one for each
}

// gather starts the crowd. seen is the witness of a lock that other processes
// share, or nil.
func (c crowd) gather(a adapter, s session, name string, seen *witness) *gathering {
	g := &gathering{crowd: c}
	if seen == nil {
		seen = new(witness)
	}
	mutexes := a.mutexes(s, name, c.goroutines)
	for i := range c.goroutines {
		m, w, t := mutexes[i], seen, new(tally)
		if c.own {
			m, w = s.mutex(fmt.Sprint(name, ":", i)), new(witness)
		}
		if c.own || i == 0 {
			g.inside = append(g.inside, w)
		}
		g.tallies = append(g.tallies, t)
		g.all.Go(func() {
			t.err = g.work(m, w, t)
			t.ended.Store(true)
		})
	}
	return g
}

func (g *gathering) work(m mutex, w *witness, t *tally) error {
	ctx := context.Background()
	if g.cancellable {
		c, cancel := context.WithCancel(ctx)
		defer cancel()
		ctx = c
	}
	for {
		asked, began := time.Now(), g.phase.Load()
		if began == over {
			return nil
		}
		l, err := m.lock(ctx)
		if err != nil {
			return err
		}
		entered := time.Now()
		w.section(g.section)
		var within time.Duration
		if g.section > 0 {
			within = time.Since(entered)
		}
		if err := l.Unlock(ctx); err != nil {
			return err
		}
		t.entered++
		now := g.phase.Load()
		if now == measuring {
			t.served++
			t.within += within
		}
		// A wait that outlasts the span counts with the part that was seen.
		if now == measuring || began == measuring {
			t.waits.add(entered.Sub(asked))
		}
	}
}

// finish lets everybody in once more, and out. It returns how many still wait
// though nobody has been inside for a while.
func (g *gathering) finish() (asleep int, err error) {
	g.phase.Store(over)
	done := make(chan struct{})
	go func() {
		g.all.Wait()
		close(done)
	}()
	sections, since := int64(-1), time.Now()
	for waiting := true; waiting; {
		select {
		case <-done:
			waiting = false
		case <-time.After(50 * time.Millisecond):
			if n := atomic.LoadInt64(&g.inside[0].n); n != sections {
				sections, since = n, time.Now()
			}
			waiting = time.Since(since) < drainTimeout
		}
	}
	var failures []error
	for _, t := range g.tallies {
		switch {
		case !t.ended.Load():
			asleep++
		case t.err != nil:
			failures = append(failures, t.err)
		}
	}
	return asleep, errors.Join(failures...)
}

// asleepError says that some waiters were not woken when the lock became free.
func asleepError(n int) error {
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d slept on for %v though the lock was free", n, drainTimeout)
}

// entered is how many sections there were.
func (g *gathering) entered() (n int64) {
	for _, t := range g.tallies {
		n += t.entered
	}
	return n
}

// check fails unless each section was alone.
func (g *gathering) check() error {
	if len(g.inside) == 1 {
		return g.inside[0].check(g.entered())
	}
	for i, w := range g.inside {
		if err := w.check(g.tallies[i].entered); err != nil {
			return err
		}
	}
	return nil
}

func (c crowd) measure(t trial) (figures, error) {
	if t.adapter.jvm {
		return c.measureInJVM(t)
	}
	s, err := t.open()
	if err != nil {
		return nil, err
	}
	defer s.close()
	g := c.gather(t.adapter, s, t.name, nil)
	pause(t.plan.warmUp())
	before, err1 := t.begin()
	g.phase.Store(measuring)
	pause(t.plan.span)
	after, err2 := t.end()
	asleep, err3 := g.finish()
	f := figures{}
	if err := errors.Join(err1, err2, err3, g.check(), t.connections(f)); err != nil {
		return nil, err
	}
	o := outcomeOf(g)
	t.perOperation(f, before, after, after.usage.since(before.usage), o.sum())
	o.into(f, after.at.Sub(before.at), c.section > 0)
	return f, asleepError(asleep)
}

// outcome is what a crowd, or several, got in the measured span.
type outcome struct {
	Served []int64
	Within time.Duration
	Waits  histogram
}

func outcomeOf(g *gathering) outcome {
	var o outcome
	for _, t := range g.tallies {
		o.Served = append(o.Served, t.served)
		o.Within += t.within
		o.Waits.merge(&t.waits)
	}
	return o
}

func (o *outcome) sum() (n int64) {
	for _, s := range o.Served {
		n += s
	}
	return n
}

// into writes waits and shares. Somebody who was not served at all counts as 1.
func (o *outcome) into(f figures, span time.Duration, within bool) {
	o.Waits.into(f)
	least, most := o.Served[0], o.Served[0]
	for _, s := range o.Served {
		least, most = min(least, s), max(most, s)
	}
	f[served] = float64(max(most, 1)) / float64(max(least, 1))
	if within {
		f[timeInside] = o.Within.Seconds() / span.Seconds()
	}
}
