package supervisor

import (
	"context"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Processes starts, signals and watches processes. Start, Signal, Kill, Rename and Forget are
// called beside the loop and may block; calls for one program never overlap and
// come in the order in which the loop wanted them.
type Processes interface {
	// Start returns when the run has been exec'ed, or why it could not be. An
	// error with a method ShellStatus() int says what a shell would report.
	Start(spec *program.Spec, run uint64) (pid int, err error)
	// Signal sends a signal (without "SIG") to what scope covered of the run when it
	// was asked for, and to what has come since as far as it is seen.
	Signal(name string, run uint64, signal string, scope program.KillScope, asked time.Time) error
	// Kill sends KILL to everything in the run's kill scope.
	Kill(name string, run uint64) error
	// Asked says that the end of the run was requested: it is no crash if the
	// run ends as it was asked to. It may be said again.
	Asked(name string, run uint64)
	// Rename makes name of what was is, its run included. Notices of runs that began
	// before may have either name.
	Rename(was, name string)
	// Forget drops what is kept of a program that was removed. One of that name
	// that is added again starts only after it.
	Forget(name string)
	// Notices is the stream of what ended. It is never closed while the
	// supervisor runs.
	Notices() <-chan Notice
}

// Notice says that a leader has ended (Exit set), or that nothing of its run is
// left (Exit nil).
type Notice struct {
	Program string
	Run     uint64
	Exit    *program.Exit
}

// Prober watches what a program declares of its readiness and health. Both
// methods return at once; report may be called from any goroutine until stop has
// returned, and later reports are ignored.
type Prober interface {
	// Ready reports Ready once, and as long as it is not stopped what the program
	// says of itself (Text, Extend).
	Ready(spec *program.Spec, run uint64, pid int, report func(Report)) (stop func())
	// Health reports Unhealthy after enough failures in a row and Healthy when the
	// checks hold again.
	Health(spec *program.Spec, run uint64, pid int, report func(Report)) (stop func())
}

// Report is one thing that a probe found out.
type Report struct {
	Kind   ReportKind
	Reason string        // of Unhealthy and Waiting
	Extend time.Duration // of Extend
	Text   string        // of Text
}

// ReportKind is what a Report says.
type ReportKind uint8

// The kinds of report.
const (
	ReportReady     ReportKind = iota
	ReportHealthy              // the health checks hold again
	ReportUnhealthy            // they have failed often enough
	ReportExtend               // the program needs more time (EXTEND_TIMEOUT_USEC)
	ReportWaiting              // why the program is not ready yet
	ReportText                 // the program describes its status (STATUS=)
)

// HookRunner runs the commands beside a program's life. Run is called beside the
// loop, blocks until the command and its tree are gone, and ends soon after ctx.
type HookRunner interface {
	Run(ctx context.Context, spec *program.Spec, run uint64, kind program.HookKind) error
}
