package nip01

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/nbd-wtf/go-nostr"
)

// Limits of messages.
const (
	MaxSubscriptionID = 64
	MaxFilters        = 16
	maxReason         = 1024
)

// Verbs of messages.
const (
	VerbEvent  = "EVENT"
	VerbReq    = "REQ"
	VerbClose  = "CLOSE"
	VerbAuth   = "AUTH"
	VerbOK     = "OK"
	VerbEOSE   = "EOSE"
	VerbClosed = "CLOSED"
	VerbNotice = "NOTICE"
)

// FromClient is a message of a client. Verb determines which fields are set.
type FromClient struct {
	Verb         string          // EVENT, REQ, CLOSE or AUTH
	Event        json.RawMessage // EVENT, AUTH: not parsed, because limits apply to the raw size
	Subscription string          // REQ, CLOSE
	Filters      []Filter        // REQ
}

// ParseFromClient reads a client's message. With an error, it also returns the verb and the
// subscription if it could read them, so that the answer can name them.
func ParseFromClient(raw []byte) (m FromClient, err error) {
	parts, err := array(raw)
	if err != nil {
		return m, err
	}
	if m.Verb, err = text(parts[0]); err != nil {
		return m, errors.New("the message does not begin with a verb")
	}
	switch m.Verb {
	case VerbEvent, VerbAuth:
		if len(parts) != 2 {
			return m, fmt.Errorf("%s wants one event", m.Verb)
		}
		m.Event = parts[1]
		return m, nil
	case VerbClose:
		if len(parts) != 2 {
			return m, errors.New("CLOSE wants one subscription id")
		}
	case VerbReq:
		if len(parts) < 3 || len(parts) > 2+MaxFilters {
			err = fmt.Errorf("REQ wants a subscription id and 1 to %d filters", MaxFilters)
		}
	default:
		return m, fmt.Errorf("%.20q is no message of NIP-01", m.Verb)
	}
	if len(parts) > 1 {
		id, idErr := subscriptionID(parts[1])
		if idErr != nil {
			return m, idErr
		}
		m.Subscription = id
	}
	if err != nil || m.Verb == VerbClose {
		return m, err
	}
	for _, raw := range parts[2:] {
		f, err := parseFilter(raw)
		if err != nil {
			return m, err
		}
		m.Filters = append(m.Filters, f)
	}
	return m, nil
}

// FromRelay is a message of a relay. Verb determines which fields are set.
type FromRelay struct {
	Verb         string       // EVENT, OK, EOSE, CLOSED, NOTICE or AUTH
	Subscription string       // EVENT, EOSE, CLOSED
	Event        *nostr.Event // EVENT; not verified
	ID           string       // OK: id of the event
	Accepted     bool         // OK
	Text         string       // OK, CLOSED, NOTICE: the reason; AUTH: the challenge
}

// ParseFromRelay reads a relay's message.
func ParseFromRelay(raw []byte) (m FromRelay, err error) {
	parts, err := array(raw)
	if err != nil {
		return m, err
	}
	if m.Verb, err = text(parts[0]); err != nil {
		return m, errors.New("the message does not begin with a verb")
	}
	want, known := map[string]int{VerbEvent: 3, VerbOK: 4, VerbEOSE: 2, VerbClosed: 3, VerbNotice: 2, VerbAuth: 2}[m.Verb]
	if !known {
		return m, fmt.Errorf("%.20q is no message of NIP-01", m.Verb)
	}
	if len(parts) < want {
		return m, fmt.Errorf("%s wants %d elements", m.Verb, want)
	}
	switch m.Verb {
	case VerbEvent:
		if m.Subscription, err = subscriptionID(parts[1]); err == nil {
			m.Event, err = ParseEvent(parts[2])
		}
	case VerbOK:
		if err = hexField(&m.ID, hexIDSize)(parts[1]); err != nil {
			return m, fmt.Errorf("the id of OK %w", err)
		}
		if err = json.Unmarshal(parts[2], &m.Accepted); err == nil {
			m.Text, err = reason(parts[3])
		}
	case VerbEOSE:
		m.Subscription, err = subscriptionID(parts[1])
	case VerbClosed:
		if m.Subscription, err = subscriptionID(parts[1]); err == nil {
			m.Text, err = reason(parts[2])
		}
	case VerbNotice, VerbAuth:
		m.Text, err = reason(parts[1])
	}
	return m, err
}

// array reads a JSON array that is not empty.
func array(raw []byte) ([]json.RawMessage, error) {
	if !utf8.Valid(raw) {
		return nil, errors.New("the message is not UTF-8")
	}
	var parts []json.RawMessage
	if err := json.Unmarshal(raw, &parts); err != nil || len(parts) == 0 {
		return nil, errors.New("the message is no JSON array")
	}
	return parts, nil
}

func subscriptionID(raw json.RawMessage) (string, error) {
	id, err := text(raw)
	if err != nil || id == "" || len(id) > MaxSubscriptionID {
		return "", fmt.Errorf("a subscription id is a string of 1 to %d bytes", MaxSubscriptionID)
	}
	return id, nil
}

// reason reads a text of the peer and cuts it to maxReason bytes.
func reason(raw json.RawMessage) (string, error) {
	s, err := text(raw)
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "")
	}
	return s, err
}

// Message writes a message: a JSON array of its parts. The parts are values of this module (verbs,
// ids, events, filters), so marshalling never fails.
func Message(parts ...any) []byte {
	plain := make([]any, len(parts))
	for i, part := range parts {
		switch e := part.(type) {
		case *nostr.Event:
			plain[i] = (*plainEvent)(e)
		case nostr.Event:
			plain[i] = (*plainEvent)(&e)
		default:
			plain[i] = part
		}
	}
	return marshal(plain)
}

// EventText writes an event as JSON.
func EventText(e *nostr.Event) []byte { return marshal((*plainEvent)(e)) }

// plainEvent is a nostr.Event with a different JSON. nostr.Event.MarshalJSON writes "<", ">" and "&" as six
// bytes each, so that an event of the largest size would be refused by the next relay.
type plainEvent nostr.Event

func (e *plainEvent) MarshalJSON() ([]byte, error) {
	tags := e.Tags
	if tags == nil {
		tags = nostr.Tags{}
	}
	return marshal(struct {
		Kind      int             `json:"kind"`
		ID        string          `json:"id,omitempty"`
		PubKey    string          `json:"pubkey,omitempty"`
		CreatedAt nostr.Timestamp `json:"created_at"`
		Tags      nostr.Tags      `json:"tags"`
		Content   string          `json:"content"`
		Sig       string          `json:"sig,omitempty"`
	}{e.Kind, e.ID, e.PubKey, e.CreatedAt, tags, e.Content, e.Sig}), nil
}

func marshal(v any) []byte {
	text, err := JSON(v)
	if err != nil {
		panic("nip01: a message of ours does not marshal: " + err.Error())
	}
	return text
}

// JSON is json.Marshal without the escapes that only HTML needs: with them, a text with markup would be several
// times as large.
func JSON(v any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
