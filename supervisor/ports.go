package supervisor

import (
	"context"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Processes starts, signals and watches processes. Start, Signal, Kill, Rename and Forget are
// called outside the loop and may block; SignalSoon is called outside the loop too. Calls for one
// program never overlap, and keep the order in which the loop made them.
type Processes interface {
	// Start returns when the run was exec'ed, or an error that says why not. An error with a method
	// ShellStatus() int gives the status that a shell would report.
	Start(spec *program.Spec, run uint64) (pid int, err error)
	// SignalSoon sends the signals of several programs without searching for processes, which would
	// take longer than the rest of a stop. It tells for each whether it was sent; the processes that
	// had to be searched for get theirs later. The others got none: they need Signal. It
	// must not block, because the programs wait for each other.
	SignalSoon(requests []SignalRequest) (sent []bool)
	// Signal sends a signal to all processes that were in the scope at the time asked. Later
	// processes get it too, if they are found.
	Signal(r SignalRequest) error
	// Kill sends KILL to all processes in the run's kill scope.
	Kill(name string, run uint64) error
	// Stopping says that agentinit is stopping the run, and why. If why is "", the stop was requested,
	// and a run that then ends as requested is no crash. It may be called again.
	Stopping(name string, run uint64, why string)
	// Rename gives the program was the name name, including its run. Notices of runs that began
	// before may have either name.
	Rename(was, name string)
	// Forget drops what is kept about a removed program. If a program of that name is added again,
	// it starts only after Forget.
	Forget(name string)
	// Notices is the stream of ended runs. It is never closed while the supervisor runs.
	Notices() <-chan Notice
}

// SignalRequest asks for a signal to a run.
type SignalRequest struct {
	Program string
	Run     uint64
	Signal  string // without "SIG"
	Scope   program.KillScope
	Asked   time.Time
}

// Notice says that a leader has ended (Exit is set), or that no process of its run is left (Exit is
// nil).
type Notice struct {
	Program string
	Run     uint64
	Exit    *program.Exit
}

// Prober watches the readiness and health that a program declares. Both methods return at once.
// report may be called from any goroutine until stop has returned; later reports are ignored.
type Prober interface {
	// Ready reports Ready once. Until it is stopped, it also reports what the program says about
	// itself (Text, Extend).
	Ready(spec *program.Spec, run uint64, report func(Report)) (stop func())
	// Health reports Unhealthy after enough failures in a row, and Healthy when the checks pass
	// again.
	Health(spec *program.Spec, run uint64, report func(Report)) (stop func())
}

// Report is one result of a probe.
type Report struct {
	Kind   ReportKind
	Reason string        // of Unhealthy, Waiting and Withdrawn
	Extend time.Duration // of Extend
	Text   string        // of Text
	PID    int           // of Main
}

// ReportKind is the kind of a Report.
type ReportKind uint8

// The kinds of report.
const (
	ReportReady     ReportKind = iota
	ReportHealthy              // the health checks pass again
	ReportUnhealthy            // they have failed often enough
	ReportExtend               // the program needs more time (EXTEND_TIMEOUT_USEC)
	ReportWaiting              // why the program is not ready yet
	ReportText                 // the program describes its status (STATUS=)
	ReportMain                 // the program has another main process (MAINPID=)
	ReportWithdrawn            // the program says that it is not ready any more; without Reason: that it is ready again
)

// HookRunner runs the hooks of a program. Run is called outside the loop, blocks until the command
// and its tree have ended, and ends soon after ctx.
type HookRunner interface {
	Run(ctx context.Context, spec *program.Spec, run uint64, kind program.HookKind) error
}
