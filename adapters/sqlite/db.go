// Package sqlite owns how local adapters keep a SQLite file: opened for
// durability (WAL, synchronous=FULL), one writer at a time, migrated step by
// step after a copy, errors typed.
//
// It must never replace, truncate or "repair" a file it cannot read, touch one
// whose schema is newer or not its caller's, or know what a slot stores.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	driver "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"
)

const (
	// busyWait is how long a writer waits for another process, in steps short
	// enough to notice the end of its context.
	busyWait = 5 * time.Second
	busyStep = 20 * time.Millisecond
	readers  = 4
)

// Options of Open.
type Options struct {
	Path string // of the file; its directory is made (0750) when missing
	// AppID marks the file as its caller's (PRAGMA application_id); another
	// one is refused.
	AppID int32
	// Migrations are the schema's steps; user_version counts those applied.
	// Step i runs in one transaction.
	Migrations []string
	// Relaxed makes a commit survive the end of the process at once, but a loss
	// of power only after the next checkpoint (synchronous=NORMAL).
	Relaxed bool
}

// DB is an open file. Its methods may be called from any goroutine.
type DB struct {
	path  string
	write *sql.DB // one connection
	read  *sql.DB
}

// Open opens or makes the file and brings its schema up to date. All errors
// are *adapters.Error of code UNAVAILABLE, ADAPTER_TIMEOUT for ctx.
func Open(ctx context.Context, o Options) (*DB, error) {
	if err := os.MkdirAll(filepath.Dir(o.Path), 0o750); err != nil {
		return nil, adapters.Unavailable(err, "cannot make the directory")
	}
	db := &DB{path: o.Path}
	if err := create(o.Path); err != nil {
		return nil, adapters.Unavailable(err, "cannot make the file")
	}
	var err error
	more := "&_txlock=immediate"
	if o.Relaxed {
		more += "&_pragma=synchronous(NORMAL)"
	}
	if db.write, err = sql.Open("sqlite", dsn(o.Path, more)); err != nil {
		return nil, Error(err)
	}
	db.write.SetMaxOpenConns(1)
	if err := db.prepare(ctx, o); err != nil {
		db.write.Close()
		return nil, Error(err)
	}
	if err := db.keepPrivate(); err != nil {
		db.write.Close()
		return nil, adapters.Unavailable(err, "cannot keep other users out of the file")
	}
	if db.read, err = sql.Open("sqlite", dsn(o.Path, "&_pragma=query_only(1)")); err != nil {
		db.write.Close()
		return nil, Error(err)
	}
	db.read.SetMaxOpenConns(readers)
	db.read.SetMaxIdleConns(readers)
	return db, nil
}

// create makes the file, for its owner alone: SQLite would make it by the umask, and
// gives its other files the mode of this one. Whatever is there is left to SQLite.
func create(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, fileMode)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

const fileMode = 0o600

// keepPrivate takes the rights of others on files that an older version made. A file
// of another program keeps them.
func (db *DB) keepPrivate() error {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		info, err := os.Stat(db.path + suffix)
		if err != nil || info.Mode().Perm()&^fileMode == 0 {
			continue
		}
		if err := os.Chmod(db.path+suffix, fileMode); err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS) {
			return err
		}
	}
	return nil
}

// dsn escapes the path, so that no file name can set an option.
func dsn(path, more string) string {
	return "file:" + (&url.URL{Path: path}).EscapedPath() +
		fmt.Sprintf("?_pragma=busy_timeout(%d)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)", busyStep.Milliseconds()) + more
}

func (db *DB) prepare(ctx context.Context, o Options) error {
	var check string
	if err := db.write.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&check); err != nil {
		return err
	}
	if check != "ok" {
		return adapters.Errorf(adapters.CodeUnavailable, "%s is corrupt: %s; it is left as it is", o.Path, check)
	}
	var app, version, tables int64
	for q, v := range map[string]*int64{
		"PRAGMA application_id": &app, "PRAGMA user_version": &version, "SELECT count(*) FROM sqlite_schema": &tables,
	} {
		if err := db.write.QueryRowContext(ctx, q).Scan(v); err != nil {
			return err
		}
	}
	switch {
	case tables > 0 && app != int64(o.AppID):
		return adapters.Errorf(adapters.CodeUnavailable, "%s belongs to another program; it is left as it is", o.Path)
	case version > int64(len(o.Migrations)):
		return adapters.Errorf(adapters.CodeUnavailable, "%s has schema %d, newer than %d, the newest known here; it is left as it is", o.Path, version, len(o.Migrations))
	}
	return db.migrate(ctx, o, int(version))
}

// migrate applies the missing steps, each in a transaction of its own, after a
// copy of a file that holds something already.
func (db *DB) migrate(ctx context.Context, o Options, version int) error {
	if version > 0 && version < len(o.Migrations) {
		backup := fmt.Sprintf("%s.v%d-%s", o.Path, version, time.Now().UTC().Format("20060102T150405.000"))
		if _, err := db.write.ExecContext(ctx, "VACUUM INTO ?", backup); err != nil {
			return fmt.Errorf("cannot copy the file before its migration: %w", err)
		}
		if err := os.Chmod(backup, fileMode); err != nil {
			return fmt.Errorf("cannot keep other users out of the copy: %w", err)
		}
	}
	for ; version < len(o.Migrations); version++ {
		err := db.Write(ctx, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, o.Migrations[version]); err != nil {
				return err
			}
			// PRAGMA takes no parameters; both values are our own integers.
			_, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id=%d; PRAGMA user_version=%d", o.AppID, version+1))
			return err
		})
		if err != nil {
			return fmt.Errorf("cannot migrate to schema %d: %w", version+1, err)
		}
	}
	return nil
}

// Write runs f in the one write transaction and commits it: when it returns
// nil, the change is on disk. It waits for other processes up to 5 s, and for
// nobody past the end of ctx. Errors of f come back as they are, others typed.
func (db *DB) Write(ctx context.Context, f func(*sql.Tx) error) error {
	conn, err := db.write.Conn(ctx)
	if err != nil {
		return Error(err)
	}
	defer conn.Close()
	tx, err := begin(ctx, conn)
	if err != nil {
		return Error(err)
	}
	if err := f(tx); err != nil {
		// The rollback's own failure adds nothing: the file keeps its state.
		_ = tx.Rollback()
		return Error(err)
	}
	err = tx.Commit()
	if err != nil {
		// A COMMIT that failed, on a full disk say, leaves the transaction
		// open on the connection, and the next BEGIN would fail. When SQLite
		// ended it by itself there is nothing to roll back.
		_, _ = conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
	}
	return Error(err)
}

func begin(ctx context.Context, conn *sql.Conn) (*sql.Tx, error) {
	deadline := time.Now().Add(busyWait)
	for {
		tx, err := conn.BeginTx(ctx, nil)
		if !isBusy(err) || time.Now().After(deadline) {
			return tx, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// Read runs f in a read transaction: one consistent view, never waiting for a
// writer.
func (db *DB) Read(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := db.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return Error(err)
	}
	// Nothing was written; ending the transaction cannot lose anything.
	defer func() { _ = tx.Rollback() }()
	return Error(f(tx))
}

// Ping reads from the file.
func (db *DB) Ping(ctx context.Context) error {
	return db.Read(ctx, func(tx *sql.Tx) error {
		var n int
		return tx.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&n)
	})
}

// Backup writes a consistent copy to path, which must not exist. It has a
// connection of its own: the readers' refuse VACUUM, and the writer's must not be
// held for as long as a copy takes.
func (db *DB) Backup(ctx context.Context, path string) error {
	own, err := sql.Open("sqlite", dsn(db.path, ""))
	if err != nil {
		return Error(err)
	}
	_, err = own.ExecContext(ctx, "VACUUM INTO ?", path)
	return Error(errors.Join(err, own.Close()))
}

// Close ends all connections; the last one folds the WAL into the file.
func (db *DB) Close() error { return Error(errors.Join(db.read.Close(), db.write.Close())) }

func resultCode(err error) (int, bool) {
	var e *driver.Error
	if !errors.As(err, &e) {
		return 0, false
	}
	return e.Code() & 0xff, true // the primary code; the rest refines it
}

func isBusy(err error) bool {
	code, ok := resultCode(err)
	return ok && (code == lib.SQLITE_BUSY || code == lib.SQLITE_LOCKED)
}

// IsConstraint says whether err is a violated constraint, such as a key that
// exists already.
func IsConstraint(err error) bool {
	code, ok := resultCode(err)
	return ok && code == lib.SQLITE_CONSTRAINT
}

// Error types an error of this package or of database/sql: what has a code
// keeps it, an ended context is ADAPTER_TIMEOUT, everything that is wrong with
// the file is UNAVAILABLE. sql.ErrNoRows is left alone: it is not a failure.
func Error(err error) error {
	var coded *adapters.Error
	switch {
	case err == nil, errors.As(err, &coded), errors.Is(err, sql.ErrNoRows):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return adapters.AsError(err)
	case errors.Is(err, sql.ErrConnDone), errors.Is(err, sql.ErrTxDone):
		return adapters.Unavailable(err, "the database is closed")
	}
	code, ok := resultCode(err)
	if !ok {
		return adapters.Unavailable(err, "the database failed")
	}
	switch code {
	case lib.SQLITE_INTERRUPT:
		return adapters.Errorf(adapters.CodeTimeout, "the deadline passed").Wrap(err)
	case lib.SQLITE_FULL:
		return adapters.Unavailable(err, "the disk is full")
	case lib.SQLITE_READONLY, lib.SQLITE_CANTOPEN, lib.SQLITE_PERM:
		return adapters.Unavailable(err, "the database cannot be written")
	case lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB:
		return adapters.Unavailable(err, "the database is corrupt; it is left as it is")
	case lib.SQLITE_BUSY, lib.SQLITE_LOCKED:
		return adapters.Unavailable(err, "another process holds the database")
	}
	return adapters.Unavailable(err, "the database failed")
}
