package control

import (
	"cmp"
	"encoding/json"
	"net/http"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// startingPause is how long an answer for a script waits while the box starts. Otherwise a script that
// asks in a loop until all programs run would take most of a processor from the starts.
const startingPause = 50 * time.Millisecond

func getStatus(s *Server, r *http.Request) (any, error) {
	text, err := boolParam(r.URL.Query(), "text")
	if err != nil {
		return nil, err
	}
	if text {
		select {
		case <-s.cfg.Supervisor.Started():
		case <-time.After(startingPause):
		case <-r.Context().Done():
		}
	}
	snap := s.cfg.Supervisor.Snapshot()
	programs := snap.Programs
	if names := r.URL.Query()["name"]; len(names) > 0 {
		err := checkNames(names)
		if err == nil {
			programs, err = resolve(names, programs)
		}
		if err != nil {
			return nil, err
		}
	}
	out := toStatus(snap, programs)
	troubles := s.logTroubles()
	for i := range out.Programs {
		out.Programs[i].LogTrouble = troubles[out.Programs[i].Name]
	}
	table, err := boolParam(r.URL.Query(), "table")
	if err != nil {
		return nil, err
	}
	if text || table {
		addUsage(out.Programs, s.readUsage().Programs)
		if text && !notStarted(snap) { // else the client must say why the table is empty
			return toText(out), nil
		}
		return toTable(out), nil
	}
	for i, p := range programs {
		out.Programs[i].Refused, out.Programs[i].Limits = s.refusedCalls(p.Name), s.bounds(p)
	}
	return out, nil
}

func getProgram(s *Server, r *http.Request) (any, error) {
	p, err := resolveOne(r.URL.Query().Get("name"), s.cfg.Supervisor.Snapshot().Programs)
	if err != nil {
		return nil, err
	}
	spec, err := json.Marshal(p.Spec)
	if err != nil {
		return nil, err
	}
	out := api.ProgramDetail{Program: toProgram(p), Spec: hideInJSON(p.Spec, spec)}
	out.Refused, out.Limits, out.LogTrouble = s.refusedCalls(p.Name), s.bounds(p), s.logTroubles()[p.Name]
	return out, nil
}

// logTroubles says why log files take no output now, by program.
func (s *Server) logTroubles() map[string]string {
	out := make(map[string]string)
	for program, err := range s.cfg.Logs.Troubles() {
		out[program] = err.Error()
	}
	return out
}

// hideInJSON hides the program's secrets in a JSON text, in the form that JSON strings have.
func hideInJSON(spec *program.Spec, text []byte) []byte {
	if spec == nil {
		return text
	}
	var escaped []program.Secret
	for _, secret := range spec.Secrets {
		value, err := json.Marshal(secret.Value)
		if err == nil {
			secret.Value = string(value[1 : len(value)-1])
		}
		escaped = append(escaped, secret)
	}
	return []byte(program.HideAll(escaped, string(text)))
}

func getPlan(s *Server, r *http.Request) (any, error) {
	plan, err := s.cfg.Applier.Plan(r.Context())
	return json.RawMessage(plan), err
}

func getManifest(s *Server, r *http.Request) (any, error) {
	return s.cfg.Applier.Manifest(r.Context())
}

// postApply is audited only if it may change something; a dry run is not.
func postApply(s *Server, r *http.Request) (any, error) {
	req, err := decode[api.ApplyRequest](r.Body)
	if err != nil {
		return nil, err
	}
	s.audit(r, "apply", map[string]any{"dry_run": req.DryRun})
	return s.cfg.Applier.Apply(r.Context(), req.DryRun)
}

func getReady(s *Server, _ *http.Request) (any, error) {
	return s.cfg.Readiness.Report(), nil
}

func getBoot(s *Server, r *http.Request) (any, error) {
	if previous, err := boolParam(r.URL.Query(), "previous"); err != nil {
		return nil, err
	} else if previous {
		boot, err := s.cfg.Boot.Previous()
		if err != nil {
			return nil, api.Errorf(api.CodeUnsupported, "%v", err)
		}
		return boot, nil
	}
	return s.cfg.Boot.Boot(), nil
}

func getLogLevel(s *Server, _ *http.Request) (any, error) {
	return api.LogLevel{Level: s.cfg.LogLevel.Level()}, nil
}

func putLogLevel(s *Server, r *http.Request) (any, error) {
	req, err := decode[api.LogLevel](r.Body)
	if err != nil {
		return nil, err
	}
	if len(req.Level) > maxName {
		return nil, api.Errorf(api.CodeBadRequest, "unknown log level")
	}
	before := s.cfg.LogLevel.Level()
	if err := s.cfg.LogLevel.SetLevel(req.Level); err != nil {
		return nil, api.Errorf(api.CodeBadRequest, "%v", err)
	}
	s.audit(r, "log-level", map[string]any{"from": before, "to": s.cfg.LogLevel.Level()})
	return getLogLevel(s, r)
}

func postReopen(s *Server, r *http.Request) (any, error) {
	s.cfg.Logs.Reopen()
	s.audit(r, "logs-reopen", nil)
	return api.Accepted{}, nil
}

func postShutdown(s *Server, r *http.Request) (any, error) {
	req, err := decode[api.ShutdownRequest](r.Body)
	if err != nil {
		return nil, err
	}
	if len(req.Reason) > maxReason {
		return nil, api.Errorf(api.CodeBadRequest, "reason is longer than %d bytes", maxReason)
	}
	req.Reason = cmp.Or(req.Reason, "asked for through the control socket")
	s.audit(r, "shutdown", map[string]any{"reason": req.Reason})
	s.cfg.Supervisor.Shutdown(req.Reason)
	return api.Accepted{Accepted: true}, nil
}

func getVersion(s *Server, _ *http.Request) (any, error) { return s.cfg.Version, nil }

func getOpenAPI(s *Server, _ *http.Request) (any, error) {
	return openAPI(routes(), aboutSocket, s.cfg.Version.Version), nil
}
