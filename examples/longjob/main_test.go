package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// TestMain fails when a job leaves a goroutine behind.
func TestMain(m *testing.M) {
	logging.Disable() // go-redis's own reports of connections that fail
	goleak.VerifyTestMain(m)
}

func TestJobDoesAllItsSteps(t *testing.T) {
	var out, errOut bytes.Buffer
	code := command(t.Context(), []string{"-steps", "3", "-step", "1ms"}, &out, &errOut)
	if code != exitDone || errOut.Len() > 0 || !strings.Contains(out.String(), "step 3 of 3\n") {
		t.Errorf("exit code %d, says %q and %q", code, &out, &errOut)
	}
}

func TestJobRunsOnRealRedisAndLeavesNoKey(t *testing.T) {
	server := redistest.Start(t)
	var out, errOut bytes.Buffer
	code := command(t.Context(), []string{"-redis", "unix://" + server.Addr(), "-steps", "3", "-step", "1ms"}, &out, &errOut)
	if code != exitDone || errOut.Len() > 0 {
		t.Errorf("exit code %d, says %q and %q", code, &out, &errOut)
	}
	if n := server.Client().DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}

// cutAfter is the job's output. It does something after a line has been written.
type cutAfter struct {
	bytes.Buffer
	line string
	cut  func()
}

func (w *cutAfter) Write(p []byte) (int, error) {
	if string(p) == w.line {
		w.cut()
	}
	return w.Buffer.Write(p)
}

// TestJobStopsWhenItsLockIsTakenAway: an operator deletes the key after step 3.
func TestJobStopsWhenItsLockIsTakenAway(t *testing.T) {
	server := startMini(t)
	wantLost(t, server, func() { server.Del(lockName) })
}

// TestJobStopsWhenRedisGoesAway: with nobody to renew it, the lease runs out.
func TestJobStopsWhenRedisGoesAway(t *testing.T) {
	server := startMini(t)
	wantLost(t, server, server.Close)
}

// wantLost fails unless a job that loses its lock in step 3 says so and begins
// no step later than the lease could last.
func wantLost(t *testing.T, server *miniredis.Miniredis, lose func()) {
	t.Helper()
	var lostAt time.Time
	var errOut bytes.Buffer
	out := &cutAfter{line: "step 3 of 1000\n", cut: func() {
		lostAt = time.Now()
		lose()
	}}
	args := []string{"-redis", "redis://" + server.Addr(), "-steps", "1000", "-step", "20ms", "-watchdog", "600ms"}
	code := command(t.Context(), args, out, &errOut)
	if code != exitLost || !strings.Contains(errOut.String(), "of 1000 steps: ") || !strings.Contains(errOut.String(), "lease lost") {
		t.Errorf("exit code %d, want %d; says %q and %q", code, exitLost, out, &errOut)
	}
	// A lease of 600 ms has room for 30 steps of 20 ms.
	if n := strings.Count(out.String(), "step "); n < 3 || n > 3+30 {
		t.Errorf("%d steps were begun, the 3rd without a lock", n)
	}
	if took := time.Since(lostAt); took > 5*time.Second {
		t.Errorf("the job went on for %v", took)
	}
}

func TestInterruptedJobBeginsNoFurtherStep(t *testing.T) {
	lock := newClient(t, startMini(t)).NewMutex(lockName)
	ctx, cancel := context.WithCancelCause(t.Context())
	j := job{steps: 5}
	j.out = &cutAfter{line: "step 2 of 5\n", cut: func() { cancel(errors.New("told to stop")) }}
	err := j.run(ctx, lock)
	if err == nil || !strings.Contains(err.Error(), "stopped after 2 of 5 steps: told to stop") || codeOf(err) != exitFailed {
		t.Errorf("the job ended with %v, exit code %d", err, codeOf(err))
	}
	if j.done != 2 {
		t.Errorf("%d steps were done, want 2", j.done)
	}
}

func TestSecondJobIsBusyAndTouchesNothing(t *testing.T) {
	server := startMini(t)
	lease, err := newClient(t, server).NewMutex(lockName).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var out, errOut bytes.Buffer
	code := command(ctx, []string{"-redis", "redis://" + server.Addr()}, &out, &errOut)
	if ctx.Err() != nil {
		t.Error("the second job waits for the first")
	}
	if code != exitBusy || strings.Contains(out.String(), "step") || !strings.Contains(errOut.String(), "held for") {
		t.Errorf("exit code %d, want %d; says %q and %q", code, exitBusy, &out, &errOut)
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Errorf("the first holder's unlock: %v", err)
	}
}

func TestJobThatCannotRunSaysWhy(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"-redis", "redis://127.0.0.1:1"}, exitFailed},
		{[]string{"-watchdog", "1ms"}, exitUsage},
		{[]string{"-steps", "many"}, exitUsage},
	} {
		var out, errOut bytes.Buffer
		if code := command(t.Context(), c.args, &out, &errOut); code != c.code || errOut.Len() == 0 {
			t.Errorf("%q: exit code %d, want %d; says %q", c.args, code, c.code, &errOut)
		}
	}
}

func startMini(t *testing.T) *miniredis.Miniredis {
	t.Helper()
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	return server
}

func newClient(t *testing.T, server *miniredis.Miniredis) *watchlock.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { rdb.Close() })
	client, err := watchlock.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}
