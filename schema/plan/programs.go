package plan

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// itself are the names of programs of the older runtime whose tasks agentinit does itself.
var itself = []string{"bootstrap", "management-api", "bootstrap-seal"}

// mainProgram is the name of the program from the command line.
const mainProgram = "main"

// source is one program before decoding: its tables from the lowest to the highest precedence, and
// their origin.
type source struct {
	name    string
	layers  []map[string]any
	written map[string]any // the manifest's own table; nil: only the catalogue has the program
	origin  string
	feature string
	own     map[string]string // `environment` of the instance that is being built
	// variables is true if any text contains a dollar. Most programs have none, and a search for
	// texts in a decoded program is expensive.
	variables bool
	violated  map[string]bool // keys that the schema refuses
	spec      *program.Spec   // of the latest instance; without variables all instances share its lists
}

// programs resolves every program of the catalogue, the manifest and the command line.
func (r *resolver) programs() {
	r.instances = map[string][]string{}
	r.asked = map[string]bool{}
	r.declared = map[string][]string{}
	r.inherited = map[string]inheritance{}
	r.faulty = map[string]bool{}
	sources := r.sources()
	r.plan.Programs = make([]Program, 0, len(sources))
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		s := sources[name]
		if slices.Contains(itself, name) {
			r.report("E129", schema.Finding{
				Value: name, Message: name + " is agentinit itself and cannot be a program", Hint: "choose another name",
			}, "programs", name)
			r.faulty[name] = true
			continue
		}
		r.program(s, schema.MergeProgram(s.layers...))
	}
	// The plan lives as long as the box. Programs that are off, and append, have left room for more.
	if cap(r.plan.Programs) > len(r.plan.Programs) {
		r.plan.Programs = slices.Clone(r.plan.Programs)
	}
	r.needs()
}

func (r *resolver) sources() map[string]*source {
	sources := map[string]*source{}
	add := func(name string) *source {
		s := sources[name]
		if s == nil {
			s = &source{name: name, layers: []map[string]any{r.m.Supervisor.Defaults}}
			sources[name] = s
		}
		return s
	}
	failed := func(err error) { r.report("E132", schema.Finding{Message: err.Error()}) }
	for _, f := range r.cat.Active(r.view) {
		for name, table := range f.Programs {
			s := add(name)
			s.layers = append(s.layers, r.view.Filled(table, failed).(map[string]any))
			s.origin, s.feature = "catalogue", f.Name
		}
	}
	tables, _ := r.doc.Table("programs")
	for name, v := range tables {
		table, ok := v.(map[string]any)
		if !ok { // schema.Load has reported E016
			r.faulty[name] = true
			continue
		}
		s := add(name)
		s.layers = append(s.layers, table)
		s.written = table
		s.origin = "manifest"
		if s.feature != "" {
			s.origin = "catalogue+manifest"
		}
	}
	if len(r.facts.Main) > 0 {
		s := add(mainProgram)
		// The order is: the defaults, this table, the manifest's [programs.main], and then the
		// command of the command line.
		s.layers = slices.Insert(s.layers, 1, map[string]any{
			"essential": true, "restart": "never", "stdin": "inherit", "priority": int64(1000),
			// Without this, retries of the defaults would prevent the box from ending when the
			// command cannot be executed.
			"start_retries": int64(-1),
		})
		argv := make([]any, len(r.facts.Main))
		for i, word := range r.facts.Main {
			argv[i] = strings.ReplaceAll(word, "$", "$$")
		}
		s.layers = append(s.layers, map[string]any{"command": argv})
		s.origin = "command line"
	}
	return sources
}

// maxPrograms bounds the number of instances of all programs. Each instance needs about 20 KiB
// while the plan is made.
const maxPrograms = 20_000

// program decodes one program and adds its instances.
func (r *resolver) program(s *source, merged map[string]any) {
	if off := r.off(s, merged); off != "" {
		r.plan.Disabled = append(r.plan.Disabled, Disabled{Name: s.name, Reason: off})
		return
	}
	if _, ok := merged["command"]; !ok {
		r.faulty[s.name] = true
		if !r.shaped && r.featureOf(s.name) != nil {
			return // the mistake may be in the gate of the feature that has the command
		}
		r.report("E125", schema.Finding{
			Message: "program " + s.name + " has no command", Hint: `write command = ["program", "argument"]`,
		}, "programs", s.name)
		return
	}
	r.shellSyntax(s)
	r.supervisordTexts(s)
	s.variables = anyText(merged, func(text string) bool { return strings.Contains(text, "$") })
	maps.Copy(merged, schema.ScheduleDefaults(merged, s.layers[1:]...))
	p, findings := schema.DecodeProgram(merged)
	r.undecodable(s, findings)
	n := 1
	if v, ok := merged["instances"].(int64); ok && v > 1 && !s.violated["instances"] {
		n = int(v)
	}
	if r.total += n; r.total > maxPrograms {
		if r.total-n <= maxPrograms { // report only the first excess
			r.report("E141", schema.Finding{
				Value:   strconv.Itoa(n),
				Message: fmt.Sprintf("with the instances of program %s there are more than %d programs", s.name, maxPrograms),
				Hint:    "lower instances",
			}, "programs", s.name)
		}
		n = 1
	}
	for i := range n {
		if i > 0 && s.variables {
			// The expansion changes an instance in place. Without variables all instances share one.
			p, _ = schema.DecodeProgram(merged)
		}
		name := s.name
		if n > 1 {
			name += ":" + strconv.Itoa(i)
		}
		r.instances[s.name] = append(r.instances[s.name], name)
		r.instance(s, p, merged, name, i)
	}
}

// off returns the reason why a program is not part of the plan, or "" if it is part of it.
func (r *resolver) off(s *source, merged map[string]any) string {
	if merged["enabled"] == false {
		if s.written["required"] == true {
			r.report("E130", schema.Finding{
				Value: "false", Message: "program " + s.name + " is required and disabled", Hint: "drop one of the two",
			}, "programs", s.name, "enabled")
		}
		return "enabled = false"
	}
	when, ok := merged["when"].(string)
	if !ok || when == "" {
		return ""
	}
	if written, ok := r.doc.Lookup(when); ok && !isBool(written) && !r.shaped {
		return "" // the gate is unreadable, and its wrong type has been reported
	}
	value, known := r.view.Lookup(when)
	on, boolean := value.(bool)
	if !known && freeNames(when) {
		boolean = true // an absent entry counts as false
	}
	if !boolean {
		r.report("E126", schema.Finding{
			Value: when, Message: "when names " + schema.Quote(when) + ", which is not a boolean of the manifest",
			Hint: `such as "desktop.enabled"`,
		}, "programs", s.name, "when")
	}
	if !on {
		return when + " is not true"
	}
	return ""
}

// freeNames reports whether a path is in a table with free names as keys.
func freeNames(path string) bool {
	table, _, below := strings.Cut(path, ".")
	return below && slices.Contains([]string{"providers", "programs", "templates"}, table)
}

func isBool(v any) bool {
	_, ok := v.(bool)
	return ok
}

// undecodable records which keys of a program are unusable. It reports only findings about the
// catalogue: schema.Load has reported the others. In a document with violations, such as a port 0, the
// catalogue's keys can be unusable because of them.
func (r *resolver) undecodable(s *source, findings []schema.Finding) {
	s.violated = map[string]bool{}
	for _, f := range findings {
		top := topKey(f.Path)
		s.violated[top] = true
		if _, written := s.written[top]; written {
			continue
		}
		if _, written := r.m.Supervisor.Defaults[top]; written || !r.shaped {
			continue
		}
		r.report("E132", schema.Finding{Message: "program " + s.name + " of the catalogue: " + f.Message}, "programs", s.name)
	}
}

// topKey is the first key of a path: the "ready" of "ready[0].tcp".
func topKey(path string) string {
	if i := strings.IndexAny(path, ".["); i >= 0 {
		return path[:i]
	}
	return path
}

// anyText reports whether is holds for a text in v, at any depth. It tries the texts of a table in the
// order of their keys and stops at the first.
func anyText(v any, is func(string) bool) bool {
	switch v := v.(type) {
	case string:
		return is(v)
	case []any:
		return slices.ContainsFunc(v, func(e any) bool { return anyText(e, is) })
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if anyText(v[key], is) {
				return true
			}
		}
	}
	return false
}

// supervisordVariable finds the variables that supervisord replaces in its configuration. Other
// tools have the same syntax with other names: gunicorn %(h)s, Python's logging %(message)s.
var supervisordVariable = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`%\((?:ENV_(\w+)|process_num|program_name|group_name|numprocs|here|host_node_name)\)[0-9]*[sd]`)
})

// supervisordTexts reports a text that supervisord would replace: here the program would get it as
// it is.
func (r *resolver) supervisordTexts(s *source) {
	for _, key := range slices.Sorted(maps.Keys(s.written)) {
		var found []string
		if !anyText(s.written[key], func(text string) bool {
			if strings.Contains(text, "%(") { // the search for the pattern takes longer
				found = supervisordVariable().FindStringSubmatch(text)
			}
			return found != nil
		}) {
			continue
		}
		hint := "write the name or path itself"
		switch {
		case found[1] != "":
			hint = "write ${" + found[1] + "}"
		case strings.HasPrefix(found[0], "%(process_num)"):
			hint = "write ${INSTANCE}"
		case strings.HasPrefix(found[0], "%(numprocs)"):
			hint = "write the number of instances itself"
		}
		r.report("W125", schema.Finding{
			Value: found[0], Message: schema.Path("programs", s.name, key) + " holds " + schema.Quote(found[0]) + ", which only supervisord replaces", Hint: hint,
		}, "programs", s.name, key)
	}
}

// operators are words that only have a meaning in a shell.
var operators = []string{"|", "||", "&&", "&", ";", ">", ">>", "<", "2>&1", "2>"}

// shellSyntax looks at the commands that the program's own table writes as one text.
func (r *resolver) shellSyntax(s *source) {
	check := func(table map[string]any, keys ...string) {
		key := keys[len(keys)-1]
		command, _ := table[key].(string)
		words, err := schema.SplitCommand(command)
		if err != nil {
			return // schema.Load has reported E016
		}
		i := slices.IndexFunc(words, func(w string) bool { return slices.Contains(operators, w) })
		if i < 0 {
			return
		}
		what := "the command of " + s.name
		if key != "command" {
			what = schema.Path(append([]string{"programs", s.name}, keys...)...)
		}
		r.report("W123", schema.Finding{
			Value: words[i], Message: what + " holds " + schema.Quote(words[i]) + ", but no shell runs it",
			Hint: "write " + key + ` = ["sh", "-c", "…"]`,
		}, append([]string{"programs", s.name}, keys...)...)
	}
	check(s.written, "command")
	check(s.written, "stop_command")
	hooks, _ := s.written["hooks"].(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(hooks)) {
		check(hooks, "hooks", key)
	}
	for _, key := range []string{"ready", "health"} {
		if probe, ok := s.written[key].(map[string]any); ok { // a list of probes is rare
			check(probe, key, "exec")
		}
	}
}

// instance expands and converts one instance and adds it to the plan. Mistakes are reported only
// for the first instance, because all instances have the same ones.
func (r *resolver) instance(s *source, decoded schema.Program, merged map[string]any, name string, number int) {
	first := number == 0
	r.decoded = decoded
	p := &r.decoded
	x := &expander{}
	env := r.environment(s, p, number, x, first)
	x.get = env.lookup
	// r.environment has expanded the environment already, so it is excluded here.
	own := p.Environment
	s.own = own
	p.Environment = nil
	asked := len(x.asked)
	if s.variables {
		x.expandAll(reflect.ValueOf(p).Elem())
	}
	p.Environment = own
	secrets := r.secretsOf(env, x.asked[asked:])
	r.secrets = append(r.secrets, r.secretsOf(env, x.asked)...)
	if first {
		r.texts(s, x, env.unread)
		r.ask(s, p.PassEnvironment.Names, x.asked[:asked], x.asked[asked:])
	}
	out := r.resolved(s, p, env, name, number)
	out.Spec.Secrets = secrets
	if len(secrets) > 0 {
		shown, _ := schema.DecodeProgram(merged) // its findings have been reported
		shown.Environment = nil
		y := &expander{get: r.shownLookup(env)}
		y.expandAll(reflect.ValueOf(&shown).Elem())
		as := r.resolved(s, &shown, env, name, number)
		out.shown = &as
	}
	r.declared[name] = r.statesStop(s)
	if first {
		r.checkInstance(s, out.Spec)
		r.checkProbes(s, p)
	}
	r.plan.Programs = append(r.plan.Programs, out)
}

// resolved makes the plan's entry of an instance.
func (r *resolver) resolved(s *source, p *schema.Program, env *environment, name string, number int) Program {
	var spec program.Spec
	if s.spec == nil || s.variables {
		spec = specOf(p, r.m.Security.Enforce)
	} else {
		spec = *s.spec
	}
	s.spec = &spec
	spec.Name, spec.Group, spec.Instance = name, s.name, number
	spec.Env = env.list
	return Program{
		Spec: &spec, User: p.User, Group: p.Group, Groups: p.Groups,
		Origin: s.origin, Feature: s.feature,
		Ports: p.Ports, Volumes: p.Volumes, Writable: p.Writable, EnvFiles: p.EnvFile,
		Variables: env.names, Withheld: env.withheld, ImageDirectory: r.ofImage(s, p),
	}
}

// ofImage reports whether the directory of a program comes from the catalogue.
func (r *resolver) ofImage(s *source, p *schema.Program) bool {
	_, own := s.written["directory"]
	_, byDefault := r.m.Supervisor.Defaults["directory"]
	return s.feature != "" && p.Directory != "" && !own && !byDefault
}

// statesStop returns the key of the manifest that sets the duration of a stop. It is nil if the
// schema's defaults apply.
func (r *resolver) statesStop(s *source) []string {
	for _, key := range []string{"stop", "stop_timeout", "stop_command", "hooks"} {
		if _, ok := s.written[key]; ok {
			return []string{"programs", s.name, key}
		}
		if _, ok := r.m.Supervisor.Defaults[key]; ok {
			return []string{"supervisor", "defaults", key}
		}
	}
	return nil
}

// written is the position of a program's key in the document: in its own table, or in the defaults.
// The index of a probe counts probes and not tables, so it is left out if the document has no such
// element.
func (r *resolver) written(s *source, keys []string) []string {
	for _, table := range [][]string{{"programs", s.name}, {"supervisor", "defaults"}} {
		at := slices.Clone(table)
		for _, key := range keys {
			if _, ok := r.doc.At(append(at, key)...); ok {
				at = append(at, key)
			}
		}
		if len(at) > len(table) {
			return at
		}
	}
	return []string{"programs", s.name}
}

// texts reports the errors of an expansion. If unread is true, variables may be missing because an
// env_file could not be read.
func (r *resolver) texts(s *source, x *expander, unread bool) {
	for i := range x.missing {
		s.violated[topKey(x.missing[i].Path)] = true // without a value, the key cannot be checked further
		x.missing[i].Keys = r.written(s, x.missing[i].Keys)
		x.missing[i].Path = joinPath(s.name, x.missing[i].Path)
	}
	if !unread || r.facts.InBox {
		r.missing = append(r.missing, x.missing...)
	}
	for _, bad := range x.bad {
		r.report("E121", schema.Finding{
			Message: joinPath(s.name, bad.Path) + ": " + bad.Err.Error(),
		}, "programs", s.name, topKey(bad.Path))
	}
}

// ask records the variables that a program of the manifest takes from agentinit's environment: names
// in pass_environment, texts of `environment` and env_file, and other texts. Only other texts can
// mean a variable of the program's own `environment`: entries of `environment` do not refer to each
// other.
func (r *resolver) ask(s *source, passed, environment, others []string) {
	if s.written == nil {
		return
	}
	for _, name := range slices.Concat(passed, environment) {
		if schema.VariableName(name) { // pass_environment has patterns, too
			r.asked[name] = true
		}
	}
	for _, name := range others {
		if _, own := s.own[name]; !own {
			r.asked[name] = true
		}
	}
	delete(r.asked, "INSTANCE")
}

func joinPath(name, path string) string { return schema.Path("programs", name) + "." + path }

// checkInstance reports mistakes that are visible only in the complete instance. Keys that violate
// the schema are skipped.
func (r *resolver) checkInstance(s *source, spec *program.Spec) {
	at := func(key string) []string { return []string{"programs", s.name, key} }
	bad := s.violated
	empty := len(spec.Argv) == 0 || spec.Argv[0] == "" || slices.ContainsFunc(spec.Argv, hasNUL)
	if empty && !bad["command"] {
		r.report("E128", schema.Finding{Message: "the command of " + s.name + " is empty, begins with an empty word, or holds a NUL byte"}, at("command")...)
	}
	if spec.Required && !spec.Autostart && !bad["autostart"] {
		r.report("E131", schema.Finding{
			Message: "program " + s.name + " is required and does not start by itself", Hint: "drop required, or autostart = false",
		}, at("autostart")...)
	}
	if len(spec.Readiness.Probes) > 0 && spec.Readiness.Deadline == 0 && spec.StartTimeout == 0 &&
		!bad["ready"] && !bad["start_timeout"] {
		r.report("W121", schema.Finding{
			Message: "program " + s.name + " may wait for its readiness for ever", Hint: "give ready a deadline, or write start_timeout",
		}, at("ready")...)
	}
	r.startInTime(s, spec)
}

// startInTime warns of programs whose start ends by start_timeout before the time that another key
// gives it.
func (r *resolver) startInTime(s *source, spec *program.Spec) {
	limit, bad := spec.StartTimeout, s.violated
	if limit <= 0 || spec.Type != program.Service || bad["ready"] || bad["start_timeout"] || bad["start_seconds"] || bad["type"] {
		return
	}
	name, given, effect := "start_seconds", spec.RunningAfter, "the program is never RUNNING"
	if len(spec.Readiness.Probes) > 0 {
		name, given, effect = "ready.deadline", spec.Readiness.Deadline, "the start has failed before the deadline"
	}
	if given <= limit {
		return
	}
	key, _, _ := strings.Cut(name, ".") // ready may be a list of tables
	r.report("W128", schema.Finding{
		Value:   schema.Duration(given).String(),
		Message: fmt.Sprintf("programs.%s.%s = %q is longer than start_timeout = %q: %s", s.name, name, schema.Duration(given), schema.Duration(limit), effect),
		Hint:    "write a start_timeout that is longer, or 0",
	}, "programs", s.name, key)
}

// checkProbes reports probes that are invalid after the expansion of variables.
func (r *resolver) checkProbes(s *source, p *schema.Program) {
	check := func(key string, probes []schema.Probe) {
		for _, probe := range probes {
			if err := schema.CheckProbe(probe); err != nil && !s.violated[key] {
				r.report("E142", schema.Finding{
					Message: "program " + s.name + ": a probe of " + key + " must be " + err.Error(), Hint: "see the values of its variables",
				}, "programs", s.name, key)
			}
		}
	}
	if p.Ready != nil {
		check("ready", p.Ready.Probes)
	}
	if p.Health != nil {
		check("health", p.Health.Probes)
	}
}

func hasNUL(s string) bool { return strings.IndexByte(s, 0) >= 0 }
