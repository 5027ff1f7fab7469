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

func getAdapters(q *request) error { return whole(q, q.s.cfg.Slots.Status(), nil) }

// Status is the answer to GET /v1/status. It keeps the field names that clients of the original
// agentbox read.
type Status struct {
	Timestamp  int64                         `json:"timestamp"` // Unix milliseconds
	API        APIStatus                     `json:"api"`
	Tasks      TaskCounts                    `json:"tasks"`
	System     SystemStatus                  `json:"system"`
	GPU        GPUStatus                     `json:"gpu"`
	Providers  map[string]ProviderStatus     `json:"providers"`
	Adapters   map[adapters.Slot]SlotSummary `json:"adapters"`
	Federation FederationSummary             `json:"federation"`
}

// APIStatus describes the process that answers.
type APIStatus struct {
	Uptime  float64 `json:"uptime"` // seconds
	Version string  `json:"version"`
	PID     int     `json:"pid"`
}

// TaskCounts are the numbers of tasks.
type TaskCounts struct {
	Active int `json:"active"`
}

// SystemStatus describes the system that the box runs on.
type SystemStatus struct {
	CPUs       int `json:"cpus"`
	Goroutines int `json:"goroutines"`
}

// GPUStatus is the GPU that the manifest asks for.
type GPUStatus struct {
	Backend string `json:"backend"`
}

// ProviderStatus says whether a provider's credential is present. It never contains the credential.
type ProviderStatus struct {
	Enabled bool `json:"enabled"`
	Present bool `json:"present"`
}

// SlotSummary is the short form of a slot's status. GET /v1/adapters has the long form.
type SlotSummary struct {
	Wanted string         `json:"wanted"`
	Active string         `json:"active"`
	State  adapters.State `json:"state"`
}

// FederationSummary is the short form of FederationStatus.
type FederationSummary struct {
	Mode  string `json:"mode"`
	State string `json:"state"`
}

// Facts are the parts of Status that come from the manifest and the environment.
type Facts struct {
	GPU       GPUStatus
	Providers map[string]ProviderStatus
}

func getStatus(q *request) error {
	doc := Status{
		Timestamp: time.Now().UnixMilli(),
		API:       APIStatus{time.Since(q.s.started).Seconds(), q.s.cfg.Version, os.Getpid()},
		System:    SystemStatus{runtime.NumCPU(), runtime.NumGoroutine()},
		GPU:       q.s.cfg.Facts.GPU, Providers: q.s.cfg.Facts.Providers,
		Adapters: map[adapters.Slot]SlotSummary{},
	}
	if doc.Providers == nil {
		doc.Providers = map[string]ProviderStatus{}
	}
	for _, s := range q.s.cfg.Slots.Status() {
		doc.Adapters[s.Slot] = SlotSummary{s.Wanted, s.Active, s.State}
	}
	if q.s.cfg.Tasks != nil {
		doc.Tasks.Active = len(q.s.cfg.Tasks.Active())
	}
	federation := q.s.federation()
	doc.Federation = FederationSummary{federation.Mode, federation.State}
	return q.reply(http.StatusOK, doc)
}

// FederationStatus is the box's session with a host (federation.mode "client"), or the number of
// boxes that are registered here (mode "host").
type FederationStatus struct {
	Mode  string `json:"mode"`  // standalone, client or host
	State string `json:"state"` // idle, registering, connecting, active, suspect, lost, evicted, quarantined, refused, deregistering or closed
	// Detail explains State in words.
	Detail        string              `json:"detail,omitempty"`
	Host          adapters.NullString `json:"host"` // base of its API
	SessionID     adapters.NullString `json:"session_id"`
	Since         adapters.Time       `json:"since"`    // when State began
	NextTry       adapters.Time       `json:"next_try"` // when a box without a session asks the host again
	LastHeartbeat adapters.Time       `json:"last_heartbeat"`
	Heartbeats    uint64              `json:"heartbeats"` // of this session
	Missed        int                 `json:"missed"`     // in a row
	Evictions     int                 `json:"evictions"`  // since the start
	// Endpoints are the URLs of slots that the host has given, without credentials.
	Endpoints map[string]string `json:"endpoints,omitempty"`
	// Boxes counts the boxes of a host by state: active, silent, evicted.
	Boxes map[string]int `json:"boxes,omitempty"`
}

// federation returns the status of the federation; without Config.Federation it is "standalone".
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
	_, _ = q.w.Write(doc) // the status is already sent: the caller cannot be told of an error
	return nil
}

// names maps the kind of a urn:agentbox: name to the path prefix of its resource.
var names = map[string]string{
	"bead": "/v1/beads/", "agent": "/v1/agents/", "task": "/v1/tasks/",
}

// resolveName redirects (307) to the path of the named resource. It answers 404 for a name without a
// path here. It does not check that the resource exists: the request to that path does.
func resolveName(q *request) error {
	urn := q.param("urn")
	target := place(urn)
	if target == "" {
		return adapters.NotFound("name", adapters.Cut(urn, 200))
	}
	q.begin("").Set("Location", target)
	q.w.WriteHeader(http.StatusTemporaryRedirect)
	return nil
}

// place returns the path of the resource that a name means, "" for none.
func place(urn string) string {
	if hex, ok := strings.CutPrefix(urn, "did:nostr:"); ok {
		if !isKey(hex) {
			return ""
		}
		return "/v1/did/did:nostr:" + hex
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

// panicked reports a panic of a handler and answers its request.
func (s *Server) panicked(q *request, v any) {
	s.tell(q.row, fmt.Errorf("panic: %v\n%s", v, debug.Stack()))
	if q.begun {
		// The caller must see that the answer is incomplete.
		panic(http.ErrAbortHandler)
	}
	s.fail(q, adapters.Errorf(adapters.CodeInternal, "the handler failed").With("error_id", adapters.NewID()))
}
