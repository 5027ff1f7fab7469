package control

import (
	"encoding/json"
	"io"
	"net/http"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// route is one row of the control API. Exactly one of reply, stream, upgrade and probe is set and
// serves it.
type route struct {
	Method, Path string
	Access       Access
	Doc          string
	Query        []param
	// Body and Reply are zero values of the types of request and answer, for the documentation. A
	// stream's Reply is the type of one line.
	Body, Reply any
	// plainHeader is not empty if the answer may be text/plain instead: it then has this header.
	plainHeader string

	reply  func(*Server, *http.Request) (any, error)
	stream func(*Server, *http.Request, *lines) error
	// upgrade returns what takes over the connection of a peer that has asked for Protocol, and closes it
	// at the end. Or it refuses the request.
	upgrade  func(*Server, *http.Request) (serve func(io.ReadWriteCloser) error, refused error)
	Protocol string
	// probe: Config.Probes serves it.
	probe bool
	// place takes one of the places for requests of this kind, or returns an error if all are taken.
	// nil: any number of them may be under way at once.
	place func(*Server, Peer) (leave func(), err error)
	// plain: the stream is the text of log lines.
	plain bool
}

// param is one parameter of a query.
type param struct {
	Name, Type, Doc string
	Repeated        bool
}

var (
	manyNames = param{Name: "name", Type: "string", Repeated: true, Doc: "name, group, glob or unambiguous prefix; none means every program"}
	oneName   = param{Name: "name", Type: "string", Doc: "name or unambiguous prefix of one program"}
)

const openAPIPath = "/v1/openapi.json"

// routes is the control API: for each path, who may use it and what serves it.
func routes() []route {
	return []route{
		{Method: "GET", Path: "/v1/status", Access: Read, reply: getStatus, Reply: api.Status{},
			Query: []param{manyNames,
				{Name: "table", Type: "boolean", Doc: "only what a table shows: members that are false, empty or of earlier runs are left out, and usage is in it"},
				{Name: "text", Type: "boolean", Doc: "the table that agentctl status prints into a pipe, as text/plain"}},
			plainHeader: api.HeaderAllRunning,
			Doc:         "State of programs at one event number."},
		{Method: "GET", Path: "/v1/program", Access: Read, reply: getProgram, Query: []param{oneName}, Reply: api.ProgramDetail{},
			Doc: "One program and the specification it runs by."},
		{Method: "GET", Path: "/v1/why", Access: Read, reply: getWhy, Query: []param{oneName}, Reply: api.Why{},
			Doc: "Why a program is in the state it is in, and what happens next."},
		{Method: "GET", Path: "/v1/usage", Access: Read, reply: getUsage, Reply: api.Usage{},
			Doc: "What each program's processes use. A reading is kept for next_ms, at least a second."},
		{Method: "GET", Path: "/v1/processes", Access: Read, reply: getProcesses, Query: []param{oneName}, Reply: api.Processes{},
			Doc: "The living processes of one program. A reading is kept for next_ms, at least a second."},
		{Method: "POST", Path: "/v1/start", Access: Write, reply: postStart, Body: api.ActionRequest{}, Reply: api.ActionResult{},
			Doc: "Start programs and wait until each runs, has completed or has failed; resume schedules. All starts what the boot starts, wave by wave."},
		{Method: "POST", Path: "/v1/run", Access: Write, reply: postRun, Body: api.ActionRequest{}, Reply: api.ActionResult{},
			Doc: "Start a run of programs now, of schedules too, and wait until each runs, has completed or has failed."},
		{Method: "POST", Path: "/v1/stop", Access: Write, reply: postStop, Body: api.ActionRequest{}, Reply: api.ActionResult{},
			Doc: "Stop programs in the reverse order of their start and wait until their processes are gone; pause schedules."},
		{Method: "POST", Path: "/v1/restart", Access: Write, reply: postRestart, Body: api.ActionRequest{}, Reply: api.ActionResult{},
			Doc: "Restart programs, all at once or rolling."},
		{Method: "POST", Path: "/v1/signal", Access: Write, reply: postSignal, Body: api.ActionRequest{}, Reply: api.ActionResult{},
			Doc: "Send a signal to programs."},
		{Method: "GET", Path: "/v1/logs", Access: Read, stream: getLogs, place: logPlace, Reply: api.LogLine{},
			Query: []param{manyNames,
				{Name: "stream", Type: "string", Doc: "stdout or stderr; both without"},
				{Name: "since", Type: "string", Doc: "RFC 3339 instant; lines from then on, from log files too"},
				{Name: "until", Type: "string", Doc: "RFC 3339 instant; lines before it"},
				{Name: "after", Type: "string", Doc: "cursor of a line; only lines after it"},
				{Name: "grep", Type: "string", Doc: "RE2 that the line must match"},
				{Name: "lines", Type: "string", Doc: "begin with the newest so many that match; 0 or negative: none; all: also what only log files have"},
				{Name: "previous", Type: "boolean", Doc: "the latest run of each program that has ended"},
				{Name: "follow", Type: "boolean", Doc: "go on with lines as they come"}},
			Doc: "Captured output as JSON lines or server-sent events, in the order in which it was read. An event's id is the line's cursor; Last-Event-ID goes on after it."},
		{Method: "POST", Path: "/v1/logs/reopen", Access: Write, reply: postReopen, Reply: api.Accepted{},
			Doc: "Close and open every log file by its path; answers at once."},
		{Method: "GET", Path: "/v1/events", Access: Read, stream: getEvents, Reply: api.Event{},
			Query: []param{
				{Name: "since", Type: "string", Doc: "only events after this number, or after the event with this id; after an id of an earlier boot: all that are held"},
				{Name: "follow", Type: "boolean", Doc: "go on with events as they come"}},
			Doc: "Events as JSON lines; a Lagged event stands for lost ones."},
		{Method: "GET", Path: "/v1/listen", Access: Read, upgrade: listenEvents, place: listenPlace, Protocol: api.ListenProtocol,
			Query: []param{
				{Name: "events", Type: "string", Repeated: true, Doc: "name of an event of supervisord, such as PROCESS_STATE, or several with commas between them"},
				{Name: "buffer", Type: "integer", Doc: "how many events wait for the listener at most, 1 to 1000; 10 without"},
				{Name: "pool", Type: "string", Doc: "name of the pool; without it, the name of the program in the manifest"}},
			Doc: "Become an event listener of supervisord: the connection changes to its protocol, standard input and output in one."},
		{Method: "GET", Path: "/v1/wait", Access: Read, reply: getWait, Reply: api.WaitResult{},
			Query: []param{manyNames,
				{Name: "for", Type: "string", Doc: api.ForAny},
				{Name: "timeout", Type: "string", Doc: "Go duration, at most 10m"}},
			Doc: "Answer when a condition holds. No name and ready: the box."},
		{Method: "GET", Path: "/v1/plan", Access: Read, reply: getPlan, Reply: json.RawMessage{},
			Doc: "The resolved plan in force."},
		{Method: "GET", Path: "/v1/manifest", Access: Read, reply: getManifest, Reply: api.Manifest{},
			Doc: "Every value of the manifest in force, where it comes from, and the findings."},
		{Method: "POST", Path: "/v1/apply", Access: Write, reply: postApply, Body: api.ApplyRequest{}, Reply: api.ApplyResult{},
			Doc: "Read the manifest again and carry out the difference."},
		{Method: "GET", Path: "/v1/ready", Access: Open, reply: getReady, Reply: api.Readiness{},
			Doc: "Whether the box is ready; always 200."},
		{Method: "GET", Path: "/v1/boot", Access: Read, reply: getBoot, Reply: api.Boot{},
			Query: []param{{Name: "previous", Type: "boolean", Doc: "the boot before this one"}},
			Doc:   "Record of the boot: phases, artifacts, programs, critical chain."},
		{Method: "GET", Path: "/v1/log-level", Access: Read, reply: getLogLevel, Reply: api.LogLevel{},
			Doc: "Level of agentinit's own log."},
		{Method: "PUT", Path: "/v1/log-level", Access: Write, reply: putLogLevel, Body: api.LogLevel{}, Reply: api.LogLevel{},
			Doc: "Change the level of agentinit's own log."},
		{Method: "GET", Path: "/v1/confinement", Access: Read, reply: getConfinement, Query: []param{oneName}, Reply: api.Confinement{},
			Doc: "What bounds a program: user, capabilities, seccomp, sandbox, limits."},
		{Method: "POST", Path: "/v1/sandbox/test", Access: Write, reply: postSandboxTest, Body: api.SandboxTest{}, Reply: api.SandboxTestResult{},
			Doc: "Run a command as a program would be run, and tell what was refused to it. Only for processes outside all programs."},
		{Method: "GET", Path: "/v1/crash", Access: Read, reply: getCrash, Query: []param{oneName}, Reply: api.Crashes{},
			Doc: "How the latest run of a program ended that did not end as expected; without a name, of each."},
		{Method: "GET", Path: "/v1/audit", Access: Read, stream: getAudit, Reply: api.AuditEntry{},
			Query: []param{{Name: "since", Type: "integer", Doc: "only entries after this number"}},
			Doc:   "Who asked for what, as JSON lines, each with the hash of the one before: the newest entries."},
		{Method: "GET", Path: "/v1/audit/check", Access: Read, reply: getAuditCheck, Reply: api.AuditReport{},
			Doc: "Whether the file of that record is as it was written."},
		{Method: "POST", Path: "/v1/bridge", Access: Write, upgrade: attachBridge, Protocol: api.BridgeProtocol,
			Doc: "Become the orchestrator's host: the connection changes to JSON-RPC 2.0 lines."},
		{Method: "POST", Path: "/v1/shutdown", Access: Write, reply: postShutdown, Body: api.ShutdownRequest{}, Reply: api.Accepted{},
			Doc: "Stop everything and exit; answers at once."},
		{Method: "GET", Path: "/v1/version", Access: Open, reply: getVersion, Reply: api.Version{},
			Doc: "What is answering."},
		{Method: "GET", Path: openAPIPath, Access: Open, reply: getOpenAPI, Reply: json.RawMessage{},
			Doc: "This table as an OpenAPI 3.1 document."},
		{Method: "GET", Path: "/v1/meta", Access: Open, probe: true, Doc: "Facts about the box, as on the management listener."},
		{Method: "GET", Path: "/livez", Access: Open, probe: true, Doc: "Whether the supervisor's loop answers."},
		{Method: "GET", Path: "/ready", Access: Open, probe: true, Doc: "Whether the box is ready: 200 or 503."},
		{Method: "GET", Path: "/health", Access: Open, probe: true, Doc: "Health for people."},
		{Method: "GET", Path: "/metrics", Access: Open, probe: true, Doc: "Prometheus metrics."},
	}
}
