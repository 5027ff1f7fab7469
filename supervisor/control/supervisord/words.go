// Package supervisord answers as supervisord 4 does: it has that program's names, states and
// descriptions of programs, its XML-RPC interface (http://supervisord.org/api.html), and its events with
// the protocol of event listeners (http://supervisord.org/events.html). With it, the supervisorctl of
// supervisord, scripts that use XML-RPC, and event listeners work with agentinit.
//
// It knows agentinit only through the control API and the events, and must not decide about rights: the
// API does so for each request.
package supervisord

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// split returns the group of a program and its name in the group: that of the group, or the number of
// the instance.
func split(name string) (group, process string) {
	group, instance, isInstance := strings.Cut(name, ":")
	if !isInstance {
		return group, group
	}
	return group, instance
}

// processName is the name of a program in its group.
func processName(p api.Program) string {
	_, process := split(p.Name)
	return process
}

// Sort puts programs in supervisord's order: by group, then by name.
func Sort(programs []api.Program) {
	slices.SortFunc(programs, func(a, b api.Program) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(processName(a), processName(b)))
	})
}

// Chosen are the programs that a name stands for: a process, or a group.
type Chosen struct {
	Word     string // the group's name, if it is one
	Group    bool
	Programs []api.Program
}

// Choose reads a name as supervisord does: NAME and GROUP:NAME are one process, GROUP: and GROUP:*
// are a group. There are no globs and prefixes.
func Choose(programs []api.Program, word string) Chosen {
	group, process, qualified := strings.Cut(word, ":")
	c := Chosen{Word: word, Group: qualified && (process == "" || process == "*")}
	if c.Group {
		c.Word = group
	} else if !qualified {
		process = group
	}
	for _, p := range programs {
		if p.Group == group && (c.Group || processName(p) == process) {
			c.Programs = append(c.Programs, p)
		}
	}
	return c
}

// At tells whether a program is in one of the states.
func At(p api.Program, states ...program.State) bool {
	return slices.ContainsFunc(states, func(s program.State) bool { return p.State == s.String() })
}

// Description describes the state of a program, as the last column of supervisorctl's status. It has
// no control characters.
func Description(p api.Program, now time.Time, zone *time.Location) string {
	switch {
	case At(p, program.Running):
		return fmt.Sprintf("pid %d, uptime %s", p.PID, uptime(now.Sub(started(p))))
	case At(p, program.Backoff, program.Fatal):
		return escape.Text(cmp.Or(p.Reason, fmt.Sprintf("unknown error (try %q)", "tail "+p.Name)))
	case !At(p, program.Stopped, program.Exited):
		return ""
	case p.StartedAt == nil:
		return "Not started"
	}
	ended := p.Since
	if p.EndedAt != nil {
		ended = *p.EndedAt
	}
	return ended.In(zone).Format("Jan 02 03:04 PM")
}

func started(p api.Program) time.Time {
	if p.StartedAt != nil {
		return *p.StartedAt
	}
	return p.Since
}

// uptime writes a duration as Python does: 1 day, 2:03:04.
func uptime(d time.Duration) string {
	n := int(max(d, 0) / time.Second)
	text := fmt.Sprintf("%d:%02d:%02d", n/3600%24, n/60%60, n%60)
	switch days := n / 86400; days {
	case 0:
		return text
	case 1:
		return "1 day, " + text
	default:
		return fmt.Sprintf("%d days, %s", days, text)
	}
}

// Raw is a line as it was in the output.
func Raw(l api.LogLine) string {
	if l.Truncated { // it goes on in the next one
		return string(l.Bytes())
	}
	return string(l.Bytes()) + "\n"
}

// AppendTail adds a line to an output, of which it keeps the last n bytes.
func AppendTail(output []byte, l api.LogLine, n int) []byte {
	output = append(output, Raw(l)...)
	return output[max(0, len(output)-n):]
}
