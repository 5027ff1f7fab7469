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
		Title: new("new"), Priority: new(0), Tags: &[]string{"z", "a"}, IfVersion: 1,
	}))
	if got.Title != "new" || got.Priority != 0 || !slices.Equal(got.Tags, []string{"a", "z"}) || got.Version != 2 || got.Description != e.Description {
		t.Errorf("updated: %+v", got)
	}
	if same := ok[adapters.Bead](t, "no change")(b.Update(ctx, e.ID, adapters.BeadChange{Title: new("new")})); same.Version != 2 {
		t.Errorf("a version for nothing: %+v", same)
	}
	_, err := b.Update(ctx, e.ID, adapters.BeadChange{Title: new("x"), IfVersion: 1})
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

func beadsDeps(t *testing.T, ctx context.Context, b adapters.Beads) {
	add := func(from, to, kind string) {
		t.Helper()
		ok[adapters.Dep](t, "addDep")(b.AddDep(ctx, adapters.Dep{From: from, To: to, Type: kind}))
	}
	isReady := func(id string) bool { return slices.Contains(readyIDs(t, ctx, b, adapters.ReadyFilter{}), id) }
	a, x := epic(t, ctx, b, "a"), epic(t, ctx, b, "x")
	kid := child(t, ctx, b, a.ID, "kid of a")
	add(a.ID, x.ID, "")
	add(a.ID, x.ID, "blocks") // again: no change
	shown := ok[adapters.Bead](t, "show")(b.Show(ctx, a.ID))
	if len(shown.Deps) != 1 || shown.Deps[0].Type != adapters.DepBlocks || !slices.Equal(shown.BlockedBy, []string{x.ID}) || shown.Version != 2 {
		t.Errorf("blocked: %+v", shown)
	}
	if k := ok[adapters.Bead](t, "show")(b.Show(ctx, kid.ID)); isReady(kid.ID) || !slices.Equal(k.BlockedBy, []string{x.ID}) {
		t.Errorf("a blocked parent does not block its child: %+v", k)
	}
	if !isReady(x.ID) {
		t.Error("the blocker is not ready")
	}
	ok[adapters.Bead](t, "close")(b.Close(ctx, x.ID, ""))
	if !isReady(kid.ID) {
		t.Error("not released by the close")
	}
	ok[adapters.Bead](t, "reopen")(b.Reopen(ctx, x.ID))
	if err := b.RemoveDep(ctx, adapters.Dep{From: a.ID, To: x.ID}); err != nil || !isReady(kid.ID) {
		t.Errorf("not released by removal: %v", err)
	}
	if err := b.RemoveDep(ctx, adapters.Dep{From: a.ID, To: x.ID}); err != nil {
		t.Errorf("removed twice: %v", err)
	}

	plan, fallback := epic(t, ctx, b, "plan"), epic(t, ctx, b, "fallback")
	add(fallback.ID, plan.ID, adapters.DepConditionalBlocks)
	ok[adapters.Bead](t, "close")(b.Close(ctx, plan.ID, "done"))
	if isReady(fallback.ID) {
		t.Error("conditional-blocks was released by a success")
	}
	ok[adapters.Bead](t, "reopen")(b.Reopen(ctx, plan.ID))
	ok[adapters.Bead](t, "close")(b.Close(ctx, plan.ID, "Failed"))
	if !isReady(fallback.ID) {
		t.Error("conditional-blocks was not released by a failure")
	}

	fan, gather := epic(t, ctx, b, "fan"), epic(t, ctx, b, "gather")
	k1, k2 := child(t, ctx, b, fan.ID, "1"), child(t, ctx, b, fan.ID, "2")
	add(gather.ID, fan.ID, adapters.DepWaitsFor)
	ok[adapters.Bead](t, "close")(b.Close(ctx, k1.ID, ""))
	if isReady(gather.ID) {
		t.Error("waits-for did not wait for the second child")
	}
	ok[adapters.Bead](t, "close")(b.Close(ctx, k2.ID, ""))
	if !isReady(gather.ID) {
		t.Error("waits-for waits on")
	}

	r1, r2 := epic(t, ctx, b, "r1"), epic(t, ctx, b, "r2")
	add(r1.ID, r2.ID, "related")
	add(r2.ID, r1.ID, "caused-by") // informs, so no cycle
	if !isReady(r1.ID) || !isReady(r2.ID) {
		t.Error("an informing edge blocks")
	}
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
	dry := ok[adapters.ImportResult](t, "dry run")(load(file, true))
	if dry.Created != 3 || !dry.DryRun {
		t.Errorf("dry run: %+v", dry)
	}
	_, err := b.Show(ctx, "bd-1")
	want(t, "after a dry run", err, adapters.CodeNotFound)
	if r := ok[adapters.ImportResult](t, "import")(load(file, false)); r.Created != 3 || r.Updated != 0 {
		t.Errorf("import: %+v", r)
	}
	kid := ok[adapters.Bead](t, "show")(b.Show(ctx, "bd-1.3"))
	if kid.Status != adapters.BeadClaimed || kid.Actor != "ann" || kid.ParentID != "bd-1" || len(kid.Deps) != 1 {
		t.Errorf("kid: %+v", kid)
	}
	if done := ok[adapters.Bead](t, "show")(b.Show(ctx, "bd-2")); done.Outcome != "fixed" || done.Kind != "bug" {
		t.Errorf("done: %+v", done)
	}
	if next := child(t, ctx, b, "bd-1", "next"); next.ID != "bd-1.4" {
		t.Errorf("a child's number was used twice or skipped: %s", next.ID)
	}
	if r := ok[adapters.ImportResult](t, "again")(load(file, false)); r.Unchanged != 3 {
		t.Errorf("import again: %+v", r)
	}
	newer := strings.Replace(strings.Replace(file, "from bd", "newer", 1), `"updated_at":"2026-01-02T03:04:05Z","labels"`, `"updated_at":"2030-01-02T03:04:05Z","labels"`, 1)
	if r := ok[adapters.ImportResult](t, "newer")(load(newer, false)); r.Updated != 1 || r.Unchanged != 2 {
		t.Errorf("newer: %+v", r)
	}
	var out bytes.Buffer
	if err := b.Export(ctx, &out); err != nil || !strings.Contains(out.String(), `"estimated_minutes":30`) || !strings.Contains(out.String(), `"title":"newer"`) {
		t.Errorf("unknown fields are lost (%v):\n%s", err, out.String())
	}
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
