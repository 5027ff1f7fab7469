// Package api holds what agentinit's control socket and its clients exchange: the wire types of
// version 1, the typed error, and Client.
//
// It must not import another package of this module, start a process or decide about rights. The
// server side is supervisor/control.
package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Default places of the control socket. A server without a writable directory listens on the
// abstract name instead. A client that finds no file tries that name.
const (
	DefaultSocket = "/run/agentbox/agentinit.sock"
	// EnvSocket is the environment variable that names another socket.
	EnvSocket = "AGENTCTL_SOCKET"
)

// HeaderAllRunning is in the text form of GET /v1/status: "true" if each program of the answer is
// running, in the sense of the exit status of agentctl status, otherwise "false".
const HeaderAllRunning = "Agentinit-All-Running"

// AbstractFallback is the abstract name that replaces the socket file at path: the path with "@"
// before it. A path that is already abstract stays unchanged.
func AbstractFallback(path string) string {
	if len(path) > 0 && path[0] == '@' {
		return path
	}
	return "@" + path
}

// Status is the state of all or of the requested programs, at one event number. A reader that
// continues with Events(Seq) misses no event.
type Status struct {
	Seq      uint64    `json:"seq"`
	Time     time.Time `json:"time"` // of the server; durations are computed from it
	Phase    string    `json:"phase"`
	Programs []Program `json:"programs"` // in start order, never null
}

// Program is one program as seen from outside. State is supervisord's name of
// the state: STOPPED STARTING RUNNING BACKOFF STOPPING EXITED FATAL.
type Program struct {
	Name  string `json:"name"`
	Group string `json:"group"`
	Type  string `json:"type"` // service, oneshot, schedule
	State string `json:"state"`
	// Shown is the word for people, if it differs from State: COMPLETED for a program that ended as
	// it should, SCHEDULED and PAUSED for a schedule between runs. See Display.
	Shown     string `json:"shown,omitempty"`
	Ready     bool   `json:"ready"`
	Healthy   bool   `json:"healthy"`
	Completed bool   `json:"completed"`
	Required  bool   `json:"required"`
	// Blocked says that it waits for a program that will not be ready without a request.
	Blocked bool `json:"blocked,omitempty"`
	// Reason says in words why the program is not running or, while it runs, why it is unhealthy.
	Reason string `json:"reason,omitempty"`
	// Text is what the program reported about itself (sd_notify STATUS=). The program wrote it:
	// escape it before printing it on a terminal.
	Text     string `json:"text,omitempty"`
	PID      int    `json:"pid,omitempty"`
	Run      uint64 `json:"run"`
	Restarts uint64 `json:"restarts"`

	Since     time.Time  `json:"since"`
	StartedAt *time.Time `json:"started_at,omitempty"`
	RunningAt *time.Time `json:"running_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	// Deadline is when agentinit next acts on the program without a request.
	Deadline *time.Time `json:"deadline,omitempty"`
	LastExit *Exit      `json:"last_exit,omitempty"`
	// Refused counts the system calls that the guard or the sandbox refused to the
	// program's processes, or in audit mode would have refused.
	Refused uint64 `json:"refused,omitempty"`
	// Limits are the limits of processes and memory that are in force for its present run.
	Limits []ProgramLimit `json:"limits,omitempty"`
	// LogTrouble says why its log files take no output now. What it prints stays in memory, as far as
	// there is room.
	LogTrouble string `json:"log_trouble,omitempty"`
	// Schedule is set for programs of the type schedule, in every state.
	Schedule *Schedule `json:"schedule,omitempty"`
	// Usage is what its processes use, if the request asked for it.
	Usage *ProgramUsage `json:"usage,omitempty"`
}

// Display is the state for people, the same word in every command.
func (p Program) Display() string { return cmp.Or(p.Shown, p.State) }

// Display is the state for people, as for Program.
func (p ProgramResult) Display() string { return cmp.Or(p.Shown, p.State) }

// Schedule is when a scheduled program runs and how its latest run ended.
type Schedule struct {
	Paused     bool       `json:"paused"`
	NextRun    *time.Time `json:"next_run,omitempty"` // nil while it is paused
	LastRun    *time.Time `json:"last_run,omitempty"` // start of the latest run
	LastResult string     `json:"last_result,omitempty"`
}

// ProgramLimit is a limit that is in force for a running program.
type ProgramLimit struct {
	Name string `json:"name"` // pids or memory
	// Max is the highest number of processes and threads, or of bytes; 0 means that only Soft limits.
	Max uint64 `json:"max,omitempty"`
	// Soft is set if it is lower than Max: above it, the kernel reclaims memory if Counts is
	// program, and refuses in all other cases. A process may raise it up to Max in those cases.
	Soft uint64 `json:"soft,omitempty"`
	// Source is manifest, or default: a part of the limits of the box.
	Source string `json:"source"`
	// Counts is what the limit counts: program, the processes of the program; programs, those of
	// all programs together; user, those of its user (RLIMIT_NPROC, which does not bind root);
	// process, the data of each process (RLIMIT_DATA).
	Counts string `json:"counts"`
}

// The values of ProgramLimit.Source and ProgramLimit.Counts.
const (
	LimitManifest = "manifest"
	LimitDefault  = "default"

	LimitOfProgram  = "program"
	LimitOfPrograms = "programs"
	LimitOfUser     = "user"
	LimitOfProcess  = "process"
)

// Exit is how a run ended: by an exit status, or by a signal (Code is then -1).
type Exit struct {
	Code   int    `json:"code"`
	Signal string `json:"signal,omitempty"` // "KILL", without "SIG"
	Core   bool   `json:"core,omitempty"`
	// Cause describes the end if more is known than status or signal: "killed by the kernel: out of
	// memory (limit 512 MiB)".
	Cause string `json:"cause,omitempty"`
}

// String describes the exit in the words of events and reasons: "exited with code 1", "ended by
// signal KILL (core dumped)".
func (e Exit) String() string {
	if e.Cause != "" {
		return e.Cause
	}
	s := fmt.Sprintf("exited with code %d", e.Code)
	if e.Signal != "" {
		s = "ended by signal " + e.Signal
	}
	if e.Core {
		s += " (core dumped)"
	}
	return s
}

// ProgramDetail is one program with the specification it runs by. Spec is the
// JSON form of program.Spec; the environment is not part of it.
type ProgramDetail struct {
	Program
	Spec json.RawMessage `json:"spec"`
}

// Usage is what the processes of every program used at one time.
type Usage struct {
	Time     time.Time      `json:"time"`
	NextMS   int64          `json:"next_ms"` // a new reading is not made before this time has passed
	Programs []ProgramUsage `json:"programs"`
}

// ProgramUsage is the use of one program's whole process tree. CPUSeconds covers all its runs and
// never falls. Memory that several processes share counts for each of them.
type ProgramUsage struct {
	Name        string  `json:"name"`
	CPUSeconds  float64 `json:"cpu_seconds"`
	MemoryBytes int64   `json:"memory_bytes"`
	Processes   int     `json:"processes"`
	Threads     int     `json:"threads"`
	OpenFiles   int     `json:"open_files"`
	Zombies     int     `json:"zombies,omitempty"` // ended processes that their parent has not waited for
}

// Processes are the living processes of one program. A parent comes before its
// children; the program's own process is the first while it lives.
type Processes struct {
	Time      time.Time `json:"time"`
	NextMS    int64     `json:"next_ms"` // a new reading is not made before this time has passed
	Program   string    `json:"program"`
	Processes []Process `json:"processes"` // never null
}

// Process is one process. Name is its name in the kernel: at most 15 bytes, which the process can
// choose. So escape it before printing it on a terminal.
type Process struct {
	PID         int     `json:"pid"`
	PPID        int     `json:"ppid"`
	Name        string  `json:"name"`
	State       string  `json:"state"`       // a letter of proc_pid_stat(5)
	CPUSeconds  float64 `json:"cpu_seconds"` // without its children
	MemoryBytes int64   `json:"memory_bytes"`
	Threads     int     `json:"threads"`
}

// ActionRequest asks for a change of some programs. Names may be exact names, names of groups,
// globs, or prefixes that fit exactly one program. All means every program and excludes Names.
type ActionRequest struct {
	Names []string `json:"names,omitempty"`
	All   bool     `json:"all,omitempty"`
	// NoWait: answer as soon as the request is accepted.
	NoWait bool `json:"no_wait,omitempty"`
	// TimeoutMS limits the wait for the outcome, in milliseconds. 0 means the server's limit of ten
	// minutes, which is also the highest value.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// Rolling restarts one program after the other, each when the one before is ready again. It
	// stops at the first that does not become ready.
	Rolling bool `json:"rolling,omitempty"`
	// Signal is the signal to send: a name with or without SIG, or a number.
	Signal string `json:"signal,omitempty"`
}

// ActionResult is the outcome for each program of the request, in start order.
type ActionResult struct {
	Results []ProgramResult `json:"results"`
	// Note says what else the request does to the box.
	Note string `json:"note,omitempty"`
}

// Failed reports whether the outcome of any program is an error.
func (r ActionResult) Failed() bool {
	return slices.ContainsFunc(r.Results, func(p ProgramResult) bool { return p.Error != nil })
}

// ProgramResult is the outcome for one program. Changed is false if it already was in the requested
// state. Error is nil on success.
type ProgramResult struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Shown   string `json:"shown,omitempty"` // as in Program
	PID     int    `json:"pid,omitempty"`
	Changed bool   `json:"changed"`
	// Scheduled says that the program is a schedule between two runs, whatever became of the latest one.
	Scheduled bool   `json:"scheduled,omitempty"`
	Error     *Error `json:"error,omitempty"`
}

// LogQuery selects lines of output. The zero value selects every line that is still held.
type LogQuery struct {
	Names  []string  // as in ActionRequest; empty means all programs
	Stream string    // "stdout", "stderr" or "" for both
	Since  time.Time // zero means from the start of memory; otherwise lines that only log files have are included
	Until  time.Time // only lines before; zero sets no end
	After  string    // a LogLine.Cursor: only lines after that one
	Grep   string    // RE2 that must match the line
	// Lines is how many of the newest matching lines to return first: 0 is all in memory, a
	// negative number none.
	Lines int
	// All adds lines that only log files have, including rotated and compressed ones. It requires
	// Lines to be 0.
	All      bool
	Previous bool // only the latest ended run of each program
	Follow   bool
}

// LogLine is one line of output. At most one of Text and Data is set: Data if the line is not valid
// UTF-8. The program wrote both: escape them before printing them on a terminal.
type LogLine struct {
	// Seq orders all lines; it is 0 in a line that marks a loss.
	Seq     uint64    `json:"seq,omitempty"`
	Time    time.Time `json:"time"`
	Program string    `json:"program"`
	Stream  string    `json:"stream"`
	PID     int       `json:"pid,omitempty"`
	Run     uint64    `json:"run,omitempty"`
	Text    string    `json:"text,omitempty"`
	Data    []byte    `json:"data,omitempty"` // base64 on the wire
	// Cursor is a value for LogQuery.After; it is "" in a line that only a log file has.
	Cursor string `json:"cursor,omitempty"`
	// Truncated says that the program's line continues in the next LogLine.
	Truncated bool `json:"truncated,omitempty"`
	// Dropped is how many lines the reader has missed here; Text says so.
	Dropped uint64 `json:"dropped,omitempty"`
}

// Bytes is the line's content, which has no newline.
func (l LogLine) Bytes() []byte {
	if l.Data != nil {
		return l.Data
	}
	return []byte(l.Text)
}

// Manifest is the manifest in force: every value, including defaults, and the findings of the
// rules.
type Manifest struct {
	File     string    `json:"file"`
	Settings []Setting `json:"settings"`
	Findings []Finding `json:"findings,omitempty"`
}

// Setting is one value in force. Source is file, env, catalogue or default. Detail is the place in
// the file, or the variable. Secrets are redacted.
type Setting struct {
	Path   string `json:"path"`
	Value  any    `json:"value"`
	Source string `json:"source"`
	Detail string `json:"detail,omitempty"`
}

// ApplyRequest asks agentinit to read the manifest again. With DryRun it only reports what would
// happen.
type ApplyRequest struct {
	DryRun bool `json:"dry_run,omitempty"`
}

// The actions of an apply.
const (
	ApplyUnchanged = "unchanged" // keeps running, same pid
	ApplyLive      = "live"      // takes the new values without a restart
	ApplyRestart   = "restart"
	ApplyAdd       = "add"
	ApplyRemove    = "remove"
)

// ApplyResult is what an apply did or would do, one row for each program. RolledBack says that
// required programs did not become ready again, so the former manifest is in force; Reason says
// which programs.
type ApplyResult struct {
	DryRun     bool          `json:"dry_run"`
	Changes    []ApplyChange `json:"changes"`
	Warnings   []Finding     `json:"warnings,omitempty"`
	RolledBack bool          `json:"rolled_back,omitempty"`
	Reason     string        `json:"reason,omitempty"`
	// NextBoot names the changed manifest keys that belong to no program. They take effect at the
	// next boot.
	NextBoot []string `json:"next_boot,omitempty"`
}

// ApplyChange is what an apply changes for one program. Keys are the manifest keys that differ.
type ApplyChange struct {
	Program string `json:"program"`
	// Was is the former name of the instance, if a changed number of instances renamed it.
	Was    string   `json:"was,omitempty"`
	Action string   `json:"action"`
	Keys   []string `json:"keys,omitempty"`
	Error  string   `json:"error,omitempty"`
}

// Finding is a problem in the manifest, with the same fields as schema.Finding.
type Finding struct {
	Code     string `json:"code"`
	Severity string `json:"severity"`
	File     string `json:"file,omitempty"`
	Path     string `json:"path,omitempty"`
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Value    string `json:"value,omitempty"`
	Message  string `json:"message"`
	Hint     string `json:"hint,omitempty"`
}

// String returns the finding on one line: CODE file:line:column: message (hint).
func (f Finding) String() string {
	s := f.Code + " "
	if f.File != "" {
		s += f.File
		if f.Line > 0 {
			s += fmt.Sprintf(":%d:%d", f.Line, f.Column)
		}
		s += ": "
	}
	s += f.Message
	if f.Hint != "" {
		s += " (" + f.Hint + ")"
	}
	return s
}

// Why explains the state of one program.
type Why struct {
	Program Program   `json:"program"`
	Time    time.Time `json:"time"`
	// Summary is one sentence.
	Summary string `json:"summary"`
	// Next says what will happen without a further request; empty means that nothing will.
	Next string `json:"next,omitempty"`
	// Ending describes in words how the latest run ended, if it has ended.
	Ending string `json:"ending,omitempty"`
	// Ready says what the program declares as its readiness; empty means that RUNNING is ready.
	Ready string `json:"ready,omitempty"`
	// Output is the last output of the latest run, oldest line first, if the program is in trouble.
	Output []LogLine `json:"output,omitempty"`
	// LogTrouble is that of Program.
	LogTrouble string `json:"log_trouble,omitempty"`
	// Do lists commands that may help, the most useful one first.
	Do []string `json:"do,omitempty"`
	// Needs are the programs that it needs.
	Needs []WhyNeed `json:"needs,omitempty"`
	// Dependents are the programs that need this one.
	Dependents []string `json:"dependents,omitempty"`
	// Refused are the kinds of system calls that were refused, the most frequent first.
	Refused []Refusal `json:"refused,omitempty"`
	// Recent are the newest events about the program, oldest first.
	Recent []Event `json:"recent,omitempty"`
}

// Refusal is one kind of system call that was refused to a program.
type Refusal struct {
	// By names the filter: "guard" (it protects agentinit) or "seccomp" (the sandbox).
	By   string `json:"by"`
	Call string `json:"call"` // name of the system call; "other" for all further kinds
	// Allowed says that the call was carried out, because the sandbox only audits.
	Allowed bool      `json:"allowed,omitempty"`
	Count   uint64    `json:"count"`
	PID     int       `json:"pid"` // of the last process, 0 if it is not known
	Last    time.Time `json:"last"`
	// Command is the name of the process in the latest event. The program chose it: escape it
	// before printing it on a terminal.
	Command string `json:"command,omitempty"`
}

// String describes it in words: "guard: kill ×3, last by pid 71 (sh)".
func (r Refusal) String() string {
	s := fmt.Sprintf("%s: %s ×%d", r.By, r.Call, r.Count)
	if r.Allowed {
		s += " (audit: allowed)"
	}
	if r.PID != 0 {
		s += fmt.Sprintf(", last by pid %d", r.PID)
	}
	if r.Command != "" {
		s += " (" + r.Command + ")"
	}
	return s
}

// WhyNeed is one edge of the dependency graph and whether it holds.
type WhyNeed struct {
	Program   string `json:"program"`
	Condition string `json:"condition"` // started, ready, completed
	Met       bool   `json:"met"`
	State     string `json:"state"` // as Program.Shown
	Reason    string `json:"reason,omitempty"`
	// Needs are the unmet needs of that program. Each program is explained only once.
	Needs []WhyNeed `json:"needs,omitempty"`
}

// The conditions of Wait.
const (
	ForReady     = "ready"
	ForRunning   = "running"
	ForStopped   = "stopped"
	ForCompleted = "completed"
	ForStarting  = "starting"
	ForStopping  = "stopping"
	ForExited    = "exited"
	ForBackoff   = "backoff"
	ForFatal     = "fatal"
)

// ForAny lists all conditions, for messages.
const ForAny = "ready, running, stopped, completed, starting, stopping, exited, backoff or fatal"

// Conditions returns all conditions.
func Conditions() []string {
	return []string{
		ForReady, ForRunning, ForStopped, ForCompleted, ForStarting, ForStopping, ForExited, ForBackoff, ForFatal,
	}
}

// WaitQuery says what to wait for. Without names, ForReady means the readiness of the box, and any
// other condition means every program. For may be in upper or lower case. Timeout 0 means the
// server's limit of ten minutes, which is also the highest value.
type WaitQuery struct {
	Names   []string
	For     string
	Timeout time.Duration
}

// WaitResult says that the condition holds.
type WaitResult struct {
	For      string    `json:"for"`
	Box      bool      `json:"box"` // the condition was the readiness of the box
	Programs []Program `json:"programs,omitempty"`
}

// Readiness says whether the box is ready, and what is missing if not.
type Readiness struct {
	Ready        bool          `json:"ready"`
	Since        *time.Time    `json:"since,omitempty"` // when it last became ready
	Reason       string        `json:"reason,omitempty"`
	Requirements []Requirement `json:"requirements,omitempty"`
	Missing      []Requirement `json:"missing,omitempty"`
}

// Requirement is one thing that must hold for the box to be ready.
type Requirement struct {
	ID     string `json:"id"`   // program:web, mount:/workspace
	Kind   string `json:"kind"` // program, adapter, mount
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"`
}

// Boot is the record of the boot: phases, artifact probes, programs.
type Boot struct {
	ID        string     `json:"id,omitempty"`
	StartedAt time.Time  `json:"started_at"`
	SealedAt  *time.Time `json:"sealed_at,omitempty"`
	// Outcome is one of the words below.
	Outcome string `json:"outcome"`
	Reason  string `json:"reason,omitempty"`
	// Manifest is the absolute path of the manifest, as agentinit sees it.
	Manifest  string         `json:"manifest,omitempty"`
	Phases    []BootPhase    `json:"phases"`
	Programs  []BootProgram  `json:"programs"`
	Artifacts []BootArtifact `json:"artifacts,omitempty"`
	// CriticalChain is the chain of programs the seal waited for, in start
	// order; the last is the required program that became ready last.
	CriticalChain []string `json:"critical_chain,omitempty"`
}

// The outcomes of a boot.
const (
	BootUnderWay = "booting"
	BootSealed   = "sealed"
	BootTimeout  = "timeout"
	BootFailed   = "failed"
)

// PhaseUnderWay is the outcome of a phase that has not ended.
const PhaseUnderWay = "running"

// BootPhase is one phase of bootstrap.
type BootPhase struct {
	Number    float64   `json:"number"` // 0.5 is a phase too
	Name      string    `json:"name"`
	StartedAt time.Time `json:"started_at"`
	// DurationMS is in milliseconds; for a phase under way, the time so far.
	DurationMS float64 `json:"duration_ms"`
	Outcome    string  `json:"outcome"` // ok, warning, failed, running
	Detail     string  `json:"detail,omitempty"`
}

// BootProgram says when a program was first started, was RUNNING, and was ready (a oneshot:
// completed). A time that has not come yet is nil.
type BootProgram struct {
	Name      string     `json:"name"`
	Required  bool       `json:"required"`
	Needs     []string   `json:"needs,omitempty"`
	StartedAt *time.Time `json:"started_at,omitempty"`
	RunningAt *time.Time `json:"running_at,omitempty"`
	ReadyAt   *time.Time `json:"ready_at,omitempty"`
}

// BootArtifact is the result of one artifact probe.
type BootArtifact struct {
	ID         string  `json:"id"`
	Class      string  `json:"class,omitempty"`
	Required   bool    `json:"required"`
	OK         bool    `json:"ok"`
	Reason     string  `json:"reason,omitempty"`
	DurationMS float64 `json:"duration_ms"`
}

// LogLevel is the level of agentinit's own log: trace, debug, info, warn, error.
type LogLevel struct {
	Level string `json:"level"`
}

// ShutdownRequest asks agentinit to stop all programs and exit. The reason, at most 200 bytes, goes
// to the log.
type ShutdownRequest struct {
	Reason string `json:"reason,omitempty"`
}

// Accepted is the answer to a request whose outcome comes later.
type Accepted struct {
	Accepted bool `json:"accepted"`
}

// Version describes the agentinit that answers.
type Version struct {
	Version   string     `json:"version"`
	Commit    string     `json:"commit,omitempty"`
	Go        string     `json:"go"`
	PID       int        `json:"pid"`
	BootID    string     `json:"boot_id,omitempty"`
	StartedAt *time.Time `json:"started_at,omitempty"`
}
