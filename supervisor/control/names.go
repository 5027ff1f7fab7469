package control

import (
	"path"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/edits"
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// resolve returns the programs that the names mean, each once and in the order of programs. A name
// is tried as a whole name, a group, a glob (path.Match), and a prefix, in this order; the first
// match counts. All names without a match give one CodeUnknownProgram error.
func resolve(names []string, programs []supervisor.Status) ([]supervisor.Status, error) {
	meant := make([]bool, len(programs))
	var unknown []string
	for _, name := range names {
		found, err := lookUp(name, programs)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			unknown = append(unknown, name)
		}
		for _, i := range found {
			meant[i] = true
		}
	}
	if len(unknown) > 0 {
		return nil, unknownNames(unknown, programs)
	}
	var out []supervisor.Status
	for i, p := range programs {
		if meant[i] {
			out = append(out, p)
		}
	}
	return out, nil
}

// resolveOne is resolve for a name that must mean exactly one program.
func resolveOne(name string, programs []supervisor.Status) (supervisor.Status, error) {
	if name == "" {
		return supervisor.Status{}, api.Errorf(api.CodeBadRequest, "no name is given")
	}
	found, err := resolve([]string{name}, programs)
	if err != nil {
		return supervisor.Status{}, err
	}
	if len(found) > 1 {
		return supervisor.Status{}, ambiguous(name, namesOf(found))
	}
	return found[0], nil
}

func lookUp(name string, programs []supervisor.Status) ([]int, error) {
	if i := slices.IndexFunc(programs, func(p supervisor.Status) bool { return p.Name == name }); i >= 0 {
		return []int{i}, nil
	}
	if found := where(programs, func(p supervisor.Status) bool { return p.Group == name }); len(found) > 0 {
		return found, nil
	}
	// The only instance of a set has the set's name, but can also be named with its number.
	if set, isFirst := strings.CutSuffix(name, ":0"); isFirst {
		if i := slices.IndexFunc(programs, func(p supervisor.Status) bool { return p.Name == set }); i >= 0 {
			return []int{i}, nil
		}
	}
	if strings.ContainsAny(name, "*?[") {
		if _, err := path.Match(name, ""); err != nil {
			return nil, api.Errorf(api.CodeBadRequest, "%q is not a glob", name)
		}
		return where(programs, func(p supervisor.Status) bool {
			ok, err := path.Match(name, p.Name)
			return ok && err == nil
		}), nil
	}
	found := where(programs, func(p supervisor.Status) bool { return strings.HasPrefix(p.Name, name) })
	if len(found) > 1 && !sameGroup(found, programs) {
		candidates := make([]string, 0, len(found))
		for _, i := range found {
			candidates = append(candidates, programs[i].Name)
		}
		return nil, ambiguous(name, candidates)
	}
	return found, nil
}

// laterPrograms tells which programs the names mean that an apply adds or renames after they have been
// resolved. Programs are only known by their names then, so it is near to what resolve would find.
func laterPrograms(names []string, found []supervisor.Status) func(program string) bool {
	patterns := slices.Clone(names)
	means := func(name string) bool {
		return slices.ContainsFunc(patterns, func(pattern string) bool {
			set, isFirst := strings.CutSuffix(pattern, ":0") // see lookUp
			return program.Named(pattern, name) || isFirst && name == set
		})
	}
	for _, p := range found {
		if !means(p.Name) { // it was named by a prefix
			patterns = append(patterns, p.Group)
		}
	}
	return means
}

func where(programs []supervisor.Status, match func(supervisor.Status) bool) []int {
	var out []int
	for i, p := range programs {
		if match(p) {
			out = append(out, i)
		}
	}
	return out
}

func sameGroup(found []int, programs []supervisor.Status) bool {
	return !slices.ContainsFunc(found, func(i int) bool { return programs[i].Group != programs[found[0]].Group })
}

const maxCandidates = 5

func ambiguous(name string, candidates []string) *api.Error {
	slices.Sort(candidates)
	e := api.Errorf(api.CodeAmbiguous, "%q fits %d programs", name, len(candidates))
	e.Candidates = candidates[:min(len(candidates), maxCandidates)]
	e.Hint = "write one of them: " + strings.Join(e.Candidates, ", ")
	if len(candidates) > len(e.Candidates) {
		e.Hint += ", …"
	}
	return e
}

// notStarted tells whether the boot has not come to the programs: until then the supervisor has none.
func notStarted(s supervisor.Snapshot) bool {
	return s.Phase == supervisor.Idle && len(s.Programs) == 0
}

func unknownNames(names []string, programs []supervisor.Status) *api.Error {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = `"` + n + `"`
	}
	e := api.Errorf(api.CodeUnknownProgram, "no program is named %s", strings.Join(quoted, " or "))
	switch e.Candidates = nearest(names[0], programs); {
	case names[0] == "all": // as in supervisorctl
		e.Hint = "start, stop, restart and signal take --all; status and logs show all programs without a NAME"
	case len(e.Candidates) > 0:
		e.Hint = "did you mean " + strings.Join(e.Candidates, " or ") + "?"
	default:
		e.Hint = "agentctl status lists the names"
	}
	return e
}

// nearest returns up to three names with the fewest edits, if these are at most a third of the
// name's length.
func nearest(name string, programs []supervisor.Status) []string {
	type near struct {
		name     string
		distance int
	}
	var found []near
	for _, p := range programs {
		for _, candidate := range []string{p.Name, p.Group} {
			limit := max(1, len(candidate)/3)
			if max(len(name)-len(candidate), len(candidate)-len(name)) > limit {
				continue // the number of edits is at least the difference in length
			}
			d := edits.Distance(name, candidate)
			if d <= limit && !slices.ContainsFunc(found, func(n near) bool { return n.name == candidate }) {
				found = append(found, near{candidate, d})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b near) int { return a.distance - b.distance })
	var out []string
	for _, n := range found[:min(len(found), 3)] {
		out = append(out, n.name)
	}
	return out
}

func namesOf(programs []supervisor.Status) []string {
	out := make([]string, len(programs))
	for i, p := range programs {
		out[i] = p.Name
	}
	return out
}

func specOf(programs []supervisor.Status, name string) *program.Spec {
	for _, p := range programs {
		if p.Name == name {
			return p.Spec
		}
	}
	return nil
}
