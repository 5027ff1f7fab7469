package orchestrator

import (
	"context"
	"io"
	"syscall"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Spawner starts agents under the one owner of fork, signal and wait. It is
// safe for concurrent use.
type Spawner interface {
	// Spawn returns when the program was exec'ed, or with the reason why not; then it calls neither
	// callback of c. ctx is only for the start: its end does not end the agent.
	Spawn(ctx context.Context, c Command) (Process, error)
}

// Command is one agent to start.
type Command struct {
	// Agent is the agent's id.
	Agent string
	// Path is searched in PATH of Env when it has no slash.
	Path string
	Args []string // Args[0] is Path
	Env  []string // the whole environment
	Dir  string
	// StdinPipe asks for Process.Stdin; else standard input is /dev/null.
	StdinPipe bool
	Limits    adapters.AgentLimits
	// Template is the template whose sandbox applies, "" for none.
	Template string

	// Output gets what the agent prints, in the order it is read, from one goroutine for each
	// stream, perhaps before Spawn has returned. data is valid only during the call and at most 32
	// KiB long.
	Output func(stream Stream, data []byte)
	// Ended is called once, from a goroutine without locks, when no process of the agent's tree is
	// left and all output was handed over.
	Ended func(Ending)
}

// Stream is one of an agent's two output streams.
type Stream int

// The streams.
const (
	Stdout Stream = iota
	Stderr
)

// Ending is how an agent ended.
type Ending struct {
	Code   int            // exit status; meaningless when Signal is set
	Signal syscall.Signal // that ended it, 0 for none
	Time   time.Time      // when the agent itself ended, its tree maybe later
	Leaked int            // processes of its tree that could not be killed
}

// Process is a started agent with all that descends from it.
type Process interface {
	PID() int
	Started() time.Time
	// Refused is how many system calls the guard or the sandbox refused to the tree, or in
	// audit mode would have refused, as far as the kernel tells.
	Refused() uint64
	// Stdin is the write end of its standard input, nil without StdinPipe.
	// Close interrupts a Write under way.
	Stdin() io.WriteCloser
	// Signal reaches the whole tree. It is no error if no process is left.
	Signal(sig syscall.Signal) error
	// Kill begins to kill the whole tree and returns; Ended tells the end.
	Kill() error
}
