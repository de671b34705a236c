package wait_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// panics fails unless f panics with a text that names what.
func panics(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if said := fmt.Sprint(recover()); said != "watchlock: nil "+what {
			t.Errorf("panic %q, want one about a nil %s", said, what)
		}
	}()
	f()
}

// nothingSent fails if anything at all has gone to the server.
func nothingSent(t *testing.T, v *redistest.Virtual) {
	t.Helper()
	if v.Conns() != 0 || len(v.Commands()) != 0 {
		t.Errorf("sent %v on %d connections", v.Commands(), v.Conns())
	}
}

func TestNilArgumentsPanicByNameAndSendNothing(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		rdb, ctx := v.Client(), t.Context()
		m := locktest.NewTestClient(t, rdb).NewMutex("n")
		var client *redis.Client
		var cluster *redis.ClusterClient
		var ring *redis.Ring
		for what, fs := range map[string][]func(){
			"redis client": {
				func() { _, _ = watchlock.New(nil) },
				func() { _, _ = watchlock.New(client) },
				func() { _, _ = watchlock.New(cluster) },
				func() { _, _ = watchlock.New(ring) },
			},
			"Option": {
				func() { _, _ = watchlock.New(rdb, nil) },
				func() { _, _ = watchlock.New(rdb, watchlock.WithUnlockTimeout(time.Second), nil) },
			},
			"LockOption": {
				func() { _, _ = watchlock.New(rdb, watchlock.WithLockDefaults(nil)) },
				func() { locktest.NewTestClient(t, rdb).NewMutex("n", nil) },
				func() { _, _ = m.Lock(ctx, nil) },
				func() { _, _ = m.TryLock(ctx, 0, watchlock.WithWatchdog(), nil) },
			},
			"func": {
				func() { _ = m.Do(ctx, nil) },
				func() { _ = m.TryDo(ctx, 0, nil) },
			},
			"name mapper": {func() { watchlock.WithNameMapper(nil) }},
			"logger":      {func() { watchlock.WithLogger((*zap.Logger)(nil)) }},
		} {
			for _, f := range fs {
				panics(t, what, f)
			}
		}
		nothingSent(t, v)
	})
}

// oddClient is a UniversalClient of a type that New does not know.
type oddClient struct{ redis.UniversalClient }

func TestNewRefusesClientsThatCannotKeepLocks(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}, HeartbeatFn: func(context.Context, *redis.Client) bool { return true }})
		for _, c := range []struct {
			rdb  redis.UniversalClient
			says []string
		}{
			{ring, []string{"redis.Ring", "reshards", "two clients hold one lock"}},
			{oddClient{v.Client()}, []string{"oddClient", "*redis.Client", "*redis.ClusterClient"}},
		} {
			got, err := watchlock.New(c.rdb)
			if got != nil || err == nil {
				t.Errorf("%T is taken", c.rdb)
				continue
			}
			for _, s := range append(c.says, "watchlock: ") {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
		}
		_ = ring.Close()
		nothingSent(t, v)
	})
}

func TestNewRefusesBadOptionsByValueAndBound(t *testing.T) {
	const ms = time.Millisecond
	prefix, mapper := watchlock.WithKeyPrefix("a:"), watchlock.WithNameMapper(strings.ToLower)
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		for says, opts := range map[string][]watchlock.Option{
			"watchdog timeout 299ms is below 300ms":                       {watchlock.WithWatchdogTimeout(299 * ms)},
			"watchdog timeout 0s is below 300ms":                          {watchlock.WithWatchdogTimeout(0)},
			"watchdog timeout -30s is below 300ms":                        {watchlock.WithWatchdogTimeout(-30 * time.Second)},
			"watchdog timeout 300.5ms is not a whole number of millis":    {watchlock.WithWatchdogTimeout(300*ms + 500*time.Microsecond)},
			"watchdog timeout 876000h0m0.001s is above 876000h0m0s":       {watchlock.WithWatchdogTimeout(wire.MaxDuration + ms)},
			"unlock timeout 9ms is below 10ms":                            {watchlock.WithUnlockTimeout(9 * ms)},
			"unlock timeout 0s is below 10ms":                             {watchlock.WithUnlockTimeout(0)},
			"max poll interval 9.999999ms is below 10ms":                  {watchlock.WithMaxPollInterval(10*ms - 1)},
			"max poll interval 10.000001ms is not a whole number":         {watchlock.WithMaxPollInterval(10*ms + 1)},
			"max poll interval 2562047h47m16.854775807s is above 876000h": {watchlock.WithMaxPollInterval(math.MaxInt64)},
			"lease time 9ms is below 10ms":                                {watchlock.WithLockDefaults(watchlock.WithLeaseTime(9 * ms))},
			"max hold 29.999s is below the lease time 30s":                {watchlock.WithLockDefaults(watchlock.WithMaxHold(29999 * ms))},
			"max hold 30s is below the lease time 40s":                    {watchlock.WithLockDefaults(watchlock.WithMaxHold(30 * time.Second)), watchlock.WithWatchdogTimeout(40 * time.Second)},
			"more than one key prefix or name mapper":                     {prefix, mapper},
			"more than one key prefix or name mapper ":                    {mapper, mapper},
			"more than one key prefix or name mapper  ":                   {prefix, prefix},
		} {
			c, err := watchlock.New(v.Client(), opts...)
			if c != nil || err == nil || !strings.HasPrefix(err.Error(), "watchlock: "+strings.TrimSpace(says)) {
				t.Errorf("%v, want %q", err, says)
			}
		}
		nothingSent(t, v)
	})
}

// isRefusal fails unless err is a LockError of op and name that says all of it,
// in few words, and is nothing that a caller would take for another outcome.
func isRefusal(t *testing.T, err error, op, name string, says ...string) {
	t.Helper()
	var le *watchlock.LockError
	if !errors.As(err, &le) {
		t.Errorf("%v (%T) is no LockError", err, err)
		return
	}
	if le.Op != op || le.Name != name {
		t.Errorf("%v is about %s %.50q, want %s %.50q", err, le.Op, le.Name, op, name)
	}
	for _, s := range append(says, fmt.Sprintf("watchlock: %s %.128q: ", op, name)) {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
	if len(err.Error()) > 2000 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
	for _, other := range []error{watchlock.ErrNotAcquired, watchlock.ErrLost, watchlock.ErrNotHeld, watchlock.ErrClosed, watchlock.ErrWrongType} {
		if errors.Is(err, other) {
			t.Errorf("%v matches %v", err, other)
		}
	}
	if watchlock.IsUnavailable(err) {
		t.Errorf("%v is called unavailable", err)
	}
}

func TestBadNamesAreRefusedAtTheFirstCall(t *testing.T) {
	long := strings.Repeat("n", 32<<10+1)
	for name, says := range map[string]string{
		"":        "name is empty",
		long:      "name has 32769 bytes, more than 32768",
		"a{b":     "brace without its partner",
		"a}b":     "brace without its partner",
		"}{":      `"}" before its first "{"`,
		"a{}b":    "empty hash tag",
		"\n\x00{": `"\n\x00{"`,
	} {
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			m := locktest.NewTestClient(t, v.Client()).NewMutex(name)
			for op, call := range locktest.FirstCalls(t.Context(), m) {
				op, _, _ = strings.Cut(op, " do")
				op = strings.TrimSuffix(op, " now")
				isRefusal(t, call(), op, name, says)
			}
			if m.Name() != name {
				t.Errorf("Name is %.50q", m.Name())
			}
			nothingSent(t, v)
		})
	}
}

func TestMapperThatReturnsABadNameIsRefusedAtTheFirstCall(t *testing.T) {
	for mapped, says := range map[string]string{
		"":                         "mapped name is empty",
		strings.Repeat("m", 40000): "mapped name has 40000 bytes, more than 32768",
		"{}":                       `mapped name "{}" has an empty hash tag`,
	} {
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			m := locktest.NewTestClient(t, v.Client(), watchlock.WithNameMapper(func(string) string { return mapped })).NewMutex("n")
			_, err := m.Lock(t.Context())
			isRefusal(t, err, "lock", "n", says)
			nothingSent(t, v)
		})
	}
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.NewTestClient(t, v.Client(), watchlock.WithKeyPrefix(strings.Repeat("p", 100)))
		_, err := c.NewMutex(strings.Repeat("n", 32<<10-99)).Lock(t.Context())
		isRefusal(t, err, "lock", strings.Repeat("n", 32<<10-99), "mapped name has 32769 bytes")
		_, err = c.NewMutex("a}{").Lock(t.Context())
		isRefusal(t, err, "lock", "a}{", `before its first "{"`)
		nothingSent(t, v)
	})
}

func TestBadTimesOfALockAreRefusedAtTheFirstCall(t *testing.T) {
	const ms = time.Millisecond
	for says, opts := range map[string][]watchlock.LockOption{
		"lease time 0s is below 10ms":                              {watchlock.WithLeaseTime(0)},
		"lease time -1s is below 10ms":                             {watchlock.WithLeaseTime(-time.Second)},
		"lease time 500µs is below 10ms":                           {watchlock.WithLeaseTime(500 * time.Microsecond)},
		"lease time 9ms is below 10ms":                             {watchlock.WithLeaseTime(9 * ms)},
		"lease time 1.5ms is below 10ms":                           {watchlock.WithLeaseTime(1500 * time.Microsecond)},
		"lease time 10.5ms is not a whole number of milliseconds":  {watchlock.WithLeaseTime(10*ms + 500*time.Microsecond)},
		"lease time 30ns is below 10ms":                            {watchlock.WithLeaseTime(30)},
		"lease time 2562047h47m16.854775807s is above 876000h0m0s": {watchlock.WithLeaseTime(math.MaxInt64)},
		"lease time -2562047h47m16.854775808s is below 10ms":       {watchlock.WithLeaseTime(math.MinInt64)},
		"max hold 0s is below 10ms":                                {watchlock.WithMaxHold(0)},
		"max hold -1ns is below 10ms":                              {watchlock.WithMaxHold(-1)},
		"max hold 29.999s is below the lease time 30s":             {watchlock.WithMaxHold(29999 * ms)},
		"max hold 999ms is below the lease time 1s":                {watchlock.WithLeaseTime(time.Second), watchlock.WithMaxHold(999 * ms)},
		"max hold 999ms is below the lease time 1s ":               {watchlock.WithMaxHold(999 * ms), watchlock.WithLeaseTime(time.Second)},
		"max hold 1m0.0001s is not a whole number of milliseconds": {watchlock.WithMaxHold(time.Minute + 100*time.Microsecond)},
		"lease time 9ms is below 10ms ":                            {watchlock.WithLeaseTime(9 * ms), watchlock.WithLeaseTime(10 * ms)},
	} {
		says = strings.TrimSpace(says)
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			c := locktest.NewTestClient(t, v.Client())
			for _, call := range locktest.FirstCalls(t.Context(), c.NewMutex("n", opts...)) {
				if err := call(); err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("at NewMutex: %v, want %q", err, says)
				}
			}
			_, err := c.NewMutex("n").Lock(t.Context(), opts...)
			isRefusal(t, err, "lock", "n", says)
			_, err = c.NewMutex("n").TryLock(t.Context(), 0, opts...)
			isRefusal(t, err, "try lock", "n", says)
			nothingSent(t, v)
		})
	}
}

func TestShortestAndLongestTimesAreTaken(t *testing.T) {
	for _, lease := range []time.Duration{10 * time.Millisecond, 11 * time.Millisecond, 300 * time.Millisecond, 30 * time.Second, wire.MaxDuration} {
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			m := locktest.NewTestClient(t, v.Client()).NewMutex("n")
			l := locktest.MustLock(t, m, watchlock.WithLeaseTime(lease), watchlock.WithMaxHold(lease))
			if ttl := v.Mini().TTL("n"); ttl != lease {
				t.Errorf("lease %v: TTL %v", lease, ttl)
			}
			if until := time.Until(l.ExpiresAt()); until != lease-bootclock.Margin(lease) {
				t.Errorf("lease %v: trusted for %v", lease, until)
			}
			locktest.MustUnlock(t, l)
		})
	}
	s := redistest.Start(t)
	m := locktest.NewTestClient(t, s.Client()).NewMutex("n")
	l := locktest.MustLock(t, m, watchlock.WithLeaseTime(wire.MaxDuration))
	if info, err := m.Info(t.Context()); err != nil || info.TTL > wire.MaxDuration || info.TTL < wire.MaxDuration-time.Minute {
		t.Errorf("%+v, %v, want a TTL of %v", info, err, wire.MaxDuration)
	}
	locktest.MustUnlock(t, l)
}

func TestWaitWithoutUnitIsRefused(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		m := locktest.NewTestClient(t, v.Client()).NewMutex("n")
		for wait, says := range map[time.Duration]string{
			1:   "wait 1ns is below 1µs: missing unit?",
			3:   "wait 3ns is below 1µs: missing unit?",
			999: "wait 999ns is below 1µs: missing unit?",
		} {
			_, err := m.TryLock(t.Context(), wait)
			isRefusal(t, err, "try lock", "n", says)
			err = m.TryDo(t.Context(), wait, func(context.Context) error { panic("the section ran") })
			isRefusal(t, err, "try lock", "n", says)
		}
		nothingSent(t, v)
		for _, wait := range []time.Duration{math.MinInt64, -1, 0, time.Microsecond, math.MaxInt64} {
			if err := m.TryDo(t.Context(), wait, func(context.Context) error { return nil }); err != nil {
				t.Errorf("wait %v: %v", wait, err)
			}
		}
	})
}

func TestEndedContextIsRefusedBeforeAnythingIsSent(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		m := locktest.NewTestClient(t, v.Client()).NewMutex("n")
		cause := errors.New("the request is gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		for what, call := range locktest.FirstCalls(ctx, m) {
			if what == "info" {
				continue // asks, and may notice while it waits
			}
			if err := call(); !errors.Is(err, context.Canceled) || !errors.Is(err, cause) || errors.Is(err, watchlock.ErrNotAcquired) {
				t.Errorf("%s: %v", what, err)
			}
		}
		nothingSent(t, v)
	})
}

func TestKeyOfAnotherTypeIsErrWrongTypeAndStays(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		ctx := t.Context()
		c := locktest.NewTestClient(t, s.Client())
		for kind, put := range map[string][]any{
			"string": {"SET", "string", "x"},
			"list":   {"RPUSH", "list", "x"},
			"set":    {"SADD", "set", "x"},
			"zset":   {"ZADD", "zset", "1", "x"},
			"stream": {"XADD", "stream", "1-1", "a", "b"},
		} {
			if _, err := s.Do(put...); err != nil {
				t.Fatal(err)
			}
			before, _ := s.Do("DUMP", kind)
			begin := time.Now()
			for op, call := range locktest.FirstCalls(ctx, c.NewMutex(kind)) {
				err := call()
				var le *watchlock.LockError
				if !errors.Is(err, watchlock.ErrWrongType) || !errors.As(err, &le) || le.Name != kind || watchlock.IsUnavailable(err) || errors.Is(err, watchlock.ErrNotAcquired) {
					t.Errorf("%s of a %s: %v", op, kind, err)
				}
				if !strings.Contains(err.Error(), "WRONGTYPE") {
					t.Errorf("%q has lost the server's text", err)
				}
			}
			if took := time.Since(begin); took > time.Second {
				t.Errorf("six refusals took %v: somebody waited", took)
			}
			if after, err := s.Do("DUMP", kind); err != nil || after != before {
				t.Errorf("the %s was changed: %v", kind, err)
			}
		}
	})
}

func TestKeyThatBecomesAnotherTypeUnderAHolderIsALossAndStays(t *testing.T) {
	s := redistest.Start(t)
	l := locktest.MustLock(t, locktest.NewTestClient(t, s.Client(), watchlock.WithWatchdogTimeout(600*time.Millisecond)).NewMutex("n"))
	if _, err := s.Do("SET", "n", "x"); err != nil {
		t.Fatal(err)
	}
	locktest.Closes(t, l.Done())
	if err := l.Err(); !errors.Is(err, watchlock.ErrLost) {
		t.Errorf("Err: %v", err)
	}
	if err := l.Unlock(t.Context()); !errors.Is(err, watchlock.ErrLost) {
		t.Errorf("Unlock: %v", err)
	}
	if got, err := s.Do("GET", "n"); got != "x" {
		t.Errorf("the key is %v, %v", got, err)
	}
}

func TestForeignHashIsHeldBySomeoneAndNeverChanged(t *testing.T) {
	for what, fields := range map[string][]string{
		"without TTL": {locktest.Stranger, "1"},
		"many fields": {locktest.Stranger, "1", "mode", "write", "junk", ""},
		"no owner":    {"junk", "x"},
	} {
		for _, ttl := range []time.Duration{0, time.Hour} {
			t.Run(fmt.Sprintf("%s, %v", what, ttl), func(t *testing.T) {
				locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
					v.Mini().HSet("n", fields...)
					if ttl > 0 {
						v.Mini().SetTTL("n", ttl)
					}
					m := locktest.NewTestClient(t, v.Client()).NewMutex("n")
					begin := time.Now()
					for _, wait := range []time.Duration{0, 3 * time.Second} {
						if _, err := m.TryLock(t.Context(), wait); !errors.Is(err, watchlock.ErrNotAcquired) {
							t.Errorf("TryLock(%v): %v", wait, err)
						}
					}
					if took := time.Since(begin); took != 3*time.Second {
						t.Errorf("the waits took %v", took)
					}
					info, err := m.Info(t.Context())
					if err != nil || !info.Held || info.Mine || (info.TTL < 0) != (ttl == 0) || (info.Owner != "") != (len(fields) == 2) {
						t.Errorf("Info: %+v, %v", info, err)
					}
					keys, _ := v.Mini().HKeys("n")
					if len(keys) != len(fields)/2 || (v.Mini().TTL("n") > 0) != (ttl > 0) {
						t.Errorf("the hash became %v, TTL %v", keys, v.Mini().TTL("n"))
					}
				})
			})
		}
	}
}

func TestForeignKeyThatGoesWithoutAMessageIsNoticedByPolling(t *testing.T) {
	for _, waited := range []time.Duration{100 * time.Millisecond, time.Second, 3 * time.Second, time.Minute} {
		locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			v.Mini().HSet("n", locktest.Stranger, "1")
			m := locktest.NewTestClient(t, v.Client()).NewMutex("n")
			time.AfterFunc(waited, func() { v.Mini().Del("n") })
			begin := time.Now()
			l := locktest.MustLock(t, m)
			late := time.Since(begin) - waited
			// As long as it has waited already, but at least 250 ms and at most 5 s, and a tenth for jitter.
			if most := min(max(waited, 250*time.Millisecond), 5*time.Second) * 11 / 10; late < 0 || late > most+time.Millisecond {
				t.Errorf("after %v the grant came %v after the key went, want within %v", waited, late, most)
			}
			locktest.MustUnlock(t, l)
		})
	}
}
