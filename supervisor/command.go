package supervisor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// UnsupportedError says that a program asks for something that cannot be given;
// starting it without would be worse than not starting it.
type UnsupportedError struct {
	What string
}

func (e *UnsupportedError) Error() string { return e.What + " is not supported" }

// ShellStatus is that of a command that cannot be run.
func (e *UnsupportedError) ShellStatus() int { return 126 }

// command translates a specification. Descriptors are added by the caller.
func command(spec *program.Spec) (proc.Command, error) {
	if len(spec.Argv) == 0 {
		return proc.Command{}, errors.New("the command is empty")
	}
	c := proc.Command{
		Path: spec.Argv[0], Args: spec.Argv, Env: spec.Env[:len(spec.Env):len(spec.Env)], Dir: spec.Directory,
		StdinPipe: spec.Stdin == program.StdinPipe && !spec.TTY, TTY: spec.TTY,
		Scope: scopes[spec.Kill], Nice: spec.Limits.Nice, IONice: spec.Limits.IONice,
		OOMScoreAdj: spec.Limits.OOMScoreAdj, CPUs: spec.Limits.CPUs,
	}
	if cr := spec.Credential; cr != nil {
		c.Credential = &proc.Credential{UID: cr.UID, GID: cr.GID, Groups: cr.Groups}
	}
	if spec.Umask >= 0 {
		c.Umask = &spec.Umask
	}
	if len(spec.Limits.Rlimits) > 0 {
		c.Rlimits = make(map[string]proc.Rlimit, len(spec.Limits.Rlimits))
		for name, l := range spec.Limits.Rlimits {
			c.Rlimits[name] = proc.Rlimit{Soft: l.Soft, Hard: l.Hard}
		}
	}
	return c, nil
}

// Confine applies a sandbox to a command, a program's or anybody else's. What
// cannot be applied is an *UnsupportedError, and the command must not be
// started; in mode audit it is skipped, and returned to be told.
func Confine(c *proc.Command, s *program.Sandbox) (skipped, err error) {
	err = confine(c, s)
	if err != nil && s.Mode == "audit" {
		return err, nil
	}
	return nil, err
}

func confine(c *proc.Command, s *program.Sandbox) error {
	if s == nil || s.Mode == "off" {
		return nil
	}
	c.NoNewPrivs = s.NoNewPrivileges
	asked := map[string]bool{
		"capabilities": s.Capabilities != nil,
		"paths":        len(s.Read)+len(s.Write)+len(s.Execute) > 0,
		"ports":        len(s.TCPBind)+len(s.TCPConnect) > 0,
		"seccomp":      s.Seccomp != "",
	}
	var missing []string
	for what, is := range asked {
		if is {
			missing = append(missing, what)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return &UnsupportedError{What: fmt.Sprintf("a sandbox of %s", strings.Join(missing, ", "))}
}

// beside is a command that runs beside a program: as the same user, in the same
// place, and never longer than its context.
func beside(spec *program.Spec, argv []string) proc.Command {
	c := proc.Command{
		Path: argv[0], Args: argv, Env: spec.Env[:len(spec.Env):len(spec.Env)], Dir: spec.Directory, Scope: proc.ScopeTree,
	}
	if cr := spec.Credential; cr != nil {
		c.Credential = &proc.Credential{UID: cr.UID, GID: cr.GID, Groups: cr.Groups}
	}
	return c
}
