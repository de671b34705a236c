package watchlock

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

func TestDefaultsAreRedissonsWhereItHasThem(t *testing.T) {
	c, err := newConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.watchdogTimeout != 30*time.Second || c.unlockTimeout != 2*time.Second || c.maxPollInterval != 5*time.Second ||
		c.mapName != nil || len(c.lockDefaults) != 0 {
		t.Errorf("defaults are %+v", c)
	}
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		m := newTestClient(t, v.Client()).NewMutex("n")
		if w, err := m.want(forever, nil); err != nil || w != (want{kind: wire.HashKind{}, keys: &m.keys, watchdog: true, lease: 30 * time.Second, leaseArg: wire.LeaseArg(30 * time.Second)}) {
			t.Errorf("a lock wants %+v, %v", w, err)
		}
	})
}

func TestOptionsTakeEffect(t *testing.T) {
	c, err := newConfig([]Option{
		WithWatchdogTimeout(600 * time.Millisecond), WithUnlockTimeout(10 * time.Millisecond), WithMaxPollInterval(time.Minute),
		WithKeyPrefix("p:"), WithLockDefaults(WithMaxHold(time.Hour)), WithLockDefaults(WithLeaseTime(time.Minute)),
	})
	if err != nil || c.watchdogTimeout != 600*time.Millisecond || c.unlockTimeout != 10*time.Millisecond ||
		c.maxPollInterval != time.Minute || c.mapName("n") != "p:n" || len(c.lockDefaults) != 2 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestLockOptionsOfTheClientComeFirstAndOfTheCallLast(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		client, mutex, call []LockOption
		lease               time.Duration // 0: renewed
		maxHold             time.Duration
	}{
		"none":                  {},
		"client":                {client: []LockOption{WithLeaseTime(100 * ms)}, lease: 100 * ms},
		"mutex over client":     {client: []LockOption{WithLeaseTime(100 * ms)}, mutex: []LockOption{WithLeaseTime(200 * ms)}, lease: 200 * ms},
		"call over mutex":       {mutex: []LockOption{WithLeaseTime(200 * ms)}, call: []LockOption{WithLeaseTime(300 * ms)}, lease: 300 * ms},
		"call over client":      {client: []LockOption{WithLeaseTime(100 * ms)}, call: []LockOption{WithLeaseTime(300 * ms)}, lease: 300 * ms},
		"watchdog undoes lease": {mutex: []LockOption{WithLeaseTime(200 * ms)}, call: []LockOption{WithWatchdog()}},
		"lease undoes watchdog": {mutex: []LockOption{WithWatchdog()}, call: []LockOption{WithLeaseTime(300 * ms)}, lease: 300 * ms},
		"last of two counts":    {call: []LockOption{WithLeaseTime(300 * ms), WithLeaseTime(100 * ms)}, lease: 100 * ms},
		"max hold is kept": {
			client: []LockOption{WithMaxHold(time.Hour)}, mutex: []LockOption{WithLeaseTime(200 * ms)}, lease: 200 * ms, maxHold: time.Hour,
		},
		"max hold of one lease time": {call: []LockOption{WithLeaseTime(300 * ms), WithMaxHold(300 * ms)}, lease: 300 * ms, maxHold: 300 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				m := newTestClient(t, v.Client(), WithLockDefaults(c.client...)).NewMutex("n", c.mutex...)
				w, err := m.want(forever, c.call)
				want := want{kind: wire.HashKind{}, keys: &m.keys, watchdog: c.lease == 0, lease: c.lease, maxHold: c.maxHold}
				if c.lease == 0 {
					want.lease = 30 * time.Second
				}
				want.leaseArg = wire.LeaseArg(want.lease)
				if err != nil || w != want {
					t.Fatalf("wants %+v, %v, want %+v", w, err, want)
				}
				l := mustLock(t, m, c.call...)
				if ttl := v.Mini().TTL("n"); ttl != want.lease {
					t.Errorf("TTL %v, want %v", ttl, want.lease)
				}
				mustUnlock(t, l)
				// What one call asked for is not left to the next.
				next, err := m.want(forever, nil)
				if before, _ := newTestClient(t, v.Client(), WithLockDefaults(c.client...)).NewMutex("n", c.mutex...).want(forever, nil); err != nil || sameKeys(next, before.keys) != before {
					t.Errorf("the next call wants %+v, %v, want %+v", next, err, before)
				}
			})
		})
	}
}

func TestMaxHoldIsMeasuredAgainstTheWatchdogTimeoutOfARenewedLease(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := newTestClient(t, v.Client(), WithWatchdogTimeout(3*time.Second))
		if _, err := c.NewMutex("n", WithMaxHold(3*time.Second)).TryLock(t.Context(), 0); err != nil {
			t.Errorf("max hold of one watchdog timeout: %v", err)
		}
		_, err := c.NewMutex("m", WithMaxHold(2999*time.Millisecond)).TryLock(t.Context(), 0)
		if err == nil || !strings.Contains(err.Error(), "max hold 2.999s is below the lease time 3s") {
			t.Errorf("max hold below the watchdog timeout: %v", err)
		}
	})
}

func TestMutexesOfOneClientDoNotShareOptions(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := newTestClient(t, v.Client(), WithLockDefaults(WithLeaseTime(time.Second)))
		short, long := c.NewMutex("n", WithLeaseTime(100*time.Millisecond)), c.NewMutex("n", WithLeaseTime(time.Minute))
		plain := c.NewMutex("n")
		for m, lease := range map[*Mutex]time.Duration{short: 100 * time.Millisecond, long: time.Minute, plain: time.Second} {
			if w, err := m.want(0, nil); err != nil || w.lease != lease {
				t.Errorf("wants %+v, %v, want a lease of %v", w, err, lease)
			}
		}
	})
}

func TestLoggerHearsOfALossAndSilenceIsTheDefault(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		opt, logs := observed()
		m := newTestClient(t, v.Client(), opt).NewMutex("n")
		l := mustLock(t, m)
		v.Mini().Del("n")
		<-l.Done()
		synctest.Wait() // the holder is told first, then the logger
		lost := logs.FilterMessageSnippet("lost").All()
		if len(lost) != 1 || lost[0].ContextMap()["lock"] != "n" || !strings.Contains(lost[0].ContextMap()["taken at"].(string), "client_test.go:") {
			t.Errorf("logged %v", logs.All())
		}
		_ = l.Unlock(t.Context())
		if cfg, _ := newConfig(nil); cfg.log != nil {
			t.Error("the default logger is not silent")
		}
	})
}

func TestUnlockTimeoutBoundsUnlockAndClose(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := newTestClient(t, v.Client(), WithUnlockTimeout(300*time.Millisecond))
		l, left := mustLock(t, c.NewMutex("n")), mustLock(t, c.NewMutex("left"))
		v.Freeze()
		begin := time.Now()
		err := l.Unlock(t.Context())
		if took := time.Since(begin); took < 200*time.Millisecond || took > 350*time.Millisecond {
			t.Errorf("Unlock took %v, want 300ms at most", took)
		}
		if !IsUnavailable(err) {
			t.Errorf("Unlock: %v", err)
		}
		begin = time.Now()
		err = c.Close()
		// And one attempt for what is left to release.
		if took := time.Since(begin); took < 300*time.Millisecond || took > 1400*time.Millisecond {
			t.Errorf("Close took %v", took)
		}
		if err == nil || !strings.Contains(err.Error(), `"left"`) || strings.Contains(err.Error(), `"n"`) {
			t.Errorf("Close: %v", err)
		}
		if err := left.Unlock(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("Unlock after Close: %v", err)
		}
	})
}

func TestPollIntervalGrowsFrom250MillisecondsToTheBound(t *testing.T) {
	for bound, gaps := range map[time.Duration][]time.Duration{
		50 * time.Millisecond: {50 * time.Millisecond, 50 * time.Millisecond, 50 * time.Millisecond},
		time.Second:           {250 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, time.Second},
	} {
		t.Run(bound.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				v.Mini().HSet("n", stranger, "1") // without TTL: only polling and messages end the wait
				m := newTestClient(t, v.Client(), WithMaxPollInterval(bound)).NewMutex("n")
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				start := time.Now()
				if _, err := m.Lock(ctx); !errors.Is(err, ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Lock: %v", err)
				}
				var tries []time.Time
				for _, c := range v.Commands() {
					if redistest.Runs(wire.AcquireSource)(c) && c.Name == "EVALSHA" {
						tries = append(tries, c.Time)
					}
				}
				// The first two are before and after the subscription.
				tries = tries[1:]
				if len(tries) <= len(gaps) {
					t.Fatalf("%d tries", len(tries))
				}
				for i, least := range gaps {
					// As long as it has waited, and a tenth at most, by chance.
					want := min(max(tries[i].Sub(start), firstPoll), bound)
					if got := tries[i+1].Sub(tries[i]); got < least || got < want || got > want+want/10+time.Millisecond {
						t.Errorf("gap %d is %v after %v", i, got, tries[i].Sub(start))
					}
				}
				last := tries[len(tries)-1].Sub(tries[len(tries)-2])
				if last > bound+bound/10+time.Millisecond {
					t.Errorf("the last gap is %v, above %v", last, bound)
				}
			})
		})
	}
}

func TestNewSendsNothingAndTakesPlainAndClusterClients(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := newTestClient(t, v.Client())
		c.NewMutex("n")
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if len(v.Commands()) != 0 || v.Conns() != 0 {
			t.Errorf("sent %v on %d connections", v.Commands(), v.Conns())
		}
	})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer cluster.Close()
	sentinel := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}})
	defer sentinel.Close()
	for _, rdb := range []redis.UniversalClient{cluster, sentinel} {
		c, err := New(rdb)
		if err != nil {
			t.Errorf("%T: %v", rdb, err)
			continue
		}
		_ = c.Close()
	}
}

func TestClientsHaveIDsOfTheirOwnAndAttemptsOwnersOfTheirOwn(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		a, b := newTestClient(t, v.Client()), newTestClient(t, v.Client())
		if a.ID() == b.ID() || len(a.ID()) != 36 {
			t.Errorf("ids %q and %q", a.ID(), b.ID())
		}
		seen := map[string]bool{}
		for range 1000 {
			owner := a.newOwner().(string)
			if seen[owner] || !strings.HasPrefix(owner, a.ID()+":") {
				t.Fatalf("owner %q again, or not of %q", owner, a.ID())
			}
			seen[owner] = true
		}
		m := a.NewMutex("n")
		fields := map[string]bool{}
		for range 3 {
			l := mustLock(t, m)
			got, err := v.Mini().HKeys("n")
			if err != nil || len(got) != 1 || fields[got[0]] || v.Mini().HGet("n", got[0]) != "1" {
				t.Errorf("fields %v, %v", got, err)
			}
			fields[got[0]] = true
			if keys := v.Mini().Keys(); !reflect.DeepEqual(keys, []string{"n"}) {
				t.Errorf("keys %v", keys)
			}
			mustUnlock(t, l)
		}
	})
}

// sameKeys is w with the keys of another Mutex of the same name.
func sameKeys(w want, keys *wire.Keys) want {
	w.keys = keys
	return w
}
