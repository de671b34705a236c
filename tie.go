package watchlock

import (
	"context"
	"time"
)

// tie is what ends the contexts of one hold whose parents end together, or cannot end: core
// is cancelled with the hold, and by the parents' own end. A long hold is asked for contexts
// again and again, under the same parent or one that carries other values, and keeps one tie
// for them all. What a caller has is a leaseContext, which nothing here refers to.
type tie struct {
	core   context.Context
	cancel context.CancelCauseFunc
	drop   func() bool // stops the watch on core's own end; nil: there is none
}

// newTie makes a tie under a parent.
func newTie(parent context.Context) *tie {
	e := &parentEnd{Context: parent, done: parent.Done()}
	core, cancel := context.WithCancelCause(e)
	if e.key == nil {
		e.key = e // it was not asked, and is nobody's
	}
	if from, ok := e.from.(context.Context); ok && from.Done() == e.done {
		e.Context = from // on which core hangs now
	} else if e.done == nil {
		e.Context = nil // it cannot end, so nobody asks how it did
	}
	return &tie{core: core, cancel: cancel}
}

// untie ends the contexts, and the watch on their own end.
func (t *tie) untie(err error) {
	if t.drop != nil {
		t.drop()
	}
	t.cancel(err)
}

// parentEnd has the end of a parent, and nothing else of it: a tie outlives the first of its
// parents that is used, so it must neither keep its values nor ask for them. Package context
// has one key of its own, by which it finds what ends a context. It asks for that, and for
// nothing else, when a context is made.
type parentEnd struct {
	context.Context // the parent; what ends it, when that is known
	done            <-chan struct{}
	key, from       any // what was asked first, and the answer
}

func (e *parentEnd) Done() <-chan struct{}       { return e.done }
func (e *parentEnd) Deadline() (time.Time, bool) { return time.Time{}, false }

func (e *parentEnd) Value(key any) any {
	if e.key == nil {
		e.key, e.from = key, e.Context.Value(key)
	}
	if key == e.key {
		return e.from
	}
	return nil
}

// tie returns the tie of h and a parent. Parents end together when they have the same Done.
// Making a tie runs the parent's code, so it happens outside the mutex, and may turn out to
// have been for nothing.
//
//  1. A tie is in the map only while the hold is live: the end takes the map away, under mu,
//     and then cancels what was in it. One that is made later is cancelled here.
//  2. A tie leaves the map when its parents end: by the watch, or below if that ran before
//     it was in it.
//  3. What is in the map refers to no leaseContext and so to no Lease, also when the parent
//     is a context of the same lease: a parentEnd has let go of it.
func (g *gate) tie(h *hold, parent context.Context) *tie {
	done := parent.Done()
	g.mu.Lock()
	t := h.tied[done]
	g.mu.Unlock()
	if t != nil {
		return t
	}
	t = newTie(parent)
	if done != nil {
		t.drop = context.AfterFunc(t.core, func() { g.untie(h, done, t) })
	}
	g.mu.Lock()
	err, other := h.reasonLocked(), h.tied[done]
	if err == nil && other == nil {
		if h.tied == nil {
			h.tied = make(map[<-chan struct{}]*tie, 1)
		}
		h.tied[done] = t
	}
	g.mu.Unlock()
	switch {
	case err != nil:
		t.untie(err)
	case other != nil:
		t.untie(nil)
		return other
	case t.core.Err() != nil:
		g.untie(h, done, t)
	}
	return t
}

// untie forgets t, whose parents have ended.
func (g *gate) untie(h *hold, done <-chan struct{}, t *tie) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.tied[done] == t {
		delete(h.tied, done)
	}
}
