package wire_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

func TestFencedAcquireTakesTheClockAsTokenOrOneMoreThanTheLast(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		ahead := b.Micros() + time.Hour.Microseconds()
		for name, last := range map[string]string{
			"none": "", "behind": "1000", "zero": "0", "negative": "-5", "leading zeros": "0000000042",
			"ahead": fmt.Sprint(ahead), "largest": fmt.Sprint(locktest.TokenBound - 2),
		} {
			if last != "" {
				b.Do("SET", locktest.CounterOf(name), last, "PX", locktest.FencedDay.Milliseconds())
			}
			from := b.Micros()
			g := b.FencedGrant(name, 0, 0)
			to := b.Micros()
			switch name {
			case "ahead":
				from, to = ahead+1, ahead+1
			case "largest":
				from, to = locktest.TokenBound-1, locktest.TokenBound-1
			}
			if g.Token < from || g.Token > to || g.Last != g.Token {
				t.Errorf("%s: token %d up to %d, want one within %d and %d", name, g.Token, g.Last, from, to)
			}
			b.Counts(name, fmt.Sprint(g.Token), -1)
			b.Holds(name, locktest.ScriptLease, locktest.Me)
		}
	})
}

func TestFencedAcquireOnEveryBranchThatGivesNoToken(t *testing.T) {
	plain := func(k wire.Keys) transport.Call { return locktest.FencedCall(k, 0, 0) }
	untouched := func(ttl time.Duration, fields ...string) func(locktest.ScriptBench, string) {
		return func(b locktest.ScriptBench, key string) {
			b.Helper()
			b.Holds(key, ttl, fields...)
			b.Counts(key, "7", locktest.FencedDay)
			b.Only(key, locktest.CounterOf(key))
		}
	}
	held := func(ttl time.Duration, fields ...string) func(locktest.ScriptBench, string) {
		return func(b locktest.ScriptBench, key string) {
			b.Hash(key, ttl, fields...)
			b.Do("SET", locktest.CounterOf(key), "7", "PX", locktest.FencedDay.Milliseconds())
		}
	}
	runScriptCases(t, []scriptCase{
		{
			name: "held", call: plain, want: []any{0, time.Minute},
			setup: held(time.Minute, locktest.Stranger), after: untouched(time.Minute, locktest.Stranger),
		},
		{
			name: "held without TTL", call: plain, want: []any{0, -1},
			setup: held(0, locktest.Stranger), after: untouched(-1, locktest.Stranger),
		},
		{
			name: "held by more than one", call: plain, want: []any{0, time.Minute},
			setup: held(time.Minute, locktest.Stranger, "x:1"), after: untouched(time.Minute, locktest.Stranger, "x:1"),
		},
		{
			name: "earlier owner beside a foreign field", want: []any{0, time.Minute},
			call:  func(k wire.Keys) transport.Call { return locktest.FencedCall(k, 0, 0, locktest.Earlier) },
			setup: held(time.Minute, locktest.Earlier, locktest.Stranger), after: untouched(time.Minute, locktest.Stranger),
		},
		{
			name: "wrong type", call: plain, fails: "WRONGTYPE",
			setup: func(b locktest.ScriptBench, key string) { b.Do("SET", key, "x") }, after: stillText,
		},
		{
			name: "counter of another type", call: plain, fails: "TOKENRANGE",
			setup: func(b locktest.ScriptBench, key string) { b.Do("RPUSH", locktest.CounterOf(key), "1") },
			after: func(b locktest.ScriptBench, key string) {
				b.Only(locktest.CounterOf(key))
				if n := b.Do("LLEN", locktest.CounterOf(key)); n != int64(1) {
					b.Errorf("the list has %v elements", n)
				}
			},
		},
	})
}

func TestFencedAcquireTakesOverWithANewToken(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		b.Hash("k", time.Minute, locktest.Earlier)
		b.Do("SET", locktest.CounterOf("k"), fmt.Sprint(locktest.TokenBound-100))
		if g := b.FencedGrant("k", 0, 0, "a:1", locktest.Earlier); g.Token != locktest.TokenBound-99 {
			t.Errorf("token %d, want %d", g.Token, int64(locktest.TokenBound-99))
		}
		b.Holds("k", locktest.ScriptLease, locktest.Me)
	})
}

func TestFencedAcquireRefusesACounterThatIsNoIntegerBelowTheBound(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		for _, text := range []string{
			"abc", "", " ", "-", "1.5", "1e3", "1.79e+15", "1.79e15", "0x10", " 7", "7 ", "+7", "nan", "inf", "7\n",
			"9007199254740991", "9007199254740992", "9007199254740993", "9223372036854775807", "18446744073709551616",
			"000000000000000001", // longer than any token
		} {
			b.Do("FLUSHALL")
			b.Do("SET", locktest.CounterOf("k"), text, "PX", locktest.FencedDay.Milliseconds())
			reply, err := b.Run(b.Rdb, locktest.FencedCall(wire.Keys{Key: "k"}, 0, 3))
			if err == nil || !strings.Contains(err.Error(), "TOKENRANGE") {
				t.Errorf("counter %q: %v, %v", text, reply, err)
			}
			b.Counts("k", text, locktest.FencedDay)
			b.Only(locktest.CounterOf("k"))
		}
	})
}

func TestFencedAcquireKeepsTheCounterAsLongAsAsked(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		for _, ttl := range []time.Duration{locktest.FencedDay, 48 * time.Hour, 0, locktest.FencedDay} {
			g := b.FencedGrant("k", ttl, 0)
			want := ttl
			if ttl == 0 {
				want = -1
			}
			b.Counts("k", fmt.Sprint(g.Token), want)
			b.Do("DEL", "k")
		}
	})
}

func TestFencedAcquireReservesTokensThatNeverRunAheadOfTheClock(t *testing.T) {
	inBubbleBench(t, func(t *testing.T, b locktest.ScriptBench) {
		now := b.Micros() // the clock stands still
		for _, c := range []struct {
			name    string
			counter int64
			reserve int
			token   int64
			last    int64
		}{
			{"without a counter", 0, 10, now, now},
			{"none", now - 50, 0, now, now},
			{"long after the last", now - 5000, 10, now - 10, now},
			{"most", now - 5000, 1024, now - 1024, now},
			{"soon after the last", now - 5, 10, now - 4, now},
			{"right after the last", now - 1, 10, now, now},
			{"level", now, 10, now + 1, now + 1},
			{"ahead", now + 50, 10, now + 51, now + 51},
			{"far ahead", now + time.Hour.Microseconds(), 10, now + time.Hour.Microseconds() + 1, now + time.Hour.Microseconds() + 1},
			{"at the bound", locktest.TokenBound - 2, 1, locktest.TokenBound - 1, locktest.TokenBound - 1},
		} {
			b.Do("FLUSHALL")
			if c.counter > 0 {
				b.Do("SET", locktest.CounterOf("k"), fmt.Sprint(c.counter))
			}
			g := b.FencedGrant("k", 0, c.reserve)
			if g.Token != c.token || g.Last != c.last {
				t.Errorf("%s: token %d up to %d, want %d up to %d", c.name, g.Token, g.Last, c.token, c.last)
			}
			b.Counts("k", fmt.Sprint(c.last), -1)
			b.Do("DEL", "k")
			if c.last == locktest.TokenBound-1 {
				continue // no token can follow
			}
			if next := b.FencedGrant("k", 0, 0); next.Token <= c.last {
				t.Errorf("%s: the next token %d is not above the reserved %d", c.name, next.Token, c.last)
			}
		}
	})
}

func TestFencedAcquireChecksItsNumbersBeforeItWrites(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		for _, bad := range []string{"-1", "0.5", "", "x", "nan", "inf", "-inf", "1e17", "9223372036854775808"} {
			for place, what := range map[int]string{0: "lease", 2: "token TTL", 3: "reserve"} {
				b.Do("FLUSHALL")
				b.Hash("k", time.Minute, locktest.Earlier) // what it would take over
				args := []any{locktest.ScriptLease.Milliseconds(), locktest.Me, 0, 0, locktest.Earlier}
				args[place] = bad
				keys := []any{"eval", wire.AcquireFencedSource, 2, "k", locktest.CounterOf("k")}
				reply, err := b.Rdb.Do(context.Background(), append(keys, args...)...).Result()
				if err == nil || !strings.Contains(err.Error(), what+" out of range") {
					t.Errorf("%s %q: %v, %v", what, bad, reply, err)
				}
				b.Holds("k", time.Minute, locktest.Earlier)
				b.Only("k")
			}
		}
	})
}

func TestFencedAcquireTakesNothingWithoutItsRights(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		if b.Real == nil {
			t.Skip("miniredis has no users")
		}
		for _, rule := range []string{"-get", "-set", "-time", "-hset", "-pexpire"} {
			b.Do("FLUSHALL")
			reply, err := b.Run(b.User(rule), locktest.FencedCall(wire.Keys{Key: "k"}, 0, 0))
			if err == nil {
				t.Errorf("%s: %v", rule, reply)
			}
			if n := b.Do("EXISTS", "k"); n != int64(0) {
				t.Errorf("%s: the lock is held", rule)
			}
		}
	})
}

func TestInfoTellsTheNewestTokenOfAFencedLockOnly(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		c := locktest.NewTestClient(t, b.Rdb)
		ctx := context.Background()
		info := func(what string, held bool, token int64) {
			t.Helper()
			got, err := c.NewFencedMutex("k").Info(ctx)
			if err != nil || got.Held != held || got.Mine != held || got.Token != token {
				t.Errorf("%s: %+v, %v, want held %v and token %d", what, got, err, held, token)
			}
		}
		info("never held", false, 0)
		l, err := c.NewFencedMutex("k").Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		info("held", true, l.Token())
		if got, err := c.NewMutex("k").Info(ctx); err != nil || got.Token != 0 || !got.Held {
			t.Errorf("as a plain mutex: %+v, %v", got, err)
		}
		if err := l.Unlock(ctx); err != nil {
			t.Fatal(err)
		}
		info("free again", false, l.Token())
		b.Do("DEL", locktest.CounterOf("k"))
		b.Do("RPUSH", locktest.CounterOf("k"), "1")
		info("counter of another type", false, 0)
		if b.Mini != nil {
			return // it hides the code of an error in a script
		}
		b.Do("SET", "k", "x")
		if got, err := c.NewFencedMutex("k").Info(ctx); !errors.Is(err, watchlock.ErrWrongType) {
			t.Errorf("lock of another type: %+v, %v", got, err)
		}
	})
}

// inBubbleBench runs f on miniredis alone, whose clock stands still between two
// sleeps.
func inBubbleBench(t *testing.T, f func(t *testing.T, b locktest.ScriptBench)) {
	t.Helper()
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) { f(t, locktest.ScriptBench{TB: t, Rdb: v.Client(), Mini: v}) })
}
