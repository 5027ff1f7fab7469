package control

import (
	"context"
	"fmt"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// lastWords is how many lines of output an explanation shows.
const lastWords = 5

// troubled tells whether the last output of a program may explain its state.
func troubled(p supervisor.Status) bool {
	switch p.State {
	case program.Backoff, program.Fatal:
		return true
	case program.Starting:
		return p.Restarts > 0 || p.Spec != nil && len(p.Spec.Readiness.Probes) > 0
	case program.Exited:
		return !p.Completed
	}
	return p.State == program.Running && !(p.Ready && p.Healthy)
}

// lastOutput is the last output of the latest run.
func (s *Server) lastOutput(ctx context.Context, p supervisor.Status) []api.LogLine {
	if p.Run == 0 {
		return nil
	}
	var out []api.LogLine
	for line := range s.cfg.Logs.Read(ctx, logs.Query{Programs: p.Names(), Run: p.Run, Lines: lastWords, Cut: logs.ExcerptLine}) {
		out = append(out, toLogLine(line, s.cfg.Version.BootID))
	}
	return out
}

// ending describes in words how the latest run ended. It is empty while a run lasts.
func ending(p supervisor.Status) string {
	e := p.LastExit
	if e == nil || p.PID != 0 {
		return ""
	}
	text := e.String()
	if hint := meaning(e); hint != "" && e.Cause == "" {
		text += " (" + hint + ")"
	}
	if p.EndedAt != nil && p.StartedAt != nil && p.EndedAt.After(*p.StartedAt) {
		text += ", " + api.Duration(p.EndedAt.Sub(*p.StartedAt)) + " after its start"
	}
	return text
}

// exitMeanings are the conventional meanings of exit statuses: sh (POSIX 2.8.2), sysexits.h.
var exitMeanings = map[int]string{
	64: "command line usage error", 65: "data format error", 66: "cannot open input", 69: "service unavailable",
	70: "internal software error", 71: "system error", 73: "cannot create output file", 74: "input/output error",
	75: "temporary failure", 77: "permission denied", 78: "configuration error",
	126: "command cannot be executed", 127: "command not found",
	130: "interrupted, SIGINT", 134: "aborted, SIGABRT", 137: "killed, SIGKILL; often by the kernel for lack of memory",
	139: "invalid memory access, SIGSEGV", 141: "wrote to a closed pipe, SIGPIPE", 143: "terminated, SIGTERM",
}

var signalMeanings = map[string]string{
	"SEGV": "invalid memory access", "ABRT": "the program aborted itself", "BUS": "invalid memory access, or a file that shrank",
	"ILL": "illegal instruction", "FPE": "arithmetic error, such as a division by zero", "PIPE": "it wrote to a closed pipe",
	"XCPU": "CPU time limit", "XFSZ": "file size limit", "SYS": "a system call that the sandbox forbids",
	"QUIT": "it was asked to quit and to leave a core dump",
}

func meaning(e *program.Exit) string {
	if e.Signal != "" {
		return signalMeanings[e.Signal]
	}
	return exitMeanings[e.Code]
}

// advice lists commands to type next, the most useful one first. manifest is the path of the box's, or
// "": without a path, agentctl plan reads the manifest of the directory in which it is typed.
func advice(p supervisor.Status, programs []supervisor.Status, manifest string) []string {
	ask := func(format string) string { return fmt.Sprintf("agentctl "+format, p.Name) }
	unstarted := func() string {
		if manifest == "" {
			return "agentctl plan"
		}
		return "agentctl plan " + escape.Shell(manifest)
	}
	start, restart := "start %s", "restart %s"
	if p.Schedule != nil && p.PID == 0 && p.State != program.Backoff { // between two runs
		restart = "run %s" // because restart is refused, and start as well unless it is paused
		if !p.Schedule.Paused {
			start = restart
		}
	}
	switch {
	case p.Blocked || p.State == program.Stopped && root(p, programs) != p.Name && wants(p):
		return []string{"agentctl why " + root(p, programs), ask(start)}
	case p.State == program.Fatal && (p.Run == 0 || p.LastExit == nil):
		return []string{unstarted(), ask(start)}
	case p.State == program.Fatal:
		return []string{ask("logs %s"), ask(start)}
	case p.State == program.Backoff && p.LastExit == nil:
		return []string{unstarted(), ask(restart)}
	case p.State == program.Backoff, p.State == program.Exited && !p.Completed:
		return []string{ask("logs %s"), ask(restart)}
	case p.State == program.Starting, p.State == program.Running && !(p.Ready && p.Healthy):
		return []string{ask("logs -f %s"), ask("restart %s")}
	case p.State == program.Stopping:
		return []string{ask("logs -f %s"), ask("signal KILL %s")}
	case p.Schedule != nil && p.Schedule.Paused:
		return []string{ask("start %s"), ask("run %s")}
	case p.Schedule != nil && p.PID == 0:
		return []string{ask("run %s")}
	case p.State == program.Stopped:
		return []string{ask("start %s")}
	}
	return nil
}

// wants tells whether a resting program will start when its needs are met.
func wants(p supervisor.Status) bool {
	return p.Queued || p.Spec != nil && p.Spec.Autostart && p.Run == 0
}

// root follows unmet needs to the program that delays p. It is p itself if all its needs are met.
func root(p supervisor.Status, programs []supervisor.Status) string {
	at := api.WhyNeed{Program: p.Name, Needs: unmet(explainNeeds(p, programs, map[string]bool{p.Name: true}))}
	for len(at.Needs) > 0 {
		at = at.Needs[0]
	}
	return at.Program
}
