package schema

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// kind is a set of TOML types that a value may have.
type kind uint8

const (
	kString kind = 1 << iota
	kInteger
	kNumber // a float; an integer is also allowed there
	kBool
	kArray
	kTable
)

// shape describes one value of the manifest: its types, lists, ranges, default and texts. It is the
// single source for the validator, the defaults, the JSON Schema, the test of the typed decoder,
// and docs/manifest.md. A keyword applies only to values of its type, as in JSON Schema. So a key
// with several types ("a string or an array") needs no alternatives.
type shape struct {
	kinds kind
	doc   string
	value any   // default: string, int64, float64, bool, []any, map[string]any; nil: none
	also  []any // examples
	env   string

	enum    []string // allowed strings, case-sensitive
	pattern string
	expect  string          // what the pattern or form expects, for messages
	form    func(any) error // a check that JSON Schema cannot express
	min     *int64
	max     *int64
	minLen  int // of strings, in characters
	minItem int // of arrays

	items *shape
	keys  []key
	// entry is the shape of free keys. If it is nil, only the fixed keys are allowed.
	entry    *shape
	names    *names // the allowed free keys; nil: any name
	optional bool   // absence of the table has a meaning, so no defaults inside it
	ours     bool   // the older manifest does not have this section
	secret   bool   // also not shown as a value in force
	private  bool   // the text may hold a secret anywhere, such as a command line: no message repeats it
	address  bool   // with private: a URL, of which messages show what Address leaves
	octal    bool   // an integer must be written with 0o
}

// key is one named entry of a table.
type key struct {
	name     string
	shape    *shape
	required bool
}

func text(doc string) *shape    { return &shape{kinds: kString, doc: doc} }
func integer(doc string) *shape { return &shape{kinds: kInteger, doc: doc} }
func number(doc string) *shape  { return &shape{kinds: kInteger | kNumber, doc: doc} }
func boolean(doc string) *shape { return &shape{kinds: kBool, doc: doc} }
func onOff(doc string) *shape   { return boolean(doc).def(false) }
func enum(doc string, of ...string) *shape {
	return &shape{kinds: kString, doc: doc, enum: of}
}

func list(doc string, items *shape) *shape {
	return &shape{kinds: kArray, doc: doc, items: items}
}

func texts(doc string) *shape { return list(doc, text("")) }

func table(doc string, keys ...key) *shape {
	return &shape{kinds: kTable, doc: doc, keys: keys}
}

// mapping is a table with free keys.
func mapping(doc string, n *names, entry *shape) *shape {
	return &shape{kinds: kTable, doc: doc, entry: entry, names: n}
}

// names is the rule for the free keys of a table: as a pattern for JSON Schema and the reference, in
// words for messages ("the name must …"), and as code for speed, because every document has such keys.
type names struct {
	pattern string
	words   string
	allow   func(string) bool
}

// programNames is the rule for names of programs and templates. Such a name is also a path
// component of log files and control routes.
var programNames = &names{`^[a-z0-9][a-z0-9_.-]{0,62}$`,
	"have 1 to 63 characters: lower-case letters, digits, and after the first also '_', '.' and '-'", func(s string) bool {
		if s == "" || len(s) > 63 || strings.IndexByte("_.-", s[0]) >= 0 {
			return false
		}
		for i := range len(s) {
			if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && strings.IndexByte("_.-", c) < 0 {
				return false
			}
		}
		return true
	}}

// variableNames is the rule for names that execve(2) can pass.
var variableNames = &names{`^[^=\x00]+$`, "have at least one character, and neither '=' nor a NUL byte", func(s string) bool {
	return s != "" && !strings.ContainsAny(s, "=\x00")
}}

func field(name string, s *shape) key { return key{name: name, shape: s} }
func must(name string, s *shape) key  { return key{name: name, shape: s, required: true} }

// port is a TCP port on which a program can listen.
func port(doc string) *shape { return integer(doc).between(1, 65535) }

// durationPattern matches the texts that ParseDuration accepts, without the upper bound.
const durationPattern = `^([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*$|^0$`

func duration(doc string) *shape {
	s := &shape{kinds: kString | kInteger | kNumber, doc: doc}
	return s.match(durationPattern, errDuration.Error()).from(0).formOf(decodes[Duration])
}

func size(doc string) *shape {
	s := &shape{kinds: kString | kInteger, doc: doc}
	return s.match(`^[0-9]+ *(B|[KMGT]i?B?|kB)?$`, errSize.Error()).from(0).formOf(decodes[Size])
}

func mode(doc string) *shape {
	s := &shape{kinds: kString | kInteger, doc: doc}
	s.octal = true
	return s.match(`^[0-7]{1,4}$`, errMode.Error()).between(0, 0o7777)
}

// command is an argument vector or one string.
func command(doc string) *shape {
	s := &shape{kinds: kString | kArray, doc: doc, items: text("").untold(), minItem: 1, minLen: 1}
	return s.untold().formOf(decodes[Command])
}

func hook(doc string) *shape {
	s := table(doc,
		must("command", command("What to run.")),
		field("timeout", duration("It is killed, with its children, after this.").def(program.DefaultHookTimeout)),
	)
	s.kinds |= kString | kArray
	s.items, s.minItem, s.minLen = text("").untold(), 1, 1
	s.optional = true
	return s.untold().formOf(decodes[Hook])
}

// decoder is a type that decodes its own form in the manifest.
type decoder[T any] interface {
	*T
	fromTOML(any) error
}

// decodes checks that v can become a T.
func decodes[T any, P decoder[T]](v any) error {
	var t T
	return P(&t).fromTOML(v)
}

func (s *shape) def(v any) *shape { s.value = asRead(v); return s }

func (s *shape) eg(v ...any) *shape {
	for _, e := range v {
		s.also = append(s.also, asRead(e))
	}
	return s
}

// asRead converts a Go value to the form in which the parser would return it.
func asRead(v any) any {
	switch v := v.(type) {
	case int:
		return int64(v)
	case time.Duration:
		if v < time.Second {
			return v.String()
		}
		return fmt.Sprintf("%gs", v.Seconds())
	case []string:
		list := make([]any, len(v))
		for i, e := range v {
			list[i] = e
		}
		return list
	case []int:
		list := make([]any, len(v))
		for i, e := range v {
			list[i] = int64(e)
		}
		return list
	}
	return v
}

func (s *shape) from(lo int64) *shape                { s.min = &lo; return s }
func (s *shape) between(lo, hi int64) *shape         { s.min, s.max = &lo, &hi; return s }
func (s *shape) nonEmpty() *shape                    { s.minLen = 1; return s }
func (s *shape) overrides(env string) *shape         { s.env = env; return s }
func (s *shape) absent() *shape                      { s.optional = true; return s }
func (s *shape) own() *shape                         { s.ours = true; return s }
func (s *shape) hidden() *shape                      { s.secret = true; return s }
func (s *shape) untold() *shape                      { s.private = true; return s }
func (s *shape) addressed() *shape                   { s.address = true; return s.untold() }
func (s *shape) formOf(check func(any) error) *shape { s.form = check; return s }
func (s *shape) match(pattern, expect string) *shape {
	s.pattern, s.expect = pattern, expect
	return s
}

var patterns sync.Map // pattern → *regexp.Regexp

// regular compiles one of our patterns at the first use. Most loads need few of them, and compiling
// all would take longer than loading a small manifest.
func regular(pattern string) *regexp.Regexp {
	re, ok := patterns.Load(pattern)
	if !ok {
		re, _ = patterns.LoadOrStore(pattern, regexp.MustCompile(pattern))
	}
	return re.(*regexp.Regexp)
}

// asTable is s for the case that the value is present and is a table.
func (s *shape) asTable() *shape {
	t := *s
	t.kinds, t.optional = kTable, false
	return &t
}

// fixed returns the shape of a fixed key, or nil if the table has no such key. The tables are
// short: to make a map for each would take longer than all look-ups of a small manifest.
func (s *shape) fixed(name string) *shape {
	for i := range s.keys {
		if s.keys[i].name == name {
			return s.keys[i].shape
		}
	}
	return nil
}

// child returns the shape of a key, or nil if the key is not allowed.
func (s *shape) child(name string) *shape {
	if k := s.fixed(name); k != nil {
		return k
	}
	return s.entry
}

// whileUsed builds a shape when it is needed, and lets the garbage collector free it when it is
// unused. Init mode never builds it, and a box needs it again only when its manifest changes.
func whileUsed(build func() *shape) func() *shape {
	var mu sync.Mutex
	var kept weak.Pointer[shape]
	return func() *shape {
		mu.Lock()
		defer mu.Unlock()
		s := kept.Value()
		if s == nil {
			s = build()
			kept = weak.Make(s)
		}
		return s
	}
}

var manifestShape = whileUsed(newManifestShape)

// Preload builds the shape with which Load checks every manifest, so that this can run concurrently
// with other work. It is safe for concurrent use.
func Preload() { manifestShape() }
