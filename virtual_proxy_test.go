package watchlock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// proxyErrors are what proxies answer with in a server's place: Envoy and twemproxy among
// others. Nobody knows then what became of the command.
var proxyErrors = []string{"upstream failure", "no upstream host", "ERR Connection timed out", "ERR server closed connection"}

// behindAProxy runs f for each kind and error of a proxy, which comes after the command ran
// and in its place.
func behindAProxy(t *testing.T, f func(t *testing.T, v *redistest.Virtual, w *redistest.Wire, c *Client, fails redistest.Action)) {
	for _, kind := range []string{"mutex", "fenced", "setnx"} {
		for _, text := range proxyErrors {
			for how, fails := range map[string]redistest.Action{"ran": redistest.Answer(text), "did not run": redistest.Refuse(text)} {
				t.Run(kind+" "+how+" "+text, func(t *testing.T) {
					t.Setenv("WATCHLOCK_KIND", kind)
					inBubble(t, func(t *testing.T, v *redistest.Virtual) {
						c, w := virtualWired(t, v)
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
	if err == nil || IsUnavailable(err) {
		t.Errorf("%s: %v", what, err)
	}
	virtualWantErr(t, what, err, nil, ErrNotAcquired, ErrLost, ErrNotHeld)
}

func TestAnAcquireThatAProxyAnsweredEndsTheWaitAndLeavesNothing(t *testing.T) {
	behindAProxy(t, func(t *testing.T, v *redistest.Virtual, w *redistest.Wire, c *Client, fails redistest.Action) {
		m := newTestMutex(c, "job")
		w.On(acquires(), fails)
		start := time.Now()
		l, err := m.Lock(context.Background())
		wantProxyError(t, "Lock", err)
		if l != nil || time.Since(start) > 0 {
			t.Errorf("%v after %v", l, time.Since(start))
		}
		synctest.Wait()
		if keys := withoutCounters(v.Mini().Keys()); len(keys) > 0 {
			t.Errorf("left: %q", keys)
		}
		mustUnlock(t, mustLock(t, m)) // as the next attempt
	})
}

func TestAWaitThatAProxyAnswersEndsAtOnceThoughItBeganWell(t *testing.T) {
	behindAProxy(t, func(t *testing.T, v *redistest.Virtual, w *redistest.Wire, c *Client, fails redistest.Action) {
		virtualTake(v, "job", time.Hour)
		call := goLock(func() (*Lease, error) { return newTestMutex(c, "job").Lock(context.Background()) })
		time.Sleep(time.Minute)
		v.Mini().Del("job")
		w.On(acquires(), fails)
		call.wait(t)
		wantProxyError(t, "Lock", call.err)
		time.Sleep(time.Second)
		synctest.Wait()
		if keys := withoutCounters(v.Mini().Keys()); len(keys) > 0 {
			t.Errorf("left: %q", keys)
		}
	})
}

func TestAReleaseThatAProxyAnsweredIsTriedAgain(t *testing.T) {
	behindAProxy(t, func(t *testing.T, v *redistest.Virtual, w *redistest.Wire, c *Client, fails redistest.Action) {
		l := mustLock(t, newTestMutex(c, "job"))
		rule := w.On(releases(), fails).Times(3)
		if err := l.Unlock(context.Background()); err != nil || rule.Hits() != 3 {
			t.Errorf("Unlock: %v after %d errors", err, rule.Hits())
		}
		if keys := withoutCounters(v.Mini().Keys()); len(keys) > 0 {
			t.Errorf("left: %q", keys)
		}
	})
}

func TestAReleaseThatAProxyAnswersForLongIsMadeInTheBackground(t *testing.T) {
	behindAProxy(t, func(t *testing.T, v *redistest.Virtual, w *redistest.Wire, c *Client, fails redistest.Action) {
		l := mustLock(t, newTestMutex(c, "job"))
		start := time.Now()
		rule := w.On(releases(), fails).Times(0)
		err := l.Unlock(context.Background())
		wantProxyError(t, "Unlock", err)
		if took := time.Since(start); took > defaultUnlockTimeout {
			t.Errorf("Unlock took %v", took)
		}
		w.Clear()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if keys := withoutCounters(v.Mini().Keys()); len(keys) > 0 || rule.Hits() == 0 {
			t.Errorf("left: %q", keys)
		}
	})
}

func TestARenewalThatAProxyAnsweredIsTriedAgain(t *testing.T) {
	behindAProxy(t, func(t *testing.T, v *redistest.Virtual, w *redistest.Wire, c *Client, fails redistest.Action) {
		l := mustLock(t, newTestMutex(c, "job"))
		start := time.Now()
		rule := w.On(renews(), fails).Times(3)
		virtualUntil(start, 3*defaultWatchdogTimeout)
		if err := l.Err(); err != nil || rule.Hits() != 3 {
			t.Errorf("after %d errors: %v", rule.Hits(), err)
		}
		mustUnlock(t, l)
	})
}

func TestAnExtensionThatAProxyAnsweredPromisesNothing(t *testing.T) {
	behindAProxy(t, func(t *testing.T, v *redistest.Virtual, w *redistest.Wire, c *Client, fails redistest.Action) {
		l := mustLock(t, newTestMutex(c, "job"), WithLeaseTime(10*time.Second))
		ends := l.ExpiresAt()
		w.On(renews(), fails).Times(2)
		wantProxyError(t, "Extend", l.Extend(context.Background(), time.Minute))
		_, err := newTestMutex(c, "job").Lock(l.Context(context.Background()), WithLeaseTime(time.Minute))
		wantProxyError(t, "a longer re-entry", err)
		if !l.ExpiresAt().Equal(ends) || l.Err() != nil {
			t.Errorf("it ends at %v, before at %v; %v", l.ExpiresAt(), ends, l.Err())
		}
		mustUnlock(t, l)
	})
}

func TestALookThatAProxyAnsweredSaysSoAndAForcedReleaseIsTriedAgain(t *testing.T) {
	behindAProxy(t, func(t *testing.T, v *redistest.Virtual, w *redistest.Wire, c *Client, fails redistest.Action) {
		ctx := context.Background()
		m := newTestMutex(c, "job")
		virtualTake(v, "job", time.Hour)
		w.On(looks, fails)
		_, err := m.Info(ctx)
		wantProxyError(t, "Info", err)
		w.On(releases(), fails).Times(2)
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
			relayKinds(t, func(t *testing.T, v *redistest.Virtual, kind string) {
				c, w := relayClient(t, v, WithLocalHandoff(defaultLocalHandoff))
				first, second := goLockNamed(c, kind), goLockNamed(c, kind)
				time.Sleep(5 * time.Millisecond) // longer than the window, so that it relays
				rule := w.On(relayRuns, fails)
				if err := first.lease.Unlock(context.Background()); err != nil || rule.Hits() != 1 {
					t.Errorf("Unlock: %v; %d relays", err, rule.Hits())
				}
				second.wait(t)
				if second.err != nil {
					t.Fatal(second.err)
				}
				time.Sleep(10 * time.Second)
				if err := second.lease.Err(); err != nil || v.Mini().HGet("k", second.lease.hold.burst.owner.(string)) != "1" {
					t.Errorf("10 s later: %v", err)
				}
				mustUnlock(t, second.lease)
				synctest.Wait()
				if keys := withoutCounters(v.Mini().Keys()); len(keys) > 0 {
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
	as := scriptless(t, s)
	for how, fails := range map[string]redistest.Action{"ran": redistest.Answer(proxyErrors[0]), "did not run": redistest.Refuse(proxyErrors[2])} {
		t.Run(how, func(t *testing.T) {
			w := redistest.NewWire()
			m := newTestClient(t, s.Client(as, w.Options()), WithWatchdogTimeout(tourTTL)).NewSetNXMutex("k")
			mustUnlock(t, mustLock(t, m))
			w.On(acquiresString, fails)
			_, err := m.Lock(ctx)
			wantProxyError(t, "Lock", err)
			eventually(t, 2*time.Second, "what it may have taken is given back", func() bool {
				return mustDo(t, s, "EXISTS", "k") == int64(0)
			})
			l := mustLock(t, m)
			since := time.Now()
			renewals := w.On(func(c redistest.Command) bool { return c.Name == "SET" && c.Arg(2) == "IFEQ" }, fails)
			eventually(t, time.Minute, "its first TTL is over", func() bool { return time.Since(since) > tourTTL+tourTTL/10 })
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
