package storage

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// TestCommitInFlightWhenTheLeaseEndsLiesBeforeTheNextHoldersWork: worker A has
// claimed the fence and written, and its lease ends before its commit. Worker B
// is granted the lock meanwhile, and must see all of A's work or none.
func TestCommitInFlightWhenTheLeaseEndsLiesBeforeTheNextHoldersWork(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db database) {
		a, b, ctx := db.open(t), db.open(t), t.Context()
		must(t, a.Add(ctx, "1001", "PAID"))
		must(t, a.Add(ctx, "1002", "PAID"))
		rdb := redistest.Start(t).Client()
		first := take(t, newClient(t, rdb), watchlock.WithLeaseTime(200*time.Millisecond))

		written, commit := make(chan struct{}), make(chan struct{})
		aDone := inBackground(func() error {
			return a.InFence(ctx, "shop", first.Token(), func(tx *sql.Tx) error {
				err := setAll(ctx, "PACKED", "1001", "1002")(tx)
				close(written)
				<-commit
				return err
			})
		})
		<-written
		second := take(t, newClient(t, rdb)) // waits until the first lease has ended
		if !errors.Is(first.Err(), watchlock.ErrLost) {
			t.Errorf("the first lease: %v", first.Err())
		}
		var seen []string
		bDone := inBackground(func() error {
			return b.InFence(ctx, "shop", second.Token(), func(tx *sql.Tx) (err error) {
				seen, err = statuses(ctx, tx)
				return errors.Join(err, setAll(ctx, "SENT", "1001", "1002")(tx))
			})
		})
		waitUntilBlocked(t, db)
		close(commit)
		must(t, <-aDone)
		must(t, <-bDone)
		if len(seen) != 2 || seen[0] != "PACKED" || seen[1] != "PACKED" {
			t.Errorf("the next holder saw %q, not the work that was committed before", seen)
		}
		wantStale(t, a.InFence(ctx, "shop", first.Token(), setAll(ctx, "LATE", "1001")), first.Token(), second.Token())
		wantRow(t, b, "1001", "SENT", 0)
		must(t, second.Unlock(ctx))
	})
}

// TestLateWriteThatWaitsForTheNextHoldersCommitIsRefused: a database that
// compared before it waited would take it.
func TestLateWriteThatWaitsForTheNextHoldersCommitIsRefused(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db database) {
		for _, c := range []struct {
			end     func(*sql.Tx) error
			refused bool
		}{{(*sql.Tx).Commit, true}, {(*sql.Tx).Rollback, false}} {
			a, b, ctx := db.open(t), db.open(t), t.Context()
			_, err := a.DB().ExecContext(ctx, `DELETE FROM shipments`)
			must(t, err)
			must(t, a.Add(ctx, "1001", "PAID"))
			tx, err := b.DB().BeginTx(ctx, nil)
			must(t, err)
			_, err = tx.ExecContext(ctx, write, "SENT", big+1, "1001")
			must(t, err)
			aDone := inBackground(func() error { return a.Write(ctx, "1001", "LATE", big) })
			waitUntilBlocked(t, db)
			must(t, c.end(tx))
			err = <-aDone
			if c.refused {
				wantStale(t, err, big, big+1)
				wantRow(t, a, "1001", "SENT", big+1)
				continue
			}
			must(t, err) // nobody has shown the newer token
			wantRow(t, a, "1001", "LATE", big)
		}
	})
}

func newClient(t *testing.T, rdb redis.UniversalClient) *watchlock.Client {
	t.Helper()
	client, err := watchlock.New(rdb)
	must(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

func take(t *testing.T, client *watchlock.Client, opts ...watchlock.LockOption) *watchlock.FencedLease {
	t.Helper()
	lease, err := client.NewFencedMutex("lock:shop").Lock(t.Context(), opts...)
	must(t, err)
	return lease
}

func inBackground(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

func statuses(ctx context.Context, tx *sql.Tx) (found []string, err error) {
	rows, err := tx.QueryContext(ctx, `SELECT status FROM shipments ORDER BY order_id`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var status string
		if err := rows.Scan(&status); err != nil {
			return nil, err
		}
		found = append(found, status)
	}
	return found, rows.Err()
}

// waitUntilBlocked returns when a statement waits for a row. SQLite does not tell:
// there the outcome is the same whether the statement waits or comes after.
func waitUntilBlocked(t *testing.T, db database) {
	t.Helper()
	if db.name != "postgres" {
		return
	}
	s := db.open(t)
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); <-time.After(5 * time.Millisecond) {
		var n int
		must(t, s.DB().QueryRowContext(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'`).Scan(&n))
		if n > 0 {
			return
		}
	}
	t.Fatal("no statement waits for a row")
}
