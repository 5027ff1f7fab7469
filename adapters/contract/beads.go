package contract

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// beadsCase is one case over a connected, empty store. graph cases run where
// the capability is there.
type beadsCase struct {
	name  string
	graph bool
	run   func(t *testing.T, ctx context.Context, b adapters.Beads)
}

func beadsCases() []beadsCase {
	return []beadsCase{
		{"create and show", false, beadsCreate},
		{"limits", false, beadsLimits},
		{"claim", false, beadsClaim},
		{"close", false, beadsClose},
		{"one winner of many claims", false, beadsRace},
		{"ready order and paging", false, beadsReady},
		{"paging under writes", false, beadsPaging},
		{"unknown ids", false, beadsUnknown},
		{"list and filters", true, beadsList},
		{"update", true, beadsUpdate},
		{"release and reopen", true, beadsRelease},
		{"dependencies", true, beadsDeps},
		{"cycles", true, beadsCycles},
		{"comments and export", true, beadsExport},
		{"import", true, beadsImport},
	}
}

// Beads runs the suite of the slot. newAdapter makes a fresh, unconnected
// adapter over an empty store.
func Beads(t *testing.T, newAdapter func(testing.TB) adapters.Beads) {
	t.Run("life", func(t *testing.T) {
		a := newAdapter(t)
		describe(t, a, adapters.SlotBeads)
		w := adapters.WrapBeads(a, nil)
		life(t, a, func(ctx context.Context) error { _, err := w.Show(ctx, "ab-nobody"); return err })
	})
	if !newAdapter(t).Enabled() {
		t.Run("off", func(t *testing.T) { beadsOff(t, adapters.WrapBeads(newAdapter(t), nil)) })
		return
	}
	for _, c := range beadsCases() {
		t.Run(c.name, func(t *testing.T) {
			a := newAdapter(t)
			ctx := connect(t, a)
			if c.graph && !slices.Contains(a.Capabilities(), adapters.CapGraph) {
				_, err := adapters.WrapBeads(a, nil).List(ctx, adapters.BeadFilter{})
				want(t, "list without the capability", err, adapters.CodeUnsupported)
				return
			}
			c.run(t, ctx, adapters.WrapBeads(a, nil))
		})
	}
}

func beadsOff(t *testing.T, b adapters.Beads) {
	ctx := context.Background()
	one := func(_ any, err error) error { return err }
	for name, err := range map[string]error{
		"createEpic": one(b.CreateEpic(ctx, adapters.NewBead{Title: "x"})), "createChild": one(b.CreateChild(ctx, adapters.NewBead{})),
		"claim": one(b.Claim(ctx, "ab-1", "a")), "close": one(b.Close(ctx, "ab-1", "")), "getReady": one(b.GetReady(ctx, adapters.ReadyFilter{})),
		"show": one(b.Show(ctx, "ab-1")), "list": one(b.List(ctx, adapters.BeadFilter{})), "update": one(b.Update(ctx, "ab-1", adapters.BeadChange{})),
		"release": one(b.Release(ctx, "ab-1", "a")), "reopen": one(b.Reopen(ctx, "ab-1")), "addDep": one(b.AddDep(ctx, adapters.Dep{})),
		"removeDep": b.RemoveDep(ctx, adapters.Dep{}), "comment": one(b.Comment(ctx, "ab-1", "x")),
		"export": b.Export(ctx, &bytes.Buffer{}), "import": one(b.Import(ctx, strings.NewReader(""), adapters.ImportOpt{})),
	} {
		if e := want(t, name, err, adapters.CodeDisabled); e.Retryable || e.HTTPStatus() != 501 || e.Method != name {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

func epic(t *testing.T, ctx context.Context, b adapters.Beads, title string, more ...func(*adapters.NewBead)) adapters.Bead {
	t.Helper()
	in := adapters.NewBead{Title: title}
	for _, m := range more {
		m(&in)
	}
	return ok[adapters.Bead](t, "create "+title)(b.CreateEpic(ctx, in))
}

func child(t *testing.T, ctx context.Context, b adapters.Beads, parent, title string) adapters.Bead {
	t.Helper()
	return ok[adapters.Bead](t, "create "+title)(b.CreateChild(ctx, adapters.NewBead{Title: title, ParentID: parent}))
}

func priority(p int) func(*adapters.NewBead) {
	return func(in *adapters.NewBead) { in.Priority = &p }
}

func readyIDs(t *testing.T, ctx context.Context, b adapters.Beads, f adapters.ReadyFilter) []string {
	t.Helper()
	page := ok[adapters.Page[adapters.Bead]](t, "getReady")(b.GetReady(ctx, f))
	ids := []string{}
	for _, x := range page.Items {
		ids = append(ids, x.ID)
	}
	return ids
}

func beadsCreate(t *testing.T, ctx context.Context, b adapters.Beads) {
	e := ok[adapters.Bead](t, "create")(b.CreateEpic(as(ctx, "ann"), adapters.NewBead{
		Title: "Größe", Description: "line\nline", Tags: []string{"b", "a", "b"},
	}))
	if !strings.HasPrefix(e.ID, "ab-") || len(e.ID) != 9 || e.Type != adapters.BeadEpic || e.ParentID != "" || e.Status != adapters.BeadOpen {
		t.Errorf("epic: %+v", e)
	}
	if e.Priority != adapters.DefaultPriority || e.Actor != "" || e.CreatedBy != "ann" || e.Version != 1 || e.Outcome != "" {
		t.Errorf("epic: %+v", e)
	}
	if !slices.Equal(e.Tags, []string{"a", "b"}) || e.CreatedAt.IsZero() || e.UpdatedAt != e.CreatedAt || !e.ClaimedAt.IsZero() {
		t.Errorf("epic: %+v", e)
	}
	for n := 1; n <= 3; n++ {
		c := child(t, ctx, b, e.ID, "child")
		if c.ID != fmt.Sprintf("%s.%d", e.ID, n) || c.Type != adapters.BeadChild || string(c.ParentID) != e.ID {
			t.Errorf("child %d: %+v", n, c)
		}
	}
	if c := child(t, ctx, b, e.ID+".2", "grandchild"); c.ID != e.ID+".2.1" {
		t.Errorf("grandchild: %+v", c)
	}
	shown := ok[adapters.Bead](t, "show")(b.Show(ctx, e.ID))
	if shown.Title != e.Title || shown.Description != e.Description || shown.Version != 1 || shown.CreatedAt != e.CreatedAt {
		t.Errorf("shown %+v, made %+v", shown, e)
	}
}

func beadsLimits(t *testing.T, ctx context.Context, b adapters.Beads) {
	tags := func(n int) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf("tag-%03d", i))
		}
		return list
	}
	for name, c := range map[string]struct {
		in  adapters.NewBead
		bad bool
	}{
		"title 499": {adapters.NewBead{Title: long(499)}, false}, "title 500": {adapters.NewBead{Title: strings.Repeat("ü", 500)}, false},
		"title 501": {adapters.NewBead{Title: long(501)}, true}, "no title": {adapters.NewBead{}, true},
		"line break": {adapters.NewBead{Title: "a\nb"}, true}, "NUL": {adapters.NewBead{Title: "a\x00"}, true}, "not UTF-8": {adapters.NewBead{Title: "\xff"}, true},
		"description": {adapters.NewBead{Title: "x", Description: long(64 << 10)}, false}, "description +1": {adapters.NewBead{Title: "x", Description: long(64<<10 + 1)}, true},
		"tags 64": {adapters.NewBead{Title: "x", Tags: tags(64)}, false}, "tags 65": {adapters.NewBead{Title: "x", Tags: tags(65)}, true},
		"tag 64": {adapters.NewBead{Title: "x", Tags: []string{long(64)}}, false}, "tag 65": {adapters.NewBead{Title: "x", Tags: []string{long(65)}}, true},
		"priority 4": {adapters.NewBead{Title: "x", Priority: new(4)}, false}, "priority 5": {adapters.NewBead{Title: "x", Priority: new(5)}, true},
		"priority -1": {adapters.NewBead{Title: "x", Priority: new(-1)}, true}, "kind": {adapters.NewBead{Title: "x", Kind: "bug"}, false},
		"unknown kind": {adapters.NewBead{Title: "x", Kind: "saga"}, true}, "epic with a parent": {adapters.NewBead{Title: "x", ParentID: "ab-1"}, true},
	} {
		_, err := b.CreateEpic(ctx, c.in)
		if c.bad {
			want(t, name, err, adapters.CodeValidation)
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	deep := epic(t, ctx, b, "deep")
	for range adapters.MaxBeadDepth {
		deep = child(t, ctx, b, deep.ID, "deeper")
	}
	_, err := b.CreateChild(ctx, adapters.NewBead{Title: "too deep", ParentID: deep.ID})
	want(t, "depth 9", err, adapters.CodeValidation)
	_, err = b.Claim(ctx, deep.ID, long(201))
	want(t, "actor 201", err, adapters.CodeValidation)
	_, err = b.Claim(ctx, deep.ID, "")
	want(t, "no actor", err, adapters.CodeValidation)
	_, err = b.Claim(ctx, deep.ID, "a", adapters.ClaimOpt{Lease: 29 * time.Second})
	want(t, "lease 29 s", err, adapters.CodeValidation)
	_, err = b.Close(ctx, deep.ID, long(2<<10+1))
	want(t, "outcome", err, adapters.CodeValidation)
}

func beadsClaim(t *testing.T, ctx context.Context, b adapters.Beads) {
	e := epic(t, ctx, b, "x")
	c := ok[adapters.Bead](t, "claim")(b.Claim(as(ctx, "ann"), e.ID, "ann"))
	if c.Status != adapters.BeadClaimed || c.Actor != "ann" || c.Version != 2 || c.ClaimedAt.IsZero() {
		t.Errorf("claimed: %+v", c)
	}
	again := ok[adapters.Bead](t, "claim again")(b.Claim(as(ctx, "ann"), e.ID, "ann"))
	if again.Version != 2 || again.ClaimedAt != c.ClaimedAt {
		t.Errorf("claimed again: %+v", again)
	}
	_, err := b.Claim(as(ctx, "bob"), e.ID, "bob")
	if e := want(t, "claim of another's", err, adapters.CodeAlreadyClaimed); fmt.Sprint(e.Fields["actor"]) != "ann" {
		t.Errorf("the holder is not named: %+v", e.Fields)
	}
	lease := ok[adapters.Bead](t, "claim with a lease")(b.Claim(as(ctx, "ann"), e.ID, "ann", adapters.ClaimOpt{Lease: time.Hour}))
	if lease.LeaseUntil.IsZero() || lease.Version != 2 {
		t.Errorf("lease: %+v", lease)
	}
	ok[adapters.Bead](t, "close")(b.Close(as(ctx, "ann"), e.ID, ""))
	_, err = b.Claim(as(ctx, "ann"), e.ID, "ann")
	if e := want(t, "claim of a closed one", err, adapters.CodeNotClaimable); fmt.Sprint(e.Fields["status"]) != "closed" {
		t.Errorf("fields: %+v", e.Fields)
	}
}

func beadsClose(t *testing.T, ctx context.Context, b adapters.Beads) {
	e := epic(t, ctx, b, "x", func(in *adapters.NewBead) { in.Tags = []string{"keep"} })
	c := child(t, ctx, b, e.ID, "child")
	_, err := b.Close(ctx, e.ID, "done")
	want(t, "close with an open child", err, adapters.CodeConflict)
	ok[adapters.Bead](t, "claim")(b.Claim(as(ctx, "ann"), c.ID, "ann"))
	_, err = b.Close(as(ctx, "bob"), c.ID, "done")
	want(t, "close of another's claim", err, adapters.CodePermissionDenied)
	closed := ok[adapters.Bead](t, "close")(b.Close(as(ctx, "ann"), c.ID, "failed: no disk"))
	if closed.Status != adapters.BeadClosed || closed.Outcome != "failed: no disk" || closed.ClosedAt.IsZero() {
		t.Errorf("closed: %+v", closed)
	}
	again := ok[adapters.Bead](t, "close again")(b.Close(as(ctx, "ann"), c.ID, "other"))
	if again.Outcome != closed.Outcome || again.Version != closed.Version {
		t.Errorf("closed again: %+v", again)
	}
	done := ok[adapters.Bead](t, "close epic")(b.Close(ctx, e.ID, ""))
	if done.Outcome != adapters.DefaultOutcome || !slices.Equal(done.Tags, []string{"keep"}) {
		t.Errorf("default outcome, tags kept: %+v", done)
	}
	_, err = b.CreateChild(ctx, adapters.NewBead{Title: "late", ParentID: e.ID})
	want(t, "child of a closed parent", err, adapters.CodeConflict)
	forced := epic(t, ctx, b, "forced")
	child(t, ctx, b, forced.ID, "open")
	ok[adapters.Bead](t, "force")(b.Close(ctx, forced.ID, "", adapters.CloseOpt{Force: true}))
}

func beadsRace(t *testing.T, ctx context.Context, b adapters.Beads) {
	const claimants = 100
	e := epic(t, ctx, b, "contested")
	var wg sync.WaitGroup
	errs := make([]error, claimants)
	for i := range claimants {
		wg.Go(func() {
			actor := fmt.Sprintf("agent-%d", i)
			_, errs[i] = b.Claim(as(ctx, actor), e.ID, actor)
		})
	}
	wg.Wait()
	winners := 0
	for _, err := range errs {
		switch {
		case err == nil:
			winners++
		case !errors.Is(err, adapters.ErrAlreadyClaimed):
			t.Errorf("a loser got %v", err)
		}
	}
	if winners != 1 {
		t.Errorf("%d winners", winners)
	}
}

func beadsReady(t *testing.T, ctx context.Context, b adapters.Beads) {
	if got := readyIDs(t, ctx, b, adapters.ReadyFilter{}); len(got) != 0 {
		t.Errorf("ready in an empty store: %v", got)
	}
	low := epic(t, ctx, b, "low", priority(4))
	first := epic(t, ctx, b, "first", priority(0), func(in *adapters.NewBead) { in.Tags, in.Kind = []string{"t"}, "bug" })
	parent := epic(t, ctx, b, "parent", priority(1))
	kid := child(t, ctx, b, parent.ID, "kid") // priority 2; its parent waits for it
	held := epic(t, ctx, b, "held")
	ok[adapters.Bead](t, "claim")(b.Claim(ctx, held.ID, "ann"))
	later := epic(t, ctx, b, "later", func(in *adapters.NewBead) { in.DeferUntil = adapters.At(time.Now().Add(time.Hour)) })
	_, err := b.Claim(ctx, later.ID, "ann")
	want(t, "claim of a deferred one", err, adapters.CodeNotClaimable)
	for name, c := range map[string]struct {
		f    adapters.ReadyFilter
		want []string
	}{
		"all": {adapters.ReadyFilter{}, []string{first.ID, kid.ID, low.ID}}, "children": {adapters.ReadyFilter{ParentID: parent.ID}, []string{kid.ID}},
		"tag": {adapters.ReadyFilter{Tag: "t"}, []string{first.ID}}, "kind": {adapters.ReadyFilter{Kind: "bug"}, []string{first.ID}},
		"priority": {adapters.ReadyFilter{PriorityMax: new(2)}, []string{first.ID, kid.ID}}, "none": {adapters.ReadyFilter{Tag: "nope"}, []string{}},
	} {
		if got := readyIDs(t, ctx, b, c.f); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	ok[adapters.Bead](t, "close")(b.Close(ctx, kid.ID, ""))
	if got := readyIDs(t, ctx, b, adapters.ReadyFilter{}); !slices.Equal(got, []string{first.ID, parent.ID, low.ID}) {
		t.Errorf("after the child: %v", got)
	}
	for limit, bad := range map[int]bool{-1: true, 1: false, 1000: false, 1001: true} {
		_, err := b.GetReady(ctx, adapters.ReadyFilter{PageOpt: adapters.PageOpt{Limit: limit}})
		if (err != nil) != bad {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
	_, err = b.GetReady(ctx, adapters.ReadyFilter{PageOpt: adapters.PageOpt{Cursor: "100"}})
	want(t, "a foreign cursor", err, adapters.CodeValidation)
	page := ok[adapters.Page[adapters.Bead]](t, "page")(b.GetReady(ctx, adapters.ReadyFilter{PageOpt: adapters.PageOpt{Limit: 1}}))
	_, err = b.GetReady(ctx, adapters.ReadyFilter{Tag: "t", PageOpt: adapters.PageOpt{Limit: 1, Cursor: string(page.NextCursor)}})
	want(t, "the cursor of another list", err, adapters.CodeValidation)
}

// beadsPaging walks the ready list while beads come and go: those that were
// there all the time appear exactly once.
func beadsPaging(t *testing.T, ctx context.Context, b adapters.Beads) {
	stay := map[string]int{}
	var leave []string
	for i := range 40 {
		e := epic(t, ctx, b, "x", priority(i%5))
		if i%4 == 3 {
			leave = append(leave, e.ID)
		} else {
			stay[e.ID] = 0
		}
	}
	opt := adapters.PageOpt{Limit: 7}
	for {
		page := ok[adapters.Page[adapters.Bead]](t, "page")(b.GetReady(ctx, adapters.ReadyFilter{PageOpt: opt}))
		for _, x := range page.Items {
			if _, is := stay[x.ID]; is {
				stay[x.ID]++
			}
		}
		if page.NextCursor == "" {
			break
		}
		opt.Cursor = string(page.NextCursor)
		if len(leave) > 0 {
			ok[adapters.Bead](t, "claim")(b.Claim(ctx, leave[0], "ann"))
			leave = leave[1:]
		}
		epic(t, ctx, b, "new", priority(0))
		epic(t, ctx, b, "new", priority(4))
	}
	for id, n := range stay {
		if n != 1 {
			t.Errorf("%s appeared %d times", id, n)
		}
	}
}

func beadsUnknown(t *testing.T, ctx context.Context, b adapters.Beads) {
	const id = "ab-nobody"
	_, err := b.Show(ctx, id)
	if e := want(t, "show", err, adapters.CodeNotFound); fmt.Sprint(e.Fields["id"]) != id {
		t.Errorf("fields: %v", e.Fields)
	}
	_, err = b.Claim(ctx, id, "ann")
	want(t, "claim", err, adapters.CodeNotFound)
	_, err = b.Close(ctx, id, "")
	want(t, "close", err, adapters.CodeNotFound)
	_, err = b.CreateChild(ctx, adapters.NewBead{Title: "x", ParentID: id})
	if e := want(t, "child", err, adapters.CodeNotFound); fmt.Sprint(e.Fields["resource"]) != "epic" {
		t.Errorf("fields: %v", e.Fields)
	}
	_, err = b.Show(ctx, "../etc")
	want(t, "a bad id", err, adapters.CodeValidation)
}

func beadsList(t *testing.T, ctx context.Context, b adapters.Beads) {
	a := epic(t, ctx, b, "a")
	c := child(t, ctx, b, a.ID, "c")
	ok[adapters.Bead](t, "claim")(b.Claim(ctx, c.ID, "ann"))
	list := func(f adapters.BeadFilter) (ids []string) {
		for _, x := range ok[adapters.Page[adapters.Bead]](t, "list")(b.List(ctx, f)).Items {
			ids = append(ids, x.ID)
		}
		return ids
	}
	for name, v := range map[string]struct {
		f    adapters.BeadFilter
		want []string
	}{
		"all": {adapters.BeadFilter{}, []string{a.ID, c.ID}}, "open": {adapters.BeadFilter{Status: adapters.BeadOpen}, []string{a.ID}},
		"actor": {adapters.BeadFilter{Actor: "ann"}, []string{c.ID}}, "parent": {adapters.BeadFilter{ParentID: a.ID}, []string{c.ID}}, "closed": {adapters.BeadFilter{Status: adapters.BeadClosed}, nil},
	} {
		if got := list(v.f); !slices.Equal(got, v.want) {
			t.Errorf("%s: %v, want %v", name, got, v.want)
		}
	}
	_, err := b.List(ctx, adapters.BeadFilter{Status: "blocked"})
	want(t, "unknown status", err, adapters.CodeValidation)
}

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
