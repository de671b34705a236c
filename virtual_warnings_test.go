package watchlock

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// virtualWarnings are the warnings so far that contain text.
func virtualWarnings(logs *observer.ObservedLogs, text string) []observer.LoggedEntry {
	return logs.Filter(func(e observer.LoggedEntry) bool {
		return e.Level >= zapcore.WarnLevel && strings.Contains(e.Message, text)
	}).All()
}

func TestVirtualUnwatchedLeaseIsWarnedOfOnceAfterOneWatchdogTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		log, logs := observed()
		c := virtualClient(t, v, log)
		start := time.Now()
		l := mustLock(t, newTestMutex(c, "job"))
		virtualUntil(start, 29900*time.Millisecond)
		if n := logs.Len(); n != 0 {
			t.Errorf("%d entries before one watchdog timeout", n)
		}
		virtualUntil(start, 40*time.Second)
		got := virtualWarnings(logs, "Context")
		if len(got) != 1 {
			t.Fatalf("%d warnings, want 1: %v", len(got), logs.All())
		}
		fields := got[0].ContextMap()
		if fields["lock"] != "job" || !strings.Contains(fields["taken at"].(string), "client_test.go:") {
			t.Errorf("the warning says %v, want the lock and where it was taken", fields)
		}
		virtualUntil(start, 10*time.Minute)
		if n := logs.Len(); n != 1 {
			t.Errorf("%d entries after ten minutes, want 1", n)
		}
		mustUnlock(t, l)
	})
}

func TestVirtualWatchedLeasesAreNotWarnedOf(t *testing.T) {
	for name, c := range map[string]struct {
		opts  []LockOption
		watch func(l *Lease)
	}{
		"Context":        {nil, func(l *Lease) { l.Context(context.Background()) }},
		"Done":           {nil, func(l *Lease) { l.Done() }},
		"Err":            {nil, func(l *Lease) { _ = l.Err() }},
		"explicit lease": {[]LockOption{WithLeaseTime(10 * time.Minute)}, func(*Lease) {}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				log, logs := observed()
				client := virtualClient(t, v, log)
				l := mustLock(t, newTestMutex(client, "job"), c.opts...)
				time.Sleep(20 * time.Second)
				c.watch(l)
				time.Sleep(5 * time.Minute)
				mustUnlock(t, l)
				if logs.Len() != 0 {
					t.Errorf("logged %v", logs.All())
				}
			})
		})
	}
}

func TestVirtualLeaseUnlockedInTimeIsNotWarnedOf(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		log, logs := observed()
		c := virtualClient(t, v, log)
		for range 100 {
			l := mustLock(t, newTestMutex(c, "job"))
			time.Sleep(29 * time.Second)
			mustUnlock(t, l)
		}
		err := newTestMutex(c, "job").Do(context.Background(), func(context.Context) error {
			time.Sleep(5 * time.Minute) // Do watches for its function
			return nil
		})
		if err != nil || logs.Len() != 0 {
			t.Errorf("%v; logged %v", err, logs.All())
		}
	})
}

func TestVirtualWaitBehindThisVeryClientIsWarnedOfOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		log, logs := observed()
		c := virtualClient(t, v, log)
		other := newTestClient(t, v.Client(), log)
		a, b := newTestMutex(c, "a"), newTestMutex(c, "b")
		la, lb := mustLock(t, a), mustLock(t, b)
		la.Done()
		lb.Done()
		_, _ = newTestMutex(other, "a").TryLock(context.Background(), time.Second)
		_, _ = a.TryLock(context.Background(), 0)
		if logs.Len() != 0 {
			t.Errorf("warned of a wait behind another client, or of no wait: %v", logs.All())
		}
		for range 3 {
			_, _ = a.TryLock(context.Background(), time.Second)
			_, _ = b.TryLock(context.Background(), time.Second)
		}
		synctest.Wait()
		got := virtualWarnings(logs, "Lease.Context")
		if len(got) != 1 || logs.Len() != 1 {
			t.Errorf("logged %v, want one warning with a pointer to Lease.Context", logs.All())
		} else if got[0].ContextMap()["lock"] != "a" {
			t.Errorf("the warning says %v, want the lock", got[0].ContextMap())
		}
		mustUnlock(t, la)
		mustUnlock(t, lb)
	})
}

func TestVirtualLossIsLoggedWithItsPlaceAndRenewalFailureOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		log, logs := observed()
		c := virtualClient(t, v, log)
		l := mustLock(t, newTestMutex(c, "job"))
		v.Freeze()
		<-l.Done()
		synctest.Wait()
		if got := virtualWarnings(logs, "renewal failed"); len(got) != 1 {
			t.Errorf("%d warnings of failed renewals in one outage, want 1", len(got))
		}
		got := virtualWarnings(logs, "lost")
		if len(got) != 1 || !strings.Contains(got[0].ContextMap()["taken at"].(string), "client_test.go:") {
			t.Errorf("logged %v, want one loss with its place", logs.All())
		}
		v.Thaw()
	})
}
