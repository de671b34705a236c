package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	warming int32 = iota
	measuring
	measured
	over
)

// gathering is a crowd at work.
type gathering struct {
	crowd
	phase   atomic.Int32
	members []*member
	all     sync.WaitGroup
}

// member is one goroutine of a crowd, and what it got.
type member struct {
	lock    mutex
	seen    *witness
	entered atomic.Int64 // sections, all
	served  atomic.Int64 // those of the measured span
	waits   histogram
	err     error
	ended   atomic.Bool // err is set
}

// turns are what a crowd got, in the measured span and in all.
type turns struct {
	Served         []int64
	Waits          [][2]int64 // nanoseconds, and how often
	Longest        time.Duration
	Entered        int64
	Asleep         int    // were not woken when the lock became free
	Broken         string // how a lock that only one process has did not exclude
	Mallocs, Bytes uint64
}

// gather starts the crowd. seen is the witness of a lock that all share.
func gather(c crowd, s session, name string, seen *witness) *gathering {
	g := &gathering{crowd: c}
	for i := range c.goroutines {
		m := &member{seen: seen}
		if c.own {
			m.lock, m.seen = s.mutex(fmt.Sprint(name, ":", i)), new(witness)
		} else {
			m.lock = s.mutex(name)
		}
		g.members = append(g.members, m)
	}
	for _, m := range g.members {
		g.all.Go(func() {
			m.err = g.work(m)
			m.ended.Store(true)
		})
	}
	return g
}

func (g *gathering) work(m *member) error {
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
		m.seen.section(g.section)
		if err := l.Unlock(ctx); err != nil {
			return err
		}
		m.entered.Add(1)
		now := g.phase.Load()
		if now == measuring {
			m.served.Add(1)
		}
		// A wait that outlasts the span counts with the part that was seen.
		if now == measuring || began == measuring {
			m.waits.add(entered.Sub(asked))
		}
	}
}

// finish lets everybody in once more, and out, and tells what they got. Those who
// still wait though nobody has been inside for so long are asleep.
func (g *gathering) finish(patience time.Duration) (t turns, err error) {
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
			if n := atomic.LoadInt64(&g.members[0].seen.n); n != sections {
				sections, since = n, time.Now()
			}
			waiting = time.Since(since) < patience
		}
	}
	var waits histogram
	for _, m := range g.members {
		t.Served, t.Entered = append(t.Served, m.served.Load()), t.Entered+m.entered.Load()
		if g.own {
			if broken := m.seen.check(m.entered.Load()); broken != nil {
				t.Broken = broken.Error()
			}
		}
		if !m.ended.Load() {
			t.Asleep++ // its other books are still open
			continue
		}
		for i, n := range m.waits.counts {
			waits.counts[i] += n
		}
		t.Longest, err = max(t.Longest, m.waits.max), errors.Join(err, m.err)
	}
	t.Waits = waits.pairs()
	return t, err
}
