package plan

import (
	"maps"
	"slices"

	"github.com/dreamlab-ai/agentinit/schema"
)

// machine reports accounts and directories that programs of the manifest name and that this machine
// lacks. Inside the box, bootstrap reports missing accounts, because it needs their numbers.
func (r *resolver) machine() {
	if r.facts.Lacks == nil {
		return
	}
	if !r.facts.InBox {
		r.notHere("supervisor.socket_group", Group, r.m.Supervisor.SocketGroup, "supervisor", "socket_group")
		r.agents()
	}
	seen := map[string]bool{}
	for i := range r.plan.Programs {
		p := &r.plan.Programs[i]
		if seen[p.Spec.Group] {
			continue // all instances lack the same
		}
		seen[p.Spec.Group] = true
		if !r.facts.InBox {
			r.account(p)
		}
		r.directory(p)
	}
}

// states reports whether the manifest sets a key of a program, in its own table or in the defaults,
// and where. Keys from the feature catalogue are not checked, because their values belong to the
// image.
func (r *resolver) states(name, key string) ([]string, bool) {
	for _, keys := range [][]string{{"programs", name, key}, {"supervisor", "defaults", key}} {
		if _, ok := r.doc.At(keys...); ok {
			return keys, true
		}
	}
	return nil, false
}

// notHere reports an account that a key names and this machine lacks. In the box, the boot ends with
// the same mistake.
func (r *resolver) notHere(whose string, what Thing, name string, keys ...string) {
	if name == "" || !r.facts.Lacks(what, name) {
		return
	}
	r.report("W140", schema.Finding{
		Value: name, Message: whose + ": this machine has no " + string(what) + " " + schema.Quote(name),
		Hint: "no change is needed if the box has it",
	}, keys...)
}

// agents reports accounts of [supervisor.agents] and of templates, which only this class starts.
func (r *resolver) agents() {
	if r.m.Adapters.Orchestrator != "local-process-manager" {
		return
	}
	check := func(user, group string, groups []string, keys ...string) {
		if user == "" {
			return // group and groups have no effect without a user
		}
		at := func(key string) []string { return append(slices.Clone(keys), key) }
		r.notHere(schema.Path(at("user")...), User, user, at("user")...)
		r.notHere(schema.Path(at("group")...), Group, group, at("group")...)
		for _, g := range groups {
			r.notHere(schema.Path(at("groups")...), Group, g, at("groups")...)
		}
	}
	all := r.m.Supervisor.Agents
	check(all.User, all.Group, all.Groups, "supervisor", "agents")
	for _, name := range slices.Sorted(maps.Keys(r.m.Templates)) {
		t := r.m.Templates[name]
		check(t.User, t.Group, t.Groups, "templates", name)
	}
}

func (r *resolver) account(p *Program) {
	check := func(what Thing, key, name string) {
		keys, stated := r.states(p.Spec.Group, key)
		if stated {
			r.notHere("program "+p.Spec.Group, what, name, keys...)
		}
	}
	check(User, "user", p.User)
	check(Group, "group", p.Group)
	for _, g := range p.Groups {
		check(Group, "groups", g)
	}
}

// directory reports a missing directory only if no other program runs before this program, because
// such a program could create the directory. hooks.pre_start could not: it runs in the directory.
func (r *resolver) directory(p *Program) {
	dir := p.Spec.Directory
	keys, stated := r.states(p.Spec.Group, "directory")
	if dir == "" || !stated || !p.Spec.Autostart || r.faulty[p.Spec.Group] {
		return
	}
	if len(p.Spec.Needs) > 0 || len(r.plan.Waves) == 0 || !slices.Contains(r.plan.Waves[0], p.Spec.Name) || !r.facts.Lacks(Directory, dir) {
		return
	}
	code, hint := "W143", "no change is needed if the box has it"
	if r.facts.InBox {
		code, hint = "E143", "make it in the image, mount it, or let a oneshot that the program needs make it"
	}
	r.report(code, schema.Finding{
		Value: dir, Message: "program " + p.Spec.Group + ": the directory " + schema.Quote(dir) + " does not exist", Hint: hint,
	}, keys...)
}
