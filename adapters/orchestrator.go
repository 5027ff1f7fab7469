package adapters

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"
	"time"
)

// Orchestrator starts agents and watches them.
type Orchestrator interface {
	Adapter

	SpawnAgent(ctx context.Context, spec AgentSpec) (Agent, error)
	// StreamEvents follows one agent's events from a seq (0 = the oldest kept) up to its exit
	// event.
	StreamEvents(ctx context.Context, agentID string, from uint64) (AgentStream, error)
	// ListAgents never returns nil; the list may be empty.
	ListAgents(ctx context.Context, filter AgentFilter) ([]Agent, error)
	// TerminateAgent ends the agent's whole tree: SIGTERM, grace, SIGKILL. It returns when no
	// process of the tree is left. A repeated call returns the same. grace < 0 means DefaultGrace.
	TerminateAgent(ctx context.Context, agentID string, grace time.Duration) (Agent, error)

	// The methods below are contract 1.1.

	GetAgent(ctx context.Context, agentID string) (Agent, error)
	// SendInput writes to the agent's standard input. If eof is set, it closes the input
	// afterwards.
	SendInput(ctx context.Context, agentID string, data []byte, eof bool) error
}

// CapInput is the capability of contract 1.1 of the orchestrator: GetAgent and
// SendInput.
const CapInput = "input"

// Limits of the orchestrator, in bytes unless said.
const (
	MaxAgentArgs     = 256 // count
	MaxAgentEnv      = 256 // entries
	MaxAgentEnvBytes = 64 << 10
	MaxAgentCommand  = 1 << 20 // command line and environment together
	MaxAgentInput    = 64 << 10
	MaxAgentOutput   = 64 << 10 // of one output event
	MaxAgentLabels   = 64       // count
	DefaultGrace     = 10 * time.Second
	MaxGrace         = 10 * time.Minute
)

// The values of Agent.Status.
const (
	AgentRunning    = "running"
	AgentExited     = "exited"
	AgentFailed     = "failed"
	AgentTerminated = "terminated" // only after a request
)

// AgentSpec is what to start. argv is never passed to a shell.
type AgentSpec struct {
	Command  string            `json:"command"`
	Args     []string          `json:"args,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	Cwd      string            `json:"cwd,omitempty"` // under $WORKSPACE or /projects
	Name     string            `json:"name,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	TimeoutS int               `json:"timeout_s,omitempty"` // 0 = none
	Stdin    string            `json:"stdin,omitempty"`
	// StdinOpen keeps standard input open after Stdin for SendInput.
	StdinOpen bool        `json:"stdin_open,omitempty"`
	Limits    AgentLimits `json:"limits,omitzero"`
	// Template names the manifest's template whose sandbox applies. Only the box sets it; it is
	// never sent or received.
	Template string `json:"-"`
}

// AgentLimits bound one agent; 0 leaves a resource unlimited.
type AgentLimits struct {
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
	Processes   int64 `json:"processes,omitempty"`
	OpenFiles   int64 `json:"open_files,omitempty"`
	CPUSeconds  int64 `json:"cpu_seconds,omitempty"`
	FileBytes   int64 `json:"file_bytes,omitempty"`
}

// Agent is one started agent. It is kept for an hour after its end.
type Agent struct {
	AgentID   string            `json:"agentId"`
	Name      string            `json:"name,omitempty"`
	Status    string            `json:"status"`
	PID       int               `json:"pid"`
	ExitCode  *int              `json:"exit_code"` // null while the agent runs, or if a signal ended it
	Signal    NullString        `json:"signal"`    // such as SIGKILL
	StartedAt Time              `json:"started_at"`
	EndedAt   Time              `json:"ended_at"`
	Command   []string          `json:"command"`
	Labels    map[string]string `json:"labels"`
	// RefusedCalls is how many system calls the guard or the sandbox refused to the agent, or in
	// audit mode would have refused.
	RefusedCalls uint64 `json:"refused_calls,omitempty"`
}

// AgentFilter narrows ListAgents. Zero fields do not filter.
type AgentFilter struct {
	Status string
	Labels map[string]string // all must be equal
}

// The values of AgentEvent.Kind.
const (
	AgentEventStarted = "started"
	AgentEventStdout  = "stdout"
	AgentEventStderr  = "stderr"
	AgentEventExit    = "exit" // last, exactly once
	AgentEventError   = "error"
	AgentEventLagged  = KindLagged
)

// AgentEvent is one event of an agent. Payload is {data, encoding?: "base64"} for output, {code,
// signal} for exit, and {dropped, resume_from} for lagged.
type AgentEvent struct {
	Seq     uint64          `json:"seq"`
	TS      Time            `json:"ts"`
	AgentID string          `json:"agentId"`
	Kind    string          `json:"kind"`
	Payload json.RawMessage `json:"payload"`
}

// AgentStream yields an agent's events up to its exit event, then io.EOF. Only one goroutine at a
// time may call Next. Any goroutine may call Close, also repeatedly.
type AgentStream interface {
	Next(ctx context.Context) (AgentEvent, error)
	Close() error
}

func (s AgentSpec) check() error {
	if s.Command == "" {
		return Errorf(CodeSpawn, "command is required").With("reason", "command is required", "field", "command")
	}
	if len(s.Args) > MaxAgentArgs {
		return OverLimit("args", MaxAgentArgs)
	}
	if len(s.Env) > MaxAgentEnv {
		return OverLimit("env", MaxAgentEnv)
	}
	total, env, err := s.size()
	if err != nil {
		return err
	}
	if env > MaxAgentEnvBytes {
		return TooLarge("env", MaxAgentEnvBytes, int64(env))
	}
	if total > MaxAgentCommand {
		return TooLarge("command line and environment", MaxAgentCommand, int64(total))
	}
	if s.TimeoutS < 0 {
		return Invalid("timeout_s", "must not be negative")
	}
	return cmp.Or(
		CheckText("name", s.Name, 128), CheckText("cwd", s.Cwd, 4096), CheckText("stdin", s.Stdin, MaxAgentCommand), checkLabels(s.Labels),
	)
}

// size counts as execve does (a NUL and a pointer per string). It refuses strings that cannot be an
// argument or a variable.
func (s AgentSpec) size() (total, env int, err error) {
	const perString = 1 + 8
	if err := CheckText("command", s.Command, MaxAgentCommand); err != nil {
		return 0, 0, err
	}
	total = len(s.Command) + perString
	for _, a := range s.Args {
		if strings.IndexByte(a, 0) >= 0 {
			return 0, 0, Invalid("args", "contains NUL")
		}
		total += len(a) + perString
	}
	for k, v := range s.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.IndexByte(v, 0) >= 0 {
			return 0, 0, Invalid("env", "has a bad name or a NUL")
		}
		env += len(k) + 1 + len(v)
		total += len(k) + 1 + len(v) + perString
	}
	return total, env, nil
}

func checkLabels(labels map[string]string) error {
	if len(labels) > MaxAgentLabels {
		return OverLimit("labels", MaxAgentLabels)
	}
	for k, v := range labels {
		if err := cmp.Or(CheckName("labels", k, 128), CheckText("labels", v, 1024)); err != nil {
			return err
		}
	}
	return nil
}
