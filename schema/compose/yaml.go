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

// mapping is an ordered mapping. Its values are mapping, []any, []string, string, text, int, int64,
// bool, or nil for null.
type mapping []pair

// add appends a key unless its value is empty: an empty string, list or mapping, false, or zero. To
// write an empty value, append a pair.
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

// yaml writes a document as YAML.
func yaml(m mapping) string {
	var b strings.Builder
	e := library.NewEncoder(&b)
	e.SetIndent(2)
	// The encoder supports all kinds of node below, and a write to a strings.Builder never fails.
	if err := e.Encode(node(m)); err != nil {
		panic("compose: cannot write YAML: " + err.Error())
	}
	return b.String()
}

// text is a string of lines for human readers. It is written as a literal block if a block
// preserves it exactly.
type text string

// node is a value as a node of the YAML library. A string is written without quotes only if readers
// of YAML 1.1 and 1.2 both take it as a string.
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

// blockSafe reports whether a literal block preserves exactly these lines. The first line must
// determine the indentation, the last line must not be empty (otherwise the block needs a chomping
// indicator), and no character may need an escape.
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

// word matches texts that YAML 1.1 and 1.2 readers may take as a plain string.
var word = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_/.][A-Za-z0-9_./-]*$`) })

// notWords are texts that some reader takes as a boolean, null or number.
var notWords = map[string]bool{
	"y": true, "n": true, "yes": true, "no": true, "on": true, "off": true, "true": true, "false": true,
	"null": true, "nan": true, ".nan": true, ".inf": true, ".": true, "..": true, "...": true,
}

// numeric reports whether a word that begins with a point or an "e" could be a float.
func numeric(s string) bool {
	_, err := strconv.ParseFloat(s, 64)
	return err == nil
}

// unprintable reports characters that YAML 1.2 section 5.1 does not allow in a stream, and the line
// breaks and the byte order mark that readers treat specially.
func unprintable(r rune) bool {
	return r >= 0x7f && r <= 0x9f || r == 0xfeff || r == 0xfffe || r == 0xffff || r == 0x2028 || r == 0x2029
}
