// Package program decides what happens to one supervised program.
//
// It computes with values: Machine.Step takes the time and an event, and returns the next machine
// and the actions to carry out. It must never start a goroutine, read a clock, send a signal or do
// any other I/O. The supervisor's loop does all of that.
package program

import (
	"fmt"
	"time"
)

// State is the state of a program. Names and numbers are those of supervisord.
type State int

// The states of a program.
const (
	Stopped  State = 0
	Starting State = 10
	Running  State = 20
	Backoff  State = 30
	Stopping State = 40
	Exited   State = 100
	Fatal    State = 200
)

// States lists every state in the order of its number.
var States = []State{Stopped, Starting, Running, Backoff, Stopping, Exited, Fatal}

var stateNames = map[State]string{
	Stopped: "STOPPED", Starting: "STARTING", Running: "RUNNING", Backoff: "BACKOFF",
	Stopping: "STOPPING", Exited: "EXITED", Fatal: "FATAL",
}

// String returns supervisord's name of the state.
func (s State) String() string {
	if n, ok := stateNames[s]; ok {
		return n
	}
	return fmt.Sprintf("State(%d)", int(s))
}

// MarshalText writes the state's name.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a state's name.
func (s *State) UnmarshalText(text []byte) error {
	for state, name := range stateNames {
		if name == string(text) {
			*s = state
			return nil
		}
	}
	return fmt.Errorf("unknown state %q", text)
}

// Type says what kind of program this is.
type Type string

// The types of program.
const (
	Service  Type = "service"
	Oneshot  Type = "oneshot"
	Schedule Type = "schedule"
)

// Overlap says what happens if a scheduled run is due while the one before still runs.
type Overlap string

// The kinds of overlap; the empty one means skip.
const (
	OverlapSkip  Overlap = "skip"
	OverlapQueue Overlap = "queue" // one run follows when the old one has ended
	OverlapKill  Overlap = "kill"  // the old run is stopped
)

// Condition is what a dependent waits for.
type Condition string

// The conditions of a need.
const (
	NeedStarted   Condition = "started"   // exec'ed
	NeedReady     Condition = "ready"     // RUNNING and, if declared, ready; for a oneshot: completed
	NeedCompleted Condition = "completed" // exited with an expected code
)

// Need is one edge of the dependency graph.
type Need struct {
	Program   string    `json:"program"` // instance name
	Condition Condition `json:"condition"`
}

// RestartPolicy says when an ended program is started again.
type RestartPolicy string

// The restart policies.
const (
	RestartAlways    RestartPolicy = "always"
	RestartOnFailure RestartPolicy = "on-failure"
	RestartNever     RestartPolicy = "never"
)

// OnFatal says what FATAL of a program means for the box.
type OnFatal string

// What a program in FATAL does to the box.
const (
	FatalIgnore   OnFatal = "ignore"
	FatalShutdown OnFatal = "shutdown"
)

// BackoffPolicy is the wait before a restart: initial × factor^n, at most Max, ± Jitter (a
// fraction, 0.1 = 10 %). After ResetAfter in RUNNING, n starts again at 0.
type BackoffPolicy struct {
	Initial    time.Duration `json:"initial"`
	Factor     float64       `json:"factor"`
	Max        time.Duration `json:"max"`
	Jitter     float64       `json:"jitter"`
	ResetAfter time.Duration `json:"reset_after"`
}

// RestartLimit makes a program FATAL if more than Count restarts fall in Window, or if more than
// Count starts in a row do not lead to RUNNING, however long they take. Count 0 is unlimited.
type RestartLimit struct {
	Count  int           `json:"count"`
	Window time.Duration `json:"window"`
}

// StopStep is one rung of the stop ladder: send Signal, then wait up to Wait.
type StopStep struct {
	Signal string        `json:"signal"` // without "SIG": TERM, INT, KILL
	Wait   time.Duration `json:"wait"`
}

// KillScope says which processes a signal of the stop ladder and the final KILL reach.
type KillScope string

// The kill scopes.
const (
	KillTree    KillScope = "tree"
	KillGroup   KillScope = "group"
	KillProcess KillScope = "process"
)

// Probe is one readiness or health condition.
type Probe struct {
	Dialect string   `json:"dialect"`          // Name of a row of Dialects
	Target  string   `json:"target,omitempty"` // what the probe checks: an address, a path, a pattern
	Argv    []string `json:"argv,omitempty"`   // for the dialect exec, instead of Target

	Interval  time.Duration `json:"interval,omitempty"`
	Timeout   time.Duration `json:"timeout,omitempty"`
	Successes int           `json:"successes,omitempty"`
}

// Readiness is what must hold before a program counts as ready. Without probes, RUNNING is ready.
type Readiness struct {
	Probes   []Probe       `json:"probes,omitempty"`
	Any      bool          `json:"any,omitempty"` // one probe is enough
	Deadline time.Duration `json:"deadline,omitempty"`
}

// HealthAction is what happens if a health check has failed too often.
type HealthAction string

// The health actions.
const (
	HealthNone     HealthAction = "none"
	HealthRestart  HealthAction = "restart"
	HealthShutdown HealthAction = "shutdown"
)

// Health says what is checked while a program is RUNNING.
type Health struct {
	Probes   []Probe       `json:"probes,omitempty"`
	Failures int           `json:"failures,omitempty"` // in a row
	Action   HealthAction  `json:"action,omitempty"`
	Watchdog time.Duration `json:"watchdog,omitempty"` // the program must send WATCHDOG=1 within this time
	Wedge    Wedge         `json:"wedge,omitzero"`
}

// On tells whether there is any check.
func (h Health) On() bool { return len(h.Probes) > 0 || h.Watchdog > 0 || h.Wedge.On() }

// Hook is a command that runs at one point of a program's life; it never blocks the loop.
type Hook struct {
	Argv    []string      `json:"argv"`
	Timeout time.Duration `json:"timeout"`
}

// Hooks are the hooks of a program; nil means none.
type Hooks struct {
	PreStart  *Hook `json:"pre_start,omitempty"`
	PostReady *Hook `json:"post_ready,omitempty"`
	PreStop   *Hook `json:"pre_stop,omitempty"`
	PostExit  *Hook `json:"post_exit,omitempty"`
}

// Limit is a soft and hard resource limit; Infinity is unlimited.
type Limit struct {
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
}

// Infinity means no limit (RLIM_INFINITY).
const Infinity = ^uint64(0)

// Limits are the kernel's limits for a program; a nil pointer or empty map inherits.
type Limits struct {
	// Rlimits is keyed by the manifest's name: nofile nproc core as cpu fsize
	// memlock stack pids memory.
	Rlimits     map[string]Limit `json:"rlimits,omitempty"`
	Nice        *int             `json:"nice,omitempty"`
	IONice      string           `json:"ionice,omitempty"` // "idle", "best-effort:4", "realtime:0"
	OOMScoreAdj *int             `json:"oom_score_adj,omitempty"`
	CPUs        []int            `json:"cpus,omitempty"`
}

// Sandbox is what a program may reach. A nil list allows everything of its kind; an empty list
// forbids all of it.
type Sandbox struct {
	NoNewPrivileges bool     `json:"no_new_privileges,omitempty"`
	Capabilities    []string `json:"capabilities,omitzero"`
	Read            []string `json:"read,omitzero"`
	Write           []string `json:"write,omitzero"`
	Execute         []string `json:"execute,omitzero"`
	TCPBind         []int    `json:"tcp_bind,omitzero"`
	TCPConnect      []int    `json:"tcp_connect,omitzero"`
	Seccomp         string   `json:"seccomp,omitempty"`
	AllowSyscalls   []string `json:"allow_syscalls,omitempty"`
	DenySyscalls    []string `json:"deny_syscalls,omitempty"`
	PrivateTmp      bool     `json:"private_tmp,omitempty"`
	Mode            string   `json:"mode,omitempty"` // enforce audit off
	// Required refuses the start if the kernel cannot enforce a part. Otherwise the program runs
	// without that part, and an event reports that.
	Required bool `json:"required,omitempty"`
}

// Credential is the user and groups of a program. All ids are numbers, so no name is looked up.
type Credential struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
}

// Stdin is what a program reads on descriptor 0.
type Stdin string

// The kinds of standard input.
const (
	StdinNull    Stdin = "null"
	StdinPipe    Stdin = "pipe"
	StdinInherit Stdin = "inherit"
)

// LogTo is where a program's output goes in addition to its ring.
type LogTo string

// Where output goes.
const (
	LogConsole LogTo = "console"
	LogFile    LogTo = "file"
	LogNone    LogTo = "none" // only the ring
)

// Logs says how a program's output is kept.
type Logs struct {
	To         LogTo         `json:"to"`
	Path       string        `json:"path,omitempty"`
	StderrPath string        `json:"stderr_path,omitempty"`
	MaxBytes   int64         `json:"max_bytes,omitempty"`
	Every      time.Duration `json:"rotate_every,omitempty"`
	At         string        `json:"rotate_at,omitempty"` // HH:MM
	Backups    int           `json:"backups,omitempty"`
	MaxAge     time.Duration `json:"max_age,omitempty"`
	Compress   string        `json:"compress,omitempty"` // gzip, zstd or empty
	TotalBytes int64         `json:"total_bytes,omitempty"`

	RateLines    int           `json:"rate_lines,omitempty"`
	RateBytes    int64         `json:"rate_bytes,omitempty"`
	RateInterval time.Duration `json:"rate_interval,omitempty"`

	MaxLine    int           `json:"max_line,omitempty"`    // bytes; 0: the default
	FlushAfter time.Duration `json:"flush_after,omitempty"` // 0: the default; negative: never
}

// Spec is everything the supervisor knows about one program instance before it
// runs: every default filled in, every variable expanded, every id a number.
// It is immutable; a changed manifest makes a new Spec.
type Spec struct {
	Name     string `json:"name"`     // "web", or "worker:2" with instances
	Group    string `json:"group"`    // the name in the manifest
	Instance int    `json:"instance"` // 0 without instances

	Type     Type     `json:"type"`
	Argv     []string `json:"argv"` // Argv[0] is looked up in the program's PATH at each start
	Priority int      `json:"priority"`
	Needs    []Need   `json:"needs,omitempty"`
	// Schedule is five-field cron, a descriptor such as @hourly, or "@every 10m", in Timezone. Only
	// the type schedule has it.
	Schedule string  `json:"schedule,omitempty"`
	Overlap  Overlap `json:"overlap,omitempty"`
	Timezone string  `json:"timezone,omitempty"` // IANA name, empty for local time

	Autostart bool    `json:"autostart"`
	Required  bool    `json:"required"`
	Essential bool    `json:"essential"`
	OnFatal   OnFatal `json:"on_fatal"`

	Restart   RestartPolicy `json:"restart"`
	ExitCodes []int         `json:"exit_codes"`
	// RunningAfter is start_seconds. If no readiness is declared, a program that lives this long is
	// RUNNING.
	RunningAfter time.Duration `json:"start_seconds"`
	// StartTimeout 0 means no limit.
	StartTimeout time.Duration `json:"start_timeout"`
	Backoff      BackoffPolicy `json:"backoff"`
	RestartLimit RestartLimit  `json:"restart_limit"`
	// StartRetries is the number of retries after the first failed start, as in supervisord. -1
	// means that RestartLimit applies.
	StartRetries int `json:"start_retries"`

	Readiness Readiness `json:"readiness"`
	Health    Health    `json:"health"`

	Stop        []StopStep `json:"stop"`
	StopCommand *Hook      `json:"stop_command,omitempty"`
	Kill        KillScope  `json:"kill"`
	Hooks       Hooks      `json:"hooks"`

	// Credential nil inherits agentinit's own.
	Credential *Credential `json:"credential,omitempty"`
	Umask      int         `json:"umask"` // -1 inherits
	Directory  string      `json:"directory,omitempty"`
	Env        []string    `json:"-"` // the complete environment; never printed, because it may hold secrets
	Secrets    []Secret    `json:"-"` // secrets that other fields contain; see Hide
	Limits     Limits      `json:"limits"`
	// Guard keeps the program from harming the supervisor. It applies if the program runs as the
	// supervisor's user or as root.
	Guard   bool     `json:"guard"`
	Sandbox *Sandbox `json:"sandbox,omitempty"`
	Stdin   Stdin    `json:"stdin"`
	TTY     bool     `json:"tty"`
	Logs    Logs     `json:"logs"`

	// Control says that processes of this program may make changes through the socket.
	Control bool `json:"control"`
}

// Exit is how one run of a program ended.
type Exit struct {
	Code   int    `json:"code"`             // exit status; -1 if a signal ended the run
	Signal string `json:"signal,omitempty"` // "KILL", without "SIG"
	// SignalNumber is the number of Signal on this machine, 0 if there was none.
	SignalNumber int  `json:"-"`
	Core         bool `json:"core,omitempty"`
	// Cause describes the end if more is known than status or signal, such as a kill by the kernel
	// because memory was short, or why agentinit stopped the run.
	Cause string `json:"cause,omitempty"`
	// Lived is the time from exec to the end, 0 if unknown.
	Lived time.Duration `json:"-"`
}

// String describes the exit in words, as in reasons.
func (e Exit) String() string {
	if e.Cause != "" {
		return e.Cause
	}
	text := fmt.Sprintf("exited with code %d", e.Code)
	if e.Signal != "" {
		text = "ended by signal " + e.Signal
	}
	if e.Core {
		text += " (core dumped)"
	}
	return text
}

// Status is what a shell would report: the exit code, or 128 + signal number.
func (e Exit) Status() int {
	if e.SignalNumber != 0 {
		return 128 + e.SignalNumber
	}
	return e.Code
}
