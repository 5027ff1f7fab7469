package plan

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/schema"
)

// collectors reports names in the programs of a log collector that no program has: the collector would
// get nothing, and nobody would see why.
func (r *resolver) collectors() {
	forwards := r.m.Supervisor.Log.Forward
	for _, collector := range slices.Sorted(maps.Keys(forwards)) {
		for _, glob := range forwards[collector].Programs {
			if _, err := path.Match(glob, ""); err != nil || r.hasProgram(glob) {
				continue
			}
			hint := "write the name of a program, or a glob such as \"worker:*\""
			if r.searched++; r.searched <= maxSearches {
				if near, ok := schema.Nearest(glob, slices.Sorted(maps.Keys(r.instances))); ok {
					hint = "did you mean " + near + "?"
				}
			}
			r.report("W126", schema.Finding{
				Value: glob, Message: "the collector " + collector + " names " + schema.Quote(glob) + ", and no program has this name", Hint: hint,
			}, "supervisor", "log", "forward", collector, "programs")
		}
	}
}

// hasProgram reports whether a name or glob means a program, as supervisor/logs/forward reads it.
// Programs that are off or have a mistake count, and so does that of "agentinit -- COMMAND".
func (r *resolver) hasProgram(glob string) bool {
	matches := func(name string) bool {
		set, _, _ := strings.Cut(name, ":") // the name of a program means all its instances
		one, _ := path.Match(glob, name)
		all, _ := path.Match(glob, set)
		return one || all
	}
	for _, p := range r.plan.Programs {
		if matches(p.Spec.Name) {
			return true
		}
	}
	for _, p := range r.plan.Disabled {
		if matches(p.Name) {
			return true
		}
	}
	for name := range r.faulty {
		if matches(name) {
			return true
		}
	}
	return matches(mainProgram) || r.featureOf(glob) != nil
}
