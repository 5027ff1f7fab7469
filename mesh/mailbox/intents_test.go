package mailbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/mesh/relay/relaytest"
)

// work is a Work that starts a task for intents of kind 38005, once for each event.
type work struct {
	started map[string]string // task by event id
	message string            // the last one
	err     error
	state   TaskState
}

func (w *work) Start(_ context.Context, n Notice, message []byte) (string, error) {
	if w.err != nil || n.Kind != 38005 {
		return "", w.err
	}
	w.message = string(message)
	if w.started[n.EventID] == "" {
		w.started[n.EventID] = fmt.Sprint("task-", len(w.started))
	}
	return w.started[n.EventID], nil
}

func (w *work) State(string) TaskState { return w.state }

func (w *world) marker(t *testing.T, id string) (i Intent) {
	t.Helper()
	raw, _, err := w.disk.ReadFile("/pod/events/intent-queue/"+id+".json", 0)
	if err == nil {
		err = json.Unmarshal(raw, &i)
	}
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestIntentsStartWork(t *testing.T) {
	for name, c := range map[string]struct {
		kind     int
		stranger bool
		err      error
		state    TaskState
		status   string
		starts   int
		reason   string
	}{
		"runs":                       {kind: 38005, state: TaskRuns, status: intentAccepted, starts: 1},
		"is done":                    {kind: 38005, state: TaskDone, status: intentDone, starts: 1},
		"has failed":                 {kind: 38005, state: TaskFailed, status: intentFailed, starts: 1, reason: "the task has failed"},
		"of a kind without template": {kind: 38006, status: intentPending},
		"of a stranger":              {kind: 38005, stranger: true, status: intentPending},
		"not now":                    {kind: 38005, err: fmt.Errorf("no orchestrator: %w", ErrLater), status: intentPending},
		"never":                      {kind: 38005, err: errors.New("too large"), status: intentFailed, reason: "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.work = &work{started: map[string]string{}, err: c.err}
			w.strangers = true
			from := w.friend
			if c.stranger {
				from = relaytest.NewKey(t)
			}
			m := w.open(t)
			e := gift(t, from, rumor(from, c.kind, `{"do":"it"}`, w.own), w.own)
			if err := m.take(t.Context(), e, "ws://a", now); err != nil {
				t.Fatal(err)
			}
			m.workOnAll(t.Context())
			w.work.state = c.state
			m = w.open(t) // a restart keeps the state
			m.workOnAll(t.Context())
			if got := w.marker(t, e.ID); got.Status != c.status || got.Reason != c.reason || (got.Task != "") != (c.starts > 0) || got.EventID != e.ID {
				t.Errorf("the marker is %+v", got)
			}
			if len(w.work.started) != c.starts || c.starts > 0 && !strings.Contains(w.work.message, `"content":"{\"do\":\"it\"}"`) {
				t.Errorf("started %v with %q", w.work.started, w.work.message)
			}
			if w.work.err = nil; errors.Is(c.err, ErrLater) {
				m.workOnAll(t.Context())
				if got := w.marker(t, e.ID); got.Status != intentAccepted {
					t.Errorf("later it is %+v", got)
				}
			}
		})
	}
}

// A program that can write the mailbox must not make a message of a trusted key out of the gift wrap of a
// stranger.
func TestPlantedMessageIsNotBelieved(t *testing.T) {
	for name, plant := range map[string]func(t *testing.T, w *world, id string, forged Record){
		"before the start": func(t *testing.T, w *world, id string, forged Record) { w.plant(t, id, forged) },
		"before the notice": func(t *testing.T, w *world, id string, forged Record) {
			forged.ToldAt = nil
			w.plant(t, id, forged)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.work = &work{started: map[string]string{}}
			w.strangers = true
			stranger := relaytest.NewKey(t)
			e := gift(t, stranger, rumor(stranger, 38005, "real", w.own), w.own)
			m := w.open(t)
			if err := m.take(t.Context(), e, "ws://a", now); err != nil {
				t.Fatal(err)
			}
			forged := w.record(t, e.ID)
			lie := rumor(w.friend, 38005, "forged", w.own)
			lie.ID = lie.GetID()
			forged.Message, forged.Sender = json.RawMessage(lie.String()), string(w.friend.Public())
			plant(t, w, e.ID, forged)
			for _, m := range []*Mailbox{m, w.open(t)} { // in the same life, and after a restart
				m.toWork(e.ID)
				m.workOnAll(t.Context())
				m.tellAll(t.Context())
			}
			if len(w.work.started) != 0 || w.marker(t, e.ID).Status != intentPending {
				t.Errorf("started %v", w.work.started)
			}
			if len(w.told) != 1 || w.told[0].Sender != string(stranger.Public()) {
				t.Errorf("told %+v", w.told)
			}
			if len(w.reports) == 0 || !strings.Contains(w.reports[0], "another message than the gift wrap") {
				t.Errorf("reports %q", w.reports)
			}
		})
	}
}

// Events that a trusted key has signed for another box are public. A program that can write the mailbox
// must not make work of this box out of one.
func TestPlantedIntentForAnotherBoxStartsNothing(t *testing.T) {
	w := newWorld(t)
	w.work = &work{started: map[string]string{}}
	e := signed(t, w.friend, nostr.Event{Kind: 38005, Tags: nostr.Tags{{"p", string(relaytest.NewKey(t).Public())}, {"d", "1"}}, Content: "for another box"})
	w.plant(t, e.ID, Record{Event: json.RawMessage(e.String()), Sender: e.PubKey})
	marker, err := json.Marshal(Intent{Notice: Notice{EventID: e.ID}, Status: intentPending})
	if err != nil {
		t.Fatal(err)
	}
	w.disk.files["/pod/events/intent-queue/"+e.ID+".json"] = string(marker)
	m := w.open(t)
	m.workOnAll(t.Context())
	m.tellAll(t.Context())
	if len(w.work.started) != 0 || len(w.told) != 0 {
		t.Errorf("started %v, told %+v", w.work.started, w.told)
	}
	if len(w.reports) != 2 || !strings.Contains(w.reports[0], "not addressed to this box") {
		t.Errorf("reports %q", w.reports)
	}
}

// A program swaps the file of a message that is not yet told for that of another message.
func TestSwappedMessageIsNotTold(t *testing.T) {
	w := newWorld(t)
	w.tellErr = errors.New("the slot is away")
	m := w.open(t)
	var ids []string
	for _, content := range []string{"first", "second"} {
		e := signed(t, w.friend, nostr.Event{Kind: 1, Tags: nostr.Tags{{"p", string(w.own.Public())}}, Content: content})
		if err := m.take(t.Context(), e, "ws://a", now); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, e.ID)
	}
	w.plant(t, ids[0], w.record(t, ids[1]))
	w.tellErr = nil
	m.tellAll(t.Context())
	if len(w.told) != 1 || w.told[0].EventID != ids[1] || m.Counts().Untold != 1 {
		t.Errorf("told %+v, counts %+v", w.told, m.Counts())
	}
}

func (w *world) plant(t *testing.T, id string, r Record) {
	t.Helper()
	raw, err := json.Marshal(r)
	if err == nil {
		err = w.disk.WriteFile("/pod/events/inbox/"+id+".json", raw, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// If the box dies between the start of a task and the write of the marker, the next boot asks for the
// task of the same event: there is only one task.
func TestIntentsAreStartedOnce(t *testing.T) {
	for n := 1; n < 8; n++ {
		w := newWorld(t)
		w.work = &work{started: map[string]string{}}
		w.disk.mortal = n
		e := signed(t, w.friend, nostr.Event{Kind: 38005, Tags: nostr.Tags{{"p", string(w.own.Public())}, {"d", "1"}}})
		m := w.open(t)
		_ = m.take(t.Context(), e, "ws://a", now) // the box dies during this call
		m.workOnAll(t.Context())
		w.disk.mortal = 0
		m = w.open(t)
		m.tellAll(t.Context())
		if err := m.take(t.Context(), e, "ws://a", now); err != nil {
			t.Fatal(err)
		}
		m.workOnAll(t.Context())
		if got := w.marker(t, e.ID); got.Status != intentAccepted || got.Task != "task-0" || len(w.work.started) != 1 {
			t.Errorf("killed at write %d: %+v, started %v", n, got, w.work.started)
		}
	}
	w := newWorld(t)
	e := signed(t, w.friend, nostr.Event{Kind: 38005, Tags: nostr.Tags{{"p", string(w.own.Public())}, {"d", "1"}}})
	if err := w.open(t).take(t.Context(), e, "ws://a", now); err != nil {
		t.Fatal(err)
	}
	i := w.marker(t, e.ID)
	i.Status = intentAccepted
	raw, err := json.Marshal(i)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.disk.WriteFile("/pod/events/intent-queue/"+e.ID+".json", raw, 0); err != nil {
		t.Fatal(err)
	}
	w.work = &work{started: map[string]string{}, state: TaskDone}
	w.open(t).workOnAll(t.Context())
	if got := w.marker(t, e.ID); got != i || len(w.work.started) != 0 {
		t.Errorf("another program's intent is %+v, started %v", got, w.work.started)
	}
}
