package contract

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// SameBeads runs the same random scripts with two classes and compares every answer. At the end, it
// compares the number of beads in both stores.
func SameBeads(t *testing.T, one, other func(testing.TB) adapters.Beads) {
	s := &beadsScript{twins: newTwins(t, adapters.WrapBeads, one, other)}
	rapid.Check(t, func(r *rapid.T) {
		s.round++
		s.ids = nil
		s.create(r, "")
		for range rapid.IntRange(1, 20).Draw(r, "steps") {
			s.step(r)
		}
		s.read(r)
	})
	var lines [2][]string
	for i, b := range s.sides {
		var file bytes.Buffer
		if err := b.Export(s.ctx, &file); err != nil {
			t.Fatal(err)
		}
		lines[i] = strings.Split(strings.TrimSpace(file.String()), "\n")
	}
	if len(lines[0]) != s.made || len(lines[1]) != s.made {
		t.Errorf("one exports %d beads, the other %d; the scripts made %d", len(lines[0]), len(lines[1]), s.made)
	}
}

type beadsScript struct {
	*twins[adapters.Beads]
	round int
	ids   [][2]string // beads of this round
	made  int         // beads of all rounds
}

// tag is the tag of all beads of this round.
func (s *beadsScript) tag() string { return fmt.Sprintf("round-%d", s.round) }

func (s *beadsScript) any(r *rapid.T, what string) [2]string {
	return rapid.SampledFrom(append(s.ids, [2]string{"ab-nobody", "ab-nobody"})).Draw(r, what)
}

// create makes a child of a random bead if kind is "child", otherwise an epic.
func (s *beadsScript) create(r *rapid.T, kind string) {
	in := adapters.NewBead{
		Title: rapid.StringMatching(`[a-zä€]{1,8}`).Draw(r, "title"), Priority: new(rapid.IntRange(0, 5).Draw(r, "priority")),
		Tags: []string{s.tag(), rapid.SampledFrom([]string{"a", "b", s.tag()}).Draw(r, "tag")},
		Kind: rapid.SampledFrom([]string{"", "bug", "saga"}).Draw(r, "kind"),
	}
	ctx := as(s.ctx, "ann")
	var made [2]adapters.Bead
	var ok bool
	if kind == "child" {
		parent := s.any(r, "parent")
		made, ok = compare(r, s.twins, "createChild", func(i int, b adapters.Beads) (adapters.Bead, error) {
			in := in
			in.ParentID = parent[i]
			x, err := b.CreateChild(ctx, in)
			s.learn(i, x)
			return x, err
		})
	} else {
		made, ok = compare(r, s.twins, "createEpic", func(i int, b adapters.Beads) (adapters.Bead, error) {
			x, err := b.CreateEpic(ctx, in)
			s.learn(i, x)
			return x, err
		})
	}
	if ok {
		s.ids = append(s.ids, [2]string{made[0].ID, made[1].ID})
		s.made++
	}
}

// learn gives a new epic its script name. A child needs none: its id begins with the id of its epic.
func (s *beadsScript) learn(side int, b adapters.Bead) {
	if b.ID != "" && b.ParentID == "" {
		s.names[side][b.ID] = fmt.Sprintf("bead-%d-%d", s.round, len(s.ids))
	}
}

func (s *beadsScript) step(r *rapid.T) {
	id, actor := s.any(r, "id"), rapid.SampledFrom([]string{"ann", "bob"}).Draw(r, "actor")
	ctx := as(s.ctx, actor)
	one := func(what string, f func(context.Context, adapters.Beads, string) (adapters.Bead, error)) {
		compare(r, s.twins, what, func(i int, b adapters.Beads) (adapters.Bead, error) { return f(ctx, b, id[i]) })
	}
	switch rapid.IntRange(0, 12).Draw(r, "what") {
	case 0:
		s.create(r, "epic")
	case 1, 2:
		s.create(r, "child")
	case 3, 4:
		one("claim", func(ctx context.Context, b adapters.Beads, id string) (adapters.Bead, error) {
			return b.Claim(ctx, id, actor)
		})
	case 5, 6:
		outcome, force := rapid.SampledFrom([]string{"", "failed", "fine"}).Draw(r, "outcome"), rapid.Bool().Draw(r, "force")
		one("close", func(ctx context.Context, b adapters.Beads, id string) (adapters.Bead, error) {
			return b.Close(ctx, id, outcome, adapters.CloseOpt{Force: force})
		})
	case 7:
		one("release", func(ctx context.Context, b adapters.Beads, id string) (adapters.Bead, error) {
			return b.Release(ctx, id, actor)
		})
	case 8:
		one("reopen", func(ctx context.Context, b adapters.Beads, id string) (adapters.Bead, error) {
			return b.Reopen(ctx, id)
		})
	case 9:
		change := adapters.BeadChange{
			Title:      new(rapid.SampledFrom([]string{"new", "newer", ""}).Draw(r, "title")),
			IfVersions: rapid.SliceOfN(rapid.Int64Range(1, 3), 0, 2).Draw(r, "versions"),
		}
		one("update", func(ctx context.Context, b adapters.Beads, id string) (adapters.Bead, error) {
			return b.Update(ctx, id, change)
		})
	case 10, 11:
		s.edge(r, id)
	case 12:
		compare(r, s.twins, "comment", func(i int, b adapters.Beads) (adapters.BeadComment, error) {
			c, err := b.Comment(ctx, id[i], "said")
			c.ID = ""
			return c, err
		})
	}
}

func (s *beadsScript) edge(r *rapid.T, from [2]string) {
	to := s.any(r, "to")
	kind := rapid.SampledFrom([]string{"", adapters.DepWaitsFor, adapters.DepConditionalBlocks, "related", adapters.DepParentChild}).Draw(r, "type")
	remove := rapid.IntRange(0, 3).Draw(r, "remove") == 0
	compare(r, s.twins, "dep", func(i int, b adapters.Beads) (adapters.Dep, error) {
		d := adapters.Dep{From: from[i], To: to[i], Type: kind}
		if remove {
			return d, b.RemoveDep(s.ctx, d)
		}
		return b.AddDep(s.ctx, d)
	})
}

// read compares the answers of all reads of this round's beads.
func (s *beadsScript) read(r *rapid.T) {
	for _, id := range s.ids {
		compare(r, s.twins, "show", func(i int, b adapters.Beads) (adapters.Bead, error) { return b.Show(s.ctx, id[i]) })
	}
	size := rapid.IntRange(1, 7).Draw(r, "page")
	limit := rapid.IntRange(0, 4).Draw(r, "priority_max")
	compare(r, s.twins, "getReady", func(i int, b adapters.Beads) ([]any, error) {
		return s.pages(r, i, size, byPriority, func(o adapters.PageOpt) (adapters.Page[adapters.Bead], error) {
			return b.GetReady(s.ctx, adapters.ReadyFilter{Tag: s.tag(), PriorityMax: &limit, PageOpt: o})
		})
	})
	f := adapters.BeadFilter{
		Tag: s.tag(), Status: rapid.SampledFrom([]string{"", adapters.BeadOpen, adapters.BeadClosed, adapters.BeadClaimed}).Draw(r, "status"),
		Actor: rapid.SampledFrom([]string{"", "ann", "bob"}).Draw(r, "holder"), Kind: rapid.SampledFrom([]string{"", "bug"}).Draw(r, "kind"),
	}
	compare(r, s.twins, "list", func(i int, b adapters.Beads) ([]any, error) {
		return s.pages(r, i, size, byCreation, func(o adapters.PageOpt) (adapters.Page[adapters.Bead], error) {
			f.PageOpt = o
			return b.List(s.ctx, f)
		})
	})
}

func byCreation(a, b adapters.Bead) int {
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt.Time), strings.Compare(a.ID, b.ID))
}

func byPriority(a, b adapters.Bead) int { return cmp.Or(a.Priority-b.Priority, byCreation(a, b)) }

// pages reads a list to its end and checks its order. It returns the sizes of the pages, and the
// beads sorted anew: beads of the same millisecond are listed by id, and the ids of the sides differ.
func (s *beadsScript) pages(r *rapid.T, side, size int, order func(a, b adapters.Bead) int, page func(adapters.PageOpt) (adapters.Page[adapters.Bead], error)) ([]any, error) {
	var all []adapters.Bead
	var answer []any
	opt := adapters.PageOpt{Limit: size}
	for {
		p, err := page(opt)
		if err != nil {
			return nil, err
		}
		all = append(all, p.Items...)
		answer = append(answer, len(p.Items))
		if p.NextCursor == "" {
			break
		}
		opt.Cursor = string(p.NextCursor)
	}
	if !slices.IsSortedFunc(all, order) {
		r.Fatalf("not in order: %s", asJSON(r, all))
	}
	var beads []string
	for _, b := range all {
		beads = append(beads, string(s.plain(r, side, b, nil)))
	}
	slices.Sort(beads)
	return append(answer, beads), nil
}
