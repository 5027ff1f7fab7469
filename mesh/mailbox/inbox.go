package mailbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

const (
	inboxDir  = "inbox"
	outboxDir = "outbox"
	queueDir  = "intent-queue"
)

// Record is a message of the inbox, in the form of its file.
type Record struct {
	Event             json.RawMessage `json:"event"`             // the event from the relay
	Message           json.RawMessage `json:"message,omitempty"` // decrypted content of a gift wrap
	Sender            string          `json:"sender"`            // public key of the author of the message
	RecipientNpub     string          `json:"recipient_npub"`
	ReceivedAt        time.Time       `json:"received_at"`
	PersistedAt       time.Time       `json:"persisted_at"`
	RelayURL          string          `json:"relay_url"`
	SignatureVerified bool            `json:"signature_verified"`
	ToldAt            *time.Time      `json:"told_at,omitempty"` // when the events slot accepted the notice
}

// parseRecord reads a file of the inbox and verifies the event. message is the event itself, or the
// content of its gift wrap.
func parseRecord(raw []byte) (r Record, event, message *nostr.Event, err error) {
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, nil, nil, fmt.Errorf("is no message of an inbox: %w", err)
	}
	if event, err = nip01.ParseEvent(r.Event); err != nil {
		return r, nil, nil, err
	}
	if err := nip01.Verify(event); err != nil {
		return r, nil, nil, err
	}
	if event.Kind != nip01.KindGiftWrap {
		return r, event, event, nil
	}
	message, err = nip01.ParseRumor(r.Message)
	return r, event, message, err
}

// errOtherEvent means that a program has put the file of one message in the place of another.
var errOtherEvent = errors.New("holds another event than its name says")

func (m *Mailbox) loadInbox() error {
	names, err := m.names(inboxDir, func(name string) bool { return nip01.LowerHex(name, 64) }, maxInbox)
	if err != nil {
		return err
	}
	policy := m.cfg.Policy()
	for _, name := range names {
		raw, _, err := m.cfg.Files.ReadFile(m.path(inboxDir, name+".json"), maxFile)
		if err != nil { // one unreadable file must not prevent the start of the mailbox
			m.unreadable(inboxDir, name, err)
			continue
		}
		r, event, message, err := parseRecord(raw)
		if err == nil && event.ID != name {
			err = errOtherEvent
		}
		if err != nil {
			m.unreadable(inboxDir, name, err) // a relay that still has the event sends it again
			continue
		}
		m.remember(event, message, r.ReceivedAt, policy, letter{told: r.ToldAt != nil})
	}
	return nil
}

func (m *Mailbox) remember(event, message *nostr.Event, received time.Time, p Policy, l letter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l.message, l.created, l.received, l.expires = message.ID, event.CreatedAt.Time(), received, nip01.Expires(event)
	l.stranger = !p.trusts(message.PubKey)
	m.inbox[event.ID] = &l
	m.messages[message.ID] = event.ID
}

// genuine tells whether a file of the inbox holds the message of its event, and the event is for this
// box. parseRecord has verified the event, but a program that can write the file could put an event for
// another box there, or name any author of a message in a gift wrap, which has no signature. After a
// rotation of the key, messages to the old one that were taken before the last start cannot be opened
// again, and count as not genuine.
func (m *Mailbox) genuine(event, message *nostr.Event) error {
	m.mu.Lock()
	l := m.inbox[event.ID]
	known := l != nil && l.taken && l.message == message.ID
	m.mu.Unlock()
	if known {
		return nil
	}
	if !nip01.HasTag(event, "p", m.cfg.Policy().Own) {
		return errors.New("its file holds an event that is not addressed to this box")
	}
	if event == message {
		return nil
	}
	opened, err := unwrap(event, m.cfg.Key())
	if err == nil && opened.ID != message.ID {
		err = errors.New("its file holds another message than the gift wrap")
	}
	return err
}

// receive takes the relays' events for the box. It asks the relays again at intervals, and soon after
// a failed write, because the relays still have the events that could not be written.
func (m *Mailbox) receive(ctx context.Context) {
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, sweepEvery)
		m.mu.Lock()
		m.renewed = cancel
		m.mu.Unlock()
		m.receiveUntil(limited, sync.OnceFunc(func() { time.AfterFunc(sweepSoon, cancel) }))
		cancel()
	}
}

// receiveUntil takes events until ctx ends. After a failure it calls soon, which ends ctx after
// sweepSoon.
func (m *Mailbox) receiveUntil(ctx context.Context, soon func()) {
	s, err := m.cfg.Relays.Subscribe(m.cfg.Policy().filters(), subscription)
	if err != nil {
		m.cfg.Report("MailboxNotReceiving", map[string]any{"message": err.Error()})
		soon()
		<-ctx.Done()
		return
	}
	defer s.Close()
	for {
		e, err := s.Next(ctx)
		if err != nil {
			<-ctx.Done() // the pool may be closed: do not ask it again at once
			return
		}
		err = m.take(ctx, e.Event, e.Relay, time.Now())
		if refusal, ok := errors.AsType[*Refusal](err); ok && (refusal.Reason == ReasonWrite || refusal.Reason == ReasonFull) {
			soon()
		}
	}
}

// take puts an event from a relay into the inbox. It checks and verifies the event, and writes it to
// disk before it reports it. An event that is already in the inbox is not an error.
func (m *Mailbox) take(ctx context.Context, e *nostr.Event, relay string, now time.Time) error {
	if m.has(e.ID) {
		m.metrics.writes.WithLabelValues(inboxDir, "duplicate").Inc()
		return nil
	}
	policy, key := m.cfg.Policy(), m.cfg.Key()
	raw := nip01.EventText(e)
	message, err := policy.admit(e, len(raw), now, key)
	if err == nil {
		if m.hasMessage(message.ID) {
			m.metrics.writes.WithLabelValues(inboxDir, "duplicate").Inc()
			return nil
		}
		err = m.room(policy, message)
	}
	if err == nil {
		err = m.persist(e, message, raw, relay, key.Public(), now)
	}
	if err != nil {
		m.refused(e, err)
		return err
	}
	m.remember(e, message, now, policy, letter{taken: true})
	m.metrics.writes.WithLabelValues(inboxDir, "stored").Inc()
	_ = m.tell(ctx, e.ID) // tell reports its error, and housekeep tries again
	return nil
}

func (m *Mailbox) has(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.inbox[id] != nil
}

func (m *Mailbox) hasMessage(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.messages[id] != ""
}

// room refuses a message if the inbox is full. Strangers may fill only half of it.
func (m *Mailbox) room(p Policy, message *nostr.Event) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	strangers := 0
	for _, l := range m.inbox {
		if l.stranger {
			strangers++
		}
	}
	if len(m.inbox) >= maxInbox || !p.trusts(message.PubKey) && strangers >= maxInbox/2 {
		return refuse(ReasonFull, "the inbox has no room: %d messages, %d of them of strangers", len(m.inbox), strangers)
	}
	return nil
}

func (m *Mailbox) persist(e, message *nostr.Event, raw []byte, relay string, own identity.PublicKey, now time.Time) error {
	r := Record{
		Event: raw, Sender: message.PubKey, RecipientNpub: own.Npub(), ReceivedAt: now.UTC(), PersistedAt: time.Now().UTC(),
		RelayURL: relay, SignatureVerified: true,
	}
	if message != e {
		r.Message = nip01.EventText(message)
	}
	return m.writeRecord(e.ID, r)
}

func (m *Mailbox) writeRecord(id string, r Record) error {
	raw, err := json.Marshal(r)
	if err == nil {
		err = m.cfg.Files.WriteFile(m.path(inboxDir, id+".json"), raw, fileMode)
	}
	if err != nil {
		return &Refusal{ReasonWrite, fmt.Errorf("cannot write the message %s to the inbox: %w", id, err)}
	}
	return nil
}

func (m *Mailbox) refused(e *nostr.Event, err error) {
	reason := ReasonWrite
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		reason = refusal.Reason
	}
	m.metrics.writes.WithLabelValues(inboxDir, "refused").Inc()
	m.metrics.failures.WithLabelValues(reason).Inc()
	switch reason {
	case ReasonWrite, ReasonFull, ReasonSeal, ReasonSender:
		m.cfg.Report("MessageRefused", map[string]any{"event_id": e.ID, "kind": e.Kind, "reason": reason, "message": err.Error()})
	}
}

// tellAll reports all messages that are not reported yet, the oldest first.
func (m *Mailbox) tellAll(ctx context.Context) {
	m.mu.Lock()
	untold := slices.DeleteFunc(slices.Collect(maps.Keys(m.inbox)), func(id string) bool { return m.inbox[id].told })
	slices.SortFunc(untold, func(a, b string) int { return m.inbox[a].received.Compare(m.inbox[b].received) })
	m.mu.Unlock()
	for _, id := range untold {
		if ctx.Err() != nil || errors.Is(m.tell(ctx, id), errNotTaken) {
			return
		}
	}
}

// errNotTaken means that the events slot has not accepted the notice.
var errNotTaken = errors.New("the events slot did not take the notice")

// tell reports a message to the events slot, queues it if it is an intent, and records that in its
// file. If the box dies before the record, the next start repeats these steps with the same id.
func (m *Mailbox) tell(ctx context.Context, id string) error {
	m.files.Lock()
	defer m.files.Unlock()
	err := m.telling(ctx, id)
	if err != nil && ctx.Err() == nil {
		m.cfg.Report("MessageNotTold", map[string]any{"event_id": id, "message": err.Error()})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.inbox[id]
	switch {
	case l == nil:
	case err == nil:
		l.told = true
	case errors.Is(err, fs.ErrNotExist): // removed by hand; a relay that still has it sends it again
		delete(m.messages, l.message)
		delete(m.inbox, id)
	}
	return err
}

func (m *Mailbox) telling(ctx context.Context, id string) error {
	raw, _, err := m.cfg.Files.ReadFile(m.path(inboxDir, id+".json"), maxFile)
	if err != nil {
		return err
	}
	r, event, message, err := parseRecord(raw)
	if err == nil && event.ID != id {
		err = errOtherEvent
	}
	if err != nil {
		return err
	}
	if r.ToldAt != nil {
		return nil
	}
	if err := m.genuine(event, message); err != nil {
		return err
	}
	n := Notice{
		EventID: event.ID, MessageID: message.ID, Kind: message.Kind, Sender: message.PubKey, Private: event != message,
		File: id + ".json", Received: r.ReceivedAt,
	}
	if m.cfg.Tell != nil {
		limited, cancel := context.WithTimeout(ctx, tellLimit)
		err := m.cfg.Tell(limited, n)
		cancel()
		if err != nil {
			return fmt.Errorf("%w: %w", errNotTaken, err)
		}
	}
	if nip01.IsIntent(message.Kind) {
		if err := m.queue(n); err != nil {
			return err
		}
	}
	r.ToldAt = new(time.Now().UTC())
	return m.writeRecord(id, r)
}

// pruneInbox is like pruneOutbox.
func (m *Mailbox) pruneInbox(now time.Time) (failed error) {
	policy := m.cfg.Policy()
	m.files.Lock()
	defer m.files.Unlock()
	m.mu.Lock()
	var old []string
	for id, l := range m.inbox {
		if policy.prunable(l.created, l.received, l.expires, now) {
			old = append(old, id)
		}
	}
	m.mu.Unlock()
	for _, id := range old {
		err := errors.Join(m.cfg.Files.Remove(m.path(queueDir, id+".json")), m.cfg.Files.Remove(m.path(inboxDir, id+".json")))
		if err != nil {
			failed = cmp.Or(failed, err)
			continue
		}
		m.mu.Lock()
		delete(m.messages, m.inbox[id].message)
		delete(m.inbox, id)
		m.mu.Unlock()
		m.metrics.writes.WithLabelValues(inboxDir, "pruned").Inc()
	}
	return failed
}
