package main

import (
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/plan"
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// confinement is the user, the limits and the sandbox of the agents of one template.
type confinement struct {
	home       string           // of the credential's user
	name       string           // of that user
	credential *proc.Credential // nil: agentinit's own, or with ofItsOwn a new user each time
	ofItsOwn   bool
	umask      *int
	limits     program.Limits
	guard      bool
	sandbox    *program.Sandbox
}

// confinement returns the confinement of a template. An unknown template gets the strictest one
// that is possible without a manifest.
func (a *agents) confinement(template string) confinement {
	if c, ok := a.confinements[template]; ok {
		return c
	}
	if c, ok := a.confinements[""]; ok {
		return c
	}
	return confinement{guard: true, ofItsOwn: mayChangeUser()}
}

// mayChangeUser tells whether agents can run as another user.
func mayChangeUser() bool { return os.Geteuid() == 0 && proc.MayChangeUser() }

// Each agent without a configured user gets another user of this range: systemd's range for such
// users (systemd.exec(5), DynamicUser), which distributions keep free.
const firstAgentUser, lastAgentUser = 61184, 65519

// dress gives a command its user, limits, guard and sandbox.
func (c confinement) dress(cmd *proc.Command, run uint64, asked adapters.AgentLimits) (skipped, err error) {
	cmd.Credential, cmd.Umask = c.credential, c.umask
	if cmd.Credential == nil && c.ofItsOwn {
		id := uint32(firstAgentUser + run%(lastAgentUser-firstAgentUser+1))
		cmd.Credential = &proc.Credential{UID: id, GID: id, Groups: groupOf(cmd.Dir)}
		cmd.EnterFirst = true // the workspace may lie in a directory that only agentinit may enter
		c.home, c.name = cmd.Dir, strconv.FormatUint(uint64(id), 10)
	}
	if cmd.Credential != nil {
		cmd.Env = withUser(cmd.Env, c.home, c.name)
	}
	supervisor.Bound(cmd, c.limits)
	addLimits(cmd, asked)
	cmd.Guard = supervisor.GuardOf(c.guard, false, cmd.Credential)
	return supervisor.Confine(cmd, c.sandbox)
}

// withUser sets the variables about the user to those of the agent, instead of agentinit's. A value
// that the template or the caller chose stays.
func withUser(env []string, home, name string) []string {
	out := slices.Clone(env)
	for key, value := range map[string]string{"HOME": home, "USER": name, "LOGNAME": name} {
		ours, had := os.LookupEnv(key)
		i := slices.Index(out, key+"="+ours)
		switch {
		case had && i >= 0:
			out[i] = key + "=" + value
		case !slices.ContainsFunc(out, func(kv string) bool { return strings.HasPrefix(kv, key+"=") }):
			out = append(out, key+"="+value)
		}
	}
	return out
}

// groupOf is the group of a directory, for the agent that works there. So the agent can write to a
// workspace that its group may write to. Root's group is never given.
func groupOf(dir string) []uint32 {
	groups := []uint32{}
	if gid, ok := directoryGroup(dir); ok && gid != 0 {
		groups = append(groups, gid)
	}
	return groups
}

// confinements are those of the manifest's templates and, under "", that of all other agents.
func confinements(m *schema.Manifest, users *bootstrap.Users) (map[string]confinement, error) {
	base := m.Supervisor.Agents
	all, err := oneConfinement(m, base, users)
	if err != nil {
		return nil, err
	}
	out := map[string]confinement{"": all}
	for name, t := range m.Templates {
		c := base
		if t.User != "" {
			c.User, c.Group, c.Groups = t.User, t.Group, t.Groups
		}
		if t.Umask != nil {
			c.Umask = t.Umask
		}
		if !reflect.ValueOf(t.Limits).IsZero() {
			c.Limits = t.Limits
		}
		c.Guard = base.Guard && t.Guard
		if t.Sandbox != nil {
			c.Sandbox = t.Sandbox
		}
		if out[name], err = oneConfinement(m, c, users); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func oneConfinement(m *schema.Manifest, c schema.Confinement, users *bootstrap.Users) (confinement, error) {
	out := confinement{
		limits: plan.Limits(c.Limits), guard: c.Guard, sandbox: plan.Sandbox(c.Sandbox, m.Security.Enforce),
		ofItsOwn: c.User == "" && mayChangeUser(),
	}
	if c.Umask != nil {
		out.umask = new(int(*c.Umask))
	}
	if c.User == "" {
		return out, nil
	}
	id, err := users.Resolve(c.User, c.Group, c.Groups)
	if err != nil {
		return out, err
	}
	cr := id.Credential
	out.home, out.name = id.Home, id.Name
	out.credential = &proc.Credential{UID: cr.UID, GID: cr.GID, Groups: cr.Groups}
	return out, nil
}

// confinedTemplates are the templates whose agents must not start without their sandbox.
func confinedTemplates(all map[string]confinement) map[string]bool {
	out := map[string]bool{}
	for name, c := range all {
		if name != "" && c.sandbox != nil {
			out[name] = c.sandbox.Mode != "off" && c.sandbox.Mode != "audit"
		}
	}
	return out
}

func directoryGroup(dir string) (gid uint32, ok bool) {
	info, err := os.Stat(dir)
	if err != nil {
		return 0, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Gid, true
}
