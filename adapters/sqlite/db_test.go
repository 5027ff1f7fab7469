package sqlite

import (
	"database/sql"
	"os"
	"path/filepath"
	"testing"
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
		for _, suffix := range []string{"", "-wal", "-shm"} {
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
