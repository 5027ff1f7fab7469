package beads

import (
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
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

// Two calls write, and the first one is the last to say when the next lease ends: it has read that
// before the other claimed a bead.
func TestALeaseOfALaterWrite(t *testing.T) {
	l := newLocal(t, filepath.Join(t.TempDir(), "beads.db"))
	if err := l.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := l.open.Load()
	bead, err := l.CreateEpic(t.Context(), adapters.NewBead{Title: "t"})
	if err != nil {
		t.Fatal(err)
	}
	var early ending
	if err := o.db.Write(t.Context(), func(tx *sql.Tx) error {
		early, err = o.nextDue(t.Context(), tx)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	claimed, err := l.Claim(t.Context(), bead.ID, "a", adapters.ClaimOpt{Lease: adapters.MaxLease})
	if err != nil {
		t.Fatal(err)
	}
	o.setDue(early)
	if due := o.due.Load(); due != claimed.LeaseUntil.UnixMilli() {
		t.Errorf("the next lease ends at %d, want %d", due, claimed.LeaseUntil.UnixMilli())
	}
	if err := l.Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
}
