package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/signame"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/listing"
	"github.com/dreamlab-ai/agentinit/supervisor/control/supervisord"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// choose reads names as supervisorctl does; all stands for every program.
func choose(programs []api.Program, words []string) []supervisord.Chosen {
	if slices.Contains(words, "all") {
		return []supervisord.Chosen{{Word: "all", Group: true, Programs: programs}}
	}
	var out []supervisord.Chosen
	for _, word := range words {
		out = append(out, supervisord.Choose(programs, word))
	}
	return out
}

func isAll(c supervisord.Chosen) bool { return c.Group && c.Word == "all" }

// read returns the state of the box, with the programs in supervisorctl's order.
func (s *supervisorctl) read(ctx context.Context) (api.Status, error) {
	status, err := s.box.Status(ctx)
	supervisord.Sort(status.Programs)
	return status, err
}

// unknown says that there is no such group or process.
func (s *supervisorctl) unknown(c supervisord.Chosen, code int) {
	kind := "process"
	if c.Group {
		kind = "group"
	}
	s.fail(code, "%s: ERROR (no such %s)", printable(c.Word), kind)
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
		if len(c.Programs) == 0 && !isAll(c) {
			s.unknown(c, exitUnreachable)
		}
		shown = append(shown, c.Programs...)
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
	return supervisord.At(p, program.Stopped, program.Exited, program.Fatal) && !listing.AllRunning([]listing.Program{{Program: p}})
}

// oldTable is the table of supervisorctl's status.
func oldTable(programs []api.Program, now time.Time, zone *time.Location) string {
	width := 30
	for _, p := range programs {
		width = max(width, len(p.Name))
	}
	var b strings.Builder
	for _, p := range programs {
		fmt.Fprintf(&b, "%-*s%-10s%s\n", width+3, printable(p.Name), p.State, supervisord.Description(p, now, zone))
	}
	return b.String()
}

// act sends one request for all names, so that agentinit can keep the order of dependencies, and
// then passes the outcome for each name to tell. Those of a group are listed in the order of start.
func (s *supervisorctl) act(ctx context.Context, words []string, unknown func(supervisord.Chosen),
	request func(context.Context, api.ActionRequest) (api.ActionResult, error), tell func(supervisord.Chosen, api.Program, api.ProgramResult),
) error {
	status, err := s.box.Status(ctx)
	if err != nil {
		return err
	}
	targets := choose(status.Programs, words)
	var req api.ActionRequest
	for _, c := range targets {
		for _, p := range c.Programs {
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
		if len(c.Programs) == 0 && !isAll(c) {
			unknown(c)
		}
		for _, p := range c.Programs {
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

func (s *supervisorctl) notStarted(c supervisord.Chosen) {
	code := exitFailure
	if c.Group {
		code = exitArguments
	}
	s.unknown(c, code)
}

// started tells the outcome of a start.
func (s *supervisorctl) started(c supervisord.Chosen, p api.Program, r api.ProgramResult) {
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
	case !c.Group:
		line(s.stdout, "%s: ERROR (already started)", p.Name)
	}
}

func (s *supervisorctl) stop(ctx context.Context, names []string) error {
	return s.act(ctx, names, func(c supervisord.Chosen) { s.unknown(c, exitFailure) }, s.box.Stop, func(c supervisord.Chosen, p api.Program, r api.ProgramResult) {
		if r.Error != nil {
			s.fail(exitFailure, "%s", describe(r.Error))
			return
		}
		s.stopped(c, p, r.Changed)
	})
}

func (s *supervisorctl) stopped(c supervisord.Chosen, p api.Program, changed bool) {
	switch {
	case changed:
		line(s.stdout, "%s: stopped", p.Name)
	case !c.Group:
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
	err := s.act(ctx, names, func(c supervisord.Chosen) {
		s.unknown(c, exitFailure)
		starts = append(starts, func() { s.notStarted(c) })
	}, again, func(c supervisord.Chosen, p api.Program, r api.ProgramResult) {
		s.stopped(c, p, supervisord.At(p, program.Running, program.Starting, program.Backoff))
		starts = append(starts, func() { s.started(c, p, r) })
	})
	for _, tell := range starts {
		tell()
	}
	return err
}

func (s *supervisorctl) signal(ctx context.Context, args []string) error {
	_, unknown := signame.Parse(args[0])
	send := func(ctx context.Context, req api.ActionRequest) (api.ActionResult, error) {
		if req.Signal = args[0]; unknown == nil {
			return s.box.Signal(ctx, req)
		}
		var none api.ActionResult
		for _, name := range req.Names {
			none.Results = append(none.Results, api.ProgramResult{Name: name})
		}
		return none, nil
	}
	return s.act(ctx, args[1:], func(c supervisord.Chosen) { s.unknown(c, exitFailure) }, send, func(c supervisord.Chosen, p api.Program, r api.ProgramResult) {
		running := supervisord.Running(p)
		switch {
		case !running && c.Group:
		case unknown != nil:
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
		if !isAll(c) && (c.Group || len(c.Programs) == 0) {
			s.fail(exitFailure, "No such process %s", printable(c.Word))
			continue
		}
		for _, p := range c.Programs {
			line(s.stdout, "%d", p.PID)
			if p.PID == 0 && !c.Group {
				s.code = exitNotStarted
			}
		}
	}
	return nil
}
