package supervisor

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Trial is how a command ended that ran with the restrictions of a program.
type Trial struct {
	Status    int    // as a shell reports it
	Output    []byte // standard output and error
	Truncated bool   // the command wrote more
	// Skipped names the parts of the sandbox that were not in force; "" means none.
	Skipped string
	Refused []Refusal // in the order in which each kind first occurred
}

// trialOutput is how much of a trial's output is kept.
const trialOutput = 256 << 10

// Try runs a command exactly as the program would run: with its user, environment, limits, guard
// and sandbox. The program itself is not affected.
func (s *System) Try(ctx context.Context, spec *program.Spec, argv []string) (Trial, error) {
	as := *spec
	as.Argv = argv
	c, err := command(&as)
	if err != nil {
		return Trial{}, err
	}
	c.StdinPipe, c.TTY, c.Scope = false, false, proc.ScopeTree
	skipped, err := Confine(&c, spec.Sandbox)
	if err != nil {
		return Trial{}, err
	}
	var mu sync.Mutex
	refused := tallies{}
	c.Refused = func(x proc.Refusal) {
		mu.Lock()
		defer mu.Unlock()
		refused.add("", x, time.Now())
	}
	res, err := s.cfg.Owner.Run(ctx, c, trialOutput)
	if err != nil {
		return Trial{}, err
	}
	out := Trial{Status: res.Exit.ShellStatus(), Output: []byte(s.output(spec, res)), Truncated: res.Truncated}
	if skipped != nil {
		out.Skipped = skipped.Error()
	}
	mu.Lock()
	defer mu.Unlock()
	out.Refused = slices.Clone(refused[""])
	return out, nil
}
