package control

import (
	"slices"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// criticalChain is the chain of programs that the boot waited for. Its end is the required program
// that was ready last, or the last of all if none is required. Before each program comes the one of
// its needs that was ready last.
func criticalChain(programs []api.BootProgram) []string {
	byName := make(map[string]api.BootProgram, len(programs))
	var required, all []string
	for _, p := range programs {
		byName[p.Name] = p
		all = append(all, p.Name)
		if p.Required {
			required = append(required, p.Name)
		}
	}
	if len(required) == 0 {
		required = all
	}
	var chain []string
	for name := latest(required, byName); name != "" && !slices.Contains(chain, name); {
		chain = append(chain, name)
		name = latest(byName[name].Needs, byName)
	}
	slices.Reverse(chain)
	return chain
}

// latest is the name of the program that was ready last. A program that was never ready counts as
// last.
func latest(names []string, programs map[string]api.BootProgram) string {
	found := ""
	for _, name := range names {
		p, ok := programs[name]
		if !ok {
			continue
		}
		if found == "" {
			found = name
			continue
		}
		best := programs[found].ReadyAt
		if best != nil && (p.ReadyAt == nil || p.ReadyAt.After(*best)) {
			found = name
		}
	}
	return found
}
