package supervisor

import (
	"errors"
	"fmt"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// ErrDone says that the supervisor has ended.
var ErrDone = errors.New("the supervisor has ended")

// Refused says that a request was not carried out because of the present state.
type Refused struct {
	Program string // "" if the request was for the whole box
	Verb    string // start, stop, restart, signal, apply
	State   program.State
	Reason  string
	Ending  bool // the box is shutting down: no later request will be carried out either
}

func (e *Refused) Error() string {
	if e.Program == "" {
		return fmt.Sprintf("cannot %s: %s", e.Verb, e.Reason)
	}
	return fmt.Sprintf("cannot %s %s: it is %s (%s)", e.Verb, e.Program, e.State, e.Reason)
}

// ProgramName returns the program that the request was about.
func (e *Refused) ProgramName() string { return e.Program }

// UnknownProgram says that there is no program of that name.
type UnknownProgram struct {
	Program string
}

func (e *UnknownProgram) Error() string { return fmt.Sprintf("no program is named %q", e.Program) }

// ProgramName returns the name in the request.
func (e *UnknownProgram) ProgramName() string { return e.Program }
