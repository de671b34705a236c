package watchlock

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// virtualCollect runs the collector until the Lease of h is gone, and reports
// whether it is. Before the watchdog's first look it cannot be. No virtual time
// passes.
func virtualCollect(h *hold, most int) bool {
	for range most {
		runtime.GC()
		h.burst.gate.mu.Lock()
		gone := h.lease == nil && h.seen.Value() == nil
		h.burst.gate.mu.Unlock()
		if gone {
			return true
		}
	}
	return false
}

// virtualForget takes the lock and drops the lease. What keep returns is kept.
//
//go:noinline
func virtualForget(t *testing.T, m *Mutex, keep func(l *Lease) any, opts ...LockOption) (*hold, any) {
	l := mustLock(t, m, opts...)
	return l.hold, keep(l)
}

func TestVirtualForgottenLeaseIsNoLongerRenewedAndLogged(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		log, logs := observed()
		c := virtualClient(t, v, log)
		start := time.Now()
		h, kept := virtualForget(t, newTestMutex(c, "job"), func(l *Lease) any { _ = l.Err(); return l })
		virtualUntil(start, 25*time.Second)
		runtime.KeepAlive(kept)
		if !virtualCollect(h, 1000) {
			t.Fatal("the collector did not notice")
		}
		renewed := v.CountIf(renews())
		if renewed != 2 {
			t.Errorf("%d renewals in 25 s, want 2", renewed)
		}
		virtualUntil(start, 31*time.Second)
		if len(c.Held()) != 0 {
			t.Errorf("Held lists %v after the next due time", c.Held())
		}
		if n := v.CountIf(renews()); n != renewed {
			t.Errorf("%d renewals after it was forgotten", n-renewed)
		}
		got := virtualWarnings(logs, "dropped without Unlock")
		if len(got) != 1 || got[0].ContextMap()["lock"] != "job" ||
			!strings.Contains(got[0].ContextMap()["taken at"].(string), "client_test.go:") {
			t.Errorf("logged %v, want one warning with the place", logs.All())
		}
		if err := h.burst.gate.check(h); err == nil {
			t.Error("the hold is live")
		} else {
			virtualWantErr(t, "the hold", err, []error{ErrLost})
		}
		// Nothing was released under work that may go on; the key runs out.
		virtualUntil(start, 50*time.Second-time.Millisecond)
		if !v.Mini().Exists("job") || v.CountIf(releases()) != 0 {
			t.Error("the key was released before its end")
		}
		l, err := newTestMutex(c, "job").TryLock(context.Background(), time.Minute)
		if err != nil {
			t.Fatalf("the next holder: %v", err)
		}
		if at := time.Since(start); at < 50*time.Second || at > 50*time.Second+15*time.Millisecond {
			t.Errorf("the next holder entered at %v, want right after 50 s", at)
		}
		mustUnlock(t, l)
	})
}

func TestVirtualLeaseForgottenAtOnceIsFoundAtTheSecondLook(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		log, logs := observed()
		c := virtualClient(t, v, log)
		start := time.Now()
		h, _ := virtualForget(t, newTestMutex(c, "job"), func(*Lease) any { return nil })
		if virtualCollect(h, 3) {
			t.Error("gone before the watchdog has looked")
		}
		virtualUntil(start, 10*time.Second)
		if !virtualCollect(h, 1000) {
			t.Fatal("the collector did not notice")
		}
		virtualUntil(start, 20*time.Second-time.Millisecond)
		if len(c.Held()) != 1 {
			t.Error("it ended before the second look")
		}
		virtualUntil(start, 20*time.Second)
		if len(c.Held()) != 0 || len(virtualWarnings(logs, "dropped without Unlock")) != 1 {
			t.Errorf("after the second look Held lists %v, logged %v", c.Held(), logs.All())
		}
		virtualUntil(start, time.Minute)
		if n := v.CountIf(renews()); n != 1 {
			t.Errorf("%d renewals, want the one of the first look", n)
		}
	})
}

func TestVirtualWhatIsKeptKeepsTheLease(t *testing.T) {
	type keyType struct{}
	for name, keep := range map[string]func(l *Lease) any{
		"the lease":   func(l *Lease) any { return l },
		"its context": func(l *Lease) any { return l.Context(context.Background()) },
		"a context with a value, made from it": func(l *Lease) any {
			return context.WithValue(l.Context(context.Background()), keyType{}, 1)
		},
		"a context with a deadline, made from it": func(l *Lease) any {
			ctx, cancel := context.WithTimeout(l.Context(context.Background()), time.Hour)
			return []any{ctx, cancel}
		},
		"the context of a caller who must not re-enter": func(l *Lease) any {
			return WithoutReentry(l.Context(context.Background()))
		},
		"its Done alone": func(l *Lease) any { return l.Done() },
		"nothing, after Done was asked for": func(l *Lease) any {
			l.Done()
			return nil
		},
		"a method value": func(l *Lease) any { return l.Unlock },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c := virtualClient(t, v)
				h, kept := virtualForget(t, newTestMutex(c, "job"), keep)
				for range 6 {
					time.Sleep(10 * time.Second)
					synctest.Wait()
					if virtualCollect(h, 3) {
						t.Error("the lease was collected")
					}
				}
				if err := h.burst.gate.check(h); err != nil || v.Mini().TTL("job") < 20*time.Second {
					t.Errorf("%v, TTL %v", err, v.Mini().TTL("job"))
				}
				runtime.KeepAlive(kept)
			})
		})
	}
}

func TestVirtualForgottenHandleLeavesTheOthersOfItsBurst(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v)
		m := newTestMutex(c, "job")
		outer := mustLock(t, m)
		h := func() *hold { return virtualReenter(t, m, outer).hold }()
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if !virtualCollect(h, 1000) {
			t.Fatal("the collector did not notice")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := outer.Err(); err != nil || v.Mini().TTL("job") < 20*time.Second {
			t.Errorf("the outer: %v, TTL %v", err, v.Mini().TTL("job"))
		}
		virtualWantErr(t, "the forgotten handle", h.burst.gate.check(h), []error{ErrLost})
		mustUnlock(t, outer)
		if v.Mini().Exists("job") {
			t.Error("the key is there after the last Unlock")
		}
	})
}

func TestVirtualUnlockedLeaseIsNotReportedAsForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		log, logs := observed()
		c := virtualClient(t, v, log)
		for _, after := range []time.Duration{0, 15 * time.Second} { // before and after the watchdog's first look
			h, _ := virtualForget(t, newTestMutex(c, "job"), func(l *Lease) any {
				_ = l.Err()
				time.Sleep(after)
				mustUnlock(t, l)
				return nil
			})
			if !virtualCollect(h, 1000) {
				t.Fatal("the collector did not notice")
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if logs.Len() != 0 {
				t.Errorf("logged %v", logs.All())
			}
		}
	})
}

func TestVirtualPlaceIsTheCallersWhicheverCallTookTheLock(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v)
		m := newTestMutex(c, "job")
		here := func(what string) {
			t.Helper()
			held := c.Held()
			if len(held) != 1 || !strings.Contains(held[0].Caller, "virtual_forgotten_test.go:") {
				t.Errorf("%s: Held lists %+v, want this file as the caller", what, held)
			}
		}
		l := mustLock(t, m)
		if held := c.Held(); len(held) != 1 || !strings.Contains(held[0].Caller, "client_test.go:") {
			t.Errorf("Lock in a helper: Held lists %+v", held)
		}
		mustUnlock(t, l)
		l, err := m.TryLock(context.Background(), 0)
		if err != nil {
			t.Fatal(err)
		}
		here("TryLock")
		mustUnlock(t, l)
		in := func(context.Context) error { here("Do or TryDo"); return nil }
		if err := m.Do(context.Background(), in); err != nil {
			t.Error(err)
		}
		if err := m.TryDo(context.Background(), 0, in); err != nil {
			t.Error(err)
		}
	})
}
