package bootstrap

import (
	"fmt"
	"io"
)

// Secret is a text that must not be printed: every way of formatting it gives [redacted]. Only
// Reveal returns the text.
type Secret struct{ text string }

// redacted is printed in place of a secret.
const redacted = "[redacted]"

// newSecret wraps text.
func newSecret(text string) Secret { return Secret{text} }

// Reveal returns the text itself.
func (s Secret) Reveal() string { return s.text }

// Empty reports whether the text is empty.
func (s Secret) Empty() bool { return s.text == "" }

// String implements fmt.Stringer.
func (Secret) String() string { return redacted }

// Format implements fmt.Formatter. Without it, verbs such as %d would print the text in their error
// message.
func (Secret) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// MarshalJSON implements json.Marshaler.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText implements encoding.TextMarshaler.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
