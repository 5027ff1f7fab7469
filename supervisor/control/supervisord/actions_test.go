package supervisord

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// boxOf answers the requests for a path with a value.
func boxOf(answers map[string]any) *api.Client {
	return api.LocalClient(func(r *http.Request) (*http.Response, error) {
		text, err := json.Marshal(answers[r.URL.Path])
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(text)))}, err
	})
}

// While the box shuts down, scripts that wait for this fault give up.
func TestNoStartInAShutdown(t *testing.T) {
	box := boxOf(map[string]any{
		"/v1/status": api.Status{Programs: []api.Program{{Name: "web", Group: "web", State: "STOPPED"}}},
		"/v1/start":  api.ActionResult{Results: []api.ProgramResult{{Name: "web", Error: api.Errorf(api.CodeShuttingDown, "web: the box is shutting down")}}},
	})
	call := "<methodCall><methodName>supervisor.startProcess</methodName><params><param><value>web</value></param></params></methodCall>"
	got, err := Answer(t.Context(), box, strings.NewReader(call))
	if err != nil || !strings.Contains(string(got), "<int>6</int>") || !strings.Contains(string(got), "<string>SHUTDOWN_STATE</string>") {
		t.Errorf("%v %s", err, got)
	}
}

// Between the reading of the programs and the request, an apply may have made two instances of one.
func TestProgramsChangeMeanwhile(t *testing.T) {
	box := boxOf(map[string]any{
		"/v1/status": api.Status{Programs: []api.Program{{Name: "worker", Group: "worker", State: "STOPPED"}}},
		"/v1/start":  api.ActionResult{Results: []api.ProgramResult{{Name: "worker:0", Changed: true}, {Name: "worker:1", Changed: true}}},
	})
	call := "<methodCall><methodName>supervisor.startAllProcesses</methodName></methodCall>"
	got, err := Answer(t.Context(), box, strings.NewReader(call))
	if err != nil || strings.Count(string(got), "<string>worker</string>") != 2 {
		t.Errorf("%v %s", err, got)
	}
}
