package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters/contract"
)

// If the box gets kill -9 between HTTP writes, it keeps every acknowledged write and no partial
// write. A write without an answer is repeated with its idempotency key and happens once.
func TestAKilledBoxKeepsWhatItAcknowledged(t *testing.T) {
	t.Setenv("MANAGEMENT_API_KEY", boxKey)
	b := boot(t, unprivileged, header+`
[api]
rate_limit = 0
[adapters]
beads = "local-sqlite"
memory = "embedded-ruvector"
events = "local-jsonl"
`)
	waitFor(t, "ready", b.ready)
	var rounds []*crashRound
	writes, repeated := 0, 0
	for n := range *contract.CrashRounds {
		r := &crashRound{name: fmt.Sprintf("r%d", n)}
		r.run(b, rand.IntN(60))
		b = b.again()
		waitFor(t, "ready after a kill", b.ready)
		r.repeat(b)
		if wrong := r.wrong(b); wrong != "" {
			t.Fatal(wrong)
		}
		rounds = append(rounds, r)
		for _, w := range r.writers {
			writes += len(w.acked)
			if w.pending != nil {
				repeated++
			}
		}
	}
	// Later kills have not changed earlier writes.
	for _, r := range rounds {
		if wrong := r.wrong(b); wrong != "" {
			t.Fatal(wrong)
		}
	}
	// The negative test: a write that is missing in the box is detected.
	for i, w := range rounds[0].writers {
		lost := crashRound{name: rounds[0].name, writers: []*crashWriter{{slot: w.slot, acked: w.acked, pending: w.make(rounds[0].name, "never")}}}
		if lost.wrong(b) == "" {
			t.Errorf("writer %d: a lost write went unnoticed", i)
		}
	}
	t.Logf("%d kills, %d acknowledged writes kept, %d repeated", *contract.CrashRounds, writes, repeated)
	b.stopsWell()
}

// crashWrite is one call that creates an entry.
type crashWrite struct {
	name, method, path string
	body               map[string]any
	answer             []byte // the acknowledgement
}

// send makes the call. err is set if the box is gone.
func (w *crashWrite) send(b *box) (status int, replayed bool, answer []byte, err error) {
	body, err := json.Marshal(w.body)
	if err != nil {
		return 0, false, nil, err
	}
	req, err := http.NewRequest(w.method, fmt.Sprintf("http://127.0.0.1:%d%s", b.port, w.path), bytes.NewReader(body))
	if err != nil {
		return 0, false, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+boxKey)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", w.name)
	client := http.Client{Timeout: patience}
	resp, err := client.Do(req)
	if err != nil {
		return 0, false, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header.Get("Idempotent-Replayed") == "true", answer, err
}

// crashWriter writes to one slot and waits for each answer.
type crashWriter struct {
	slot    string
	make    func(round, name string) *crashWrite
	acked   []*crashWrite
	pending *crashWrite // the call that got no answer
	refused string      // the error with which a live box refused a call
}

func crashWriters() []*crashWriter {
	return []*crashWriter{
		{slot: "beads", make: func(round, name string) *crashWrite {
			return &crashWrite{name: name, method: "POST", path: "/v1/beads/epics", body: map[string]any{"title": name, "tags": []string{round}}}
		}},
		{slot: "memory", make: func(round, name string) *crashWrite {
			return &crashWrite{name: name, method: "PUT", path: "/v1/memory/" + round + "/" + name, body: map[string]any{"value": "value of " + name}}
		}},
		{slot: "events", make: func(round, name string) *crashWrite {
			return &crashWrite{name: name, method: "POST", path: "/v1/events", body: map[string]any{"kind": "crash." + round, "payload": map[string]any{"name": name}}}
		}},
	}
}

// crashRound is one life of the box and the writes in it.
type crashRound struct {
	name    string
	writers []*crashWriter
}

// run writes to all slots in parallel and kills the box after n answers.
func (r *crashRound) run(b *box, n int) {
	b.t.Helper()
	r.writers = crashWriters()
	answers := make(chan struct{}, 1<<16)
	var all sync.WaitGroup
	for _, w := range r.writers {
		all.Go(func() { w.write(b, r.name, answers) })
	}
	late := time.After(patience)
	for range n {
		select {
		case <-answers:
		case <-late:
			b.t.Fatal("the box does not answer")
		}
	}
	b.signal(syscall.SIGKILL)
	b.ended()
	all.Wait()
	for _, w := range r.writers {
		if w.refused != "" {
			b.t.Fatalf("%s: %s", w.slot, w.refused)
		}
	}
}

func (w *crashWriter) write(b *box, round string, answers chan<- struct{}) {
	for n := 0; ; n++ {
		one := w.make(round, fmt.Sprintf("%s-%s-%d", round, w.slot, n))
		status, _, answer, err := one.send(b)
		switch {
		case err != nil:
			w.pending = one
			return
		case status/100 != 2:
			w.refused = fmt.Sprintf("%s: %d %.300s", one.name, status, answer)
			return
		}
		one.answer = answer
		w.acked = append(w.acked, one)
		answers <- struct{}{}
	}
}

// repeat sends each unanswered call again. It also repeats the last answered call, which must get
// the same answer.
func (r *crashRound) repeat(b *box) {
	b.t.Helper()
	for _, w := range r.writers {
		status, _, answer, err := w.pending.send(b)
		if err != nil || status/100 != 2 {
			b.t.Fatalf("%s repeated: %d %.300s %v", w.pending.name, status, answer, err)
		}
		w.pending.answer = answer
		if len(w.acked) == 0 || w.slot == "memory" { // an upsert; it has no first answer
			continue
		}
		last := w.acked[len(w.acked)-1]
		status, replayed, answer, err := last.send(b)
		if err != nil || status/100 != 2 || same(answer) != same(last.answer) || !replayed {
			b.t.Fatalf("%s was answered %s; repeated: %d %s %v, replayed %v", last.name, last.answer, status, answer, err, replayed)
		}
		other := *w.make(r.name, "other")
		other.name = last.name
		if status, _, answer, err := other.send(b); err != nil || status != http.StatusUnprocessableEntity {
			b.t.Fatalf("the key of %s with another request: %d %s %v", last.name, status, answer, err)
		}
	}
}

// same returns an answer in a form that does not depend on its spacing.
func same(answer []byte) string {
	var v map[string]any
	if err := json.Unmarshal(answer, &v); err != nil {
		return err.Error() + string(answer)
	}
	return fmt.Sprint(v)
}

// wrong describes the first write of the round that the box does not have exactly once, or extra
// entries. It returns "" if all is correct.
func (r *crashRound) wrong(b *box) string {
	b.t.Helper()
	for _, w := range r.writers {
		found := r.read(b, w.slot)
		wanted := append([]*crashWrite{w.pending}, w.acked...)
		for _, one := range wanted {
			if n := found[one.name]; n != 1 {
				return fmt.Sprintf("%s (%s) is there %d times: %v", one.name, one.answer, n, found)
			}
		}
		if len(found) != len(wanted) {
			return fmt.Sprintf("%d of %s, %d were written: %v", len(found), w.slot, len(wanted), found)
		}
	}
	return ""
}

// read counts the entries of the round in a slot, by name.
func (r *crashRound) read(b *box, slot string) map[string]int {
	b.t.Helper()
	var page struct {
		Items []struct {
			Title, Status, Key, Kind string
			Seq                      uint64
			Payload                  struct{ Name string }
		}
	}
	path := map[string]string{
		"beads": "/v1/beads?limit=1000&tag=" + r.name, "memory": "/v1/memory/" + r.name + "?limit=1000", "events": "/v1/events?limit=1000&kind=crash." + r.name,
	}[slot]
	b.mustCall("GET", path, nil, &page, 200)
	found := map[string]int{}
	last := uint64(0)
	for _, i := range page.Items {
		name := i.Title + i.Key + i.Payload.Name
		switch slot {
		case "memory":
			var e struct{ Value string }
			b.mustCall("GET", "/v1/memory/"+r.name+"/"+i.Key, nil, &e, 200)
			if e.Value != "value of "+i.Key {
				b.t.Fatalf("%s holds %q", i.Key, e.Value)
			}
		case "events":
			if i.Seq <= last {
				b.t.Fatalf("event %d after %d", i.Seq, last)
			}
			last = i.Seq
		case "beads":
			if i.Status != "open" {
				b.t.Fatalf("bead %+v", i)
			}
		}
		found[name]++
	}
	return found
}
