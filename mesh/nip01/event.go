package nip01

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/btcsuite/btcd/btcec/v2/schnorr"
	"github.com/nbd-wtf/go-nostr"
)

// Limits for an event. The connection limits the size of whole messages.
const (
	MaxTags         = 2000
	maxTagItems     = 128
	maxKind         = 65535
	maxCreatedAt    = 1<<53 - 1 // the largest integer that every JSON reader reads exactly
	hexIDSize       = 64
	hexSignatureLen = 128
)

// Kinds that the packages of the mesh name.
const (
	KindNIP04     = 4
	KindSeal      = 13
	KindGiftWrap  = 1059
	KindAuth      = 22242
	KindIntent    = 38000 // to 38099
	KindAnswer    = 38100 // to 38199
	kindsPerRange = 100
)

// ParseEvent reads one event. Each of the seven fields of NIP-01 must occur once and have the right
// type; hexadecimal must be in lower case. Other fields are dropped, because the signature does not
// cover them. ParseEvent does not verify the event: see Verify.
func ParseEvent(raw []byte) (*nostr.Event, error) {
	fields, err := object(raw)
	if err != nil {
		return nil, fmt.Errorf("the event %w", err)
	}
	var e nostr.Event
	for _, f := range []struct {
		name string
		read func(json.RawMessage) error
	}{
		{"id", hexField(&e.ID, hexIDSize)},
		{"pubkey", hexField(&e.PubKey, hexIDSize)},
		{"created_at", func(raw json.RawMessage) error {
			n, err := integer(raw, maxCreatedAt)
			e.CreatedAt = nostr.Timestamp(n)
			return err
		}},
		{"kind", func(raw json.RawMessage) error {
			n, err := integer(raw, maxKind)
			e.Kind = int(n)
			return err
		}},
		{"tags", func(raw json.RawMessage) (err error) { e.Tags, err = tags(raw); return err }},
		{"content", func(raw json.RawMessage) (err error) { e.Content, err = text(raw); return err }},
		{"sig", hexField(&e.Sig, hexSignatureLen)},
	} {
		raw, ok := fields[f.name]
		if !ok {
			return nil, fmt.Errorf("the event has no %s", f.name)
		}
		if err := f.read(raw); err != nil {
			return nil, fmt.Errorf("the event's %s %w", f.name, err)
		}
	}
	return &e, nil
}

// ParseRumor reads an unsigned event (NIP-59). It computes the id, and refuses an event that has
// another one.
func ParseRumor(raw []byte) (*nostr.Event, error) {
	fields, err := object(raw)
	if err != nil {
		return nil, fmt.Errorf("the rumor %w", err)
	}
	fields["sig"] = json.RawMessage(`"` + zeroSignature + `"`)
	if _, ok := fields["id"]; !ok {
		fields["id"] = json.RawMessage(`"` + zeroSignature[:hexIDSize] + `"`)
	}
	whole, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("the rumor: %w", err)
	}
	e, err := ParseEvent(whole)
	if err != nil {
		return nil, err
	}
	id := e.GetID()
	if e.ID != id && e.ID != zeroSignature[:hexIDSize] {
		return nil, errors.New("the rumor's id is not the hash of it")
	}
	e.ID, e.Sig = id, ""
	return e, nil
}

const zeroSignature = "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"

// Errors of Verify.
var (
	ErrID        = errors.New("the id is not the hash of the event")
	ErrSignature = errors.New("the signature does not hold")
)

// Verify computes the id and checks the signature (BIP-340). It is expensive.
func Verify(e *nostr.Event) error {
	if len(e.ID) != hexIDSize || e.GetID() != e.ID {
		return ErrID
	}
	id, err := hex.DecodeString(e.ID)
	if err != nil {
		return ErrID
	}
	pubkey, err := hex.DecodeString(e.PubKey)
	if err != nil {
		return ErrSignature
	}
	key, err := schnorr.ParsePubKey(pubkey)
	if err != nil {
		return ErrSignature
	}
	sig, err := hex.DecodeString(e.Sig)
	if err != nil {
		return ErrSignature
	}
	signature, err := schnorr.ParseSignature(sig)
	if err != nil || !signature.Verify(id, key) {
		return ErrSignature
	}
	return nil
}

// Expires returns when the event expires (NIP-40), the zero time if it has no valid expiration.
func Expires(e *nostr.Event) time.Time {
	n, err := strconv.ParseInt(TagValue(e, "expiration"), 10, 64)
	if err != nil || n <= 0 || n > maxCreatedAt {
		return time.Time{}
	}
	return time.Unix(n, 0)
}

// Expired tells whether the event has expired at now.
func Expired(e *nostr.Event, now time.Time) bool {
	at := Expires(e)
	return !at.IsZero() && !now.Before(at)
}

// TagValue returns the value of the first tag with that name, "" if there is none.
func TagValue(e *nostr.Event, name string) string {
	for _, t := range e.Tags {
		if len(t) > 1 && t[0] == name {
			return t[1]
		}
	}
	return ""
}

// HasTag tells whether the event has a tag with that name and value.
func HasTag(e *nostr.Event, name, value string) bool {
	return slices.ContainsFunc(e.Tags, func(t nostr.Tag) bool { return len(t) > 1 && t[0] == name && t[1] == value })
}

// Protected tells whether only its author may publish the event (NIP-70).
func Protected(e *nostr.Event) bool {
	return slices.ContainsFunc(e.Tags, func(t nostr.Tag) bool { return len(t) == 1 && t[0] == "-" })
}

// Private tells whether only the author and the recipients (tags p) may read events of that kind:
// direct messages (NIP-04) and gift wraps (NIP-59).
func Private(kind int) bool { return kind == KindNIP04 || kind == KindGiftWrap }

// IsIntent and isAnswer tell whether a kind is one of the hundred that begin with KindIntent or
// KindAnswer.
func IsIntent(kind int) bool { return kind >= KindIntent && kind < KindIntent+kindsPerRange }
func isAnswer(kind int) bool { return kind >= KindAnswer && kind < KindAnswer+kindsPerRange }

// KindAllowed tells whether kind is in allowed. In allowed, 38000 means all kinds from 38000 to
// 38099, and 38100 all from 38100 to 38199.
func KindAllowed(allowed []int, kind int) bool {
	return slices.ContainsFunc(allowed, func(a int) bool {
		return a == kind || a == KindIntent && IsIntent(kind) || a == KindAnswer && isAnswer(kind)
	})
}

// Newer tells whether a replaces b if only one of them is kept: the later one, or, within one second,
// the one with the lower id (NIP-01).
func Newer(a, b *nostr.Event) bool {
	if a.CreatedAt != b.CreatedAt {
		return a.CreatedAt > b.CreatedAt
	}
	return a.ID < b.ID
}

// object reads a JSON object in which no key occurs twice.
func object(raw []byte) (map[string]json.RawMessage, error) {
	if !utf8.Valid(raw) {
		return nil, errors.New("is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("is no JSON object")
	}
	fields := make(map[string]json.RawMessage, 8)
	for d.More() {
		key, err := d.Token()
		name, ok := key.(string)
		if err != nil || !ok {
			return nil, errors.New("is no JSON object")
		}
		if _, twice := fields[name]; twice {
			return nil, fmt.Errorf("has %.40q twice", name)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, errors.New("is no JSON object")
		}
		fields[name] = value
	}
	if _, err := d.Token(); err != nil {
		return nil, errors.New("is no JSON object")
	}
	if len(bytes.TrimSpace(raw[d.InputOffset():])) > 0 {
		return nil, errors.New("has something after its end")
	}
	return fields, nil
}

func hexField(to *string, size int) func(json.RawMessage) error {
	return func(raw json.RawMessage) (err error) {
		if *to, err = text(raw); err == nil && !LowerHex(*to, size) {
			err = fmt.Errorf("is not %d lower-case hexadecimal digits", size)
		}
		return err
	}
}

// LowerHex tells whether s is size lower-case hexadecimal digits.
func LowerHex(s string, size int) bool {
	if len(s) != size {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func text(raw json.RawMessage) (string, error) {
	var s *string
	if err := json.Unmarshal(raw, &s); err != nil || s == nil {
		return "", errors.New("is no string")
	}
	return *s, nil
}

// integer reads an integer from 0 to most. It accepts no fraction and no exponent.
func integer(raw json.RawMessage, most int64) (int64, error) {
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, fmt.Errorf("is no whole number from 0 to %d", most)
	}
	return n, nil
}

func tags(raw json.RawMessage) (nostr.Tags, error) {
	var read [][]*string
	if err := json.Unmarshal(raw, &read); err != nil || read == nil {
		return nil, errors.New("are no array of arrays of strings")
	}
	if len(read) > MaxTags {
		return nil, fmt.Errorf("are more than %d", MaxTags)
	}
	out := make(nostr.Tags, len(read))
	for i, tag := range read {
		if len(tag) > maxTagItems {
			return nil, fmt.Errorf("have one of more than %d strings", maxTagItems)
		}
		out[i] = make(nostr.Tag, len(tag))
		for j, item := range tag {
			if item == nil {
				return nil, errors.New("are no array of arrays of strings")
			}
			out[i][j] = *item
		}
		if len(tag) == 0 {
			return nil, errors.New("have one that is empty")
		}
	}
	return out, nil
}

// ClaimedID returns the id in a text that may not be a valid event, "" if there is none. Use it only
// in an answer.
func ClaimedID(raw []byte) string {
	var e struct{ ID string }
	if json.Unmarshal(raw, &e) != nil || !LowerHex(e.ID, hexIDSize) {
		return ""
	}
	return e.ID
}
