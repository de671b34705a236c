package storage

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestTokenThatIsNullIsRefusedByTheSchema(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db database) {
		s, ctx := db.open(t), t.Context()
		must(t, s.Add(ctx, "1001", "PAID"))
		for _, statement := range []string{
			`INSERT INTO shipments (order_id, status, lock_token) VALUES ('1002', 'PAID', NULL)`,
			`UPDATE shipments SET lock_token = NULL`,
			`INSERT INTO fences (name, lock_token) VALUES ('shop', NULL)`,
		} {
			_, err := s.DB().ExecContext(ctx, statement)
			if err == nil || !strings.Contains(strings.ToLower(err.Error()), "not null") && !strings.Contains(err.Error(), "not-null") {
				t.Errorf("%s: %v", statement, err)
			}
		}
		wantRow(t, s, "1001", "PAID", 0)
	})
}

func TestNewestTokenIsExactInTheColumn(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db database) {
		s, ctx := db.open(t), t.Context()
		must(t, s.Add(ctx, "1001", "PAID"))
		const top = 1<<53 - 1
		must(t, s.WriteOnce(ctx, "1001", "PACKED", top-1))
		must(t, s.WriteOnce(ctx, "1001", "SENT", top))
		wantStale(t, s.WriteOnce(ctx, "1001", "LATE", top-1), top-1, top)
		wantRow(t, s, "1001", "SENT", top)
	})
}

// TestTableWhoseTokensCannotWorkIsRefusedAtOpen: tables that somebody made by
// hand, and what is wrong with them.
func TestTableWhoseTokensCannotWorkIsRefusedAtOpen(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db database) {
		s, ctx := db.open(t), t.Context()
		for _, c := range []struct{ table, column, want string }{
			{"shipments", "lock_token int4 NOT NULL", "shipments.lock_token is int"},
			{"shipments", "lock_token BIGINT", "shipments.lock_token may be NULL"},
			{"shipments", "token BIGINT NOT NULL", "shipments has no column lock_token"},
			{"fences", "lock_token TEXT NOT NULL", "fences.lock_token is text"},
			{"fences", "lock_token BIGINT", "fences.lock_token may be NULL"},
		} {
			_, err := s.DB().ExecContext(ctx, "DROP TABLE "+c.table)
			must(t, err)
			_, err = s.DB().ExecContext(ctx, "CREATE TABLE "+c.table+" (name TEXT PRIMARY KEY, "+c.column+")")
			must(t, err)
			_, err = db.try(ctx)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s with %s: %v, want %q", c.table, c.column, err, c.want)
			}
			_, err = s.DB().ExecContext(ctx, "DROP TABLE "+c.table)
			must(t, err)
			db.open(t) // makes it anew
		}
	})
}

// TestWhatAWrongColumnWouldDo shows why the schema is as it is.
func TestWhatAWrongColumnWouldDo(t *testing.T) {
	s, ctx := postgresDatabase(t).open(t), t.Context()
	_, err := s.DB().ExecContext(ctx, `ALTER TABLE shipments ALTER COLUMN lock_token TYPE int4, ALTER COLUMN lock_token DROP NOT NULL`)
	must(t, err)
	must(t, s.Add(ctx, "1001", "PAID"))
	overflow := (*pgconn.PgError)(nil)
	if _, err := s.DB().ExecContext(ctx, `UPDATE shipments SET lock_token = $1::bigint`, big); !errors.As(err, &overflow) || overflow.Code != "22003" {
		t.Errorf("a token in an int4 column: %v, want that it is out of range", err)
	}
	_, err = s.DB().ExecContext(ctx, `UPDATE shipments SET lock_token = NULL`)
	must(t, err)
	if passed, err := changed(s.DB().ExecContext(ctx, write, "SENT", int64(1), "1001")); passed || err != nil {
		t.Errorf("a write over NULL: %t, %v, want that it never passes", passed, err)
	}
}

// TestRowLocksOfTheReadmeDoWhatItSays runs the statements for when no lock in
// Redis is needed.
func TestRowLocksOfTheReadmeDoWhatItSays(t *testing.T) {
	readme, err := os.ReadFile("../../../README.md")
	must(t, err)
	block := regexp.MustCompile("(?s)```sql\n(INSERT .*?;)[^\n]*\n(SELECT .*? FOR UPDATE;)[^\n]*\n```").FindStringSubmatch(string(readme))
	if block == nil {
		t.Fatal("the README has no such statements")
	}
	s, ctx := postgresDatabase(t).open(t), t.Context()
	for _, statement := range []string{
		`CREATE TABLE dispatches (order_id BIGINT PRIMARY KEY)`,
		`CREATE TABLE orders (id BIGINT PRIMARY KEY, state TEXT NOT NULL)`,
		`INSERT INTO orders VALUES (1001, 'PAID')`,
	} {
		_, err := s.DB().ExecContext(ctx, statement)
		must(t, err)
	}
	for i, want := range []bool{true, false} {
		if mine, err := changed(s.DB().ExecContext(ctx, block[1])); mine != want || err != nil {
			t.Errorf("insert %d: a row is inserted: %t, %v", i+1, mine, err)
		}
	}
	tx, err := s.DB().BeginTx(ctx, nil)
	must(t, err)
	defer func() { _ = tx.Rollback() }()
	var state string
	must(t, tx.QueryRowContext(ctx, block[2]).Scan(&state))
	busy := (*pgconn.PgError)(nil)
	if _, err := s.DB().ExecContext(ctx, strings.TrimSuffix(block[2], ";")+" NOWAIT"); !errors.As(err, &busy) || busy.Code != "55P03" {
		t.Errorf("beside the transaction the row is not locked: %v", err)
	}
}
