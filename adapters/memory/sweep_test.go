package memory

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Other programs of our user can rebuild the table. The removal of expired entries then finds the same
// ones for ever.
func TestEntriesThatCannotBeRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memory.db")
	b, err := openFile(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	other, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	other.SetMaxOpenConns(1)
	for _, statement := range []string{
		"INSERT INTO namespaces (id, name) VALUES (1, 'a')",
		"PRAGMA writable_schema = 1", "UPDATE sqlite_schema SET sql = replace(sql, 'id         INTEGER PRIMARY KEY AUTOINCREMENT', 'id BLOB') WHERE name = 'entries'",
		"PRAGMA writable_schema = RESET",
		`INSERT INTO entries (id, ns, rev, expires_at, words, key, embedding, stored_at, size, metadata, value)
			WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) SELECT CAST(i AS TEXT), 1, i, 1, 0, i, x'', 1, 0, '{}', '' FROM n`,
	} {
		if _, err := other.Exec(statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	if err := errors.Join(other.Close(), b.close(t.Context())); err != nil {
		t.Fatal(err)
	}
	if b, err = openFile(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := b.maintain(ctx, time.Now().UnixMilli()); !errors.Is(err, adapters.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	if err := b.close(t.Context()); err != nil {
		t.Error(err)
	}
}
