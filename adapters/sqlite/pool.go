package sqlite

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
	driver "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"
)

// pool is a pool of connections that begin with these statements.
type pool struct {
	*sql.DB
	setup string
	// opening bounds the calls that are between their look at the file and their connection.
	opening chan struct{}
}

// openPool makes a pool of size connections. It escapes the path, so that a file name cannot set an
// option. With mode=rw, SQLite makes no file: it would make one behind a symbolic link.
func openPool(path string, size int, options string, more ...string) (pool, error) {
	setup := append([]string{
		fmt.Sprintf("busy_timeout=%d", busyStep.Milliseconds()), "journal_mode=WAL", "synchronous=FULL", "foreign_keys=1",
	}, more...)
	if err := registerVFS(); err != nil {
		return pool{}, err
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?mode=rw&vfs="+vfsName+options)
	if err != nil {
		return pool{}, err
	}
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	return pool{db, "PRAGMA " + strings.Join(setup, ";PRAGMA "), make(chan struct{}, size)}, nil
}

// conn takes a connection from the pool. It returns when ctx ends, even if the file system does not
// answer. The look at the file waits for ever if the server of its file system is dead. The open waits if
// a program of our user has put a FIFO in place of the file after that look, or holds a lease on it
// (fcntl(2)). Each call that waits so keeps a thread, and its place in opening: there are never more of
// them than the pool has connections, and further calls wait for a place.
func (db *DB) conn(ctx context.Context, p pool) (*sql.Conn, error) {
	select {
	case p.opening <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	type opened struct {
		conn *sql.Conn
		err  error
	}
	done := make(chan opened)
	db.mu.Lock()
	db.running++
	db.mu.Unlock()
	go func() {
		defer db.leave()
		conn, err := db.open(ctx, p)
		<-p.opening
		select {
		case done <- opened{conn, err}:
		case <-ctx.Done():
			if err == nil {
				_ = conn.Close() // the caller has left; only the pool has it
			}
		}
	}()
	select {
	case o := <-done:
		return o.conn, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// open takes a connection from the pool and prepares a new one. It bounds what SQLite reads for a new
// connection before the first statement, because that reads the schema, which is text from the file
// too.
//
// No schema of ours calls a function. Another program of our user could write one that does, in a CHECK
// constraint, a generated column or an index: a single instr() of texts of megabytes takes hours, and the
// end of a context ends no function. So SQLite refuses such a schema, and one with a longer statement
// than maxStatement, which could hold as much work in many small steps.
func (db *DB) open(ctx context.Context, p pool) (*sql.Conn, error) {
	if err := db.regular(); err != nil {
		return nil, err
	}
	conn, err := p.Conn(ctx)
	if err != nil {
		return nil, err
	}
	// The limit also marks a connection that has run its setup.
	before, err := driver.Limit(conn, lib.SQLITE_LIMIT_LENGTH, db.max)
	if err == nil && before != db.max {
		if err = db.same(ctx, conn); err == nil {
			err = limited(conn, func() error {
				_, err := conn.ExecContext(ctx, p.setup+";SELECT 1 FROM sqlite_schema") // which reads the schema
				return err
			})
		}
	}
	if err != nil {
		// A connection without its setup must not come back from the pool.
		_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn })
		return nil, err
	}
	return conn, nil
}

// maxStatement bounds each statement of the schema in bytes. Ours are shorter than 2 KiB.
const maxStatement = 8 << 10

// limited calls f while SQLite takes no function with arguments and no long statement.
func limited(conn *sql.Conn, f func() error) error {
	arguments, err1 := driver.Limit(conn, lib.SQLITE_LIMIT_FUNCTION_ARG, 0)
	length, err2 := driver.Limit(conn, lib.SQLITE_LIMIT_SQL_LENGTH, maxStatement)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	err := f()
	_, err1 = driver.Limit(conn, lib.SQLITE_LIMIT_FUNCTION_ARG, arguments)
	_, err2 = driver.Limit(conn, lib.SQLITE_LIMIT_SQL_LENGTH, length)
	return errors.Join(err, err1, err2)
}

// regular refuses other files than regular ones: the open of a FIFO waits for ever, and no context
// ends it.
func (db *DB) regular() error {
	for _, suffix := range []string{"", "-wal", "-journal"} {
		info, err := db.look(db.path + suffix)
		switch {
		case err != nil || info.Mode().IsRegular():
		case info.Mode()&fs.ModeSymlink != 0:
			return linked(db.path + suffix)
		default:
			return adapters.Errorf(adapters.CodeUnavailable, "%s is not a regular file", db.path+suffix)
		}
	}
	return nil
}

func linked(path string) error {
	return adapters.Errorf(adapters.CodeUnavailable, "%s is a symbolic link; put the file itself there, or name its directory in the manifest", path)
}

// same refuses a connection to another file than that of db. The file may have been replaced by a link
// after the look at it. SQLite resolves links when it opens the file, and has not read or written
// anything before the first statement. It does not follow links to its other files.
func (db *DB) same(ctx context.Context, conn *sql.Conn) error {
	var number, name, file string
	// The first row is the main database. As a query of pragma_database_list, it would read the schema first.
	if err := conn.QueryRowContext(ctx, "PRAGMA database_list").Scan(&number, &name, &file); err != nil {
		return err
	}
	if file != db.path {
		return linked(db.path)
	}
	return nil
}
