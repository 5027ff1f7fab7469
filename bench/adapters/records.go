package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/beads"
	"github.com/dreamlab-ai/agentinit/adapters/events"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
)

// disconnect closes an adapter whose rows are measured. An error must not stop the measurement of
// the next class.
func disconnect(a adapters.Adapter) {
	if a != nil {
		_ = a.Disconnect(context.Background())
	}
}

func (l *lab) beadsLocal() target {
	var b adapters.Beads
	return target{
		slot: "beads", class: "local-sqlite", rows: beadRows(&b), close: func() { disconnect(b) },
		open: func(ctx context.Context) error {
			local, err := beads.NewLocal(beads.LocalConfig{Path: filepath.Join(l.dir, "beads.db")})
			if err != nil {
				return err
			}
			b = adapters.WrapBeads(local, nil)
			return b.Connect(ctx)
		},
	}
}

func (l *lab) beadsExternal() target {
	var b adapters.Beads
	return target{
		slot: "beads", class: "external, a second agentinit", rows: beadRows(&b), close: func() { disconnect(b) },
		open: func(ctx context.Context) error {
			peer, err := l.box(ctx, "/ready", "[adapters]\nbeads = \"local-sqlite\"\n")
			if err != nil {
				return err
			}
			external, err := beads.NewExternal(beads.ExternalConfig{URL: peer.url, Key: "url", Auth: wire.Bearer(peer.token)})
			if err != nil {
				return err
			}
			b = adapters.WrapBeads(external, nil)
			return b.Connect(ctx)
		},
	}
}

// beadRows are the rows of the adapter that b points to when a row runs.
func beadRows(b *adapters.Beads) []row {
	const write, read, share = 200 * time.Millisecond, 100 * time.Millisecond, 0.005
	const actor = "bench"
	epic := func(ctx context.Context, _ int) (string, error) {
		made, err := (*b).CreateEpic(ctx, adapters.NewBead{Title: "measured"})
		return made.ID, err
	}
	onOne := func(call func(ctx context.Context, id string) error) func(context.Context, int, int) (sample, error) {
		return func(ctx context.Context, rate, seconds int) (sample, error) {
			id, err := epic(ctx, 0)
			if err != nil {
				return sample{}, err
			}
			return at(func(ctx context.Context, _ int) error { return call(ctx, id) })(ctx, rate, seconds)
		}
	}
	return []row{
		{"createEpic", write, 50, share, at(func(ctx context.Context, i int) error {
			_, err := epic(ctx, i)
			return err
		})},
		{"createChild", write, 50, share, onOne(func(ctx context.Context, id string) error {
			_, err := (*b).CreateChild(ctx, adapters.NewBead{Title: "measured", ParentID: id})
			return err
		})},
		{"claim", write, 50, share, after(epic, func(ctx context.Context, id string) error {
			_, err := (*b).Claim(ctx, id, actor)
			return err
		})},
		{"close", write, 50, share, after(epic, func(ctx context.Context, id string) error {
			_, err := (*b).Close(ctx, id, "")
			return err
		})},
		{"getReady, a page of 100", read, 200, share, func(ctx context.Context, rate, seconds int) (sample, error) {
			for i := range adapters.DefaultPageLimit {
				if _, err := epic(ctx, i); err != nil {
					return sample{}, err
				}
			}
			return at(func(ctx context.Context, _ int) error {
				page, err := (*b).GetReady(ctx, adapters.ReadyFilter{})
				if err == nil && len(page.Items) != adapters.DefaultPageLimit {
					err = fmt.Errorf("%d beads are ready", len(page.Items))
				}
				return err
			})(ctx, rate, seconds)
		}},
		{"show", read, 200, share, onOne(func(ctx context.Context, id string) error {
			_, err := (*b).Show(ctx, id)
			return err
		})},
	}
}

func (l *lab) eventsLocal() target {
	var e adapters.Events
	return target{
		slot: "events", class: "local-jsonl", rows: eventRows(&e), close: func() { disconnect(e) },
		open: func(ctx context.Context) error {
			local, err := events.NewLocal(events.LocalConfig{Dir: filepath.Join(l.dir, "events"), Source: func() string { return "urn:agentbox:bench" }})
			if err != nil {
				return err
			}
			e = adapters.WrapEvents(local, nil)
			return e.Connect(ctx)
		},
	}
}

func (l *lab) eventsExternal() target {
	var e adapters.Events
	return target{
		slot: "events", class: "external, spool to a second agentinit", rows: eventRows(&e), close: func() { disconnect(e) },
		open: func(ctx context.Context) error {
			sink, err := l.box(ctx, "/ready", "[adapters]\nevents = \"local-jsonl\"\n")
			if err != nil {
				return err
			}
			dir, err := os.MkdirTemp(l.dir, "spool")
			if err != nil {
				return err
			}
			external, err := events.NewExternal(events.ExternalConfig{
				URL: sink.url, Key: "url", Dir: dir, Source: func() string { return "urn:agentbox:bench" }, Auth: wire.Bearer(sink.token),
			})
			if err != nil {
				return err
			}
			e = adapters.WrapEvents(external, nil)
			return e.Connect(ctx)
		},
	}
}

func eventRows(e *adapters.Events) []row {
	return []row{{"dispatch", 50 * time.Millisecond, 500, 0.001, at(func(ctx context.Context, i int) error {
		_, err := (*e).Dispatch(ctx, adapters.Event{Kind: "bench.tick", Payload: json.RawMessage(fmt.Sprintf(`{"n":%d}`, i))})
		return err
	})}}
}
