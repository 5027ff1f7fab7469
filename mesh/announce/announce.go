// Package announce publishes the events slot on Nostr: what agents do, signed with the box's key. And
// it tells others which relays the box uses (NIP-65, NIP-17).
//
// The slot's journal is both the record and the queue. A cursor stores how far it was published, so
// a crash or a day without relays loses no event. An event is signed with the journal's time, so
// publishing it again gives the same id. The package must never delay the slot, and never publish
// events that came from Nostr.
package announce

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/safeopen"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
	"github.com/dreamlab-ai/agentinit/mesh/pool"
)

// Kinds that are published. Of KindState, a relay keeps only the newest event for each tag d. Of
// KindHistory, it keeps every event.
const (
	KindState   = 30078 // NIP-78
	KindHistory = 1078
)

// inbound is the prefix of the kinds of events that came from Nostr. They may be private.
const inbound = "nostr."

// Times between two attempts to publish.
const (
	retryFirst = time.Second
	retryMost  = 60 * time.Second
)

// maxRefusals is how many times in all the relays may refuse an event for reasons that are not permanent.
// They take half an hour. Then the event is given up: one event must not hold up all later ones for ever.
const maxRefusals = 30

// Events is the events slot of the box.
type Events interface {
	Subscribe(context.Context, adapters.EventFilter, adapters.From) (adapters.Subscription, error)
}

// Signer signs as the box.
type Signer interface{ Sign(*nostr.Event) error }

// Publisher sends events to relays. *pool.Pool implements it.
type Publisher interface {
	Publish(context.Context, *nostr.Event) ([]pool.Result, error)
}

// Config of Run. All fields are required.
type Config struct {
	Events Events
	Signer Signer
	Relays Publisher
	Box    func() string // public key of the box, part of the tag d; it may be rotated
	Cursor string        // path of a file; Run makes its directory
	// MaxEventBytes limits a Nostr event as JSON. Larger ones are reported and not published: a relay
	// that closes the connection at each of them would hold up all later events, and an agent chooses
	// the size.
	MaxEventBytes int
	// Report is called for each event that relays refuse, and when publishing has to wait.
	Report func(what string, fields map[string]any)
	// Waits is called with what holds up publishing, and with nil when it goes on.
	Waits func(*Waiting)
}

// Waiting is why the events are not published now.
type Waiting struct {
	Event  string // id of the event that no relay has taken yet; "" if the events cannot be read
	Since  time.Time
	Tries  int
	Reason string
}

// messagesOf returns the unsigned Nostr events for an event. They are the same at each call.
func messagesOf(box string, e adapters.Event) ([]nostr.Event, error) {
	content, err := nip01.JSON(e)
	if err != nil {
		return nil, err
	}
	of := cmp.Or(string(e.ExecutionID), e.Kind)
	at := nostr.Timestamp(e.TS.Unix())
	return []nostr.Event{
		{Kind: KindHistory, CreatedAt: at, Content: string(content), Tags: nostr.Tags{{"t", e.Kind}}},
		{Kind: KindState, CreatedAt: at, Content: string(content), Tags: nostr.Tags{{"d", "agentbox:" + box + ":" + of}, {"t", e.Kind}}},
	}, nil
}

// Run publishes events until ctx ends. If there is no cursor yet, it begins with the next new event.
func Run(ctx context.Context, c Config) {
	for n := 0; ctx.Err() == nil; n++ {
		before, _ := readCursor(c.Cursor)
		err := c.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if after, _ := readCursor(c.Cursor); after != before {
			n = 0
		}
		c.Report("AgentEventsWait", map[string]any{"error": err.Error()})
		c.Waits(&Waiting{Since: time.Now(), Tries: n + 1, Reason: err.Error()})
		pause(ctx, n)
	}
}

// pause waits before the n-th retry, n from 0. It returns false if ctx has ended.
func pause(ctx context.Context, n int) bool {
	return sleep.For(ctx, min(retryFirst<<min(n, 10), retryMost))
}

// follow publishes events from the cursor on, until ctx ends or something fails.
func (c Config) follow(ctx context.Context) error {
	from := adapters.From{Live: true}
	switch seq, err := readCursor(c.Cursor); {
	case err == nil:
		from = adapters.From{After: seq}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("the cursor cannot be read; it is left as it is: %w", err)
	}
	s, err := c.Events.Subscribe(ctx, adapters.EventFilter{}, from)
	if err != nil {
		return err
	}
	defer s.Close()
	c.Waits(nil)
	for {
		e, err := s.Next(ctx)
		if err != nil {
			return err
		}
		if e.Kind != adapters.KindLagged && !strings.HasPrefix(e.Kind, inbound) {
			if err := c.publish(ctx, e); err != nil {
				return err
			}
		}
		if err := writeCursor(c.Cursor, e.Seq); err != nil {
			return err
		}
	}
}

// publish returns when, for each message of e, a relay has it, or every relay that was asked has refused it
// permanently or maxRefusals times.
func (c Config) publish(ctx context.Context, e adapters.Event) error {
	messages, err := messagesOf(c.Box(), e)
	if err != nil {
		return err
	}
	for i := range messages {
		m := &messages[i]
		if err := c.Signer.Sign(m); err != nil {
			return err
		}
		refusal, err := c.deliver(ctx, e.ID, m)
		if err != nil {
			return err
		}
		if refusal != "" {
			c.Report("AgentEventRefused", map[string]any{"event": e.ID, "kind": m.Kind, "reason": refusal})
		}
	}
	return nil
}

// deliver publishes one message of the event id. It fails only if ctx ends. refusal says why no relay
// will ever have the message; it is "" if one has it.
func (c Config) deliver(ctx context.Context, id string, m *nostr.Event) (refusal string, err error) {
	if size := len(nip01.EventText(m)); size > c.MaxEventBytes {
		return fmt.Sprintf("the event has %d bytes, the limit is %d", size, c.MaxEventBytes), nil
	}
	began := time.Now()
	for n, refusals := 0, 0; ; n++ {
		results, err := c.Relays.Publish(ctx, m)
		published, refused := pool.Verdict(results)
		if published {
			c.Waits(nil)
			return "", nil
		}
		reason := pool.Reasons(results)
		if err != nil {
			reason = err.Error()
		} else {
			if !slices.ContainsFunc(results, func(r pool.Result) bool { return !r.Answered }) {
				refusals++
			}
			if refused || refusals == maxRefusals {
				c.Waits(nil)
				return results[0].Reason, nil
			}
		}
		c.Waits(&Waiting{Event: id, Since: began, Tries: n + 1, Reason: reason})
		if !pause(ctx, n) {
			return "", ctx.Err()
		}
	}
}

type cursor struct {
	Seq uint64 `json:"seq"`
}

// maxCursor is the most bytes of the file; it needs 30. Programs can replace the file.
const maxCursor = 4 << 10

func readCursor(path string) (uint64, error) {
	raw, err := safeopen.ReadFile(path, maxCursor)
	if err != nil {
		return 0, err
	}
	var c cursor
	if err := json.Unmarshal(raw, &c); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return c.Seq, nil
}

func writeCursor(path string, seq uint64) error {
	raw, err := json.Marshal(cursor{seq})
	if err != nil {
		return err
	}
	dir, err := safeopen.MakeDirectory(filepath.Dir(path), 0o750)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.WriteFile(filepath.Base(path), raw, 0o640)
}
