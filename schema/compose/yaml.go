package compose

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	library "go.yaml.in/yaml/v3"
)

// pair is one key of a mapping.
type pair struct {
	key   string
	value any
}

// mapping keeps its order. Values are mapping, []any, []string, string, text, int,
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
	e := library.NewEncoder(&b)
	e.SetIndent(2)
	// Nodes of the kinds below can be written, and a strings.Builder takes all.
	if err := e.Encode(node(m)); err != nil {
		panic("compose: cannot write YAML: " + err.Error())
	}
	return b.String()
}

// text is a string of lines that people read, written as a literal block where
// that is exact.
type text string

// node is a value as the library writes it. A text stands without quotes where it
// is a plain word to the readers of either version of YAML.
func node(value any) *library.Node {
	n := new(library.Node)
	switch v := value.(type) {
	case mapping:
		n.Kind = library.MappingNode
		for _, p := range v {
			n.Content = append(n.Content, node(p.key), node(p.value))
		}
		return n
	case []string:
		n.Kind = library.SequenceNode
		for _, e := range v {
			n.Content = append(n.Content, node(e))
		}
		return n
	case []any:
		n.Kind = library.SequenceNode
		for _, e := range v {
			n.Content = append(n.Content, node(e))
		}
		return n
	case text:
		lines := strings.Split(strings.TrimSuffix(string(v), "\n"), "\n")
		if !strings.HasSuffix(string(v), "\n") || !blockSafe(lines) {
			return node(string(v))
		}
		n.Kind, n.Tag, n.Value, n.Style = library.ScalarNode, "!!str", string(v), library.LiteralStyle
		return n
	case string:
		n.Kind, n.Tag, n.Value = library.ScalarNode, "!!str", strings.ToValidUTF8(v, "�")
		if !word().MatchString(v) || notWords[strings.ToLower(v)] || numeric(v) {
			n.Style = library.DoubleQuotedStyle
		}
		return n
	}
	if err := n.Encode(value); err != nil {
		panic(fmt.Sprintf("compose: a %T is not part of the YAML written here: %v", value, err))
	}
	return n
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

// word matches texts that are strings to every YAML reader, of either version.
var word = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_/.][A-Za-z0-9_./-]*$`) })

// notWords are texts that some reader takes for a boolean, null or number.
var notWords = map[string]bool{
	"y": true, "n": true, "yes": true, "no": true, "on": true, "off": true, "true": true, "false": true,
	"null": true, "nan": true, ".nan": true, ".inf": true, ".": true, "..": true, "...": true,
}

// numeric tells whether a word that begins with a point or an "e" could be a
// float.
func numeric(s string) bool {
	_, err := strconv.ParseFloat(s, 64)
	return err == nil
}

// unprintable is what YAML 1.2 section 5.1 keeps out of a stream, and the line
// breaks and byte order mark that readers treat specially.
func unprintable(r rune) bool {
	return r >= 0x7f && r <= 0x9f || r == 0xfeff || r == 0xfffe || r == 0xffff || r == 0x2028 || r == 0x2029
}
