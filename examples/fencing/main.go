// Command fencing shows what a lock cannot do, and how the storage does it:
//
//	go run -C examples ./fencing
//	go run -C examples ./fencing -postgres "host=/run/postgresql dbname=shop"
//
// A holder that is stopped for longer than its lease writes late, after somebody
// else. The database refuses that by the token of the lock. The statements are in
// fencing/storage, for PostgreSQL and SQLite; the acts are in late.go, fence.go and
// times.go. It exits with 1 when a claim does not hold.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"github.com/seed-8c25f305/watchlock/examples/fencing/storage"
	"github.com/seed-8c25f305/watchlock/examples/internal/connect"
)

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

// command is main with everything that comes from outside as a parameter.
func command(args []string, out, errOut io.Writer) (exitCode int) {
	flags := flag.NewFlagSet("fencing", flag.ContinueOnError)
	flags.SetOutput(errOut)
	redisURL := flags.String("redis", "", "`URL` of a Redis to use instead of an embedded one; keys get a prefix and are removed")
	dsn := flags.String("postgres", "", "`DSN` of a PostgreSQL to use instead of an SQLite file; tables are in a schema of their own, which is removed")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := run(ctx, *redisURL, *dsn, out); err != nil {
		_, _ = fmt.Fprintln(errOut, "\nfencing:", err)
		return 1
	}
	return 0
}

// run tells the story. It leaves no key and no table behind.
func run(ctx context.Context, redisURL, dsn string, out io.Writer) error {
	rdb, aboutRedis, stop, err := connect.Redis(ctx, redisURL)
	if err != nil {
		return err
	}
	defer stop()
	store, aboutStore, remove, err := openStore(ctx, dsn)
	if err != nil {
		return err
	}
	defer remove()
	_, _ = fmt.Fprintf(out, "watchlock fencing, on %s and %s\n", aboutRedis, aboutStore)
	return newStory(rdb, store, out).tell(ctx)
}

// openStore opens a store that remove removes again.
func openStore(ctx context.Context, dsn string) (s *storage.Store, about string, remove func(), err error) {
	if dsn == "" {
		return openTemporary(ctx)
	}
	schema := "watchlock_fencing_" + uuid.NewString()[:8]
	s, err = storage.OpenPostgres(ctx, dsn, schema)
	if err != nil {
		return nil, "", nil, fmt.Errorf("the PostgreSQL is not usable: %w", err)
	}
	return s, "PostgreSQL", func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_, _ = s.DB().ExecContext(ctx, "DROP SCHEMA "+schema+" CASCADE")
		_ = s.Close()
	}, nil
}

func openTemporary(ctx context.Context) (*storage.Store, string, func(), error) {
	dir, err := os.MkdirTemp("", "watchlock-fencing")
	if err != nil {
		return nil, "", nil, err
	}
	s, err := storage.OpenSQLite(ctx, filepath.Join(dir, "shop.db"))
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, "", nil, err
	}
	return s, "SQLite", func() {
		_ = s.Close()
		_ = os.RemoveAll(dir)
	}, nil
}
