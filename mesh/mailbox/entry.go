package mailbox

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/mesh/nip01"
	"github.com/dreamlab-ai/agentinit/mesh/pool"
)

// Status of a message of the outbox.
type Status string

// Statuses of a message of the outbox.
const (
	Pending   Status = "pending"
	Published Status = "published"
	Failed    Status = "failed" // every relay that was asked has refused it permanently
)

// Times between two attempts to publish.
const (
	retryFirst  = time.Second
	retryMost   = 60 * time.Second
	retrySpread = 500 * time.Millisecond
)

// maxAttempts is how many of the last attempts are kept in the file.
const maxAttempts = 16

// Attempt is one attempt to publish.
type Attempt struct {
	At      time.Time     `json:"at"`
	Results []pool.Result `json:"results"`
}

// Entry is a message of the outbox in the form of its file. It is immutable: its methods return the
// changed entry.
type Entry struct {
	PendingID string `json:"pending_id"`
	Status    Status `json:"status"`
	// To is the recipient of a private message; empty for a public event.
	To string `json:"to,omitempty"`
	// Draft is the unsigned event to publish; for a private message, the rumor.
	Draft json.RawMessage `json:"draft"`
	// Event is the signed event; absent until it is signed.
	Event        json.RawMessage `json:"event,omitempty"`
	EventID      string          `json:"event_id,omitempty"`
	FinalEventID string          `json:"final_event_id,omitempty"` // id of the published event
	Reason       string          `json:"reason,omitempty"`         // why it has failed or must wait
	Tries        int             `json:"tries"`
	Attempts     []Attempt       `json:"attempts"` // the last ones, with increasing times
	CreatedAt    time.Time       `json:"created_at"`
	PublishedAt  *time.Time      `json:"published_at,omitempty"`
	// Replayed says that Send returns an earlier message with the same key, and has queued none.
	Replayed bool `json:"-"`
}

// signed returns the entry with its signed event.
func (e Entry) signed(event *nostr.Event) Entry {
	e.Event, e.EventID = nip01.EventText(event), event.ID
	return e
}

// unsigned returns the entry with a new draft and without its event, after a rotation of the key.
func (e Entry) unsigned(draft *nostr.Event) Entry {
	e.Draft, e.Event, e.EventID = nip01.EventText(draft), nil, ""
	return e
}

// tried returns the entry after one attempt with these results.
func (e Entry) tried(now time.Time, results []pool.Result) Entry {
	if n := len(e.Attempts); n > 0 && !now.After(e.Attempts[n-1].At) {
		now = e.Attempts[n-1].At.Add(time.Millisecond) // the clock was set back
	}
	e.Attempts = append(e.Attempts[max(0, len(e.Attempts)+1-maxAttempts):len(e.Attempts):len(e.Attempts)], Attempt{At: now, Results: results})
	e.Tries++
	published, refused := pool.Verdict(results)
	switch {
	case published:
		e.Status, e.FinalEventID, e.PublishedAt, e.Reason = Published, e.EventID, &now, ""
	case refused:
		e.Status, e.Reason = Failed, pool.Reasons(results)
	default:
		e.Reason = pool.Reasons(results)
	}
	return e
}

// backoff returns how long to wait after n failed attempts: from 1 s, doubled with each, to 60 s. n may
// be any number, because programs can write the file that it comes from. spread (0 to 1) adds up to
// half a second.
func backoff(n int, spread float64) time.Duration {
	return min(retryFirst<<min(max(n-1, 0), 6), retryMost) + time.Duration(spread*float64(retrySpread))
}

// parseEntry reads a file of the outbox. It verifies the event, which must be the one that the
// entry names: other programs may be able to write the file.
func parseEntry(raw []byte) (e Entry, draft, event *nostr.Event, err error) {
	if err := json.Unmarshal(raw, &e); err != nil {
		return e, nil, nil, fmt.Errorf("is no message of an outbox: %w", err)
	}
	if e.Status != Pending && e.Status != Published && e.Status != Failed {
		return e, nil, nil, fmt.Errorf("has the unknown status %.20q", e.Status)
	}
	if !isPendingID(e.PendingID) {
		return e, nil, nil, fmt.Errorf("has no pending_id")
	}
	final := "" // agentinit renames the file to this id
	if e.Status == Published {
		final = e.EventID
	}
	if e.FinalEventID != final {
		return e, nil, nil, fmt.Errorf("has a final_event_id that is not the id of its published event")
	}
	if draft, err = nip01.ParseRumor(e.Draft); err != nil {
		return e, nil, nil, err
	}
	if provesIdentity(draft.Kind) { // a program that can write the file must not get such an event signed
		return e, nil, nil, fmt.Errorf("has kind %d, which proves who the box is and is never published", draft.Kind)
	}
	if e.Event == nil {
		if e.Status == Published || e.EventID != "" {
			return e, nil, nil, fmt.Errorf("names an event that it does not have")
		}
		return e, draft, nil, nil
	}
	if event, err = nip01.ParseEvent(e.Event); err != nil {
		return e, nil, nil, err
	}
	if err := nip01.Verify(event); err != nil {
		return e, nil, nil, err
	}
	switch {
	case event.ID != e.EventID:
		err = fmt.Errorf("holds another event than it names")
	case e.To == "" && event.ID != draft.ID:
		err = fmt.Errorf("holds another event than its draft")
	case e.To != "" && (event.Kind != nip01.KindGiftWrap || !nip01.HasTag(event, "p", e.To)):
		err = fmt.Errorf("holds an event that is no gift wrap for %s", e.To)
	}
	return e, draft, event, err
}

// pendingPrefix begins a pending id; 32 hexadecimal digits follow.
const pendingPrefix = "p-"

func isPendingID(s string) bool {
	digits, ok := strings.CutPrefix(s, pendingPrefix)
	return ok && nip01.LowerHex(digits, 32)
}
