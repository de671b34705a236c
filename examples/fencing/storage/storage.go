// Package storage keeps rows in an SQL database and takes no write from a holder
// whose lock has gone on to somebody else. Every write carries the fencing token
// of its lock, every row remembers the newest token it has seen, and the database
// compares the two in the statement that writes. So it does not matter for how
// long a holder was stopped, or what its clock says.
//
// Copy it: the statements are the same for PostgreSQL and SQLite. There are three
// ways to write, by what the holder of one token does with a row:
//
//   - WriteOnce, lock_token < token: the token writes the row once. The same
//     write again is refused, so it also shows that a lost answer was a yes.
//   - Write, lock_token <= token: the token writes the row as often as it likes.
//   - InFence: the token writes many rows. One row of another table, the fence,
//     stands for all of them, and is claimed first in each transaction.
//
// Until the next holder has shown its token, the database cannot know that there
// is one, and still takes the writes of the last. That does no harm to writes: the
// late one lies before the next holder's first. It does harm to what the next
// holder read before its first write. So read with Claim, or inside InFence: they
// show the token first, and nothing older is written after that.
package storage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// Store is the rows, one for each shipment, and the fences. Safe for concurrent
// use.
type Store struct{ db *sql.DB }

// schema is for both databases. BIGINT, since a token is the time in µs, which
// INTEGER of PostgreSQL does not hold. NOT NULL, since NULL is neither less than a
// token nor more: no write would ever pass. A row begins with 0, older than every
// token.
var schema = []string{
	`CREATE TABLE IF NOT EXISTS shipments (
		order_id   TEXT   NOT NULL PRIMARY KEY,
		status     TEXT   NOT NULL,
		lock_token BIGINT NOT NULL DEFAULT 0
	)`,
	`CREATE TABLE IF NOT EXISTS fences (
		name       TEXT   NOT NULL PRIMARY KEY,
		lock_token BIGINT NOT NULL
	)`,
}

// The statements. Each compares and writes at once: between a SELECT that looks
// and an UPDATE that writes there would be room for the next holder.
const (
	writeOnce = `UPDATE shipments SET status = $1, lock_token = $2 WHERE order_id = $3 AND lock_token < $2`
	write     = `UPDATE shipments SET status = $1, lock_token = $2 WHERE order_id = $3 AND lock_token <= $2`
	claim     = `UPDATE shipments SET lock_token = $1 WHERE order_id = $2 AND lock_token <= $1 RETURNING status`
	// A fence needs no set-up: its first holder makes it.
	claimFence = `INSERT INTO fences (name, lock_token) VALUES ($1, $2)
		ON CONFLICT (name) DO UPDATE SET lock_token = excluded.lock_token
		WHERE fences.lock_token <= excluded.lock_token`
)

// Shipment is a row.
type Shipment struct {
	Order, Status string
	Token         int64 // the newest that the row has seen
}

// Add puts in a row that no token has written yet.
func (s *Store) Add(ctx context.Context, order, status string) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO shipments (order_id, status) VALUES ($1, $2)`, order, status)
	return err
}

// Shipment reads a row, for whoever wants to look. To read what you will write,
// use Claim.
func (s *Store) Shipment(ctx context.Context, order string) (Shipment, error) {
	row := Shipment{Order: order}
	err := s.db.QueryRowContext(ctx, `SELECT status, lock_token FROM shipments WHERE order_id = $1`, order).
		Scan(&row.Status, &row.Token)
	if errors.Is(err, sql.ErrNoRows) {
		return Shipment{}, &NoRowError{order}
	}
	return row, err
}

// WriteOnce sets a row's status unless the row has seen token or a newer one. The
// error is then a *StaleError, and a *NoRowError when there is no such row.
func (s *Store) WriteOnce(ctx context.Context, order, status string, token int64) error {
	return s.update(ctx, order, token, func() (bool, error) {
		return changed(s.db.ExecContext(ctx, writeOnce, status, token, order))
	})
}

// Write sets a row's status unless the row has seen a newer token. The errors are
// WriteOnce's.
func (s *Store) Write(ctx context.Context, order, status string, token int64) error {
	return s.update(ctx, order, token, func() (bool, error) {
		return changed(s.db.ExecContext(ctx, write, status, token, order))
	})
}

// Claim shows the row the token and reads its status. After that no older token
// writes the row, so that what was read stays true until the holder, or a newer
// one, changes it. The errors are WriteOnce's.
func (s *Store) Claim(ctx context.Context, order string, token int64) (status string, err error) {
	err = s.update(ctx, order, token, func() (bool, error) {
		err := s.db.QueryRowContext(ctx, claim, token, order).Scan(&status)
		if errors.Is(err, sql.ErrNoRows) {
			return false, nil
		}
		return err == nil, err
	})
	return status, err
}

// InFence runs f in a transaction that has claimed the fence called name, and
// commits it. A newer token waits at the fence until then, and sees all of it; an
// older one gets a *StaleError, and f is not run. All who write these rows must
// do it in this fence, and f through its tx only.
func (s *Store) InFence(ctx context.Context, name string, token int64, f func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	passed, err := changed(tx.ExecContext(ctx, claimFence, name, token))
	if err != nil {
		return err
	}
	if !passed {
		stale := &StaleError{Row: "fence " + name, Token: token}
		if err := tx.QueryRowContext(ctx, `SELECT lock_token FROM fences WHERE name = $1`, name).Scan(&stale.Seen); err != nil {
			return err
		}
		return stale
	}
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// update runs a statement for one row and finds out why it changed none.
func (s *Store) update(ctx context.Context, order string, token int64, statement func() (bool, error)) error {
	for range attempts {
		if done, err := statement(); done || err != nil {
			return err
		}
		// No row changed: that is all the statement tells.
		row, err := s.Shipment(ctx, order)
		if err != nil {
			return err
		}
		if row.Token >= token {
			return &StaleError{Row: "order " + order, Token: token, Seen: row.Token}
		}
		// The row is new, and came between the two statements.
	}
	return fmt.Errorf("order %s comes and goes", order)
}

const attempts = 3

func changed(result sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// StaleError says that a row has seen a newer token, or the same one where each
// token writes once. Nothing was written. The holder of an older token has lost
// its lock, and must stop.
type StaleError struct {
	Row         string
	Token, Seen int64
}

// Error tells the tokens.
func (e *StaleError) Error() string {
	if e.Token == e.Seen {
		return fmt.Sprintf("%s was written with token %d already", e.Row, e.Token)
	}
	return fmt.Sprintf("stale token %d: %s has seen %d", e.Token, e.Row, e.Seen)
}

// NoRowError says that there is no such row, which has nothing to do with tokens.
type NoRowError struct{ Order string }

// Error names the row.
func (e *NoRowError) Error() string { return "no row for order " + e.Order }
