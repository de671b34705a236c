package storage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/seed-8c25f305/watchlock/examples/fencing/internal/pgtest"
)

// postgres is one server for all tests here. Each has a schema of its own in it.
var postgres = sync.OnceValues(func() (*pgtest.Server, error) {
	started.Store(true)
	return pgtest.Start()
})

var started, schemas = new(atomic.Bool), new(atomic.Int64)

// TestMain stops that server, and fails when a goroutine is left.
func TestMain(m *testing.M) {
	logging.Disable() // go-redis's own reports of connections that fail
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if started.Load() {
			if server, err := postgres(); err == nil {
				server.Stop()
			}
		}
		os.Exit(code)
	}), goleak.IgnoreAnyFunction("os/exec.(*Cmd).Wait"))
}

// database is one set of tables.
type database struct {
	name string
	try  func(ctx context.Context) (*Store, error)
}

// open opens one more store on the tables, as another process would.
func (db database) open(t testing.TB) *Store {
	t.Helper()
	s, err := db.try(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// onEachDatabase runs f on SQLite and on PostgreSQL, with empty tables.
func onEachDatabase(t *testing.T, f func(t *testing.T, db database)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { f(t, sqliteDatabase(t)) })
	t.Run("postgres", func(t *testing.T) { f(t, postgresDatabase(t)) })
}

func sqliteDatabase(t *testing.T) database {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shop.db")
	return database{"sqlite", func(ctx context.Context) (*Store, error) { return OpenSQLite(ctx, path) }}
}

func postgresDatabase(t *testing.T) database {
	t.Helper()
	dsn := postgresDSN(t)
	schema := fmt.Sprintf("shop%d", schemas.Add(1))
	return database{"postgres", func(ctx context.Context) (*Store, error) { return OpenPostgres(ctx, dsn, schema) }}
}

// postgresDSN skips the test on a machine without PostgreSQL, and fails it in CI.
func postgresDSN(t *testing.T) string {
	t.Helper()
	server, err := postgres()
	if errors.Is(err, pgtest.ErrAbsent) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return server.DSN()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantRow fails unless the row has this status and token.
func wantRow(t testing.TB, s *Store, order, status string, token int64) {
	t.Helper()
	row, err := s.Shipment(context.Background(), order)
	if err != nil || row != (Shipment{order, status, token}) {
		t.Errorf("the row is %+v, %v; want %q, token %d", row, err, status, token)
	}
}

// wantStale fails unless err is a StaleError with these tokens.
func wantStale(t testing.TB, err error, token, seen int64) {
	t.Helper()
	stale := (*StaleError)(nil)
	if !errors.As(err, &stale) || stale.Token != token || stale.Seen != seen {
		t.Errorf("got %v, want a stale token %d, with %d seen", err, token, seen)
	}
}

// fullCount is n with WATCHLOCK_FULL set, else a twentieth of it.
func fullCount(n int) int {
	if os.Getenv("WATCHLOCK_FULL") != "" {
		return n
	}
	return max(1, n/20)
}

// setAll is work in a fence: it sets the status of each order.
func setAll(ctx context.Context, status string, orders ...string) func(tx *sql.Tx) error {
	return func(tx *sql.Tx) error {
		for _, order := range orders {
			if _, err := tx.ExecContext(ctx, `UPDATE shipments SET status = $1 WHERE order_id = $2`, status, order); err != nil {
				return err
			}
		}
		return nil
	}
}
