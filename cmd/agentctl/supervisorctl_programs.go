package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/listing"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// chosen are the programs that a word on the command line stands for: a process, a group, or all.
type chosen struct {
	word     string // the group's name, if it is one
	group    bool
	programs []api.Program
}

func (c chosen) all() bool { return c.group && c.word == "all" }

// choose reads names as supervisorctl does: NAME and GROUP:NAME are one process, GROUP: and GROUP:*
// are a group. There are no globs and prefixes.
func choose(programs []api.Program, words []string) []chosen {
	if slices.Contains(words, "all") {
		return []chosen{{word: "all", group: true, programs: programs}}
	}
	var out []chosen
	for _, word := range words {
		group, process, qualified := strings.Cut(word, ":")
		c := chosen{word: word, group: qualified && (process == "" || process == "*")}
		if c.group {
			c.word = group
		} else if !qualified {
			process = group
		}
		for _, p := range programs {
			if p.Group == group && (c.group || processName(p) == process) {
				c.programs = append(c.programs, p)
			}
		}
		out = append(out, c)
	}
	return out
}

// processName is the name in its group: that of the group, or the number of the instance.
func processName(p api.Program) string {
	_, instance, isInstance := strings.Cut(p.Name, ":")
	if !isInstance {
		return p.Name
	}
	return instance
}

// read returns the state of the box, with the programs in supervisorctl's order.
func (s *supervisorctl) read(ctx context.Context) (api.Status, error) {
	status, err := s.box.Status(ctx)
	slices.SortFunc(status.Programs, func(a, b api.Program) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(processName(a), processName(b)))
	})
	return status, err
}

// unknown says that there is no such group or process.
func (s *supervisorctl) unknown(c chosen, code int) {
	kind := "process"
	if c.group {
		kind = "group"
	}
	s.fail(code, "%s: ERROR (no such %s)", printable(c.word), kind)
}

func (s *supervisorctl) status(ctx context.Context, names []string) error {
	status, err := s.read(ctx)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		names = []string{"all"}
	}
	var shown []api.Program
	for _, c := range choose(status.Programs, names) {
		if len(c.programs) == 0 && !c.all() {
			s.unknown(c, exitUnreachable)
		}
		shown = append(shown, c.programs...)
	}
	fmt.Fprint(s.stdout, oldTable(shown, status.Time, time.Local))
	if slices.ContainsFunc(shown, down) {
		s.code = exitNotRunning
	}
	return nil
}

// down tells whether supervisorctl counts a program as not running. A oneshot that has completed and
// a schedule between two runs do not count, unlike there: their state is as it should be.
func down(p api.Program) bool {
	return at(p, program.Stopped, program.Exited, program.Fatal) && !listing.AllRunning([]listing.Program{{Program: p}})
}

// at tells whether a program is in one of the states.
func at(p api.Program, states ...program.State) bool {
	return slices.ContainsFunc(states, func(s program.State) bool { return p.State == s.String() })
}

// oldTable is the table of supervisorctl's status.
func oldTable(programs []api.Program, now time.Time, zone *time.Location) string {
	width := 30
	for _, p := range programs {
		width = max(width, len(p.Name))
	}
	var b strings.Builder
	for _, p := range programs {
		fmt.Fprintf(&b, "%-*s%-10s%s\n", width+3, printable(p.Name), p.State, oldDescription(p, now, zone))
	}
	return b.String()
}

// oldDescription is the last column.
func oldDescription(p api.Program, now time.Time, zone *time.Location) string {
	switch {
	case at(p, program.Running):
		began := p.Since
		if p.StartedAt != nil {
			began = *p.StartedAt
		}
		return fmt.Sprintf("pid %d, uptime %s", p.PID, oldDuration(now.Sub(began)))
	case at(p, program.Backoff, program.Fatal):
		return printable(cmp.Or(p.Reason, fmt.Sprintf("unknown error (try %q)", "tail "+p.Name)))
	case !at(p, program.Stopped, program.Exited):
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

// oldDuration writes a duration as Python does: 1 day, 2:03:04.
func oldDuration(d time.Duration) string {
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

// act sends one request for all names, so that agentinit can keep the order of dependencies, and
// then passes the outcome for each name to tell. Those of a group are listed in the order of start.
func (s *supervisorctl) act(ctx context.Context, words []string, unknown func(chosen),
	request func(context.Context, api.ActionRequest) (api.ActionResult, error), tell func(chosen, api.Program, api.ProgramResult),
) error {
	status, err := s.box.Status(ctx)
	if err != nil {
		return err
	}
	targets := choose(status.Programs, words)
	var req api.ActionRequest
	for _, c := range targets {
		for _, p := range c.programs {
			req.Names = append(req.Names, p.Name)
		}
	}
	results := make(map[string]api.ProgramResult)
	if len(req.Names) > 0 {
		result, err := request(ctx, req)
		if err != nil {
			return err
		}
		for _, r := range result.Results {
			results[r.Name] = r
		}
		if result.Note != "" {
			line(s.stderr, "%s", printable(result.Note))
		}
	}
	for _, c := range targets {
		if len(c.programs) == 0 && !c.all() {
			unknown(c)
		}
		for _, p := range c.programs {
			if r, concerned := results[p.Name]; concerned {
				tell(c, p, r)
				delete(results, p.Name) // a program that is named twice has one outcome
			}
		}
	}
	return nil
}

func (s *supervisorctl) start(ctx context.Context, names []string) error {
	return s.act(ctx, names, s.notStarted, s.box.Start, s.started)
}

func (s *supervisorctl) notStarted(c chosen) {
	code := exitFailure
	if c.group {
		code = exitArguments
	}
	s.unknown(c, code)
}

// started tells the outcome of a start.
func (s *supervisorctl) started(c chosen, p api.Program, r api.ProgramResult) {
	switch {
	case r.Error != nil:
		why := "abnormal termination"
		if r.Error.Code == api.CodeFailed {
			why = "spawn error"
		}
		s.fail(exitNotStarted, "%s: ERROR (%s)", p.Name, why)
		line(s.stderr, "%s", describe(r.Error))
	case r.Changed:
		line(s.stdout, "%s: started", p.Name)
	case !c.group:
		line(s.stdout, "%s: ERROR (already started)", p.Name)
	}
}

func (s *supervisorctl) stop(ctx context.Context, names []string) error {
	return s.act(ctx, names, func(c chosen) { s.unknown(c, exitFailure) }, s.box.Stop, func(c chosen, p api.Program, r api.ProgramResult) {
		if r.Error != nil {
			s.fail(exitFailure, "%s", describe(r.Error))
			return
		}
		s.stopped(c, p, r.Changed)
	})
}

func (s *supervisorctl) stopped(c chosen, p api.Program, changed bool) {
	switch {
	case changed:
		line(s.stdout, "%s: stopped", p.Name)
	case !c.group:
		line(s.stdout, "%s: ERROR (not running)", p.Name)
	}
}

// restart is one request, not a stop and a start: it also works from within a program that it
// restarts, and a stop of its own could end the box.
func (s *supervisorctl) restart(ctx context.Context, names []string) error {
	again := func(ctx context.Context, req api.ActionRequest) (api.ActionResult, error) {
		if slices.Contains(names, "all") { // stops every program first, and runs no schedule
			req = api.ActionRequest{All: true}
		}
		return s.box.Restart(ctx, req)
	}
	var starts []func()
	err := s.act(ctx, names, func(c chosen) {
		s.unknown(c, exitFailure)
		starts = append(starts, func() { s.notStarted(c) })
	}, again, func(c chosen, p api.Program, r api.ProgramResult) {
		s.stopped(c, p, at(p, program.Running, program.Starting, program.Backoff))
		starts = append(starts, func() { s.started(c, p, r) })
	})
	for _, tell := range starts {
		tell()
	}
	return err
}

func (s *supervisorctl) signal(ctx context.Context, args []string) error {
	known := signalName(args[0])
	send := func(ctx context.Context, req api.ActionRequest) (api.ActionResult, error) {
		if req.Signal = args[0]; known {
			result, err := s.box.Signal(ctx, req)
			if api.CodeOf(err) != api.CodeBadRequest {
				return result, err
			}
			known = false // a number that is too high
		}
		var none api.ActionResult
		for _, name := range req.Names {
			none.Results = append(none.Results, api.ProgramResult{Name: name})
		}
		return none, nil
	}
	return s.act(ctx, args[1:], func(c chosen) { s.unknown(c, exitFailure) }, send, func(c chosen, p api.Program, r api.ProgramResult) {
		running := at(p, program.Running, program.Starting, program.Stopping)
		switch {
		case !running && c.group:
		case !known:
			s.fail(exitFailure, "%s: ERROR (bad signal name)", p.Name)
		case !running:
			s.fail(exitNotStarted, "%s: ERROR (not running)", p.Name)
		case r.Error != nil:
			s.fail(exitFailure, "%s", describe(r.Error))
		default:
			line(s.stdout, "%s: signalled", p.Name)
		}
	})
}

func (s *supervisorctl) pid(ctx context.Context, names []string) error {
	if len(names) == 0 {
		v, err := s.box.Version(ctx)
		if err == nil {
			line(s.stdout, "%d", v.PID)
		}
		return err
	}
	status, err := s.read(ctx)
	if err != nil {
		return err
	}
	for _, c := range choose(status.Programs, names) {
		if !c.all() && (c.group || len(c.programs) == 0) {
			s.fail(exitFailure, "No such process %s", printable(c.word))
			continue
		}
		for _, p := range c.programs {
			line(s.stdout, "%d", p.PID)
			if p.PID == 0 && !c.group {
				s.code = exitNotStarted
			}
		}
	}
	return nil
}
