package rest

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/backup"
)

// Media types.
const (
	jsonType     = "application/json"
	linesType    = "application/x-ndjson"
	sseType      = "text/event-stream"
	cloudFormats = "application/cloudevents" // prefix of all CloudEvents types, single or batch
)

// Size limits of bodies, in bytes.
const (
	maxJSON = 1 << 20
	// A text of 1 MiB can take 6 MiB as JSON, if every character is escaped.
	maxBigJSON = 8 << 20
	maxImport  = 64 << 20
)

// route is one row of the API table: method and path, roles, request and answer.
type route struct {
	Method, Path string
	// ID is the name of the operation. For a slot's row, it is the name of the slot's method.
	ID    string
	Doc   string
	Slot  adapters.Slot // "" = the row belongs to no slot
	Roles roles
	Query []param
	// Body and Reply are zero values of the JSON types; nil = none.
	Body, Reply any
	// BodyTypes are the media types of Body; nil is JSON.
	BodyTypes []string
	// ReplyType is the media type of the answer, "" = JSON. If it is set, Reply is the type of one
	// line or event.
	ReplyType string
	// Also are further successful answers, such as a list, or another media type.
	Also    []also
	Status  int   // of success; 0 = 200
	MaxBody int64 // 0 = maxJSON

	open    bool // needs no credential
	told    bool // see Mount.Told: a box learns from 401 that its session has ended
	paced   bool // the handler limits how often it is called: the rate limit does not apply
	probe   bool // answers 503 for "not now", for load balancers
	ownHead bool // HEAD has its own row
	large   bool // the answer can have many megabytes: few are made at once

	// needs returns an error if this box does not have the part that the row belongs to; nil = every
	// box has it.
	needs  func(*request) error
	handle func(*request) error
}

// also is a further answer of a row. If Type is "", its media type is that of the row.
type also struct {
	Type string
	Body any
}

// param is one parameter of the query, or one header.
type param struct{ Name, Type, Doc string }

func (rt route) stream() bool { return rt.ReplyType == sseType }

func (rt route) status() int {
	if rt.Status == 0 {
		return http.StatusOK
	}
	return rt.Status
}

func (rt route) bodyLimit() int64 {
	if rt.MaxBody == 0 {
		return maxJSON
	}
	return rt.MaxBody
}

func (rt route) hasBody() bool { return rt.Body != nil || rt.BodyTypes != nil }

// prefix returns /v1 and the next part of the path, or the first part of a path outside /v1.
func (rt route) prefix() string {
	parts := strings.SplitN(rt.Path, "/", 4)
	if parts[1] == "v1" {
		return "/v1/" + parts[2]
	}
	return "/" + parts[1]
}

var (
	pageParams = []param{
		{"limit", "integer", "rows of the page, 1-1000, default 100"},
		{"cursor", "string", "next_cursor of the page before"},
	}
	partParams = []param{
		{"limit", "integer", "rows of the page, 1-1000; without it: all"},
		{"cursor", "string", "next_cursor of the page before"},
	}
	streamParams = []param{
		{"after", "integer", "begin after this number, as Last-Event-ID does; without either: live"},
	}
)

func query(more []param, own ...param) []param { return append(own, more...) }

// routes returns the table of the whole API.
func routes() []route {
	var all []route
	for _, part := range [][]route{
		beadRoutes(), podRoutes(), memoryRoutes(), eventRoutes(), agentRoutes(),
		taskRoutes(), actionRoutes(), boxRoutes(), identityRoutes(), federationRoutes(), meshRoutes(),
	} {
		all = append(all, part...)
	}
	return all
}

func beadRoutes() []route {
	ready := []param{
		{"parent_id", "string", "direct children of this bead only"}, {"tag", "string", "with this tag"},
		{"kind", "string", "of this kind"},
	}
	return bySlot(adapters.SlotBeads, []route{
		{Method: "POST", Path: "/v1/beads/epics", ID: "createEpic", Roles: agent, Body: adapters.NewBead{}, Reply: adapters.Bead{}, Status: 201,
			Doc: "Make a bead without a parent.", handle: fromJSON(createEpic)},
		{Method: "POST", Path: "/v1/beads/children", ID: "createChild", Roles: agent, Body: adapters.NewBead{}, Reply: adapters.Bead{}, Status: 201,
			Doc: "Make a bead below parent_id.", handle: fromJSON(createChild)},
		{Method: "GET", Path: "/v1/beads/ready", ID: "getReady", Roles: agent | reader, Reply: []adapters.Bead{},
			Query: query(pageParams, append(ready, param{"priority_max", "integer", "0-4, this priority and more urgent ones"})...),
			Doc:   "The beads that can be claimed now, as an array; the header Link leads to the next page.", large: true, handle: getReady},
		{Method: "GET", Path: "/v1/beads/export", ID: "export", Roles: agent | reader, ReplyType: linesType,
			Doc: "All beads as JSON lines, with the field names of bd.", handle: exportBeads},
		{Method: "POST", Path: "/v1/beads/import", ID: "import", Roles: adminOnly, BodyTypes: []string{linesType}, Reply: adapters.ImportResult{}, MaxBody: maxImport,
			Query: []param{{"dry_run", "boolean", "only report what the import would do"}},
			Doc:   "Import beads that export or bd wrote. Of two versions, the newer one is kept. If one bead is refused, no bead is imported.", handle: importBeads},
		{Method: "GET", Path: "/v1/beads", ID: "list", Roles: agent | reader, Reply: adapters.Page[adapters.Bead]{},
			Query: query(pageParams, append(ready, param{"status", "string", "open, claimed, closed or deferred"}, param{"actor", "string", "held by this actor"})...),
			Doc:   "Beads by creation.", large: true, handle: listBeads},
		{Method: "GET", Path: "/v1/beads/{id}", ID: "show", Roles: agent | reader, Reply: adapters.Bead{}, Doc: "One bead.", handle: showBead},
		{Method: "PATCH", Path: "/v1/beads/{id}", ID: "update", Roles: agent, Body: adapters.BeadChange{}, Reply: adapters.Bead{},
			BodyTypes: []string{jsonType, "application/merge-patch+json"},
			Doc:       "Change a bead; If-Match takes its ETag. A null defer_until ends a deferral.", handle: fromJSON(updateBead)},
		{Method: "POST", Path: "/v1/beads/{id}/claim", ID: "claim", Roles: agent, Body: ClaimBody{}, Reply: adapters.Bead{}, Doc: "Become the holder.", handle: claimBead},
		{Method: "POST", Path: "/v1/beads/{id}/close", ID: "close", Roles: agent, Body: CloseBody{}, Reply: adapters.Bead{}, Doc: "End the bead.", handle: fromJSON(closeBead)},
		{Method: "POST", Path: "/v1/beads/{id}/release", ID: "release", Roles: agent, Body: ActorBody{}, Reply: adapters.Bead{}, Doc: "Give up a claim.", handle: releaseBead},
		{Method: "POST", Path: "/v1/beads/{id}/reopen", ID: "reopen", Roles: agent, Reply: adapters.Bead{}, Doc: "Open a closed bead again.", handle: reopenBead},
		{Method: "POST", Path: "/v1/beads/{id}/deps", ID: "addDep", Roles: agent, Body: adapters.Dep{}, Reply: adapters.Dep{}, Status: 201,
			Doc: "Add an edge from this bead; a cycle among blocking ones is refused.", handle: addDep},
		{Method: "DELETE", Path: "/v1/beads/{id}/deps", ID: "removeDep", Roles: agent, Status: 204,
			Query: []param{{"to", "string", "the edge's other end"}, {"type", "string", "default blocks"}},
			Doc:   "Remove an edge from this bead.", handle: removeDep},
		{Method: "POST", Path: "/v1/beads/{id}/comments", ID: "comment", Roles: agent, Body: CommentBody{}, Reply: adapters.BeadComment{}, Status: 201,
			Doc: "Remark on a bead.", handle: fromJSON(commentBead)},
	})
}

// podRoutes admits only an admin: the box calls the pod server with its own identity. An agent must
// call the pod server itself, with its own identity.
func podRoutes() []route {
	body := []string{"*/*"}
	return bySlot(adapters.SlotPods, []route{
		{Method: "GET", Path: "/v1/pods", ID: "list", Roles: adminOnly, Reply: adapters.Page[adapters.PodEntry]{},
			Query: query(pageParams, param{"container", "string", "path of the container, / without"}),
			Doc:   "Members of a container as JSON, by path.", handle: listPods},
		{Method: "GET", Path: "/pods/*", ID: "read", Roles: adminOnly, ReplyType: "*/*", ownHead: true, Doc: "Read a resource or a container.", handle: readPod},
		{Method: "HEAD", Path: "/pods/*", ID: "head", Roles: adminOnly, ReplyType: "*/*", Doc: "Read without the body.", handle: headPod},
		{Method: "PUT", Path: "/pods/*", ID: "write", Roles: adminOnly, BodyTypes: body, MaxBody: adapters.MaxPodBody, Reply: adapters.Written{}, Status: 201,
			Doc: "Make or replace a resource; a path that ends with / makes a container.", handle: writePod},
		{Method: "POST", Path: "/pods/*", ID: "create", Roles: adminOnly, BodyTypes: body, MaxBody: adapters.MaxPodBody, Reply: adapters.Written{}, Status: 201,
			Doc: "Make a resource in a container, named by Slug where that is free; with Link rel=\"type\" ldp:BasicContainer a container.", handle: createPod},
		{Method: "OPTIONS", Path: "/pods/*", ID: "options", Roles: adminOnly, Status: 204,
			Doc: "What the path takes: Allow, Accept-Patch, Accept-Post.", handle: podOptions},
		{Method: "PATCH", Path: "/pods/*", ID: "patch", Roles: adminOnly, MaxBody: adapters.MaxPodPatch, Reply: adapters.Written{},
			BodyTypes: []string{adapters.PatchType(adapters.DialectN3), adapters.PatchType(adapters.DialectSPARQLUpdate), adapters.PatchType(adapters.DialectJSONPatch)},
			Doc:       "Change a resource.", handle: patchPod},
		{Method: "DELETE", Path: "/pods/*", ID: "del", Roles: adminOnly, Reply: Deleted{}, Doc: "Delete a resource or an empty container.", handle: deletePod},
	})
}

func memoryRoutes() []route {
	return bySlot(adapters.SlotMemory, []route{
		{Method: "GET", Path: "/v1/memory", ID: "namespaces", Roles: agent | reader, Reply: adapters.Page[adapters.Namespace]{}, Query: partParams, Doc: "Namespaces and what they hold: the first 10,000 by name.", handle: listNamespaces},
		{Method: "GET", Path: "/v1/memory/{ns}", ID: "list", Roles: agent | reader, Reply: adapters.Page[adapters.MemoryKey]{}, Query: pageParams, Doc: "Keys of a namespace.", handle: listMemory},
		{Method: "POST", Path: "/v1/memory/{ns}/search", ID: "search", Roles: agent | reader, Body: SearchBody{}, Reply: adapters.Page[adapters.Hit]{}, MaxBody: maxBigJSON,
			Doc: "The best hits, by falling score; fewer than limit if their values have 4 MiB together.", large: true, handle: fromJSON(searchMemory)},
		{Method: "PUT", Path: "/v1/memory/{ns}/{key}", ID: "store", Roles: agent, Body: StoreBody{}, Reply: adapters.Stored{}, Status: 201, MaxBody: maxBigJSON,
			Doc: "Store a value, replacing what is there (then 200).", handle: fromJSON(storeMemory)},
		{Method: "GET", Path: "/v1/memory/{ns}/{key}", ID: "retrieve", Roles: agent | reader, Reply: adapters.MemoryEntry{}, Doc: "One value.", handle: retrieveMemory},
		{Method: "DELETE", Path: "/v1/memory/{ns}/{key}", ID: "del", Roles: agent, Reply: Deleted{}, Doc: "Forget a value.", handle: deleteMemory},
	})
}

func eventRoutes() []route {
	filter := []param{
		{"kind", "string", "of this kind; one that ends with a dot is a prefix; may be repeated"},
		{"session_id", "string", "of this session"}, {"execution_id", "string", "of this execution"},
		{"source", "string", "from this source"}, {"subject", "string", "about this subject"},
	}
	return bySlot(adapters.SlotEvents, []route{
		{Method: "POST", Path: "/v1/events", ID: "dispatch", Roles: agent | host, Body: adapters.Event{}, Reply: adapters.Receipt{}, Status: 202, MaxBody: maxBigJSON,
			Also:      []also{{"", adapters.Page[adapters.Receipt]{}}},
			BodyTypes: []string{jsonType, adapters.CloudEventType, adapters.CloudBatchType},
			Doc:       "Record one event, also as a CloudEvent in structured or binary (ce- headers) mode, or up to 500 as a CloudEvents batch. The answer to a batch is a page of receipts in the batch's order.", handle: dispatchEvents},
		{Method: "GET", Path: "/v1/events", ID: "history", Roles: everyone, Reply: adapters.Page[adapters.Event]{}, Query: query(pageParams, filter...),
			Also: []also{{adapters.CloudBatchType, []adapters.CloudEvent{}}},
			Doc:  "Stored events by seq; a page ends early when its payloads have 4 MiB. With Accept: application/cloudevents+json the answer is an array of CloudEvents; the next page is in Link.", large: true, handle: eventHistory},
		{Method: "GET", Path: "/v1/events/stream", ID: "subscribe", Roles: everyone, Reply: adapters.Event{}, ReplyType: sseType, Query: query(streamParams, filter...),
			Doc: "Events as they come (SSE or WebSocket). Its id is in Agentbox-Subscription.", handle: streamEvents},
		{Method: "DELETE", Path: "/v1/events/stream/{id}", ID: "unsubscribe", Roles: adminOnly, Status: 204, Doc: "End a subscription.", handle: unsubscribe},
	})
}

func agentRoutes() []route {
	return bySlot(adapters.SlotOrchestrator, []route{
		{Method: "POST", Path: "/v1/agents", ID: "spawnAgent", Roles: host, Body: adapters.AgentSpec{}, Reply: adapters.Agent{}, Status: 201, MaxBody: maxBigJSON,
			Doc: "Start an agent.", handle: fromJSON(spawnAgent)},
		{Method: "GET", Path: "/v1/agents", ID: "listAgents", Roles: host | reader, Reply: adapters.Page[adapters.Agent]{},
			Query: query(partParams, param{"status", "string", "running, exited, failed or terminated"}, param{"label", "string", "name=value; may be repeated, all must hold"}),
			Doc:   "Agents that run or ended within the hour.", large: true, handle: listAgents},
		{Method: "GET", Path: "/v1/agents/{id}", ID: "getAgent", Roles: everyone, Reply: adapters.Agent{}, Doc: "One agent; an agent may ask for itself alone.", handle: getAgent},
		{Method: "DELETE", Path: "/v1/agents/{id}", ID: "terminateAgent", Roles: host, Reply: adapters.Agent{},
			Query: []param{{"grace_s", "integer", "seconds between SIGTERM and SIGKILL, default 10"}},
			Doc:   "End an agent's whole tree; answers when it is gone.", handle: terminateAgent},
		{Method: "GET", Path: "/v1/agents/{id}/events", ID: "streamEvents", Roles: everyone, Reply: adapters.AgentEvent{}, ReplyType: sseType,
			Query: []param{{"after", "integer", "begin after this number, as Last-Event-ID does; without either: the oldest kept"}},
			Doc:   "An agent's events to its exit (SSE or WebSocket); an agent may see its own alone.", handle: streamAgent},
		{Method: "POST", Path: "/v1/agents/{id}/input", ID: "sendInput", Roles: agent | host, Body: InputBody{}, Status: 204,
			Doc: "Write to an agent's standard input; an agent to its own alone.", handle: sendInput},
	})
}

func taskRoutes() []route {
	return needing(needsTasks, []route{
		{Method: "POST", Path: "/v1/tasks", ID: "startTask", Roles: adminOnly, Body: TaskRequest{}, Reply: TaskAccepted{}, Status: 202, Doc: "Run a template of the manifest.", handle: fromJSON(startTask)},
		{Method: "GET", Path: "/v1/tasks", ID: "listTasks", Roles: reader, Reply: ActiveTasks{}, Also: []also{{"", adapters.Page[TaskStatus]{}}},
			Query: query(pageParams, param{"status", "string", "all: every task, in pages, newest first"}),
			Doc:   "Tasks that run; with status=all a page of all, which ends early when its texts have 4 MiB.", large: true, handle: listTasks},
		{Method: "GET", Path: "/v1/tasks/{id}", ID: "getTask", Roles: reader, Reply: TaskStatus{}, Doc: "One task and the end of its log.", handle: getTask},
		{Method: "DELETE", Path: "/v1/tasks/{id}", ID: "stopTask", Roles: adminOnly, Reply: TaskStatus{}, Doc: "Stop a task; one that has ended is CONFLICT with currentStatus.", handle: stopTask},
		{Method: "GET", Path: "/v1/tasks/{id}/logs/stream", ID: "streamTaskLog", Roles: reader, Reply: TaskLine{}, ReplyType: sseType, Query: streamParams,
			Doc: "A task's log from its beginning, then as it grows; ends with task-complete.", handle: streamTaskLog},
	})
}

func actionRoutes() []route {
	return []route{
		{Method: "GET", Path: "/v1/agent-events", ID: "listAgentActions", Roles: everyone, Reply: ActionList{},
			Query: []param{{"limit", "integer", "newest so many, 1-1000, default 100"}, {"since", "integer", "later than this, Unix milliseconds"}},
			Doc:   "What agents did lately.", handle: listActions},
		{Method: "GET", Path: "/v1/agent-events/types", ID: "agentActionTypes", Roles: everyone, Reply: ActionTypes{}, Doc: "The kinds of action.", handle: actionTypesHandler},
		{Method: "GET", Path: "/v1/agent-events/status", ID: "agentActionStatus", Roles: everyone, Reply: ActionStatus{}, Doc: "How many are kept and followed.", handle: actionStatus},
		{Method: "POST", Path: "/v1/agent-events/emit", ID: "emitAgentAction", Roles: agent | host, Body: NewAction{}, Reply: ActionTaken{}, Status: 202, Doc: "Tell of one action.", handle: fromJSON(emitAction)},
		{Method: "POST", Path: "/v1/agent-events/batch", ID: "emitAgentActions", Roles: agent | host, Body: ActionBatch{}, Reply: ActionTaken{}, Status: 202, Doc: "Tell of up to 500 actions, all or none.", handle: fromJSON(emitActions)},
		{Method: "POST", Path: "/v1/agent-events/hook", ID: "hookAgentAction", Roles: agent | host, Body: ActionHook{}, Reply: ActionTaken{}, Status: 202, Doc: "Tell of the use of a tool, as an agent's hook sends it.", handle: fromJSON(hookAction)},
		{Method: "GET", Path: "/v1/agent-events/stream", ID: "streamAgentActions", Roles: everyone, Reply: Action{}, ReplyType: sseType, Query: streamParams,
			Doc: "Actions as they happen, over WebSocket, or SSE where it is asked for.", handle: streamActions},
	}
}

func boxRoutes() []route {
	return []route{
		{Method: "GET", Path: "/v1/status", ID: "status", Roles: everyone, Reply: Status{}, Doc: "The state of the box.", handle: getStatus},
		{Method: "GET", Path: "/v1/federation", ID: "federation", Roles: everyone, Reply: FederationStatus{}, Doc: "The box's session with a host.", handle: getFederation},
		{Method: "GET", Path: "/v1/adapters", ID: "adapters", Roles: everyone, Reply: adapters.Page[adapters.SlotStatus]{}, Doc: "The state of the slots.", handle: getAdapters},
		{Method: "POST", Path: "/v1/tickets", ID: "ticket", Roles: everyone, Reply: Ticket{}, Status: 201, Doc: "A credential for one WebSocket of a browser: single use, 30 s.", handle: newTicket},
		{Method: "GET", Path: "/v1/uri/{urn}", ID: "resolve", Roles: everyone, Status: 307, Doc: "A redirect to what a urn:agentbox: or did:nostr: name stands for.", handle: resolveName},
		{Method: "GET", Path: "/v1/backup", ID: "backup", needs: needsBackup, Roles: adminOnly, ReplyType: tarType,
			Query: []param{{"include_secrets", "boolean", "with keys and identities"}, {"skip", "string", "without this part; may be repeated"}},
			Doc:   "A consistent copy of all local state, as a tar.", handle: getBackup},
		{Method: "POST", Path: "/v1/restore", ID: "restore", needs: needsBackup, Roles: adminOnly, BodyTypes: []string{tarType}, MaxBody: backup.MaxArchive, Reply: backup.Restored{},
			Query: []param{
				{"dry_run", "boolean", "only check the whole backup"}, {"replace", "boolean", "also replace state that is in use; the old state is kept under another name"},
				{"include_secrets", "boolean", "with keys and identities"}, {"part", "string", "this part alone; may be repeated"},
			},
			Doc: "Restore a backup.", handle: postRestore},
		{Method: "GET", Path: "/openapi.json", ID: "openapi", Reply: json.RawMessage{}, open: true, Doc: "This table as OpenAPI 3.1.", handle: getOpenAPI},
	}
}

// needing sets needs in all rows of a part that some boxes do not have.
func needing(part func(*request) error, rows []route) []route {
	for i := range rows {
		rows[i].needs = part
	}
	return rows
}

func bySlot(slot adapters.Slot, rows []route) []route {
	// A registered box calls these slots for its agents, so it needs the rights of an agent.
	ofBoxes := slot == adapters.SlotBeads || slot == adapters.SlotMemory || slot == adapters.SlotEvents
	for i := range rows {
		rows[i].Slot = slot
		if ofBoxes && rows[i].Roles&agent != 0 {
			rows[i].Roles |= box
		}
	}
	return rows
}
