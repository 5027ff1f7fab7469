// Package sqlite keeps the SQLite files of local adapters. A file is opened for durability (WAL,
// synchronous=FULL) and has one writer at a time. It is migrated step by step, after a copy was
// made. Errors are typed.
//
// It must never replace, truncate or "repair" a file that it cannot read. It must not change a file
// whose schema is newer or that belongs to another program, or a file behind a symbolic link: who can
// write the directory would choose which. It does not know what a slot stores.
package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
	driver "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"
)

// Readers is how many transactions of Read can run at the same time; further ones wait.
const Readers = 4

const (
	// busyWait is how long a writer waits for another process. It waits in short steps, to notice
	// the end of its context.
	busyWait = 5 * time.Second
	busyStep = 20 * time.Millisecond
)

// Options of Open.
type Options struct {
	Path string // of the file; a missing directory is created (0750)
	// AppID marks the file as belonging to its caller (PRAGMA application_id); a file with another
	// id is refused.
	AppID int32
	// Migrations are the steps of the schema; user_version is the number of applied steps. Each
	// step runs in one transaction.
	Migrations []string
	// Relaxed: a commit survives the end of the process at once, but a loss of power only after the
	// next checkpoint (synchronous=NORMAL).
	Relaxed bool
	// MaxValue is the largest text, blob and row in bytes, 0 = 8 MiB. Other programs of our user can
	// write the file: without a bound, one row could take all memory.
	MaxValue int
}

// DB is an open file. Its methods may be called from any goroutine.
type DB struct {
	path  string
	write pool // one connection
	read  pool
	max   int // Options.MaxValue
	// copying is the opening of the pool of every Backup.
	copying chan struct{}
	look    func(path string) (fs.FileInfo, error) // os.Lstat, except in tests

	mu      sync.Mutex
	running int           // calls of Write, Read and Backup, and connections that are being opened
	closed  chan struct{} // nil until Close; then closed when no call runs
}

// Open opens or creates the file and updates its schema. All errors are *adapters.Error with the
// code UNAVAILABLE, or ADAPTER_TIMEOUT if ctx ended.
func Open(ctx context.Context, o Options) (*DB, error) {
	dir, err := directory(o.Path)
	if err != nil {
		return nil, adapters.Unavailable(err, "cannot make the directory")
	}
	o.Path = filepath.Join(dir, filepath.Base(o.Path))
	db := &DB{path: o.Path, max: cmp.Or(o.MaxValue, 8<<20), copying: make(chan struct{}, 1), look: os.Lstat}
	if err := create(o.Path); err != nil && !errors.Is(err, fs.ErrExist) { // an existing file is left to SQLite
		return nil, adapters.Unavailable(err, "cannot make the file")
	}
	if info, err := os.Lstat(o.Path + "-wal"); err == nil && info.Size() > maxWAL {
		return nil, adapters.Errorf(adapters.CodeUnavailable, "%s-wal has %d bytes, more than %d; it is left as it is", o.Path, info.Size(), int64(maxWAL))
	}
	var more []string
	if o.Relaxed {
		more = append(more, "synchronous=NORMAL")
	}
	if db.write, err = openPool(o.Path, 1, "&_txlock=immediate", more...); err != nil {
		return nil, typed(err)
	}
	if err := db.prepare(ctx, o); err != nil {
		db.write.Close()
		return nil, named(o.Path, err)
	}
	if err := db.keepPrivate(); err != nil {
		db.write.Close()
		return nil, adapters.Unavailable(err, "cannot keep other users out of the file")
	}
	if db.read, err = openPool(o.Path, Readers, "", "query_only=1"); err != nil {
		db.write.Close()
		return nil, typed(err)
	}
	return db, nil
}

// named is typed with the path of the file, which errors of SQLite do not name, and with the reason if
// there is no inode for it.
func named(path string, err error) error {
	err = typed(err)
	e, ok := errors.AsType[*adapters.Error](err)
	code, ofFile := resultCode(err)
	if !ok || !ofFile || e.Code != adapters.CodeUnavailable || strings.HasPrefix(e.Message, path) {
		return err
	}
	c := *e
	c.Message = path + ": " + e.Message
	if hint := safeopen.NoInode(filepath.Dir(path)); hint != "" && (code == lib.SQLITE_FULL || code == lib.SQLITE_CANTOPEN) {
		c.Message += ": " + hint
	}
	return &c
}

// directory makes the directory of the file if it is missing, and returns its path without symbolic
// links, as SQLite names it. A link that another user can replace is refused.
func directory(file string) (string, error) {
	dir, err := safeopen.MakeDirectory(filepath.Dir(file), 0o750)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	return filepath.EvalSymlinks(dir.Path())
}

// create creates the file so that only its owner may use it. SQLite alone would use the umask, and
// it gives its other files the mode of this file.
func create(path string) error {
	dir, err := safeopen.OpenDirectory(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	f, err := dir.OpenFile(filepath.Base(path), os.O_RDWR|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return err
	}
	return f.Close()
}

const fileMode = 0o600

// maxWAL bounds what Open reads into the index of the WAL: 64 MiB, if the pages have 512 B. SQLite moves
// the pages of a WAL to the database whenever there are 1,000 and no transaction is open.
const maxWAL = 4 << 30

// maxPages bounds the memory of quick_check, which takes a bit for each page: 4 MiB, and 128 GiB of
// pages of 4 KiB. A sparse file of 2 TB that takes no room on the disk has 4,294,967,294 pages of 512 B.
const maxPages = 32 << 20

// keepPrivate removes other users' rights to files that an older version created. The file of
// another program is not changed.
func (db *DB) keepPrivate() error {
	for _, suffix := range []string{"", "-wal"} {
		if err := makePrivate(db.path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS) {
			return err
		}
	}
	return nil
}

// makePrivate changes the mode of the regular file that it has found at path: a program that can write
// the directory may replace it by a link meanwhile. The descriptor is O_PATH, because the close of any
// other one would end the locks of SQLite on the file (fcntl(2), F_SETLK).
func makePrivate(path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o777&^fileMode == 0 {
		return err
	}
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), fileMode)
}

func (db *DB) prepare(ctx context.Context, o Options) error {
	conn, err := db.conn(ctx, db.write)
	if err != nil {
		return err
	}
	version, err := check(ctx, conn, o)
	// The migrations need the one connection of the pool.
	if err := errors.Join(err, conn.Close()); err != nil {
		return err
	}
	return db.migrate(ctx, o, version)
}

// check refuses a file that cannot be used, and returns the version of its schema.
func check(ctx context.Context, conn *sql.Conn, o Options) (int, error) {
	// In a transaction, so that the check is of as many pages as were counted.
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // nothing was written
	var pages int64
	if err := tx.QueryRowContext(ctx, "PRAGMA page_count").Scan(&pages); err != nil {
		return 0, err
	}
	if pages > maxPages {
		return 0, adapters.Errorf(adapters.CodeUnavailable, "%s has %d pages, more than %d; it is left as it is", o.Path, pages, maxPages)
	}
	var check string
	if err := tx.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&check); err != nil {
		return 0, err
	}
	if check != "ok" {
		return 0, adapters.Errorf(adapters.CodeUnavailable, "%s is corrupt: %s; it is left as it is", o.Path, check)
	}
	var app, version, tables int64
	for q, v := range map[string]*int64{
		"PRAGMA application_id": &app, "PRAGMA user_version": &version, "SELECT count(*) FROM sqlite_schema": &tables,
	} {
		if err := tx.QueryRowContext(ctx, q).Scan(v); err != nil {
			return 0, err
		}
	}
	switch {
	case tables > 0 && app != int64(o.AppID):
		return 0, adapters.Errorf(adapters.CodeUnavailable, "%s belongs to another program; it is left as it is", o.Path)
	case version < 0:
		return 0, adapters.Errorf(adapters.CodeUnavailable, "%s has schema %d, which no version of this program has made; it is left as it is", o.Path, version)
	case version > int64(len(o.Migrations)):
		return 0, adapters.Errorf(adapters.CodeUnavailable, "%s has schema %d, newer than %d, the newest known here; it is left as it is", o.Path, version, len(o.Migrations))
	}
	return int(version), nil
}

// migrate applies the missing steps, each in its own transaction. If the file holds data, it is
// copied first.
func (db *DB) migrate(ctx context.Context, o Options, version int) error {
	if version > 0 && version < len(o.Migrations) {
		backup := fmt.Sprintf("%s.v%d-%s", o.Path, version, time.Now().UTC().Format("20060102T150405.000"))
		err := create(backup) // for its owner only; SQLite fills an empty file
		if err == nil {
			_, err = db.write.ExecContext(ctx, "VACUUM INTO ?", backup)
		}
		if err != nil {
			return fmt.Errorf("cannot copy the file before its migration: %w", err)
		}
	}
	for ; version < len(o.Migrations); version++ {
		err := db.Write(ctx, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, o.Migrations[version]); err != nil {
				return err
			}
			// PRAGMA takes no parameters; both values are integers of this package.
			_, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id=%d; PRAGMA user_version=%d", o.AppID, version+1))
			return err
		})
		if err != nil {
			return fmt.Errorf("cannot migrate to schema %d: %w", version+1, err)
		}
	}
	return nil
}

// Write runs f in the one write transaction and commits it: when it returns nil, the change is on
// disk. It waits for other processes up to 5 s, but not after the end of ctx. Errors of f are
// returned unchanged, others typed.
func (db *DB) Write(ctx context.Context, f func(*sql.Tx) error) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	conn, err := db.conn(ctx, db.write)
	if err != nil {
		return named(db.path, err)
	}
	defer conn.Close()
	tx, err := begin(ctx, conn)
	if err != nil {
		return named(db.path, err)
	}
	// Also if f panics: the connection cannot be closed before. After a commit it does nothing, and
	// its error does not matter: the file keeps its state.
	defer func() { _ = tx.Rollback() }()
	if err = onlyTables(ctx, tx); err == nil {
		err = f(tx)
	}
	if err != nil {
		return named(db.path, err)
	}
	err = tx.Commit()
	if err != nil {
		// After a failed COMMIT, for example on a full disk, the transaction is still open on the
		// connection, and the next BEGIN would fail. If SQLite has ended it already, the ROLLBACK
		// has no effect.
		_, _ = conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
	}
	return named(db.path, err)
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

// Read runs f in a read transaction: it sees one consistent state and never waits for a writer.
func (db *DB) Read(ctx context.Context, f func(*sql.Tx) error) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	conn, err := db.conn(ctx, db.read)
	if err != nil {
		return named(db.path, err)
	}
	defer conn.Close()
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return named(db.path, err)
	}
	// Nothing was written, so ending the transaction loses nothing.
	defer func() { _ = tx.Rollback() }()
	if err := onlyTables(ctx, tx); err != nil {
		return named(db.path, err)
	}
	return named(db.path, f(tx))
}

// onlyTables refuses a file with views and triggers, which we never make. Behind the name of a table, a
// query without end would fill the disk with temporary files, or the memory of the box on a tmpfs.
func onlyTables(ctx context.Context, tx *sql.Tx) error {
	var others int
	err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema WHERE type IN ('view', 'trigger')").Scan(&others)
	if err == nil && others > 0 {
		err = adapters.Errorf(adapters.CodeUnavailable, "the database has views or triggers of another program; it is left as it is")
	}
	return err
}

// Ping reads from the file.
func (db *DB) Ping(ctx context.Context) error {
	return db.Read(ctx, func(tx *sql.Tx) error {
		var n int
		return tx.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&n)
	})
}

// Backup writes a consistent copy to path, which must not exist. It uses its own connection: the
// readers' connections refuse VACUUM, and the copy must not block the writer.
func (db *DB) Backup(ctx context.Context, path string) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	own, err := openPool(db.path, 1, "")
	if err != nil {
		return typed(err)
	}
	own.opening = db.copying
	conn, err := db.conn(ctx, own)
	if err == nil {
		_, err = conn.ExecContext(ctx, "VACUUM INTO ?", path)
		err = errors.Join(err, conn.Close())
	}
	return typed(errors.Join(err, own.Close()))
}

// closeWait is how long Close waits for running calls. One on a dead file system never ends.
const closeWait = 3 * time.Second

// Close ends all connections; the last one merges the WAL into the file. A running call keeps its
// connection, so Close waits for it: the caller may be about to replace the file.
func (db *DB) Close() error {
	db.mu.Lock()
	if db.closed == nil {
		db.closed = make(chan struct{})
		if db.running == 0 {
			close(db.closed)
		}
	}
	db.mu.Unlock()
	err := errors.Join(db.read.Close(), db.write.Close())
	select {
	case <-db.closed:
	case <-time.After(closeWait):
	}
	return typed(err)
}

// enter counts a call, unless the file is closed.
func (db *DB) enter() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.closed != nil {
		return adapters.Unavailable(nil, "the database is closed")
	}
	db.running++
	return nil
}

func (db *DB) leave() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.running--
	if db.running == 0 && db.closed != nil {
		close(db.closed)
	}
}

func resultCode(err error) (int, bool) {
	e, ok := errors.AsType[*driver.Error](err)
	if !ok {
		return 0, false
	}
	return e.Code() & 0xff, true // the primary code; the other bits refine it
}

func isBusy(err error) bool {
	code, ok := resultCode(err)
	return ok && (code == lib.SQLITE_BUSY || code == lib.SQLITE_LOCKED)
}

// All returns what scan makes of each row of a query.
func All[T any](ctx context.Context, tx *sql.Tx, scan func(*sql.Rows) (T, error), query string, args ...any) (out []T, err error) {
	err = Each(ctx, tx, func(r *sql.Rows) error {
		v, err := scan(r)
		if err == nil {
			out = append(out, v)
		}
		return err
	}, query, args...)
	return out, err
}

// Each runs a query and calls f for each row, until f returns an error.
func Each(ctx context.Context, tx *sql.Tx, f func(*sql.Rows) error, query string, args ...any) error {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// IsConstraint tells whether err is a violated constraint, such as a key that exists already.
func IsConstraint(err error) bool {
	code, ok := resultCode(err)
	return ok && code == lib.SQLITE_CONSTRAINT
}

// typed gives an error of this package or of database/sql a type. An error with a code keeps it. An
// ended context is ADAPTER_TIMEOUT. All problems with the file are UNAVAILABLE. sql.ErrNoRows is
// returned unchanged, because it is not a failure.
func typed(err error) error {
	_, isCoded := errors.AsType[*adapters.Error](err)
	switch {
	case err == nil, isCoded, errors.Is(err, sql.ErrNoRows):
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
	case lib.SQLITE_TOOBIG:
		return adapters.Unavailable(err, "a row of the database is too large")
	case lib.SQLITE_BUSY, lib.SQLITE_LOCKED:
		return adapters.Unavailable(err, "another process holds the database")
	}
	return adapters.Unavailable(err, "the database failed")
}
