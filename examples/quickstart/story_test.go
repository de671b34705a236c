package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/examples/fencing/storage"
	"github.com/seed-8c25f305/watchlock/examples/internal/connect"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

const longestStory = 15 * time.Second

// TestMain fails when a story leaves a goroutine behind.
func TestMain(m *testing.M) {
	logging.Disable() // go-redis's own reports of connections that fail
	goleak.VerifyTestMain(m)
}

// TestStoryHoldsOnTheEmbeddedServer is what a newcomer runs.
func TestStoryHoldsOnTheEmbeddedServer(t *testing.T) {
	t.Parallel()
	tellTheStory(t)
}

// TestStoryHoldsOnRealRedis checks that the story also leaves a server as it was.
func TestStoryHoldsOnRealRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.WithTCP())
	if _, err := server.Do("SET", "somebody:elses", "key"); err != nil {
		t.Fatal(err)
	}
	tellTheStory(t, "-redis", "redis://"+server.Addr())
	keys, err := server.Client().Keys(t.Context(), "*").Result()
	if err != nil || len(keys) != 1 || keys[0] != "somebody:elses" {
		t.Errorf("after the story the server has the keys %q, %v", keys, err)
	}
}

func tellTheStory(t *testing.T, args ...string) {
	t.Helper()
	var out, errOut bytes.Buffer
	began := time.Now()
	code := command(args, &out, &errOut)
	if code != 0 || errOut.Len() > 0 || strings.Contains(out.String(), "FAILED") {
		t.Fatalf("exit code %d, errors %q, story:\n%s", code, &errOut, &out)
	}
	if n := strings.Count(out.String(), "proved: "); n != 15 || !strings.Contains(out.String(), "All 15 claims hold.") {
		t.Errorf("%d claims proved, want 15:\n%s", n, &out)
	}
	if took := time.Since(began); took > longestStory {
		t.Errorf("the story took %v, more than %v", took, longestStory)
	}
}

// TestStoryFailsWhenAnOperatorDeletesALock breaks act 3 from outside. The acts
// after it are played all the same.
func TestStoryFailsWhenAnOperatorDeletesALock(t *testing.T) {
	t.Parallel()
	s, out := newTestStory(t)
	s.deleteLock(t, "lock:report")
	err := s.tell(t.Context())
	if err == nil || !strings.Contains(err.Error(), "nobody else got in") {
		t.Errorf("the story ended with %v, want the failed claim:\n%s", err, out)
	}
	if !strings.Contains(out.String(), "\n6. ") || strings.Contains(out.String(), "claims hold") {
		t.Errorf("the story is not told to its end, or praises itself:\n%s", out)
	}
	if keys := s.rdb.Keys(t.Context(), "*").Val(); len(keys) != 0 {
		t.Errorf("the failed story leaves %q", keys)
	}
}

func TestInterruptedStoryRemovesItsKeysAndNoOthers(t *testing.T) {
	t.Parallel()
	s, out := newTestStory(t)
	for _, key := range []string{s.prefix + "lock:left", "somebody:elses"} {
		if err := s.rdb.Set(t.Context(), key, "", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	if err := s.tell(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the story ended with %v:\n%s", err, out)
	}
	if keys := s.rdb.Keys(t.Context(), "*").Val(); len(keys) != 1 || keys[0] != "somebody:elses" {
		t.Errorf("the interrupted story leaves %q", keys)
	}
}

func TestWorkersThatDoNotLockShipTwiceAndTheActNotices(t *testing.T) {
	t.Parallel()
	s, out := newTestStory(t)
	s.apiTime = time.Second // so that both workers have looked before one of them is done
	s.orderLock = func(*watchlock.Client, string) section { return noLock{} }
	wantFailedClaim(t, s, out, s.withLock, "order 1001 was delivered twice by the broker and dispatched once")
}

func TestHandlerThatGetsTheHeldLockIsNoticed(t *testing.T) {
	t.Parallel()
	s, out := newTestStory(t)
	s.deleteLock(t, "lock:order:2002")
	wantFailedClaim(t, s, out, s.busy, "the answer was busy")
}

func TestWorkerThatIsNotToldInTimeIsNoticed(t *testing.T) {
	t.Parallel()
	s, out := newTestStory(t)
	s.deleteLock(t, "lock:prices")
	wantFailedClaim(t, s, out, s.explicitLease, "before worker B got the lock")
}

func TestRowThatTakesTheLateWriteIsNoticed(t *testing.T) {
	t.Parallel()
	s, out := newTestStory(t)
	s.write = func(ctx context.Context, rows *storage.Store, order, status string, token int64) error {
		_, err := rows.DB().ExecContext(ctx, `UPDATE shipments SET status = $1, lock_token = $2 WHERE order_id = $3`, status, token, order)
		return err
	}
	wantFailedClaim(t, s, out, s.lateWrite, "the row refused the late write")
}

// newTestStory is a story on an embedded server of its own.
func newTestStory(t *testing.T) (*story, *bytes.Buffer) {
	t.Helper()
	rdb, _, stop, err := connect.Redis(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	out := new(bytes.Buffer)
	return newStory(rdb, out), out
}

// wantFailedClaim plays one act and fails unless it finds the claim false.
func wantFailedClaim(t *testing.T, s *story, out *bytes.Buffer, act func(context.Context) error, claim string) {
	t.Helper()
	if err := act(t.Context()); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	if err := s.Finish(""); err == nil || !strings.Contains(err.Error(), claim) {
		t.Errorf("the act ended with %v, want that %q does not hold:\n%s", err, claim, out)
	}
}

// deleteLock deletes the key of a lock once, as soon as it is there.
func (s *story) deleteLock(t *testing.T, name string) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-done
	})
	go func() {
		defer close(done)
		for pass(ctx, 5*time.Millisecond) == nil {
			if n, err := s.rdb.Del(ctx, s.prefix+name).Result(); n > 0 || err != nil {
				return
			}
		}
	}()
}

func TestCommandFailsWithoutRedisAndKeepsThePasswordToItself(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"-redis", "redis://:hunter2@127.0.0.1:1/0"},
		{"-redis", "redis://:hunter2@127.0.0.1:1/zero"},
		{"-redis", "redis://:hunter2@127.0.0.1:port"},
	} {
		var out, errOut bytes.Buffer
		if code := command(args, &out, &errOut); code != 1 {
			t.Errorf("%q: exit code %d, want 1", args, code)
		}
		if errOut.Len() == 0 || strings.Contains(out.String()+errOut.String(), "hunter2") {
			t.Errorf("%q: says %q", args, &errOut)
		}
	}
	if code := command([]string{"-rediss"}, new(bytes.Buffer), new(bytes.Buffer)); code != 2 {
		t.Errorf("an unknown flag: exit code %d, want 2", code)
	}
}
