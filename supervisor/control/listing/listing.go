// Package listing is pure: how a program is described in a list for people, and the table that
// `agentctl status` prints. agentctl and the control server share it, so that there is one form of
// the table.
//
// It must not read or write anything, and time is an argument.
package listing

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/internal/table"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Program is a program with the use of its processes.
type Program struct {
	api.Program
	// Share is the CPU use since the last reading; 1 is a whole processor, -1 means unknown.
	Share float64 `json:"-"`
}

// CPU is the CPU time of all runs in seconds, -1 if it is not known.
func (p Program) CPU() float64 {
	if p.Usage == nil {
		return -1
	}
	return p.Usage.CPUSeconds
}

// Memory is what the processes have now, in bytes, -1 if it is not known.
func (p Program) Memory() int64 {
	if p.Usage == nil {
		return -1
	}
	return p.living().MemoryBytes
}

// living is what the processes use. A reading can be older than the end of the program, which then
// has no processes any more.
func (p Program) living() api.ProgramUsage {
	switch p.State {
	case program.Stopped.String(), exited, fatal:
		return api.ProgramUsage{}
	}
	if p.Usage == nil {
		return api.ProgramUsage{}
	}
	return *p.Usage
}

// The states that several functions compare with.
var running, backoff, exited, fatal = program.Running.String(), program.Backoff.String(), program.Exited.String(), program.Fatal.String()

// AllRunning tells whether each program is running. A oneshot that has completed and a schedule
// before, in and after a run count as running.
func AllRunning(programs []Program) bool {
	return !slices.ContainsFunc(programs, func(p Program) bool { return !runs(p) })
}

func runs(p Program) bool {
	switch p.Display() {
	case running, program.ShownCompleted, program.ShownScheduled:
		return true
	case program.Starting.String(): // a schedule is never RUNNING: its run goes on
		return p.Schedule != nil
	case program.Stopping.String(): // so does a schedule whose run is stopped, if its next run will come
		return p.Schedule != nil && !p.Schedule.Paused
	case exited, fatal: // the latest run of a schedule has failed, but its next run will come
		return p.Schedule != nil && p.PID == 0
	}
	return false
}

// Table fits 80 columns: INFO gets the rest of the line.
func Table(programs []Program, now time.Time, wide bool, t table.Terminal) string {
	now = now.Round(0) // without the monotonic clock, as in JSON: a client computes from wall clocks
	nameWidth := 24
	if t.Width > 0 && t.Width < 100 {
		nameWidth = 14
	}
	columns := []table.Column{
		{Title: "NAME", Max: nameWidth}, {Title: "STATE"}, {Title: "PID", Right: true}, {Title: "FOR", Right: true},
		{Title: "CPU", Right: true}, {Title: "MEMORY", Right: true}, {Title: "RESTARTS", Right: true},
	}
	if wide {
		columns = append(columns, table.Column{Title: "TYPE"}, table.Column{Title: "RUN", Right: true}, table.Column{Title: "PROCS", Right: true},
			table.Column{Title: "THREADS", Right: true}, table.Column{Title: "FILES", Right: true}, table.Column{Title: "LAST EXIT", Max: 36})
	}
	columns = append(columns, table.Column{Title: "INFO"})
	rows := make([][]table.Cell, len(programs))
	for i, p := range programs {
		state, colour := State(p.Program)
		rows[i] = append(make([]table.Cell, 0, len(columns)),
			table.Cell{Text: escape.Text(p.Name)}, table.Cell{Text: state, Style: colour}, table.Cell{Text: number(int64(p.PID))},
			table.Cell{Text: api.Duration(now.Sub(p.Since))}, table.Cell{Text: cpuText(p)}, table.Cell{Text: MemoryText(p)},
			table.Cell{Text: strconv.FormatUint(p.Restarts, 10)})
		if wide {
			rows[i] = append(rows[i], wideCells(p)...)
		}
		rows[i] = append(rows[i], table.Cell{Text: escape.Text(Info(p.Program, now))})
	}
	return table.Layout(columns, rows, t)
}

func wideCells(p Program) []table.Cell {
	usage := p.living()
	exit := "-"
	if p.LastExit != nil {
		exit = p.LastExit.String()
	}
	return []table.Cell{
		{Text: cmp.Or(p.Type, "-")}, {Text: strconv.FormatUint(p.Run, 10)}, {Text: number(int64(usage.Processes))},
		{Text: number(int64(usage.Threads))}, {Text: number(int64(usage.OpenFiles))}, {Text: escape.Text(exit)},
	}
}

// number is "-" for 0.
func number(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

// cpuText is the share of a processor if two readings are known, otherwise the CPU time.
func cpuText(p Program) string {
	switch {
	case p.Share >= 0:
		return fmt.Sprintf("%.1f%%", 100*p.Share)
	case p.CPU() <= 0:
		return "-"
	case p.CPU() < 10:
		return fmt.Sprintf("%.1fs", p.CPU())
	}
	return api.Duration(time.Duration(p.CPU() * float64(time.Second)))
}

// MemoryText is the memory of a program, "-" if there is none.
func MemoryText(p Program) string {
	if p.Memory() <= 0 {
		return "-"
	}
	return Bytes(p.Memory())
}

// Bytes has at most six characters and binary units, like free -h.
func Bytes(n int64) string {
	value, units := float64(n), "BKMGTPE"
	for value >= 1023.5 && len(units) > 1 {
		value, units = value/1024, units[1:]
	}
	if units[0] == 'B' || value >= 99.95 {
		return fmt.Sprintf("%.0f%c", value, units[0])
	}
	return fmt.Sprintf("%.1f%c", value, units[0])
}

// State is the state for people, with its colour.
func State(p api.Program) (state, colour string) {
	switch p.Display() {
	case running:
		if !p.Ready || !p.Healthy {
			return p.Display(), table.Yellow
		}
		return p.Display(), table.Green
	case program.Starting.String(), program.Stopping.String(), backoff, program.ShownPaused:
		return p.Display(), table.Yellow
	case fatal, exited:
		return p.Display(), table.Red
	case program.ShownCompleted:
		return p.Display(), table.Green
	}
	return p.Display(), table.Dim
}

// Info is what else there is to say about a program. Programs choose parts of it: escape it before
// printing it on a terminal.
func Info(p api.Program, now time.Time) string {
	var text string
	switch {
	case p.State == running && !p.Ready:
		text = joined("not ready", p.Reason)
	case p.State == running && !p.Healthy:
		text = joined("not healthy", p.Reason)
	case p.State != running:
		text = p.Reason
		if text == "" && p.LastExit != nil {
			text = p.LastExit.String()
		}
	}
	if p.State == backoff && p.Deadline != nil {
		text = joined(text, api.Duration(p.Deadline.Sub(now))+" left") // the reason says "starts again 4s later"
	}
	// The reason of a resting schedule already contains this.
	if s := p.Schedule; s != nil && s.NextRun != nil && p.PID != 0 {
		text = joined(text, "next run at "+s.NextRun.Format(time.RFC3339))
	}
	if p.Text != "" {
		text = joined(text, p.Text)
	}
	if p.LogTrouble != "" {
		text = joined(text, "logs: "+p.LogTrouble)
	}
	return text
}

func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}
