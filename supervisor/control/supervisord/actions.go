package supervisord

import (
	"cmp"
	"context"
	"slices"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/internal/signame"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// action is a verb of the interface. Its methods find the processes that a call means, send one
// request for all of them, and describe the outcome of each.
type action struct {
	request func(*api.Client, context.Context, api.ActionRequest) (api.ActionResult, error)
	// outcome is the fault of one program; 0 means success.
	outcome func(api.ProgramResult) int
	// part tells whether a request for a group concerns a program; nil: always.
	part func(api.Program) bool
}

var (
	start = action{request: (*api.Client).Start, outcome: func(r api.ProgramResult) int {
		switch {
		case r.Error != nil && r.Error.Code == api.CodeFailed:
			return spawnError
		case r.Error != nil && r.Error.Code == api.CodeShuttingDown:
			return shutdownState
		case r.Error != nil:
			return abnormalTermination
		case !r.Changed:
			return alreadyStarted
		}
		return 0
	}}
	stop = action{request: (*api.Client).Stop, outcome: func(r api.ProgramResult) int {
		switch {
		case r.Error != nil:
			return failed
		case !r.Changed:
			return notRunning
		}
		return 0
	}}
	signal = action{request: (*api.Client).Signal, part: Running, outcome: func(r api.ProgramResult) int {
		if r.Error != nil {
			return failed
		}
		return 0
	}}
)

// Running tells whether supervisord would send a signal to a program.
func Running(p api.Program) bool { return At(p, program.Running, program.Starting, program.Stopping) }

// one is the method for one process. A name of a group gives the answer of the method for groups.
func (a action) one(s session, args []any) (any, error) {
	name := args[0].(string)
	status, err := s.read()
	if err != nil {
		return nil, err
	}
	c := Choose(status.Programs, name)
	if c.Group {
		return a.group(s, append([]any{c.Word}, args[1:]...))
	}
	if len(c.Programs) == 0 {
		return nil, newFault(badName, name)
	}
	req, err := options(args[1:])
	if err != nil {
		return nil, err
	}
	if a.part != nil && !a.part(c.Programs[0]) {
		return nil, newFault(notRunning, name)
	}
	results, err := a.send(s, c.Programs, req)
	if err != nil {
		return nil, err
	}
	r := results[0]
	if code := a.outcome(r); code != 0 {
		about := name
		switch {
		case code == shutdownState: // it is about the box
			about = ""
		case r.Error != nil && code == failed:
			about = r.Error.Message
		}
		return nil, newFault(code, about)
	}
	return true, nil
}

func (a action) group(s session, args []any) (any, error) {
	name := args[0].(string)
	status, err := s.read()
	if err != nil {
		return nil, err
	}
	c := Choose(status.Programs, name+":*")
	if len(c.Programs) == 0 {
		return nil, newFault(badName, name)
	}
	return a.several(s, c.Programs, args[1:])
}

func (a action) all(s session, args []any) (any, error) {
	status, err := s.read()
	if err != nil {
		return nil, err
	}
	return a.several(s, status.Programs, args)
}

// several returns the outcome for each program that the request changes. The others are as they should
// be, so supervisord does not name them.
func (a action) several(s session, programs []api.Program, args []any) (any, error) {
	if a.part != nil {
		programs = slices.DeleteFunc(programs, func(p api.Program) bool { return !a.part(p) })
	}
	out := []any{}
	tell := func(name string, code int, text string) {
		group, process := split(name)
		out = append(out, map[string]any{"name": process, "group": group, "status": code, "description": text})
	}
	req, err := options(args)
	if err != nil {
		for _, p := range programs {
			tell(p.Name, asFault(err).code, err.Error())
		}
		return out, nil
	}
	results, err := a.send(s, programs, req)
	if err != nil {
		return nil, err
	}
	for _, r := range results {
		code := a.outcome(r)
		if code == alreadyStarted || code == notRunning {
			continue
		}
		text := "OK"
		if r.Error != nil {
			text = escape.Text(r.Error.Message)
		}
		tell(r.Name, cmp.Or(code, success), text)
	}
	return out, nil
}

// options reads the parameters of a call behind the name: a signal, or whether to wait. The fault of a
// signal is about each program, as in supervisord.
func options(params []any) (req api.ActionRequest, err error) {
	for _, v := range params {
		switch v := v.(type) {
		case bool:
			req.NoWait = !v
		case string:
			if _, err := signame.Parse(v); err != nil {
				return req, newFault(badSignal, v)
			}
			req.Signal = v
		}
	}
	return req, nil
}

// send makes the request of the action for the programs, if there are any.
func (a action) send(s session, programs []api.Program, req api.ActionRequest) ([]api.ProgramResult, error) {
	for _, p := range programs {
		req.Names = append(req.Names, p.Name)
	}
	if len(req.Names) == 0 {
		return nil, nil
	}
	result, err := a.request(s.box, s.ctx, req)
	return result.Results, err
}
