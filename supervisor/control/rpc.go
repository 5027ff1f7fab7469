package control

import (
	"context"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/exchange"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/supervisord"
)

// supervisordRoutes are the paths that supervisord's own supervisorctl asks for. They are not part of
// the control API's description: what they do is described by supervisord.
func supervisordRoutes() []route {
	return []route{
		{Method: "POST", Path: "/RPC2", Access: Read, reply: postRPC, place: rpcPlace},
		{Method: "GET", Path: "/logtail/{name}/{stream}", Access: Read, stream: getLogTail, place: logPlace, plain: true},
	}
}

// maxRPCGuests is how many calls of supervised programs without control = true are carried out or
// answered at once, and as many of those with it.
const maxRPCGuests = 4

// rpcPlace is the place of a call. The peer has it until the answer is sent: an answer that the peer does
// not read takes megabytes too.
func rpcPlace(s *Server, peer Peer) (leave func(), err error) {
	leave, ok := s.rpcGuests.take(peer, s.mayControl)
	if !ok {
		return nil, api.Errorf(api.CodeBusy, "supervised programs make %d XML-RPC calls already; try again when one has ended", maxRPCGuests)
	}
	return leave, nil
}

// postRPC answers one XML-RPC call. What the call does is a request of the peer to the control API, with
// the rights and the audit of that request.
func postRPC(s *Server, r *http.Request) (any, error) {
	ctx := context.WithValue(r.Context(), connKey{}, nil) // the connection is busy until the end of the call, not of its requests
	box := api.LocalClient(func(inner *http.Request) (*http.Response, error) {
		defer exchange.SetRoute(ctx, "/RPC2") // the request has set its own
		return s.serveLocally(inner), nil
	})
	body, err := supervisord.Answer(ctx, box, r.Body)
	if err != nil {
		return nil, err
	}
	return document{contentType: "text/xml", body: body}, nil
}

// serveLocally answers a request of this process. Its handler waits while the answer is not read, so a
// long answer, such as a log of megabytes, is never in memory as a whole.
func (s *Server) serveLocally(r *http.Request) *http.Response {
	ctx, cancel := context.WithCancel(r.Context())
	r = r.WithContext(ctx)
	if r.Body == nil {
		r.Body = http.NoBody // serveRoute reads the body, and this request has none
	}
	w := &localWriter{status: http.StatusOK, header: make(http.Header)}
	next, stop := iter.Pull(func(yield func([]byte) bool) {
		w.yield = yield
		s.mux().ServeHTTP(w, r)
	})
	body := &localBody{next: next, close: func() { cancel(); stop() }}
	body.more() // until then the header is not complete
	return &http.Response{
		StatusCode: w.status, Status: strconv.Itoa(w.status) + " " + http.StatusText(w.status),
		Header: w.header, Body: body, Request: r,
	}
}

// localWriter passes what a handler writes to the reader of the answer. It has no connection, so no
// deadlines either.
type localWriter struct {
	status int
	header http.Header
	yield  func([]byte) bool // false: the reader has closed the answer
}

func (w *localWriter) Header() http.Header    { return w.header }
func (w *localWriter) WriteHeader(status int) { w.status = status }

func (w *localWriter) Write(p []byte) (int, error) {
	if !w.yield(p) {
		return 0, io.ErrClosedPipe
	}
	return len(p), nil
}

func (w *localWriter) FlushError() error                { return nil }
func (w *localWriter) SetReadDeadline(time.Time) error  { return nil }
func (w *localWriter) SetWriteDeadline(time.Time) error { return nil }

// localBody reads what the handler writes.
type localBody struct {
	next  func() ([]byte, bool)
	close func()
	rest  []byte // of the latest write
	ended bool
}

// more waits for the next write if the latest one has been read.
func (b *localBody) more() {
	for len(b.rest) == 0 && !b.ended {
		var ok bool
		b.rest, ok = b.next()
		b.ended = !ok
	}
}

func (b *localBody) Read(p []byte) (int, error) {
	b.more()
	if b.ended {
		return 0, io.EOF
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *localBody) Close() error {
	b.close()
	return nil
}

// tailLines is how much of the past a log tail begins with.
const tailLines = "10"

// getLogTail is the log of one program and what it prints from now on, as text.
func getLogTail(s *Server, r *http.Request, out *lines) error {
	programs := s.cfg.Supervisor.Snapshot().Programs
	name := r.PathValue("name")
	c := supervisord.Choose(toPrograms(programs), name)
	if c.Group || len(c.Programs) == 0 {
		return unknownNames([]string{name}, programs)
	}
	r.URL.RawQuery = url.Values{
		"name": {c.Programs[0].Name}, "stream": {r.PathValue("stream")}, "lines": {tailLines}, "follow": {"true"},
	}.Encode()
	return getLogs(s, r, out)
}
