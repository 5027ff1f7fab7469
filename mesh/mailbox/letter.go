package mailbox

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

// Kinds that are always allowed inside a gift wrap: chat messages and files (NIP-17), and reactions
// to them (NIP-25).
const (
	KindChat     = 14
	kindFile     = 15
	kindReaction = 7
)

const (
	futureSkew = 15 * time.Minute
	// wrapSkew is how far in the past the date of a seal or a gift wrap may be (NIP-59).
	wrapSkew = 48 * time.Hour
)

// Reasons of a Refusal. They are also label values of a metric.
const (
	ReasonSize      = "size"
	ReasonKind      = "kind"
	ReasonRecipient = "recipient"
	ReasonExpired   = "expired"
	ReasonStale     = "stale"
	ReasonFuture    = "future"
	ReasonSignature = "signature"
	ReasonSeal      = "seal"
	ReasonSender    = "sender"
	ReasonFull      = "full"
	ReasonWrite     = "write"
)

// Refusal is the reason why the inbox does not accept an event.
type Refusal struct {
	Reason string // one of the constants above
	Err    error
}

func (r *Refusal) Error() string { return r.Reason + ": " + r.Err.Error() }

func (r *Refusal) Unwrap() error { return r.Err }

func refuse(reason, format string, args ...any) error {
	return &Refusal{reason, fmt.Errorf(format, args...)}
}

// Decrypter decrypts messages to the box (NIP-44). *identity.Key implements it.
type Decrypter interface {
	Decrypt(payload string, from identity.PublicKey) (string, error)
}

// unwrap opens a gift wrap (NIP-59) and returns the message in it. The author of the message must
// have signed the seal, because the message itself (a rumor) has no signature.
func unwrap(wrap *nostr.Event, key Decrypter) (*nostr.Event, error) {
	text, err := key.Decrypt(wrap.Content, identity.PublicKey(wrap.PubKey))
	if err != nil {
		return nil, fmt.Errorf("cannot decrypt the gift wrap: %w", err)
	}
	seal, err := nip01.ParseEvent([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("in the gift wrap, %w", err)
	}
	if seal.Kind != nip01.KindSeal || len(seal.Tags) > 0 {
		return nil, errors.New("the gift wrap holds no seal: an event of kind 13 without tags")
	}
	if err := nip01.Verify(seal); err != nil {
		return nil, fmt.Errorf("of the seal, %w", err)
	}
	if text, err = key.Decrypt(seal.Content, identity.PublicKey(seal.PubKey)); err != nil {
		return nil, fmt.Errorf("cannot decrypt the seal: %w", err)
	}
	rumor, err := nip01.ParseRumor([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("in the seal, %w", err)
	}
	if rumor.PubKey != seal.PubKey {
		return nil, errors.New("the message in the seal names an author who did not sign the seal")
	}
	return rumor, nil
}

// Policy decides which events the inbox accepts. It is an immutable value.
type Policy struct {
	Own       string   // the box's public key: events must be addressed to it
	Trusted   []string // keys that may always write: the box's, the operator's, the listed ones
	Strangers bool     // other keys may write too, up to half of the inbox
	Kinds     []int    // allowed kinds, as for nip01.KindAllowed
	NIP04     bool     // accept direct messages of the older form (NIP-04)
	// MaxEventBytes limits the size of an event as JSON.
	MaxEventBytes int
	// Retention is how long messages are kept; 0 = no limit.
	Retention time.Duration
}

// event makes the cheap checks on an event that is not verified yet.
func (p Policy) event(e *nostr.Event, size int, now time.Time) error {
	at := e.CreatedAt.Time()
	switch {
	case size > p.MaxEventBytes:
		return refuse(ReasonSize, "the event has %d bytes, the limit is %d", size, p.MaxEventBytes)
	case !nip01.KindAllowed(p.Kinds, e.Kind) && !(p.NIP04 && e.Kind == nip01.KindNIP04):
		return refuse(ReasonKind, "kind %d is not one of sovereign_mesh.relay.allowed_kinds", e.Kind)
	case !nip01.HasTag(e, "p", p.Own):
		return refuse(ReasonRecipient, "the event is not addressed to this box")
	case nip01.Expired(e, now):
		return refuse(ReasonExpired, "the event has expired")
	case at.After(now.Add(futureSkew)):
		return refuse(ReasonFuture, "created_at is more than %s ahead", futureSkew)
	case p.stale(at, now):
		return refuse(ReasonStale, "the event is older than what the inbox keeps")
	}
	return nil
}

// stale tells whether an event with that date is refused because of its age. A message that prunable
// selects for its age is also stale, so a relay that still has it cannot bring it back.
func (p Policy) stale(at, now time.Time) bool {
	return p.Retention > 0 && at.Add(p.Retention+wrapSkew).Before(now)
}

// prunable tells whether a message may be deleted. It may if it has expired, or if it was received
// before the retention time and would now be refused as stale.
func (p Policy) prunable(created, received, expires, now time.Time) bool {
	if !expires.IsZero() && !now.Before(expires) {
		return true
	}
	return p.stale(created, now) && received.Add(p.Retention).Before(now)
}

// message checks the author of a message and, if it came in a gift wrap, its kind.
func (p Policy) message(m *nostr.Event, wrapped bool) error {
	if wrapped && !slices.Contains([]int{KindChat, kindFile, kindReaction}, m.Kind) && !nip01.KindAllowed(p.Kinds, m.Kind) {
		return refuse(ReasonKind, "kind %d in a gift wrap is not one of sovereign_mesh.relay.allowed_kinds", m.Kind)
	}
	if !p.Strangers && !p.trusts(m.PubKey) {
		return refuse(ReasonSender, "the key %s may not write to this box", m.PubKey)
	}
	return nil
}

func (p Policy) trusts(key string) bool { return slices.Contains(p.Trusted, key) }

// admit makes all checks on an event, the expensive ones last. It returns the message: the event
// itself, or the content of its gift wrap.
func (p Policy) admit(e *nostr.Event, size int, now time.Time, key Decrypter) (*nostr.Event, error) {
	if err := p.event(e, size, now); err != nil {
		return nil, err
	}
	wrapped := e.Kind == nip01.KindGiftWrap
	if !wrapped { // the key of a gift wrap is used only once and does not name the author
		if err := p.message(e, false); err != nil {
			return nil, err
		}
	}
	if err := nip01.Verify(e); err != nil {
		return nil, &Refusal{ReasonSignature, err}
	}
	if !wrapped {
		return e, nil
	}
	rumor, err := unwrap(e, key)
	if err != nil {
		return nil, &Refusal{ReasonSeal, err}
	}
	return rumor, p.message(rumor, true)
}

// maxAuthors is how many keys a filter names at most: relays refuse filters with too many values.
const maxAuthors = 500

// filters select the events that the policy may accept. They have no since, because the date of a
// gift wrap may be up to two days in the past. The number of events that are asked for is limited for each
// filter, so the messages of trusted keys have a filter of their own: strangers, whose events may be from the
// future, must not take their place. The author of a gift wrap cannot be asked for.
func (p Policy) filters() []nip01.Filter {
	var kinds []int
	for _, k := range p.Kinds {
		n := 1
		if k == nip01.KindIntent || k == nip01.KindAnswer {
			n = 100
		}
		for i := range n {
			kinds = append(kinds, k+i)
		}
	}
	if p.NIP04 {
		kinds = append(kinds, nip01.KindNIP04)
	}
	slices.Sort(kinds)
	kinds = slices.Compact(kinds)
	to := map[string][]string{"p": {p.Own}}
	// The manifest may list what is no key (W116): for that, a relay would refuse the whole subscription.
	trusted := slices.DeleteFunc(slices.Clone(p.Trusted), func(k string) bool { return !nip01.LowerHex(k, 64) })
	plain := slices.DeleteFunc(slices.Clone(kinds), func(k int) bool { return k == nip01.KindGiftWrap })
	if len(plain) == 0 || len(trusted) == 0 || len(trusted) > maxAuthors {
		return []nip01.Filter{{Kinds: kinds, Tags: to}}
	}
	filters := []nip01.Filter{{Kinds: plain, Authors: trusted, Tags: to}}
	if len(plain) < len(kinds) {
		filters = append(filters, nip01.Filter{Kinds: []int{nip01.KindGiftWrap}, Tags: to})
	}
	if p.Strangers {
		filters = append(filters, nip01.Filter{Kinds: plain, Tags: to})
	}
	return filters
}
