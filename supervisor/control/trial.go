package control

import (
	"context"
	"net/http"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// The time limits of a trial: the default and the maximum.
const (
	defaultTrial = time.Minute
	longestTrial = 10 * time.Minute
)

// postSandboxTest runs a command of the caller's choice as the program's user. Only a process
// outside all programs may request that, and HTTP clients may not: otherwise a program with control
// = true could get the rights of another program.
func postSandboxTest(s *Server, r *http.Request) (any, error) {
	req, err := decode[api.SandboxTest](r.Body)
	if err != nil {
		return nil, err
	}
	if peer := peerOf(r.Context()); peer.Principal != "" || peer.Program != "" {
		return nil, api.Errorf(api.CodeForbidden, "refused: only a process outside all programs may run a command in a program's sandbox")
	}
	if len(req.Command) == 0 {
		return nil, api.Errorf(api.CodeBadRequest, "command is empty; write the command to run")
	}
	limit := time.Duration(req.TimeoutMS) * time.Millisecond
	if limit < 0 || limit > longestTrial {
		return nil, api.Errorf(api.CodeBadRequest, "the timeout is %s; write one from 0 to %s", limit, longestTrial)
	}
	setDefault(&limit, defaultTrial)
	p, err := resolveOne(req.Program, s.cfg.Supervisor.Snapshot().Programs)
	if err != nil {
		return nil, err
	}
	s.audit(r, "sandbox-test", map[string]any{"programs": []string{p.Name}, "command": req.Command})
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	trial, err := s.cfg.Try(ctx, p.Spec, req.Command)
	if ctx.Err() != nil {
		return nil, api.Errorf(api.CodeTimeout, "the command did not end within %v and was killed", limit)
	}
	if err != nil {
		return nil, api.Errorf(api.CodeFailed, "%v", err)
	}
	return api.SandboxTestResult{
		Program: p.Name, Status: trial.Status, Output: string(trial.Output), Truncated: trial.Truncated, Skipped: trial.Skipped,
		Refused: toRefusals(trial.Refused),
	}, nil
}

func toRefusals(list []supervisor.Refusal) []api.Refusal {
	var out []api.Refusal
	for _, r := range list {
		out = append(out, api.Refusal{By: r.By, Call: r.Call, Allowed: r.Allowed, Count: r.Count, PID: r.PID, Last: r.Last, Command: r.Command})
	}
	return out
}
