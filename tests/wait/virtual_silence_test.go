package wait_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap/zaptest/observer"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// virtualOutages are ways in which Redis has no answer, and their ends.
func virtualOutages(v *redistest.Virtual, w *redistest.Wire) map[string][2]func() {
	return map[string][2]func(){
		"it hangs":              {v.Freeze, v.Thaw},
		"it loads its data":     {func() { v.Mini().SetError(virtualLoading) }, func() { v.Mini().SetError("") }},
		"it cannot be reached":  {func() { w.Refuse(true); w.Cut() }, func() { w.Refuse(false) }},
		"connections break off": {func() { w.On(locktest.Acquires(), redistest.DropRequest).Times(0) }, w.Clear},
	}
}

// virtualSilences are the lines so far about waits without an answer.
func virtualSilences(logs *observer.ObservedLogs) []observer.LoggedEntry {
	return locktest.VirtualWarnings(logs, "no answer")
}

func TestVirtualAWaitWithoutAnAnswerForASecondIsLoggedOnceAnOutage(t *testing.T) {
	for name := range virtualOutages(nil, redistest.NewWire()) {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				log, logs := locktest.Observed()
				locktest.VirtualLoad(t, v)
				w := redistest.NewWire()
				// go-redis dials again with a mutex held, which is no waiting in virtual time.
				once := func(o *redis.Options) { o.DialerRetries = 1 }
				c := locktest.KnowServer(locktest.NewTestClient(t, v.Client(w.Options(), once), log, watchlock.WithMaxPollInterval(250*time.Millisecond)), true)
				for _, key := range []string{"a", "b"} {
					locktest.VirtualTake(v, key, 0)
				}
				a := locktest.GoLock(func() (*watchlock.Lease, error) { return locktest.NewTestMutex(c, "a").Lock(context.Background()) })
				b := locktest.GoLock(func() (*watchlock.Lease, error) {
					return locktest.NewTestMutex(c, "b").TryLock(context.Background(), time.Hour)
				})
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
				<-a.Done
				<-b.Done
				if err := errors.Join(a.Err, b.Err); err != nil {
					t.Fatal(err)
				}
				locktest.MustUnlock(t, a.Lease)
				locktest.MustUnlock(t, b.Lease)
			})
		})
	}
}

// Calls one after the other are in one outage, and calls that are shorter than a second have
// their error, and no line.
func TestVirtualCallsOfOneOutageAreLoggedOnceAndShortOnesNever(t *testing.T) {
	for wait, want := range map[time.Duration]int{300 * time.Millisecond: 0, 3 * time.Second: 1} {
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			log, logs := locktest.Observed()
			m := locktest.NewTestMutex(locktest.VirtualClient(t, v, log), "k")
			v.Mini().SetError(virtualLoading)
			for range 10 {
				if _, err := m.TryLock(context.Background(), wait); !watchlock.IsUnavailable(err) {
					t.Errorf("in the outage: %v", err)
				}
			}
			if n := len(virtualSilences(logs)); n != want || logs.Len() != want {
				t.Errorf("ten waits of %v: %d lines", wait, n)
			}
			v.Mini().SetError("")
			locktest.MustUnlock(t, locktest.MustLock(t, m))
		})
	}
}

// As README says: a Redis that cannot be reached at the first try is an error at once.
func TestVirtualARedisThatCannotBeReachedAtTheFirstTryIsAnErrorAtOnce(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		log, logs := locktest.Observed()
		w := redistest.NewWire()
		w.Refuse(true)
		m := locktest.NewTestMutex(locktest.NewTestClient(t, v.Client(w.Options()), log), "k")
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
			locktest.VirtualWantErr(t, name, err, nil, watchlock.ErrNotAcquired)
			// go-redis itself dials again a few times.
			if took := time.Since(start); !watchlock.IsUnavailable(err) || took > transport.AttemptTimeout {
				t.Errorf("%s: after %v: %v", name, took, err)
			}
		}
		synctest.Wait()
		if logs.Len() != 0 {
			t.Errorf("logged %v", logs.All())
		}
	})
}
