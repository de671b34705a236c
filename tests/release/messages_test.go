package release_test

import (
	"context"
	"testing"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
)

func TestEachReleaseIsOneMessage(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, b locktest.ScriptBench) {
		c := locktest.NewTestClient(t, b.Rdb)
		for _, kind := range []string{"hash", "fenced", "string"} {
			for how, release := range map[string]func(m *watchlock.Mutex, l *watchlock.Lease) error{
				"Unlock":      func(_ *watchlock.Mutex, l *watchlock.Lease) error { return l.Unlock(context.Background()) },
				"ForceUnlock": func(m *watchlock.Mutex, _ *watchlock.Lease) error { return m.ForceUnlock(context.Background()) },
			} {
				m := locktest.MutexOf(c, kind, kind+" "+how)
				next := b.Hears(locktest.KeysOf(m).Channel)
				if err := release(m, locktest.MustLock(t, m)); err != nil {
					t.Fatalf("%s of the %s form: %v", how, kind, err)
				}
				b.Do("PUBLISH", locktest.KeysOf(m).Channel, "end")
				for _, want := range []string{"00", "end"} {
					if got := next(); got != locktest.KeysOf(m).Channel+" "+want {
						t.Errorf("%s of the %s form: heard %q, want %q", how, kind, got, want)
					}
				}
			}
		}
	})
}
