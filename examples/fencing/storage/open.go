package storage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

// OpenSQLite opens the file at path, and makes it and the tables when they are
// not there.
func OpenSQLite(ctx context.Context, path string) (*Store, error) {
	pragmas := url.Values{
		"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(NORMAL)"},
		// A transaction that begins by reading could not go on to write when
		// another one has written meanwhile.
		"_txlock": {"immediate"},
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+pragmas.Encode())
	if err != nil {
		return nil, err
	}
	// SQLite has one writer at a time. Within a process the pool queues better
	// than SQLite does, which sleeps and looks again.
	db.SetMaxOpenConns(1)
	return open(ctx, db, sqliteColumns)
}

// OpenPostgres opens the database that dsn names. The tables are in schema, which
// is made when it is not there, as they are.
func OpenPostgres(ctx context.Context, dsn, schema string) (*Store, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	name := pgx.Identifier{schema}.Sanitize()
	config.RuntimeParams["search_path"] = name
	db := stdlib.OpenDB(*config)
	if _, err := db.ExecContext(ctx, "CREATE SCHEMA IF NOT EXISTS "+name); err != nil {
		_ = db.Close()
		return nil, err
	}
	return open(ctx, db, postgresColumns)
}

// open makes the tables. Those that are there must have the columns that the
// statements need: a mistake there shows late, as writes that never pass.
func open(ctx context.Context, db *sql.DB, columns string) (*Store, error) {
	s := &Store{db}
	for _, statement := range schema {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			_ = db.Close()
			return nil, err
		}
	}
	if err := s.checkColumns(ctx, columns); err != nil {
		_ = db.Close()
		return nil, err
	}
	return s, nil
}

// Queries for the type and nullability of a table's lock_token.
const (
	sqliteColumns   = `SELECT lower(type), "notnull" = 0 FROM pragma_table_info($1) WHERE name = 'lock_token'`
	postgresColumns = `SELECT data_type, is_nullable = 'YES' FROM information_schema.columns
		WHERE table_schema = current_schema() AND table_name = $1 AND column_name = 'lock_token'`
)

func (s *Store) checkColumns(ctx context.Context, query string) error {
	var problems []string
	for _, table := range []string{"shipments", "fences"} {
		var kind string
		var nullable bool
		err := s.db.QueryRowContext(ctx, query, table).Scan(&kind, &nullable)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			problems = append(problems, table+" has no column lock_token")
		case err != nil:
			return err
		case kind != "bigint":
			problems = append(problems, fmt.Sprintf("%s.lock_token is %s, which does not hold every token: BIGINT does", table, kind))
		case nullable:
			problems = append(problems, table+".lock_token may be NULL, and then no write passes: it must be NOT NULL")
		}
	}
	if len(problems) > 0 {
		return errors.New(strings.Join(problems, "; "))
	}
	return nil
}

// DB is the database itself, for statements of your own.
func (s *Store) DB() *sql.DB { return s.db }

// Close closes the connections.
func (s *Store) Close() error { return s.db.Close() }
