package plan

import (
	"slices"

	"github.com/dreamlab-ai/agentinit/schema"
)

// machine reports what programs of the manifest name and this machine lacks:
// accounts and directories. In the box whoever starts the programs reports the
// accounts, because it needs their numbers.
func (r *resolver) machine() {
	if r.facts.Lacks == nil {
		return
	}
	seen := map[string]bool{}
	for i := range r.plan.Programs {
		p := &r.plan.Programs[i]
		if seen[p.Spec.Group] {
			continue // instances lack the same
		}
		seen[p.Spec.Group] = true
		if !r.facts.InBox {
			r.account(p)
		}
		r.directory(p)
	}
}

// states tells whether the manifest states a key of a program, itself or by the
// defaults, and where. What the feature catalogue says is the image's business.
func (r *resolver) states(name, key string) ([]string, bool) {
	for _, keys := range [][]string{{"programs", name, key}, {"supervisor", "defaults", key}} {
		if _, ok := r.doc.At(keys...); ok {
			return keys, true
		}
	}
	return nil, false
}

func (r *resolver) account(p *Program) {
	check := func(what Thing, key, name string) {
		keys, stated := r.states(p.Spec.Group, key)
		if name == "" || !stated || !r.facts.Lacks(what, name) {
			return
		}
		r.report("W140", schema.Finding{
			Value: name, Message: "program " + p.Spec.Group + ": this machine has no " + string(what) + " " + schema.Quote(name),
			Hint: "nothing to do if the box has it",
		}, keys...)
	}
	check(User, "user", p.User)
	check(Group, "group", p.Group)
	for _, g := range p.Groups {
		check(Group, "groups", g)
	}
}

// directory reports a missing one only where nothing runs before the program that
// could make it.
func (r *resolver) directory(p *Program) {
	dir := p.Spec.Directory
	keys, stated := r.states(p.Spec.Group, "directory")
	if dir == "" || !stated || p.Spec.Hooks.PreStart != nil || !p.Spec.Autostart || r.faulty[p.Spec.Group] {
		return
	}
	if len(p.Spec.Needs) > 0 || len(r.plan.Waves) == 0 || !slices.Contains(r.plan.Waves[0], p.Spec.Name) || !r.facts.Lacks(Directory, dir) {
		return
	}
	code, hint := "W143", "nothing to do if the box has it"
	if r.facts.InBox {
		code, hint = "E143", "make it in the image, mount it, or let hooks.pre_start make it"
	}
	r.report(code, schema.Finding{
		Value: dir, Message: "program " + p.Spec.Group + ": the directory " + schema.Quote(dir) + " does not exist", Hint: hint,
	}, keys...)
}
