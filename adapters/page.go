package adapters

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
)

// Limits of a page.
const (
	DefaultPageLimit = 100
	MaxPageLimit     = 1000
	maxCursor        = 512
)

// PageOpt selects one page of a list. The zero value selects the first DefaultPageLimit rows.
type PageOpt struct {
	Limit  int    // 1-1000, 0 = 100
	Cursor string // opaque, from Page.NextCursor; "" = the first page
}

// Check refuses a limit outside 1-1000 and an overlong cursor.
func (o PageOpt) Check() error {
	if o.Limit < 0 || o.Limit > MaxPageLimit {
		return Invalid("limit", "must be 1-%d", MaxPageLimit).With("limit", MaxPageLimit)
	}
	if len(o.Cursor) > maxCursor {
		return Invalid("cursor", "is not one of ours")
	}
	return nil
}

// Rows is the limit with the default applied.
func (o PageOpt) Rows() int {
	if o.Limit <= 0 {
		return DefaultPageLimit
	}
	return o.Limit
}

// Page is one page of a list. Items is never nil on the wire.
type Page[T any] struct {
	Items      []T        `json:"items"`
	NextCursor NullString `json:"next_cursor"` // "" = this was the last page
}

// MarshalJSON writes an empty list as [], never as null.
func (p Page[T]) MarshalJSON() ([]byte, error) {
	type plain Page[T]
	if p.Items == nil {
		p.Items = []T{}
	}
	return json.Marshal(plain(p))
}

// Cursors makes and checks opaque cursors. A cursor holds the position of the last returned row. It
// is authenticated together with its scope (list and filter), so that a cursor of another list, or
// a changed one, is refused. Safe for concurrent use.
type Cursors struct{ key []byte }

const cursorMAC = 16

// NewCursors returns a maker with the given key. With nil it uses a random key, and its cursors
// become invalid when the process ends. A store that outlives the process must store a key.
func NewCursors(key []byte) *Cursors {
	if key == nil {
		key = make([]byte, 32)
		// crypto/rand.Read never fails: it ends the process instead.
		_, _ = rand.Read(key)
	}
	return &Cursors{key: append([]byte(nil), key...)}
}

// Seal packs a position (the sort keys of the last row) into a cursor. The keys together must stay
// below about 350 bytes; use a hash or a row number for long ones.
func (c *Cursors) Seal(scope string, position ...string) NullString {
	body, _ := json.Marshal(position) // strings always marshal
	raw := append(c.mac(scope, body), body...)
	return NullString(base64.RawURLEncoding.EncodeToString(raw))
}

// Open returns the n sort keys of a cursor made by Seal for the same scope; nil for the empty
// cursor. Every other cursor is VALIDATION_ERROR.
func (c *Cursors) Open(scope, cursor string, n int) ([]string, error) {
	if cursor == "" {
		return nil, nil
	}
	bad := Invalid("cursor", "is not one of ours, or is for another list")
	if len(cursor) > maxCursor {
		return nil, bad
	}
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(raw) < cursorMAC {
		return nil, bad
	}
	if !hmac.Equal(raw[:cursorMAC], c.mac(scope, raw[cursorMAC:])) {
		return nil, bad
	}
	var position []string
	if json.Unmarshal(raw[cursorMAC:], &position) != nil || len(position) != n {
		return nil, bad
	}
	return position, nil
}

func (c *Cursors) mac(scope string, body []byte) []byte {
	h := hmac.New(sha256.New, c.key)
	h.Write([]byte(scope))
	h.Write([]byte{0})
	h.Write(body)
	return h.Sum(nil)[:cursorMAC]
}
