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

// beadsCase is one case over a connected, empty store. A graph case runs only if the adapter has the
// capability.
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

// Beads runs the suite of the beads slot. newAdapter makes a fresh, unconnected adapter over an empty
// store.
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

func beadsCreate(t *testing.T, ctx context.Context, b adapters.Beads) {
	e := ok[adapters.Bead](t, "create")(b.CreateEpic(as(ctx, "ann"), adapters.NewBead{
		Title: "Größe", Description: "line\nline", Tags: []string{"b", "a", "b"},
	}))
	if !strings.HasPrefix(e.ID, "ab-") || len(e.ID) != 9 || e.CreatedAt.IsZero() {
		t.Errorf("epic: %+v", e)
	}
	equal(t, "epic", e, adapters.Bead{
		ID: e.ID, Title: "Größe", Description: "line\nline", Type: adapters.BeadEpic, Kind: e.Kind, Status: adapters.BeadOpen,
		Priority: adapters.DefaultPriority, CreatedBy: "ann", Tags: []string{"a", "b"}, Deps: e.Deps, BlockedBy: e.BlockedBy,
		Version: 1, CreatedAt: e.CreatedAt, UpdatedAt: e.CreatedAt,
	})
	for n := 1; n <= 3; n++ {
		c := child(t, ctx, b, e.ID, "child")
		equal(t, "child", [3]string{c.ID, c.Type, string(c.ParentID)}, [3]string{fmt.Sprintf("%s.%d", e.ID, n), adapters.BeadChild, e.ID})
	}
	equal(t, "grandchild", child(t, ctx, b, e.ID+".2", "grandchild").ID, e.ID+".2.1")
	gives(t, "show", e)(b.Show(ctx, e.ID))
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
		"description -1": {adapters.NewBead{Title: "x", Description: long(64<<10 - 1)}, false}, "description in bytes": {adapters.NewBead{Title: "x", Description: strings.Repeat("ü", 32<<10+1)}, true},
		"author 200": {adapters.NewBead{Title: "x", CreatedBy: long(200)}, false}, "author 201": {adapters.NewBead{Title: "x", CreatedBy: long(201)}, true},
		"tags 63": {adapters.NewBead{Title: "x", Tags: tags(63)}, false}, "empty tag": {adapters.NewBead{Title: "x", Tags: []string{""}}, true},
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
	for _, lease := range []time.Duration{29 * time.Second, adapters.MaxLease + time.Second} {
		_, err = b.Claim(ctx, deep.ID, "a", adapters.ClaimOpt{Lease: lease})
		want(t, "lease "+lease.String(), err, adapters.CodeValidation)
	}
	for _, lease := range []time.Duration{30 * time.Second, adapters.MaxLease} {
		ok[adapters.Bead](t, "lease "+lease.String())(b.Claim(ctx, deep.ID, long(200), adapters.ClaimOpt{Lease: lease}))
	}
	_, err = b.Show(ctx, long(129))
	want(t, "id 129", err, adapters.CodeValidation)
	_, err = b.Show(ctx, long(128))
	want(t, "id 128", err, adapters.CodeNotFound)
	_, err = b.Close(as(ctx, long(200)), deep.ID, long(2<<10+1))
	want(t, "outcome", err, adapters.CodeValidation)
	if c := ok[adapters.Bead](t, "outcome 2 KiB")(b.Close(as(ctx, long(200)), deep.ID, long(2<<10))); string(c.Outcome) != long(2<<10) {
		t.Errorf("an outcome of 2 KiB came back as %d bytes", len(c.Outcome))
	}
	beadsPageLimits(t, ctx, b)
}

func beadsPageLimits(t *testing.T, ctx context.Context, b adapters.Beads) {
	for limit, bad := range map[int]bool{-1: true, 1: false, adapters.MaxPageLimit: false, adapters.MaxPageLimit + 1: true} {
		page, err := b.GetReady(ctx, adapters.ReadyFilter{PageOpt: adapters.PageOpt{Limit: limit}})
		if bad {
			want(t, fmt.Sprintf("page of %d", limit), err, adapters.CodeValidation)
		} else if err != nil || len(page.Items) > limit {
			t.Errorf("page of %d: %d, %v", limit, len(page.Items), err)
		}
	}
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
