package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/supervisor/audit"
)

// Requests that may change something are recorded. Heartbeats are recorded only if they are
// refused.
func TestWhichRequestsAreRecorded(t *testing.T) {
	for _, c := range []struct {
		method, path string
		status       int
		recorded     bool
	}{
		{"GET", "/v1/beads", 200, false},
		{"POST", "/v1/beads", 201, true},
		{"POST", "/v1/beads", 503, true},
		{"POST", "/v1/register", 201, true},
		{"POST", "/v1/register", 503, true},
		{"POST", "/v1/heartbeat", 200, false},
		{"POST", "/v1/heartbeat", 503, false},
		{"POST", "/v1/heartbeat", 403, true},
		{"POST", "/v1/heartbeat", 410, true},
	} {
		file := filepath.Join(t.TempDir(), "audit.jsonl")
		record := audit.Open(file, func(err error) { t.Error(err) })
		h := auditRequests(record, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(c.status) }))
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(c.method, c.path, nil))
		record.Flush()
		text, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if got := strings.Contains(string(text), c.path); got != c.recorded {
			t.Errorf("%s %s, answered %d: recorded %v: %s", c.method, c.path, c.status, got, text)
		}
	}
}
