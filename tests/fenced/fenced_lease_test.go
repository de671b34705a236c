package fenced_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

func TestReentryKeepsTheTokenAndSendsNothing(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		m := locktest.NewTestClient(t, v.Client()).NewFencedMutex("k")
		outer := locktest.MustFence(t, m)
		synctest.Wait() // the renewal connection opens
		v.Reset()
		ctx := outer.Context(context.Background())
		inner, err := m.Lock(ctx)
		if err != nil || inner.Token() != outer.Token() {
			t.Fatalf("inner token %d, %v, outer token %d", inner.Token(), err, outer.Token())
		}
		if err := m.Do(inner.Context(ctx), func(_ context.Context, token int64) error {
			if token != outer.Token() {
				t.Errorf("Do inside has token %d, the lease %d", token, outer.Token())
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if err := inner.Unlock(ctx); err != nil {
			t.Error(err)
		}
		if n := len(v.Commands()); n != 0 {
			t.Errorf("re-entry sent %v", v.Commands())
		}
		if err := outer.Unlock(ctx); err != nil {
			t.Error(err)
		}
		if next := locktest.MustFence(t, m); next.Token() <= outer.Token() || inner.Token() != outer.Token() {
			t.Errorf("tokens %d, %d, then %d", outer.Token(), inner.Token(), next.Token())
		}
	})
}

func TestTheTokenStaysThroughRenewalExtensionAndTheEnd(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		m := locktest.NewTestClient(t, v.Client()).NewFencedMutex("k")
		l := locktest.MustFence(t, m)
		token := l.Token()
		time.Sleep(5 * time.Minute)
		if err := l.Err(); err != nil || l.Token() != token {
			t.Errorf("after five minutes: %v, token %d, want %d", err, l.Token(), token)
		}
		v.Mini().FlushAll()
		time.Sleep(time.Minute)
		if err := l.Err(); !errors.Is(err, watchlock.ErrLost) || l.Token() != token {
			t.Errorf("after the loss: %v, token %d, want %d", err, l.Token(), token)
		}
		_ = l.Unlock(context.Background()) // reports the loss
		explicit := locktest.MustFence(t, m, watchlock.WithLeaseTime(time.Second))
		token = explicit.Token()
		if err := explicit.Extend(context.Background(), time.Minute); err != nil || explicit.Token() != token {
			t.Errorf("Extend: %v, token %d, want %d", err, explicit.Token(), token)
		}
	})
}

func TestALeaseTimeOfAFencedLockIsHonoured(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		a, b := locktest.NewTestClient(t, v.Client()), locktest.NewTestClient(t, v.Client())
		start := time.Now()
		first := locktest.MustFence(t, a.NewFencedMutex("k"), watchlock.WithLeaseTime(2*time.Second))
		second := locktest.MustFence(t, b.NewFencedMutex("k"))
		if took := time.Since(start); took < 2*time.Second || took > 2*time.Second+50*time.Millisecond {
			t.Errorf("the lock became free after %v, want 2s", took)
		}
		if err := first.Err(); !errors.Is(err, watchlock.ErrLost) || second.Token() <= first.Token() {
			t.Errorf("first lease: %v; tokens %d, then %d", err, first.Token(), second.Token())
		}
		if n := v.CountIf(redistest.Runs(wire.RenewSource)); n != 0 {
			t.Errorf("it was renewed %d times", n)
		}
	})
}

func TestAFencedKeyWithoutTTLIsRefusedNotGranted(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		clients := clientsOf(t, s, 2)
		held := locktest.MustFence(t, clients[0].NewFencedMutex("k"))
		locktest.MustDo(t, s, "PERSIST", "k")
		for _, wait := range []time.Duration{0, 20 * time.Millisecond} {
			l, err := clients[1].NewFencedMutex("k").TryLock(context.Background(), wait)
			var named *watchlock.LockError
			if l != nil || !errors.Is(err, watchlock.ErrNotAcquired) || !errors.As(err, &named) || named.TTL >= 0 {
				t.Errorf("TryLock(%v) = %v, %v, want it refused with a negative TTL", wait, l, err)
			}
		}
		if info, err := clients[1].NewFencedMutex("k").Info(context.Background()); err != nil || info.Token != held.Token() || info.TTL >= 0 {
			t.Errorf("Info: %+v, %v, want token %d and no end", info, err, held.Token())
		}
		if err := held.Unlock(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func TestACounterOutOfRangeIsErrTokenRangeAndNothingIsTaken(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		m := locktest.NewTestClient(t, s.Client()).NewFencedMutex("k")
		ctx := context.Background()
		refused := func(what string) {
			t.Helper()
			ran := false
			_, lock := m.Lock(ctx)
			_, try := m.TryLock(ctx, 0)
			_, wait := m.TryLock(ctx, time.Minute)
			do := m.Do(ctx, func(context.Context, int64) error { ran = true; return nil })
			for _, err := range []error{lock, try, wait, do} {
				if !errors.Is(err, watchlock.ErrTokenRange) || errors.Is(err, watchlock.ErrNotAcquired) || watchlock.IsUnavailable(err) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if n := locktest.MustDo(t, s, "EXISTS", "k"); ran || n != int64(0) {
				t.Errorf("%s: the lock was taken", what)
			}
		}
		for _, text := range []string{"abc", fmt.Sprint(int64(locktest.TokenBound)), "1.79e15", "1.79e+15", fmt.Sprint(int64(locktest.TokenBound) - 1)} {
			locktest.MustDo(t, s, "SET", locktest.CounterOf("k"), text)
			refused(text)
			if got := locktest.MustDo(t, s, "GET", locktest.CounterOf("k")); got != text {
				t.Errorf("counter %q became %q", text, got)
			}
		}
		locktest.MustDo(t, s, "DEL", locktest.CounterOf("k"))
		locktest.MustDo(t, s, "RPUSH", locktest.CounterOf("k"), "1", "2")
		refused("a list")
		if n := locktest.MustDo(t, s, "LLEN", locktest.CounterOf("k")); n != int64(2) {
			t.Errorf("the list has %v elements", n)
		}
		locktest.MustDo(t, s, "DEL", locktest.CounterOf("k"))
		loneGrant(t, m)
	})
}

func TestAnExpiredCounterGivesALargerTokenAllTheSame(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.NewTestClient(t, v.Client())
		m := c.NewFencedMutex("k", watchlock.WithTokenTTL(24*time.Hour))
		var last int64
		for round := range 4 {
			for range 3 {
				token := loneGrant(t, m)
				if token <= last {
					t.Fatalf("round %d: token %d after %d", round, token, last)
				}
				last = token
				if ttl := v.Mini().TTL(locktest.CounterOf("k")); ttl != 24*time.Hour {
					t.Fatalf("the counter lasts %v", ttl)
				}
			}
			time.Sleep(24*time.Hour + time.Second)
			if v.Mini().Exists(locktest.CounterOf("k")) {
				t.Fatal("the counter is still there")
			}
		}
		loneGrant(t, c.NewFencedMutex("k", watchlock.WithTokenTTL(24*time.Hour), watchlock.WithTokenTTL(0)))
		time.Sleep(1000 * time.Hour)
		if !v.Mini().Exists(locktest.CounterOf("k")) {
			t.Error("the counter that is to be kept for ever has gone")
		}
	})
}

func TestCountersOfManyNamesDoNotPileUp(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.NewTestClient(t, v.Client(), watchlock.WithLockDefaults(watchlock.WithTokenTTL(24*time.Hour)))
		for i := range locktest.FullCount(10_000) {
			loneGrant(t, c.NewFencedMutex(fmt.Sprint("order-", i)))
		}
		time.Sleep(25 * time.Hour)
		if keys := v.Mini().Keys(); len(keys) != 0 {
			t.Errorf("%d keys are left, %q", len(keys), keys[0])
		}
	})
}

func TestABadTokenTTLIsRefusedBeforeAnythingIsSent(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		rdb := v.Client()
		c := locktest.NewTestClient(t, rdb)
		ctx := context.Background()
		for _, ttl := range []time.Duration{-1, 1, time.Hour, 24*time.Hour - time.Millisecond, 24*time.Hour + 1, 1 << 62} {
			_, err := c.NewFencedMutex("k", watchlock.WithTokenTTL(ttl)).Lock(ctx)
			_, late := c.NewFencedMutex("k").TryLock(ctx, 0, watchlock.WithTokenTTL(ttl))
			_, early := watchlock.New(rdb, watchlock.WithLockDefaults(watchlock.WithTokenTTL(ttl)))
			for _, err := range []error{err, late, early} {
				if err == nil || !strings.Contains(err.Error(), "token TTL "+ttl.String()) {
					t.Errorf("token TTL %v: %v", ttl, err)
				}
			}
		}
		for kind, m := range map[string]*watchlock.Mutex{
			"mutex":        c.NewMutex("k", watchlock.WithTokenTTL(48*time.Hour)),
			"SET NX mutex": c.NewSetNXMutex("k", watchlock.WithTokenTTL(48*time.Hour)),
		} {
			if _, err := m.Lock(ctx); err == nil || !strings.Contains(err.Error(), kind+" has no token") {
				t.Errorf("on a %s: %v", kind, err)
			}
		}
		if _, err := c.NewMutex("k").Lock(ctx, watchlock.WithTokenTTL(48*time.Hour)); err == nil || !strings.Contains(err.Error(), "no token") {
			t.Errorf("at Lock of a mutex: %v", err)
		}
		if n := len(v.Commands()); n != 0 {
			t.Errorf("%d commands were sent", n)
		}
		// As a default for all locks of a client it concerns those that have one.
		def := locktest.NewTestClient(t, rdb, watchlock.WithLockDefaults(watchlock.WithTokenTTL(24*time.Hour)))
		locktest.MustUnlock(t, locktest.MustLock(t, def.NewMutex("plain")))
		loneGrant(t, def.NewFencedMutex("fenced"))
	})
}

func TestReentryOfAnotherKindIsRefusedAndNamesBoth(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.NewTestClient(t, v.Client())
		bg := context.Background()
		kinds := map[string]func(context.Context) (*watchlock.Lease, error){
			"mutex":        func(ctx context.Context) (*watchlock.Lease, error) { return c.NewMutex("k").Lock(ctx) },
			"SET NX mutex": func(ctx context.Context) (*watchlock.Lease, error) { return c.NewSetNXMutex("k").Lock(ctx) },
			"fenced mutex": func(ctx context.Context) (*watchlock.Lease, error) {
				l, err := c.NewFencedMutex("k").Lock(ctx)
				return locktest.LeaseOf(l), err
			},
		}
		for outer, lock := range kinds {
			held, err := lock(bg)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			v.Reset()
			for inner, again := range kinds {
				l, err := again(held.Context(bg))
				if inner == outer {
					if err != nil {
						t.Errorf("%s in itself: %v", inner, err)
					}
					locktest.MustUnlock(t, l)
					continue
				}
				if err == nil || !strings.Contains(err.Error(), "as "+outer) || !strings.Contains(err.Error(), "as "+inner) {
					t.Errorf("%s in a %s: %v", inner, outer, err)
				}
			}
			if n := len(v.Commands()); n != 0 {
				t.Errorf("under a %s %v was sent", outer, v.Commands())
			}
			locktest.MustUnlock(t, held)
		}
	})
}

func TestANilFencedLeaseAnswersAsOneThatIsNotHeld(t *testing.T) {
	var l *watchlock.FencedLease
	ctx := context.Background()
	for what, err := range map[string]error{
		"Unlock": l.Unlock(ctx), "Err": l.Err(), "Extend": l.Extend(ctx, time.Second), "Context": context.Cause(l.Context(ctx)),
	} {
		if !errors.Is(err, watchlock.ErrNotHeld) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if l.Token() != 0 || l.Name() != "" || !l.ExpiresAt().IsZero() || !locktest.VirtualClosed(l.Done()) {
		t.Errorf("token %d, name %q, expires %v", l.Token(), l.Name(), l.ExpiresAt())
	}
}

func TestEachPassHasATokenOfItsOwnBelowTheNextGrants(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const waiters = 6
		bg := context.Background()
		m := locktest.NewTestClient(t, v.Client(), watchlock.WithLocalHandoff(2*time.Millisecond)).NewFencedMutex("k")
		tokens := []int64{}
		var mu sync.Mutex
		first := locktest.MustFence(t, m)
		for range waiters {
			go func() {
				l := locktest.MustFence(t, m)
				inner, err := m.Lock(l.Context(bg))
				if err != nil || inner.Token() != l.Token() {
					t.Errorf("re-entry after a pass: token %d, %v, want %d", inner.Token(), err, l.Token())
				}
				mu.Lock()
				tokens = append(tokens, l.Token())
				mu.Unlock()
				for _, x := range []*watchlock.FencedLease{inner, l} {
					if err := x.Unlock(bg); err != nil {
						t.Errorf("Unlock: %v", err)
					}
				}
			}()
		}
		synctest.Wait()
		time.Sleep(time.Millisecond) // tokens are reserved from the time since the last grant
		v.Reset()
		if err := first.Unlock(bg); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		next := locktest.MustFence(t, locktest.NewTestClient(t, v.Client()).NewFencedMutex("k"))
		last := first.Token()
		for i, token := range append(tokens, next.Token()) {
			if token <= last {
				t.Errorf("tokens %d, %v, %d do not rise at number %d", first.Token(), tokens, next.Token(), i)
			}
			last = token
		}
		// One grant for all of them, one for the other client.
		if n := v.CountIf(redistest.Runs(wire.AcquireFencedSource)); len(tokens) != waiters || n > 3 {
			t.Errorf("%d sections, %d runs of the acquire script", len(tokens), n)
		}
	})
}

// TestNoMoreIsPassedThanTokensWereReserved has many sections that take no time, so that
// a token too many is one that the next grant gets as well.
func TestNoMoreIsPassedThanTokensWereReserved(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const waiters = 3 * locktest.TokensForEach
		lock := locktest.LockNamed(locktest.NewTestClient(t, v.Client(), watchlock.WithLocalHandoff(time.Second)), "fenced", "k")
		first, err := lock(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		var p locktest.PassLog
		p.Wait(t, 0, lock, 10*time.Microsecond) // its grant reserves for the one behind it
		p.Wait(t, 1, lock, 0)
		time.Sleep(10 * time.Millisecond) // tokens are reserved from the time since the last grant
		locktest.MustUnlock(t, first)
		synctest.Wait()
		for n := 2; n < waiters; n++ {
			p.Wait(t, n, lock, 0)
		}
		p.All.Wait()
		next := locktest.MustFence(t, locktest.NewTestClient(t, v.Client()).NewFencedMutex("k"))
		sections, last, passes := p.Sections(), locktest.TokenOf(first), 0
		for i, s := range sections {
			if s.Token <= last {
				t.Errorf("section %d has token %d after %d", i, s.Token, last)
			}
			if i > 0 && s.Burst == sections[i-1].Burst {
				passes++
			}
			last = s.Token
		}
		if next.Token() <= last || passes < locktest.TokensForEach {
			t.Errorf("the next grant has token %d after %d, and %d passes", next.Token(), last, passes)
		}
		if err := next.Unlock(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func TestAFencedLockCountsAtItsOwnKeyWhateverTheNameWasUsedAsBefore(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.NewTestClient(t, v.Client())
		locktest.MustUnlock(t, locktest.MustLock(t, c.NewMutex("k")))
		locktest.MustUnlock(t, locktest.MustLock(t, c.NewMutex("{k}"))) // the same channel
		token := loneGrant(t, c.NewFencedMutex("k"))
		if got, err := v.Mini().Get(locktest.CounterOf("k")); err != nil || got != fmt.Sprint(token) {
			t.Errorf("the counter is %q, %v, the token %d", got, err, token)
		}
		for _, key := range v.Mini().Keys() {
			if key != locktest.CounterOf("k") {
				t.Errorf("key %q is left", key)
			}
		}
	})
}
