package mailbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
	"github.com/dreamlab-ai/agentinit/mesh/pool"
	"github.com/dreamlab-ai/agentinit/mesh/relay/relaytest"
)

var errKilled = errors.New("killed")

// disk is Files in memory. From write number mortal on, every write fails, as if the process had been
// killed there; 0 = never.
type disk struct {
	mu     sync.Mutex
	files  map[string]string
	mortal int
	writes int
	broken error // the error of every write
	// unreadable is the path of a file that cannot be read.
	unreadable string
	opening    func()   // called before a file is read
	stuck      []string // paths that cannot be removed, as if a program had put directories there
}

func newDisk() *disk { return &disk{files: map[string]string{}} }

func (d *disk) step(path string) error {
	d.writes++
	if d.mortal > 0 && d.writes >= d.mortal {
		if d.writes == d.mortal { // killed during the write
			d.files[path+".tmp-0123"] = "half"
		}
		return errKilled
	}
	return d.broken
}

func (d *disk) ReadDir(dir string) ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	for name := range d.files {
		if path.Dir(name) == dir {
			out = append(out, path.Base(name))
		}
	}
	return out, nil
}

func (d *disk) ReadFile(name string, _ int64) ([]byte, fs.FileInfo, error) {
	if d.opening != nil {
		d.opening()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	text, ok := d.files[name]
	switch {
	case !ok:
		return nil, nil, fs.ErrNotExist
	case name == d.unreadable:
		return nil, nil, fs.ErrPermission
	}
	return []byte(text), nil, nil
}

func (d *disk) WriteFile(name string, data []byte, _ fs.FileMode) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.step(name); err != nil {
		return err
	}
	d.files[name] = string(data)
	return nil
}

func (d *disk) CreateFile(name string, data []byte, mode fs.FileMode) error {
	if _, _, err := d.ReadFile(name, 0); err == nil {
		return fs.ErrExist
	}
	return d.WriteFile(name, data, mode)
}

func (d *disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.step(to); err != nil {
		return err
	}
	d.files[to] = d.files[from]
	delete(d.files, from)
	return nil
}

func (d *disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if slices.Contains(d.stuck, name) {
		return errors.New(name + ": directory not empty")
	}
	if err := d.step(name); err != nil {
		return err
	}
	delete(d.files, name)
	return nil
}

// in lists a directory of the mailbox, sorted.
func (d *disk) in(dir string) []string {
	names, _ := d.ReadDir("/pod/events/" + dir)
	slices.Sort(names)
	return names
}

// relays are Relays that answer calls of Publish from a list, and accept all calls after its end.
// They record the ids that they were asked to publish.
type relays struct {
	mu      sync.Mutex
	answers []answer
	asked   []string
	asks    func() // called by each Publish; may be nil
}

type answer struct {
	results []pool.Result
	err     error
}

func (r *relays) Publish(_ context.Context, e *nostr.Event) ([]pool.Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := nip01.Verify(e); err != nil {
		return nil, err
	}
	if r.asks != nil {
		r.asks()
	}
	if len(r.answers) > 0 {
		a := r.answers[0]
		r.answers = r.answers[1:]
		if a.err == nil {
			r.asked = append(r.asked, e.ID)
		}
		return a.results, a.err
	}
	r.asked = append(r.asked, e.ID)
	return []pool.Result{{URL: "ws://a", Accepted: true}}, nil
}

func (*relays) Subscribe([]nip01.Filter, int) (*pool.Subscription, error) {
	return nil, errors.New("this test receives by Take")
}

// world is the environment of a mailbox. Its disk survives restarts of the mailbox.
type world struct {
	disk        *disk
	relays      *relays
	own, friend *identity.Key
	key         *identity.Key // the current key
	told        []Notice
	tellErr     error
	reports     []string
	work        *work
	strangers   bool // strangers may write
}

func newWorld(t testing.TB) *world {
	w := &world{disk: newDisk(), relays: &relays{}, own: relaytest.NewKey(t), friend: relaytest.NewKey(t)}
	w.key = w.own
	return w
}

func (w *world) open(t testing.TB) *Mailbox {
	t.Helper()
	cfg := Config{
		Dir: "/pod/events", Files: w.disk, Relays: w.relays, Key: func() *identity.Key { return w.key },
		Policy: func() Policy {
			p := allows(w.key, w.key, w.friend)
			p.Strangers = w.strangers
			return p
		},
		Tell:       w.tell,
		Report:     func(what string, fields map[string]any) { w.reports = append(w.reports, fmt.Sprint(what, fields)) },
		Registerer: prometheus.NewRegistry(),
	}
	if w.work != nil {
		cfg.Work = w.work
	}
	m, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (w *world) tell(_ context.Context, n Notice) error {
	if w.tellErr != nil {
		return w.tellErr
	}
	w.disk.mu.Lock()
	_, there := w.disk.files["/pod/events/inbox/"+n.File]
	w.disk.mu.Unlock()
	if !there {
		panic("told of a message that is not on disk")
	}
	w.told = append(w.told, n)
	return nil
}

func (w *world) record(t testing.TB, id string) Record {
	t.Helper()
	raw, _, err := w.disk.ReadFile("/pod/events/inbox/"+id+".json", 0)
	if err != nil {
		t.Fatal(err)
	}
	r, _, _, err := parseRecord(raw)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTake(t *testing.T) {
	w := newWorld(t)
	m := w.open(t)
	e := gift(t, w.friend, rumor(w.friend, KindChat, "the secret", w.own), w.own)
	for range 2 { // the second call has no effect
		if err := m.take(t.Context(), e, "wss://relay", now); err != nil {
			t.Fatal(err)
		}
	}
	r := w.record(t, e.ID)
	if r.RelayURL != "wss://relay" || r.RecipientNpub != w.own.Public().Npub() || !r.SignatureVerified || r.ToldAt == nil ||
		r.Sender != string(w.friend.Public()) || !r.ReceivedAt.Equal(now) || !strings.Contains(string(r.Message), "the secret") {
		t.Errorf("the record is %+v", r)
	}
	if len(w.told) != 1 || w.told[0].EventID != e.ID || !w.told[0].Private || w.told[0].Kind != KindChat {
		t.Errorf("told %+v", w.told)
	}
	if raw, _ := json.Marshal(w.told); strings.Contains(string(raw), "secret") {
		t.Error("the notice holds the text of a private message")
	}
	// The same message in another wrap is the same message, after a restart too.
	m = w.open(t)
	again := gift(t, w.friend, rumor(w.friend, KindChat, "the secret", w.own), w.own)
	if err := m.take(t.Context(), again, "wss://relay", now); err != nil || again.ID == e.ID {
		t.Fatal(err)
	}
	if got := w.disk.in(inboxDir); len(got) != 1 || len(w.told) != 1 {
		t.Errorf("the inbox holds %v, told %d times", got, len(w.told))
	}
	if c := m.Counts(); c.Inbox != 1 || c.Untold != 0 {
		t.Errorf("counts are %+v", c)
	}
}

// The limit is for an event as relays send it, in which "<" is one byte and not six.
func TestMarkupIsNotMeasuredByItsEscapes(t *testing.T) {
	w := newWorld(t)
	m := w.open(t)
	content := strings.Repeat("<&>", (allows(w.own).MaxEventBytes-1024)/3)
	for range 2 { // the second mailbox reads the file
		e := signed(t, w.friend, nostr.Event{Kind: 1, Tags: nostr.Tags{{"p", string(w.own.Public())}}, Content: content})
		if err := m.take(t.Context(), e, "ws://a", now); err != nil {
			t.Fatal(err)
		}
		m = w.open(t)
	}
	if c := m.Counts(); c.Inbox != 1 || c.Untold != 0 {
		t.Errorf("%+v", c)
	}
	if _, err := m.Send(Outgoing{Kind: 1, Content: content}, now); err != nil {
		t.Error(err)
	}
}

func TestRefusedIsNotWritten(t *testing.T) {
	w := newWorld(t)
	m := w.open(t)
	forged := signed(t, w.friend, nostr.Event{Kind: 1, Tags: nostr.Tags{{"p", string(w.own.Public())}}, Content: "a"})
	good := *forged
	forged.Content = "b"
	if reason := reasonOf(t, m.take(t.Context(), forged, "ws://a", now)); reason != ReasonSignature {
		t.Fatalf("refused for %q", reason)
	}
	if w.disk.writes != 0 || len(w.told) != 0 {
		t.Fatal("a forged event was written, or told of")
	}
	// The real event is still accepted.
	if err := m.take(t.Context(), &good, "ws://a", now); err != nil || len(w.disk.in(inboxDir)) != 1 {
		t.Fatal(err)
	}
}

func TestDiskFull(t *testing.T) {
	w := newWorld(t)
	m := w.open(t)
	w.disk.broken = errors.New("no space left on device")
	e := signed(t, w.friend, nostr.Event{Kind: 1, Tags: nostr.Tags{{"p", string(w.own.Public())}}})
	if reason := reasonOf(t, m.take(t.Context(), e, "ws://a", now)); reason != ReasonWrite || len(w.told) != 0 {
		t.Fatalf("refused for %q, told %v", reason, w.told)
	}
	if _, err := m.Send(Outgoing{Kind: 1, Content: "x", Key: "k"}, now); err == nil {
		t.Fatal("a message that is not on disk was accepted")
	}
	w.disk.broken = nil
	if err := m.take(t.Context(), e, "ws://a", now); err != nil || len(w.told) != 1 {
		t.Fatal("the relay's copy was not taken later: ", err)
	}
	if _, err := m.Send(Outgoing{Kind: 1, Content: "x", Key: "k"}, now); err != nil {
		t.Fatal(err)
	}
}

// An intent arrives and the box is killed at its n-th write. After the next start and the relay's
// copy of the event, there is one record and one marker, and all notices name one event.
func TestInboxKilledBetweenAnyTwoWrites(t *testing.T) {
	for n := 1; ; n++ {
		w := newWorld(t)
		w.disk.mortal = n
		e := gift(t, w.friend, rumor(w.friend, 38005, `{"do":"it"}`, w.own), w.own)
		err := w.open(t).take(t.Context(), e, "ws://a", now)
		whole := err == nil && w.disk.writes < n
		w.disk.mortal = 0
		m := w.open(t)
		m.tellAll(t.Context())
		if err := m.take(t.Context(), e, "ws://a", now); err != nil {
			t.Fatalf("killed at write %d: %v", n, err)
		}
		if got := w.disk.in(inboxDir); !slices.Equal(got, []string{e.ID + ".json"}) || w.record(t, e.ID).ToldAt == nil {
			t.Fatalf("killed at write %d: the inbox holds %v", n, got)
		}
		if got := w.disk.in(queueDir); !slices.ContainsFunc(got, func(s string) bool { return s == e.ID+".json" }) {
			t.Fatalf("killed at write %d: the queue holds %v", n, got)
		}
		var marker Intent
		raw, _, _ := w.disk.ReadFile("/pod/events/intent-queue/"+e.ID+".json", 0)
		if err := json.Unmarshal(raw, &marker); err != nil || marker.Status != "pending" || marker.Kind != 38005 {
			t.Fatalf("killed at write %d: the marker is %s", n, raw)
		}
		if len(w.told) == 0 || slices.ContainsFunc(w.told, func(n Notice) bool { return n.EventID != e.ID }) {
			t.Fatalf("killed at write %d: told %+v", n, w.told)
		}
		if whole {
			if n < 4 {
				t.Fatalf("the whole took %d writes only: the test does not see them", n-1)
			}
			return
		}
	}
}

// If another program has changed the status of a marker, the mailbox leaves the marker unchanged.
func TestMarkerKeepsItsStatus(t *testing.T) {
	w := newWorld(t)
	e := signed(t, w.friend, nostr.Event{Kind: 38000, Tags: nostr.Tags{{"p", string(w.own.Public())}, {"d", "1"}}})
	marker := "/pod/events/intent-queue/" + e.ID + ".json"
	w.disk.files[marker] = `{"status":"accepted"}`
	if err := w.open(t).take(t.Context(), e, "ws://a", now); err != nil {
		t.Fatal(err)
	}
	if got := w.disk.files[marker]; got != `{"status":"accepted"}` {
		t.Errorf("the marker is %s", got)
	}
}

func TestUntoldIsToldLater(t *testing.T) {
	w := newWorld(t)
	w.tellErr = errors.New("the slot is away")
	m := w.open(t)
	e := signed(t, w.friend, nostr.Event{Kind: 1, Tags: nostr.Tags{{"p", string(w.own.Public())}}})
	if err := m.take(t.Context(), e, "ws://a", now); err != nil {
		t.Fatal(err)
	}
	if c := m.Counts(); c.Untold != 1 {
		t.Errorf("counts are %+v", c)
	}
	w.tellErr = nil
	m.tellAll(t.Context())
	m.tellAll(t.Context())
	if c := m.Counts(); c.Untold != 0 || len(w.told) != 1 {
		t.Errorf("counts are %+v, told %d times", c, len(w.told))
	}
}

// If another program has changed a file, the mailbox ignores the file and leaves it unchanged.
func TestForeignFiles(t *testing.T) {
	w := newWorld(t)
	e := signed(t, w.friend, nostr.Event{Kind: 1, Tags: nostr.Tags{{"p", string(w.own.Public())}}, Content: "real"})
	if err := w.open(t).take(t.Context(), e, "ws://a", now); err != nil {
		t.Fatal(err)
	}
	w.told = nil
	file := "/pod/events/inbox/" + e.ID + ".json"
	torn := strings.Replace(strings.Replace(w.disk.files[file], "real", "fake", 1), "told_at", "gone", 1)
	out := "/pod/events/outbox/" + pendingID("x") + ".json"
	draft := rumor(w.friend, 1, "in another's name", w.own)
	planted, _ := json.Marshal(Entry{PendingID: pendingID("x"), Status: Pending, Draft: json.RawMessage(draft.String()), Event: json.RawMessage(e.String()), EventID: e.ID})
	w.disk.files[file], w.disk.files[out], w.disk.files["/pod/events/inbox/README"] = torn, string(planted), "hello"
	before := maps.Clone(w.disk.files)
	m := w.open(t)
	m.tellAll(t.Context())
	if !maps.Equal(before, w.disk.files) || len(w.told) != 0 || len(w.reports) != 2 {
		t.Errorf("told %v, reported %v", w.told, w.reports)
	}
	if c := m.Counts(); c.Inbox != 0 || c.Pending != 0 {
		t.Errorf("counts are %+v", c)
	}
	// The relay's copy replaces the changed file.
	if err := m.take(t.Context(), e, "ws://a", now); err != nil || !strings.Contains(w.disk.files[file], "real") {
		t.Error("it was not repaired: ", err)
	}
}

// The box must not sign a login event that another program has put into the outbox.
func TestPlantedProofIsNotSigned(t *testing.T) {
	w := newWorld(t)
	for _, kind := range []int{nip01.KindAuth, 27235} {
		draft := rumor(w.own, kind, "", w.friend)
		planted, err := json.Marshal(Entry{PendingID: pendingID("x"), Status: Pending, Draft: json.RawMessage(draft.String())})
		if err != nil {
			t.Fatal(err)
		}
		w.disk.files["/pod/events/outbox/"+pendingID("x")+".json"] = string(planted)
		m := w.open(t)
		if _, err := m.attempt(t.Context(), pendingID("x")); err == nil || m.Counts().Pending != 0 || len(w.relays.asked) != 0 {
			t.Errorf("kind %d: %v, counts %+v, published %v", kind, err, m.Counts(), w.relays.asked)
		}
	}
}

// A program puts the file of one message in the place of another while they wait. Each keeps its own state,
// and the relays get the other one when its file is back.
func TestSwappedOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := w.open(t)
		var files []string
		for _, content := range []string{"first", "second"} {
			e, err := m.Send(Outgoing{Kind: 1, Content: content}, now)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, "/pod/events/outbox/"+e.PendingID+".json")
		}
		original := w.disk.files[files[0]]
		w.disk.files[files[0]] = w.disk.files[files[1]]
		time.AfterFunc(retryFirst, func() {
			w.disk.mu.Lock()
			defer w.disk.mu.Unlock()
			w.disk.files[files[0]] = original
		})
		runFor(t, m, 3*retryMost)
		if c := m.Counts(); c.Published != 2 || len(w.relays.asked) != 2 || len(w.reports) != 1 {
			t.Errorf("counts %+v, published %v, reports %v", c, w.relays.asked, w.reports)
		}
	})
}

// agentinit renames the file of a published message to the id that it names, which must be that of its
// event: with another one, a program would have agentinit overwrite a file elsewhere.
func TestPlantedNameOfAFile(t *testing.T) {
	for _, final := range []string{"../inbox/" + strings.Repeat("ab", 32), strings.Repeat("ab", 32), ""} {
		w := newWorld(t)
		e, err := w.open(t).Send(Outgoing{Kind: 1, Content: "hello"}, now)
		if err != nil {
			t.Fatal(err)
		}
		e = e.tried(now, []pool.Result{{Accepted: true}})
		e.FinalEventID = final
		planted, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		w.disk.files = map[string]string{"/pod/events/outbox/" + e.PendingID + ".json": string(planted)}
		before := maps.Clone(w.disk.files)
		m := w.open(t)
		_, err = m.attempt(t.Context(), e.PendingID)
		if err == nil || !maps.Equal(before, w.disk.files) || len(w.reports) != 1 {
			t.Errorf("final_event_id %q: %v, reports %v, files %v", final, err, w.reports, slices.Collect(maps.Keys(w.disk.files)))
		}
	}
}

// A program can write any number of tries into a file of the outbox.
func TestPlantedTries(t *testing.T) {
	for _, tries := range []int{math.MinInt, -10, math.MaxInt} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			draft := rumor(w.own, 1, "hello", w.friend)
			planted, err := json.Marshal(Entry{PendingID: pendingID("x"), Status: Pending, Draft: json.RawMessage(draft.String()), Tries: tries})
			if err != nil {
				t.Fatal(err)
			}
			w.disk.files["/pod/events/outbox/"+pendingID("x")+".json"] = string(planted)
			w.relays.answers = []answer{{results: []pool.Result{{URL: "ws://a", Reason: "no answer in time"}}}}
			m := w.open(t)
			runFor(t, m, 2*retryMost)
			if c := m.Counts(); c.Published != 1 {
				t.Errorf("after %d planted tries: %+v, reports %v", tries, c, w.reports)
			}
		})
	}
}

// The mailbox reports files that it cannot read or rename. The other messages still work.
func TestOneFileDoesNotCloseTheMailbox(t *testing.T) {
	w := newWorld(t)
	m := w.open(t)
	e, err := m.Send(Outgoing{Kind: 1, Content: "hello"}, now)
	if err != nil {
		t.Fatal(err)
	}
	w.disk.mortal = w.disk.writes + 2 // at the rename of the published event
	if _, err := m.attempt(t.Context(), e.PendingID); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	bad := "/pod/events/inbox/" + strings.Repeat("ab", 32) + ".json"
	w.disk.mortal, w.disk.broken, w.disk.unreadable, w.disk.files[bad] = 0, errors.New("read-only"), bad, ""
	m = w.open(t) // it cannot remove the unfinished file of the rename either
	if c := m.Counts(); c.Pending != 1 || len(w.reports) != 3 {
		t.Errorf("counts %+v, reports %v", c, w.reports)
	}
	w.disk.broken = nil
	if e, err = m.attempt(t.Context(), e.PendingID); err != nil || e.Status != Published || len(w.relays.asked) != 1 {
		t.Errorf("%+v, %v; relays were asked for %v", e, err, w.relays.asked)
	}
}

// Entry waits while the file of a message is being created or renamed.
func TestEntryWaitsForItsFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := w.open(t)
		e, err := m.Send(Outgoing{Kind: 1, Content: "hello", Key: "k"}, now)
		if err != nil {
			t.Fatal(err)
		}
		m.outbox[e.PendingID].sending = true // as next does
		if e, err = m.attempt(t.Context(), e.PendingID); err != nil {
			t.Fatal(err)
		}
		got := make(chan Entry, 1)
		go func() {
			again, err := m.Send(Outgoing{Kind: 1, Content: "hello", Key: "k"}, now)
			if err != nil {
				t.Error(err)
			}
			got <- again
		}()
		synctest.Wait()
		m.settle(e, now)
		if again := <-got; again.FinalEventID != e.EventID || !again.Replayed || e.Replayed {
			t.Errorf("got %+v", again)
		}
	})
}

// Entry finds a message that is published after it has looked for the file's name.
func TestEntryFollowsARename(t *testing.T) {
	w := newWorld(t)
	m := w.open(t)
	e, err := m.Send(Outgoing{Kind: 1, Content: "hello"}, now)
	if err != nil {
		t.Fatal(err)
	}
	w.disk.opening = func() {
		w.disk.opening = nil
		id, _ := m.next(time.Now())
		m.publish(t.Context(), id)
	}
	got, there, err := m.Entry(e.PendingID)
	if err != nil || !there || got.Status != Published {
		t.Errorf("got %+v, %t, %v", got, there, err)
	}
}

func TestInboxIsBounded(t *testing.T) {
	w := newWorld(t)
	m := w.open(t)
	p := allows(w.own, w.own, w.friend)
	p.Strangers = true
	m.cfg.Policy = func() Policy { return p }
	fill := func(n int, stranger bool) {
		for i := range n {
			m.inbox[fmt.Sprint(stranger, i)] = &letter{stranger: stranger, told: true}
		}
	}
	to := nostr.Tags{{"p", string(w.own.Public())}}
	fill(maxInbox/2, true)
	if reason := reasonOf(t, m.take(t.Context(), signed(t, relaytest.NewKey(t), nostr.Event{Kind: 1, Tags: to}), "", now)); reason != ReasonFull {
		t.Errorf("a stranger too many: %q", reason)
	}
	if err := m.take(t.Context(), signed(t, w.friend, nostr.Event{Kind: 1, Tags: to}), "", now); err != nil {
		t.Errorf("strangers kept a friend out: %v", err)
	}
	fill(maxInbox/2, false)
	if reason := reasonOf(t, m.take(t.Context(), signed(t, w.friend, nostr.Event{Kind: 1, Tags: to, Content: "2"}), "", now)); reason != ReasonFull {
		t.Errorf("a message too many: %q", reason)
	}
}

func TestPruned(t *testing.T) {
	w := newWorld(t)
	m := w.open(t)
	to := nostr.Tags{{"p", string(w.own.Public())}}
	old := signed(t, w.friend, nostr.Event{Kind: 38000, Tags: append(nostr.Tags{{"d", "x"}}, to...)})
	if err := m.take(t.Context(), old, "", now); err != nil {
		t.Fatal(err)
	}
	later := now.AddDate(0, 0, 31)
	fresh := signed(t, w.friend, nostr.Event{Kind: 1, Tags: to, CreatedAt: nostr.Timestamp(later.Unix())})
	if err := m.take(t.Context(), fresh, "", later); err != nil {
		t.Fatal(err)
	}
	m.prune(later)
	if got := w.disk.in(inboxDir); len(got) != 2 {
		t.Errorf("pruned before the dates of gift wraps allow it: %v", got)
	}
	m.prune(later.AddDate(0, 0, 2))
	if got := w.disk.in(inboxDir); !slices.Equal(got, []string{fresh.ID + ".json"}) || len(w.disk.in(queueDir)) != 0 {
		t.Errorf("left are %v and %v", got, w.disk.in(queueDir))
	}
	if reason := reasonOf(t, m.take(t.Context(), old, "", later.AddDate(0, 0, 2))); reason != ReasonStale {
		t.Errorf("a relay brought it back: %q", reason)
	}
}

// A message that cannot be removed keeps no other one, and no room in the outbox.
func TestPrunedAllButOne(t *testing.T) {
	w := newWorld(t)
	m := w.open(t)
	to := nostr.Tags{{"p", string(w.own.Public())}}
	letters, entries := map[bool]string{}, map[bool]Entry{} // by whether they cannot be removed
	for _, stuck := range []bool{true, false} {
		e := signed(t, w.friend, nostr.Event{Kind: 38000, Tags: append(nostr.Tags{{"d", fmt.Sprint(stuck)}}, to...)})
		if err := m.take(t.Context(), e, "", now); err != nil {
			t.Fatal(err)
		}
		sent, err := m.Send(Outgoing{Kind: 1, Content: fmt.Sprint(stuck)}, now)
		if err != nil {
			t.Fatal(err)
		}
		m.outbox[sent.PendingID].status = Failed
		letters[stuck], entries[stuck] = e.ID+".json", sent
	}
	w.disk.stuck = []string{"/pod/events/inbox/" + letters[true], "/pod/events/outbox/" + entries[true].PendingID + ".json"}
	m.prune(now.AddDate(1, 0, 0))
	if got := w.disk.in(inboxDir); !slices.Equal(got, []string{letters[true]}) {
		t.Errorf("left are %v in the inbox", got)
	}
	if got := w.disk.in(outboxDir); !slices.Equal(got, []string{entries[true].PendingID + ".json"}) {
		t.Errorf("left are %v in the outbox", got)
	}
	for i := range maxDone + maxPending - 1 {
		m.outbox[fmt.Sprint(i)] = &slot{file: fmt.Sprint(i), status: Failed, created: now.AddDate(1, 0, 0)}
	}
	if _, err := m.Send(Outgoing{Kind: 1, Content: "more"}, now.AddDate(1, 0, 0)); err != nil {
		t.Error(err)
	}
}

// runFor runs the mailbox for d, in the fake time of synctest.
func runFor(t *testing.T, m *Mailbox, d time.Duration) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); m.Run(ctx) }()
	time.Sleep(d)
	synctest.Wait()
	cancel()
	<-done
}

func TestPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		silent := []pool.Result{{URL: "ws://a", Reason: "no answer in time"}}
		w.relays.answers = []answer{{err: pool.ErrNoRelay}, {err: pool.ErrNoRelay}, {results: silent}, {results: silent}, {results: []pool.Result{{Reason: "duplicate: have it"}, {Reason: "blocked: no"}}}}
		m := w.open(t)
		began := time.Now()
		e, err := m.Send(Outgoing{Kind: 1, Content: "hello"}, began)
		if err != nil {
			t.Fatal(err)
		}
		if got := w.disk.in(outboxDir); !slices.Equal(got, []string{e.PendingID + ".json"}) || e.EventID == "" {
			t.Fatalf("before it is published the outbox holds %v", got)
		}
		waited := make(chan Entry, 1)
		go func() {
			e, _, err := m.Wait(t.Context(), e.PendingID)
			if err != nil {
				t.Error(err)
			}
			waited <- e
		}()
		runFor(t, m, time.Minute)
		got := <-waited
		if got.Status != Published || got.FinalEventID != e.EventID || len(got.Attempts) != 3 {
			t.Errorf("it became %+v", got)
		}
		for i := range got.Attempts[1:] {
			wait := got.Attempts[i+1].At.Sub(got.Attempts[i].At)
			if least := backoff(i+1, 0); wait < least || wait > least+retrySpread {
				t.Errorf("between attempts %d and %d it waited %s", i+1, i+2, wait)
			}
		}
		if left := w.disk.in(outboxDir); !slices.Equal(left, []string{e.EventID + ".json"}) {
			t.Errorf("the outbox holds %v", left)
		}
		if slices.ContainsFunc(w.relays.asked, func(id string) bool { return id != e.EventID }) {
			t.Errorf("relays were asked for %v", w.relays.asked)
		}
	})
}

// A relay takes a message at the moment at which the box ends.
func TestPublishedAtTheEnd(t *testing.T) {
	w := newWorld(t)
	m := w.open(t)
	e, err := m.Send(Outgoing{Kind: 1, Content: "hello"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w.relays.asks = cancel
	m.Run(ctx)
	if got, there, err := m.Entry(e.PendingID); err != nil || !there || got.Status != Published {
		t.Errorf("it became %+v, %t, %v", got, there, err)
	}
}

func TestRefusedByAllRelaysFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.relays.answers = []answer{{results: []pool.Result{{URL: "ws://a", Reason: "blocked: not you"}}}}
		m := w.open(t)
		e, err := m.Send(Outgoing{Kind: 1, Content: "hello"}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		runFor(t, m, time.Hour)
		got, there, err := m.Entry(e.PendingID)
		if err != nil || !there || got.Status != Failed || !strings.Contains(got.Reason, "not you") || len(w.relays.asked) != 1 {
			t.Errorf("%+v, %v, %v", got, there, err)
		}
	})
}

// A message is sent and the box is killed at its n-th write. The next start publishes the message,
// and no relay ever sees a second id of it.
func TestOutboxKilledBetweenAnyTwoWrites(t *testing.T) {
	for _, private := range []bool{false, true} {
		for n, whole := 1, false; !whole; n++ {
			w := newWorld(t)
			o := Outgoing{Kind: 1, Content: "hello", Key: "once"}
			if private {
				o.Kind, o.To = KindChat, w.friend.Public()
			}
			w.relays.answers = []answer{{results: []pool.Result{{Reason: "no answer in time"}}}} // the event may have arrived
			w.disk.mortal = n
			m := w.open(t)
			_, err := m.Send(o, now)
			if err == nil {
				for range 2 {
					_, _ = m.attempt(t.Context(), pendingID("once"))
				}
			}
			whole = w.disk.writes < n
			w.disk.mortal = 0
			m = w.open(t)
			e, err := m.Send(o, now.Add(time.Hour)) // the caller has had no answer and sends again
			if err != nil {
				t.Fatalf("killed at write %d: %v", n, err)
			}
			for range 2 {
				if e.Status == Published {
					break
				}
				if e, err = m.attempt(t.Context(), e.PendingID); err != nil {
					t.Fatalf("killed at write %d: %v", n, err)
				}
			}
			asked := slices.Compact(slices.Clone(w.relays.asked))
			if len(asked) != 1 || e.FinalEventID != asked[0] {
				t.Fatalf("killed at write %d: relays saw %v, the entry says %+v", n, asked, e)
			}
			if got := w.disk.in(outboxDir); !slices.Equal(got, []string{asked[0] + ".json"}) {
				t.Fatalf("killed at write %d: the outbox holds %v", n, got)
			}
			if whole && n < 5 {
				t.Fatalf("the whole took %d writes only: the test does not see them", n-1)
			}
		}
	}
}

func TestRotationSignsAnew(t *testing.T) {
	for _, to := range []bool{false, true} {
		w := newWorld(t)
		m := w.open(t)
		o := Outgoing{Kind: 1, Content: "x"}
		if to {
			o = Outgoing{Kind: KindChat, Content: "x", To: w.friend.Public()}
		}
		before, err := m.Send(o, now)
		if err != nil {
			t.Fatal(err)
		}
		w.key = relaytest.NewKey(t)
		m.Rotated()
		after, err := m.attempt(t.Context(), before.PendingID)
		if err != nil || after.Status != Published || after.EventID == before.EventID {
			t.Fatalf("%+v, %v", after, err)
		}
		draft, err := nip01.ParseRumor(after.Draft)
		if err != nil || draft.PubKey != string(w.key.Public()) || draft.CreatedAt != nostr.Timestamp(now.Unix()) {
			t.Errorf("the draft is %v, %v", draft, err)
		}
	}
}

func TestSendRefuses(t *testing.T) {
	w := newWorld(t)
	m := w.open(t)
	friend := w.friend.Public()
	for _, row := range []struct {
		o     Outgoing
		field string
	}{
		{Outgoing{Kind: nip01.KindAuth}, "kind"},
		{Outgoing{Kind: 27235}, "kind"},
		{Outgoing{Kind: nip01.KindGiftWrap}, "kind"},
		{Outgoing{Kind: KindChat, Content: "to whom?"}, "kind"},
		{Outgoing{Kind: -1}, "event"},
		{Outgoing{Kind: 65536}, "event"},
		{Outgoing{Kind: 1, Tags: nostr.Tags{{}}}, "event"},
		{Outgoing{Kind: 1, Content: strings.Repeat("x", 9000)}, "content"},
		{Outgoing{Kind: KindChat, To: friend, Content: strings.Repeat("x", maxRumor)}, "content"},
	} {
		_, err := m.Send(row.o, now)
		if invalid, ok := errors.AsType[*InvalidError](err); !ok || invalid.Field != row.field {
			t.Errorf("%.40v: %v", row.o, err)
		}
	}
	if w.disk.writes != 0 {
		t.Error("something was written")
	}
	if _, err := m.Send(Outgoing{Kind: 1, Content: "a", Key: "k"}, now); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Send(Outgoing{Kind: 1, Content: "b", Key: "k"}, now); !errors.Is(err, ErrMismatch) {
		t.Errorf("the key of another message: %v", err)
	}
	for i := range maxPending {
		m.outbox[fmt.Sprint(i)] = &slot{status: Pending}
	}
	if _, err := m.Send(Outgoing{Kind: 1}, now); !errors.Is(err, ErrFull) {
		t.Errorf("a message too many: %v", err)
	}
}

// The largest private message that is accepted can be encrypted and read.
func TestLargestPrivateMessage(t *testing.T) {
	w := newWorld(t)
	m := w.open(t)
	p := allows(w.own)
	p.MaxEventBytes = 128 << 10
	m.cfg.Policy = func() Policy { return p }
	e, err := m.Send(Outgoing{Kind: KindChat, To: w.friend.Public(), Content: strings.Repeat("x", maxRumor-400)}, now)
	if err != nil || e.Event == nil {
		t.Fatal("not signed: ", err, w.reports)
	}
	event, err := nip01.ParseEvent(e.Event)
	if err != nil {
		t.Fatal(err)
	}
	message, err := unwrap(event, w.friend)
	if err != nil || len(message.Content) != maxRumor-400 || message.PubKey != string(w.own.Public()) {
		t.Fatal(err)
	}
	_, err = m.Send(Outgoing{Kind: KindChat, To: w.friend.Public(), Content: strings.Repeat("<", maxRumor-400)}, now)
	if _, ok := errors.AsType[*InvalidError](err); !ok {
		t.Errorf("what nip59 makes six times as long: %v", err)
	}
}

// Without a tag d of its own, an addressable event would replace the one before it.
func TestAddressableEventsGetADTag(t *testing.T) {
	w := newWorld(t)
	m := w.open(t)
	seen := map[string]bool{}
	for range 3 {
		e, err := m.Send(Outgoing{Kind: 38000, Content: "{}"}, now)
		if err != nil {
			t.Fatal(err)
		}
		event, err := nip01.ParseEvent(e.Event)
		if err != nil {
			t.Fatal(err)
		}
		seen[nip01.TagValue(event, "d")] = true
	}
	if len(seen) != 3 || seen[""] {
		t.Errorf("d tags are %v", seen)
	}
}

func TestTried(t *testing.T) {
	refused, silent := pool.Result{URL: "ws://a", Reason: "blocked: no"}, pool.Result{URL: "ws://b", Reason: "rate-limited: slow down"}
	e := Entry{Status: Pending, EventID: "id"}
	for range 3 * maxAttempts {
		e = e.tried(now, []pool.Result{refused, silent})
	}
	if e.Status != Pending || e.Tries != 3*maxAttempts || len(e.Attempts) != maxAttempts || e.Reason == "" {
		t.Errorf("%+v", e)
	}
	for i := range e.Attempts[1:] {
		if !e.Attempts[i+1].At.After(e.Attempts[i].At) {
			t.Error("attempts are not strictly later each time")
		}
	}
	if got := e.tried(now, []pool.Result{refused}); got.Status != Failed {
		t.Errorf("%+v", got)
	}
	if got := e.tried(now, []pool.Result{refused, {Accepted: true}}); got.Status != Published || got.FinalEventID != "id" || got.PublishedAt == nil {
		t.Errorf("%+v", got)
	}
	if backoff(1, 0) != time.Second || backoff(3, 0) != 4*time.Second || backoff(1000, 1) != retryMost+retrySpread {
		t.Error("backoff")
	}
}

func FuzzParseEntry(f *testing.F) {
	w := newWorld(f)
	m := w.open(f)
	for _, o := range []Outgoing{{Kind: 1, Content: "x"}, {Kind: KindChat, Content: "x", To: w.friend.Public()}} {
		e, err := m.Send(o, now)
		if err != nil {
			f.Fatal(err)
		}
		for _, e := range []Entry{e, e.tried(now, []pool.Result{{Accepted: true}})} {
			raw, _ := json.Marshal(e)
			f.Add(raw)
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, draft, event, err := parseEntry(raw)
		if err != nil {
			return
		}
		if draft == nil || event == nil && e.Status == Published || event != nil && (nip01.Verify(event) != nil || event.ID != e.EventID) || e.FinalEventID != "" && (event == nil || e.FinalEventID != event.ID) {
			t.Fatalf("accepted %s", raw)
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	w := newWorld(f)
	m := w.open(f)
	for _, e := range []*nostr.Event{
		signed(f, w.friend, nostr.Event{Kind: 1, Tags: nostr.Tags{{"p", string(w.own.Public())}}}),
		gift(f, w.friend, rumor(w.friend, KindChat, "x", w.own), w.own),
	} {
		if err := m.take(f.Context(), e, "ws://a", now); err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(w.disk.files["/pod/events/inbox/"+e.ID+".json"]))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		_, event, message, err := parseRecord(raw)
		if err == nil && (message == nil || nip01.Verify(event) != nil) {
			t.Fatalf("accepted %s", raw)
		}
	})
}
