package rest

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

func getAdapters(q *request) error { return whole(q, q.s.cfg.Slots.Status()) }

// getStatus answers what the original's clients read: times in milliseconds,
// tasks and adapters in short.
func getStatus(q *request) error {
	doc := make(map[string]any)
	if q.s.cfg.Status != nil {
		for k, v := range q.s.cfg.Status() {
			doc[k] = v
		}
	}
	slots := make(map[string]any)
	for _, s := range q.s.cfg.Slots.Status() {
		slots[string(s.Slot)] = map[string]any{"wanted": s.Wanted, "active": s.Active, "state": s.State}
	}
	active := 0
	if q.s.cfg.Tasks != nil {
		active = q.s.cfg.Tasks.Running()
	}
	doc["timestamp"] = time.Now().UnixMilli()
	doc["api"] = map[string]any{
		"uptime": time.Since(q.s.started).Seconds(), "version": q.s.cfg.Version, "pid": os.Getpid(),
	}
	doc["tasks"] = map[string]any{"active": active}
	doc["adapters"] = slots
	federation := q.s.federation()
	doc["federation"] = map[string]any{"mode": federation.Mode, "state": federation.State}
	if doc["system"] == nil {
		doc["system"] = map[string]any{"cpus": runtime.NumCPU(), "goroutines": runtime.NumGoroutine()}
	}
	return q.reply(http.StatusOK, doc)
}

// FederationStatus is the box's session with a host (federation.mode "client").
type FederationStatus struct {
	Mode  string `json:"mode"`  // standalone or client
	State string `json:"state"` // idle, registering, connecting, active, suspect, lost, evicted, quarantined, refused, deregistering or closed
	// Detail says in words what the state alone does not.
	Detail        string              `json:"detail,omitempty"`
	Host          adapters.NullString `json:"host"` // base of its API
	SessionID     adapters.NullString `json:"session_id"`
	LastHeartbeat adapters.Time       `json:"last_heartbeat"`
	Evictions     int                 `json:"evictions"` // since the start
}

// federation is what the box says of its session; without one it stands alone.
func (s *Server) federation() FederationStatus {
	if s.cfg.Federation == nil {
		return FederationStatus{Mode: "standalone", State: "idle"}
	}
	return s.cfg.Federation()
}

func getFederation(q *request) error { return q.reply(http.StatusOK, q.s.federation()) }

func getOpenAPI(q *request) error {
	doc, err := q.s.openapi()
	if err != nil {
		return err
	}
	q.begin(jsonType)
	_, _ = q.w.Write(doc) // a caller that has gone has nobody to tell
	return nil
}

// names maps the kinds of urn:agentbox: names to where they are answered.
var names = map[string]string{
	"bead": "/v1/beads/", "agent": "/v1/agents/", "task": "/v1/tasks/",
}

// resolveName answers 307 to where a name leads, 404 for what has no place
// here. It does not look whether the thing exists: that its place will say.
func resolveName(q *request) error {
	urn, err := q.param("urn")
	if err != nil {
		return err
	}
	target := place(urn)
	if target == "" {
		return adapters.NotFound("name", cut(urn, 200))
	}
	q.begin("").Set("Location", target)
	q.w.WriteHeader(http.StatusTemporaryRedirect)
	return nil
}

// place is the path that a name leads to, "" for none.
func place(urn string) string {
	if hex, ok := strings.CutPrefix(urn, "did:nostr:"); ok {
		if len(hex) != 64 || strings.Trim(hex, "0123456789abcdef") != "" {
			return ""
		}
		return "/pods/did:nostr:" + hex
	}
	rest, ok := strings.CutPrefix(urn, "urn:agentbox:")
	if !ok {
		return ""
	}
	kind, id, _ := strings.Cut(rest, ":")
	if base, known := names[kind]; known && adapters.CheckID("id", id) == nil {
		return base + url.PathEscape(id)
	}
	if kind == "memory" {
		ns, key, found := strings.Cut(id, "#")
		if !found || ns == "" || key == "" {
			return ""
		}
		return "/v1/memory/" + url.PathEscape(ns) + "/" + url.PathEscape(key)
	}
	if kind == "pod" && adapters.CheckPodPath(id) == nil {
		return "/pods" + id
	}
	return ""
}

// panicked answers a request whose handler failed, and tells of it.
func (s *Server) panicked(q *request, v any) {
	s.tell(q.row, fmt.Errorf("panic: %v\n%s", v, debug.Stack()))
	if q.begun {
		// Nobody must take the part for the whole.
		panic(http.ErrAbortHandler)
	}
	s.fail(q, adapters.Errorf(adapters.CodeInternal, "the handler failed").With("error_id", adapters.NewID()))
}
