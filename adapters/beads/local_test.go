package beads

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(crashEnv); path != "" {
		crashChild(path)
	}
	goleak.VerifyTestMain(m)
}

func newLocal(t testing.TB, path string) *Local {
	t.Helper()
	l, err := NewLocal(LocalConfig{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestContractLocal(t *testing.T) {
	contract.Beads(t, func(t testing.TB) adapters.Beads { return newLocal(t, filepath.Join(t.TempDir(), "beads.db")) })
}

func TestContractOff(t *testing.T) {
	contract.Beads(t, func(testing.TB) adapters.Beads { return adapters.WrapBeads(nil, nil) })
}

// TestBdRoundTrip: an unchanged bead of a bd export is exported as it was imported. A changed bead
// keeps all fields that the box does not know.
func TestBdRoundTrip(t *testing.T) {
	l := newLocal(t, filepath.Join(t.TempDir(), "beads.db"))
	if err := l.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Disconnect(context.Background()) }()
	const created = `"created_at":"2025-11-22T10:00:00.123456789-08:00"`
	lines := []string{
		`{"id":"bd-1","title":"epic","description":"d","status":"open","priority":1,"issue_type":"epic","assignee":"ann",` + created + `,"updated_at":"2025-11-22T10:00:00.123456789-08:00","estimated_minutes":5}`,
		`{"id":"bd-1.1","title":"child","status":"blocked","priority":2,"issue_type":"task",` + created + `,"updated_at":"2025-11-23T10:00:00.5Z","dependencies":[` +
			`{"issue_id":"bd-1.1","depends_on_id":"bd-1","type":"parent-child",` + created + `,"created_by":"ann"},` +
			`{"issue_id":"bd-1.1","depends_on_id":"bd-2","type":"blocks",` + created + `,"created_by":"bob","metadata":"{\"why\":1}","thread_id":"t-1"}]}`,
		`{"id":"bd-2","title":"closed","status":"closed","priority":0,"issue_type":"bug",` + created + `,"updated_at":"2025-11-22T11:00:00Z","closed_at":"2025-11-22T11:00:00.000001Z"}`,
	}
	file := strings.Join(lines, "\n") + "\n"
	if res, err := l.Import(t.Context(), strings.NewReader(file), adapters.ImportOpt{}); err != nil || res.Created != 3 {
		t.Fatalf("%+v %v", res, err)
	}
	export := func() string {
		t.Helper()
		var out strings.Builder
		if err := l.Export(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if got := export(); got != file {
		t.Errorf("got\n%s\nwant\n%s", got, file)
	}
	if res, err := l.Import(t.Context(), strings.NewReader(export()), adapters.ImportOpt{}); err != nil || res.Unchanged != 3 {
		t.Errorf("its own export: %+v %v", res, err)
	}
	// A change of one bead is exported, and its unknown fields stay.
	if _, err := l.Claim(t.Context(), "bd-1.1", "cat"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.AddDep(adapters.WithMeta(t.Context(), adapters.Meta{Actor: "cat"}), adapters.Dep{From: "bd-1.1", To: "bd-1", Type: "related"}); err != nil {
		t.Fatal(err)
	}
	got := strings.Split(export(), "\n")
	if got[0] != lines[0] || got[2] != lines[2] {
		t.Errorf("the others changed:\n%s", strings.Join(got, "\n"))
	}
	var bead struct {
		Status, Assignee string
		Dependencies     []map[string]any
	}
	if err := json.Unmarshal([]byte(got[1]), &bead); err != nil || bead.Status != "in_progress" || bead.Assignee != "cat" || len(bead.Dependencies) != 3 {
		t.Fatalf("%s: %v", got[1], err)
	}
	const at = "2025-11-22T10:00:00.123456789-08:00"
	for i, want := range []map[string]any{
		{"issue_id": "bd-1.1", "depends_on_id": "bd-1", "type": "parent-child", "created_at": at, "created_by": "ann"},
		{"issue_id": "bd-1.1", "depends_on_id": "bd-1", "type": "related", "created_at": bead.Dependencies[1]["created_at"], "created_by": "cat"},
		{"issue_id": "bd-1.1", "depends_on_id": "bd-2", "type": "blocks", "created_at": at, "created_by": "bob", "metadata": `{"why":1}`, "thread_id": "t-1"},
	} {
		if !maps.Equal(bead.Dependencies[i], want) {
			t.Errorf("dependency %d: %v, want %v", i, bead.Dependencies[i], want)
		}
	}
	if s, _ := bead.Dependencies[1]["created_at"].(string); s == "" {
		t.Error("an edge of the box does not say when it was made")
	}
}

// An imported bead keeps its id when it has got another parent. A new child of its former parent gets
// the next number.
func TestChildrenAfterABeadThatHasMoved(t *testing.T) {
	l := newLocal(t, filepath.Join(t.TempDir(), "beads.db"))
	if err := l.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Disconnect(context.Background()) }()
	const rest = `"status":"open","priority":2,"created_at":"2025-11-22T10:00:00Z","updated_at":"2025-11-22T10:00:00Z"`
	file := `{"id":"bd-1","title":"former parent","issue_type":"epic",` + rest + `}
{"id":"bd-2","title":"parent","issue_type":"epic",` + rest + `}
{"id":"bd-1.1","title":"moved","issue_type":"task",` + rest + `,"dependencies":[{"issue_id":"bd-1.1","depends_on_id":"bd-2","type":"parent-child"}]}
`
	if res, err := l.Import(t.Context(), strings.NewReader(file), adapters.ImportOpt{}); err != nil || res.Created != 3 {
		t.Fatalf("%+v %v", res, err)
	}
	for parent, want := range map[string]string{"bd-1": "bd-1.2", "bd-2": "bd-2.1"} {
		b, err := l.CreateChild(t.Context(), adapters.NewBead{Title: "new", ParentID: parent})
		if err != nil || b.ID != want {
			t.Errorf("a child of %s: %q %v, want %s", parent, b.ID, err, want)
		}
	}
}
