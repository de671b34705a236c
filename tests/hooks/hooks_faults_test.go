package hooks_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

func TestAnErrorOfAHookIsNoGrantAndGoesToTheCallerAtOnce(t *testing.T) {
	locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		var b locktest.Breaker
		c, _ := hookedClient(t, v, b.Hook())
		ctx := context.Background()
		check := func(when string) {
			t.Helper()
			m := locktest.MutexOf(c, kind, when)
			v.Reset()
			start := time.Now()
			l, err := m.TryLock(ctx, 0)
			if l != nil || !errors.Is(err, locktest.ErrOpen) || !watchlock.IsUnavailable(err) || errors.Is(err, watchlock.ErrNotAcquired) {
				t.Errorf("%s: TryLock(0): %v, %v", when, l, err)
			}
			bounded, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			if l, err = m.Lock(bounded); l != nil || !errors.Is(err, locktest.ErrOpen) || !watchlock.IsUnavailable(err) {
				t.Errorf("%s: Lock: %v, %v", when, l, err)
			}
			if _, err = m.Info(ctx); !errors.Is(err, locktest.ErrOpen) {
				t.Errorf("%s: Info: %v", when, err)
			}
			if err = m.ForceUnlock(ctx); !errors.Is(err, locktest.ErrOpen) {
				t.Errorf("%s: ForceUnlock: %v", when, err)
			}
			if took := time.Since(start); took > locktest.UnlockTimeoutOf(c)+transport.AttemptTimeout { // only ForceUnlock tries again
				t.Errorf("%s: it took %v", when, took)
			}
			for _, cmd := range v.Commands() {
				if locktest.IsLockCommand(cmd.Name) {
					t.Errorf("%s: sent %v", when, cmd)
				}
			}
		}
		b.Open(true)
		check("before")
		b.Open(false)
		locktest.KnowsServer(t, c, kind)
		b.Open(true)
		check("later")
		b.Open(false)
	})
}

func TestAnErrorOfAPipelineHookIsNoGrant(t *testing.T) {
	locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		var b locktest.Breaker
		c, w := hookedClient(t, v, b.Hook())
		locktest.KnowsServer(t, c, kind)
		b.Many.Store(true)
		tryTogether(t, v, c, w, kind)
		if b.Stopped.Load() == 0 {
			t.Error("no pipeline came to the hook")
		}
		b.Open(false)
	})
}

// tryTogether has several tries of locks, a stranger's and free ones, leave in one
// flight behind another, and fails when one is granted.
func tryTogether(t *testing.T, v *redistest.Virtual, c *watchlock.Client, w *redistest.Wire, kind string) {
	t.Helper()
	w.On(redistest.Match(redistest.Any).Mentions("first"), redistest.DelayReply(5*time.Millisecond)).Times(0)
	var all sync.WaitGroup
	all.Go(func() { // occupies the lane
		l, err := locktest.MutexOf(c, kind, "first").TryLock(context.Background(), 0)
		if err == nil {
			_ = l.Unlock(context.Background())
		}
	})
	time.Sleep(time.Millisecond)
	for i := range 6 {
		name := fmt.Sprint("k", i)
		if i%2 == 0 {
			locktest.StrangersKey(v, kind, name)
		}
		all.Go(func() {
			if l, err := locktest.MutexOf(c, kind, name).TryLock(context.Background(), 0); err == nil {
				t.Errorf("%s: granted, Err: %v", name, l.Err())
			}
		})
	}
	all.Wait()
	time.Sleep(3 * time.Second)
	for i := range 6 {
		if name := fmt.Sprint("k", i); v.Mini().Exists(name) != (i%2 == 0) {
			t.Errorf("%s is there: %v", name, v.Mini().Exists(name))
		}
	}
}

func TestAnErrorOfAHookIsNoLossAndNoRelease(t *testing.T) {
	for what, open := range map[string]func(b *locktest.Breaker, open bool){
		"all":       (*locktest.Breaker).Open,
		"pipelines": func(b *locktest.Breaker, open bool) { b.Many.Store(open) },
	} {
		t.Run(what, func(t *testing.T) {
			locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
				keptUnderBreaker(t, v, kind, open)
			})
		})
	}
}

func keptUnderBreaker(t *testing.T, v *redistest.Virtual, kind string, open func(b *locktest.Breaker, open bool)) {
	t.Helper()
	var b locktest.Breaker
	c, w := hookedClient(t, v, b.Hook())
	locktest.KnowsServer(t, c, kind)
	w.On(redistest.Any, redistest.DelayReply(time.Millisecond)).Times(0) // so that some leave together
	var leases []*watchlock.Lease
	for i := range 3 {
		leases = append(leases, locktest.MustLock(t, locktest.MutexOf(c, kind, fmt.Sprint("k", i))))
	}
	open(&b, true)
	time.Sleep(25 * time.Second)
	for _, l := range leases {
		if err := l.Err(); err != nil {
			t.Errorf("%s: with 5 s of trust left: %v", l.Name(), err)
		}
	}
	open(&b, false)
	time.Sleep(15 * time.Second)
	for _, l := range leases {
		if err := l.Err(); err != nil {
			t.Errorf("%s: renewed again: %v", l.Name(), err)
		}
	}
	open(&b, true)
	var all sync.WaitGroup
	for _, l := range leases {
		all.Go(func() {
			err := l.Unlock(context.Background())
			if errors.Is(err, watchlock.ErrLost) || errors.Is(err, watchlock.ErrNotHeld) {
				t.Errorf("%s: nobody took it, and Unlock says %v", l.Name(), err)
			}
			if key := l.Name(); err == nil && v.Mini().Exists(key) {
				t.Errorf("%s: Unlock says nil, and it is there", key)
			}
		})
	}
	all.Wait()
	open(&b, false)
	time.Sleep(1500 * time.Millisecond)
	for _, l := range leases {
		if v.Mini().Exists(l.Name()) {
			t.Errorf("%s: nothing releases it", l.Name())
		}
	}
}

func TestAWaiterThatWasAnsweredRidesOutAHooksErrors(t *testing.T) {
	locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		var b locktest.Breaker
		c, _ := hookedClient(t, v, b.Hook())
		locktest.KnowsServer(t, c, kind)
		locktest.StrangersKey(v, kind, "k")
		got := make(chan error, 1)
		go func() {
			l, err := locktest.MutexOf(c, kind, "k").Lock(context.Background())
			if err == nil {
				err = l.Unlock(context.Background())
			}
			got <- err
		}()
		time.Sleep(2 * time.Second)
		b.Open(true)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(got) > 0 {
			t.Fatalf("it gave up: %v", <-got)
		}
		b.Open(false)
		v.Mini().Del("k")
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
}

func TestAHooksErrorAfterTheCommandIsNoGrantAndItsOwnerIsGivenBack(t *testing.T) {
	locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		var on atomic.Bool
		c, w := hookedClient(t, v, around(func(_ context.Context, _ []redis.Cmder, next func() error) error {
			if err := next(); !on.Load() {
				return err
			}
			return locktest.ErrOpen
		}))
		locktest.KnowsServer(t, c, kind)
		ctx := context.Background()
		on.Store(true)
		if l, err := locktest.MutexOf(c, kind, "k").TryLock(ctx, 0); l != nil || !errors.Is(err, locktest.ErrOpen) || !watchlock.IsUnavailable(err) {
			t.Errorf("TryLock(0): %v, %v", l, err)
		}
		tryTogether(t, v, c, w, kind)
		on.Store(false)
		time.Sleep(1500 * time.Millisecond)
		if v.Mini().Exists("k") {
			t.Error("its owner is not given back")
		}
		// Once only: the next attempt takes it, and an Unlock whose release ran is nil.
		l := locktest.MustLock(t, locktest.MutexOf(c, kind, "k"))
		on.Store(true)
		time.AfterFunc(500*time.Millisecond, func() { on.Store(false) })
		if err := l.Unlock(ctx); err != nil {
			t.Errorf("Unlock: %v", err)
		}
		on.Store(true)
		time.AfterFunc(500*time.Millisecond, func() { on.Store(false) })
		locktest.StrangersKey(v, kind, "j")
		time.AfterFunc(100*time.Millisecond, func() { v.Mini().Del("j") })
		l, err := locktest.MutexOf(c, kind, "j").TryLock(ctx, 5*time.Second)
		if err != nil {
			t.Fatalf("TryLock: %v", err)
		}
		time.Sleep(9 * time.Second)
		on.Store(true)
		time.Sleep(5 * time.Second)
		on.Store(false)
		if err := l.Err(); err != nil {
			t.Errorf("a renewal with an error behind it: %v", err)
		}
		locktest.MustUnlock(t, l)
	})
}

func TestAHookThatSwallowsErrorsGrantsNothing(t *testing.T) {
	locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		c, w := hookedClient(t, v, around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
			_ = next()
			for _, cmd := range cmds {
				cmd.SetErr(nil)
			}
			return nil
		}))
		ctx := context.Background()
		m := locktest.MutexOf(c, kind, "k")
		locktest.MustUnlock(t, locktest.MustLock(t, m))
		locktest.StrangersKey(v, kind, "theirs")
		rule := w.On(func(cmd redistest.Command) bool { return locktest.IsLockCommand(cmd.Name) }, redistest.DropRequest).Times(0)
		if l, err := locktest.MutexOf(c, kind, "theirs").TryLock(ctx, 0); err == nil {
			t.Errorf("a stranger's lock without an answer: granted, Err: %v", l.Err())
		}
		if _, err := m.Info(ctx); err == nil {
			t.Error("Info without an answer says nothing of it")
		}
		w.Clear()
		if rule.Hits() == 0 {
			t.Error("nothing was lost")
		}
		l := locktest.MustLock(t, m)
		dropped := w.On(func(cmd redistest.Command) bool { return locktest.IsLockCommand(cmd.Name) }, redistest.DropRequest).Times(0)
		time.Sleep(15 * time.Second)
		if err := l.Err(); err != nil || dropped.Hits() == 0 {
			t.Errorf("%d renewals without an answer: %v", dropped.Hits(), err)
		}
		if err := l.Unlock(ctx); err == nil || errors.Is(err, watchlock.ErrLost) {
			t.Errorf("Unlock without an answer: %v", err)
		}
		w.Clear()
		time.Sleep(1500 * time.Millisecond)
		if v.Mini().Exists("k") {
			t.Error("nothing releases it")
		}
	})
}

func TestAHookThatCallsNextLateGrantsNothing(t *testing.T) {
	for _, returned := range []error{nil, locktest.ErrOpen} {
		t.Run(fmt.Sprintf("returns %v", returned), func(t *testing.T) {
			locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
				var late atomic.Bool
				c, w := hookedClient(t, v, around(func(_ context.Context, _ []redis.Cmder, next func() error) error {
					if !late.Load() {
						return next()
					}
					go func() {
						time.Sleep(20 * time.Millisecond)
						_ = next()
					}()
					return returned
				}))
				locktest.KnowsServer(t, c, kind)
				locktest.StrangersKey(v, kind, "theirs")
				late.Store(true)
				for _, name := range []string{"k", "theirs"} {
					if l, err := locktest.MutexOf(c, kind, name).TryLock(context.Background(), 0); err == nil {
						t.Errorf("%s: granted before anything was sent, Err: %v", name, l.Err())
					}
				}
				tryTogether(t, v, c, w, kind)
				late.Store(false)
				// The commands that come late must disturb none of these.
				for i := range 50 {
					l := locktest.MustLock(t, locktest.MutexOf(c, kind, fmt.Sprint("other", i)))
					time.Sleep(time.Millisecond)
					locktest.MustUnlock(t, l)
				}
				time.Sleep(3 * time.Second)
				synctest.Wait()
				if v.Mini().Exists("k") {
					t.Error("what came late is not given back")
				}
			})
		})
	}
}

func TestAHookThatSleepsKeepsNobodyBeyondItsTime(t *testing.T) {
	locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		var pause atomic.Int64
		c, _ := hookedClient(t, v, around(func(_ context.Context, _ []redis.Cmder, next func() error) error {
			time.Sleep(time.Duration(pause.Load()))
			return next()
		}))
		locktest.KnowsServer(t, c, kind)
		held := locktest.MustLock(t, locktest.MutexOf(c, kind, "held"))
		pause.Store(int64(7 * time.Second))
		defer pause.Store(0)
		ctx := context.Background()
		within := func(what string, most time.Duration, f func() error) {
			t.Helper()
			start := time.Now()
			err := f()
			if took := time.Since(start); took > most || err == nil {
				t.Errorf("%s took %v, at most %v: %v", what, took, most, err)
			}
		}
		m := locktest.MutexOf(c, kind, "k")
		within("TryLock(0)", transport.AttemptTimeout+50*time.Millisecond, func() error { _, err := m.TryLock(ctx, 0); return err })
		within("TryLock", 310*time.Millisecond, func() error { _, err := m.TryLock(ctx, 300*time.Millisecond); return err })
		within("Lock", 310*time.Millisecond, func() error {
			bounded, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			_, err := m.Lock(bounded)
			return err
		})
		within("Info", transport.AttemptTimeout+50*time.Millisecond, func() error { _, err := m.Info(ctx); return err })
		within("Unlock", locktest.UnlockTimeoutOf(c)+50*time.Millisecond, func() error { return held.Unlock(ctx) })
		pause.Store(0)
		time.Sleep(10 * time.Second) // all that slept has been sent
		for _, key := range v.Mini().Keys() {
			if !strings.HasPrefix(key, "redisson_lock_token:") {
				t.Errorf("%s is left", key)
			}
		}
		pause.Store(int64(7 * time.Second))
		start := time.Now()
		_ = c.Close()
		if took := time.Since(start); took > locktest.UnlockTimeoutOf(c)+transport.AttemptTimeout+100*time.Millisecond {
			t.Errorf("Close took %v", took)
		}
		pause.Store(0)
		time.Sleep(10 * time.Second)
	})
}
