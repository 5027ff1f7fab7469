package schema

import (
	"cmp"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Setting is one effective value and its source.
type Setting struct {
	Path  string `json:"path"`
	Value any    `json:"value"`
	// Source is "file", "env", "catalogue" or "default". Detail is the position in the file, or the
	// name of the variable.
	Source string `json:"source"`
	Detail string `json:"detail,omitempty"`
}

// Redacted replaces a secret.
const Redacted = "[redacted]"

// layer is one table that may set values. The layer with the highest precedence comes first.
type layer struct {
	source string
	table  map[string]any
	keys   []string // path in the document; nil if the layer is not from the document
}

type effective struct {
	d        *Document
	env      func(string) (string, bool)
	settings []Setting
}

// Effective lists every effective value in schema order: values of the manifest, overrides from the
// environment, the catalogue's program tables (by name, in the manifest's own syntax), and
// defaults. Secrets are redacted.
func Effective(d *Document, env func(string) (string, bool), catalogue map[string]map[string]any) []Setting {
	e := &effective{d: d, env: env}
	root := []layer{{"file", d.raw, []string{}}}
	for _, k := range manifestShape().keys {
		if k.name != "programs" {
			e.value([]string{k.name}, k.shape, below(root, k.name))
			continue
		}
		e.programs(catalogue)
	}
	return e.settings
}

func (e *effective) programs(catalogue map[string]map[string]any) {
	written, _ := e.d.Table("programs")
	defaults, _ := e.d.Table("supervisor.defaults")
	names := slices.AppendSeq(slices.Collect(maps.Keys(written)), maps.Keys(catalogue))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		own, _ := written[name].(map[string]any)
		merged := MergeProgram(defaults, catalogue[name], own)
		replaced := map[string]bool{}
		for key := range merged {
			for _, other := range stopKeys[key] {
				replaced[other] = merged[other] == nil
			}
		}
		layers := []layer{
			{"file", own, []string{"programs", name}},
			{"catalogue", catalogue[name], nil},
			{"default", ScheduleDefaults(merged, catalogue[name], own), nil},
			{"file", defaults, []string{"supervisor", "defaults"}},
			// Its default depends on other keys.
			{"default", map[string]any{"start_timeout": decodeProgram(merged).StartTimeout.String()}, nil},
		}
		for i, l := range layers {
			if logs, ok := l.table["logs"]; ok {
				layers[i].table = maps.Clone(l.table)
				layers[i].table["logs"] = withLogFile(logs)
			}
		}
		for _, k := range programTable().keys {
			if !replaced[k.name] {
				e.value([]string{"programs", name, k.name}, k.shape, below(layers, k.name))
			}
		}
	}
}

// ScheduleDefaults returns the defaults of a schedule that differ from those of other programs: its
// next attempt is its next scheduled run. There are none if one of its own tables asks for restarts.
// [supervisor.defaults] is not one of them, because it is meant for services.
func ScheduleDefaults(merged map[string]any, own ...map[string]any) map[string]any {
	asks := slices.ContainsFunc(own, func(table map[string]any) bool {
		_, restart := table["restart"]
		_, retries := table["start_retries"]
		return restart || retries
	})
	if merged["type"] != string(program.Schedule) || asks {
		return nil
	}
	return map[string]any{"restart": string(program.RestartNever)}
}

// below returns the value of one key in every layer that has it.
func below(layers []layer, name string) []layer {
	out := make([]layer, 0, len(layers))
	for _, l := range layers {
		v, ok := l.table[name]
		if !ok {
			continue
		}
		next := layer{source: l.source}
		if next.table, ok = v.(map[string]any); !ok {
			next.table = map[string]any{"": v}
		}
		if l.keys != nil {
			next.keys = append(slices.Clone(l.keys), name)
		}
		out = append(out, next)
	}
	return out
}

// value adds one key. layers are those that set it. A scalar is stored under the empty name.
func (e *effective) value(path []string, s *shape, layers []layer) {
	if text, name, ok := e.override(s); ok {
		e.add(path, s, typed(s, text), "env", name)
		return
	}
	if len(layers) == 0 {
		switch {
		case s.value != nil:
			e.add(path, s, s.value, "default", "")
		case s.kinds == kTable && !s.optional && len(s.keys) > 0:
			e.table(path, s, nil)
		}
		return
	}
	top := layers[0]
	if v, scalar := top.table[""]; scalar && s.child("") == nil {
		e.add(path, s, v, top.source, e.place(top))
		return
	}
	if !mergedByKey[path[len(path)-1]] {
		layers = layers[:1]
	}
	e.table(path, s, slices.DeleteFunc(slices.Clone(layers), func(l layer) bool { _, scalar := l.table[""]; return scalar }))
}

func (e *effective) table(path []string, s *shape, layers []layer) {
	for _, k := range s.keys {
		e.value(append(slices.Clone(path), k.name), k.shape, below(layers, k.name))
	}
	if s.entry == nil {
		return
	}
	seen := map[string]bool{}
	for _, l := range layers {
		for _, name := range orderedKeys(l.table, nil) {
			if !seen[name] {
				seen[name] = true
				e.value(append(slices.Clone(path), name), s.entry, below(layers, name))
			}
		}
	}
}

func (e *effective) place(l layer) string {
	if l.keys == nil {
		return ""
	}
	pos := e.d.KeyPos(l.keys...)
	if pos.Line == 0 { // it follows from another key of its table
		pos = e.d.KeyPos(l.keys[:len(l.keys)-1]...)
	}
	return e.d.Name + ":" + strconv.Itoa(pos.Line) + ":" + strconv.Itoa(pos.Column)
}

// override returns the value of the environment that replaces that of the manifest. The listener
// has two variables, one for the host and one for the port.
func (e *effective) override(s *shape) (text, name string, ok bool) {
	if s.env == "" || e.env == nil {
		return "", "", false
	}
	if host, port, two := strings.Cut(s.env, ", "); two {
		h, _ := e.env(host)
		p, _ := e.env(port)
		if h == "" && p == "" {
			return "", "", false
		}
		oldHost, oldPort, err := net.SplitHostPort(e.listen(s))
		if err != nil {
			return "", "", false // a listener that the manifest switches off stays off
		}
		return net.JoinHostPort(cmp.Or(strings.Trim(h, "[]"), oldHost), cmp.Or(p, oldPort)), s.env, true
	}
	v, _ := e.env(s.env)
	return v, s.env, v != ""
}

// typed converts a variable's text to the type of the key. If that is impossible, it returns the
// text, and agentinit refuses the text at boot.
func typed(s *shape, text string) any {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && s.kinds&kInteger != 0 {
		return n
	}
	if s.kinds == kArray { // in the environment, commas separate items
		var items []any
		for item := range strings.SplitSeq(text, ",") {
			items = append(items, strings.TrimSpace(item))
		}
		return items
	}
	return text
}

// listen is the listener's address without the environment.
func (e *effective) listen(s *shape) string {
	if text, ok := e.d.String("supervisor.listen"); ok {
		return text
	}
	text, _ := s.value.(string)
	return text
}

func (e *effective) add(path []string, s *shape, v any, source, detail string) {
	e.settings = append(e.settings, Setting{Path: Path(path...), Value: safe(path, s, v), Source: source, Detail: detail})
}

const (
	variable = `^[A-Za-z_][A-Za-z0-9_]*$`
	userinfo = `(://[^/@\s:]*:)[^/@\s]+@`
	// A token can be the whole user information of a web address.
	webToken = `(?i)(https?://)[^/@\s:]+@`
	// named matches secrets inside a text: keywords of libpq, parameters of a query.
	// They may be the end of a longer name: DB_PASSWORD=.
	named  = `(?i)((?:password|passwd|pwd|secret|token|api_?key)=)[^\s&;"']+`
	bearer = `(?i)\b((?:bearer|basic) +)[A-Za-z0-9._~+/=-]{6,}`
)

// VariableName reports whether a text is a portable name of an environment variable (POSIX XBD
// 8.1).
func VariableName(s string) bool { return regular(variable).MatchString(s) }

// maxVariableName is the maximum length of a variable's name that is shown. A longer text is
// probably a credential in the wrong place. minToken is the length from which a name may be one.
const (
	maxVariableName = 100
	minToken        = 20
)

// ShownVariable reports whether a text that should name a variable may be shown. Any other text may
// be the credential itself. Some credentials have the form of a name: a token of GitHub is ghp_ and 36
// letters and digits.
func ShownVariable(s string) bool {
	return len(s) <= maxVariableName && VariableName(s) && !tokenLike(s)
}

// tokenLike reports whether a name is as long and mixed as a token. The names of variables rarely have
// small letters beside capitals or digits.
func tokenLike(name string) bool {
	return len(name) >= minToken && name != strings.ToUpper(name) && strings.ContainsAny(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
}

// namesVariable are the keys whose value is the name of a variable.
var namesVariable = map[string]bool{"env_var": true, "optional_env_vars": true, "token_env": true, "key_env": true, "env": true}

// safe redacts secrets: the whole value of a secret key or of a variable with a secret name, and
// passwords inside texts. A text that only refers to a variable (${X}) is not a secret.
func safe(path []string, s *shape, v any) any {
	name := path[len(path)-1]
	inEnvironment := len(path) > 1 && path[len(path)-2] == "environment"
	text, isText := v.(string)
	if s.secret && !inEnvironment || inEnvironment && SecretName(name) {
		if isText && (text == "" || strings.Contains(text, "${")) {
			return text
		}
		return Redacted
	}
	switch v := v.(type) {
	case string:
		if v != "" && namesVariable[name] && !inEnvironment && !ShownVariable(v) {
			return Redacted
		}
		return redactText(v)
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = safe(path, &shape{}, e)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = safe(append(slices.Clone(path), k), &shape{secret: SecretName(k)}, e)
		}
		return out
	}
	return v
}

// redactText redacts the parts of a text that look like a secret.
func redactText(s string) string {
	s = regular(webToken).ReplaceAllString(redactURL(s), "${1}"+Redacted+"@")
	s = regular(named).ReplaceAllString(s, "${1}"+Redacted)
	return regular(bearer).ReplaceAllString(s, "${1}"+Redacted)
}

// HoldsSecret reports whether a part of the text looks like a secret: a password in an address, a
// keyword such as "password=", or a bearer token.
func HoldsSecret(s string) bool { return redactText(s) != s }

// redactURL redacts the password in an address.
func redactURL(s string) string {
	if !strings.Contains(s, "://") {
		return s
	}
	return regular(userinfo).ReplaceAllString(s, "${1}"+Redacted+"@")
}
