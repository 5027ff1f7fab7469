package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/exchange"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// This file makes a part of the control API available over HTTP: the management listener serves it
// under the paths below. The rows of the route table are those of the control socket. Only the
// identification differs. On the socket the kernel names the peer; here the listener has checked a
// credential and says what it allows.

// remoteRoute maps a path of the management listener to a row of the route table.
type remoteRoute struct {
	Method, Path string
	// row is the path of the row; its method is the same.
	row string
	// action: the program's name comes from the path, and the rest of api.ActionRequest from the
	// body. In other rows, {name} becomes the parameter name of the query.
	action bool
	Doc    string
}

const remoteOpenAPIPath = "/v1/box/openapi.json"

// remoteRoutes lists what is reachable over HTTP. The adapters have their own routes there. Bridge,
// shutdown and the log level are only for processes in the box.
func remoteRoutes() []remoteRoute {
	return []remoteRoute{
		{Method: "GET", Path: "/v1/programs", row: "/v1/status", Doc: "State of programs at one event number."},
		{Method: "GET", Path: "/v1/programs/{name}", row: "/v1/program", Doc: "One program and the specification it runs by."},
		{Method: "GET", Path: "/v1/programs/{name}/why", row: "/v1/why", Doc: "Why a program is in the state it is in, and what happens next."},
		{Method: "GET", Path: "/v1/programs/{name}/processes", row: "/v1/processes", Doc: "The living processes of a program."},
		{Method: "GET", Path: "/v1/programs/{name}/logs", row: "/v1/logs", Doc: "Captured output of one program, as JSON lines or, with Accept: text/event-stream, as server-sent events."},
		{Method: "POST", Path: "/v1/programs/{name}/start", row: "/v1/start", action: true, Doc: "Start a program and wait until it runs, has completed or has failed."},
		{Method: "POST", Path: "/v1/programs/{name}/run", row: "/v1/run", action: true, Doc: "Start a run of a program now, of a schedule too, and wait until it runs, has completed or has failed."},
		{Method: "POST", Path: "/v1/programs/{name}/stop", row: "/v1/stop", action: true, Doc: "Stop a program and wait until its processes are gone."},
		{Method: "POST", Path: "/v1/programs/{name}/restart", row: "/v1/restart", action: true, Doc: "Restart a program."},
		{Method: "POST", Path: "/v1/programs/{name}/signal", row: "/v1/signal", action: true, Doc: "Send a signal to a program."},
		{Method: "GET", Path: "/v1/logs", row: "/v1/logs", Doc: "Captured output of all programs, or of those named, as JSON lines or server-sent events. An event's id is the line's cursor; Last-Event-ID goes on after it."},
		{Method: "GET", Path: "/v1/box/events", row: "/v1/events", Doc: "Events of the supervisor, as JSON lines or server-sent events; a Lagged event stands for lost ones."},
		{Method: "GET", Path: "/v1/box/usage", row: "/v1/usage", Doc: "What each program's processes use."},
		{Method: "GET", Path: "/v1/box/plan", row: "/v1/plan", Doc: "The resolved plan in force."},
		{Method: "GET", Path: "/v1/box/manifest", row: "/v1/manifest", Doc: "Every value of the manifest in force, where it comes from, and the findings."},
		{Method: "GET", Path: "/v1/box/boot", row: "/v1/boot", Doc: "Record of the boot: phases, artifacts, programs, critical chain."},
		{Method: "GET", Path: "/v1/box/ready", row: "/v1/ready", Doc: "Whether the box is ready, and what is missing; always 200."},
		{Method: "GET", Path: remoteOpenAPIPath, row: openAPIPath, Doc: "The routes of programs and of the box as OpenAPI 3.1."},
		{Method: "POST", Path: "/v1/box/apply", row: "/v1/apply", Doc: "Read the manifest again and carry out the difference; dry_run only shows it."},
	}
}

// RemotePrefixes are the paths below which Remote has routes. The listener needs them to mount
// Remote.
func RemotePrefixes() []string { return []string{"/v1/programs", "/v1/logs", "/v1/box"} }

// rowsByPath are the rows of the route table by method and path, as Remote serves them.
func rowsByPath() map[string]route {
	rows := make(map[string]route)
	for _, rt := range routes() {
		if rt.Path == openAPIPath {
			rt.reply = getRemoteOpenAPI
		}
		rows[rt.Method+" "+rt.Path] = rt
	}
	return rows
}

func getRemoteOpenAPI(s *Server, _ *http.Request) (any, error) {
	return openAPI(remoteTable(), aboutRemote, s.cfg.Version.Version), nil
}

// remoteTable describes the remote routes as rows: where the path names the program, no parameter does.
func remoteTable() []route {
	rows := rowsByPath()
	var table []route
	for _, remote := range remoteRoutes() {
		rt := rows[remote.Method+" "+remote.row]
		rt.Path, rt.Doc = remote.Path, remote.Doc
		if strings.Contains(remote.Path, "{name}") {
			rt.Query = slices.DeleteFunc(slices.Clone(rt.Query), func(p param) bool { return p.Name == oneName.Name })
		}
		table = append(table, rt)
	}
	return table
}

// Grant is what a credential of the management listener allows. Principal names its holder in the
// audit trail.
type Grant struct {
	Access    Access
	Principal string
}

// Remote serves the part of the control API that is reachable over HTTP. The listener has already
// checked the credential of a request, and grant says what it allows. grant is called once for each
// request and must answer from memory.
func (s *Server) Remote(grant func(*http.Request) Grant) http.Handler {
	rows := rowsByPath()
	mux := http.NewServeMux()
	allowed := make(map[string][]string)
	for _, remote := range remoteRoutes() {
		mux.Handle(remote.Method+" "+remote.Path, s.serveRemote(remote, rows[remote.Method+" "+remote.row]))
		allowed[remote.Path] = append(allowed[remote.Path], remote.Method)
	}
	for path, methods := range allowed {
		mux.Handle(path, s.methodNotAllowed(methods))
	}
	mux.Handle("/", s.noRoute(remoteOpenAPIPath))
	clean := s.onlyCleanPaths(mux, remoteOpenAPIPath)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := grant(r)
		peer := Peer{UID: noUser, GID: noUser, Granted: g.Access, Principal: g.Principal}
		a := &answer{ResponseWriter: w}
		r = r.WithContext(context.WithValue(r.Context(), peerKey{}, peer))
		defer s.contain(a, r)
		clean.ServeHTTP(a, r)
	})
}

// noUser is a uid that no process has: (uid_t)-1.
const noUser = ^uint32(0)

func (s *Server) serveRemote(remote remoteRoute, rt route) http.Handler {
	return s.serveRoute(rt, func(w http.ResponseWriter, r *http.Request) error {
		exchange.SetRoute(r.Context(), remote.Path) // the later call wins
		if err := checkMediaType(r); err != nil {
			return err
		}
		name := r.PathValue("name")
		switch {
		case name == "":
			return nil
		case remote.action:
			return nameInBody(w, r, name)
		}
		q := r.URL.Query()
		q.Set("name", name)
		r.URL.RawQuery = q.Encode()
		return nil
	})
}

// checkMediaType refuses a body that is not declared as JSON. A browser sends the types of a form, and
// a body without a type, from any page without asking the box first (Fetch Standard, CORS-safelisted
// request header; CORS preflight); it asks before it sends JSON. Without a body the type says nothing:
// clients send one with an empty body too. A chunked body has a length of -1 and counts as a body.
func checkMediaType(r *http.Request) error {
	if r.ContentLength == 0 {
		return nil
	}
	given := r.Header.Get("Content-Type")
	mt, _, err := mime.ParseMediaType(given)
	if err == nil && (mt == "application/json" || strings.HasSuffix(mt, "+json")) {
		return nil
	}
	given = cmp.Or(given, "a body without Content-Type")
	return api.Errorf(api.CodeMediaType, "the body must be application/json, not %.100s; send the header Content-Type: application/json", given)
}

// nameInBody makes the program in the path the only name of the action.
func nameInBody(w http.ResponseWriter, r *http.Request, name string) error {
	req, err := decode[api.ActionRequest](http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return err
	}
	if len(req.Names) > 0 || req.All {
		return api.Errorf(api.CodeBadRequest, "names and all are not allowed here: the path names the program")
	}
	req.Names = []string{name}
	body, err := json.Marshal(req)
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}
