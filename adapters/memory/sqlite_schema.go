package memory

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// sqliteMigrations bring the file from the version of their index to the next;
// user_version is how many have run. Published ones are never changed.
//
// Ids are never used twice (AUTOINCREMENT), so that an id in a slab or a cursor
// means one entry for ever. value comes last in its row: what scans read lies
// before it, and SQLite follows overflow pages only as far as it must.
var sqliteMigrations = []string{`
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE namespaces (
  id       INTEGER PRIMARY KEY AUTOINCREMENT,
  name     TEXT NOT NULL UNIQUE,
  embedder TEXT NOT NULL DEFAULT '',
  dim      INTEGER NOT NULL DEFAULT 0,
  rev      INTEGER NOT NULL DEFAULT 0,
  floor    INTEGER NOT NULL DEFAULT 0,
  entries  INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE entries (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  ns         INTEGER NOT NULL REFERENCES namespaces(id),
  rev        INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  words      INTEGER NOT NULL,
  key        TEXT NOT NULL,
  embedding  BLOB NOT NULL,
  stored_at  INTEGER NOT NULL,
  size       INTEGER NOT NULL,
  metadata   TEXT NOT NULL,
  value      TEXT NOT NULL,
  UNIQUE (ns, key)
);
CREATE INDEX entries_rev ON entries (ns, rev);
CREATE INDEX entries_live ON entries (ns, expires_at, words);
CREATE INDEX entries_expiry ON entries (expires_at) WHERE expires_at > 0;
CREATE TABLE postings (
  ns         INTEGER NOT NULL,
  term       INTEGER NOT NULL,
  entry      INTEGER NOT NULL,
  tf         INTEGER NOT NULL,
  words      INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  PRIMARY KEY (ns, term, entry)
) WITHOUT ROWID;
CREATE INDEX postings_entry ON postings (entry);
CREATE TABLE tombstones (
  ns    INTEGER NOT NULL,
  rev   INTEGER NOT NULL,
  entry INTEGER NOT NULL,
  PRIMARY KEY (ns, rev, entry)
) WITHOUT ROWID;
`}

// migrate brings the file up to date, all in one transaction. A file of a newer
// program is refused, one of somebody else's too.
func (b *sqlite) migrate(ctx context.Context) error {
	return b.write(ctx, func(tx *sql.Tx) error {
		var version int
		if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
			return err
		}
		switch {
		case version > len(sqliteMigrations):
			return adapters.Errorf(adapters.CodeContractMismatch,
				"the memory file has schema %d, this program knows up to %d", version, len(sqliteMigrations)).
				With("slot", adapters.SlotMemory, "want", len(sqliteMigrations), "have", version)
		case version == 0:
			var tables int
			if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
				return err
			}
			if tables > 0 {
				return errors.New("the file is a database of something else")
			}
		}
		for _, m := range sqliteMigrations[version:] {
			if _, err := tx.ExecContext(ctx, m); err != nil {
				return err
			}
		}
		if version == len(sqliteMigrations) {
			return nil
		}
		_, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", len(sqliteMigrations)))
		return err
	})
}

// loadSecret reads the key of cursors, made once per file.
func (b *sqlite) loadSecret(ctx context.Context) error {
	return b.write(ctx, func(tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = 'cursor_key'").Scan(&b.key)
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		b.key = make([]byte, 32)
		// crypto/rand.Read never fails: it ends the process instead.
		_, _ = rand.Read(b.key)
		_, err = tx.ExecContext(ctx, "INSERT INTO meta (name, value) VALUES ('cursor_key', ?)", b.key)
		return err
	})
}

// whole finds a file that was cut off. SQLite itself notices only when it comes
// to read a page that is not there. The journal is folded in first, because
// until then the newest pages may lie there; while another process keeps that
// from happening nothing can be said.
func (b *sqlite) whole(ctx context.Context) error {
	var busy, log, done, pages, size int64
	if err := b.writer.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &log, &done); err != nil || busy != 0 {
		return err
	}
	if err := b.writer.QueryRowContext(ctx, "PRAGMA page_count").Scan(&pages); err != nil {
		return err
	}
	if err := b.writer.QueryRowContext(ctx, "PRAGMA page_size").Scan(&size); err != nil {
		return err
	}
	info, err := os.Stat(b.path)
	if err != nil {
		return err
	}
	if info.Size() < pages*size {
		return fmt.Errorf("the file was cut off: it has %d bytes of %d", info.Size(), pages*size)
	}
	return nil
}
