package plan

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// collectors reports a name in the programs of a log collector that no program has: the collector would
// get no output. It also reports a ca_file that does not exist.
func (r *resolver) collectors() {
	forwards := r.m.Supervisor.Log.Forward
	for _, collector := range slices.Sorted(maps.Keys(forwards)) {
		r.caFile(collector)
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

// caFile reports a ca_file that this machine lacks. Syslog reads it for tls:// alone.
func (r *resolver) caFile(collector string) {
	f := r.m.Supervisor.Log.Forward[collector]
	if f.CAFile == "" || f.Type == "syslog" && !strings.HasPrefix(f.URL, "tls://") || r.facts.Lacks == nil || !r.facts.Lacks(File, f.CAFile) {
		return
	}
	hint := "no change is needed if the box has it"
	if r.facts.InBox {
		hint = "mount or create the file, or leave ca_file out; without the file the box does not start"
	}
	r.report("W144", schema.Finding{
		Value: f.CAFile, Message: "the ca_file " + schema.Quote(f.CAFile) + " of the collector " + collector + " does not exist", Hint: hint,
	}, "supervisor", "log", "forward", collector, "ca_file")
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
