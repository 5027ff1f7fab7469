// Package control owns the control socket: who may connect, who may do what,
// one table of routes, and the translation between the wire and the supervisor.
//
// It must never touch a process itself, decide what a program's state means for
// other programs, or let a peer's slowness, size or number reach the
// supervisor's loop: every input, wait and connection here is bounded.
package control

import (
	"context"
	"iter"
	"net/http"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/audit"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Supervisor is what control asks of the loop. A change must be visible in
// Snapshot before the event that tells of it is published: whoever waits reads
// the snapshot again when it sees the event.
//
// The four requests return when the loop has taken or refused them; control
// waits for the outcome itself. What was refused is *supervisor.Refused or
// *supervisor.UnknownProgram, joined where there are several; any other error
// is about all programs.
type Supervisor interface {
	Snapshot() supervisor.Snapshot
	Start(ctx context.Context, names ...string) error
	// StartAll is Start in the order of the boot.
	StartAll(ctx context.Context, names ...string) error
	// RunNow starts a run, of schedules too.
	RunNow(ctx context.Context, names ...string) error
	Stop(ctx context.Context, names ...string) error
	Restart(ctx context.Context, names ...string) error
	// RestartAll is Stop of all of them, then StartAll.
	RestartAll(ctx context.Context, names ...string) error
	Signal(ctx context.Context, signal string, names ...string) error
	// Shutdown asks for an orderly stop of the whole box and returns at once.
	Shutdown(reason string)
}

var (
	_ Supervisor = (*supervisor.Supervisor)(nil)
	_ Logs       = (*logs.Plane)(nil)
)

// Logs reads captured output; logs.Plane is one. A reader may be as slow as it
// likes: no other client must wait for that.
type Logs interface {
	Read(ctx context.Context, q logs.Query) iter.Seq[logs.Line]
	// Reopen has every log file closed and opened by its path. It does not wait.
	Reopen()
}

// Applier works on the manifest of the running box. An invalid manifest is an
// *api.Error of CodeInvalid with the findings, and has changed nothing.
type Applier interface {
	// Plan returns the plan in force as JSON.
	Plan(ctx context.Context) ([]byte, error)
	Apply(ctx context.Context, dryRun bool) (api.ApplyResult, error)
	// Manifest returns every value in force and where it comes from, secrets
	// redacted, with the findings about the manifest.
	Manifest(ctx context.Context) (api.Manifest, error)
}

// Readiness is the readiness of the box. A change must be visible in Report
// before an event tells of it.
type Readiness interface {
	Report() api.Readiness
}

// BootRecord is what bootstrap remembers of itself. It need not fill in
// CriticalChain.
type BootRecord interface {
	Boot() api.Boot
	// Previous is the record of the boot before this one; the error says why there
	// is none.
	Previous() (api.Boot, error)
}

// LogLevel reads and changes the level of agentinit's own log. Set refuses a
// level it does not know.
type LogLevel interface {
	Level() string
	SetLevel(level string) error
}

// Config is what a Server works with. Supervisor, Events and Owner are
// required; a route whose part is nil answers CodeUnsupported.
type Config struct {
	Supervisor Supervisor
	Events     *event.Bus
	// Owner says to which supervised program's tree a process belongs. It is
	// asked once for each connection and must not block on the process, so it
	// must not read what the process can stall (its memory, its files).
	Owner func(pid int) (program string, ok bool)

	Logs      Logs
	Applier   Applier
	Readiness Readiness
	Boot      BootRecord
	LogLevel  LogLevel
	// Usage reads what every program's processes use. It may take some milliseconds.
	Usage func() []api.ProgramUsage
	// Processes lists the living processes of a run. It may take some milliseconds.
	Processes func(program string, run uint64) []api.Process
	// Bridge takes the connections of orchestrator hosts.
	Bridge Bridge
	// Probes serves /livez, /ready, /health, /metrics and /v1/meta.
	Probes http.Handler
	// Adapters serves the slots below api.AdaptersPrefix, which is cut off. It
	// bounds bodies and times itself, and finds what the peer may do by Granted.
	Adapters http.Handler
	Version  api.Version
	// Crashes are the latest crash of each program that had one.
	Crashes func() map[string]supervisor.Crash
	// Refusals are the system calls that were refused to a program, by kind.
	Refusals func(program string) []supervisor.Refusal
	// Try runs a command within the bounds of a program.
	Try func(ctx context.Context, spec *program.Spec, argv []string) (supervisor.Trial, error)
	// Audit records who asked for what; nil records nothing.
	Audit *audit.Log
	// Wrap is put around everything that is served; nil for nothing. Each handler
	// names its route by exchange.SetRoute.
	Wrap func(http.Handler) http.Handler

	// Watch tells when the file of the socket may be another one, so that it can
	// be published anew. Without it the files are not looked at.
	Watch func(path string) PathWatch

	// UID is agentinit's own user: it and root may change things. Members of
	// GID may read.
	UID, GID uint32

	Limits Limits
}

// Limits bound what peers can take. The zero value of a field is its default.
type Limits struct {
	Connections int           // all at once; default 640, or a quarter of RLIMIT_NOFILE if less
	Guests      int           // of supervised programs, among them; default a tenth
	Header      time.Duration // for a request's header; default 5 s
	Body        time.Duration // for a whole request; default 10 s
	Idle        time.Duration // between requests; default 30 s
	Write       time.Duration // for an answer, and a guest's line of a stream; default 30 s
	Wait        time.Duration // for a start, stop, restart or wait; default 10 min
}

const (
	maxHeader = 16 << 10 // bytes of a request's header, target included
	maxBody   = 64 << 10 // bytes of a request's body
)

func (l Limits) withDefaults() Limits {
	setDefault(&l.Connections, min(640, descriptors()/4))
	setDefault(&l.Guests, max(1, l.Connections/10))
	setDefault(&l.Header, 5*time.Second)
	setDefault(&l.Body, 10*time.Second)
	setDefault(&l.Idle, 30*time.Second)
	setDefault(&l.Write, 30*time.Second)
	setDefault(&l.Wait, 10*time.Minute)
	return l
}

// descriptors is how many file descriptors this process may have: connections
// must leave enough of them to start programs.
func descriptors() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 256
	}
	return int(min(limit.Cur, 1<<20))
}

func setDefault[T int | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}
