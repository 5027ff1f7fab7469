package adapters

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/dreamlab-ai/agentinit/internal/ijson"
)

// TimeFormat is how instants are written: RFC 3339, UTC, milliseconds.
const TimeFormat = "2006-01-02T15:04:05.000Z07:00"

// Time is an instant with the precision of the wire. The zero Time is written
// as null and null reads as zero, so that no field needs a pointer.
type Time struct{ time.Time }

// At returns t in UTC, cut to milliseconds.
func At(t time.Time) Time {
	if t.IsZero() {
		return Time{}
	}
	return Time{t.UTC().Truncate(time.Millisecond)}
}

// AtMillis is At for Unix milliseconds, in which databases keep times; 0 is the zero Time.
func AtMillis(ms int64) Time {
	if ms == 0 {
		return Time{}
	}
	return At(time.UnixMilli(ms))
}

// MarshalJSON writes the instant in TimeFormat, or null.
func (t Time) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	return []byte(`"` + t.String() + `"`), nil
}

// UnmarshalJSON reads any RFC 3339 time, or null.
func (t *Time) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		*t = Time{}
		return nil
	}
	s, err := plainString(b)
	if err != nil {
		return err
	}
	v, err := ParseTime(s)
	if err != nil {
		return err
	}
	*t = v
	return nil
}

// plainString reads a JSON string. Times have no escapes, and for those it uses no decoder: a page
// of records would make hundreds of decoders.
func plainString(b []byte) (s string, err error) {
	if n := len(b); n >= 2 && b[0] == '"' && b[n-1] == '"' && bytes.IndexByte(b, '\\') < 0 {
		return string(b[1 : n-1]), nil // what else is no string, ParseTime refuses
	}
	return s, json.Unmarshal(b, &s)
}

// String is the instant in TimeFormat, "" for the zero Time.
func (t Time) String() string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(TimeFormat)
}

// ParseTime reads an RFC 3339 time; "" is the zero Time.
func ParseTime(s string) (Time, error) {
	if s == "" {
		return Time{}, nil
	}
	v, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return Time{}, fmt.Errorf("%.64q is no time of RFC 3339, such as 2026-01-02T15:04:05Z", s)
	}
	// With an offset, the first and the last day can be in a year that RFC 3339 cannot write.
	if y := v.UTC().Year(); y < 0 || y > 9999 {
		return Time{}, fmt.Errorf("%q is in the year %d of UTC", s, y)
	}
	return At(v), nil
}

// NullString is a string whose empty value is written as null.
type NullString string

// MarshalJSON writes the string, or null when it is empty.
func (s NullString) MarshalJSON() ([]byte, error) {
	if s == "" {
		return []byte("null"), nil
	}
	return json.Marshal(string(s))
}

// CheckID refuses anything but 1-128 bytes of [A-Za-z0-9._:-].
func CheckID(field, id string) error {
	if id == "" {
		return Invalid(field, "is required")
	}
	if len(id) > 128 {
		return OverLimit(field+" (bytes)", 128).With("field", field)
	}
	for i := range len(id) {
		if !idByte(id[i]) {
			return Invalid(field, "may hold only letters, digits and . _ : -")
		}
	}
	return nil
}

func idByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		c == '.' || c == '_' || c == ':' || c == '-'
}

// CheckText refuses invalid UTF-8, NUL, and more than limit bytes.
func CheckText(field, s string, limit int) error {
	if len(s) > limit {
		return OverLimit(field+" (bytes)", int64(limit)).With("field", field)
	}
	if !utf8.ValidString(s) {
		return Invalid(field, "is not valid UTF-8")
	}
	if strings.IndexByte(s, 0) >= 0 {
		return Invalid(field, "contains NUL")
	}
	return nil
}

// CheckName is CheckText for a value that must not be empty.
func CheckName(field, s string, limit int) error {
	if s == "" {
		return Invalid(field, "is required")
	}
	return CheckText(field, s, limit)
}

// CheckIdempotencyKey refuses anything but 1-255 visible ASCII characters. It accepts "", which
// means no key.
func CheckIdempotencyKey(key string) error {
	if len(key) > 255 {
		return OverLimit("Idempotency-Key", 255)
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return Invalid("Idempotency-Key", "may hold only visible ASCII")
		}
	}
	return nil
}

// CheckObject refuses anything but one JSON object of at most limit bytes without NUL. It accepts
// nil, which means {}.
func CheckObject(field string, raw json.RawMessage, limit int) error {
	if raw == nil {
		return nil
	}
	if len(raw) > limit {
		return TooLarge(field, int64(limit), int64(len(raw))).With("field", field)
	}
	if err := CheckUnicode(field, raw); err != nil {
		return err
	}
	trimmed := bytes.TrimLeft(raw, " \t\r\n")
	if len(trimmed) == 0 || trimmed[0] != '{' || !json.Valid(raw) {
		return Invalid(field, "is not a JSON object")
	}
	if ijson.HasNUL(raw) {
		return Invalid(field, "contains NUL")
	}
	return nil
}

// CheckUnicode refuses JSON whose strings are not Unicode (package ijson).
func CheckUnicode(field string, raw []byte) error {
	if err := ijson.Check(raw); err != nil {
		return Invalid(field, "%v", err)
	}
	return nil
}

// Undecodable is the error of a caller whose JSON json.Unmarshal does not take. It names the member of
// a wrong type as it is written; whole names the text.
func Undecodable(whole string, err error) error {
	if coded, ok := errors.AsType[*Error](err); ok {
		return coded
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		// For a member of an embedded struct, the path has the name of the Go type, with a capital.
		path := slices.DeleteFunc(strings.Split(wrong.Field, "."), func(name string) bool {
			return name != "" && name[0] >= 'A' && name[0] <= 'Z'
		})
		return Invalid(cmp.Or(strings.Join(path, "."), whole), "must not be a JSON %s", Cut(wrong.Value, 32))
	}
	return Invalid(whole, "is not JSON of the contract: %v", err)
}

// CheckElements refuses a JSON array of more than limit elements, before memory is taken for them.
func CheckElements(field string, raw []byte, limit int) error {
	if root, _ := ijson.Elements(raw); root > limit {
		return OverLimit(field, int64(limit))
	}
	return nil
}

// CheckEmbedding refuses NaN and infinities, and anything but 1-MaxEmbeddingDim numbers.
func CheckEmbedding(v []float32) error {
	if len(v) == 0 || len(v) > MaxEmbeddingDim {
		return Invalid("embedding", "must hold 1-%d numbers", MaxEmbeddingDim).With("limit", MaxEmbeddingDim)
	}
	for _, x := range v {
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
			return Invalid("embedding", "holds a number that is not finite")
		}
	}
	return nil
}

// NewID returns a new UUIDv7 (RFC 9562). The ids that one process makes sort in the order of their
// creation, also within a millisecond. It may be called from any goroutine.
func NewID() string {
	return uuid.Must(uuid.NewV7()).String() // crypto/rand never fails: it ends the process instead
}
