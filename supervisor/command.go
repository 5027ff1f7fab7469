package supervisor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/capability"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/proc/filter"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// UnsupportedError says that a program needs something that is not available here. It is then not
// started, because a start without it would be worse.
type UnsupportedError struct {
	What string
}

func (e *UnsupportedError) Error() string { return e.What + " is not supported" }

// ShellStatus is the status for a command that cannot be run.
func (e *UnsupportedError) ShellStatus() int { return 126 }

// command translates a specification. The caller adds the descriptors.
func command(spec *program.Spec) (proc.Command, error) {
	if len(spec.Argv) == 0 {
		return proc.Command{}, errors.New("the command is empty")
	}
	c := proc.Command{
		Path: spec.Argv[0], Args: spec.Argv, Env: spec.Env[:len(spec.Env):len(spec.Env)], Dir: spec.Directory,
		StdinPipe: spec.Stdin == program.StdinPipe && !spec.TTY, TTY: spec.TTY,
		Scope: scopes[spec.Kill],
	}
	dress(&c, spec)
	return c, nil
}

// dress gives a command the user, the umask, the limits and the guard of a program.
func dress(c *proc.Command, spec *program.Spec) {
	if cr := spec.Credential; cr != nil {
		c.Credential = &proc.Credential{UID: cr.UID, GID: cr.GID, Groups: cr.Groups}
	}
	if spec.Umask >= 0 {
		c.Umask = &spec.Umask
	}
	Bound(c, spec.Limits)
	c.Guard = GuardOf(spec.Guard, spec.Control, c.Credential)
}

// Bound gives a command the limits.
func Bound(c *proc.Command, limits program.Limits) {
	c.Nice, c.IONice, c.OOMScoreAdj, c.CPUs = limits.Nice, limits.IONice, limits.OOMScoreAdj, limits.CPUs
	if len(limits.Rlimits) > 0 {
		c.Rlimits = make(map[string]proc.Rlimit, len(limits.Rlimits))
		for name, l := range limits.Rlimits {
			c.Rlimits[name] = proc.Rlimit{Soft: l.Soft, Hard: l.Hard}
		}
	}
}

// GuardOf is the guard of a command. The kernel protects agentinit from other users, so only
// programs of agentinit's own user and of root need a guard. control says that the program may send
// requests to agentinit.
func GuardOf(wanted, control bool, cr *proc.Credential) proc.Guard {
	switch {
	case !wanted || cr != nil && cr.UID != 0 && int(cr.UID) != os.Geteuid():
		return proc.GuardNone
	case control:
		return proc.GuardControl
	}
	return proc.GuardFull
}

// Confine applies a sandbox to a command. If the kernel cannot enforce a part of it, the sandbox
// decides. Either the error is an *UnsupportedError and the command must not be started, or that
// part is left out and returned as skipped, to be reported.
func Confine(c *proc.Command, s *program.Sandbox) (skipped, err error) {
	if s == nil || s.Mode == "off" {
		return nil, nil
	}
	c.NoNewPrivs = s.NoNewPrivileges
	box, err := sandboxOf(s)
	if err != nil {
		return nil, err
	}
	if s.Mode == "audit" {
		c.Sandbox = &proc.Sandbox{Filter: box.Filter}
		return errors.New("mode is audit: system calls that would be refused are counted and allowed; the rest of the sandbox is not in force"), nil
	}
	enforced, missing := proc.Enforceable(box)
	c.Sandbox = &enforced
	if len(missing) == 0 {
		return nil, nil
	}
	what := &UnsupportedError{What: strings.Join(missing, "; ")}
	if s.Required {
		return nil, what
	}
	return what, nil
}

// sandboxOf translates the words of the manifest.
func sandboxOf(s *program.Sandbox) (proc.Sandbox, error) {
	box := proc.Sandbox{
		Read: s.Read, Write: s.Write, Execute: s.Execute, TCPBind: s.TCPBind, TCPConnect: s.TCPConnect, PrivateTmp: s.PrivateTmp,
	}
	var names []string
	if s.Capabilities != nil {
		box.Capabilities = []int{}
		for _, name := range s.Capabilities {
			n, ok := capability.Number(name)
			if !ok {
				return box, fmt.Errorf("unknown capability %q", name)
			}
			box.Capabilities = append(box.Capabilities, n)
			names = append(names, capability.Name(n))
		}
	}
	if s.PrivateTmp && s.Write != nil {
		box.Write = append(box.Write[:len(box.Write):len(box.Write)], "/tmp", "-/var/tmp")
	}
	if s.Seccomp == "" && len(s.DenySyscalls) == 0 {
		return box, nil
	}
	var err error
	box.Filter, err = filter.Compile(runtime.GOARCH, filter.Policy{
		Preset: s.Seccomp, Allow: s.AllowSyscalls, Deny: s.DenySyscalls, Capabilities: names, Log: s.Mode == "audit",
	})
	return box, err
}

// beside is a command that runs beside a program: with the same user, directory, limits and
// sandbox. It must end when its context ends.
func beside(spec *program.Spec, argv []string) (proc.Command, error) {
	c := proc.Command{
		Path: argv[0], Args: argv, Env: spec.Env[:len(spec.Env):len(spec.Env)], Dir: spec.Directory, Scope: proc.ScopeTree,
	}
	dress(&c, spec)
	if c.Guard == proc.GuardFull {
		c.Guard = proc.GuardBeside // a hook such as "nginx -s quit" must signal the program
	}
	_, err := Confine(&c, spec.Sandbox) // what is skipped was reported at the program's start
	return c, err
}
