package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// maxReport is the most that Kubernetes accepts as termination message; the last line of the log
// has the same limit. reportFrame is what that line adds to the report.
const (
	maxReport   = bootstrap.MaxTerminationReport
	reportFrame = 512
)

// finalStatus alone decides the exit status of the process. It is the status of the boot if the
// boot ended the box, otherwise that of the supervisor.
func finalStatus(bootErr error, result supervisor.Result) int {
	if bootEndedIt(bootErr, result) {
		return int(bootstrap.ExitCode(bootErr))
	}
	return result.Code
}

// bootEndedIt tells whether the boot is the reason why the box ended. An interrupted boot is not:
// the supervisor knows the cause. A boot that failed after an essential program had ended is not
// either.
func bootEndedIt(bootErr error, result supervisor.Result) bool {
	if bootErr == nil || result.Cause.Kind == supervisor.CauseEssential || ranOut(result) {
		return false
	}
	interrupted := bootstrap.ExitCode(bootErr) == bootstrap.ExitOK && result.Cause.Kind != ""
	return !interrupted
}

// ranOut tells whether the box ended because no program was left to run, with the status of a
// program that has run. If a program is FATAL, the boot reports that instead.
func ranOut(result supervisor.Result) bool {
	return result.Cause.Kind == supervisor.CauseAllExited && slices.ContainsFunc(result.Programs, func(p supervisor.Status) bool {
		return p.Name == result.Cause.Program && p.State == program.Exited
	})
}

// report tells why the box ended.
func (b *box) report(code int, bootErr error, result supervisor.Result) bootstrap.TerminationReport {
	r := bootstrap.TerminationReport{
		Cause: result.Cause.String(), Program: result.Cause.Program, Code: code,
		At: time.Now(), UptimeMS: time.Since(b.started).Milliseconds(), Version: version,
	}
	if bootEndedIt(bootErr, result) {
		r.Cause = bootErr.Error()
		if failure, ok := errors.AsType[*bootstrap.Failure](bootErr); ok {
			r.Phase, r.Program, r.Logged = failure.Phase, cmp.Or(failure.Program, r.Program), failure.Summary()
		}
	}
	programs := make([]*supervisor.Status, len(result.Programs))
	for i := range programs {
		programs[i] = &result.Programs[i]
	}
	slices.SortStableFunc(programs, func(x, y *supervisor.Status) int {
		return cmp.Compare(b.rank(x, r.Program), b.rank(y, r.Program))
	})
	r.Programs = make([]bootstrap.ProgramEnd, 0, len(programs))
	for _, p := range programs {
		end := b.programEnd(p)
		if p.Name == result.Cause.Program {
			end.Reason = result.Cause.Detail // the cause of the shutdown, not the stop that followed
		}
		r.Programs = append(r.Programs, end)
	}
	for i := range r.Most(maxReport) {
		r.Programs[i].Stderr = b.lastStderr(programs[i])
	}
	return r
}

// rank orders the programs for a reader of the report: first the program that ended the box, then
// those that gave up, then those that ended badly.
func (b *box) rank(p *supervisor.Status, culprit string) int {
	switch {
	case p.Name == culprit:
		return 0
	case p.State == program.Fatal:
		return 1
	case p.LastExit != nil && p.LastExit.Status() != 0:
		return 2
	}
	return 3
}

// stderrLines is how many of a program's last lines are offered to the report, which drops what
// does not fit.
const stderrLines = 10

func (b *box) lastStderr(p *supervisor.Status) (lines []string) {
	query := logs.Query{Programs: p.Names(), Streams: []logs.Stream{logs.Stderr}, Lines: stderrLines, Run: p.Run, Cut: logs.ExcerptLine}
	for line := range b.plane.Read(b.stopped, query) {
		lines = append(lines, line.Text)
	}
	return lines
}

func (b *box) programEnd(p *supervisor.Status) bootstrap.ProgramEnd {
	end := bootstrap.ProgramEnd{Name: p.Name, State: p.State.String(), Reason: p.Reason}
	if x := p.LastExit; x != nil {
		end.Exit = fmt.Sprintf("exit %d", x.Code)
		if x.Signal != "" {
			end.Exit = "signal " + x.Signal
		}
		if x.Cause != "" {
			end.Exit = x.Cause // it is a whole description
		}
	}
	return end
}

// say writes the termination report to the file that Kubernetes reads, and as the last line of the
// log.
func (b *box) say(r bootstrap.TerminationReport) {
	path := b.roots.TerminationLog(b.getenv)
	short := r
	short.Cause = cmp.Or(r.Logged, r.Cause)
	short = short.Fit(maxReport - reportFrame)
	fields := map[string]any{"message": short.Line(), "report": short}
	render := func() []byte { return []byte(b.plane.Mask(string(r.Render(maxReport)))) }
	if _, err := bootstrap.WriteTerminationReport(path, render); err != nil {
		fields["termination_log_error"] = err.Error()
	}
	// A box that failed says why at every log level: the cause may have no other event.
	level := event.Info
	if r.Code != 0 {
		level = event.Error
	}
	b.bus.Publish(event.Event{Level: level, Stage: "supervisor", Name: "Terminated", Fields: fields})
}
