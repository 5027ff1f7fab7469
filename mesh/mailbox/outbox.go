package mailbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip59"

	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
	"github.com/dreamlab-ai/agentinit/mesh/pool"
)

// Outgoing is a message to publish.
type Outgoing struct {
	Kind    int
	Tags    nostr.Tags
	Content string
	// To is the recipient of a private message, which is published in a gift wrap (NIP-59).
	To identity.PublicKey
	// Key is the idempotency key: calls with the same key make one message. "" always makes a new one.
	Key string
}

// Errors of Send.
var (
	ErrFull     = errors.New("the outbox has no room")
	ErrMismatch = errors.New("the idempotency key was used for another message")
)

// InvalidError says which field of a message is wrong, and why.
type InvalidError struct{ Field, Reason string }

func (e *InvalidError) Error() string { return e.Field + " " + e.Reason }

// maxRumor limits a private message as the JSON that nip59 encrypts, which has "<", ">" and "&" as six
// bytes each. The message is encrypted twice and padded; the result must not exceed the 65535 bytes that
// NIP-44 can encrypt.
const maxRumor = 40 << 10

// slot is the part of a message of the outbox that is kept in memory.
type slot struct {
	file    string // file name without .json: the pending id, or after publishing the event id
	status  Status
	due     time.Time
	created time.Time
	sending bool
}

func (m *Mailbox) loadOutbox() error {
	names, err := m.names(outboxDir, func(name string) bool { return isPendingID(name) || nip01.LowerHex(name, 64) }, maxOutbox)
	if err != nil {
		return err
	}
	for _, name := range names {
		e, err := m.readEntry(name)
		if err != nil {
			m.unreadable(outboxDir, name, err)
			continue
		}
		s := &slot{file: name, status: e.Status, created: e.CreatedAt}
		if e.Status == Published && name == e.PendingID { // the box died before the rename
			if file, err := m.rename(e); err == nil {
				s.file = file
			} else { // attempt tries the rename again
				m.unreadable(outboxDir, name, err)
				s.status = Pending
			}
		}
		m.outbox[e.PendingID] = s
	}
	return nil
}

func (m *Mailbox) readEntry(name string) (Entry, error) {
	raw, _, err := m.cfg.Files.ReadFile(m.path(outboxDir, name+".json"), maxFile)
	if err != nil {
		return Entry{}, err
	}
	e, _, _, err := parseEntry(raw)
	if err == nil && name != e.PendingID && name != e.FinalEventID {
		err = errOtherName
	}
	return e, err
}

// errOtherName means that a program has put the file of one message in the place of another.
var errOtherName = errors.New("holds another message than its name says")

func (m *Mailbox) writeEntry(name string, e Entry) error {
	raw, err := json.Marshal(e)
	if err == nil {
		err = m.cfg.Files.WriteFile(m.path(outboxDir, name+".json"), raw, fileMode)
	}
	if err != nil {
		m.metrics.failures.WithLabelValues(ReasonWrite).Inc()
		return fmt.Errorf("cannot write the message %s to the outbox: %w", e.PendingID, err)
	}
	return nil
}

// rename gives the file of a published message the id of its event as name.
func (m *Mailbox) rename(e Entry) (string, error) {
	err := m.cfg.Files.Rename(m.path(outboxDir, e.PendingID+".json"), m.path(outboxDir, e.FinalEventID+".json"))
	return e.FinalEventID, err
}

// Send puts a message into the outbox. When it returns, the message is on disk, normally already
// signed, and Run publishes it as soon as a relay accepts it. The id of a public event is that of its
// draft. It depends on the date and the key, so it changes only if the key is rotated.
func (m *Mailbox) Send(o Outgoing, now time.Time) (Entry, error) {
	key := m.cfg.Key()
	e := Entry{PendingID: pendingID(o.Key), Status: Pending, To: string(o.To), Attempts: []Attempt{}, CreatedAt: now.UTC()}
	draft, err := draftOf(o, e.PendingID, key.Public(), now, m.cfg.Policy())
	if err != nil {
		return Entry{}, err
	}
	e.Draft = nip01.EventText(draft)
	if known, err := m.again(e, draft); known.PendingID != "" || err != nil {
		return known, err
	}
	if m.crowded() {
		if err := m.pruneOutbox(now); err != nil && m.crowded() {
			return Entry{}, err
		}
	}
	if err := m.reserve(e); err != nil {
		return Entry{}, err
	}
	// If the box dies before this write, there is no message. If it dies after the write, the next
	// start signs the same draft.
	if err := m.writeEntry(e.PendingID, e); err != nil {
		m.drop(e.PendingID)
		return Entry{}, err
	}
	if signed, err := m.sign(e, draft, key); err != nil {
		m.cfg.Report("MessageNotSigned", map[string]any{"pending_id": e.PendingID, "message": err.Error()})
	} else {
		e = signed
	}
	m.metrics.writes.WithLabelValues(outboxDir, "queued").Inc()
	m.settle(e, time.Time{})
	return e, nil
}

// pendingID derives the id from the key, or makes a random id if the key is "".
func pendingID(key string) string {
	var id [16]byte
	if key == "" {
		_, _ = rand.Read(id[:]) // never fails: crypto/rand ends the process instead
	} else {
		sum := sha256.Sum256([]byte(key))
		copy(id[:], sum[:])
	}
	return pendingPrefix + hex.EncodeToString(id[:])
}

func draftOf(o Outgoing, pendingID string, own identity.PublicKey, now time.Time, p Policy) (*nostr.Event, error) {
	d := &nostr.Event{PubKey: string(own), CreatedAt: nostr.Timestamp(now.Unix()), Kind: o.Kind, Tags: slices.Clone(o.Tags), Content: o.Content}
	if d.Tags == nil {
		d.Tags = nostr.Tags{}
	}
	if o.To != "" && !nip01.HasTag(d, "p", string(o.To)) {
		d.Tags = append(d.Tags, nostr.Tag{"p", string(o.To)})
	}
	// A relay keeps only the newest addressable event for each tag d (NIP-01): without a tag d of its
	// own, the message would replace another one.
	if d.IsAddressable() && !slices.ContainsFunc(d.Tags, func(t nostr.Tag) bool { return len(t) > 1 && t[0] == "d" }) {
		d.Tags = append(d.Tags, nostr.Tag{"d", pendingID})
	}
	d.ID = d.GetID()
	raw, escaped := nip01.EventText(d), d.String()
	_, err := nip01.ParseRumor(raw)
	switch {
	case err != nil:
		return nil, &InvalidError{"event", "is not valid: " + err.Error()}
	case o.To == "" && (d.Kind == nip01.KindSeal || d.Kind == nip01.KindGiftWrap || d.Kind == KindChat || d.Kind == kindFile):
		return nil, &InvalidError{"kind", fmt.Sprintf("%d is private; say to whom", d.Kind)}
	case provesIdentity(d.Kind):
		return nil, &InvalidError{"kind", fmt.Sprintf("%d proves who the box is and is never published", d.Kind)}
	case o.To != "" && len(escaped) > maxRumor:
		return nil, &InvalidError{"content", fmt.Sprintf("makes a private message of %d bytes, the limit is %d", len(escaped), maxRumor)}
	case len(raw) > p.MaxEventBytes:
		return nil, &InvalidError{"content", fmt.Sprintf("makes an event of %d bytes, the limit is %d", len(raw), p.MaxEventBytes)}
	}
	return d, nil
}

// provesIdentity tells whether an event of that kind logs its author in at relays (NIP-42) or HTTP
// servers (NIP-98).
func provesIdentity(kind int) bool { return kind == nip01.KindAuth || kind == 27235 }

// again returns the earlier message with the same idempotency key, an empty entry if there is none.
func (m *Mailbox) again(e Entry, draft *nostr.Event) (Entry, error) {
	known, there, err := m.Entry(e.PendingID)
	if err != nil || !there {
		return Entry{}, err
	}
	before, err := nip01.ParseRumor(known.Draft)
	if err != nil {
		return Entry{}, err
	}
	before.CreatedAt, before.PubKey = draft.CreatedAt, draft.PubKey
	if known.To != e.To || before.GetID() != draft.ID {
		return Entry{}, ErrMismatch
	}
	known.Replayed = true
	return known, nil
}

// reserve takes a place in the outbox. Of two calls with the same key, only the first one gets it.
func (m *Mailbox) reserve(e Entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	pending := 0
	for _, s := range m.outbox {
		if s.status == Pending {
			pending++
		}
	}
	if m.outbox[e.PendingID] != nil {
		return fmt.Errorf("%w: a call with the same key is running", ErrFull)
	}
	if pending >= maxPending {
		return fmt.Errorf("%w: %d messages wait to be published", ErrFull, pending)
	}
	m.outbox[e.PendingID] = &slot{file: e.PendingID, status: Pending, created: e.CreatedAt, sending: true}
	return nil
}

func (m *Mailbox) drop(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.outbox, id)
	m.tellChanged()
}

// tellChanged wakes the callers of Entry and Wait. The caller holds the mutex.
func (m *Mailbox) tellChanged() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// sign makes the signed event and writes it to disk. Publishing comes only after that: each new gift
// wrap has another id, and relays must never get two for one message.
func (m *Mailbox) sign(e Entry, draft *nostr.Event, key *identity.Key) (Entry, error) {
	if draft.PubKey != string(key.Public()) { // the key was rotated
		draft.PubKey = string(key.Public())
		draft.ID = draft.GetID()
		e = e.unsigned(draft)
	}
	event := *draft
	if e.To == "" {
		if err := key.Sign(&event); err != nil {
			return e, err
		}
	} else {
		to := identity.PublicKey(e.To)
		encrypt := func(text string) (string, error) { return key.Encrypt(text, to) }
		var err error
		if event, err = nip59.GiftWrap(*draft, e.To, encrypt, key.Sign, nil); err != nil {
			return e, err
		}
	}
	e = e.signed(&event)
	return e, m.writeEntry(e.PendingID, e)
}

// settle ends one step for a message: it records the new status and the time of the next attempt.
func (m *Mailbox) settle(e Entry, due time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.outbox[e.PendingID]; s != nil {
		s.status, s.due, s.sending = e.Status, due, false
		if e.Status == Published {
			s.file = e.FinalEventID
		}
	}
	m.tellChanged()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// send publishes the messages that are due, until ctx ends.
func (m *Mailbox) send(ctx context.Context) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	places := make(chan struct{}, parallel)
	for {
		id, wait := m.next(time.Now())
		if id == "" {
			select {
			case <-m.wake:
			case <-time.After(wait):
			case <-ctx.Done():
				return
			}
			continue
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return
		}
		tasks.Go(func() {
			defer func() { <-places }()
			m.publish(ctx, id)
		})
	}
}

// next returns the oldest message that is due and marks it as sending. If none is due, it returns how
// long to wait.
func (m *Mailbox) next(now time.Time) (id string, wait time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ahead := m.quiet.Sub(now); ahead > 0 {
		return "", ahead
	}
	wait = retryMost
	for candidate, s := range m.outbox {
		if s.status != Pending || s.sending {
			continue
		}
		if ahead := s.due.Sub(now); ahead > 0 {
			wait = min(wait, ahead)
			continue
		}
		if id == "" || s.created.Before(m.outbox[id].created) {
			id = candidate
		}
	}
	if id != "" {
		m.outbox[id].sending = true
	}
	return id, wait
}

// publish makes one attempt with a message that next has marked.
func (m *Mailbox) publish(ctx context.Context, id string) {
	e, err := m.attempt(ctx, id)
	now := time.Now()
	switch {
	case errors.Is(err, pool.ErrNoRelay) || err != nil && ctx.Err() != nil:
		m.mu.Lock()
		m.quiet = now.Add(noRelayWait)
		m.mu.Unlock()
		m.settle(Entry{PendingID: id, Status: Pending}, now)
	case err != nil:
		m.cfg.Report("MessageNotPublished", map[string]any{"pending_id": id, "message": err.Error()})
		m.settle(Entry{PendingID: id, Status: Pending}, now.Add(retryMost))
	default:
		if e.Status != Pending {
			m.metrics.writes.WithLabelValues(outboxDir, string(e.Status)).Inc()
		}
		if e.Status == Failed {
			m.cfg.Report("MessageRefusedByRelays", map[string]any{"pending_id": id, "message": e.Reason})
		}
		m.settle(e, now.Add(backoff(e.Tries, mathrand.Float64())))
	}
}

// attempt sends a message to the relays once. After an error, the file is unchanged, or contains a
// signed event that the next attempt uses.
func (m *Mailbox) attempt(ctx context.Context, id string) (Entry, error) {
	raw, _, err := m.cfg.Files.ReadFile(m.path(outboxDir, id+".json"), maxFile)
	if err != nil {
		return Entry{}, err
	}
	e, draft, event, err := parseEntry(raw)
	if err == nil && e.PendingID != id {
		err = errOtherName
	}
	if err != nil {
		return Entry{}, err
	}
	if e.Status == Published { // the rename failed
		_, err := m.rename(e)
		return e, err
	}
	if key := m.cfg.Key(); event == nil || draft.PubKey != string(key.Public()) {
		if e, err = m.sign(e, draft, key); err != nil {
			return Entry{}, err
		}
		if event, err = nip01.ParseEvent(e.Event); err != nil {
			return Entry{}, err
		}
	}
	limited, cancel := context.WithTimeout(ctx, publishLimit)
	defer cancel()
	results, err := m.cfg.Relays.Publish(limited, event)
	if err != nil {
		return Entry{}, err
	}
	e = e.tried(time.Now().UTC(), results)
	if err := m.writeEntry(id, e); err != nil {
		return Entry{}, err
	}
	if e.Status == Published {
		_, err = m.rename(e)
	}
	return e, err
}

// look returns a copy of what is known of a message, and a channel that closes at the next change.
func (m *Mailbox) look(id string) (s slot, there bool, changed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := m.outbox[id]; known != nil {
		s, there = *known, true
	}
	return s, there, m.changed
}

// Entry returns a message of the outbox, and false if there is none. It waits while the message's
// file is being created or renamed.
func (m *Mailbox) Entry(id string) (Entry, bool, error) {
	for {
		before, there, _ := m.look(id)
		if !there {
			return Entry{}, false, nil
		}
		e, err := m.readEntry(before.file)
		if !errors.Is(err, fs.ErrNotExist) {
			return e, true, err
		}
		// A step that has begun after the first look may have renamed or removed the file.
		now, there, changed := m.look(id)
		if there && now.sending {
			<-changed // settle or drop ends the running step
		} else if there && now.file == before.file {
			return e, true, err
		}
	}
}

// Wait returns the message when it is no longer pending, or in its current state when ctx ends.
func (m *Mailbox) Wait(ctx context.Context, id string) (Entry, bool, error) {
	for {
		s, there, changed := m.look(id)
		if !there || s.status != Pending {
			return m.Entry(id)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return m.Entry(id)
		}
	}
}

// crowded tells whether finished messages must be pruned now, to make room.
func (m *Mailbox) crowded() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.outbox) >= maxDone+maxPending
}

// pruneOutbox removes finished messages that are older than the retention, and the oldest finished
// ones if there are too many. A message that cannot be removed does not keep the others: failed is the
// error about the first one.
func (m *Mailbox) pruneOutbox(now time.Time) (failed error) {
	keep := m.cfg.Policy().Retention
	m.mu.Lock()
	files := map[string]string{}
	var done []string // pending ids, the newest first
	for id, s := range m.outbox {
		if s.status != Pending && !s.sending {
			done, files[id] = append(done, id), s.file
		}
	}
	slices.SortFunc(done, func(a, b string) int { return m.outbox[b].created.Compare(m.outbox[a].created) })
	var old []string
	for i, id := range done {
		if i >= maxDone || keep > 0 && m.outbox[id].created.Add(keep).Before(now) {
			old = append(old, id)
		}
	}
	m.mu.Unlock()
	for _, id := range old {
		if err := m.cfg.Files.Remove(m.path(outboxDir, files[id]+".json")); err != nil {
			failed = cmp.Or(failed, err)
			continue
		}
		m.drop(id)
		m.metrics.writes.WithLabelValues(outboxDir, "pruned").Inc()
	}
	return failed
}
