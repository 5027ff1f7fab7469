package memory

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
)

// fileID is "mem1" as PRAGMA application_id: a file of another program is refused.
const fileID = 0x6d656d31

// fileMigrations change the file from the version of their index to the next; user_version is the
// number of applied ones. A published migration never changes.
//
// Ids are never used twice (AUTOINCREMENT), so an id in a slab or a cursor always means the same
// entry. value is the last column: scans read the columns before it, and SQLite reads overflow
// pages only as far as needed.
var fileMigrations = []string{`
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

// loadSecret reads the key of cursors, made once per file.
func (b *file) loadSecret(ctx context.Context) error {
	return b.db.Write(ctx, func(tx *sql.Tx) error {
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
