package control_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/lateclose/lingertest"
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
)

// ask sends one raw request.
func ask(tb testing.TB, socket, method, target, body string) (int, string) {
	tb.Helper()
	resp, text := roundTrip(tb, socket, method, target, body)
	return resp.StatusCode, text
}

// get returns the header and body of an answer.
func get(tb testing.TB, socket, target string) (http.Header, string) {
	tb.Helper()
	resp, text := roundTrip(tb, socket, "GET", target, "")
	return resp.Header, text
}

func roundTrip(tb testing.TB, socket, method, target, body string) (*http.Response, string) {
	tb.Helper()
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(tb.Context(), method, "http://x"+target, strings.NewReader(body))
	must(tb, err)
	resp, err := tr.RoundTrip(req)
	must(tb, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	must(tb, err)
	return resp, string(data)
}

func TestBadRequestsSayWhy(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	path := controltest.Serve(t, b.Own())
	for _, c := range []struct {
		method, target, body string
		status               int
		detail               string
	}{
		{"GET", "/nowhere", "", 404, "no such route"},
		{"GET", "//", "", 404, "no such route"},
		{"GET", "//x", "", 404, "no such route"},
		{"GET", "/../x", "", 404, "no such route"},
		{"GET", "/v1//status", "", 404, "no such route"},
		{"GET", "/v1/./status", "", 404, "no such route"},
		{"POST", "/v1/x/../stop", "", 404, "no such route"},
		{"GET", "/v1/status/", "", 404, "no such route"},
		{"GET", "/adapters", "", 404, "no such route"},
		{"GET", "/adapters/v1//beads", "", 404, "no such route"},
		{"OPTIONS", "/v1/..", "", 404, "no such route"},
		{"GET", "/v1/start", "", 405, "allowed: POST"},
		{"DELETE", "/v1/log-level", "", 405, "allowed: "},
		{"POST", "/v1/start", "", 400, "neither names nor all"},
		{"POST", "/v1/start", "{", 400, "unexpected end of JSON"},
		{"POST", "/v1/start", `{"all":true}{"all":true}`, 400, "after top-level value"},
		{"POST", "/v1/start", `{"all":true,"nmae":1}`, 400, "unknown field"},
		{"POST", "/v1/start", `{"all":"yes"}`, 400, "cannot unmarshal"},
		{"POST", "/v1/start", `{"names":[""]}`, 400, "a name has"},
		{"POST", "/v1/start", `{"names":["` + strings.Repeat("a", 257) + `"]}`, 400, "a name has"},
		{"POST", "/v1/start", `{"names":["web"],"all":true}`, 400, "exclude"},
		{"POST", "/v1/start", `{"all":true,"timeout_ms":-1}`, 400, "negative"},
		{"POST", "/v1/start", `{"all":true,"rolling":true}`, 400, "rolling is for restart"},
		{"POST", "/v1/start", strings.Repeat(" ", 64<<10+1), 413, "larger than 65536"},
		{"POST", "/v1/signal", `{"all":true,"signal":"-9"}`, 400, "signal must be a name"},
		{"POST", "/v1/signal", `{"all":true,"signal":"0"}`, 400, "a number from 1 to 64"},
		{"POST", "/v1/signal", `{"all":true,"signal":"65"}`, 400, "a number from 1 to 64"},
		{"POST", "/v1/shutdown", `{"reason":"` + strings.Repeat("r", 201) + `"}`, 400, "reason is longer"},
		{"GET", "/v1/status?name=", "", 400, "a name has"},
		{"GET", "/v1/status?nmae=web", "", 400, `unknown parameter "nmae": use name, table, text`},
		{"GET", "/v1/version?x", "", 400, `unknown parameter "x": there is none here`},
		{"GET", "/v1/status?text=yes", "", 400, "text must be true or false"},
		{"GET", "/v1/status?table=yes&text=true", "", 400, "table must be true or false"},
		{"GET", "/v1/status?text=true&name=nobody", "", 404, "no program is named"},
		{"GET", "/v1/status?name=%zz", "", 400, "cannot read the query"},
		{"GET", "/v1/why?name=a&name=b", "", 400, "given 2 times"},
		{"GET", "/v1/why", "", 400, "no name"},
		{"GET", "/v1/events?since=-1", "", 400, "number or id of an event"},
		{"GET", "/v1/events?follow=perhaps", "", 400, "true or false"},
		{"GET", "/v1/logs?grep=(", "", 400, "grep"},
		{"GET", "/v1/logs?lines=x", "", 400, `lines must be a number or all, not "x"`},
		{"GET", "/v1/logs?stream=err", "", 400, `stream must be stdout or stderr, not "err"`},
		{"GET", "/v1/logs?since=10m", "", 400, `since must be an RFC 3339 time, not "10m"`},
		{"GET", "/v1/logs?follow=true&previous=true", "", 400, "exclude"},
		{"GET", "/v1/wait?for=tea", "", 400, `unknown condition "tea": write ready, running`},
		{"GET", "/v1/wait?timeout=-1s", "", 400, `timeout must be a duration such as 30s, not "-1s"`},
		{"POST", "/RPC2", "", 400, "cannot read the request's body as XML-RPC: it has no <methodName>"},
		{"POST", "/RPC2", "{}", 400, "text is not expected"},
		{"POST", "/RPC2", strings.Repeat("<a>", 22<<10), 413, "larger than 65536 bytes"},
		{"POST", "/RPC2?x=1", xmlCall("supervisor.getPID"), 400, "unknown parameter"},
		{"GET", "/RPC2", "", 405, "allowed: POST"},
		{"GET", "/logtail/nosuch/stdout", "", 404, "no program is named"},
		{"GET", "/logtail/web/stdlog", "", 400, "stdout or stderr"},
	} {
		status, body := ask(t, path, c.method, c.target, c.body)
		var problem api.Error
		if err := json.Unmarshal([]byte(body), &problem); err != nil || status != c.status || problem.Status != status || !strings.Contains(problem.Message, c.detail) {
			t.Errorf("%s %s %.40q: got %d %s, want %d …%s…", c.method, c.target, c.body, status, body, c.status, c.detail)
		}
	}
	equal(t, b.Snapshot().Programs[0].Run, uint64(1))
}

// TestGarbageDisturbsNothing sends garbage on many connections while it serves others.
func TestGarbageDisturbsNothing(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	cfg := b.Own()
	cfg.Limits = control.Limits{Connections: 64, Header: 200 * time.Millisecond, Body: 300 * time.Millisecond}
	path := controltest.Serve(t, cfg)
	nonsense := []string{
		"", "\x00\xff\xfe", "GET / HTTP/9.9\r\n\r\n", "POST /v1/start HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
		"GET /" + strings.Repeat("a", 100_000), "GET / HTTP/1.1\r\n" + strings.Repeat("X: y\r\n", 10_000),
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "POST /v1/stop HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
	}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			// The server may close the connection early.
			_, _ = io.WriteString(conn, nonsense[i%len(nonsense)])
			_, _ = io.Copy(io.Discard, conn) // until the server's deadline closes it
		})
	}
	c := api.NewClient(path)
	for range 20 {
		_, err := c.Status(t.Context())
		must(t, err)
	}
	wg.Wait()
	equal(t, b.Snapshot().Programs[0].State.String(), "RUNNING")
}

func TestManyAtOnce(t *testing.T) {
	b := controltest.New(controltest.Program("web"), controltest.Program("db"))
	path := controltest.Serve(t, b.Own())
	var wg sync.WaitGroup
	for range 500 {
		wg.Go(func() {
			c := api.NewClient(path)
			if s, err := c.Status(t.Context()); err != nil || len(s.Programs) != 2 {
				t.Errorf("%v %v", s, err)
			}
		})
	}
	wg.Wait()
}

// TestGuestsCannotKeepOthersOut fills the connections that supervised programs may have. One more
// connection of a program is refused, and other clients still get in: a program that may control the
// box, even if it has as many connections itself, and an operator.
func TestGuestsCannotKeepOthersOut(t *testing.T) {
	b := controltest.New(controltest.Program("web"), controltest.Program("boss"))
	b.Set("boss", func(p *supervisor.Status) { p.Spec.Control = true })
	var mu sync.Mutex
	owner := ""
	b.Owners = func(int) (string, bool) {
		mu.Lock()
		defer mu.Unlock()
		return owner, owner != ""
	}
	cfg := b.Own()
	cfg.Limits = control.Limits{Connections: 20, Guests: 4}
	path := controltest.Serve(t, cfg)
	for _, name := range []string{"web", "boss"} {
		mu.Lock()
		owner = name
		mu.Unlock()
		for range 4 {
			conn, err := net.Dial("unix", path)
			must(t, err)
			defer conn.Close()
			must(t, hello(conn))
		}
		conn, err := net.Dial("unix", path)
		must(t, err)
		defer conn.Close()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		must(t, err)
		defer resp.Body.Close()
		equal(t, resp.StatusCode, http.StatusServiceUnavailable)
	}
	mu.Lock()
	owner = ""
	mu.Unlock()
	c := api.NewClient(path)
	_, err := c.Status(t.Context())
	must(t, err)
}

// Programs have few event listeners at once, each of which may stay for ever and never be ready. One that
// ends its side, or breaks the protocol, frees its place.
func TestProgramsHaveFewEventListeners(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	var operator atomic.Bool
	b.Owners = func(int) (string, bool) { return "web", !operator.Load() }
	c := dial(t, b.Own())
	listen := func() (*net.UnixConn, error) {
		return c.Listen(t.Context(), api.ListenQuery{Events: []string{"EVENT"}})
	}
	var all []*net.UnixConn
	for range 16 {
		conn, err := listen()
		must(t, err)
		defer conn.Close()
		all = append(all, conn)
	}
	_, err := listen()
	code(t, err, api.CodeBusy)
	for i, end := range []func(*net.UnixConn) error{(*net.UnixConn).CloseWrite, func(c *net.UnixConn) error {
		_, err := io.WriteString(c, strings.Repeat("x", 1<<20))
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) { // the server reads only the beginning
			return nil
		}
		return err
	}} {
		must(t, end(all[i]))
		if n, err := all[i].Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("listener %d got something", i)
		}
	}
	operator.Store(true) // an operator is not counted
	conn, err := listen()
	must(t, err)
	must(t, conn.Close())
	_, err = c.Status(t.Context())
	must(t, err)
}

// TestPassedDescriptorsHoldNothingUp fills all connections with requests that pass a descriptor
// whose close waits. Some are read, and the others are closed without being read.
func TestPassedDescriptorsHoldNothingUp(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	gate := make(chan struct{})
	b.Owners = func(int) (string, bool) { <-gate; return "web", true }
	cfg := b.Own()
	cfg.Limits = control.Limits{Connections: 6, Guests: 2}
	path := controltest.Serve(t, cfg)
	for range 6 {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		must(t, err)
		defer conn.Close()
		fd, _ := lingertest.Lingering(t)
		_, _, err = conn.WriteMsgUnix([]byte("GET /v1/version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), unix.UnixRights(fd), nil)
		must(t, err)
		must(t, unix.Close(fd))
	}
	close(gate) // from here on the server closes what was passed
	for answered := 0; answered < 6; {
		_, err := api.NewClient(path).Version(t.Context())
		switch {
		case err == nil:
			answered++
		case api.CodeOf(err) == api.CodeBusy, errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			runtime.Gosched() // the server is closing, and until then has no room
		default:
			t.Fatal(err)
		}
	}
}

// A request passes descriptors whose close waits, and the process can open no further one: the kernel
// closes them at the end of the read.
func TestPassedDescriptorsWithoutRoom(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	asked, gate := make(chan struct{}), make(chan struct{})
	b.Owners = func(int) (string, bool) { close(asked); <-gate; return "web", true }
	path := controltest.Serve(t, b.Own())
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	defer conn.Close()
	var fds []int
	for range 20 {
		fd, _ := lingertest.Lingering(t)
		fds = append(fds, fd)
	}
	_, _, err = conn.WriteMsgUnix([]byte("GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n"), unix.UnixRights(fds...), nil)
	must(t, err)
	for _, fd := range fds {
		must(t, unix.Close(fd))
	}
	<-asked
	lingertest.Full(t)
	close(gate)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	must(t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Error(resp.Status)
	}
}

// hello requests the version and leaves the connection open.
func hello(conn net.Conn) error {
	if _, err := io.WriteString(conn, "GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

func TestPanicIsContained(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	cfg := b.Own()
	cfg.Probes = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			fmt.Fprint(w, "half of")
		}
		panic("at the disco")
	})
	path := controltest.SocketPath(t)
	ctx, cancel := context.WithCancel(context.Background())
	s, _, err := control.Listen(ctx, control.SocketConfig{Path: path, Mode: 0o600, GID: -1})
	must(t, err)
	srv := control.New(cfg)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, s) }()
	status, body := ask(t, path, "GET", "/livez", "")
	if status != 500 || strings.Contains(body, "disco") {
		t.Errorf("%d %s", status, body)
	}
	conn, err := net.Dial("unix", path)
	must(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
	must(t, err)
	if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
		defer resp.Body.Close()
		if data, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("half an answer looks whole: %q", data)
		}
	}
	if n := srv.Panics(); n != 2 {
		t.Errorf("%d panics counted", n)
	}
	equal(t, b.Bus.Counts()[control.EventPanic], uint64(2))
	if status, _ := ask(t, path, "GET", "/v1/status", ""); status != 200 {
		t.Errorf("after the panics: %d", status)
	}
	cancel()
	must(t, <-served)
}

// TestLongWaitOutlivesTheBodyDeadline: the deadline for a request's body must not end the wait for
// the result of the request.
func TestLongWaitOutlivesTheBodyDeadline(t *testing.T) {
	b := controltest.New(stoppedProgram("slow"))
	b.Hold = []string{"slow"}
	cfg := b.Own()
	cfg.Limits = control.Limits{Body: time.Second}
	c := dial(t, cfg)
	r, err := c.Start(t.Context(), api.ActionRequest{All: true, TimeoutMS: 1300})
	must(t, err)
	equal(t, r.Results[0].Error.Code, api.CodeTimeout)
}

// TestAbandonedWaitEnds: a wait ends when its client goes away. goleak finds a goroutine that does
// not end.
func TestAbandonedWaitEnds(t *testing.T) {
	b := controltest.New(stoppedProgram("never"))
	c := dial(t, b.Own())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := c.Wait(ctx, api.WaitQuery{Names: []string{"never"}, For: api.ForRunning})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
}

// TestProgramsReadFewLogsAtOnce: a program that opens many answers of logs and does not read them
// makes agentinit hold few lines. It keeps no operator from reading.
func TestProgramsReadFewLogsAtOnce(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	var operator atomic.Bool
	b.Owners = func(int) (string, bool) {
		if operator.Load() {
			return "", false
		}
		return "web", true
	}
	cfg := b.Own()
	cfg.Limits = control.Limits{LogGuests: 2}
	path := controltest.Serve(t, cfg)
	c := api.NewClient(path)
	ctx, cancel := context.WithCancel(t.Context())
	var followers sync.WaitGroup
	defer followers.Wait()
	defer cancel()
	b.Lines = []logs.Line{{Seq: 1, Program: "web", Text: "begun"}}
	for range 2 {
		begun := make(chan struct{})
		followers.Go(func() {
			// It ends when the test ends.
			_ = c.Logs(ctx, api.LogQuery{Follow: true}, func(api.LogLine) error { close(begun); return nil })
		})
		<-begun
	}
	read := func() error { return c.Logs(t.Context(), api.LogQuery{}, func(api.LogLine) error { return nil }) }
	if err := read(); api.CodeOf(err) != api.CodeBusy {
		t.Errorf("a third reader of programs gets %v", err)
	}
	operator.Store(true)
	c = api.NewClient(path)
	must(t, read())
}

// TestHeadOfAStreamEnds: a HEAD request of answers that never end is answered with the header alone, and
// the next request on its connection is served.
func TestHeadOfAStreamEnds(t *testing.T) {
	b := controltest.New(controltest.Program("web"))
	b.Lines = []logs.Line{{Seq: 1, Program: "web", Text: "begun"}}
	path := controltest.Serve(t, b.Own())
	for _, target := range []string{"/v1/logs", "/v1/logs?follow=true", "/v1/events?follow=true", "/logtail/web/stdout"} {
		conn, err := net.Dial("unix", path)
		must(t, err)
		defer conn.Close()
		must(t, conn.SetDeadline(time.Now().Add(20*time.Second))) // for the case that no answer comes
		_, err = fmt.Fprintf(conn, "HEAD %s HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/meta HTTP/1.1\r\nHost: x\r\n\r\n", target)
		must(t, err)
		r := bufio.NewReader(conn)
		for _, method := range []string{"HEAD", "GET"} {
			resp, err := http.ReadResponse(r, &http.Request{Method: method})
			if err != nil {
				t.Fatalf("%s: the answer to %s: %v", target, method, err)
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != http.StatusOK || (len(body) == 0) != (method == "HEAD") {
				t.Errorf("%s: %s is answered %s, %d bytes, %v", target, method, resp.Status, len(body), err)
			}
		}
	}
}
