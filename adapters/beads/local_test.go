package beads

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	contract.CrashChild(crashChild)
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
	long := strings.Repeat("x", 127) // a child of it would have an id that no request can name
	if _, err := l.Import(t.Context(), strings.NewReader(importLine(long, "2025-01-01T00:00:00Z")), adapters.ImportOpt{}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.CreateChild(t.Context(), adapters.NewBead{Title: "new", ParentID: long}); adapters.CodeOf(err) != adapters.CodeValidation {
		t.Errorf("a child of a bead with a long id: %v", err)
	}
	for parent, want := range map[string]string{"bd-1": "bd-1.2", "bd-2": "bd-2.1"} {
		b, err := l.CreateChild(t.Context(), adapters.NewBead{Title: "new", ParentID: parent})
		if err != nil || b.ID != want {
			t.Errorf("a child of %s: %q %v, want %s", parent, b.ID, err, want)
		}
	}
}

// importLine is a bead of an export, as agentinit and bd write it.
func importLine(id, updated string, edges ...string) string {
	var deps []string
	for _, e := range edges {
		kind, to, _ := strings.Cut(e, " ")
		deps = append(deps, fmt.Sprintf(`{"issue_id":%q,"depends_on_id":%q,"type":%q}`, id, to, kind))
	}
	return fmt.Sprintf(`{"id":%q,"title":" ","status":"open","priority":2,"issue_type":"task","created_at":"2025-01-01T00:00:00Z","updated_at":%q,"dependencies":[%s]}`+"\n",
		id, updated, strings.Join(deps, ","))
}

// An import is judged by the graph that there is after it, not by edges and parents that it replaces,
// nor by the file alone.
func TestImportIntoAGraph(t *testing.T) {
	const old, fresh = "2025-01-01T00:00:00Z", "2025-02-01T00:00:00Z"
	chain := func(from, to int) string {
		var file strings.Builder
		for i := from; i <= to; i++ {
			edges := []string{fmt.Sprintf("parent-child n%d", i-1)}
			if i == from {
				edges = nil
			}
			file.WriteString(importLine(fmt.Sprintf("n%d", i), old, edges...))
		}
		return file.String()
	}
	for _, tc := range []struct {
		name, stored, file string
		code               adapters.Code
		path               []string
	}{
		{"an edge is turned round", importLine("a", old) + importLine("b", old, "blocks a"), importLine("a", fresh, "blocks b") + importLine("b", fresh), "", nil},
		{"a parent that waits for the bead", importLine("kid", old) + importLine("p", old, "blocks q") + importLine("q", old, "blocks kid"),
			importLine("kid", fresh, "parent-child p"), adapters.CodeDependencyCycle, []string{"kid", "p", "q", "kid"}},
		{"a bead that waits for its parent", importLine("kid", old, "blocks q") + importLine("p", old) + importLine("q", old, "blocks p"),
			importLine("kid", fresh, "parent-child p", "blocks q"), adapters.CodeDependencyCycle, []string{"kid", "q", "p", "kid"}},
		{"a child of what waits for the children", importLine("kid", old, "blocks q") + importLine("p", old) + importLine("q", old, "waits-for p"),
			importLine("kid", fresh, "parent-child p", "blocks q"), adapters.CodeDependencyCycle, []string{"kid", "q", "p", "kid"}},
		{"the same by the parent alone", importLine("kid", old) + importLine("in", old, "parent-child kid", "blocks q") + importLine("p", old) + importLine("q", old, "waits-for p"),
			importLine("kid", fresh, "parent-child p"), adapters.CodeDependencyCycle, []string{"p", "kid", "in", "q", "p"}},
		{"parents in a circle", importLine("x", old) + importLine("y", old, "parent-child x"), importLine("x", fresh, "parent-child y"), adapters.CodeValidation, nil},
		{"too deep below a stored bead", chain(0, 8), importLine("n9", old, "parent-child n8"), adapters.CodeValidation, nil},
		{"stored beads come too deep", chain(0, 4) + chain(5, 9), importLine("n5", fresh, "parent-child n4"), adapters.CodeValidation, nil},
		{"stored beads come to the last level", chain(0, 3) + chain(4, 8), importLine("n4", fresh, "parent-child n3"), "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLocal(t, filepath.Join(t.TempDir(), "beads.db"))
			if err := l.Connect(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Disconnect(context.Background()) }()
			if _, err := l.Import(t.Context(), strings.NewReader(tc.stored), adapters.ImportOpt{}); err != nil {
				t.Fatal(err)
			}
			_, err := l.Import(t.Context(), strings.NewReader(tc.file), adapters.ImportOpt{})
			if tc.code == "" {
				if err != nil {
					t.Error(err)
				}
				reimports(t, l)
				return
			}
			if err == nil {
				t.Fatalf("taken, want %s", tc.code)
			}
			e := adapters.AsError(err)
			if path, _ := e.Fields["path"].([]string); e.Code != tc.code || e.Fields["line"] != 1 || !slices.Equal(path, tc.path) {
				t.Errorf("%v, path %v, want %s %v", err, path, tc.code, tc.path)
			}
		})
	}
}

// reimports checks that an empty box takes the export of l.
func reimports(t *testing.T, l *Local) {
	t.Helper()
	var file strings.Builder
	if err := l.Export(t.Context(), &file); err != nil {
		t.Fatal(err)
	}
	other := newLocal(t, filepath.Join(t.TempDir(), "other.db"))
	if err := other.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Disconnect(context.Background()) }()
	if _, err := other.Import(t.Context(), strings.NewReader(file.String()), adapters.ImportOpt{}); err != nil {
		t.Errorf("an empty box does not take the export: %v", err)
	}
	var again strings.Builder
	if err := other.Export(t.Context(), &again); err != nil || again.String() != file.String() {
		t.Errorf("the export of the other box differs: %v", err)
	}
}

// Whatever a box makes, another one takes from its export: a bead of the longest texts with as many
// comments and dependencies as it may have, and a title of blanks.
func TestExportOfTheLargestBead(t *testing.T) {
	longest := func(n int) string { return strings.Repeat("\x01", n) } // 6 bytes each in JSON
	for name, grow := range map[string]func(ctx context.Context, l *Local, i int) error{
		"comments": func(ctx context.Context, l *Local, _ int) error {
			_, err := l.Comment(ctx, "bd-1", longest(adapters.MaxBeadComment))
			return err
		},
		"dependencies": func(ctx context.Context, l *Local, i int) error {
			_, err := l.AddDep(ctx, adapters.Dep{From: "bd-1", To: "bd-1", Type: fmt.Sprintf("%02d%s", i, longest(adapters.MaxDepType-2))})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLocal(t, filepath.Join(t.TempDir(), "beads.db"))
			if err := l.Connect(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Disconnect(context.Background()) }()
			// The line is almost as long already as it may become.
			edge := fmt.Sprintf(`{"depends_on_id":"bd-1","type":"related","metadata":"%s"}`, strings.Repeat("x", maxGrownLine-16<<10))
			file := strings.Replace(importLine("bd-1", "2025-01-01T00:00:00Z"), "[]", "["+edge+"]", 1)
			if _, err := l.Import(t.Context(), strings.NewReader(file), adapters.ImportOpt{}); err != nil {
				t.Fatal(err)
			}
			ctx := adapters.WithMeta(t.Context(), adapters.Meta{Actor: longest(adapters.MaxBeadActor), Admin: true})
			var err error
			for i := 0; err == nil; i++ {
				err = grow(ctx, l, i)
			}
			if adapters.CodeOf(err) != adapters.CodePayloadTooLarge {
				t.Fatal(err)
			}
			text, tags := longest(adapters.MaxBeadDescription), make([]string, adapters.MaxBeadTags)
			for i := range tags {
				tags[i] = fmt.Sprintf("%02d%s", i, longest(adapters.MaxBeadTag-2))
			}
			if _, err := l.Update(ctx, "bd-1", adapters.BeadChange{Description: &text, Tags: &tags}); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Claim(ctx, "bd-1", longest(adapters.MaxBeadActor)); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Close(ctx, "bd-1", longest(adapters.MaxBeadOutcome), adapters.CloseOpt{}); err != nil {
				t.Fatal(err)
			}
			reimports(t, l)
		})
	}
}

func TestImportNamesTheWrongMember(t *testing.T) {
	l := newLocal(t, filepath.Join(t.TempDir(), "beads.db"))
	if err := l.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Disconnect(context.Background()) }()
	for line, want := range map[string]string{
		`{"id":1}`: "line 1: id: must not be a JSON number",
		`{"id":"a","title":"t","created_at":"today"}`: `line 1: line: is not JSON of the contract: "today" is no time of RFC 3339, such as 2026-01-02T15:04:05Z`,
	} {
		_, err := l.Import(t.Context(), strings.NewReader(line), adapters.ImportOpt{})
		if err == nil || adapters.AsError(err).Message != want {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
}
