package wait_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// proxyErrors are what proxies answer with in a server's place: Envoy and twemproxy among
// others. Nobody knows then what became of the command.
var proxyErrors = []string{"upstream failure", "no upstream host", "ERR Connection timed out", "ERR server closed connection"}

// behindAProxy runs f for each kind and error of a proxy, which comes after the command ran
// and in its place.
func behindAProxy(t *testing.T, f func(t *testing.T, v *redistest.Virtual, w *redistest.Wire, c *watchlock.Client, fails redistest.Action)) {
	for _, kind := range []string{"mutex", "fenced", "setnx"} {
		for _, text := range proxyErrors {
			for how, fails := range map[string]redistest.Action{"ran": redistest.Answer(text), "did not run": redistest.Refuse(text)} {
				t.Run(kind+" "+how+" "+text, func(t *testing.T) {
					t.Setenv("WATCHLOCK_KIND", kind)
					locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
						c, w := locktest.VirtualWired(t, v)
						f(t, v, w, c, fails)
					})
				})
			}
		}
	}
}

// wantProxyError fails unless err is the proxy's, and neither "busy" nor an outage nor a loss.
func wantProxyError(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil || watchlock.IsUnavailable(err) {
		t.Errorf("%s: %v", what, err)
	}
	locktest.VirtualWantErr(t, what, err, nil, watchlock.ErrNotAcquired, watchlock.ErrLost, watchlock.ErrNotHeld)
}

func TestAnAcquireThatAProxyAnsweredEndsTheWaitAndLeavesNothing(t *testing.T) {
	behindAProxy(t, func(t *testing.T, v *redistest.Virtual, w *redistest.Wire, c *watchlock.Client, fails redistest.Action) {
		m := locktest.NewTestMutex(c, "job")
		w.On(locktest.Acquires(), fails)
		start := time.Now()
		l, err := m.Lock(context.Background())
		wantProxyError(t, "Lock", err)
		if l != nil || time.Since(start) > 0 {
			t.Errorf("%v after %v", l, time.Since(start))
		}
		synctest.Wait()
		if keys := locktest.WithoutCounters(v.Mini().Keys()); len(keys) > 0 {
			t.Errorf("left: %q", keys)
		}
		locktest.MustUnlock(t, locktest.MustLock(t, m)) // as the next attempt
	})
}

func TestAWaitThatAProxyAnswersEndsAtOnceThoughItBeganWell(t *testing.T) {
	behindAProxy(t, func(t *testing.T, v *redistest.Virtual, w *redistest.Wire, c *watchlock.Client, fails redistest.Action) {
		locktest.VirtualTake(v, "job", time.Hour)
		call := locktest.GoLock(func() (*watchlock.Lease, error) { return locktest.NewTestMutex(c, "job").Lock(context.Background()) })
		time.Sleep(time.Minute)
		v.Mini().Del("job")
		w.On(locktest.Acquires(), fails)
		call.Wait(t)
		wantProxyError(t, "Lock", call.Err)
		time.Sleep(time.Second)
		synctest.Wait()
		if keys := locktest.WithoutCounters(v.Mini().Keys()); len(keys) > 0 {
			t.Errorf("left: %q", keys)
		}
	})
}

func TestAReleaseThatAProxyAnsweredIsTriedAgain(t *testing.T) {
	behindAProxy(t, func(t *testing.T, v *redistest.Virtual, w *redistest.Wire, c *watchlock.Client, fails redistest.Action) {
		l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
		rule := w.On(locktest.Releases(), fails).Times(3)
		if err := l.Unlock(context.Background()); err != nil || rule.Hits() != 3 {
			t.Errorf("Unlock: %v after %d errors", err, rule.Hits())
		}
		if keys := locktest.WithoutCounters(v.Mini().Keys()); len(keys) > 0 {
			t.Errorf("left: %q", keys)
		}
	})
}

func TestAReleaseThatAProxyAnswersForLongIsMadeInTheBackground(t *testing.T) {
	behindAProxy(t, func(t *testing.T, v *redistest.Virtual, w *redistest.Wire, c *watchlock.Client, fails redistest.Action) {
		l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
		start := time.Now()
		rule := w.On(locktest.Releases(), fails).Times(0)
		err := l.Unlock(context.Background())
		wantProxyError(t, "Unlock", err)
		if took := time.Since(start); took > locktest.UnlockTimeoutByDefault {
			t.Errorf("Unlock took %v", took)
		}
		w.Clear()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if keys := locktest.WithoutCounters(v.Mini().Keys()); len(keys) > 0 || rule.Hits() == 0 {
			t.Errorf("left: %q", keys)
		}
	})
}

func TestARenewalThatAProxyAnsweredIsTriedAgain(t *testing.T) {
	behindAProxy(t, func(t *testing.T, v *redistest.Virtual, w *redistest.Wire, c *watchlock.Client, fails redistest.Action) {
		l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
		start := time.Now()
		rule := w.On(locktest.Renews(), fails).Times(3)
		locktest.VirtualUntil(start, 3*locktest.WatchdogTimeoutByDefault)
		if err := l.Err(); err != nil || rule.Hits() != 3 {
			t.Errorf("after %d errors: %v", rule.Hits(), err)
		}
		locktest.MustUnlock(t, l)
	})
}

func TestAnExtensionThatAProxyAnsweredPromisesNothing(t *testing.T) {
	behindAProxy(t, func(t *testing.T, v *redistest.Virtual, w *redistest.Wire, c *watchlock.Client, fails redistest.Action) {
		l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"), watchlock.WithLeaseTime(10*time.Second))
		ends := l.ExpiresAt()
		w.On(locktest.Renews(), fails).Times(2)
		wantProxyError(t, "Extend", l.Extend(context.Background(), time.Minute))
		_, err := locktest.NewTestMutex(c, "job").Lock(l.Context(context.Background()), watchlock.WithLeaseTime(time.Minute))
		wantProxyError(t, "a longer re-entry", err)
		if !l.ExpiresAt().Equal(ends) || l.Err() != nil {
			t.Errorf("it ends at %v, before at %v; %v", l.ExpiresAt(), ends, l.Err())
		}
		locktest.MustUnlock(t, l)
	})
}

func TestALookThatAProxyAnsweredSaysSoAndAForcedReleaseIsTriedAgain(t *testing.T) {
	behindAProxy(t, func(t *testing.T, v *redistest.Virtual, w *redistest.Wire, c *watchlock.Client, fails redistest.Action) {
		ctx := context.Background()
		m := locktest.NewTestMutex(c, "job")
		locktest.VirtualTake(v, "job", time.Hour)
		w.On(looks, fails)
		_, err := m.Info(ctx)
		wantProxyError(t, "Info", err)
		w.On(locktest.Releases(), fails).Times(2)
		if err := m.ForceUnlock(ctx); err != nil || v.Mini().Exists("job") {
			t.Errorf("ForceUnlock: %v; it is there: %v", err, v.Mini().Exists("job"))
		}
	})
}

// looks matches the commands that read who holds a lock.
func looks(c redistest.Command) bool { return redistest.Runs(wire.InfoSource)(c) || c.Name == "GET" }

func TestARelayThatAProxyAnsweredLeavesOneHolderAndNoDoubt(t *testing.T) {
	for _, text := range proxyErrors {
		for _, fails := range []redistest.Action{redistest.Answer(text), redistest.Refuse(text)} {
			locktest.RelayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
				c, w := locktest.RelayClient(t, v, watchlock.WithLocalHandoff(locktest.WindowByDefault))
				first, second := locktest.GoLockNamed(c, kind), locktest.GoLockNamed(c, kind)
				time.Sleep(5 * time.Millisecond) // longer than the window, so that it relays
				rule := w.On(locktest.RelayRuns, fails)
				if err := first.Lease.Unlock(context.Background()); err != nil || rule.Hits() != 1 {
					t.Errorf("Unlock: %v; %d relays", err, rule.Hits())
				}
				second.Wait(t)
				if second.Err != nil {
					t.Fatal(second.Err)
				}
				time.Sleep(10 * time.Second)
				if err := second.Lease.Err(); err != nil || v.Mini().HGet("k", locktest.OwnerOf(second.Lease)) != "1" {
					t.Errorf("10 s later: %v", err)
				}
				locktest.MustUnlock(t, second.Lease)
				synctest.Wait()
				if keys := locktest.WithoutCounters(v.Mini().Keys()); len(keys) > 0 {
					t.Errorf("left: %q", keys)
				}
			})
		}
	}
}

// TestAProxysErrorInTheStringFormIsNoAnswer is about the plain commands of a server that
// compares values itself.
func TestAProxysErrorInTheStringFormIsNoAnswer(t *testing.T) {
	ctx := context.Background()
	s := redistest.Start(t, redistest.On(redistest.Redis86))
	as := locktest.Scriptless(t, s)
	for how, fails := range map[string]redistest.Action{"ran": redistest.Answer(proxyErrors[0]), "did not run": redistest.Refuse(proxyErrors[2])} {
		t.Run(how, func(t *testing.T) {
			w := redistest.NewWire()
			m := locktest.NewTestClient(t, s.Client(as, w.Options()), watchlock.WithWatchdogTimeout(locktest.TourTTL)).NewSetNXMutex("k")
			locktest.MustUnlock(t, locktest.MustLock(t, m))
			w.On(locktest.AcquiresString, fails)
			_, err := m.Lock(ctx)
			wantProxyError(t, "Lock", err)
			locktest.Eventually(t, 2*time.Second, "what it may have taken is given back", func() bool {
				return locktest.MustDo(t, s, "EXISTS", "k") == int64(0)
			})
			l := locktest.MustLock(t, m)
			since := time.Now()
			renewals := w.On(func(c redistest.Command) bool { return c.Name == "SET" && c.Arg(2) == "IFEQ" }, fails)
			locktest.Eventually(t, time.Minute, "its first TTL is over", func() bool { return time.Since(since) > locktest.TourTTL+locktest.TourTTL/10 })
			if l.Err() != nil || renewals.Hits() != 1 {
				t.Errorf("after %d errors: %v", renewals.Hits(), l.Err())
			}
			w.On(looks, fails)
			_, err = m.Info(ctx)
			wantProxyError(t, "Info", err)
			w.On(redistest.Is("DELEX"), fails)
			if err := l.Unlock(ctx); err != nil {
				t.Errorf("Unlock: %v", err)
			}
		})
	}
}
