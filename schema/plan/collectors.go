package plan

import (
	"maps"
	"path"
	"slices"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
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
			hint := r.meant(glob, "write the name of a program, or a glob such as \"worker:*\"")
			r.report("W126", schema.Finding{
				Value: glob, Message: "the collector " + collector + " names " + schema.Quote(glob) + ", and no program has this name", Hint: hint,
			}, "supervisor", "log", "forward", collector, "programs")
		}
	}
}

// hasProgram reports whether a name or glob means a program. Programs that are off or have a mistake count,
// and so does that of "agentinit -- COMMAND".
func (r *resolver) hasProgram(glob string) bool {
	for _, p := range r.plan.Programs {
		if program.Named(glob, p.Spec.Name) {
			return true
		}
	}
	for _, p := range r.plan.Disabled {
		if program.Named(glob, p.Name) {
			return true
		}
	}
	for name := range r.faulty {
		if program.Named(glob, name) {
			return true
		}
	}
	return program.Named(glob, mainProgram) || r.featureOf(glob) != nil
}
