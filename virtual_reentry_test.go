package watchlock

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// virtualReenter takes the lock once more under outer's context.
func virtualReenter(t testing.TB, m *Mutex, outer *Lease, opts ...LockOption) *Lease {
	t.Helper()
	l, err := m.Lock(outer.Context(context.Background()), opts...)
	if err != nil {
		t.Fatalf("re-entry: %v", err)
	}
	return l
}

func TestVirtualReentrySendsNothingAndKeepsTheOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v)
		m := newTestMutex(c, "job")
		outer := mustLock(t, m)
		time.Sleep(time.Second)
		synctest.Wait()
		owner := fieldOf(t, v, "job")
		v.Reset()
		ctx := outer.Context(context.Background())
		var inner []*Lease
		for i := range 100 {
			// A Mutex made anew and one that was asked to wait are the same lock.
			l, err := newTestMutex(c, "job").TryLock(ctx, time.Duration(i)*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			inner = append(inner, l)
			ctx = l.Context(ctx)
		}
		short := virtualReenter(t, m, outer, WithLeaseTime(5*time.Second))
		for _, l := range inner {
			mustUnlock(t, l)
		}
		mustUnlock(t, short)
		synctest.Wait()
		if got := v.Commands(); len(got) != 0 {
			t.Errorf("re-entry and its unlocks sent %v", got)
		}
		if now := fieldOf(t, v, "job"); now != owner || owner == "" {
			t.Errorf("the key is %q's, want %q's", now, owner)
		}
		if kindOfTest() != "setnx" && v.Mini().HGet("job", owner) != "1" {
			t.Errorf("the field is %q, want 1", v.Mini().HGet("job", owner))
		}
		mustUnlock(t, outer)
		if v.Mini().Exists("job") {
			t.Error("the key is there after the last Unlock")
		}
	})
}

func TestVirtualLockIsReleasedByTheLastUnlockInAnyOrder(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c := virtualClient(t, v)
				m := newTestMutex(c, "job")
				a := mustLock(t, m)
				b := virtualReenter(t, m, a)
				leases := []*Lease{a, b, virtualReenter(t, m, b)}
				for i, n := range order {
					time.Sleep(35 * time.Second) // each stage is renewed
					if ttl := v.Mini().TTL("job"); ttl < 20*time.Second {
						t.Errorf("TTL is %v after %d unlocks", ttl, i)
					}
					for _, n := range order[i:] {
						if err := leases[n].Err(); err != nil {
							t.Errorf("handle %d after %d unlocks: %v", n, i, err)
						}
					}
					mustUnlock(t, leases[n])
					virtualWantErr(t, "an unlocked handle", leases[n].Err(), []error{ErrNotHeld}, ErrLost)
				}
				if v.Mini().Exists("job") {
					t.Error("the key is there after the last Unlock")
				}
				if n := v.CountIf(releases()); n != 1 {
					t.Errorf("%d releases, want 1", n)
				}
			})
		})
	}
}

func TestVirtualUnlockOfTheOuterEndsItsContextAndThoseMadeFromIt(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v)
		m := newTestMutex(c, "job")
		outer := mustLock(t, m)
		outerCtx := outer.Context(context.Background())
		inner := virtualReenter(t, m, outer)
		under, apart := inner.Context(outerCtx), inner.Context(context.Background())
		mustUnlock(t, outer)
		synctest.Wait()
		for name, ctx := range map[string]context.Context{"the outer's": outerCtx, "the one made from it": under} {
			if ctx.Err() == nil {
				t.Errorf("%s context is alive after Unlock", name)
			}
			virtualWantErr(t, name, context.Cause(ctx), []error{ErrNotHeld}, ErrLost)
		}
		if apart.Err() != nil || inner.Err() != nil || virtualClosed(inner.Done()) {
			t.Errorf("the inner handle ended with the outer: %v, %v", apart.Err(), inner.Err())
		}
		again := virtualReenter(t, m, inner)
		mustUnlock(t, inner)
		time.Sleep(time.Minute)
		if err := again.Err(); err != nil {
			t.Errorf("a handle taken after the outer's Unlock: %v", err)
		}
		mustUnlock(t, again)
	})
}

func TestVirtualContextOfAnEndedLeaseMakesLockFailWithItsError(t *testing.T) {
	ends := map[string]struct {
		end  func(c *Client, l *Lease)
		want error
	}{
		"unlocked":         {func(_ *Client, l *Lease) { _ = l.Unlock(context.Background()) }, ErrNotHeld},
		"lost":             {func(_ *Client, l *Lease) { <-l.Done() }, ErrLost},
		"lost, unlocked":   {func(_ *Client, l *Lease) { <-l.Done(); _ = l.Unlock(context.Background()) }, ErrLost},
		"client is closed": {func(c *Client, _ *Lease) { _ = c.Close() }, ErrClosed},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c := virtualClient(t, v)
				m := newTestMutex(c, "job")
				l := mustLock(t, m, WithLeaseTime(10*time.Second))
				ctx := l.Context(context.Background())
				child, cancel := context.WithCancel(ctx)
				defer cancel()
				end.end(c, l)
				time.Sleep(time.Minute)
				synctest.Wait()
				v.Reset()
				for what, ctx := range map[string]context.Context{
					"its context": ctx, "a child": child, "its values alone": context.WithoutCancel(ctx),
				} {
					_, err := m.Lock(ctx)
					virtualWantErr(t, "Lock with "+what, err, []error{end.want}, ErrNotAcquired)
					_, err = m.TryLock(ctx, 0, WithLeaseTime(time.Second))
					virtualWantErr(t, "TryLock with "+what, err, []error{end.want}, ErrNotAcquired)
				}
				if got := v.Commands(); len(got) != 0 {
					t.Errorf("sent %v for a lease that has ended", got)
				}
			})
		})
	}
}

func TestVirtualWithoutReentryWaitsLikeAnyoneElseAndCarriesTheLoss(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v)
		m := newTestMutex(c, "job")
		l := mustLock(t, m)
		type keyType struct{}
		ctx := WithoutReentry(l.Context(context.WithValue(context.Background(), keyType{}, "kept")))
		if ctx.Value(keyType{}) != "kept" {
			t.Error("other values are gone")
		}
		start := time.Now()
		_, err := m.TryLock(ctx, 300*time.Millisecond)
		virtualWantErr(t, "TryLock", err, []error{ErrNotAcquired})
		if took := time.Since(start); took != 300*time.Millisecond {
			t.Errorf("TryLock took %v, want its whole wait", took)
		}
		_, err = m.TryLock(WithoutReentry(context.Background()), 0)
		virtualWantErr(t, "TryLock on a plain context", err, []error{ErrNotAcquired})
		v.Mini().Del("job")
		synctest.Wait()
		<-ctx.Done()
		virtualWantErr(t, "cause", context.Cause(ctx), []error{ErrLost})
		_, err = m.Lock(ctx)
		virtualWantErr(t, "Lock after the loss", err, []error{ErrLost})
	})
}

func TestVirtualLeaseOfAnotherClientOrNameIsNoRightToEnter(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, other := virtualClient(t, v), newTestClient(t, v.Client())
		a, b := mustLock(t, newTestMutex(c, "a")), mustLock(t, newTestMutex(c, "b"))
		ctx := b.Context(a.Context(context.Background()))
		for _, name := range []string{"a", "b"} {
			if l, err := newTestMutex(c, name).TryLock(ctx, 0); err != nil {
				t.Errorf("%q with both in the context: %v", name, err)
			} else {
				mustUnlock(t, l)
			}
			_, err := newTestMutex(other, name).TryLock(ctx, 0)
			virtualWantErr(t, "another client", err, []error{ErrNotAcquired})
		}
		_, err := newTestMutex(c, "a").TryLock(b.Context(context.Background()), 0)
		virtualWantErr(t, "a with b in the context", err, []error{ErrNotAcquired})
		prefixed := newTestClient(t, v.Client(), WithKeyPrefix("p:"))
		pa := mustLock(t, newTestMutex(prefixed, "a"))
		if l, err := newTestMutex(prefixed, "a").TryLock(pa.Context(context.Background()), 0); err != nil {
			t.Errorf("under a prefix: %v", err)
		} else {
			mustUnlock(t, l)
		}
	})
}

// otherKind is a kind of lock that the hash is not.
type virtualOtherKind struct{ wire.HashKind }

func (virtualOtherKind) String() string { return "other kind" }

func TestVirtualReentryAsAnotherKindIsRefusedByName(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v)
		m := newTestMutex(c, "job")
		l := mustLock(t, m)
		synctest.Wait()
		v.Reset()
		other := newTestMutex(c, "job")
		other.kind = virtualOtherKind{}
		_, err := other.Lock(l.Context(context.Background()))
		virtualWantErr(t, "Lock as another kind", err, nil, ErrNotAcquired, ErrLost)
		if err == nil || !strings.Contains(err.Error(), "mutex") || !strings.Contains(err.Error(), "other kind") {
			t.Errorf("%v, want both kinds named", err)
		}
		if got := v.Commands(); len(got) != 0 {
			t.Errorf("sent %v", got)
		}
		mustUnlock(t, l)
	})
}
