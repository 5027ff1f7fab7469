package control

import (
	"bytes"
	"context"
	"io"
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
		{Method: "POST", Path: "/RPC2", Access: Read, reply: postRPC},
		{Method: "GET", Path: "/logtail/{name}/{stream}", Access: Read, stream: getLogTail, plain: true},
	}
}

// maxRPCGuests is how many calls of supervised programs without control = true are carried out at once,
// and as many of those with it.
const maxRPCGuests = 4

// postRPC answers one XML-RPC call. What the call does is a request of the peer to the control API, with
// the rights and the audit of that request.
func postRPC(s *Server, r *http.Request) (any, error) {
	leave, ok := s.rpcGuests.take(peerOf(r.Context()), s.mayControl)
	if !ok {
		return nil, api.Errorf(api.CodeBusy, "supervised programs make %d XML-RPC calls already; try again when one has ended", maxRPCGuests)
	}
	defer leave()
	ctx := context.WithValue(r.Context(), connKey{}, nil) // the connection is busy until the end of the call, not of its requests
	box := api.LocalClient(func(inner *http.Request) (*http.Response, error) {
		if inner.Body == nil {
			inner.Body = http.NoBody // the routes read the body of every request
		}
		answer := &memory{status: http.StatusOK, header: make(http.Header)}
		s.mux().ServeHTTP(answer, inner)
		exchange.SetRoute(ctx, "/RPC2")
		return &http.Response{
			StatusCode: answer.status, Status: strconv.Itoa(answer.status) + " " + http.StatusText(answer.status),
			Header: answer.header, Body: io.NopCloser(&answer.body), Request: inner,
		}, nil
	})
	body, err := supervisord.Answer(ctx, box, r.Body)
	if err != nil {
		return nil, err
	}
	return document{contentType: "text/xml", body: body}, nil
}

// memory is an answer that is kept in memory. It has no connection, so no deadlines either.
type memory struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func (m *memory) Header() http.Header              { return m.header }
func (m *memory) WriteHeader(status int)           { m.status = status }
func (m *memory) Write(p []byte) (int, error)      { return m.body.Write(p) }
func (m *memory) FlushError() error                { return nil }
func (m *memory) SetReadDeadline(time.Time) error  { return nil }
func (m *memory) SetWriteDeadline(time.Time) error { return nil }

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
