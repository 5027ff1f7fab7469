package schema

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dreamlab-ai/agentinit/internal/edits"
)

// Path joins keys to a dotted path. It quotes keys where TOML requires it. Array indexes have the
// form [0]. Control characters are escaped.
func Path(keys ...string) string {
	var b strings.Builder
	for _, k := range keys {
		if _, ok := indexOf(k); ok && b.Len() > 0 {
			b.WriteString(k)
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(quoteKey(k))
	}
	return b.String()
}

func quoteKey(k string) string {
	if isBareKey(k) {
		return shorten(k)
	}
	return Quote(k)
}

// maxShown is how many bytes of a key or value a message shows.
const maxShown = 80

func shorten(s string) string {
	if len(s) <= maxShown {
		return s
	}
	cut := maxShown
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// Quote quotes s for a message: shortened, on one line, without control characters.
func Quote(s string) string { return strconv.Quote(shorten(redactURL(s))) }

// Address quotes what messages may show of a URL: its scheme, host and port. A path, a query or a
// password before @ can be a secret; they become an ellipsis. A text without "//" ends at its first
// slash.
func Address(text string) string {
	host := 0
	if i := strings.Index(text, "//"); i >= 0 && strings.Trim(strings.TrimSuffix(text[:i], ":"), lowerLetters) == "" {
		host = i + len("//")
	}
	end := len(text)
	if strings.Contains(text, "@") {
		end = host
	} else if i := strings.IndexAny(text[host:], "/?#"); i >= 0 {
		end = host + i + 1
	}
	if end < len(text) {
		return Quote(text[:end] + "…")
	}
	return Quote(text)
}

const lowerLetters = "abcdefghijklmnopqrstuvwxyz"

// escape turns a text into one line without control characters. Text that is escaped already stays
// unchanged.
func escape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if strconv.IsPrint(r) && (r != utf8.RuneError || n > 1) {
			b.WriteString(s[i : i+n])
		} else {
			q := strconv.Quote(s[i : i+n])
			b.WriteString(q[1 : len(q)-1])
		}
		i += n
	}
	return b.String()
}

// Describe shows a value in a message: scalars in TOML syntax, tables and arrays by their type.
func Describe(v any) string {
	switch v := v.(type) {
	case string:
		return Quote(v)
	case bool, int64:
		return fmt.Sprint(v)
	case float64:
		if math.IsInf(v, 0) || math.IsNaN(v) {
			return strings.ToLower(strings.TrimPrefix(fmt.Sprint(v), "+"))
		}
		s := strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(s, ".e") {
			s += ".0"
		}
		return s
	}
	return typeName(v)
}

// typeName is the type of a value in words.
func typeName(v any) string { return cmp.Or(kindOf(v).String(), "a date or time") }

func (k kind) String() string {
	var names []string
	for _, n := range []struct {
		kind kind
		name string
	}{
		{kString, "a string"}, {kInteger, "an integer"}, {kNumber, "a float"}, {kBool, "a boolean"}, {kArray, "an array"}, {kTable, "a table"},
	} {
		if k&n.kind != 0 {
			names = append(names, n.name)
		}
	}
	return orList(names)
}

func orList(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// QuoteList writes names in the form "a", "b" or "c".
func QuoteList(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = Quote(n)
	}
	return orList(quoted)
}

// Nearest returns the candidate that is most similar to the word, if at most a third of its letters
// differ.
func Nearest(word string, candidates []string) (string, bool) {
	if len(word) > 64 {
		return "", false
	}
	best, distance := "", len(word)/3+1
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		if c == word || len(c)-len(word) >= distance || len(word)-len(c) >= distance {
			continue
		}
		if d := edits.Distance(strings.ToLower(word), strings.ToLower(c)); d < distance {
			best, distance = c, d
		}
	}
	return best, best != ""
}

// TOML writes a value in TOML's inline syntax on one line.
func TOML(v any) string {
	switch v := v.(type) {
	case string:
		return tomlString(v)
	case []any:
		parts := make([]string, len(v))
		for i, e := range v {
			parts[i] = TOML(e)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case map[string]any:
		parts := make([]string, 0, len(v))
		for _, k := range orderedKeys(v, nil) {
			name := k
			if !isBareKey(k) {
				name = tomlString(k)
			}
			parts = append(parts, name+" = "+TOML(v[k]))
		}
		if len(parts) == 0 {
			return "{}"
		}
		return "{ " + strings.Join(parts, ", ") + " }"
	}
	return Describe(v)
}

// tomlString is a basic string. Unlike in Go, its only numeric escapes are \uXXXX and \UXXXXXXXX.
func tomlString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case strconv.IsPrint(r):
			b.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			fmt.Fprintf(&b, `\U%08X`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func isBareKey(k string) bool {
	return k != "" && strings.Trim(k, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
}
