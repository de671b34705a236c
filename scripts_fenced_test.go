package watchlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

const (
	fencedDay     = 24 * time.Hour
	tokenBound    = 1 << 53
	counterPrefix = "redisson_lock_token:"
)

// counterOf is the key of the token counter of a lock without a hash tag.
func counterOf(key string) string { return counterPrefix + "{" + key + "}" }

// fencedCall is one run of the fenced acquire script for the owner "me".
func fencedCall(k wire.Keys, tokenTTL time.Duration, reserve int, before ...string) transport.Call {
	k.Token = counterOf(k.Key)
	owned := ownedBy(k, me, scriptLease)
	owned.TokenTTL, owned.Reserve = tokenTTL, reserve
	return wire.AcquireFenced(&owned, ownersCalled(before))
}

// ownersCalled boxes the owners of earlier attempts.
func ownersCalled(names []string) []wire.Owner {
	owners := make([]wire.Owner, len(names))
	for i, name := range names {
		owners[i] = name
	}
	return owners
}

// micros is the server's clock.
func (b scriptBench) micros() int64 {
	b.Helper()
	now, err := b.rdb.Time(context.Background()).Result()
	if err != nil {
		b.Fatalf("TIME: %v", err)
	}
	return now.UnixMicro()
}

// fencedGrant runs the fenced acquire script and reads the grant.
func (b scriptBench) fencedGrant(key string, tokenTTL time.Duration, reserve int, before ...string) wire.Grant {
	b.Helper()
	reply, err := b.run(b.rdb, fencedCall(wire.Keys{Key: key}, tokenTTL, reserve, before...))
	g, readErr := wire.ReadAcquire(integers(reply))
	if err != nil || readErr != nil || !g.Taken {
		b.Fatalf("acquire %q: %v, %v, %v", key, reply, err, readErr)
	}
	return g
}

// counts fails unless the counter of key is text, and lasts ttl.
func (b scriptBench) counts(key, text string, ttl time.Duration) {
	b.Helper()
	if got := b.do("GET", counterOf(key)); got != text {
		b.Errorf("counter of %q is %q, want %q", key, got, text)
	}
	b.lasts(counterOf(key), b.do("PTTL", counterOf(key)), ttl)
}

func TestFencedAcquireTakesTheClockAsTokenOrOneMoreThanTheLast(t *testing.T) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		ahead := b.micros() + time.Hour.Microseconds()
		for name, last := range map[string]string{
			"none": "", "behind": "1000", "zero": "0", "negative": "-5", "leading zeros": "0000000042",
			"ahead": fmt.Sprint(ahead), "largest": fmt.Sprint(tokenBound - 2),
		} {
			if last != "" {
				b.do("SET", counterOf(name), last, "PX", fencedDay.Milliseconds())
			}
			from := b.micros()
			g := b.fencedGrant(name, 0, 0)
			to := b.micros()
			switch name {
			case "ahead":
				from, to = ahead+1, ahead+1
			case "largest":
				from, to = tokenBound-1, tokenBound-1
			}
			if g.Token < from || g.Token > to || g.Last != g.Token {
				t.Errorf("%s: token %d up to %d, want one within %d and %d", name, g.Token, g.Last, from, to)
			}
			b.counts(name, fmt.Sprint(g.Token), -1)
			b.holds(name, scriptLease, me)
		}
	})
}

func TestFencedAcquireOnEveryBranchThatGivesNoToken(t *testing.T) {
	plain := func(k wire.Keys) transport.Call { return fencedCall(k, 0, 0) }
	untouched := func(ttl time.Duration, fields ...string) func(scriptBench, string) {
		return func(b scriptBench, key string) {
			b.Helper()
			b.holds(key, ttl, fields...)
			b.counts(key, "7", fencedDay)
			b.only(key, counterOf(key))
		}
	}
	held := func(ttl time.Duration, fields ...string) func(scriptBench, string) {
		return func(b scriptBench, key string) {
			b.hash(key, ttl, fields...)
			b.do("SET", counterOf(key), "7", "PX", fencedDay.Milliseconds())
		}
	}
	runScriptCases(t, []scriptCase{
		{
			name: "held", call: plain, want: []any{0, time.Minute},
			setup: held(time.Minute, stranger), after: untouched(time.Minute, stranger),
		},
		{
			name: "held without TTL", call: plain, want: []any{0, -1},
			setup: held(0, stranger), after: untouched(-1, stranger),
		},
		{
			name: "held by more than one", call: plain, want: []any{0, time.Minute},
			setup: held(time.Minute, stranger, "x:1"), after: untouched(time.Minute, stranger, "x:1"),
		},
		{
			name: "earlier owner beside a foreign field", want: []any{0, time.Minute},
			call:  func(k wire.Keys) transport.Call { return fencedCall(k, 0, 0, earlier) },
			setup: held(time.Minute, earlier, stranger), after: untouched(time.Minute, stranger),
		},
		{
			name: "wrong type", call: plain, fails: "WRONGTYPE",
			setup: func(b scriptBench, key string) { b.do("SET", key, "x") }, after: stillText,
		},
		{
			name: "counter of another type", call: plain, fails: "TOKENRANGE",
			setup: func(b scriptBench, key string) { b.do("RPUSH", counterOf(key), "1") },
			after: func(b scriptBench, key string) {
				b.only(counterOf(key))
				if n := b.do("LLEN", counterOf(key)); n != int64(1) {
					b.Errorf("the list has %v elements", n)
				}
			},
		},
	})
}

func TestFencedAcquireTakesOverWithANewToken(t *testing.T) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		b.hash("k", time.Minute, earlier)
		b.do("SET", counterOf("k"), fmt.Sprint(tokenBound-100))
		if g := b.fencedGrant("k", 0, 0, "a:1", earlier); g.Token != tokenBound-99 {
			t.Errorf("token %d, want %d", g.Token, int64(tokenBound-99))
		}
		b.holds("k", scriptLease, me)
	})
}

func TestFencedAcquireRefusesACounterThatIsNoIntegerBelowTheBound(t *testing.T) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		for _, text := range []string{
			"abc", "", " ", "-", "1.5", "1e3", "1.79e+15", "1.79e15", "0x10", " 7", "7 ", "+7", "nan", "inf", "7\n",
			"9007199254740991", "9007199254740992", "9007199254740993", "9223372036854775807", "18446744073709551616",
			"000000000000000001", // longer than any token
		} {
			b.do("FLUSHALL")
			b.do("SET", counterOf("k"), text, "PX", fencedDay.Milliseconds())
			reply, err := b.run(b.rdb, fencedCall(wire.Keys{Key: "k"}, 0, 3))
			if err == nil || !strings.Contains(err.Error(), "TOKENRANGE") {
				t.Errorf("counter %q: %v, %v", text, reply, err)
			}
			b.counts("k", text, fencedDay)
			b.only(counterOf("k"))
		}
	})
}

func TestFencedAcquireKeepsTheCounterAsLongAsAsked(t *testing.T) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		for _, ttl := range []time.Duration{fencedDay, 48 * time.Hour, 0, fencedDay} {
			g := b.fencedGrant("k", ttl, 0)
			want := ttl
			if ttl == 0 {
				want = -1
			}
			b.counts("k", fmt.Sprint(g.Token), want)
			b.do("DEL", "k")
		}
	})
}

func TestFencedAcquireReservesTokensThatNeverRunAheadOfTheClock(t *testing.T) {
	inBubbleBench(t, func(t *testing.T, b scriptBench) {
		now := b.micros() // the clock stands still
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
			{"at the bound", tokenBound - 2, 1, tokenBound - 1, tokenBound - 1},
		} {
			b.do("FLUSHALL")
			if c.counter > 0 {
				b.do("SET", counterOf("k"), fmt.Sprint(c.counter))
			}
			g := b.fencedGrant("k", 0, c.reserve)
			if g.Token != c.token || g.Last != c.last {
				t.Errorf("%s: token %d up to %d, want %d up to %d", c.name, g.Token, g.Last, c.token, c.last)
			}
			b.counts("k", fmt.Sprint(c.last), -1)
			b.do("DEL", "k")
			if c.last == tokenBound-1 {
				continue // no token can follow
			}
			if next := b.fencedGrant("k", 0, 0); next.Token <= c.last {
				t.Errorf("%s: the next token %d is not above the reserved %d", c.name, next.Token, c.last)
			}
		}
	})
}

func TestFencedAcquireChecksItsNumbersBeforeItWrites(t *testing.T) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		for _, bad := range []string{"-1", "0.5", "", "x", "nan", "inf", "-inf", "1e17", "9223372036854775808"} {
			for place, what := range map[int]string{0: "lease", 2: "token TTL", 3: "reserve"} {
				b.do("FLUSHALL")
				b.hash("k", time.Minute, earlier) // what it would take over
				args := []any{scriptLease.Milliseconds(), me, 0, 0, earlier}
				args[place] = bad
				keys := []any{"eval", wire.AcquireFencedSource, 2, "k", counterOf("k")}
				reply, err := b.rdb.Do(context.Background(), append(keys, args...)...).Result()
				if err == nil || !strings.Contains(err.Error(), what+" out of range") {
					t.Errorf("%s %q: %v, %v", what, bad, reply, err)
				}
				b.holds("k", time.Minute, earlier)
				b.only("k")
			}
		}
	})
}

func TestFencedAcquireTakesNothingWithoutItsRights(t *testing.T) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		if b.real == nil {
			t.Skip("miniredis has no users")
		}
		for _, rule := range []string{"-get", "-set", "-time", "-hset", "-pexpire"} {
			b.do("FLUSHALL")
			reply, err := b.run(b.user(rule), fencedCall(wire.Keys{Key: "k"}, 0, 0))
			if err == nil {
				t.Errorf("%s: %v", rule, reply)
			}
			if n := b.do("EXISTS", "k"); n != int64(0) {
				t.Errorf("%s: the lock is held", rule)
			}
		}
	})
}

func TestInfoTellsTheNewestTokenOfAFencedLockOnly(t *testing.T) {
	onScriptServers(t, func(t *testing.T, b scriptBench) {
		c := newTestClient(t, b.rdb)
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
		b.do("DEL", counterOf("k"))
		b.do("RPUSH", counterOf("k"), "1")
		info("counter of another type", false, 0)
		if b.mini != nil {
			return // it hides the code of an error in a script
		}
		b.do("SET", "k", "x")
		if got, err := c.NewFencedMutex("k").Info(ctx); !errors.Is(err, ErrWrongType) {
			t.Errorf("lock of another type: %+v, %v", got, err)
		}
	})
}

// inBubbleBench runs f on miniredis alone, whose clock stands still between two
// sleeps.
func inBubbleBench(t *testing.T, f func(t *testing.T, b scriptBench)) {
	t.Helper()
	inBubble(t, func(t *testing.T, v *redistest.Virtual) { f(t, scriptBench{t, v.Client(), v, nil}) })
}
