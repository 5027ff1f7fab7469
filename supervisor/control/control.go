// Package control owns the control socket: who may connect, who may do what,
// one table of routes, and the translation between the wire and the supervisor.
//
// It must not act on processes itself, or decide what a program's state means for other programs. A
// peer that is slow, or many peers, or large requests must not affect the supervisor's loop: every
// input, wait and connection here is bounded.
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

// Supervisor is what control needs of the loop. A change must be visible in Snapshot before its
// event is published: a waiter reads the snapshot again when it sees the event.
//
// The four requests return when the loop has taken or refused them; control waits for the outcome
// itself. A refusal is *supervisor.Refused or *supervisor.UnknownProgram, joined if there are
// several. Any other error is about all programs.
type Supervisor interface {
	Snapshot() supervisor.Snapshot
	// Started is closed when the start of the box is over.
	Started() <-chan struct{}
	Start(ctx context.Context, names ...string) error
	// StartAll is Start in the order of the boot.
	StartAll(ctx context.Context, names ...string) error
	// RunNow starts a run, also of schedules.
	RunNow(ctx context.Context, names ...string) error
	Stop(ctx context.Context, names ...string) error
	Restart(ctx context.Context, names ...string) error
	// RestartAll stops all of them and then calls StartAll.
	RestartAll(ctx context.Context, names ...string) error
	Signal(ctx context.Context, signal string, names ...string) error
	// Shutdown asks for an orderly stop of the whole box and returns at once.
	Shutdown(reason string)
}

var (
	_ Supervisor = (*supervisor.Supervisor)(nil)
	_ Logs       = (*logs.Plane)(nil)
)

// Logs reads captured output; logs.Plane is one. A slow reader must not delay other clients.
type Logs interface {
	Read(ctx context.Context, q logs.Query) iter.Seq[logs.Line]
	// Troubles says why log files take no output now, by program.
	Troubles() map[string]error
	// Reopen closes every log file and opens it again by its path. It does not wait.
	Reopen()
}

// Applier works on the manifest of the running box. For an invalid manifest it changes nothing and
// returns an *api.Error of CodeInvalid with the findings.
type Applier interface {
	// Plan returns the plan in force as JSON.
	Plan(ctx context.Context) ([]byte, error)
	Apply(ctx context.Context, dryRun bool) (api.ApplyResult, error)
	// Manifest returns every value in force with its source, and the findings about the manifest.
	// Secrets are redacted.
	Manifest(ctx context.Context) (api.Manifest, error)
}

// Readiness is the readiness of the box. A change must be visible in Report before its event is
// published.
type Readiness interface {
	Report() api.Readiness
}

// BootRecord is bootstrap's record of the boot.
type BootRecord interface {
	Boot() api.Boot
	// Previous is the record of the boot before this one; the error says why there
	// is none.
	Previous() (api.Boot, error)
}

// LogLevel reads and changes the level of agentinit's own log. Set refuses an unknown level.
type LogLevel interface {
	Level() string
	SetLevel(level string) error
}

// Config is what a Server works with. Bridge, Audit, Wrap and Watch may be nil; the routes of Bridge and
// Audit then answer CodeUnsupported.
type Config struct {
	Supervisor Supervisor
	Events     *event.Bus
	// Owner tells to which supervised program's tree a process belongs. It is called once for each
	// connection. It must not read what the process can stall, such as its memory and files.
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
	// Bounds are the limits of processes and memory that are in force for a run. It must answer from
	// memory, because every status calls it for each program.
	Bounds func(program string, run uint64) []api.ProgramLimit
	// Bridge takes the connections of orchestrator hosts.
	Bridge Bridge
	// Probes serves /livez, /ready, /health, /metrics and /v1/meta.
	Probes http.Handler
	// Adapters serves the slots below api.AdaptersPrefix, which is cut off. It limits bodies and
	// times itself, and calls Granted for the rights of the peer.
	Adapters http.Handler
	Version  api.Version
	// Crashes are the latest crash of each program that had one.
	Crashes func() map[string]supervisor.Crash
	// Refusals are the system calls that were refused to a program, by kind.
	Refusals func(program string) []supervisor.Refusal
	// Try runs a command with the restrictions of a program.
	Try func(ctx context.Context, spec *program.Spec, argv []string) (supervisor.Trial, error)
	// Audit records who requested what; nil records nothing.
	Audit *audit.Log
	// Wrap wraps the whole handler; nil means no wrapper. Each handler gives its route to
	// exchange.SetRoute.
	Wrap func(http.Handler) http.Handler

	// Watch reports when the file of the socket may have been replaced, so that the socket can be
	// published again. Without it the files are not checked.
	Watch func(path string) PathWatch

	// UID is agentinit's own user: this user and root may make changes. Members of GID may read.
	UID, GID uint32

	Limits Limits
}

// Limits bound what peers can use. A zero field means its default.
type Limits struct {
	Connections int           // all at once; default 640, or a quarter of RLIMIT_NOFILE if less
	Guests      int           // of programs without control = true, and as many of those with it, included in Connections; default a tenth
	LogGuests   int           // of programs without control = true that read the logs, and as many of those with it; default 8
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
	setDefault(&l.LogGuests, 8)
	setDefault(&l.Header, 5*time.Second)
	setDefault(&l.Body, 10*time.Second)
	setDefault(&l.Idle, 30*time.Second)
	setDefault(&l.Write, 30*time.Second)
	setDefault(&l.Wait, 10*time.Minute)
	return l
}

// descriptors is how many file descriptors this process may have. Connections must leave enough of
// them for the start of programs.
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
