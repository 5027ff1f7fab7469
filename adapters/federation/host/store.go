package host

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/sqlite"
	"github.com/dreamlab-ai/agentinit/internal/conninfo"
	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/internal/slowcall"
)

// appID marks the file of a registry: "AFED".
const appID = 0x41464544

// migrations are the schema, for both SQLite and PostgreSQL. An evicted session stays for a day, so
// that its box can learn why.
func migrations() []string {
	return []string{`
CREATE TABLE federation_sessions (
	id TEXT PRIMARY KEY,
	box_id TEXT NOT NULL,
	boot_id TEXT NOT NULL,
	principal TEXT NOT NULL,
	token_hash TEXT NOT NULL UNIQUE,
	registered_at BIGINT NOT NULL,
	last_seen BIGINT NOT NULL,
	seq BIGINT NOT NULL,
	registration TEXT NOT NULL,
	beat TEXT NOT NULL,
	ended_at BIGINT NOT NULL,
	reason TEXT NOT NULL,
	permanent BIGINT NOT NULL,
	retry_after_s BIGINT NOT NULL
);
CREATE UNIQUE INDEX federation_sessions_box ON federation_sessions (box_id);
CREATE TABLE federation_banned (
	box_id TEXT PRIMARY KEY,
	reason TEXT NOT NULL,
	at BIGINT NOT NULL
);`}
}

// store is a database. Queries are written with ?1, ?2 …
type store interface {
	write(ctx context.Context, f func(tx) error) error
	read(ctx context.Context, f func(tx) error) error
	close() error
}

// tx is a transaction that adapts queries to the database's SQL dialect.
type tx struct {
	*sql.Tx
	words func(string) string
	ctx   context.Context
}

func (t tx) exec(query string, args ...any) (int64, error) {
	result, err := t.ExecContext(t.ctx, t.words(query), args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (t tx) row(query string, args ...any) *sql.Row {
	return t.QueryRowContext(t.ctx, t.words(query), args...)
}

func (t tx) rows(query string, args ...any) (*sql.Rows, error) {
	return t.QueryContext(t.ctx, t.words(query), args...)
}

// file is SQLite.
type file struct{ db *sqlite.DB }

// openFile opens SQLite. After a power failure the newest changes may be missing. That is
// acceptable: a box whose session is lost registers again.
func openFile(ctx context.Context, path string) (store, error) {
	db, err := sqlite.Open(ctx, sqlite.Options{Path: path, AppID: appID, Migrations: migrations(), Relaxed: true})
	if err != nil {
		return nil, err
	}
	return file{db}, nil
}

func same(query string) string { return query }

func (f file) write(ctx context.Context, do func(tx) error) error {
	return f.db.Write(ctx, func(t *sql.Tx) error { return do(tx{t, same, ctx}) })
}

func (f file) read(ctx context.Context, do func(tx) error) error {
	return f.db.Read(ctx, func(t *sql.Tx) error { return do(tx{t, same, ctx}) })
}

func (f file) close() error { return f.db.Close() }

// server is PostgreSQL.
type server struct{ db *sql.DB }

// maxConnections to PostgreSQL of one host.
const maxConnections = 8

// callLimit bounds a transaction on the server, whatever its caller waits for: another session may hold a
// lock, or the server may be frozen.
const callLimit = 10 * time.Second

// Server is a PostgreSQL server that has the registry. All attempts to open one registry use the same
// Server: the connection string may name files, such as sslrootcert, and only one attempt at a time reads
// them.
type Server = slowcall.Call[*pgx.ConnConfig]

// NewServer names the server of a connection string; "" is no server.
func NewServer(text string) *Server {
	if text == "" {
		return nil
	}
	return slowcall.New(func() (*pgx.ConnConfig, error) {
		config, err := pgx.ParseConfig(conninfo.WithoutHome(text))
		if err == nil {
			conninfo.Bound(&config.Config)
		}
		return config, err
	})
}

func openServer(ctx context.Context, at *Server) (store, error) {
	config, err := at.Wait(ctx)
	if ctx.Err() != nil {
		return nil, adapters.Unavailable(nil, "cannot use the registry: a file that its connection string names, such as sslrootcert, does not answer")
	}
	if err != nil {
		// The error text may contain the password of the connection string.
		return nil, &adapters.ConfigError{Key: "federation.registry", Message: "is no PostgreSQL connection string"}
	}
	if err := conninfo.Guard(ctx, &config.Config); err != nil {
		return nil, adapters.Unavailable(err, "cannot use the registry")
	}
	s := server{stdlib.OpenDB(*config)}
	s.db.SetMaxOpenConns(maxConnections)
	s.db.SetMaxIdleConns(maxConnections)
	if err := s.migrate(ctx); err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	return s, nil
}

// migrate creates the tables once. Several hosts may start at the same time, so only one at a time
// does this (pg_advisory_xact_lock).
func (s server) migrate(ctx context.Context) error {
	return s.write(ctx, func(t tx) error {
		if _, err := t.exec(fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", appID)); err != nil {
			return err
		}
		var there bool
		if err := t.row("SELECT to_regclass('federation_sessions') IS NOT NULL").Scan(&there); err != nil || there {
			return err
		}
		for _, step := range migrations() {
			for statement := range strings.SplitSeq(step, ";") {
				if strings.TrimSpace(statement) == "" {
					continue
				}
				if _, err := t.exec(statement); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// numbered writes the parameters as PostgreSQL does.
func numbered(query string) string { return strings.ReplaceAll(query, "?", "$") }

func (s server) write(ctx context.Context, do func(tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	t, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return unusable(ctx, err)
	}
	if err := do(tx{t, numbered, ctx}); err != nil {
		_ = t.Rollback() // if it fails, the connection ends, and the server rolls back
		return unusable(ctx, err)
	}
	return unusable(ctx, t.Commit())
}

// maxReason bounds what an error repeats of the server's words, in bytes.
const maxReason = 500

// unusable is an error of the server or of the connection on one line, which boxes get. The text of a
// ConnectError also names user and database; that of its cause has only addresses and reasons.
func unusable(ctx context.Context, err error) error {
	if _, coded := errors.AsType[*adapters.Error](err); coded || err == nil || errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return adapters.Unavailable(nil, "the registry does not answer; another session may hold a lock in its database")
	}
	if connect, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		err = connect.Unwrap()
	}
	text := strings.ReplaceAll(strings.ReplaceAll(err.Error(), "\t", ""), "\n", "; ")
	return adapters.Unavailable(nil, "the registry cannot be used: %s", escape.Line(text, maxReason))
}

func (s server) read(ctx context.Context, do func(tx) error) error { return s.write(ctx, do) }

func (s server) close() error { return s.db.Close() }
