package wait_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestVirtualUnwatchedLeaseIsWarnedOfOnceAfterOneWatchdogTimeout(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		log, logs := locktest.Observed()
		c := locktest.VirtualClient(t, v, log)
		start := time.Now()
		l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
		locktest.VirtualUntil(start, 29900*time.Millisecond)
		if n := logs.Len(); n != 0 {
			t.Errorf("%d entries before one watchdog timeout", n)
		}
		locktest.VirtualUntil(start, 40*time.Second)
		got := locktest.VirtualWarnings(logs, "Context")
		if len(got) != 1 {
			t.Fatalf("%d warnings, want 1: %v", len(got), logs.All())
		}
		fields := got[0].ContextMap()
		if fields["lock"] != "job" || !strings.Contains(fields["taken at"].(string), "/locktest/client.go:") {
			t.Errorf("the warning says %v, want the lock and where it was taken", fields)
		}
		locktest.VirtualUntil(start, 10*time.Minute)
		if n := logs.Len(); n != 1 {
			t.Errorf("%d entries after ten minutes, want 1", n)
		}
		locktest.MustUnlock(t, l)
	})
}

func TestVirtualWatchedLeasesAreNotWarnedOf(t *testing.T) {
	for name, c := range map[string]struct {
		opts  []watchlock.LockOption
		watch func(l *watchlock.Lease)
	}{
		"Context":        {nil, func(l *watchlock.Lease) { l.Context(context.Background()) }},
		"Done":           {nil, func(l *watchlock.Lease) { l.Done() }},
		"Err":            {nil, func(l *watchlock.Lease) { _ = l.Err() }},
		"explicit lease": {[]watchlock.LockOption{watchlock.WithLeaseTime(10 * time.Minute)}, func(*watchlock.Lease) {}},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				log, logs := locktest.Observed()
				client := locktest.VirtualClient(t, v, log)
				l := locktest.MustLock(t, locktest.NewTestMutex(client, "job"), c.opts...)
				time.Sleep(20 * time.Second)
				c.watch(l)
				time.Sleep(5 * time.Minute)
				locktest.MustUnlock(t, l)
				if logs.Len() != 0 {
					t.Errorf("logged %v", logs.All())
				}
			})
		})
	}
}

func TestVirtualLeaseUnlockedInTimeIsNotWarnedOf(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		log, logs := locktest.Observed()
		c := locktest.VirtualClient(t, v, log)
		for range 100 {
			l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
			time.Sleep(29 * time.Second)
			locktest.MustUnlock(t, l)
		}
		err := locktest.NewTestMutex(c, "job").Do(context.Background(), func(context.Context) error {
			time.Sleep(5 * time.Minute) // Do watches for its function
			return nil
		})
		if err != nil || logs.Len() != 0 {
			t.Errorf("%v; logged %v", err, logs.All())
		}
	})
}

func TestVirtualWaitBehindThisVeryClientIsWarnedOfOnce(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		log, logs := locktest.Observed()
		c := locktest.VirtualClient(t, v, log)
		other := locktest.NewTestClient(t, v.Client(), log)
		a, b := locktest.NewTestMutex(c, "a"), locktest.NewTestMutex(c, "b")
		la, lb := locktest.MustLock(t, a), locktest.MustLock(t, b)
		la.Done()
		lb.Done()
		_, _ = locktest.NewTestMutex(other, "a").TryLock(context.Background(), time.Second)
		_, _ = a.TryLock(context.Background(), 0)
		if logs.Len() != 0 {
			t.Errorf("warned of a wait behind another client, or of no wait: %v", logs.All())
		}
		for range 3 {
			_, _ = a.TryLock(context.Background(), time.Second)
			_, _ = b.TryLock(context.Background(), time.Second)
		}
		synctest.Wait()
		got := locktest.VirtualWarnings(logs, "Lease.Context")
		if len(got) != 1 || logs.Len() != 1 {
			t.Errorf("logged %v, want one warning with a pointer to Lease.Context", logs.All())
		} else if got[0].ContextMap()["lock"] != "a" {
			t.Errorf("the warning says %v, want the lock", got[0].ContextMap())
		}
		locktest.MustUnlock(t, la)
		locktest.MustUnlock(t, lb)
	})
}

func TestVirtualLossIsLoggedWithItsPlaceAndRenewalFailureOnce(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		log, logs := locktest.Observed()
		c := locktest.VirtualClient(t, v, log)
		l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
		v.Freeze()
		<-l.Done()
		synctest.Wait()
		if got := locktest.VirtualWarnings(logs, "renewal failed"); len(got) != 1 {
			t.Errorf("%d warnings of failed renewals in one outage, want 1", len(got))
		}
		got := locktest.VirtualWarnings(logs, "lost")
		if len(got) != 1 || !strings.Contains(got[0].ContextMap()["taken at"].(string), "/locktest/client.go:") {
			t.Errorf("logged %v, want one loss with its place", logs.All())
		}
		v.Thaw()
	})
}
