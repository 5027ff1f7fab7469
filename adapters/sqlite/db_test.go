package sqlite

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/leased/leasetest"
)

// No file of a database is for others to read, those of an older version included.
func TestFilesArePrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	for _, older := range []bool{false, true} {
		if older {
			if err := os.Chmod(path, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		db, err := Open(t.Context(), Options{Path: path, AppID: 7, Migrations: []string{"CREATE TABLE t (x)"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Write(t.Context(), func(tx *sql.Tx) error {
			_, err := tx.Exec("INSERT INTO t VALUES (1)")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		for _, suffix := range []string{"", "-wal"} {
			info, err := os.Stat(path + suffix)
			if err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("older %v: %s is %v %v", older, suffix, info.Mode(), err)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A schema that could compute for hours is refused when it is read, before anything is computed.
func TestASchemaWithFunctionsIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		schema  string
		refused bool
	}{
		"the twin":           {"CREATE TABLE t (x CHECK (x <> 'a' OR x || 'b' IN ('c', 1 + 1)))", false},
		"CHECK":              {"CREATE TABLE t (x CHECK (instr(x, 'a') = 0))", true},
		"operator":           {"CREATE TABLE t (x CHECK (x NOT LIKE '%a%b'))", true},
		"default":            {"CREATE TABLE t (x DEFAULT (hex('a')))", true},
		"generated column":   {"CREATE TABLE t (x, y AS (replace(x, 'a', 'b')))", true},
		"index":              {"CREATE TABLE t (x); CREATE INDEX i ON t (trim(x, 'a'))", true},
		"part of an index":   {"CREATE TABLE t (x); CREATE INDEX i ON t (x) WHERE length(x) > 1", true},
		"a table of its own": {"CREATE TABLE t (x); CREATE TABLE u (x CHECK (abs(x)))", true},
		"many steps":         {"CREATE TABLE t (x CHECK (x = 1" + strings.Repeat(" AND x = 1", 900) + "))", true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.db")
			foreign(t, path, tc.schema+"; PRAGMA application_id=7; PRAGMA user_version=1")
			db, err := openTable(t, path)
			if (err != nil) != tc.refused {
				t.Errorf("refused %v: %v", tc.refused, err)
			}
			if err == nil {
				t.Cleanup(func() { _ = db.Close() })
				if err := db.Read(t.Context(), func(tx *sql.Tx) error { // the limits are those of the schema alone
					_, err := tx.Exec("SELECT coalesce(x, 1) FROM t WHERE x <> ?1"+strings.Repeat(" AND x <> ?1", 900), 1)
					return err
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// The copy that is made before a migration holds the data and is private from its first byte on.
func TestTheCopyBeforeAMigrationIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	steps := []string{"CREATE TABLE t (x); INSERT INTO t VALUES (1)", "DELETE FROM t"}
	for n := range steps {
		db, err := Open(t.Context(), Options{Path: path, AppID: 7, Migrations: steps[:n+1]})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	copies, err := filepath.Glob(path + ".v1-*")
	if err != nil || len(copies) != 1 {
		t.Fatalf("%v %v", copies, err)
	}
	if info, err := os.Stat(copies[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	db, err := Open(t.Context(), Options{Path: copies[0], AppID: 7, Migrations: steps[:1]})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Read(t.Context(), func(tx *sql.Tx) error {
		var rows int
		if err := tx.QueryRow("SELECT count(*) FROM t").Scan(&rows); err != nil || rows != 1 {
			t.Errorf("%d rows: %v", rows, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// A link that takes the place of a database does not have its target's mode changed.
func TestALinkDoesNotMakeItsTargetPrivate(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(target, nil, 0o644), os.Chmod(target, 0o644), os.Symlink(target, link)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]fs.FileMode{link: 0o644, target: 0o600} {
		err := makePrivate(path)
		if info, statErr := os.Stat(target); err != nil || statErr != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v %v", path, err, info, statErr)
		}
		if err := os.Chmod(target, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// A sparse file with as many pages as SQLite allows is refused before it is checked, which would take
// 512 MiB.
func TestAFileOfTooManyPagesIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	foreign(t, path, "PRAGMA page_size=512; CREATE TABLE t (x)")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	const pages = 4294967294
	var head [100]byte
	_, err = f.ReadAt(head[:], 0)
	binary.BigEndian.PutUint32(head[28:], pages)
	copy(head[92:96], head[24:28]) // the number of pages is valid for this change counter
	_, werr := f.WriteAt(head[:], 0)
	if err := errors.Join(err, werr, f.Truncate(pages*512), f.Close()); err != nil {
		t.Fatal(err)
	}
	if db, err := openTable(t, path); err == nil || !strings.Contains(err.Error(), "4294967294 pages") {
		t.Errorf("opened: %v %v", db, err)
	}
}

// A WAL that is too large for the memory of its index is refused.
func TestATooLargeWALIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	foreign(t, path, "CREATE TABLE t (x)")
	if err := errors.Join(os.WriteFile(path+"-wal", nil, 0o600), os.Truncate(path+"-wal", 4<<30+1)); err != nil {
		t.Fatal(err)
	}
	if db, err := openTable(t, path); err == nil || !strings.Contains(err.Error(), "4294967297 bytes") {
		t.Errorf("opened: %v %v", db, err)
	}
}

// A journal beside the database that names a super-journal does not have SQLite read that.
func TestNoSuperJournalIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	foreign(t, path, "PRAGMA application_id=7; PRAGMA user_version=1; CREATE TABLE t (x)")
	super := path + "-mj1234569AB" // SQLite reads only files of such names
	header := []any{[]byte("\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"), uint32(0), uint32(1), uint32(2), uint32(512), uint32(4096)}
	sum := uint32(0)
	for _, c := range []byte(super) {
		sum += uint32(c)
	}
	name := []any{uint32(1<<30/4096 + 1), []byte(super), uint32(len(super)), sum, header[0]}
	var journal []byte
	for _, part := range slices.Concat(header, []any{make([]byte, 512-28)}, name) {
		var err error
		if journal, err = binary.Append(journal, binary.BigEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	// It says that it is for the journal beside the database, so SQLite would remove it after that.
	if err := errors.Join(os.WriteFile(path+"-journal", journal, 0o600), os.WriteFile(super, []byte(path+"-journal\x00"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if db, err := openTable(t, path); err == nil {
		_ = db.Close()
	}
	if _, err := os.Stat(super); err != nil {
		t.Error(err)
	}
}

// A program of our user cannot choose how much of a file SQLite maps into our memory: no file of the
// database is mapped, whatever the program puts there.
func TestNoFileIsMapped(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	if err := os.WriteFile(path+"-shm", make([]byte, 32<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := openTable(t, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Write(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.Exec("INSERT INTO t VALUES (1)")
		return err
	}); err != nil {
		t.Error(err)
	}
	if err := errors.Join(db.Ping(t.Context()), db.Backup(t.Context(), path+".copy")); err != nil {
		t.Error(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, path) {
			t.Errorf("mapped: %s", line)
		}
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

func openTable(t *testing.T, path string) (*DB, error) {
	t.Helper()
	return Open(t.Context(), Options{Path: path, AppID: 7, Migrations: []string{"CREATE TABLE t (x)"}, MaxValue: 1 << 20})
}

// foreign runs a statement in the file as another program does that has no limits.
func foreign(t *testing.T, path, statement string) {
	t.Helper()
	other, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
}

func (db *DB) largest(t *testing.T) error {
	return db.Read(t.Context(), func(tx *sql.Tx) error {
		var x string
		return tx.QueryRow("SELECT x FROM t").Scan(&x)
	})
}

// What another program puts into the file, as a row or into the schema, is not read into memory above
// the limit.
func TestValuesAreBounded(t *testing.T) {
	for name, statement := range map[string]string{
		"row":    "INSERT INTO t VALUES (printf('%.*c', 2097152, 'x'))",
		"schema": "CREATE VIEW v AS SELECT '" + strings.Repeat("x", 2<<20) + "'",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.db")
			db, err := openTable(t, path)
			if err != nil {
				t.Fatal(err)
			}
			foreign(t, path, "INSERT INTO t VALUES ('small')")
			if err := db.largest(t); err != nil {
				t.Error(err)
			}
			foreign(t, path, "DELETE FROM t; "+statement)
			if err := db.largest(t); err == nil || !strings.Contains(err.Error(), "too large") {
				t.Errorf("read: %v", err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			if db, err = openTable(t, path); err == nil {
				err = errors.Join(db.largest(t), db.Close())
			}
			if err == nil || !strings.Contains(err.Error(), "too large") {
				t.Errorf("opened again: %v", err)
			}
		})
	}
}

// A FIFO in place of a file is refused. To open one that cannot be written would never return.
func TestAFIFOIsRefused(t *testing.T) {
	for _, suffix := range []string{"", "-wal", "-journal"} {
		path := filepath.Join(t.TempDir(), "x.db")
		db, err := openTable(t, path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.RemoveAll(path+suffix), syscall.Mkfifo(path+suffix, 0o400)); err != nil {
			t.Fatal(err)
		}
		if err := db.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%q: %v", suffix, err)
		}
		if err := db.Backup(t.Context(), path+".copy"); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%q: backup: %v", suffix, err)
		}
		if again, err := openTable(t, path); err == nil {
			t.Errorf("%q: opened again", suffix)
			_ = again.Close()
		}
		// The files of the database are gone, so the close may fail.
		_ = db.Close()
	}
}

// Who can write the directory cannot have agentinit make, change or open a file elsewhere.
func TestALinkIsRefused(t *testing.T) {
	for _, suffix := range []string{"", "-wal", "-journal"} {
		for _, target := range []string{"missing", "empty", "database"} {
			elsewhere := filepath.Join(t.TempDir(), target)
			var before []byte
			var err error
			switch target {
			case "empty":
				err = os.WriteFile(elsewhere, nil, 0o644)
			case "database":
				var db *DB
				if db, err = openTable(t, elsewhere); err == nil {
					err = errors.Join(db.Close(), os.Chmod(elsewhere, 0o644))
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			before, _ = os.ReadFile(elsewhere)
			path := filepath.Join(t.TempDir(), "x.db")
			if err := os.Symlink(elsewhere, path+suffix); err != nil {
				t.Fatal(err)
			}
			db, err := openTable(t, path)
			if err == nil {
				_ = db.Close()
			}
			if err == nil || !strings.Contains(err.Error(), path+suffix+" is a symbolic link") {
				t.Errorf("%q to a file that is %s: %v", suffix, target, err)
			}
			after, err := os.ReadFile(elsewhere)
			info, _ := os.Stat(elsewhere)
			if (err == nil) != (target != "missing") || string(after) != string(before) || info != nil && info.Mode() != 0o644 {
				t.Errorf("%q: the file that is %s has changed: %v %v", suffix, target, err, info)
			}
		}
	}
}

// A link that takes the place of the file after the look at it is refused before SQLite reads or writes
// what is behind it.
func TestALinkAfterTheLookIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	db, err := openTable(t, path)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(elsewhere, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	db.look = func(name string) (fs.FileInfo, error) {
		info, err := os.Lstat(name)
		if name == path && info.Mode().IsRegular() {
			err = errors.Join(err, os.Remove(path), os.Symlink(elsewhere, path))
		}
		return info, err
	}
	if err := db.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "is a symbolic link") {
		t.Errorf("read: %v", err)
	}
	if info, err := os.Stat(elsewhere); err != nil || info.Size() != 0 {
		t.Errorf("the file behind the link: %v %v", info, err)
	}
	_ = db.Close() // its file is gone
}

// A link of our own in the path of the directory is no other's choice.
func TestALinkToTheDirectory(t *testing.T) {
	link := filepath.Join(t.TempDir(), "state")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		db, err := openTable(t, filepath.Join(link, "sub", "x.db"))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Ping(t.Context()), db.Backup(t.Context(), filepath.Join(t.TempDir(), "copy")), db.Close()); err != nil {
			t.Error(err)
		}
	}
}

// The open of a file that another program holds a lease on waits for that program, or for 45 seconds
// (/proc/sys/fs/lease-break-time). A call waits only until its context ends.
func TestAnOpenThatWaitsEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	db, err := openTable(t, path)
	if err == nil {
		err = db.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	leasetest.Hold(t, path)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	again, err := Open(ctx, Options{Path: path, AppID: 7, Migrations: []string{"CREATE TABLE t (x TEXT)"}})
	if err == nil {
		_ = again.Close()
	}
	if adapters.CodeOf(err) != adapters.CodeTimeout {
		t.Errorf("the open ended with %v", err)
	}
	// With O_NONBLOCK, the open says that the lease still holds (open(2)): Open did not wait for its end.
	if fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != unix.EWOULDBLOCK {
		t.Errorf("the lease is over when the call returns: descriptor %d, %v", fd, err)
	}
}

// On a file system whose server is dead, the look at the file never returns. The calls that wait with it
// are bounded, and each returns when its context ends.
func TestAFileSystemThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "x.db")
		db, err := openTable(t, path)
		if err != nil {
			t.Fatal(err)
		}
		dead := make(chan struct{})
		var looking atomic.Int32
		db.look = func(path string) (fs.FileInfo, error) {
			looking.Add(1)
			<-dead
			looking.Add(-1)
			return os.Lstat(path)
		}
		calls := map[string]func(context.Context) error{
			"read":   db.Ping,
			"write":  func(ctx context.Context) error { return db.Write(ctx, func(*sql.Tx) error { return nil }) },
			"backup": func(ctx context.Context) error { return db.Backup(ctx, path+".copy") },
		}
		for range 3 * Readers {
			for name, call := range calls {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if err := call(ctx); adapters.CodeOf(err) != adapters.CodeTimeout {
					t.Errorf("%s: %v", name, err)
				}
				cancel()
			}
		}
		synctest.Wait()
		if n := looking.Load(); n != Readers+2 {
			t.Errorf("%d calls wait for the file system", n)
		}
		close(dead)
		for name, call := range calls {
			if err := call(t.Context()); err != nil {
				t.Errorf("%s, after the server has come back: %v", name, err)
			}
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A view in place of a table can be a query without end, and so can a trigger.
func TestViewsAndTriggersAreRefused(t *testing.T) {
	for _, statement := range []string{
		"ALTER TABLE t RENAME TO t2; CREATE VIEW t AS SELECT x FROM t2",
		"CREATE TRIGGER more AFTER INSERT ON t BEGIN DELETE FROM t; END",
	} {
		path := filepath.Join(t.TempDir(), "x.db")
		db, err := openTable(t, path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		foreign(t, path, "INSERT INTO t VALUES ('small'); "+statement)
		write := db.Write(t.Context(), func(tx *sql.Tx) error {
			_, err := tx.Exec("INSERT INTO t VALUES ('more')")
			return err
		})
		for _, err := range []error{db.largest(t), write} {
			if err == nil || !strings.Contains(err.Error(), "views or triggers") {
				t.Errorf("%s: %v", statement, err)
			}
		}
	}
}

// Other programs of our user can write any version into the file.
func TestAVersionOfAnotherIsRefused(t *testing.T) {
	for _, version := range []string{"-1", "-2147483648", "2", "2147483647"} {
		path := filepath.Join(t.TempDir(), "a.db")
		db, err := openTable(t, path)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		foreign(t, path, "PRAGMA user_version = "+version)
		if _, err := openTable(t, path); !errors.Is(err, adapters.ErrUnavailable) {
			t.Errorf("schema %s: %v", version, err)
		}
	}
}

func TestAPanicEndsItsTransaction(t *testing.T) {
	db, err := openTable(t, filepath.Join(t.TempDir(), "a.db"))
	if err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = db.Write(t.Context(), func(*sql.Tx) error { panic("a defect") })
	}()
	if err := db.Write(t.Context(), func(*sql.Tx) error { return nil }); err != nil {
		t.Error(err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// A call that runs while the database is closed ends well. Close waits for it, and no further call begins:
// whoever replaces the file next must not find a log beside it. Close does not wait for ever.
func TestCloseWaitsForRunningCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, hangs := range []bool{false, true} {
			path := filepath.Join(t.TempDir(), "x.db")
			db, err := openTable(t, path)
			if err != nil {
				t.Fatal(err)
			}
			written, closed, release := make(chan error, 1), make(chan error, 1), make(chan struct{})
			go func() {
				written <- db.Write(t.Context(), func(tx *sql.Tx) error {
					<-release
					_, err := tx.Exec("INSERT INTO t VALUES ('late')")
					return err
				})
			}()
			synctest.Wait()
			go func() { closed <- db.Close() }()
			synctest.Wait()
			if err := db.Ping(t.Context()); adapters.CodeOf(err) != adapters.CodeUnavailable {
				t.Errorf("a call while the database is being closed: %v", err)
			}
			if hangs {
				time.Sleep(closeWait)
				synctest.Wait()
			}
			if len(closed) > 0 != hangs {
				t.Errorf("a call hangs %v, and Close has returned %v", hangs, len(closed) > 0)
			}
			close(release)
			if err := errors.Join(<-written, <-closed); err != nil {
				t.Errorf("the call, and Close: %v", err)
			}
			if _, err := os.Stat(path + "-wal"); !hangs && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the log is left: %v", err)
			}
		}
	})
}

// An error of a full file system names the file, and tells if inodes have run out and not space.
func TestAFullFileSystem(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to mount a tmpfs")
	}
	const noInode = "no free inode"
	for options, want := range map[string]string{"size=256k": ": the disk is full", "nr_inodes=1": noInode, "nr_inodes=2": noInode} { // the root directory is an inode
		t.Run(options, func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
				t.Skip("needs root: cannot mount a tmpfs: ", err)
			}
			defer func() {
				if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			}()
			path := filepath.Join(dir, "x.db")
			db, err := Open(t.Context(), Options{Path: path, AppID: 7, Migrations: []string{"CREATE TABLE t (x)"}})
			if err == nil {
				defer db.Close()
				err = db.Write(t.Context(), func(tx *sql.Tx) error {
					_, err := tx.Exec("INSERT INTO t VALUES (zeroblob(1000000))")
					return err
				})
			}
			if adapters.CodeOf(err) != adapters.CodeUnavailable || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), want) ||
				strings.Contains(err.Error(), noInode) != (want == noInode) {
				t.Errorf("got %v", err)
			}
		})
	}
}
