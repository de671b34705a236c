package watchlock

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

type contextKey int

// bareContext is a caller's own, that cannot be compared: a struct with a slice.
type bareContext struct {
	context.Context
	_ []int
}

// ownContext is one that ends by a channel of its own.
type ownContext struct {
	context.Context
	done chan struct{}
}

func (c *ownContext) Done() <-chan struct{} { return c.done }

func (c *ownContext) Err() error {
	if virtualClosed(c.done) {
		return context.Canceled
	}
	return nil
}

// virtualParents are parents that do not end while the test runs: each call may make another.
func virtualParents(t *testing.T) map[string]func(i int) context.Context {
	ends, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	own := &ownContext{context.Background(), make(chan struct{})}
	return map[string]func(i int) context.Context{
		"that cannot end":                      func(int) context.Context { return context.Background() },
		"that cannot end, each its own":        func(i int) context.Context { return context.WithValue(context.Background(), contextKey(0), i) },
		"that can end":                         func(int) context.Context { return ends },
		"that can end together, each its own":  func(i int) context.Context { return context.WithValue(ends, contextKey(0), i) },
		"that can end and cannot be compared":  func(int) context.Context { return bareContext{Context: ends} },
		"that can end by a channel of its own": func(int) context.Context { return own },
		"whose end was taken away":             func(int) context.Context { return context.WithoutCancel(ends) },
	}
}

func TestVirtualContextsThatNobodyHasAnyMoreDoNotPileUp(t *testing.T) {
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const contexts = 20_000
		c := virtualClient(t, v)
		for name, parent := range virtualParents(t) {
			l := mustLock(t, newTestMutex(c, "job"))
			_ = l.Context(parent(0))
			before := heap()
			for i := range contexts {
				_ = l.Context(parent(i))
			}
			if each := (heap() - before) / contexts; each > 10 {
				t.Errorf("parents %s: %d bytes for each context that is gone", name, each)
			}
			mustUnlock(t, l)
		}
	})
}

func TestVirtualContextsOfAHoldEndWithItWhateverTheirParentIs(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v)
		for name, parent := range virtualParents(t) {
			l := mustLock(t, newTestMutex(c, "job"))
			var all []context.Context
			for i := range 3 {
				ctx := l.Context(parent(i))
				child, cancel := context.WithTimeout(ctx, time.Hour)
				defer cancel()
				all = append(all, ctx, child, l.Context(child), WithoutReentry(ctx))
				if want := parent(i).Value(contextKey(0)); ctx.Value(contextKey(0)) != want || child.Value(contextKey(0)) != want {
					t.Errorf("parent %s: values %v and %v, want %v", name, ctx.Value(contextKey(0)), child.Value(contextKey(0)), want)
				}
				if ctx.Err() != nil || context.Cause(ctx) != nil {
					t.Errorf("parent %s: ended before the hold: %v", name, context.Cause(ctx))
				}
			}
			v.Mini().FlushAll()
			virtualWantErr(t, "Unlock", l.Unlock(context.Background()), nil)
			for i, ctx := range append(all, l.Context(parent(9))) {
				if !virtualClosed(ctx.Done()) || !errors.Is(ctx.Err(), context.Canceled) {
					t.Errorf("parent %s, context %d: goes on after the hold: %v", name, i, ctx.Err())
				}
				virtualWantErr(t, "cause", context.Cause(ctx), []error{ErrNotHeld})
			}
		}
	})
}

// A context ends with its own parent, by that one's error and cause, at once; the hold and its
// other contexts go on.
func TestVirtualAContextEndsWithItsParentAsItDid(t *testing.T) {
	why := errors.New("why")
	for name, c := range map[string]struct {
		end   func() (context.Context, func())
		err   error
		cause error
	}{
		"cancelled": {func() (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(context.Background())
			return ctx, func() { cancel(why) }
		}, context.Canceled, why},
		"its deadline": {func() (context.Context, func()) {
			ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, why)
			return ctx, func() { time.Sleep(time.Second); synctest.Wait(); cancel() }
		}, context.DeadlineExceeded, why},
		"ended by a value's parent": {func() (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(context.Background())
			return context.WithValue(ctx, contextKey(0), 1), func() { cancel(why) }
		}, context.Canceled, why},
		"ended before": {func() (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(context.Background())
			cancel(why)
			return ctx, func() {}
		}, context.Canceled, why},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				l := mustLock(t, newTestMutex(virtualClient(t, v), "job"))
				other := l.Context(context.Background())
				later, stop := context.WithCancel(context.Background())
				defer stop()
				another := l.Context(later)
				parent, end := c.end()
				first, second := l.Context(parent), l.Context(parent)
				child := context.WithValue(second, contextKey(1), 1)
				d, ok := first.Deadline()
				if want, wants := parent.Deadline(); ok != wants || !d.Equal(want) {
					t.Errorf("deadline %v %v, want %v %v", d, ok, want, wants)
				}
				end()
				for i, ctx := range []context.Context{first, second, child, l.Context(parent)} {
					if !virtualClosed(ctx.Done()) || !errors.Is(ctx.Err(), c.err) || !errors.Is(context.Cause(ctx), c.cause) {
						t.Errorf("context %d: %v, cause %v", i, ctx.Err(), context.Cause(ctx))
					}
				}
				if err := errors.Join(l.Err(), other.Err(), another.Err()); err != nil {
					t.Errorf("the hold and its other contexts: %v", err)
				}
				synctest.Wait()
				if n := len(l.hold.tied); n != 2 {
					t.Errorf("%d ties, want one for each parent that has not ended", n)
				}
				mustUnlock(t, l)
				if !virtualClosed(other.Done()) || !virtualClosed(another.Done()) {
					t.Error("another context goes on after the hold")
				}
			})
		})
	}
}

// The cause of a context is that of its own end, whatever ended above a parent that goes on.
func TestVirtualAContextHasNoCauseFromAboveWhatTookTheEndAway(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		l := mustLock(t, newTestMutex(virtualClient(t, v), "job"))
		ended, cancel := context.WithCancelCause(context.Background())
		cancel(errors.New("of another"))
		ctx := l.Context(context.WithoutCancel(ended))
		child, stop := context.WithCancel(ctx)
		defer stop()
		if ctx.Err() != nil || context.Cause(ctx) != nil || child.Err() != nil {
			t.Errorf("it has ended: %v", context.Cause(ctx))
		}
		mustUnlock(t, l)
		virtualWantErr(t, "cause", context.Cause(child), []error{ErrNotHeld})
	})
}

// A context made under a context of the same lease is no reason to keep the lease.
func TestVirtualALeaseThatOnlyItsOwnContextsReachIsForgotten(t *testing.T) {
	for name, use := range map[string]func(l *Lease){
		"one under another": func(l *Lease) { l.Context(l.Context(context.Background())) },
		"with a value in between": func(l *Lease) {
			l.Context(context.WithValue(l.Context(context.Background()), contextKey(0), 1))
		},
		"of one that can end": func(l *Lease) {
			ctx, cancel := context.WithCancel(context.Background())
			_ = cancel // never called
			l.Context(l.Context(ctx))
		},
		"its Done": func(l *Lease) { l.Context(context.Background()).Done() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c := virtualClient(t, v)
				h, _ := virtualForget(t, newTestMutex(c, "job"), func(l *Lease) any { use(l); return nil })
				time.Sleep(15 * time.Second)
				if !virtualCollect(h, 100) {
					t.Fatal("the collector did not notice")
				}
				time.Sleep(10 * time.Second)
				if held := c.Held(); len(held) != 0 {
					t.Errorf("Held lists %v", held)
				}
			})
		})
	}
}

// pooledContext is used again for another request when its own is over, as those of some
// servers are. All of them end when the server does.
type pooledContext struct {
	context.Context
	asked int
}

func (c *pooledContext) Value(key any) any {
	c.asked++
	return c.Context.Value(key)
}

// A context asks its own parent for values, and no other that ends together with it.
func TestVirtualAContextAsksItsOwnParentForValuesOnly(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		l := mustLock(t, newTestMutex(virtualClient(t, v), "job"))
		server, shutDown := context.WithCancel(context.WithValue(context.Background(), contextKey(0), "server"))
		first := &pooledContext{Context: context.WithValue(server, contextKey(1), "first")}
		second := &pooledContext{Context: context.WithValue(server, contextKey(2), "second")}
		ctx := l.Context(first)
		if ctx.Value(contextKey(0)) != "server" || ctx.Value(contextKey(1)) != "first" || ctx.Value(contextKey(2)) != nil {
			t.Error("the first has other values than its parent")
		}
		first.asked = 0
		ctx = l.Context(second)
		child, cancel := context.WithCancel(ctx)
		defer cancel()
		if child.Value(contextKey(0)) != "server" || child.Value(contextKey(1)) != nil || child.Value(contextKey(2)) != "second" {
			t.Error("the second has other values than its parent")
		}
		shutDown()
		if !virtualClosed(child.Done()) || !errors.Is(context.Cause(child), context.Canceled) {
			t.Errorf("after the server's end: %v", context.Cause(child))
		}
		mustUnlock(t, l)
		if first.asked > 0 {
			t.Errorf("the first parent was asked %d times after its request", first.asked)
		}
	})
}

// Contexts are made while parents end and while the hold does.
func TestVirtualContextsMadeAtTheEndOfAHoldEndToo(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v)
		for range fullCount(2000) {
			l := mustLock(t, newTestMutex(c, "job"))
			var all sync.WaitGroup
			ends, cancel := context.WithCancel(context.Background())
			contexts := make([]context.Context, 8)
			for i := range contexts {
				all.Go(func() {
					switch i % 4 {
					case 0:
						contexts[i] = l.Context(context.Background())
					case 1:
						contexts[i] = l.Context(ends)
					case 2:
						contexts[i] = l.Context(context.WithValue(ends, contextKey(0), i))
					case 3:
						cancel()
						contexts[i] = l.Context(l.Context(ends))
					}
				})
			}
			all.Go(func() { mustUnlock(t, l) })
			all.Wait()
			cancel()
			for i, ctx := range contexts {
				if <-ctx.Done(); ctx.Err() == nil {
					t.Fatalf("context %d: Done is closed, Err nil", i)
				}
			}
		}
	})
}
