package contract

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

func beadsUpdate(t *testing.T, ctx context.Context, b adapters.Beads) {
	e := epic(t, ctx, b, "old")
	got := ok[adapters.Bead](t, "update")(b.Update(ctx, e.ID, adapters.BeadChange{
		Title: new("new"), Priority: new(0), Tags: &[]string{"z", "a"}, IfVersions: []int64{7, 1},
	}))
	changed := e
	changed.Title, changed.Priority, changed.Tags, changed.Version, changed.UpdatedAt = "new", 0, []string{"a", "z"}, 2, got.UpdatedAt
	equal(t, "updated", got, changed)
	gives(t, "no change", changed)(b.Update(ctx, e.ID, adapters.BeadChange{Title: new("new")}))
	_, err := b.Update(ctx, e.ID, adapters.BeadChange{Title: new("x"), IfVersions: []int64{1, 7}})
	if e := want(t, "stale version", err, adapters.CodePreconditionFailed); fmt.Sprint(e.Fields["current"]) != "2" {
		t.Errorf("fields: %v", e.Fields)
	}
	until := adapters.At(time.Now().Add(time.Hour))
	if d := ok[adapters.Bead](t, "defer")(b.Update(ctx, e.ID, adapters.BeadChange{DeferUntil: &until})); d.Status != adapters.BeadDeferred || d.DeferUntil != until {
		t.Errorf("deferred: %+v", d)
	}
	if d := ok[adapters.Bead](t, "undefer")(b.Update(ctx, e.ID, adapters.BeadChange{DeferUntil: &adapters.Time{}})); d.Status != adapters.BeadOpen || !d.DeferUntil.IsZero() {
		t.Errorf("open again: %+v", d)
	}
	ok[adapters.Bead](t, "claim")(b.Claim(as(ctx, "ann"), e.ID, "ann"))
	_, err = b.Update(as(ctx, "bob"), e.ID, adapters.BeadChange{Title: new("bob's")})
	if e.CreatedBy != "bob" {
		want(t, "update of another's claim", err, adapters.CodePermissionDenied)
	}
}

func beadsRelease(t *testing.T, ctx context.Context, b adapters.Beads) {
	e := epic(t, ctx, b, "x")
	ok[adapters.Bead](t, "claim")(b.Claim(as(ctx, "ann"), e.ID, "ann"))
	_, err := b.Release(as(ctx, "bob"), e.ID, "bob")
	want(t, "release of another's claim", err, adapters.CodePermissionDenied)
	r := ok[adapters.Bead](t, "release")(b.Release(as(ctx, "ann"), e.ID, "ann"))
	if r.Status != adapters.BeadOpen || r.Actor != "" || !r.ClaimedAt.IsZero() {
		t.Errorf("released: %+v", r)
	}
	if again := ok[adapters.Bead](t, "release again")(b.Release(as(ctx, "ann"), e.ID, "ann")); again.Version != r.Version {
		t.Errorf("released twice: %+v", again)
	}
	ok[adapters.Bead](t, "claim")(b.Claim(as(ctx, "bob"), e.ID, "bob"))
	ok[adapters.Bead](t, "close")(b.Close(as(ctx, "bob"), e.ID, "failed"))
	o := ok[adapters.Bead](t, "reopen")(b.Reopen(ctx, e.ID))
	if o.Status != adapters.BeadOpen || o.Outcome != "" || o.Actor != "" || !o.ClosedAt.IsZero() {
		t.Errorf("reopened: %+v", o)
	}
	if again := ok[adapters.Bead](t, "reopen again")(b.Reopen(ctx, e.ID)); again.Version != o.Version {
		t.Errorf("reopened twice: %+v", again)
	}
}

// graph adds dependencies between beads and checks which beads are ready.
type graph struct {
	t   *testing.T
	ctx context.Context
	b   adapters.Beads
}

func (g graph) add(from, to adapters.Bead, kind string) {
	g.t.Helper()
	ok[adapters.Dep](g.t, "addDep")(g.b.AddDep(g.ctx, adapters.Dep{From: from.ID, To: to.ID, Type: kind}))
}

func (g graph) close(one adapters.Bead, outcome string) {
	g.t.Helper()
	ok[adapters.Bead](g.t, "close")(g.b.Close(g.ctx, one.ID, outcome))
}

func (g graph) reopen(one adapters.Bead) {
	g.t.Helper()
	ok[adapters.Bead](g.t, "reopen")(g.b.Reopen(g.ctx, one.ID))
}

func (g graph) ready(when string, one adapters.Bead, want bool) {
	g.t.Helper()
	equal(g.t, one.Title+" is ready "+when, slices.Contains(readyIDs(g.t, g.ctx, g.b, adapters.ReadyFilter{}), one.ID), want)
}

func beadsDeps(t *testing.T, ctx context.Context, b adapters.Beads) {
	g := graph{t, ctx, b}
	a, x := epic(t, ctx, b, "a"), epic(t, ctx, b, "x")
	kid := child(t, ctx, b, a.ID, "kid of a")
	g.add(a, x, "")
	g.add(a, x, "blocks") // again: no change
	shown := ok[adapters.Bead](t, "show")(b.Show(ctx, a.ID))
	equal(t, "edges", shown.Deps, []adapters.Dep{{From: a.ID, To: x.ID, Type: adapters.DepBlocks}})
	equal(t, "blockers", shown.BlockedBy, []string{x.ID})
	equal(t, "version", shown.Version, 2)
	equal(t, "blockers of the child", ok[adapters.Bead](t, "show")(b.Show(ctx, kid.ID)).BlockedBy, []string{x.ID})
	g.ready("while its parent is blocked", kid, false)
	g.ready("as a blocker", x, true)
	g.close(x, "")
	g.ready("after the close of the blocker", kid, true)
	g.reopen(x)
	for range 2 { // a second removal changes nothing
		succeed(t, "remove", b.RemoveDep(ctx, adapters.Dep{From: a.ID, To: x.ID}))
		g.ready("after the removal of the edge", kid, true)
	}

	plan, fallback := epic(t, ctx, b, "plan"), epic(t, ctx, b, "fallback")
	g.add(fallback, plan, adapters.DepConditionalBlocks)
	g.close(plan, "done")
	g.ready("after a success of what it is conditional on", fallback, false)
	g.reopen(plan)
	g.close(plan, "Failed")
	g.ready("after a failure of what it is conditional on", fallback, true)

	fan, gather := epic(t, ctx, b, "fan"), epic(t, ctx, b, "gather")
	k1, k2 := child(t, ctx, b, fan.ID, "1"), child(t, ctx, b, fan.ID, "2")
	g.add(gather, fan, adapters.DepWaitsFor)
	g.close(k1, "")
	g.ready("after the first child that it waits for", gather, false)
	g.close(k2, "")
	g.ready("after the last child that it waits for", gather, true)

	r1, r2 := epic(t, ctx, b, "r1"), epic(t, ctx, b, "r2")
	g.add(r1, r2, "related")
	g.add(r2, r1, "caused-by") // informs, so no cycle
	g.ready("with an edge that informs", r1, true)
	g.ready("with an edge that informs", r2, true)
	_, err := b.AddDep(ctx, adapters.Dep{From: r1.ID, To: "ab-nobody"})
	want(t, "unknown target", err, adapters.CodeNotFound)
	_, err = b.AddDep(ctx, adapters.Dep{From: r1.ID, To: r2.ID, Type: long(51)})
	want(t, "type of 51 bytes", err, adapters.CodeValidation)
	ok[adapters.Dep](t, "type of 50 bytes")(b.AddDep(ctx, adapters.Dep{From: r1.ID, To: r2.ID, Type: long(50)}))
	if c := ok[adapters.BeadComment](t, "comment of 64 KiB")(b.Comment(ctx, r1.ID, long(64<<10))); c.Text != long(64<<10) {
		t.Errorf("a comment of 64 KiB came back as %d bytes", len(c.Text))
	}
	for name, text := range map[string]string{"comment over 64 KiB": long(64<<10 + 1), "empty comment": ""} {
		_, err = b.Comment(ctx, r1.ID, text)
		want(t, name, err, adapters.CodeValidation)
	}
	_, err = b.Update(ctx, r1.ID, adapters.BeadChange{Title: new(long(501))})
	want(t, "title changed to 501", err, adapters.CodeValidation)
	_, err = b.Update(ctx, r1.ID, adapters.BeadChange{Description: new(long(64<<10 + 1))})
	want(t, "description changed to 64 KiB + 1", err, adapters.CodeValidation)
	_, err = b.AddDep(ctx, adapters.Dep{From: r1.ID, To: r2.ID, Type: adapters.DepParentChild})
	want(t, "parent-child", err, adapters.CodeValidation)
}

func beadsCycles(t *testing.T, ctx context.Context, b adapters.Beads) {
	var ids []string
	for i := range 4 {
		ids = append(ids, epic(t, ctx, b, fmt.Sprint(i)).ID)
	}
	for i := range 3 {
		ok[adapters.Dep](t, "addDep")(b.AddDep(ctx, adapters.Dep{From: ids[i], To: ids[i+1]}))
	}
	_, err := b.AddDep(ctx, adapters.Dep{From: ids[3], To: ids[0]})
	e := want(t, "a circle of four", err, adapters.CodeDependencyCycle)
	if p := fmt.Sprint(e.Fields["path"]); p != fmt.Sprint([]string{ids[3], ids[0], ids[1], ids[2], ids[3]}) {
		t.Errorf("path %s", p)
	}
	_, err = b.AddDep(ctx, adapters.Dep{From: ids[0], To: ids[0]})
	want(t, "itself", err, adapters.CodeDependencyCycle)
	kid := child(t, ctx, b, ids[0], "kid")
	_, err = b.AddDep(ctx, adapters.Dep{From: ids[0], To: kid.ID})
	want(t, "parent waits for its child", err, adapters.CodeDependencyCycle)
	_, err = b.AddDep(ctx, adapters.Dep{From: kid.ID, To: ids[0]})
	want(t, "child waits for its parent", err, adapters.CodeDependencyCycle)
	_, err = b.AddDep(ctx, adapters.Dep{From: ids[3], To: kid.ID, Type: adapters.DepConditionalBlocks})
	want(t, "through inheritance", err, adapters.CodeDependencyCycle)
	_, err = b.AddDep(ctx, adapters.Dep{From: ids[3], To: ids[0], Type: adapters.DepWaitsFor})
	want(t, "waits for the children of one that waits for it", err, adapters.CodeDependencyCycle)
	ok[adapters.Dep](t, "not a cycle")(b.AddDep(ctx, adapters.Dep{From: kid.ID, To: ids[3]}))
}

func beadsExport(t *testing.T, ctx context.Context, b adapters.Beads) {
	a := epic(t, ctx, b, "a & <b>", func(in *adapters.NewBead) { in.Tags = []string{"x"} })
	k := child(t, ctx, b, a.ID, "kid")
	ok[adapters.BeadComment](t, "comment")(b.Comment(as(ctx, "ann"), k.ID, "first\nline"))
	ok[adapters.Bead](t, "claim")(b.Claim(as(ctx, "ann"), k.ID, "ann"))
	var one, two bytes.Buffer
	for _, w := range []*bytes.Buffer{&one, &two} {
		if err := b.Export(ctx, w); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("two exports differ")
	}
	lines := strings.Split(strings.TrimSuffix(one.String(), "\n"), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], `{"id":"`+a.ID) {
		t.Fatalf("export:\n%s", one.String())
	}
	for _, part := range []string{`"status":"in_progress"`, `"assignee":"ann"`, `"issue_type":"task"`, `"type":"parent-child"`, `"text":"first\nline"`} {
		if !strings.Contains(lines[1], part) {
			t.Errorf("%s is missing in %s", part, lines[1])
		}
	}
	_, err := b.Comment(ctx, "ab-nobody", "x")
	want(t, "comment", err, adapters.CodeNotFound)
}

func beadsImport(t *testing.T, ctx context.Context, b adapters.Beads) {
	const file = `{"id":"bd-1","title":"from bd","status":"open","priority":1,"issue_type":"feature","created_at":"2026-01-02T03:04:05Z","updated_at":"2026-01-02T03:04:05Z","labels":["x"],"estimated_minutes":30}
{"id":"bd-1.3","title":"kid","status":"in_progress","assignee":"ann","priority":2,"issue_type":"task","created_at":"2026-01-02T03:04:06Z","updated_at":"2026-01-02T03:04:06Z","dependencies":[{"issue_id":"bd-1.3","depends_on_id":"bd-1","type":"parent-child"},{"issue_id":"bd-1.3","depends_on_id":"bd-2","type":"blocks"}],"comments":[{"id":1,"issue_id":"bd-1.3","author":"ann","text":"hi","created_at":"2026-01-02T03:04:07Z"}]}
{"id":"bd-2","title":"done","status":"closed","priority":0,"issue_type":"bug","close_reason":"fixed","created_at":"2026-01-02T03:04:05Z","updated_at":"2026-01-02T03:04:05Z","closed_at":"2026-01-02T03:04:05Z"}
`
	load := func(s string, dry bool) (adapters.ImportResult, error) {
		return b.Import(ctx, strings.NewReader(s), adapters.ImportOpt{DryRun: dry})
	}
	gives(t, "dry run", adapters.ImportResult{Created: 3, DryRun: true})(load(file, true))
	_, err := b.Show(ctx, "bd-1")
	want(t, "after a dry run", err, adapters.CodeNotFound)
	gives(t, "import", adapters.ImportResult{Created: 3})(load(file, false))
	kid := ok[adapters.Bead](t, "show")(b.Show(ctx, "bd-1.3"))
	equal(t, "kid", [3]string{kid.Status, string(kid.Actor), string(kid.ParentID)}, [3]string{adapters.BeadClaimed, "ann", "bd-1"})
	equal(t, "edges of the kid", len(kid.Deps), 1)
	done := ok[adapters.Bead](t, "show")(b.Show(ctx, "bd-2"))
	equal(t, "done", [2]string{string(done.Outcome), done.Kind}, [2]string{"fixed", "bug"})
	equal(t, "the number of the next child", child(t, ctx, b, "bd-1", "next").ID, "bd-1.4")
	gives(t, "import again", adapters.ImportResult{Unchanged: 3})(load(file, false))
	newer := strings.Replace(strings.Replace(file, "from bd", "newer", 1), `"updated_at":"2026-01-02T03:04:05Z","labels"`, `"updated_at":"2030-01-02T03:04:05Z","labels"`, 1)
	gives(t, "newer", adapters.ImportResult{Updated: 1, Unchanged: 2})(load(newer, false))
	var out bytes.Buffer
	succeed(t, "export", b.Export(ctx, &out))
	holds(t, out.String(), facts{
		"an unknown field is kept": strings.Contains(out.String(), `"estimated_minutes":30`),
		"the title is the newer":   strings.Contains(out.String(), `"title":"newer"`),
	})
	for name, bad := range map[string]string{
		"not JSON": "{", "no title": `{"id":"bd-9","status":"open","created_at":"2026-01-02T03:04:05Z","updated_at":"2026-01-02T03:04:05Z"}`,
		"unknown status": strings.Replace(file, `"open"`, `"someday"`, 1), "twice": file + file,
	} {
		_, err := load(`{"id":"bd-8","title":"x","status":"open","created_at":"2026-01-02T03:04:05Z","updated_at":"2026-01-02T03:04:05Z"}`+"\n"+bad, false)
		want(t, name, err, adapters.CodeValidation)
	}
	_, err = b.Show(ctx, "bd-8")
	want(t, "a line before the bad one", err, adapters.CodeNotFound)
}
