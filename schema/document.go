package schema

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// Document is one parsed manifest: the tree of values as written, and the position of each key and
// value. It is immutable and safe for concurrent use.
//
// Rules read it through accessors. An accessor takes a dotted path of bare keys, in the notation of
// the rules. If a value has another type than the accessor's, it counts as absent.
type Document struct {
	Name  string // file name as the user gave it
	raw   map[string]any
	marks *mark
	lines []uint32 // offset of the first byte of each line
	chars []uint32 // number of characters before each stride of the text
	// text is kept for the formatter and for checksums.
	text []byte

	shapely  sync.Once
	shaped   []Finding
	decoded  sync.Once
	manifest *Manifest
	merged   sync.Once
	programs []ProgramTable
}

// Violations returns the E016 findings of the document, in document order. They are computed once
// and shared, and must not be changed.
func (d *Document) Violations() []Finding {
	d.shapely.Do(func() { d.shaped = validate(d) })
	return d.shaped
}

// mark is the position of a key and its value. Its children mirror the tree of values.
type mark struct {
	key, val uint32
	sub      map[string]*mark
	order    []string
	items    []*mark
}

// Position is a place in the text. Line and Column count from 1, and Column counts characters (code
// points). The zero Position means that there is no place.
type Position struct{ Line, Column int }

// Parse reads TOML 1.0. If the text is valid, the finding is nil; otherwise it is an E000. MaxBytes
// and a nesting limit bound the time and the memory.
func Parse(name string, data []byte) (*Document, *Finding) {
	d := &Document{Name: name, text: data}
	if len(data) > MaxBytes {
		return nil, unreadable(name, Position{}, "the manifest has more than 16 MiB")
	}
	d.index()
	if p := lex(data); p != nil {
		return nil, d.otherFormat(unreadable(name, d.at(uint32(p.offset)), p.cause))
	}
	if err := toml.Unmarshal(data, &d.raw); err != nil {
		return nil, d.otherFormat(d.refused(err))
	}
	if d.raw == nil {
		d.raw = map[string]any{}
	}
	marks, err := placeMarks(data)
	if err != nil {
		return nil, d.refused(err)
	}
	d.marks = marks
	return d, nil
}

// otherFormat changes the finding for a text in another format. The message then names that format
// and the solution, in place of the TOML error.
func (d *Document) otherFormat(f *Finding) *Finding {
	if format, hint := foreignFormat(d.text); format != "" {
		f.Message = "cannot read the manifest: it is " + format + ", and a manifest is TOML"
		f.Hint = hint
	}
	return f
}

func unreadable(name string, at Position, cause string) *Finding {
	return &Finding{
		Code: "E000", Severity: Error, File: name, Line: at.Line, Column: at.Column,
		Message: "cannot read the manifest: " + escape(cause),
	}
}

// Unreadable is the finding for a manifest that cannot be opened.
func Unreadable(name string, err error) Finding {
	return *unreadable(name, Position{}, err.Error())
}

func (d *Document) refused(err error) *Finding {
	if bad, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, col := bad.Position() // col counts bytes
		message, at := strings.TrimPrefix(bad.Error(), "toml: "), Position{line, col}
		if line >= 1 && line <= len(d.lines) && col >= 1 {
			offset := min(int(d.lines[line-1])+col-1, len(d.text))
			message, at = wholeCharacter(message, d.text[offset:]), d.at(uint32(offset))
		}
		if strings.Contains(message, "strconv.ParseFloat") {
			message = "the number is too large for a float" // the library names its own function
		}
		f := unreadable(d.Name, at, message)
		f.Hint = syntaxHint(message)
		return f
	}
	return unreadable(d.Name, Position{}, strings.TrimPrefix(err.Error(), "toml: "))
}

// wholeCharacter corrects a message about a character outside ASCII, the first of rest: the library names
// only the first byte of it, so that “ is shown as â.
func wholeCharacter(message string, rest []byte) string {
	rest = bytes.TrimPrefix(rest, []byte(`\`)) // an escape is marked from its backslash on
	if r, n := utf8.DecodeRune(rest); n > 1 {
		return strings.Replace(message, fmt.Sprintf("%#U", rest[0]), fmt.Sprintf("%#U", r), 1)
	}
	return message
}

// syntaxHint is the solution for the usual mistakes in TOML. The library says only which character
// it did not expect.
func syntaxHint(message string) string {
	for _, h := range []struct{ part, hint string }{
		{"“", curlyHint}, {"”", curlyHint}, {"‘", curlyHint}, {"’", curlyHint},
		{"strings cannot have new lines", "close the text with a quote on the same line; a text of several lines stands between three quotes"},
		{"at start of value", quotesHint},
		{"expected value but got", quotesHint},
		{"expected keyword", quotesHint},
		{"expected newline", "write one key a line; a text stands in quotes, a list in [ ]"},
		{"leading zeroes", `a number in octal is a text here, such as "022"`},
		{"already defined", "write each key and each [table] once"},
		{"already exists", "write each key and each [table] once"},
		{"strings must be quoted", quotesHint},
		{"escape", backslashHint},
		{"after array value", "write a comma between two values, and ] at the end of the list"},
		{"array is incomplete", "close the list with ]"},
		{"after inline table key-value", "write a comma between two keys, and } at the end of the table"},
		{"close table name", "close the title of the table with ]"},
		{"'=' after key", "write KEY = VALUE, or [TABLE]"},
	} {
		if strings.Contains(message, h.part) {
			return h.hint
		}
	}
	return ""
}

const backslashHint = `write two backslashes for one, or put the text in single quotes`

const curlyHint = `write the straight quotes " or '`

const quotesHint = `a text stands in quotes, such as command = "sleep 10"; true, false and numbers do not`

// stride bounds the bytes that at counts: a text of 16 MiB can be one line with many findings.
const stride = 1 << 12

func (d *Document) index() {
	d.lines, d.chars = []uint32{0}, []uint32{0}
	var n uint32
	for i, c := range d.text {
		if c&0xC0 != 0x80 { // not a continuation of a character in UTF-8
			n++
		}
		if c == '\n' {
			d.lines = append(d.lines, uint32(i+1))
		}
		if (i+1)%stride == 0 {
			d.chars = append(d.chars, n)
		}
	}
}

func (d *Document) at(offset uint32) Position {
	n := sort.Search(len(d.lines), func(i int) bool { return d.lines[i] > offset })
	return Position{Line: n, Column: int(d.before(offset)-d.before(d.lines[n-1])) + 1}
}

// before is the number of characters before an offset.
func (d *Document) before(offset uint32) uint32 {
	n := d.chars[offset/stride]
	for _, c := range d.text[offset/stride*stride : offset] {
		if c&0xC0 != 0x80 {
			n++
		}
	}
	return n
}

// placeMarks parses the text a second time to find positions, which the decoder does not report.
// The decoder has accepted the text before.
func placeMarks(data []byte) (*mark, error) {
	root := &mark{}
	current := root
	var p unstable.Parser
	p.Reset(data)
	for p.NextExpression() {
		e := p.Expression()
		switch e.Kind {
		case unstable.Table:
			current = root.descend(e.Key(), false)
		case unstable.ArrayTable:
			current = root.descend(e.Key(), true)
		case unstable.KeyValue:
			current.keyValue(data, e)
		}
	}
	return root, p.Error()
}

// descend follows the keys of a header and makes missing marks. An array of tables on the way means
// its last table.
func (m *mark) descend(parts unstable.Iterator, array bool) *mark {
	for parts.Next() {
		k := parts.Node()
		m = m.child(string(k.Data), k.Raw.Offset)
		if n := len(m.items); n > 0 && !(array && parts.IsLast()) {
			m = m.items[n-1]
		}
		if array && parts.IsLast() {
			item := &mark{key: k.Raw.Offset, val: k.Raw.Offset}
			m.items = append(m.items, item)
			m = item
		}
	}
	return m
}

func (m *mark) child(name string, offset uint32) *mark {
	if c, ok := m.sub[name]; ok {
		return c
	}
	c := &mark{key: offset, val: offset}
	if m.sub == nil {
		m.sub = map[string]*mark{}
	}
	m.sub[name] = c
	m.order = append(m.order, name)
	return c
}

func (m *mark) keyValue(data []byte, e *unstable.Node) {
	var last *unstable.Node
	for parts := e.Key(); parts.Next(); {
		last = parts.Node()
		m = m.child(string(last.Data), last.Raw.Offset)
	}
	m.value(data, e.Value(), afterEquals(data, last.Raw))
}

// afterEquals is the start of a key's value. The parser gives no position for arrays.
func afterEquals(data []byte, key unstable.Range) uint32 {
	i := key.Offset + key.Length
	for i < uint32(len(data)) && strings.IndexByte(" \t=", data[i]) >= 0 {
		i++
	}
	return i
}

func (m *mark) value(data []byte, v *unstable.Node, start uint32) {
	m.val = start
	switch v.Kind {
	case unstable.InlineTable:
		for it := v.Children(); it.Next(); {
			if kv := it.Node(); kv.Kind == unstable.KeyValue {
				m.keyValue(data, kv)
			}
		}
	case unstable.Array:
		for it := v.Children(); it.Next(); {
			e := it.Node()
			if e.Kind == unstable.Comment {
				continue
			}
			at := start
			if e.Kind != unstable.Array {
				at = e.Raw.Offset
			}
			item := &mark{key: at}
			item.value(data, e, at)
			m.items = append(m.items, item)
		}
	}
}

// At returns the value at the given keys. A number in brackets ("[0]") is the index of an array.
func (d *Document) At(keys ...string) (any, bool) {
	var v any = d.raw
	for _, k := range keys {
		switch node := v.(type) {
		case map[string]any:
			next, ok := node[k]
			if !ok {
				return nil, false
			}
			v = next
		case []any:
			i, ok := indexOf(k)
			if !ok || i >= len(node) {
				return nil, false
			}
			v = node[i]
		default:
			return nil, false
		}
	}
	return v, true
}

func indexOf(k string) (int, bool) {
	if len(k) < 3 || len(k) > 9 || k[0] != '[' || k[len(k)-1] != ']' {
		return 0, false
	}
	n := 0
	for _, c := range []byte(k[1 : len(k)-1]) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, true
}

// Lookup returns the value at a dotted path of bare keys.
func (d *Document) Lookup(path string) (any, bool) {
	return d.At(strings.Split(path, ".")...)
}

// Has reports whether the document contains the path, whatever its value.
func (d *Document) Has(path string) bool {
	_, ok := d.Lookup(path)
	return ok
}

// On reports whether the value is the boolean true.
func (d *Document) On(path string) bool {
	v, _ := d.Lookup(path)
	return v == true
}

// String returns the string at path.
func (d *Document) String(path string) (string, bool) {
	v, _ := d.Lookup(path)
	s, ok := v.(string)
	return s, ok
}

// Is reports whether the value is exactly the string want.
func (d *Document) Is(path, want string) bool {
	s, ok := d.String(path)
	return ok && s == want
}

// NonEmpty reports whether the value is a string with at least one character. Blanks count as
// characters.
func (d *Document) NonEmpty(path string) bool {
	s, _ := d.String(path)
	return s != ""
}

// Or returns the string at path or, if it is empty or absent, other.
func (d *Document) Or(path, other string) string {
	if s, _ := d.String(path); s != "" {
		return s
	}
	return other
}

// Int returns the integer at path.
func (d *Document) Int(path string) (int64, bool) {
	v, _ := d.Lookup(path)
	n, ok := v.(int64)
	return n, ok
}

// List returns the array at path.
func (d *Document) List(path string) ([]any, bool) {
	v, _ := d.Lookup(path)
	l, ok := v.([]any)
	return l, ok
}

// Table returns the table at path. It must not be changed.
func (d *Document) Table(path string) (map[string]any, bool) {
	v, _ := d.Lookup(path)
	t, ok := v.(map[string]any)
	return t, ok
}

// Keys returns the keys of the table at path in the order of the document.
func (d *Document) Keys(path ...string) []string {
	v, ok := d.At(path...)
	t, isTable := v.(map[string]any)
	if !ok || !isTable {
		return nil
	}
	return orderedKeys(t, d.mark(path...))
}

// orderedKeys sorts the keys by their position in the document, or alphabetically if there are no
// positions.
func orderedKeys(t map[string]any, m *mark) []string {
	if m != nil && len(m.order) == len(t) {
		return m.order
	}
	return slices.Sorted(maps.Keys(t))
}

func (d *Document) mark(keys ...string) *mark {
	m := d.marks
	for _, k := range keys {
		if i, ok := indexOf(k); ok && i < len(m.items) {
			m = m.items[i]
			continue
		}
		next, ok := m.sub[k]
		if !ok {
			return nil
		}
		m = next
	}
	return m
}

// KeyPos is the position of the key or, if it is absent, of the nearest table above.
func (d *Document) KeyPos(keys ...string) Position {
	for n := len(keys); n > 0; n-- {
		if m := d.mark(keys[:n]...); m != nil {
			return d.at(m.key)
		}
	}
	return Position{}
}

// ValuePos is the position of the value or, if it is absent, of the nearest table above.
func (d *Document) ValuePos(keys ...string) Position {
	if m := d.mark(keys...); m != nil {
		return d.at(m.val)
	}
	if len(keys) == 0 {
		return Position{}
	}
	return d.KeyPos(keys[:len(keys)-1]...)
}
