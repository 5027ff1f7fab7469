package schema

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// validator collects one E016 for every violated constraint.
type validator struct {
	doc      *Document // nil: there are no positions
	path     []string
	findings []Finding
	unknown  int
	ours     int // how many shapes on the current path are not in the older manifest
}

// validate checks a whole document against the manifest's shape.
func validate(d *Document) []Finding {
	v := validator{doc: d}
	v.check(manifestShape(), d.raw, d.marks)
	return v.findings
}

func (v *validator) report(m *mark, onKey bool, value any, secret bool, message, hint string) {
	f := Finding{Code: "E016", Severity: Error, Path: Path(v.path...), Message: message, Hint: hint}
	if value != nil && !secret {
		f.Value = Describe(value)
	}
	if v.doc != nil {
		f.File = v.doc.Name
		if m != nil && m != v.doc.marks {
			at := v.doc.at(m.val)
			if onKey {
				at = v.doc.at(m.key)
			}
			f.Line, f.Column = at.Line, at.Column
		}
	}
	v.findings = append(v.findings, f)
}

func (v *validator) check(s *shape, value any, m *mark) {
	if s.ours {
		v.ours++
		defer func() { v.ours-- }()
	}
	before := len(v.findings)
	typed := v.typed(s, value)
	// In sections of the older manifest, a wrong type and a value outside the list are two
	// violations. In other sections, one mistake gives one finding.
	listed := s.enum != nil && v.ours > 0
	if !typed && !listed {
		v.wrongType(s, value, m)
	}
	v.checkEnum(s, value, m)
	if !typed {
		v.checkFloatRange(s, value, m)
		return
	}
	switch value := value.(type) {
	case string:
		v.checkString(s, value, m)
	case int64:
		if !v.checkOctal(s, value, m) {
			return
		}
		v.checkRange(s, float64(value), value, m)
	case float64:
		v.checkRange(s, value, value, m)
	case []any:
		v.checkArray(s, value, m)
	case map[string]any:
		v.checkTable(s, value, m)
	}
	if s.form != nil && len(v.findings) == before {
		if err := s.form(value); err != nil {
			v.report(m, false, value, secretive(s, value), v.here()+" must be "+err.Error()+notThis(s, value, err), "")
		}
	}
}

// notThis ends the message of a form with the value. It says nothing if the value is an array or a
// table, or a text that is in the message already.
func notThis(s *shape, value any, err error) string {
	isText := kindOf(value) == kString
	if kindOf(value)&(kArray|kTable) != 0 || isText && strings.Contains(err.Error(), Describe(value)) {
		return ""
	}
	return but(s, value)
}

func (v *validator) here() string { return Path(v.path...) }

// secretive reports whether messages must not show a value: that of a key for secrets, a text that may
// hold one anywhere, or one that looks like one. A text in place of a table can be all of that, such as
// a whole environment.
func secretive(s *shape, value any) bool {
	text, ok := value.(string)
	return s.secret || s.private || ok && (s.kinds&kTable != 0 || HoldsSecret(text))
}

// but ends a message with the offending value: the whole value, of an address the part that is no
// secret, or the reason why the value is missing.
func but(s *shape, value any) string {
	text, isText := value.(string)
	switch {
	case !secretive(s, value):
		return ", not " + Describe(value)
	case s.address && isText:
		return ", not " + Address(text)
	}
	return "; the value is not shown, because it can hold a secret"
}

func kindOf(value any) kind {
	switch value.(type) {
	case string:
		return kString
	case int64:
		return kInteger
	case float64:
		return kNumber
	case bool:
		return kBool
	case []any:
		return kArray
	case map[string]any:
		return kTable
	}
	return 0
}

func (v *validator) typed(s *shape, value any) bool {
	return s.kinds == 0 || s.kinds&kindOf(value) != 0
}

func (v *validator) wrongType(s *shape, value any, m *mark) {
	shown := typeName(value)
	if c := Describe(value); !secretive(s, value) && c != shown {
		shown += " (" + c + ")"
	}
	v.report(m, false, value, secretive(s, value), fmt.Sprintf("%s must be %s, not %s", v.here(), s.kinds, shown), v.typeHint(s, value))
}

// typeHint says how to write a value whose type is wrong.
func (v *validator) typeHint(s *shape, value any) string {
	list, _ := value.([]any)
	switch got := kindOf(value); {
	case got == kNumber && s.kinds&kInteger != 0:
		return "write it without a fraction"
	case got == kString && s.kinds&(kString|kArray|kTable) == 0 && bareInTOML(value.(string), s.kinds):
		return "write it without quotes"
	case s.kinds == kBool:
		return "write true or false"
	case s.kinds == kString && got&(kInteger|kNumber|kBool) != 0 && s.enum == nil:
		if s.pattern != "" && !regular(s.pattern).MatchString(Describe(value)) {
			return "write " + s.expect
		}
		return "write it in quotes"
	case s.kinds == kArray && got&(kTable|kArray) == 0 && s.items != nil && v.typed(s.items, value) && !secretive(s, value):
		return "write [" + Describe(value) + "]"
	case v.here() == "programs":
		return "write each program as [programs.NAME], with command below it"
	case s.kinds == kTable && len(list) > 0 && kindOf(list[0]) == kTable:
		return "write [" + v.here() + "], with single brackets"
	case s.kinds == kArray|kTable: // ready and health
		return `write a table such as { http = "http://127.0.0.1:8080/healthz" }`
	case s.kinds == kTable && !strings.Contains(v.here(), "["):
		return "write [" + v.here() + "], and below it a line KEY = VALUE for each of its keys"
	}
	return ""
}

// bareInTOML reports whether a text is a value of one of the kinds if its quotes are removed.
func bareInTOML(text string, kinds kind) bool {
	if text == "true" || text == "false" {
		return kinds&kBool != 0
	}
	_, err := strconv.ParseFloat(text, 64)
	return err == nil && kinds&(kInteger|kNumber) != 0
}

// checkEnum also checks values of a wrong type.
func (v *validator) checkEnum(s *shape, value any, m *mark) {
	if s.enum == nil {
		return
	}
	text, isString := value.(string)
	if isString && slices.Contains(s.enum, text) {
		return
	}
	hint := ""
	if now := retiredValues[text]; slices.Contains(s.enum, now) {
		hint = "use " + Quote(now)
	} else if near, ok := Nearest(text, s.enum); ok {
		hint = "did you mean " + Quote(near) + "?"
	}
	v.report(m, false, value, secretive(s, value), v.here()+" must be "+QuoteList(s.enum)+but(s, value), hint)
}

// checkFloatRange checks the range of a float at an integer key.
func (v *validator) checkFloatRange(s *shape, value any, m *mark) {
	if f, ok := value.(float64); ok && s.kinds&kInteger != 0 && s.outside(f) {
		v.checkRange(s, f, value, m)
	}
}

// outside says whether n breaks a bound. NaN breaks every one.
func (s *shape) outside(n float64) bool {
	return s.min != nil && !(n >= float64(*s.min)) || s.max != nil && !(n <= float64(*s.max))
}

func (v *validator) checkRange(s *shape, n float64, value any, m *mark) {
	if !s.outside(n) && !math.IsNaN(n) && !math.IsInf(n, 0) {
		return
	}
	want := "a finite number"
	switch {
	case s.min != nil && s.max != nil:
		want = fmt.Sprintf("from %d to %d", *s.min, *s.max)
	case s.min != nil:
		want = fmt.Sprintf("at least %d", *s.min)
	}
	v.report(m, false, value, secretive(s, value), v.here()+" must be "+want+but(s, value), "")
}

// checkOctal refuses permission bits in decimal: in TOML, umask = 22 means 0026, which no user
// expects. Up to 7, decimal and octal are the same.
func (v *validator) checkOctal(s *shape, n int64, m *mark) bool {
	if !s.octal || n >= 0 && n <= 7 || v.doc == nil || m == nil {
		return true
	}
	written := numberAt(v.doc.text, m.val)
	if strings.HasPrefix(written, "0o") {
		return true
	}
	hint := ""
	if strings.Trim(written, "01234567") == "" && len(written) <= 4 {
		hint = "write " + Quote(("0" + written)[max(len(written)-3, 0):]) // at most four digits
	}
	v.report(m, false, n, s.secret, fmt.Sprintf("%s must be %s, not the decimal number %d", v.here(), errMode, n), hint)
	return false
}

// numberAt is the number at that offset, as written.
func numberAt(text []byte, at uint32) string {
	rest := text[min(int(at), len(text)):]
	n := 0
	for n < len(rest) && (isBare(rest[n]) || rest[n] == '.') {
		n++
	}
	return string(rest[:n])
}

func (v *validator) checkString(s *shape, text string, m *mark) {
	if utf8.RuneCountInString(text) < s.minLen {
		v.report(m, false, text, s.secret, v.here()+" must not be empty", "")
	}
	// If the decoder accepts the text, the pattern matches too: the pattern repeats the decoder's
	// rule for JSON Schema. To compile it takes longer than all other checks.
	if s.pattern == "" || s.form != nil && s.form(text) == nil || regular(s.pattern).MatchString(text) {
		return
	}
	v.report(m, false, text, secretive(s, text), v.here()+" must be "+s.expect+but(s, text), "")
}

func (v *validator) checkArray(s *shape, list []any, m *mark) {
	if len(list) < s.minItem {
		v.report(m, false, list, s.secret, v.here()+" must not be empty", "")
	}
	if s.items == nil {
		return
	}
	for i, e := range list {
		v.path = append(v.path, "["+strconv.Itoa(i)+"]")
		v.check(s.items, e, m.item(i))
		v.path = v.path[:len(v.path)-1]
	}
}

func (m *mark) item(i int) *mark {
	if m == nil || i >= len(m.items) {
		return nil
	}
	return m.items[i]
}

func (m *mark) named(name string) *mark {
	if m == nil {
		return nil
	}
	return m.sub[name]
}

func (v *validator) checkTable(s *shape, t map[string]any, m *mark) {
	for _, name := range orderedKeys(t, m) {
		v.path = append(v.path, name)
		v.checkKey(s, name, t[name], m.named(name))
		v.path = v.path[:len(v.path)-1]
	}
	for _, k := range s.keys {
		if _, ok := t[k.name]; k.required && !ok {
			v.path = append(v.path, k.name)
			v.report(m, true, nil, false, fmt.Sprintf("%s is missing: %s", v.here(), wanted(k.shape)), "")
			v.path = v.path[:len(v.path)-1]
		}
	}
}

func wanted(s *shape) string {
	if s.enum != nil {
		return QuoteList(s.enum) + " is required"
	}
	return s.kinds.String() + " is required"
}

func (v *validator) checkKey(s *shape, name string, value any, m *mark) {
	if k := s.fixed(name); k != nil {
		v.check(k, value, m)
		return
	}
	if s.entry == nil {
		v.unknownKey(s, name, m)
		return
	}
	if s.names != nil && !s.names.allow(name) {
		hint := ""
		if small := strings.ToLower(name); s.names.allow(small) {
			hint = "did you mean " + small + "?"
		}
		v.report(m, true, nil, false, v.here()+": the name must "+s.names.words, hint)
	}
	v.check(s.entry, value, m)
}

// deeperHint names the one table of s that has the key.
func deeperHint(s *shape, name string) string {
	hint := ""
	for _, k := range s.keys {
		if k.shape.fixed(name) == nil {
			continue
		}
		if hint != "" {
			return ""
		}
		hint = "did you mean " + Path(k.name, name) + "?"
	}
	return hint
}

// maxHints bounds the searches for similar words in a document with many unknown keys.
const maxHints = 1000

func (v *validator) unknownKey(s *shape, name string, m *mark) {
	parent := Path(v.path[:len(v.path)-1]...)
	where := "at the top level"
	if parent != "" {
		where = "in [" + parent + "]"
	}
	hint := cmp.Or(retiredKeys[v.here()], foreignHint(v.path, s.keys), deeperHint(s, name))
	if v.unknown++; hint == "" && v.unknown <= maxHints {
		candidates := make([]string, len(s.keys))
		for i, k := range s.keys {
			candidates[i] = k.name
		}
		if near, ok := Nearest(name, candidates); ok {
			hint = "did you mean " + Quote(near) + "?"
		}
	}
	if hint == "" && parent != "" {
		hint = "agentctl help manifest " + v.sectionHelp() + " shows the keys"
	}
	v.report(m, true, nil, false, fmt.Sprintf("unknown key %s %s", v.here(), where), hint)
}

// sectionHelp is what agentctl help takes for the table of the present key: it needs neither the name of
// a program nor the index of an element.
func (v *validator) sectionHelp() string {
	table := slices.DeleteFunc(slices.Clone(v.path[:len(v.path)-1]), func(k string) bool { _, element := indexOf(k); return element })
	if len(table) > 1 && table[0] == "programs" {
		table = slices.Delete(table, 1, 2)
	}
	return Path(table...)
}

// retiredKeys are refused keys of older documents. The hint names the replacement.
var retiredKeys = map[string]string{
	"integrations.ragflow":            "use [integrations.external_network]",
	"skills.media.comfyui_external":   "use [integrations.comfyui_external]",
	"sovereign_mesh.jss_rust_backend": `retired; adapters.pods = "local-solid-rs" is the local pod server`,
	"security.exceptions.consultants": "consultants need no exception; their log_dir must lie on a writable mount",
	"observability.metrics_listen":    "use supervisor.metrics_listen",
	"supervisor.seal_timeout":         "use bootstrap.seal_timeout",
	"bootstrap.stop_grace":            "use supervisor.stop_grace",
}

// retiredValues are values that older versions accepted, and what replaces them at the keys that take the
// replacement.
var retiredValues = map[string]string{
	"local-jss":  "local-solid-rs",
	"rnostr":     "nostr-rs-relay",
	"local-rocm": "ollama-rocm",
	// Restart policies of supervisord and of container engines.
	"unexpected":     "on-failure",
	"unless-stopped": "always",
}
