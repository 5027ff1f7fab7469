package beads

import (
	"database/sql"
	"path/filepath"
	"testing"
)

// Other programs of our user can rebuild the table without types. A lease that is a text then never
// ends, and must not keep the watch busy.
func TestALeaseThatIsAText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "beads.db")
	connect := func() *Local {
		l, err := NewLocal(LocalConfig{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		return l
	}
	if err := connect().Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	other, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{
		"PRAGMA writable_schema = 1", "UPDATE sqlite_schema SET sql = replace(replace(sql, 'STRICT', ''), 'lease_until INTEGER', 'lease_until BLOB') WHERE name = 'beads'",
		"PRAGMA writable_schema = RESET",
		"INSERT INTO beads (id, title, kind, depth, status, priority, actor, created_at, updated_at, lease_until) VALUES ('ab-1', 't', 'task', 0, 'claimed', 2, 'a', 1, 1, '5')",
	} {
		if _, err := other.Exec(statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	l := connect()
	if due := l.open.Load().due.Load(); due <= now() {
		t.Errorf("the next lease ends at %d", due)
	}
	if err := l.Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
}
