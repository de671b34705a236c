package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/seed-8c25f305/watchlock/examples/fencing/internal/pgtest"
	"github.com/seed-8c25f305/watchlock/examples/internal/connect"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// TestMain fails when a story leaves a goroutine behind.
func TestMain(m *testing.M) {
	logging.Disable() // go-redis's own reports of connections that fail
	goleak.VerifyTestMain(m)
}

func TestStoryHoldsOnEmbeddedServers(t *testing.T) {
	tellTheStory(t)
}

func TestStoryHoldsOnRealServersAndLeavesThemAsTheyWere(t *testing.T) {
	redis := redistest.Start(t, redistest.WithTCP())
	postgres, err := pgtest.Start()
	if errors.Is(err, pgtest.ErrAbsent) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(postgres.Stop)
	tellTheStory(t, "-redis", "redis://"+redis.Addr(), "-postgres", postgres.DSN())
	if keys := redis.Client().Keys(t.Context(), "*").Val(); len(keys) != 0 {
		t.Errorf("the story leaves the keys %q", keys)
	}
	s, _, remove, err := openStore(t.Context(), postgres.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	var schemas int
	err = s.DB().QueryRowContext(t.Context(), `SELECT count(*) FROM information_schema.schemata WHERE schema_name LIKE 'watchlock%'`).Scan(&schemas)
	if err != nil || schemas != 1 {
		t.Errorf("%d schemas besides this test's, %v", schemas-1, err)
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
	if n := strings.Count(out.String(), "proved: "); n != 9 || !strings.Contains(out.String(), "All 9 claims hold.") {
		t.Errorf("%d claims proved, want 9:\n%s", n, &out)
	}
	if !strings.Contains(out.String(), "customer   cancelled order 1001, and it is SENT\n") {
		t.Errorf("the first act does not show the fault:\n%s", &out)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the story took %v", took)
	}
}

// TestStorageThatDoesNotCompareIsNoticed breaks what the story is about.
func TestStorageThatDoesNotCompareIsNoticed(t *testing.T) {
	rdb, _, stop, err := connect.Redis(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	store, _, remove, err := openStore(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	out := new(bytes.Buffer)
	s := newStory(rdb, store, out)
	s.write = func(ctx context.Context, order, status string, token int64) error {
		_, err := store.DB().ExecContext(ctx, `UPDATE shipments SET status = $1, lock_token = $2 WHERE order_id = $3`, status, token, order)
		return err
	}
	err = s.tell(t.Context())
	for _, claim := range []string{"the late write was refused", "the row is as worker B left it", "told apart from a stale token"} {
		if err == nil || !strings.Contains(err.Error(), claim) {
			t.Errorf("the story ended with %v, want that %q does not hold:\n%s", err, claim, out)
		}
	}
}

func TestActsThatLoseAServerEndWithAnError(t *testing.T) {
	for _, lose := range []string{"Redis", "the database"} {
		rdb, _, stop, err := connect.Redis(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		store, _, remove, err := openStore(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		if lose == "Redis" {
			stop()
			defer remove()
		} else {
			remove()
			defer stop()
		}
		s := newStory(rdb, store, new(bytes.Buffer))
		for i, act := range []func(context.Context) error{s.withoutTokens, s.withTokens, s.fence, s.times} {
			if err := act(t.Context()); err == nil {
				t.Errorf("act %d goes on without %s", i+1, lose)
			}
		}
		if err := s.tell(t.Context()); err == nil {
			t.Errorf("the story holds without %s", lose)
		}
	}
}

func TestCommandFailsWithoutItsServersAndKeepsPasswordsToItself(t *testing.T) {
	for _, args := range [][]string{
		{"-redis", "redis://:hunter2@127.0.0.1:1/0"},
		{"-postgres", "postgres://shop:hunter2@127.0.0.1:1/shop?connect_timeout=2"},
		{"-postgres", "postgres://shop:hunter2@127.0.0.1:port/shop"},
		{"-postgres", "host=127.0.0.1 port=1 password=hunter2 sslmode=maybe"},
	} {
		var out, errOut bytes.Buffer
		if code := command(args, &out, &errOut); code != 1 {
			t.Errorf("%q: exit code %d, want 1", args, code)
		}
		if errOut.Len() == 0 || strings.Contains(out.String()+errOut.String(), "hunter2") {
			t.Errorf("%q: says %q", args, &errOut)
		}
	}
	if code := command([]string{"-mysql"}, new(bytes.Buffer), new(bytes.Buffer)); code != 2 {
		t.Errorf("an unknown flag: exit code %d, want 2", code)
	}
}
