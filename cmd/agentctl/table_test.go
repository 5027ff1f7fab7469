package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
)

// TestStatusOfAnOlderAgentinit: an older agentinit refuses a request for a table. agentctl then
// uses the older request.
func TestStatusOfAnOlderAgentinit(t *testing.T) {
	l, err := net.Listen("unix", controltest.SocketPath(t))
	if err != nil {
		t.Fatal(err)
	}
	answer := func(w http.ResponseWriter, status int, v any) {
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(v); err != nil {
			t.Error(err)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/status", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("table") {
			answer(w, http.StatusBadRequest, api.Errorf(api.CodeBadRequest, `unknown parameter "table"`))
			return
		}
		answer(w, http.StatusOK, api.Status{Programs: []api.Program{{Name: "web", State: "RUNNING", Ready: true, Healthy: true, PID: 7}}})
	})
	mux.HandleFunc("/v1/usage", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, api.Usage{Programs: []api.ProgramUsage{{Name: "web", MemoryBytes: 4096}}})
	})
	server := &http.Server{Handler: mux}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-served
	})
	var stdout, stderr bytes.Buffer
	none := func(string) (string, bool) { return "", false }
	code := run(t.Context(), []string{"--socket", l.Addr().String(), "status"}, none, strings.NewReader(""), &stdout, &stderr)
	if code != exitOK || !strings.Contains(stdout.String(), "web   RUNNING    7") || !strings.Contains(stdout.String(), "4.0K") {
		t.Errorf("status %d, stderr %q, stdout:\n%s", code, &stderr, &stdout)
	}
}
