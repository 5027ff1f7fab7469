package contract

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

func readyIDs(t *testing.T, ctx context.Context, b adapters.Beads, f adapters.ReadyFilter) []string {
	t.Helper()
	page := ok[adapters.Page[adapters.Bead]](t, "getReady")(b.GetReady(ctx, f))
	ids := []string{}
	for _, x := range page.Items {
		ids = append(ids, x.ID)
	}
	return ids
}

func beadsReady(t *testing.T, ctx context.Context, b adapters.Beads) {
	if got := readyIDs(t, ctx, b, adapters.ReadyFilter{}); len(got) != 0 {
		t.Errorf("ready in an empty store: %v", got)
	}
	low := epic(t, ctx, b, "low", priority(4))
	first := epic(t, ctx, b, "first", priority(0), func(in *adapters.NewBead) { in.Tags, in.Kind = []string{"t"}, "bug" })
	parent := epic(t, ctx, b, "parent", priority(1))
	kid := child(t, ctx, b, parent.ID, "kid") // priority 2; blocks its parent
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

// beadsPaging pages through the ready list while beads are added and claimed. A bead that stays in
// the list the whole time must appear exactly once.
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
