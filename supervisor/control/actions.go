package control

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/signame"
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// action is one of the requests that change programs.
type action struct {
	name string
	ask  func(ctx context.Context, names ...string) error
	goal goal
	// already tells whether a program already is in the requested state. Then its refusal is not a
	// failure.
	already func(supervisor.Status) bool
	// all is called instead of ask if the request is for the whole box; nil: ask is called.
	all func(ctx context.Context, names ...string) error
	// part tells whether a request for the whole box concerns a program; nil: always.
	part func(supervisor.Status) bool
}

func postStart(s *Server, r *http.Request) (any, error) {
	return s.act(r, action{
		name: "start", ask: s.cfg.Supervisor.Start, all: s.cfg.Supervisor.StartAll, part: startsWithBox, goal: started, already: begun,
	})
}

func postRun(s *Server, r *http.Request) (any, error) {
	return s.act(r, action{name: "run", ask: s.cfg.Supervisor.RunNow, goal: ran, already: under})
}

func postStop(s *Server, r *http.Request) (any, error) {
	out, err := s.act(r, action{name: "stop", ask: s.cfg.Supervisor.Stop, goal: stopped, already: resting})
	if err != nil {
		return nil, err
	}
	out.Note = s.bootFails()
	return out, nil
}

// bootFails gives the reason why the box ends: a required program can no longer become ready before
// the seal. It is empty otherwise.
func (s *Server) bootFails() string {
	if boot := s.cfg.Boot.Boot(); boot.Outcome != api.BootUnderWay && boot.Outcome != api.BootFailed {
		return ""
	}
	for _, p := range s.cfg.Supervisor.Snapshot().Programs {
		if why := p.GaveUp(); p.Required && why != "" {
			return "the box is not sealed yet and ends with status 67: the required program " + why
		}
	}
	return ""
}

func postRestart(s *Server, r *http.Request) (any, error) {
	return s.act(r, action{name: "restart", ask: s.cfg.Supervisor.Restart, all: s.cfg.Supervisor.RestartAll, part: restartsWithBox, goal: restarted, already: never})
}

// startsWithBox is false for a resting program that does not start by itself or has completed. Such
// a program starts only if the request names it.
func startsWithBox(p supervisor.Status) bool { return !resting(p) || p.StartsWithBox() }

func restartsWithBox(p supervisor.Status) bool {
	return !resting(p) || p.Schedule == nil && p.StartsWithBox()
}

func never(supervisor.Status) bool { return false }

func postSignal(s *Server, r *http.Request) (any, error) {
	req, meant, _, err := s.meant(r)
	if err != nil {
		return nil, err
	}
	if req.All { // as with supervisord, what does not run is left out
		meant = slices.DeleteFunc(slices.Clone(meant), func(p supervisor.Status) bool { return p.PID == 0 })
	}
	if _, err := signame.Parse(req.Signal); err != nil {
		return nil, api.Errorf(api.CodeBadRequest, "signal must be a name such as HUP, or a number from 1 to 64")
	}
	s.audit(r, "signal", map[string]any{"programs": namesOf(meant), "signal": req.Signal})
	refused := refusals(s.cfg.Supervisor.Signal(r.Context(), req.Signal, namesOf(meant)...), meant)
	return s.results(meant, refused, func(string) bool { return true }), nil
}

// meant reads an action's request and finds its programs, in start order. The watch begins before
// the snapshot, so that no change between the two is missed.
func (s *Server) meant(r *http.Request) (api.ActionRequest, []supervisor.Status, *watch, error) {
	req, err := decodeAction(r.Body)
	if err != nil {
		return req, nil, nil, err
	}
	w := s.watch()
	snap := s.cfg.Supervisor.Snapshot()
	if req.All && notStarted(snap) {
		return req, nil, nil, api.NotStarted(s.cfg.Boot.Boot())
	}
	if req.All {
		return req, snap.Programs, w, nil
	}
	programs, err := resolve(req.Names, snap.Programs)
	return req, programs, w, err
}

func (s *Server) act(r *http.Request, a action) (api.ActionResult, error) {
	var none api.ActionResult
	req, meant, w, err := s.meant(r)
	if err != nil {
		return none, err
	}
	ask := a.ask
	if req.All {
		if a.all != nil {
			ask = a.all
		}
		if a.part != nil {
			meant = slices.DeleteFunc(slices.Clone(meant), func(p supervisor.Status) bool { return !a.part(p) })
		}
	}
	if req.All && a.name == "run" {
		return none, api.Errorf(api.CodeBadRequest, "run needs the names of programs")
	}
	if req.Rolling && a.name != "restart" {
		return none, api.Errorf(api.CodeBadRequest, "rolling is for restart")
	}
	s.audit(r, a.name, map[string]any{"programs": namesOf(meant), "rolling": req.Rolling})
	ctx, cancel := s.waitBound(r.Context(), time.Duration(req.TimeoutMS)*time.Millisecond)
	defer cancel()
	if req.Rolling {
		return s.roll(ctx, a, meant, w), nil
	}
	failures := refusals(ask(ctx, namesOf(meant)...), meant)
	before, unchanged := s.moot(a, meant, failures)
	if !req.NoWait {
		s.await(ctx, w, a.goal, before, failures)
	}
	return s.results(meant, failures, func(name string) bool { return !unchanged[name] }), nil
}

// moot removes the refusals of programs that are already in the requested state. If a start is
// under way, the request waits for it as if it had asked for it.
func (s *Server) moot(a action, meant []supervisor.Status, failures map[string]*api.Error) (before []supervisor.Status, unchanged map[string]bool) {
	unchanged = make(map[string]bool)
	before = slices.Clone(meant)
	if len(failures) == 0 {
		return before, unchanged
	}
	for _, now := range s.cfg.Supervisor.Snapshot().Programs {
		if failures[now.Name] == nil || !a.already(now) {
			continue
		}
		delete(failures, now.Name)
		unchanged[now.Name] = true
		i := slices.IndexFunc(before, func(p supervisor.Status) bool { return p.Name == now.Name })
		before[i].Run = now.Run - min(now.Run, 1)
	}
	return before, unchanged
}

// roll restarts one program after the other. It stops at the first one that does not become ready
// again, and if the peer disconnects.
func (s *Server) roll(ctx context.Context, a action, meant []supervisor.Status, w *watch) api.ActionResult {
	failures := make(map[string]*api.Error)
	culprit := ""
	for _, p := range meant {
		if culprit != "" {
			failures[p.Name] = about(api.CodeConflict, p, "%s: not restarted, because %s did not return", p.Name, culprit)
			continue
		}
		one := []supervisor.Status{p}
		maps.Copy(failures, refusals(a.ask(ctx, p.Name), one))
		s.await(ctx, w, returned, one, failures)
		if failures[p.Name] != nil {
			culprit = p.Name
		}
	}
	return s.results(meant, failures, func(string) bool { return true })
}

// await waits until the goal has an outcome for every program that has no failure yet. It adds the
// failures that it finds.
func (s *Server) await(ctx context.Context, w *watch, reached goal, before []supervisor.Status, failures map[string]*api.Error) {
	pending := make(map[string]supervisor.Status, len(before))
	for _, p := range before {
		if failures[p.Name] == nil {
			// The request has been taken, but it may be finished or overtaken before the first
			// snapshot here. So the state before it counts too.
			pending[p.Name] = p
		}
	}
	for {
		seen := s.settle(reached, pending, failures)
		if len(pending) == 0 {
			return
		}
		if err := w.next(ctx); err != nil {
			for name := range pending {
				failures[name] = overdue(err, seen[name])
			}
			return
		}
	}
}

// settle removes from pending the programs that have an outcome. It returns what it saw.
func (s *Server) settle(reached goal, pending map[string]supervisor.Status, failures map[string]*api.Error) map[string]supervisor.Status {
	seen := make(map[string]supervisor.Status, len(pending))
	for _, now := range s.cfg.Supervisor.Snapshot().Programs {
		before, ok := pending[now.Name]
		if !ok {
			continue
		}
		seen[now.Name] = now
		done, failure := reached(before, now)
		if !done {
			continue
		}
		delete(pending, now.Name)
		if failure != nil {
			failures[now.Name] = failure
		}
	}
	for name, before := range pending {
		if _, there := seen[name]; !there {
			delete(pending, name)
			failures[name] = about(api.CodeConflict, before, "%s: removed meanwhile", name)
		}
	}
	return seen
}

func overdue(err error, p supervisor.Status) *api.Error {
	if errors.Is(err, context.DeadlineExceeded) {
		return about(api.CodeTimeout, p, "%s: still %s: %s", p.Name, p.Shown(), reasonOf(p))
	}
	return about(api.CodeShuttingDown, p, "%s: agentinit is shutting down; it is %s: %s", p.Name, p.Shown(), reasonOf(p))
}

// results is the answer, with the programs as they are now.
func (s *Server) results(meant []supervisor.Status, failures map[string]*api.Error, changed func(name string) bool) api.ActionResult {
	now := make(map[string]supervisor.Status, len(meant))
	for _, p := range s.cfg.Supervisor.Snapshot().Programs {
		now[p.Name] = p
	}
	out := api.ActionResult{Results: make([]api.ProgramResult, 0, len(meant))}
	for _, before := range meant {
		p := now[before.Name]
		failure := failures[before.Name]
		out.Results = append(out.Results, api.ProgramResult{
			Name: before.Name, State: p.State.String(), Shown: shown(p), PID: p.PID,
			Changed: failure == nil && changed(before.Name), Scheduled: p.Scheduled() && resting(p), Error: failure,
		})
	}
	return out
}

// waitBound limits a wait to the requested time and to the server's own limit.
func (s *Server) waitBound(ctx context.Context, asked time.Duration) (context.Context, context.CancelFunc) {
	bound := s.cfg.Limits.Wait
	if asked > 0 {
		bound = min(bound, asked)
	}
	return context.WithTimeout(ctx, bound)
}

// refusals sorts the supervisor's refusals by program. An error that names no program applies to
// all of them.
func refusals(err error, asked []supervisor.Status) map[string]*api.Error {
	out := make(map[string]*api.Error)
	one := make(map[string]error)
	var all error
	type named interface {
		error
		ProgramName() string
	}
	for _, e := range flatten(err) {
		if named, ok := errors.AsType[named](e); ok && named.ProgramName() != "" {
			one[named.ProgramName()] = e
		} else {
			all = e
		}
	}
	for _, p := range asked {
		if e := cmp.Or(one[p.Name], all); e != nil {
			out[p.Name] = refusal(e, p)
		}
	}
	return out
}

// refusal is the one place that gives an error of the supervisor about a program its code.
func refusal(err error, p supervisor.Status) *api.Error {
	refused, isRefused := errors.AsType[*supervisor.Refused](err)
	_, isUnknown := errors.AsType[*supervisor.UnknownProgram](err)
	switch {
	case isRefused && refused.Program != "":
		p.State = refused.State
		return about(codeOf(refused), p, "%s: %s", p.Name, refused.Reason)
	case isUnknown:
		return about(api.CodeConflict, p, "%s: removed meanwhile", p.Name)
	case errors.Is(err, supervisor.ErrDone):
		return about(api.CodeShuttingDown, p, "%s: %v", p.Name, err)
	case errors.Is(err, context.DeadlineExceeded):
		return about(api.CodeTimeout, p, "%s: the supervisor did not answer in time", p.Name)
	}
	return about(api.CodeFailed, p, "%s: %v", p.Name, err)
}

func codeOf(r *supervisor.Refused) api.Code {
	if r.Ending {
		return api.CodeShuttingDown
	}
	return api.CodeConflict
}

// flatten splits joined errors.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, e := range joined.Unwrap() {
			out = append(out, flatten(e)...)
		}
		return out
	}
	return []error{err}
}
