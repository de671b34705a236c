package main

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// crowd is a number of goroutines that lock and unlock as fast as they can, in a
// process that does nothing else, or in several.
type crowd struct {
	processes   int
	goroutines  int           // of each process
	own         bool          // each has a lock of its own
	section     time.Duration // how long each stays inside
	cancellable bool          // their context can end
}

func (c crowd) measure(t trial) (figures, error) {
	f, each, err := c.contest(t, slices.Repeat([]adapter{t.adapter}, max(1, c.processes)))
	if len(each) < 2 || f == nil {
		return f, err
	}
	var sums []int64
	for _, its := range each {
		sums = append(sums, its.sum())
	}
	f[shares] = float64(slices.Max(sums)-slices.Min(sums)) * float64(len(sums)) / float64(max(join(each...).sum(), 1))
	return f, err
}

// contest measures such crowds, one of each adapter, on one lock. An error beside
// figures tells of those who were not woken.
func (c crowd) contest(t trial, rivals []adapter) (f figures, each []turns, err error) {
	seen, path, err := t.witness()
	if err != nil {
		return nil, nil, err
	}
	var list []*process
	defer func() {
		for _, p := range list {
			err = errors.Join(err, p.leave())
		}
	}()
	var pids []int
	for _, a := range rivals {
		p, err := t.process(a)
		if err != nil {
			return nil, nil, err
		}
		list, pids = append(list, p), append(pids, p.cmd.Process.Pid)
	}
	all := func(op string) error {
		return inEach(list, func(_ int, p *process) error { return p.do(order{Op: op}, nil) })
	}
	if err := inEach(list, func(i int, p *process) error {
		return p.do(order{
			Op: "gather", Adapter: rivals[i].name, Address: "redis://" + t.srv.addr, Name: t.name, Threads: c.goroutines,
			Section: c.section, Own: oneIf(c.own), Interruptibly: oneIf(c.cancellable), Witness: path,
		}, nil)
	}); err != nil {
		return nil, nil, err
	}
	pause(t.warmUp())
	before, err1 := t.look(pids...)
	err2 := all("measure")
	pause(t.plan.span)
	err3 := all("measured")
	after, err4 := t.look(pids...)
	each = make([]turns, len(list))
	// All at once, or the last would have turns to itself.
	err5 := inEach(list, func(i int, p *process) error { return p.do(order{Op: "finish", Nanos: t.plan.drain}, &each[i]) })
	f = figures{}
	if err := errors.Join(err1, err2, err3, err4, err5, t.connections(f)); err != nil {
		return nil, nil, err
	}
	sum := join(each...)
	if !c.own {
		err = seen.check(sum.Entered)
	}
	if sum.Broken != "" {
		err = &brokenError{sum.Broken}
	}
	if err != nil {
		return nil, nil, err
	}
	after.mallocs, after.bytes = before.mallocs+sum.Mallocs, before.bytes+sum.Bytes
	f[rate] = float64(sum.sum()) / after.at.Sub(before.at).Seconds()
	t.costs(f, before, after, float64(sum.sum()))
	sum.into(f)
	return f, each, asleepError(sum.Asleep)
}

func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}

// join adds up what several crowds got.
func join(each ...turns) (all turns) {
	for _, t := range each {
		all.Served, all.Waits = append(all.Served, t.Served...), append(all.Waits, t.Waits...)
		all.Longest = max(all.Longest, t.Longest)
		all.Entered, all.Asleep = all.Entered+t.Entered, all.Asleep+t.Asleep
		all.Mallocs, all.Bytes = all.Mallocs+t.Mallocs, all.Bytes+t.Bytes
		all.Broken += t.Broken
	}
	return all
}

func (t turns) sum() (n int64) {
	for _, s := range t.Served {
		n += s
	}
	return n
}

// into writes waits and shares. Somebody who was not served at all counts as 1.
func (t turns) into(f figures) {
	var waits histogram
	for _, w := range t.Waits {
		waits.addMany(time.Duration(w[0]), w[1])
	}
	waits.max = t.Longest
	waits.into(f)
	if len(t.Served) > 1 {
		f[served] = float64(max(slices.Max(t.Served), 1)) / float64(max(slices.Min(t.Served), 1))
	}
}

// asleepError says that some waiters were not woken when the lock became free.
func asleepError(n int) error {
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d slept on though the lock was free", n)
}

// bareLoop is a client that never leaves a lock alone, beside one of the adapter.
type bareLoop struct{ section time.Duration }

func (b bareLoop) measure(t trial) (figures, error) {
	c := crowd{goroutines: 1, section: b.section}
	loop := slices.IndexFunc(adapters(), func(a adapter) bool { return a.name == plainName })
	all, each, err := c.contest(t, []adapter{adapters()[loop], t.adapter})
	if all == nil {
		return nil, err
	}
	f := figures{rate: all[rate], connections: all[connections]}
	f[turnShare] = float64(each[1].sum()) / float64(max(each[0].sum()+each[1].sum(), 1))
	each[1].into(f)
	return f, err
}
