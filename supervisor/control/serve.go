package control

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/exchange"
	"github.com/dreamlab-ai/agentinit/internal/problem"
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// serveRoute does what all rows have in common: it checks the rights, then answers. In between,
// adapt turns a request from another path into one that the row understands.
func (s *Server) serveRoute(rt route, adapt func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		exchange.SetRoute(r.Context(), rt.Path)
		peer := peerOf(r.Context())
		if refused := s.policy().authorize(peer, rt.Access); refused != nil {
			s.auditRefusal(r, refused)
			s.fail(w, refused)
			return
		}
		if rt.probe {
			defer underWay(r)()
			s.serveProbe(w, r)
			return
		}
		if err := adapt(w, r); err != nil {
			s.fail(w, asProblem(err))
			return
		}
		if err := checkQuery(r.URL.RawQuery, rt.Query); err != nil {
			s.fail(w, asProblem(err))
			return
		}
		if err := takeBody(w, r); err != nil {
			s.fail(w, asProblem(err))
			return
		}
		if rt.place != nil {
			leave, err := rt.place(s, peer)
			if err != nil {
				s.fail(w, asProblem(err))
				return
			}
			defer leave()
		}
		defer underWay(r)()
		switch {
		case rt.upgrade != nil:
			s.serveUpgrade(w, r, rt)
		case rt.stream != nil:
			s.serveStream(w, r, rt)
		default:
			s.serveReply(w, r, rt)
		}
	})
}

// asItIs changes nothing.
func asItIs(http.ResponseWriter, *http.Request) error { return nil }

// takeBody reads the whole body within its deadline and then removes the deadline. Otherwise
// net/http would take the end of the deadline for a disconnected peer, in the middle of a long
// wait.
func takeBody(w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	_, isTooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case isTooLarge:
		return err
	case err != nil:
		return api.Errorf(api.CodeBadRequest, "cannot read the request's body: %v", err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return http.NewResponseController(w).SetReadDeadline(time.Time{})
}

func (s *Server) serveProbe(w http.ResponseWriter, r *http.Request) {
	s.bound(w)
	s.cfg.Probes.ServeHTTP(w, r)
}

func (s *Server) serveReply(w http.ResponseWriter, r *http.Request, rt route) {
	v, err := rt.reply(s, r)
	if r.Context().Err() != nil && !serverEnding(r.Context()) {
		return // the peer has disconnected
	}
	if err != nil {
		s.fail(w, asProblem(err))
		return
	}
	if d, ok := v.(document); ok {
		maps.Copy(w.Header(), d.header)
		s.send(w, http.StatusOK, d.contentType, d.body)
		return
	}
	s.write(w, http.StatusOK, "application/json", v)
}

// document is an answer that is not JSON.
type document struct {
	contentType string
	header      http.Header
	body        []byte
}

const plainText = "text/plain; charset=utf-8"

// fail answers with a problem document. Only the code decides the status, because an error from
// outside this package may have no status.
func (s *Server) fail(w http.ResponseWriter, err *api.Error) {
	told := *err
	if told.Code == api.CodeUnknownProgram && notStarted(s.cfg.Supervisor.Snapshot()) {
		told = *api.NotStarted(s.cfg.Boot.Boot())
	}
	told.Status = told.Code.HTTPStatus()
	told.Title = http.StatusText(told.Status)
	s.write(w, told.Status, problem.Type, &told)
}

func (s *Server) write(w http.ResponseWriter, status int, contentType string, v any) {
	body, err := event.Encode(v) // no answer is HTML
	if err != nil {
		panic(err) // the wire types always encode; ServeHTTP reports this panic
	}
	s.send(w, status, contentType, append(body, '\n'))
}

func (s *Server) send(w http.ResponseWriter, status int, contentType string, body []byte) {
	s.bound(w)
	begin(w, contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	// An error here means that the peer has disconnected or does not read.
	_, _ = w.Write(body)
}

// begin sets the headers that every answer has. Over HTTP a browser may show the output of a program,
// and must not take it for a page of the console's origin.
func begin(w http.ResponseWriter, contentType string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
}

// bound limits the time in which the peer must read the answer.
func (s *Server) bound(w http.ResponseWriter) {
	// It fails only on a closed connection, where that does not matter.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.cfg.Limits.Write))
}

// asProblem is the one place that turns an error into an answer.
func asProblem(err error) *api.Error {
	problem, isProblem := errors.AsType[*api.Error](err)
	tooLarge, isTooLarge := errors.AsType[*http.MaxBytesError](err)
	refused, isRefused := errors.AsType[*supervisor.Refused](err)
	switch {
	case isProblem:
		return problem
	case isRefused:
		return api.Errorf(codeOf(refused), "%v", refused)
	case errors.Is(err, supervisor.ErrDone):
		return api.Errorf(api.CodeShuttingDown, "agentinit is shutting down")
	case isTooLarge:
		return api.Errorf(api.CodeTooLarge, "the request's body is larger than %d bytes", tooLarge.Limit)
	}
	// errors.Join writes each error on a line of its own, and a message is one line.
	return api.Errorf(api.CodeInternal, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
}

func unsupported(what string) *api.Error {
	return api.Errorf(api.CodeUnsupported, "this agentinit has no %s", what)
}

func (s *Server) methodNotAllowed(methods []string) http.Handler {
	if slices.Contains(methods, http.MethodGet) {
		methods = append(slices.Clone(methods), http.MethodHead)
	}
	allow := strings.Join(methods, ", ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", allow)
		s.fail(w, api.Errorf(api.CodeMethod, "%s is not for %s; allowed: %s", r.Method, r.URL.Path, allow))
	})
}

// noRoute refuses a path that is not there; list is the path of the list of routes.
func (s *Server) noRoute(list string) http.HandlerFunc {
	e := api.Errorf(api.CodeNotFound, "no such route")
	e.Hint = "GET " + list + " lists them"
	return func(w http.ResponseWriter, _ *http.Request) { s.fail(w, e) }
}

// onlyCleanPaths refuses a path such as //x, /x/../y and *. http.ServeMux redirects it to another path, with
// a page of HTML.
func (s *Server) onlyCleanPaths(mux *http.ServeMux, list string) http.Handler {
	refuse := s.noRoute(list)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given := r.URL.EscapedPath()
		if clean := path.Clean("/" + given); given != clean && (clean == "/" || given != clean+"/") {
			refuse(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}
