package supervisor

import (
	"context"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/signame"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// EventCrashed: a run of a program ended in an unexpected way.
const EventCrashed = "ProgramCrashed"

// lastLines is how much of its output a crash record keeps.
const lastLines = 50

// Crash is the latest end of a run of a program that was not expected.
type Crash struct {
	Program string        `json:"program"`
	Run     uint64        `json:"run"`
	PID     int           `json:"pid"`
	Time    time.Time     `json:"time"`
	Uptime  time.Duration `json:"uptime"`
	Exit    program.Exit  `json:"exit"`
	// Killed says that agentinit sent the SIGKILL.
	Killed bool `json:"killed,omitempty"`
	// CoreAt is the path of the core file, or the program that received the core, by core_pattern
	// (core(5)).
	CoreAt string      `json:"core_at,omitempty"`
	Rusage proc.Rusage `json:"rusage"`
	Output []logs.Line `json:"output,omitempty"` // the last lines, of both streams
}

// Crashes returns the latest crash of each program that had one.
func (s *System) Crashes() map[string]Crash {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]Crash, len(s.crashes))
	for name, c := range s.crashes {
		all[name] = *c
	}
	return all
}

// drainLimit is how long a crash record waits for the last lines.
const drainLimit = time.Second

// crashed records an end that was not expected. The caller holds mu.
func (s *System) crashed(r *systemRun, e proc.Exit, exit program.Exit, oom bool) {
	if program.Expected(r.spec, exit) || r.asked && asAsked(r.spec, exit, e.ByUs) {
		return
	}
	c := &Crash{
		Program: r.key.name, Run: r.key.run, PID: e.PID, Time: e.Time, Uptime: exit.Lived,
		Exit: exit, Killed: e.ByUs, Rusage: e.Rusage,
	}
	if exit.Core {
		c.CoreAt = coreAt(r.spec, e.PID)
	}
	s.crashes[c.Program] = c
	fields := map[string]any{
		"pid": c.PID, "reason": exit.String(), "uptime_ms": c.Uptime.Milliseconds(),
		"cpu_ms": (c.Rusage.User + c.Rusage.System).Milliseconds(), "oom": oom,
	}
	if c.Rusage.MaxRSS > 0 {
		fields["max_rss_bytes"] = c.Rusage.MaxRSS
	}
	if c.CoreAt != "" {
		fields["core"] = c.CoreAt
	}
	s.cfg.Bus.Publish(event.Event{Level: event.Warn, Stage: stage, Name: EventCrashed, Program: c.Program, Run: c.Run, Fields: fields})
	if r.capture == nil {
		return
	}
	s.draining.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
		defer cancel()
		select {
		case <-r.capture.Done():
		case <-ctx.Done():
		case <-s.stop:
		}
		output := r.capture.Tail(lastLines)
		s.mu.Lock()
		defer s.mu.Unlock()
		c.Output = output
	})
}

// asAsked tells whether a run that was asked to stop has ended by a signal that stops programs, or
// with the status of such a signal. A SEGV during the stop is still a crash.
func asAsked(spec *program.Spec, exit program.Exit, byUs bool) bool {
	number := exit.SignalNumber
	if number == 0 {
		number = exit.Code - 128 // shells and many programs report a signal like this
	}
	switch sig := syscall.Signal(number); sig {
	case syscall.SIGKILL:
		return byUs
	case syscall.SIGTERM, syscall.SIGINT: // a stop_command may cause these too
		return true
	default:
		return slices.ContainsFunc(program.StopLadder(spec), func(rung program.StopStep) bool {
			sent, err := signame.Parse(rung.Signal)
			return err == nil && sent == sig
		})
	}
}

// coreAt says where the kernel has put a core, as far as core_pattern tells. %p and %e are filled
// in; other specifiers become "*".
func coreAt(spec *program.Spec, pid int) string {
	text, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		return ""
	}
	pattern := strings.TrimSpace(string(text))
	if command, piped := strings.CutPrefix(pattern, "|"); piped {
		command, _, _ = strings.Cut(command, " ")
		return "given to " + command
	}
	var name string
	if len(spec.Argv) > 0 {
		name = path.Base(spec.Argv[0])
	}
	const commLen = 15 // TASK_COMM_LEN - 1 (proc_pid_comm(5))
	at := expandCore(pattern, strconv.Itoa(pid), name[:min(len(name), commLen)])
	if uses, err := os.ReadFile("/proc/sys/kernel/core_uses_pid"); err == nil &&
		strings.TrimSpace(string(uses)) == "1" && !strings.Contains(pattern, "%p") {
		at += "." + strconv.Itoa(pid)
	}
	return fromDirectory(spec.Directory, at)
}

// fromDirectory makes a name absolute that the kernel takes from the working directory of a program:
// its own, or else that of agentinit.
func fromDirectory(directory, name string) string {
	for _, dir := range []string{directory, workingDirectory()} {
		if !path.IsAbs(name) {
			name = path.Join(dir, name)
		}
	}
	return name
}

// workingDirectory is agentinit's. The system call, unlike os.Getwd, looks at no file, so it never
// waits for a file system that does not answer.
func workingDirectory() string {
	dir, err := syscall.Getwd()
	if err != nil {
		return "/"
	}
	return dir
}

func expandCore(pattern, pid, name string) string {
	var b strings.Builder
	for i := 0; i < len(pattern); i++ {
		if pattern[i] != '%' || i+1 == len(pattern) {
			b.WriteByte(pattern[i])
			continue
		}
		i++
		switch pattern[i] {
		case '%':
			b.WriteByte('%')
		case 'p':
			b.WriteString(pid)
		case 'e':
			b.WriteString(name)
		default:
			b.WriteByte('*')
		}
	}
	return b.String()
}
