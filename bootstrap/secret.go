package bootstrap

import (
	"fmt"
	"io"
)

// Secret is a text that must not be printed: every way of formatting it gives
// [redacted]. Reveal is the one way in.
type Secret struct{ text string }

// redacted stands for a secret wherever it would be printed.
const redacted = "[redacted]"

// NewSecret wraps text.
func NewSecret(text string) Secret { return Secret{text} }

// Reveal returns the text itself.
func (s Secret) Reveal() string { return s.text }

// Empty tells whether there is no text.
func (s Secret) Empty() bool { return s.text == "" }

// String implements fmt.Stringer.
func (Secret) String() string { return redacted }

// Format implements fmt.Formatter: verbs such as %d would otherwise print the
// text in their complaint.
func (Secret) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// MarshalJSON implements json.Marshaler.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText implements encoding.TextMarshaler.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
