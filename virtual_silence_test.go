package watchlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap/zaptest/observer"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// virtualOutages are ways in which Redis has no answer, and their ends.
func virtualOutages(v *redistest.Virtual, w *redistest.Wire) map[string][2]func() {
	return map[string][2]func(){
		"it hangs":              {v.Freeze, v.Thaw},
		"it loads its data":     {func() { v.Mini().SetError(virtualLoading) }, func() { v.Mini().SetError("") }},
		"it cannot be reached":  {func() { w.Refuse(true); w.Cut() }, func() { w.Refuse(false) }},
		"connections break off": {func() { w.On(acquires(), redistest.DropRequest).Times(0) }, w.Clear},
	}
}

// virtualSilences are the lines so far about waits without an answer.
func virtualSilences(logs *observer.ObservedLogs) []observer.LoggedEntry {
	return virtualWarnings(logs, "no answer")
}

func TestVirtualAWaitWithoutAnAnswerForASecondIsLoggedOnceAnOutage(t *testing.T) {
	for name := range virtualOutages(nil, redistest.NewWire()) {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				log, logs := observed()
				virtualLoad(t, v)
				w := redistest.NewWire()
				// go-redis dials again with a mutex held, which is no waiting in virtual time.
				once := func(o *redis.Options) { o.DialerRetries = 1 }
				c := knowServer(newTestClient(t, v.Client(w.Options(), once), log, WithMaxPollInterval(250*time.Millisecond)), true)
				for _, key := range []string{"a", "b"} {
					virtualTake(v, key, 0)
				}
				a := goLock(func() (*Lease, error) { return newTestMutex(c, "a").Lock(context.Background()) })
				b := goLock(func() (*Lease, error) { return newTestMutex(c, "b").TryLock(context.Background(), time.Hour) })
				time.Sleep(time.Minute)
				outage := virtualOutages(v, w)[name]
				for n := range 2 {
					began := time.Now()
					outage[0]()
					time.Sleep(900 * time.Millisecond)
					if got := virtualSilences(logs); len(got) != 2*n {
						t.Errorf("outage %d: logged within a second: %v", n, got)
					}
					time.Sleep(30 * time.Second)
					got := virtualSilences(logs)
					if len(got) != 2*n+2 {
						t.Fatalf("outage %d: %d lines about two waits: %v", n, len(got), got)
					}
					locks := map[any]bool{}
					for _, e := range got[2*n:] {
						fields := e.ContextMap()
						locks[fields["lock"]] = true
						if at := e.Time.Sub(began); at > 2500*time.Millisecond || fields["error"] == "" {
							t.Errorf("outage %d: after %v a line says %v", n, at, fields)
						}
					}
					if !locks["a"] || !locks["b"] {
						t.Errorf("outage %d: the lines name %v", n, locks)
					}
					outage[1]()
					time.Sleep(5 * time.Second)
				}
				v.Mini().FlushAll()
				<-a.done
				<-b.done
				if err := errors.Join(a.err, b.err); err != nil {
					t.Fatal(err)
				}
				mustUnlock(t, a.lease)
				mustUnlock(t, b.lease)
			})
		})
	}
}

// Calls one after the other are in one outage, and calls that are shorter than a second have
// their error, and no line.
func TestVirtualCallsOfOneOutageAreLoggedOnceAndShortOnesNever(t *testing.T) {
	for wait, want := range map[time.Duration]int{300 * time.Millisecond: 0, 3 * time.Second: 1} {
		inBubble(t, func(t *testing.T, v *redistest.Virtual) {
			log, logs := observed()
			m := newTestMutex(virtualClient(t, v, log), "k")
			v.Mini().SetError(virtualLoading)
			for range 10 {
				if _, err := m.TryLock(context.Background(), wait); !IsUnavailable(err) {
					t.Errorf("in the outage: %v", err)
				}
			}
			if n := len(virtualSilences(logs)); n != want || logs.Len() != want {
				t.Errorf("ten waits of %v: %d lines", wait, n)
			}
			v.Mini().SetError("")
			mustUnlock(t, mustLock(t, m))
		})
	}
}

// As README says: a Redis that cannot be reached at the first try is an error at once.
func TestVirtualARedisThatCannotBeReachedAtTheFirstTryIsAnErrorAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		log, logs := observed()
		w := redistest.NewWire()
		w.Refuse(true)
		m := newTestMutex(newTestClient(t, v.Client(w.Options()), log), "k")
		nothing := func(context.Context) error { t.Error("it ran"); return nil }
		for name, call := range map[string]func() error{
			"Lock":       func() error { _, err := m.Lock(context.Background()); return err },
			"TryLock":    func() error { _, err := m.TryLock(context.Background(), time.Minute); return err },
			"TryLock, 0": func() error { _, err := m.TryLock(context.Background(), 0); return err },
			"Do":         func() error { return m.Do(context.Background(), nothing) },
			"TryDo":      func() error { return m.TryDo(context.Background(), time.Minute, nothing) },
		} {
			start := time.Now()
			err := call()
			virtualWantErr(t, name, err, nil, ErrNotAcquired)
			// go-redis itself dials again a few times.
			if took := time.Since(start); !IsUnavailable(err) || took > transport.AttemptTimeout {
				t.Errorf("%s: after %v: %v", name, took, err)
			}
		}
		synctest.Wait()
		if logs.Len() != 0 {
			t.Errorf("logged %v", logs.All())
		}
	})
}
