package rest

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// elsewhere lists the routes of the management listener that another package serves, so that the
// document is complete. A probe route reports its state by the status: 200 or 503.
func elsewhere() []route {
	object := map[string]any{}
	return []route{
		{Method: "GET", Path: "/livez", ID: "livez", Reply: object, open: true, probe: true, Doc: "200 while the supervisor answers; 503 otherwise."},
		{Method: "GET", Path: "/ready", ID: "ready", Reply: object, open: true, probe: true, Query: []param{{"verbose", "boolean", "name every requirement, not only those that are unmet"}},
			Doc: "200 while all that the manifest requires is met; 503 with what is not."},
		{Method: "GET", Path: "/health", ID: "health", Reply: object, open: true, Doc: "The state of every part of the box; always 200."},
		{Method: "GET", Path: "/health/pods", ID: "healthPods", Reply: object, open: true, Doc: "The pod server; 404 in a box without one."},
		{Method: "GET", Path: "/health/relay", ID: "healthRelay", Reply: object, open: true, Doc: "The relay; 404 in a box without one."},
		{Method: "GET", Path: "/metrics", ID: "metrics", ReplyType: "text/plain", open: true, Doc: "Metrics in the text format of Prometheus."},
		{Method: "GET", Path: "/v1/meta", ID: "meta", Reply: BoxMeta{}, open: true, Doc: "What the box is and which contracts it speaks."},
		{Method: "GET", Path: "/", ID: "index", Reply: object, open: true, Doc: "Where everything is."},
	}
}

// BoxMeta is the answer to GET /v1/meta: public facts about the box.
type BoxMeta struct {
	Version          string                     `json:"version"`
	BootID           string                     `json:"boot_id"`
	ImageHash        string                     `json:"image_hash"`
	ManifestChecksum string                     `json:"manifest_checksum"`
	FederationMode   string                     `json:"federation_mode"`
	Contracts        map[adapters.Slot]string   `json:"adapter_contract_versions"`
	Impls            map[adapters.Slot]string   `json:"adapter_impls"`
	Capabilities     map[adapters.Slot][]string `json:"capabilities"`
	Observability    Observability              `json:"observability"`
	Mesh             *MetaMesh                  `json:"sovereign_mesh"` // nil without an identity
	RuntimeClosure   any                        `json:"runtime_closure"`
}

// Observability says where the box exports metrics and telemetry.
type Observability struct {
	MetricsEndpoint string `json:"metrics_endpoint"` // a URL, "" while the listener is off
	OTLPEndpoint    string `json:"otlp_endpoint"`    // without credentials
}

// MetaMesh says who the box is in the mesh.
type MetaMesh struct {
	DID   string     `json:"did"`
	Relay *MetaRelay `json:"relay"` // nil if agentinit is not the relay
}

// MetaRelay says what the box's relay speaks.
type MetaRelay struct {
	NIPs []int `json:"nips"`
}

// SetSlots sets the contract version, the implementation and the capabilities of each slot.
func (m *BoxMeta) SetSlots(slots []adapters.SlotStatus) {
	m.Contracts, m.Impls, m.Capabilities = map[adapters.Slot]string{}, map[adapters.Slot]string{}, map[adapters.Slot][]string{}
	for _, s := range slots {
		m.Contracts[s.Slot], m.Impls[s.Slot] = s.ContractVersion, s.Wanted
		m.Capabilities[s.Slot] = append([]string{}, s.Capabilities...)
	}
}

// headersOf lists the request headers that a row reads.
func headersOf(rt route) []param {
	var out []param
	switch rt.ID {
	case "createEpic", "createChild", "comment", "dispatch", "spawnAgent", "startTask":
		out = append(out, param{headerKey, "string", "1-255 visible ASCII characters. The same key with the same request within 24 h has the first answer again."})
	case "update":
		out = append(out, param{"If-Match", "string", "the ETag that the bead must still have"})
	case "write", "patch", "del":
		if rt.Slot == adapters.SlotPods {
			out = append(out, param{"If-Match", "string", "the ETag that the resource must still have"})
		}
		if rt.ID == "write" {
			out = append(out, param{"If-None-Match", "string", "* makes the resource only where there is none"})
		}
	case "read":
		out = append(out, param{"If-None-Match", "string", "304 where the resource still has this ETag"}, param{"Range", "string", "bytes of a resource that is no RDF"})
	case "create":
		out = append(out, param{"Slug", "string", "the name that is asked for"}, param{"Link", "string", `rel="type" with ldp:BasicContainer makes a container`})
	}
	return out
}

// answerHeaders lists the special headers of a row's successful answer.
func answerHeaders(rt route) map[string]any {
	header := func(doc string) map[string]any {
		return map[string]any{"description": doc, "schema": map[string]any{"type": "string"}}
	}
	out := map[string]any{}
	if slices.ContainsFunc(rt.Query, func(p param) bool { return p.Name == "cursor" }) {
		out["Link"] = header(`rel="next" leads to the next page, where there is one`)
	}
	if rt.status() == http.StatusTemporaryRedirect || rt.status() == http.StatusCreated && (rt.Slot == adapters.SlotBeads || rt.Slot == adapters.SlotPods) {
		out["Location"] = header("where it is")
	}
	switch rt.ID {
	case "show", "update", "createEpic", "createChild", "read", "head", "write":
		out["ETag"] = header("version, for If-Match")
	}
	return out
}

// refusals lists the 4xx statuses that a row can answer with.
func refusals(rt route) []int {
	if rt.probe {
		return []int{http.StatusMethodNotAllowed}
	}
	out := []int{http.StatusNotFound}
	if len(rt.Query) > 0 || strings.Contains(rt.Path, "{") || rt.hasBody() {
		out = append(out, http.StatusBadRequest)
	}
	if !rt.open {
		out = append(out, http.StatusUnauthorized, http.StatusForbidden)
	}
	if rt.hasBody() {
		out = append(out, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	}
	if rt.Method != http.MethodGet && rt.Method != http.MethodHead && rt.Method != http.MethodOptions {
		out = append(out, http.StatusConflict)
	}
	for _, h := range headersOf(rt) {
		switch h.Name {
		case "Range":
			out = append(out, http.StatusRequestedRangeNotSatisfiable)
		case headerKey:
			out = append(out, http.StatusUnprocessableEntity)
		case "If-Match", "If-None-Match":
			if rt.Method != http.MethodGet && !slices.Contains(out, http.StatusPreconditionFailed) {
				out = append(out, http.StatusPreconditionFailed)
			}
		}
	}
	return append(out, http.StatusTooManyRequests)
}

// problemAnswers makes the shared error responses of the document: one for each known status, and
// one for all others.
func problemAnswers(schema string) map[string]any {
	content := map[string]any{adapters.ProblemType: map[string]any{"schema": map[string]any{"$ref": schema + "Problem"}}}
	out := map[string]any{"Refused": map[string]any{"description": "refused or failed", "content": content}}
	for _, status := range []int{400, 401, 403, 404, 405, 409, 412, 413, 415, 416, 422, 429} {
		var codes []string
		for _, row := range adapters.Codes() {
			if row.HTTP == status {
				codes = append(codes, string(row.Code))
			}
		}
		text := http.StatusText(status)
		if len(codes) > 0 {
			text += ": " + strings.Join(codes, ", ")
		}
		out["Status"+strconv.Itoa(status)] = map[string]any{"description": text, "content": content}
	}
	return out
}

// examples are example bodies, by operation id.
var examples = map[string]string{
	"beads.createEpic":        `{"title": "Move the archive", "priority": 1, "tags": ["storage"]}`,
	"beads.createChild":       `{"title": "Copy the files", "parent_id": "ab-7k2m4x"}`,
	"beads.update":            `{"priority": 0, "tags": ["storage", "urgent"]}`,
	"beads.claim":             `{"actor": "agent-7", "lease_s": 600}`,
	"beads.close":             `{"outcome": "done"}`,
	"beads.release":           `{"actor": "agent-7"}`,
	"beads.addDep":            `{"to": "ab-7k2m4x.1", "type": "blocks"}`,
	"beads.comment":           `{"text": "Half of the files are there."}`,
	"memory.search":           `{"query": "where is the archive", "limit": 5}`,
	"memory.store":            `{"value": "The archive is on disk 2.", "metadata": {"topic": "storage"}}`,
	"events.dispatch":         `{"kind": "tool.used", "session_id": "s-1", "payload": {"tool": "grep"}}`,
	"orchestrator.spawnAgent": `{"command": "/bin/sh", "args": ["-c", "echo hello"], "timeout_s": 60}`,
	"orchestrator.sendInput":  `{"data": "yes\n"}`,
	"startTask":               `{"agent": "coder", "task": "Mend the tests"}`,
	"emitAgentAction":         `{"action_type": "query", "source_agent_id": "agent-7"}`,
	"emitAgentActions":        `{"events": [{"action_type": "query", "source_agent_id": "agent-7"}]}`,
	"register":                `{"box_id": "box-1", "boot_id": "8f3a", "image_hash": "", "manifest_checksum": "", "version": "1.0", "adapters": {"beads": {"impl": "external", "contract_version": "1.1", "capabilities": []}}, "did": "", "meta_url": "", "nonce": "5c1d"}`,
	"heartbeat":               `{"session_id": "fs-1", "seq": 1, "status": "ok", "ready": true, "slots": {"beads": "healthy"}, "agents": 0, "uptime_s": 30}`,
	"deregister":              `{"session_id": "fs-1", "reason": "shutdown"}`,
	"evict":                   `{"box_id": "box-1", "reason": "maintenance", "permanent": false, "retry_after_s": 60}`,
	"meshPublish":             `{"kind": 1, "content": "the build is green", "tags": [["t", "build"]]}`,
	"admit":                   `{"box_id": "box-1"}`,
	"hookAgentAction":         `{"tool_name": "Read", "session_id": "s-1"}`,
}

// exampleOf returns the example body of an operation, nil if there is none.
func exampleOf(id string) any {
	text, ok := examples[id]
	if !ok {
		return nil
	}
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return nil // cannot happen: a test parses all examples
	}
	return v
}
