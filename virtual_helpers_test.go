package watchlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// virtualClient makes a client of a server that knows the scripts already, so
// that each run of one is one command.
func virtualClient(t testing.TB, v *redistest.Virtual, opts ...Option) *Client {
	t.Helper()
	virtualLoad(t, v)
	return knowServer(newTestClient(t, v.Client(), opts...), true)
}

// virtualWired is virtualClient with a wire in between.
func virtualWired(t testing.TB, v *redistest.Virtual, opts ...Option) (*Client, *redistest.Wire) {
	t.Helper()
	virtualLoad(t, v)
	w := redistest.NewWire()
	return knowServer(newTestClient(t, v.Client(w.Options()), opts...), true), w
}

// virtualLoad gives the server the scripts and empties its list of commands.
func virtualLoad(t testing.TB, v *redistest.Virtual) {
	t.Helper()
	raw := v.Client()
	defer raw.Close()
	for _, source := range sourcesOfTest() {
		if err := raw.ScriptLoad(context.Background(), source).Err(); err != nil {
			t.Fatalf("SCRIPT LOAD: %v", err)
		}
	}
	v.Reset()
}

// virtualTimes returns when those of the commands that match came, since start.
func virtualTimes(commands []redistest.Command, start time.Time, match redistest.Match) []time.Duration {
	var times []time.Duration
	for _, c := range commands {
		if match(c) {
			times = append(times, c.Time.Sub(start))
		}
	}
	return times
}

// virtualUntil sleeps until d after start and lets everything due then finish.
func virtualUntil(start time.Time, d time.Duration) {
	time.Sleep(time.Until(start.Add(d)))
	synctest.Wait()
}

// virtualTake gives the lock to a stranger for ttl; 0 is without end.
func virtualTake(v *redistest.Virtual, key string, ttl time.Duration) {
	if kindOfTest() == "setnx" {
		_ = v.Mini().Set(key, "stranger:1")
	} else {
		v.Mini().HSet(key, "stranger:1", "1")
	}
	if ttl > 0 {
		v.Mini().SetTTL(key, ttl)
	}
}

// virtualClosed reports whether done is closed.
func virtualClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// virtualWantErr fails unless err matches each of all and none of none.
func virtualWantErr(t testing.TB, what string, err error, all []error, none ...error) {
	t.Helper()
	for _, want := range all {
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want it to match %q", what, err, want)
		}
	}
	for _, not := range none {
		if errors.Is(err, not) {
			t.Errorf("%s: %v matches %q, want it not to", what, err, not)
		}
	}
	var named *LockError
	if err != nil && !errors.As(err, &named) {
		t.Errorf("%s: %v is no LockError", what, err)
	}
}
