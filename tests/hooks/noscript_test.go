package hooks_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// A server that is slow to answer and keeps no script for long: each attempt has time
// for one round trip only.
func TestASlowServerThatLostItsScriptsCanBeAskedAnything(t *testing.T) {
	for _, trip := range []time.Duration{550 * time.Millisecond, 900 * time.Millisecond} {
		t.Run(trip.String(), func(t *testing.T) {
			locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) { askedSlowly(t, v, kind, trip) })
		})
	}
}

func askedSlowly(t *testing.T, v *redistest.Virtual, kind string, trip time.Duration) {
	t.Helper()
	w := redistest.NewWire()
	c := locktest.NewTestClient(t, v.Client(w.Options()))
	raw := v.Client()
	ctx := context.Background()
	m := locktest.MutexOf(c, kind, "k")
	locktest.KnowsServer(t, c, kind)
	w.On(locktest.Slowly, redistest.DelayReply(trip)).Times(0)
	flush := func() {
		t.Helper()
		if err := raw.ScriptFlush(ctx).Err(); err != nil {
			t.Fatal(err)
		}
	}
	// One attempt learns that the script is missing, the next one sends it.
	const most = 3
	within := func(what string, f func() error) {
		t.Helper()
		start := time.Now()
		if err := f(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if took := time.Since(start); took > most*transport.AttemptTimeout {
			t.Errorf("%s took %v", what, took)
		}
	}
	var l *watchlock.Lease
	flush()
	within("TryLock", func() (err error) { l, err = m.TryLock(ctx, 10*time.Second); return err })
	if l == nil {
		return
	}
	flush()
	time.Sleep(40 * time.Second)
	if err := l.Err(); err != nil {
		t.Errorf("renewals: %v", err)
	}
	flush()
	within("Unlock", func() error {
		err := l.Unlock(ctx)
		if 2*trip+100*time.Millisecond > locktest.UnlockTimeoutOf(c) && watchlock.IsUnavailable(err) {
			return nil // there was time for one attempt; the key is released behind it
		}
		return err
	})
	time.Sleep(3 * time.Second)
	if v.Mini().Exists("k") {
		t.Error("Unlock left the key")
	}
	flush()
	_, _ = m.Info(ctx)
	within("the second Info", func() error { _, err := m.Info(ctx); return err })
	flush()
	if l, _ = m.TryLock(ctx, 10*time.Second, watchlock.WithLeaseTime(20*time.Second)); l == nil {
		t.Error("an explicit lease is never granted")
		return
	}
	flush()
	_ = l.Extend(ctx, 30*time.Second)
	within("the second Extend", func() error { return l.Extend(ctx, 30*time.Second) })
	flush()
	within("ForceUnlock", func() error { return m.ForceUnlock(ctx) })
	w.Clear()
	time.Sleep(3 * time.Second)
}

// What nobody believes in is released all the same.
func TestASlowServerThatLostItsScriptsReleasesOrphans(t *testing.T) {
	locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		w := redistest.NewWire()
		c := locktest.NewTestClient(t, v.Client(w.Options()))
		raw := v.Client()
		m := locktest.MutexOf(c, kind, "k")
		locktest.KnowsServer(t, c, kind)
		w.On(locktest.Slowly, redistest.Swallow)
		w.On(locktest.Slowly, redistest.DelayReply(800*time.Millisecond)).Times(0)
		if _, err := m.TryLock(context.Background(), 0); !watchlock.IsUnavailable(err) {
			t.Errorf("an attempt without an answer: %v", err)
		}
		v.Mini().Del("k")
		if err := raw.ScriptFlush(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
		owner := ""
		for _, cmd := range w.Seen() {
			if o, ok := locktest.OwnerIn(cmd, c).(string); ok && redistest.Match(redistest.Any).Mentions("k")(cmd) {
				owner = o
			}
		}
		// It ran after all, late.
		if kind == "string" {
			_ = v.Mini().Set("k", owner)
		} else {
			v.Mini().HSet("k", owner, "1")
		}
		time.Sleep(5 * time.Second)
		if v.Mini().Exists("k") {
			t.Errorf("%s is never released", owner)
		}
	})
}

// The relay of a slow server: the Unlock that relays and the waiter that it relays to.
func TestASlowServerThatLostItsScriptsRelays(t *testing.T) {
	for _, kind := range []string{"mutex", "fenced"} {
		t.Run(kind, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				locktest.LoadAllScripts(t, v)
				w := redistest.NewWire()
				c := locktest.NewTestClient(t, v.Client(w.Options()))
				m := locktest.MutexOf(c, kind, "k")
				first := locktest.MustLock(t, m)
				entered := make(chan *watchlock.Lease, 1)
				go func() {
					l, err := m.TryLock(context.Background(), 20*time.Second)
					if err != nil {
						t.Errorf("the waiter: %v", err)
					}
					entered <- l
				}()
				time.Sleep(time.Second)
				w.On(locktest.Slowly, redistest.DelayReply(800*time.Millisecond)).Times(0)
				raw := v.Client()
				if err := raw.ScriptFlush(context.Background()).Err(); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				if err := first.Unlock(context.Background()); err != nil {
					t.Errorf("Unlock: %v", err)
				}
				if l := <-entered; l != nil {
					if took := time.Since(start); took > 6*time.Second {
						t.Errorf("the waiter entered after %v", took)
					}
					w.Clear()
					_ = l.Unlock(context.Background())
				}
				w.Clear()
				time.Sleep(3 * time.Second)
			})
		})
	}
}
