package announce

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
	"github.com/dreamlab-ai/agentinit/mesh/pool"
)

// journal is an events slot with events numbered from 1.
type journal struct{ events []adapters.Event }

type reader struct {
	events []adapters.Event
}

func (j *journal) Subscribe(_ context.Context, _ adapters.EventFilter, from adapters.From) (adapters.Subscription, error) {
	if from.Live {
		return &reader{}, nil
	}
	return &reader{events: slices.Clone(j.events[from.After:])}, nil
}

func (r *reader) Next(ctx context.Context) (adapters.Event, error) {
	if len(r.events) == 0 {
		<-ctx.Done()
		return adapters.Event{}, ctx.Err()
	}
	e := r.events[0]
	r.events = r.events[1:]
	return e, nil
}

func (*reader) ID() string   { return "r" }
func (*reader) Close() error { return nil }

// relays answers calls of Publish from a list, and accepts all calls after the end of the list.
type relays struct {
	most    int // bytes of an event; the connection ends at a larger one; 0 = no limit
	answers [][]pool.Result
	errs    []error
	took    []nostr.Event
	waits   []*Waiting
}

func (r *relays) Publish(_ context.Context, e *nostr.Event) ([]pool.Result, error) {
	if len(r.errs) > 0 {
		err := r.errs[0]
		r.errs = r.errs[1:]
		return nil, err
	}
	if len(r.answers) > 0 {
		a := r.answers[0]
		r.answers = r.answers[1:]
		return a, nil
	}
	if r.most > 0 && len(nip01.EventText(e)) > r.most {
		return []pool.Result{{URL: "ws://a", Reason: "the connection ended before an answer"}}, nil
	}
	r.took = append(r.took, *e)
	return []pool.Result{{URL: "ws://a", Reason: "error: full"}, {URL: "ws://b", Accepted: true}}, nil
}

func numbered(kinds ...string) *journal {
	j := &journal{}
	for i, kind := range kinds {
		j.events = append(j.events, adapters.Event{Kind: kind, ID: kind, Seq: uint64(i + 1), TS: adapters.At(time.Unix(1_700_000_000, 5e8)), Payload: []byte(`{}`)})
	}
	return j
}

func run(t *testing.T, j *journal, r *relays, cursorFile string, reports *[]string, k *identity.Key) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Run(ctx, Config{Events: j, Signer: k, Relays: r, Box: func() string { return string(k.Public()) }, Cursor: cursorFile, MaxEventBytes: 4096, Report: func(what string, _ map[string]any) { *reports = append(*reports, what) }, Waits: func(w *Waiting) { r.waits = append(r.waits, w) }})
	}()
	time.Sleep(time.Hour)
	synctest.Wait()
	cancel()
	<-done
}

func TestEventsArePublishedFromTheCursorOn(t *testing.T) {
	k, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "mesh", "published.json")
	synctest.Test(t, func(t *testing.T) {
		var reports []string
		j := numbered("agent.old", "agent.spawned", "nostr.inbound", "agent.exited")
		never := &relays{}
		run(t, j, never, path, &reports, k)
		if len(never.took) != 0 {
			t.Fatal("the first run publishes what was before it")
		}
		if err := writeCursor(path, 1); err != nil {
			t.Fatal(err)
		}
		// First no relay is connected, then the relays do not take the event, then one does. No event
		// is lost.
		r := &relays{errs: []error{pool.ErrNoRelay, pool.ErrNoRelay}, answers: [][]pool.Result{{{Reason: "error: full"}}, {{Reason: "blocked: no"}, {Reason: "no answer in time"}}}}
		run(t, j, r, path, &reports, k)
		var kinds []int
		for i := range r.took {
			if err := nip01.Verify(&r.took[i]); err != nil {
				t.Error(err)
			}
			kinds = append(kinds, r.took[i].Kind)
		}
		if !slices.Equal(kinds, []int{KindHistory, KindState, KindHistory, KindState}) {
			t.Errorf("published %v", kinds)
		}
		if d := nip01.TagValue(&r.took[1], "d"); d != "agentbox:"+string(k.Public())+":agent.spawned" {
			t.Errorf("d is %q", d)
		}
		if seq, err := readCursor(path); seq != 4 || err != nil {
			t.Errorf("the cursor is %d, %v", seq, err)
		}
		// After a crash before the write of the cursor, the same ids are published again.
		if err := writeCursor(path, 1); err != nil {
			t.Fatal(err)
		}
		again := &relays{}
		run(t, j, again, path, &reports, k)
		for i := range r.took {
			if again.took[i].ID != r.took[i].ID {
				t.Errorf("%d has another id the second time", i)
			}
		}
		if len(reports) != 0 {
			t.Errorf("reported %v", reports)
		}
	})
}

func TestRefusedForGoodIsGivenUp(t *testing.T) {
	k, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "published.json")
	if err := writeCursor(path, 0); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var reports []string
		refused := []pool.Result{{Reason: "blocked: kind-not-allowed"}, {Reason: "invalid: no"}}
		r := &relays{answers: [][]pool.Result{refused}}
		run(t, numbered("a", "b"), r, path, &reports, k)
		if len(r.took) != 3 || !slices.Equal(reports, []string{"AgentEventRefused"}) {
			t.Errorf("published %d, reported %v", len(r.took), reports)
		}
	})
}

// Relays that refuse one event again and again, and not for good, do not hold up the others for ever. Those
// that do not answer do.
func TestRefusedAgainAndAgainIsGivenUp(t *testing.T) {
	k, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "published.json")
	for name, tc := range map[string]struct {
		answer  pool.Result
		took    int
		reports []string
	}{
		"refused":   {pool.Result{Reason: "restricted: not you", Answered: true}, 3, []string{"AgentEventRefused"}},
		"no answer": {pool.Result{Reason: "no answer in time"}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if err := writeCursor(path, 0); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				var reports []string
				r := &relays{answers: [][]pool.Result{{{Reason: "the connection ended"}}}}
				count := maxRefusals
				if !tc.answer.Answered {
					count = 100 // for more than the hour
				}
				for range count {
					r.answers = append(r.answers, []pool.Result{{Reason: "blocked: no", Answered: true}, tc.answer})
				}
				run(t, numbered("a", "b"), r, path, &reports, k)
				if len(r.took) != tc.took || !slices.Equal(reports, tc.reports) {
					t.Errorf("published %d, reported %v", len(r.took), reports)
				}
				second := r.waits[2] // nothing waits when the events are opened, and after the first attempt there is no answer
				if second.Event != "a" || second.Tries != 2 || !strings.Contains(second.Reason, "blocked: no; ") || !strings.HasSuffix(second.Reason, tc.answer.Reason) {
					t.Errorf("what waits: %+v", second)
				}
				if last := r.waits[len(r.waits)-1]; (last == nil) != tc.answer.Answered {
					t.Errorf("at the end it waits for %+v", last)
				}
			})
		})
	}
}

// An agent must not hold up the events of others with one that relays disconnect for.
func TestLargeEventsAreLeftOut(t *testing.T) {
	k, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		j, r := numbered("large", "small"), &relays{most: 4096}
		j.events[0].Payload = []byte(`{"a":"` + strings.Repeat("<", 4000) + `"}`)
		var reports []string
		file := filepath.Join(t.TempDir(), "cursor")
		if err := writeCursor(file, 0); err != nil {
			t.Fatal(err)
		}
		run(t, j, r, file, &reports, k)
		if len(r.took) != 2 || r.took[0].Tags[0][1] != "small" {
			t.Errorf("published %v", r.took)
		}
		if want := []string{"AgentEventRefused", "AgentEventRefused"}; !slices.Equal(reports, want) {
			t.Errorf("reported %v", reports)
		}
	})
}

// The limit is for an event as relays get it, in which "<" is one byte and not seven.
func TestMarkupIsNotMeasuredByItsEscapes(t *testing.T) {
	k, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		j, r := numbered("page"), &relays{most: 4096}
		j.events[0].Payload = []byte(`{"a":"` + strings.Repeat("<&>", 1000) + `"}`)
		var reports []string
		file := filepath.Join(t.TempDir(), "cursor")
		if err := writeCursor(file, 0); err != nil {
			t.Fatal(err)
		}
		run(t, j, r, file, &reports, k)
		if len(r.took) != 2 || len(reports) != 0 {
			t.Fatalf("published %d, reported %v", len(r.took), reports)
		}
		var e adapters.Event
		if err := json.Unmarshal([]byte(r.took[0].Content), &e); err != nil || string(e.Payload) != string(j.events[0].Payload) {
			t.Errorf("published %s, %v", r.took[0].Content, err)
		}
	})
}

func TestUnreadableCursorIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "published.json")
	if err := os.WriteFile(path, []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Config{Events: numbered("a"), Cursor: path}
	if err := c.follow(t.Context()); err == nil || errors.Is(err, context.Canceled) {
		t.Error("a torn cursor was taken for one")
	}
	if raw, err := os.ReadFile(path); string(raw) != "torn" || err != nil {
		t.Error("it was written over")
	}
}

// A program replaces the cursor by a file of 4 TiB, which takes no space on the disk.
func TestCursorOfAnAttacker(t *testing.T) {
	path := filepath.Join(t.TempDir(), "published.json")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 4<<40)); err != nil {
		t.Fatal(err)
	}
	c := Config{Events: numbered("a"), Cursor: path}
	if err := c.follow(t.Context()); !errors.Is(err, safeopen.ErrTooLarge) {
		t.Errorf("following: %v", err)
	}
	if err := writeCursor(path, 7); err != nil {
		t.Error(err)
	}
	if seq, err := readCursor(path); seq != 7 || err != nil {
		t.Errorf("%d %v", seq, err)
	}
}
