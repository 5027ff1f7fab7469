package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// maxNeeds bounds the number of edges between instances. Between two programs it is the product of
// their numbers of instances.
const maxNeeds = 200_000

// needs replaces program names in needs by their instances, and drops needs that cannot be met.
func (r *resolver) needs() {
	reported := map[[2]string]bool{}
	byName := map[string]*program.Spec{}
	for i := range r.plan.Programs {
		byName[r.plan.Programs[i].Spec.Name] = r.plan.Programs[i].Spec
	}
	for i := range r.plan.Programs {
		spec := r.plan.Programs[i].Spec
		var needs []program.Need
		for _, need := range spec.Needs {
			if need.Program == "" {
				continue // not the name of a program; schema.Load has reported it
			}
			names := r.instancesOf(need.Program, byName)
			if pair := [2]string{spec.Group, need.Program}; !reported[pair] {
				reported[pair] = true
				r.checkNeed(spec, need, names, byName)
			}
			if r.edges += len(names); r.edges > maxNeeds {
				if r.edges-len(names) <= maxNeeds { // report only the first excess
					r.report("E141", schema.Finding{
						Value:   need.Program,
						Message: fmt.Sprintf("with the instances of program %s more than %d instances need one another", spec.Group, maxNeeds),
						Hint:    "lower instances, or need one program that stands for many",
					}, "programs", spec.Group, "needs")
				}
				continue
			}
			for _, name := range names {
				needs = append(needs, program.Need{Program: name, Condition: need.Condition})
			}
		}
		spec.Needs = needs
	}
}

// instancesOf returns the names of the programs that a need means: one instance, or all of a set.
func (r *resolver) instancesOf(need string, byName map[string]*program.Spec) []string {
	if byName[need] != nil {
		return []string{need}
	}
	if set, first := strings.CutSuffix(need, ":0"); first && len(r.instances[set]) == 1 {
		return r.instances[set] // a single instance has the name of its set
	}
	return r.instances[need]
}

func (r *resolver) checkNeed(spec *program.Spec, need program.Need, names []string, byName map[string]*program.Spec) {
	keys := []string{"programs", spec.Group, "needs"}
	if len(names) == 0 {
		r.unmet(spec.Group, need.Program, keys)
		return
	}
	target := byName[names[0]]
	if need.Condition == program.NeedCompleted && target.Type == program.Service && target.Restart == program.RestartAlways {
		r.report("W122", schema.Finding{
			Value:   need.Program + ":completed",
			Message: fmt.Sprintf("%s needs %s:completed, but it is restarted whenever it ends", spec.Group, need.Program),
			Hint:    `type = "oneshot" completes`,
		}, keys...)
	}
}

// maxSearches bounds the searches for similar names, because each search compares all names.
// Otherwise a manifest with many unknown needs would be slow.
const maxSearches = 100

func (r *resolver) unmet(name, need string, keys []string) {
	if r.faulty[need] {
		return
	}
	for _, d := range r.plan.Disabled {
		if d.Name == need {
			r.report("E124", schema.Finding{
				Value: need, Message: fmt.Sprintf("%s needs %s, which is off: %s", name, need, d.Reason),
				Hint: "give both the same `when`, or drop the need",
			}, keys...)
			return
		}
	}
	if f := r.featureOf(need); f != nil {
		if !r.shaped {
			return // the gate may be on, but written wrongly
		}
		r.report("E124", schema.Finding{
			Value: need, Message: fmt.Sprintf("%s needs %s, but the feature %s is off", name, need, f.Name),
			Hint: "it is on when: " + strings.Join(f.When, ", "),
		}, keys...)
		return
	}
	r.report("E123", schema.Finding{
		Value: need, Message: fmt.Sprintf("%s needs %s, which does not exist", name, schema.Quote(need)),
		Hint: r.meant(need, "write the name of a program"),
	}, keys...)
}

// meant is the hint for a name that no program has: the most similar name, or otherwise the given text.
func (r *resolver) meant(name, otherwise string) string {
	if r.searched++; r.searched <= maxSearches {
		if near, ok := schema.Nearest(name, slices.Sorted(maps.Keys(r.instances))); ok {
			return "did you mean " + near + "?"
		}
	}
	return otherwise
}

// featureOf returns the feature, on or off, that contains the program; nil if there is none.
func (r *resolver) featureOf(program string) *catalog.Feature {
	for i := range r.cat.Features {
		if _, ok := r.cat.Features[i].Programs[program]; ok {
			return &r.cat.Features[i]
		}
	}
	return nil
}

// order sorts the programs into waves, and checks the shutdown.
func (r *resolver) order() {
	specs := r.plan.Specs()
	waves, err := program.Waves(specs)
	if err != nil {
		r.unordered(err)
		return
	}
	r.plan.Waves = waves
	position := map[string]int{}
	for _, name := range slices.Concat(waves...) {
		position[name] = len(position)
	}
	slices.SortFunc(r.plan.Programs, func(a, b Program) int { return position[a.Spec.Name] - position[b.Spec.Name] })
	r.stop()
}

func (r *resolver) unordered(err error) {
	cycle, ok := errors.AsType[*program.CycleError](err)
	if !ok {
		// unknown names and duplicates were removed before
		r.report("E122", schema.Finding{Message: err.Error()}, "programs")
		return
	}
	group := map[string]string{}
	for i := range r.plan.Programs {
		group[r.plan.Programs[i].Spec.Name] = r.plan.Programs[i].Spec.Group
	}
	told := map[string]bool{} // groups: each instance of a set may be in a cycle of its own
	for _, names := range cycle.Cycles {
		if slices.ContainsFunc(names, func(name string) bool { return told[group[name]] }) {
			continue
		}
		for _, name := range names {
			told[group[name]] = true
		}
		one := program.CycleError{Cycles: [][]string{names}}
		r.report("E122", schema.Finding{
			Value: strings.Join(names, " → "), Message: one.Error(), Hint: "drop one of the needs",
		}, "programs", group[names[0]], "needs")
	}
}

// stop computes the longest chain of stops and compares it with the budget.
func (r *resolver) stop() {
	specs := r.plan.Specs()
	if len(specs) == 0 {
		return
	}
	path, total, err := program.PlannedStop(specs)
	if err != nil {
		r.unordered(err)
		return
	}
	sup := r.m.Supervisor
	r.plan.StopPath, r.plan.StopTime = path, total
	r.plan.StopBudget = program.StopBudget(sup.StopGrace.Std(), sup.Drain.Std())
	if total <= r.plan.StopBudget || !r.shaped {
		return
	}
	keys := []string{"supervisor", "stop_grace"}
	if !r.doc.Has("supervisor.stop_grace") {
		keys = r.stopKey(path)
	}
	stops := "the stops of " + chain(path) + ", one after the other,"
	if len(path) == 1 {
		stops = "the stop of " + path[0]
	}
	want := schema.Duration(program.GraceFor(total, sup.Drain.Std()))
	r.report("W120", schema.Finding{
		Value:   sup.StopGrace.String(),
		Message: fmt.Sprintf("%s may take %s, but stop_grace leaves %s", stops, schema.Duration(total), schema.Duration(r.plan.StopBudget)),
		Hint:    "at shutdown every wait is shortened; stop_grace = " + schema.Quote(want.String()) + " fits them",
	}, keys...)
}

// seal computes the seal timeout. It checks that a required program that fails repeatedly becomes
// FATAL before that timeout.
func (r *resolver) seal() {
	specs := r.plan.Specs()
	written := r.doc.Has("bootstrap.seal_timeout")
	r.plan.SealTimeout = r.m.Bootstrap.SealTimeout.Std()
	if !written {
		r.plan.SealTimeout = program.SealTimeout(specs)
	}
	if !r.shaped {
		return
	}
	for _, s := range specs {
		fatal, ok := program.GiveUpTime(s, false)
		endless := !ok && r.m.Bootstrap.OnSealTimeout == "stay"
		if !s.Required || s.Type == program.Schedule || !endless && (!ok || fatal <= r.plan.SealTimeout) {
			continue
		}
		keys := []string{"bootstrap", "seal_timeout"}
		message := fmt.Sprintf("the required program %s needs %s of failed starts to be FATAL, but the seal is given up after %s",
			s.Name, schema.Duration(fatal), schema.Duration(r.plan.SealTimeout))
		hint := "lower restart_limit or backoff of the program, or leave seal_timeout out"
		if !ok {
			keys = []string{"programs", s.Group, "restart_limit"}
			message = fmt.Sprintf("the required program %s is never FATAL, however often it fails: restart_limit.count = 0 sets no limit", s.Name)
			hint = `write a count of 1 or more, or on_seal_timeout = "exit"`
			if s.StartRetries >= 0 || s.RestartLimit.Count > 0 {
				message = fmt.Sprintf("the required program %s needs decades of failed starts to be FATAL", s.Name)
				hint = `lower restart_limit, start_retries or backoff of the program, or write on_seal_timeout = "exit"`
			}
		}
		r.report("W124", schema.Finding{Value: s.Name, Message: message, Hint: hint}, keys...)
		return // one finding is enough
	}
}

// stopKey is the first key of the manifest that sets the stop of a program in the chain. If there
// is none, it is the first program of the chain that is in the manifest.
func (r *resolver) stopKey(path []string) []string {
	for _, name := range path {
		if keys := r.declared[name]; keys != nil {
			return keys
		}
	}
	for i := range r.plan.Programs {
		p := &r.plan.Programs[i]
		if slices.Contains(path, p.Spec.Name) && r.doc.KeyPos("programs", p.Spec.Group).Line > 0 {
			return []string{"programs", p.Spec.Group}
		}
	}
	return []string{"supervisor", "stop_grace"}
}

// chain writes a chain of programs. The middle of a long chain is left out.
func chain(path []string) string {
	const ends = 3
	if len(path) > 2*ends {
		path = slices.Concat(path[:ends], []string{"…"}, path[len(path)-ends:])
	}
	return strings.Join(path, " → ")
}

// maxListed is how many places one finding lists.
const maxListed = 100

// missingVariables reports all variables without value and default in one finding.
func (r *resolver) missingVariables() {
	if len(r.missing) == 0 {
		return
	}
	places := map[string][]string{}
	for _, m := range r.missing {
		text := m.Name
		if m.Message != "" {
			text += " (" + oneLine(m.Message) + ")"
		}
		if !slices.Contains(places[text], m.Path) {
			places[text] = append(places[text], m.Path)
		}
	}
	var parts, names []string
	for _, text := range slices.Sorted(maps.Keys(places)) {
		name, _, _ := strings.Cut(text, " ")
		names = append(names, name)
		if len(parts) < maxListed {
			parts = append(parts, text+" in "+strings.Join(places[text][:min(3, len(places[text]))], ", "))
		}
	}
	first := r.missing[0].Keys
	for _, m := range r.missing {
		if at, before := r.doc.KeyPos(m.Keys...), r.doc.KeyPos(first...); at.Line > 0 && (before.Line == 0 || at.Line < before.Line || at.Line == before.Line && at.Column < before.Column) {
			first = m.Keys
		}
	}
	r.report("E120", schema.Finding{
		Value:   strings.Join(slices.Compact(names), ", "),
		Message: "variables without a value: " + strings.Join(parts, "; "),
		Hint:    "set them, or write ${X:-default}",
	}, first...)
}

// oneLine turns a message of the manifest into one line.
func oneLine(s string) string {
	return strings.Trim(schema.Quote(s), `"`)
}
