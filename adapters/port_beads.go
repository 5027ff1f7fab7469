package adapters

import (
	"cmp"
	"context"
	"io"
	"time"
)

// WrapBeads wraps one implementation (nil = the slot is off) in mw (nil = guard and limits). Consumers get the
// wrapped slots of a Set; WrapBeads is for tests and tools.
func WrapBeads(a Beads, mw Middleware) Beads {
	return beadsPort{wrapped(SlotBeads, a, mw)}
}

type beadsPort struct{ *port }

var _ Beads = beadsPort{}

func (p beadsPort) CreateEpic(ctx context.Context, in NewBead) (Bead, error) {
	return p.create(ctx, "createEpic", in, false)
}

func (p beadsPort) CreateChild(ctx context.Context, in NewBead) (Bead, error) {
	return p.create(ctx, "createChild", in, true)
}

func (p beadsPort) create(ctx context.Context, method string, in NewBead, child bool) (Bead, error) {
	in.CreatedBy = cmp.Or(in.CreatedBy, MetaFrom(ctx).Actor)
	in.Tags = TagSet(in.Tags)
	c := Call{
		Method: method, Write: true, Creates: true, Args: in,
		Check: func() error { return in.check(child) },
		Text:  []Text{{String: &in.Title}, {String: &in.Description}},
	}
	return via(ctx, p.port, c, func(ctx context.Context, a Beads) (Bead, error) {
		if child {
			return a.CreateChild(ctx, in)
		}
		return a.CreateEpic(ctx, in)
	})
}

func (p beadsPort) Claim(ctx context.Context, id, actor string, opt ...ClaimOpt) (Bead, error) {
	c := Call{Method: "claim", Write: true, Check: func() error {
		for _, o := range opt {
			if o.Lease != 0 && (o.Lease < MinLease || o.Lease > MaxLease) {
				return Invalid("lease_s", "must be %d-%d", MinLease/time.Second, MaxLease/time.Second)
			}
		}
		return cmp.Or(CheckID("id", id), checkActor(actor))
	}}
	return via(ctx, p.port, c, func(ctx context.Context, a Beads) (Bead, error) { return a.Claim(ctx, id, actor, opt...) })
}

func (p beadsPort) Close(ctx context.Context, id, outcome string, opt ...CloseOpt) (Bead, error) {
	outcome = cmp.Or(outcome, DefaultOutcome)
	c := Call{
		Method: "close", Write: true,
		Check: func() error {
			return cmp.Or(CheckID("id", id), CheckText("outcome", outcome, MaxBeadOutcome))
		},
		Text: []Text{{String: &outcome}},
	}
	return via(ctx, p.port, c, func(ctx context.Context, a Beads) (Bead, error) { return a.Close(ctx, id, outcome, opt...) })
}

func (p beadsPort) GetReady(ctx context.Context, f ReadyFilter) (Page[Bead], error) {
	return via(ctx, p.port, Call{Method: "getReady", Check: f.check},
		func(ctx context.Context, a Beads) (Page[Bead], error) { return a.GetReady(ctx, f) })
}

func (p beadsPort) Show(ctx context.Context, id string) (Bead, error) {
	return via(ctx, p.port, Call{Method: "show", Check: func() error { return CheckID("id", id) }},
		func(ctx context.Context, a Beads) (Bead, error) { return a.Show(ctx, id) })
}

func (p beadsPort) List(ctx context.Context, f BeadFilter) (Page[Bead], error) {
	return via(ctx, p.port, Call{Method: "list", Check: f.check},
		func(ctx context.Context, a Beads) (Page[Bead], error) { return a.List(ctx, f) })
}

func (p beadsPort) Update(ctx context.Context, id string, change BeadChange) (Bead, error) {
	c := Call{Method: "update", Write: true, Check: func() error {
		return cmp.Or(CheckID("id", id), change.check())
	}}
	if change.Title != nil {
		change.Title = new(*change.Title)
		c.Text = append(c.Text, Text{String: change.Title})
	}
	if change.Description != nil {
		change.Description = new(*change.Description)
		c.Text = append(c.Text, Text{String: change.Description})
	}
	if change.Tags != nil {
		change.Tags = new(TagSet(*change.Tags))
	}
	return via(ctx, p.port, c, func(ctx context.Context, a Beads) (Bead, error) { return a.Update(ctx, id, change) })
}

func (p beadsPort) Release(ctx context.Context, id, actor string) (Bead, error) {
	c := Call{Method: "release", Write: true, Check: func() error {
		return cmp.Or(CheckID("id", id), checkActor(actor))
	}}
	return via(ctx, p.port, c, func(ctx context.Context, a Beads) (Bead, error) { return a.Release(ctx, id, actor) })
}

func (p beadsPort) Reopen(ctx context.Context, id string) (Bead, error) {
	return via(ctx, p.port, Call{Method: "reopen", Write: true, Check: func() error { return CheckID("id", id) }},
		func(ctx context.Context, a Beads) (Bead, error) { return a.Reopen(ctx, id) })
}

func (p beadsPort) AddDep(ctx context.Context, dep Dep) (Dep, error) {
	dep.Type = cmp.Or(dep.Type, DepBlocks)
	return via(ctx, p.port, Call{Method: "addDep", Write: true, Check: dep.check},
		func(ctx context.Context, a Beads) (Dep, error) { return a.AddDep(ctx, dep) })
}

func (p beadsPort) RemoveDep(ctx context.Context, dep Dep) error {
	dep.Type = cmp.Or(dep.Type, DepBlocks)
	return exec(ctx, p.port, Call{Method: "removeDep", Write: true, Check: dep.check},
		func(ctx context.Context, a Beads) error { return a.RemoveDep(ctx, dep) })
}

func (p beadsPort) Comment(ctx context.Context, id, text string) (BeadComment, error) {
	c := Call{
		Method: "comment", Write: true, Creates: true, Args: [2]string{id, text},
		Check: func() error {
			return cmp.Or(CheckID("id", id), CheckName("text", text, MaxBeadComment))
		},
		Text: []Text{{String: &text}},
	}
	return via(ctx, p.port, c, func(ctx context.Context, a Beads) (BeadComment, error) { return a.Comment(ctx, id, text) })
}

func (p beadsPort) Export(ctx context.Context, w io.Writer) error {
	return exec(ctx, p.port, Call{Method: "export", Limit: bulkLimit},
		func(ctx context.Context, a Beads) error { return a.Export(ctx, w) })
}

func (p beadsPort) Import(ctx context.Context, r io.Reader, opt ImportOpt) (ImportResult, error) {
	return via(ctx, p.port, Call{Method: "import", Write: true, Limit: bulkLimit},
		func(ctx context.Context, a Beads) (ImportResult, error) { return a.Import(ctx, r, opt) })
}

// bulkLimit bounds calls that move a whole store.
const bulkLimit = 5 * time.Minute
