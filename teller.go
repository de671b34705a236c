package watchlock

import (
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	mostLines = 4096        // that wait to be written
	lastWords = time.Second // that Close gives the logger
)

// teller is the one way to the caller's logger, which is code that may take any time: a
// line is queued, and written on a goroutine that does nothing else. So no line holds
// back a renewal, a release, the news of a loss or the next in the queue of a lock, and
// one may be said under a mutex.
//
// The goroutine runs while there are lines. Close waits for it, but not for longer than
// lastWords: the logger may block for ever. Lines that do not fit are counted, and the
// count is a line once there is room again.
type teller struct {
	// immutable
	log   *zap.Logger  // nil: nobody listens
	spawn func(func()) // starts a goroutine that close waits for

	mu sync.Mutex // taken after all others
	// guarded by mu
	lines   []line
	dropped int           // since that was last said
	done    chan struct{} // closed when the goroutine ends; nil: there is none
	closed  bool
}

// line is something to tell the caller's logger. What it is about is spelled out only when
// it is written: an error's text may be the caller's code as well.
type line struct {
	at     time.Time // of what it tells; say sets it
	info   bool      // not a warning
	text   string
	lock   string  // "": none
	caller uintptr // where the lock was taken; 0: no matter
	lines  int     // that were dropped
	err    error
}

func newTeller(log *zap.Logger, spawn func(func())) *teller {
	return &teller{log: log, spawn: spawn}
}

// say has l written soon. It never blocks.
func (t *teller) say(l line) {
	if t.log == nil {
		return
	}
	l.at = time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return
	case len(t.lines) >= mostLines:
		t.dropped++
		return
	}
	t.lines = append(t.lines, l)
	if t.done == nil {
		t.done = make(chan struct{})
		t.spawn(t.run)
	}
}

// run writes what was said until there is nothing left.
func (t *teller) run() {
	for {
		l, ok := t.next()
		if !ok {
			return
		}
		level := zap.WarnLevel
		if l.info {
			level = zap.InfoLevel
		}
		if entry := t.log.Check(level, l.text); entry != nil {
			entry.Time = l.at
			entry.Write(l.fields()...)
		}
	}
}

// next takes a line from the queue, or ends the goroutine.
func (t *teller) next() (line, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dropped > 0 && len(t.lines) <= mostLines/2 {
		l := line{at: time.Now(), text: "the logger is too slow; lines were dropped", lines: t.dropped}
		t.dropped = 0
		return l, true
	}
	if len(t.lines) == 0 {
		t.lines = nil
		close(t.done)
		t.done = nil
		return line{}, false
	}
	l := t.lines[0]
	t.lines[0] = line{}
	t.lines = t.lines[1:]
	return l, true
}

// close ends the writing: what was said before it is written, if that takes no longer than
// lastWords, and nothing after it.
func (t *teller) close() {
	t.mu.Lock()
	t.closed = true
	done := t.done
	t.mu.Unlock()
	if done == nil {
		return
	}
	timer := time.NewTimer(lastWords)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		t.mu.Lock()
		t.lines, t.dropped = nil, 0
		t.mu.Unlock()
	}
}

// fields are what a line is about.
func (l line) fields() []zapcore.Field {
	var fields []zapcore.Field
	if l.lock != "" {
		fields = append(fields, zap.String("lock", l.lock))
	}
	if l.caller != 0 {
		fields = append(fields, zap.String("taken at", placeOf(l.caller)))
	}
	if l.lines != 0 {
		fields = append(fields, zap.Int("lines", l.lines))
	}
	if l.err != nil {
		fields = append(fields, zap.Error(l.err))
	}
	return fields
}
