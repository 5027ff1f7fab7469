package compose

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// The YAML that is written here is a small, safe part of the language: block
// mappings and lists whose keys keep their order, and scalars that are either
// plain words no reader takes for anything else, or JSON strings, which YAML 1.2
// includes. A library would bring its whole reader into every program that links
// the profile; the tests read the output back with one.

// pair is one key of a mapping.
type pair struct {
	key   string
	value any
}

// mapping keeps its order. Values are mapping, []any, []string, string, int,
// int64, bool, or nil for null.
type mapping []pair

// add appends a key unless its value is empty: an empty string, list or
// mapping, false, or zero. What must be written although it is empty is
// appended as a pair.
func (m *mapping) add(key string, value any) {
	switch v := value.(type) {
	case string:
		if v == "" {
			return
		}
	case []string:
		if len(v) == 0 {
			return
		}
	case []any:
		if len(v) == 0 {
			return
		}
	case mapping:
		if len(v) == 0 {
			return
		}
	case bool:
		if !v {
			return
		}
	case int:
		if v == 0 {
			return
		}
	}
	*m = append(*m, pair{key, value})
}

// yaml writes a document.
func yaml(m mapping) string {
	var b strings.Builder
	writeMapping(&b, m, 0, false)
	return b.String()
}

// writeMapping writes the keys, the first one on the line that has begun when
// the mapping is an element of a list.
func writeMapping(b *strings.Builder, m mapping, indent int, element bool) {
	for i, p := range m {
		if i > 0 || !element {
			b.WriteString(strings.Repeat(" ", indent))
		}
		b.WriteString(scalar(p.key) + ":")
		writeValue(b, p.value, indent)
	}
}

func writeValue(b *strings.Builder, value any, indent int) {
	switch v := value.(type) {
	case mapping:
		if len(v) == 0 {
			b.WriteString(" {}\n")
			return
		}
		b.WriteByte('\n')
		writeMapping(b, v, indent+2, false)
	case []string:
		list := make([]any, len(v))
		for i, s := range v {
			list[i] = s
		}
		writeList(b, list, indent)
	case []any:
		writeList(b, v, indent)
	case text:
		writeText(b, string(v), indent+2)
	default:
		b.WriteString(" " + scalar(v) + "\n")
	}
}

// text is a string of lines that people read, written as a literal block where
// that is exact.
type text string

func writeText(b *strings.Builder, s string, indent int) {
	lines := strings.Split(strings.TrimSuffix(s, "\n"), "\n")
	if !strings.HasSuffix(s, "\n") || !blockSafe(lines) {
		b.WriteString(" " + quote(s) + "\n")
		return
	}
	b.WriteString(" |\n")
	for _, line := range lines {
		if line != "" {
			b.WriteString(strings.Repeat(" ", indent) + line)
		}
		b.WriteByte('\n')
	}
}

// blockSafe tells whether a literal block gives back exactly these lines: the
// first one shows the indentation, the last one is not empty (else the block
// would need a chomping indicator), and nothing in them needs an escape.
func blockSafe(lines []string) bool {
	if first := lines[0]; first == "" || first[0] == ' ' || first[0] == '\t' || lines[len(lines)-1] == "" {
		return false
	}
	for _, line := range lines {
		if !utf8.ValidString(line) || strings.Trim(line, " \t") == "" && line != "" ||
			strings.IndexFunc(line, func(r rune) bool { return r < ' ' && r != '\t' || unprintable(r) }) >= 0 {
			return false
		}
	}
	return true
}

func writeList(b *strings.Builder, list []any, indent int) {
	if len(list) == 0 {
		b.WriteString(" []\n")
		return
	}
	b.WriteByte('\n')
	for _, e := range list {
		b.WriteString(strings.Repeat(" ", indent+2) + "- ")
		if m, ok := e.(mapping); ok && len(m) > 0 {
			writeMapping(b, m, indent+4, true)
			continue
		}
		b.WriteString(strings.TrimPrefix(element(e), " ") + "\n")
	}
}

func element(e any) string {
	if m, ok := e.(mapping); ok && len(m) == 0 {
		return "{}"
	}
	return scalar(e)
}

// word matches texts that are strings to every YAML reader, of either version.
var word = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_/.][A-Za-z0-9_./-]*$`) })

// notWords are texts that some reader takes for a boolean, null or number.
var notWords = map[string]bool{
	"y": true, "n": true, "yes": true, "no": true, "on": true, "off": true, "true": true, "false": true,
	"null": true, "nan": true, ".nan": true, ".inf": true, ".": true, "..": true, "...": true,
}

func scalar(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(v)
	case int:
		return strconv.Itoa(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case string:
		if word().MatchString(v) && !notWords[strings.ToLower(v)] && !numeric(v) {
			return v
		}
		return quote(v)
	}
	panic(fmt.Sprintf("compose: a %T is not part of the YAML written here", value))
}

// numeric tells whether a word that begins with a point or an "e" could be a
// float.
func numeric(s string) bool {
	_, err := strconv.ParseFloat(s, 64)
	return err == nil
}

// quote writes a JSON string. Escaping HTML characters would be legal and ugly;
// what JSON allows raw and YAML does not (DEL and the C1 controls) is escaped.
func quote(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(strings.ToValidUTF8(s, "�")); err != nil {
		panic("compose: a string cannot be encoded: " + err.Error())
	}
	out := strings.TrimSuffix(b.String(), "\n")
	if strings.IndexFunc(out, unprintable) < 0 {
		return out
	}
	var escaped strings.Builder
	for _, r := range out {
		if unprintable(r) {
			fmt.Fprintf(&escaped, `\u%04x`, r)
		} else {
			escaped.WriteRune(r)
		}
	}
	return escaped.String()
}

// unprintable is what YAML 1.2 section 5.1 keeps out of a stream, and the line
// breaks and byte order mark that readers treat specially.
func unprintable(r rune) bool {
	return r >= 0x7f && r <= 0x9f || r == 0xfeff || r == 0xfffe || r == 0xffff || r == 0x2028 || r == 0x2029
}
