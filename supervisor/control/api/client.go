package api

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits for what a client accepts from a server.
const (
	maxResponse  = 64 << 20 // bytes of a whole answer
	maxLine      = 16 << 20 // bytes of one line of a stream
	dialTimeout  = 5 * time.Second
	quickTimeout = 30 * time.Second // for requests that the server answers at once
	maxHeadBytes = 64 << 10
)

// How long a request for which the server may take its time waits for the header of the answer before it
// asks whether the server answers anything, and how long that may take.
const (
	patience    = 5 * time.Second
	aliveWithin = 10 * time.Second
)

// Client talks to one agentinit. Its methods may be called from any goroutine; each call makes its
// own connection. A method fails with *UnreachableError if no server answers, with *Error if the
// request is refused or fails, and with the context's error if the context ends.
type Client struct {
	socket   string
	fallback string
	init     bool                                        // accept only answers of PID 1
	local    func(*http.Request) (*http.Response, error) // takes the place of the socket if it is not nil

	patience, aliveWithin time.Duration
}

// LocalClient returns a client whose requests the function answers, in place of a server.
func LocalClient(answer func(*http.Request) (*http.Response, error)) *Client {
	return &Client{local: answer}
}

// NewClient returns a client of the socket: a path, or an abstract name that begins with "@". It
// does not connect. An empty socket means the default path. If there is no file at a path, the
// client tries the abstract name of that path: an agentinit without a writable directory listens
// there.
func NewClient(socket string) *Client {
	socket = cmp.Or(socket, DefaultSocket)
	c := &Client{socket: socket, patience: patience, aliveWithin: aliveWithin}
	if !strings.HasPrefix(socket, "@") {
		c.fallback = AbstractFallback(socket)
	}
	return c
}

// ExpectInit makes the client accept only PID 1 as server, if PID 1 is agentinit. Another process
// with agentinit's uid could unlink the socket, bind the path and give false answers. It is for a
// socket that the user has not named. proc is the path of /proc. If PID 1 in proc is not agentinit,
// as outside the box, the client works as before.
func (c *Client) ExpectInit(proc string) *Client {
	self, err := os.Readlink(filepath.Join(proc, "self"))
	if err != nil || self != strconv.Itoa(os.Getpid()) {
		return c
	}
	comm, err := os.ReadFile(filepath.Join(proc, "1", "comm"))
	c.init = err == nil && strings.TrimSpace(string(comm)) == "agentinit"
	return c
}

// Socket is the socket that the client tries first.
func (c *Client) Socket() string { return c.socket }

func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := c.dialUnix(ctx, c.socket)
	if (errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission)) && c.fallback != "" {
		// The user can act on the file that is missing or forbidden. So its error is returned if no
		// process listens on the abstract name either.
		if abstract, ferr := c.dialUnix(ctx, c.fallback); ferr == nil || !errors.Is(ferr, unix.ECONNREFUSED) {
			return abstract, ferr
		}
	}
	return conn, err
}

func (c *Client) dialUnix(ctx context.Context, socket string) (net.Conn, error) {
	conn, err := DialSocket(ctx, socket)
	if err != nil {
		return nil, err
	}
	if err := c.checkServer(conn, strings.HasPrefix(socket, "@")); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// Inside tells whether the server is PID 1 of the caller's own pid namespace: it ends the caller when it
// ends.
func (c *Client) Inside(ctx context.Context) bool {
	conn, err := c.dial(ctx)
	if err != nil {
		return false
	}
	defer conn.Close()
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return false
	}
	cred, err := Listener(unixConn)
	return err == nil && cred.Pid == 1
}

// Listener returns which process listens at the other end of a dialled connection (unix(7),
// SO_PEERCRED). Its pid is 0 if it is in another pid namespace.
func Listener(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	return cred, credErr
}

// checkServer prevents another process from posing as agentinit. Any process in the network
// namespace can take an abstract name first, so its listener must be PID 1, root, or the caller's
// own user. A file is protected by the permissions of its directory.
func (c *Client) checkServer(conn *net.UnixConn, abstract bool) error {
	if !c.init && !abstract {
		return nil
	}
	cred, err := Listener(conn)
	if err != nil {
		return fmt.Errorf("cannot find out which process listens: %w", err)
	}
	if c.init && cred.Pid != 1 {
		return fmt.Errorf("the listener is pid %d of user %d and not PID 1, which is the agentinit here: "+
			"it has taken the place of the socket (name the socket with --socket if another box is meant)", cred.Pid, cred.Uid)
	}
	if cred.Pid == 1 || cred.Uid == 0 || int(cred.Uid) == os.Geteuid() {
		return nil
	}
	return fmt.Errorf("the listener is pid %d of user %d, which is neither PID 1, root nor the caller", cred.Pid, cred.Uid)
}

// maxMetrics bounds what Metrics reads: thousands of programs fit.
const maxMetrics = 16 << 20

// quick is do for requests that are answered at once. An agentinit that does not answer within
// quickTimeout counts as unreachable.
func (c *Client) quick(ctx context.Context, method, path string, query url.Values, in, out any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, quickTimeout, &UnreachableError{Socket: c.socket, Err: noAnswer(quickTimeout)})
	defer cancel()
	return c.do(ctx, method, path, query, in, out)
}

// noAnswer says what is known about a server that accepts connections: the kernel does so for a stopped
// process too.
func noAnswer(within time.Duration) error {
	return fmt.Errorf("no answer within %v: the process that listens there is stopped (SIGSTOP), frozen or overloaded", within)
}

// watch is Watch for a request over conn. If ctx has a deadline, watch does nothing.
func (c *Client) watch(ctx context.Context, conn net.Conn) (end func() error) {
	if _, ok := ctx.Deadline(); ok {
		return func() error { return nil }
	}
	ask := func(ctx context.Context) error {
		_, err := c.Version(ctx)
		return err
	}
	return watch(ctx, c.patience, c.aliveWithin, ask, func() { conn.SetDeadline(time.Unix(1, 0)) })
}

// Watch cuts a request if the server answers no request any more while ctx waits for the header of its
// answer. A server can be busy with a stop or with large log files for any time; so Watch asks it something
// simple on another connection. end returns why the request was cut.
func Watch(ctx context.Context, ask func(context.Context) error, cut func()) (end func() error) {
	return watch(ctx, patience, aliveWithin, ask, cut)
}

func watch(ctx context.Context, patience, aliveWithin time.Duration, ask func(context.Context) error, cut func()) (end func() error) {
	ctx, cancel := context.WithCancel(ctx)
	silent := make(chan error, 1)
	go func() {
		defer close(silent)
		due := time.NewTicker(patience)
		defer due.Stop()
		for {
			select {
			case <-due.C:
			case <-ctx.Done():
				return
			}
			if !alive(ctx, aliveWithin, ask) {
				silent <- noAnswer(patience + aliveWithin)
				cut()
				return
			}
		}
	}()
	return func() error {
		cancel()
		return <-silent
	}
}

// alive tells whether the server answers, or may: only a connection that is not accepted or not answered
// in time shows that it does not.
func alive(ctx context.Context, within time.Duration, ask func(context.Context) error) bool {
	asked, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	err := ask(asked)
	return err == nil || ctx.Err() != nil || asked.Err() == nil && !errors.Is(err, unix.EAGAIN)
}

// get asks for a T that is answered at once.
func get[T any](ctx context.Context, c *Client, path string, query url.Values) (T, error) {
	var out T
	err := c.quick(ctx, http.MethodGet, path, query, nil, &out)
	return out, err
}

// do sends one request and decodes the answer into out; if out is nil, the answer is dropped.
func (c *Client) do(ctx context.Context, method, path string, query url.Values, in, out any) error {
	resp, err := c.send(ctx, method, path, query, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse+1))
	if err != nil {
		return c.lost(ctx, err)
	}
	if len(data) > maxResponse {
		return Errorf(CodeInternal, "the answer to %s %s is larger than %d bytes", method, path, maxResponse)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return Errorf(CodeInternal, "cannot read the answer to %s %s: %v", method, path, err)
	}
	return nil
}

// send sends one request and returns the answer if it is a success.
func (c *Client) send(ctx context.Context, method, path string, query url.Values, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	target := url.URL{Scheme: "http", Host: "agentinit", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, target.String(), body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.roundTrip(req)
	if err != nil {
		return nil, c.lost(ctx, err)
	}
	return Answered(resp)
}

// roundTrip does what http.Transport does, without its goroutines. A command line tool makes only
// one request, and switching between those goroutines took longer than the request. Closing the
// answer closes the connection.
func (c *Client) roundTrip(req *http.Request) (*http.Response, error) {
	if c.local != nil {
		return c.local(req)
	}
	conn, err := c.dial(req.Context())
	if err != nil {
		return nil, err
	}
	body := &connBody{conn: conn}
	// A deadline in the past ends every read and write at once.
	body.unwatch = context.AfterFunc(req.Context(), func() { conn.SetDeadline(time.Unix(1, 0)) })
	unwatched := c.watch(req.Context(), conn)
	resp, err := exchange(conn, req)
	if err = cmp.Or(unwatched(), err); err != nil {
		body.release()
		return nil, err
	}
	body.ReadCloser, resp.Body = resp.Body, body
	return resp, nil
}

// exchange sends a request and reads the header of its answer.
func exchange(conn net.Conn, req *http.Request) (*http.Response, error) {
	req.Close = true
	out := &sender{w: conn}
	sent := req.Write(out)
	switch {
	case sent == nil:
	case out.err == nil:
		return nil, &unreadError{sent}
	case !errors.Is(out.err, unix.EPIPE):
		return nil, out.err
	}
	// agentinit answers a request that it refuses before it has read the whole body, and closes the
	// connection. The write then fails with EPIPE, and the answer is there to read.
	head := &io.LimitedReader{R: conn, N: maxHeadBytes}
	resp, err := http.ReadResponse(bufio.NewReaderSize(head, 16<<10), req)
	if err != nil {
		return nil, cmp.Or(out.err, err)
	}
	head.N = math.MaxInt64 // this bounds the header only; the readers of the body bound the body
	return resp, nil
}

// sender remembers why the connection took no more of a request. Request.Write does not tell: its
// errors hide what they wrap.
type sender struct {
	w   io.Writer
	err error
}

func (s *sender) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.err = cmp.Or(s.err, err)
	return n, err
}

// unreadError says why the body of a request could not be read. The connection is not the reason.
type unreadError struct{ error }

// connBody is the body of an answer that owns its connection.
type connBody struct {
	io.ReadCloser
	conn    net.Conn
	unwatch func() bool
}

func (b *connBody) release() error {
	b.unwatch()
	return b.conn.Close()
}

// Close closes the connection, whatever is left to read.
func (b *connBody) Close() error { return b.release() }

// lost tells whether the context or the connection has ended, or the request was never whole.
func (c *Client) lost(ctx context.Context, err error) error {
	unread, isUnread := errors.AsType[*unreadError](err)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case isUnread:
		return unread.error
	}
	return &UnreachableError{Socket: c.socket, Err: err}
}

func readError(resp *http.Response) error {
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	var e Error
	if err != nil || json.Unmarshal(data, &e) != nil || e.Code == "" {
		return Errorf(CodeInternal, "agentinit answered %s without saying why", resp.Status)
	}
	return &e
}

// Status returns the named programs, or all if there are no names. A name that fits no program is
// CodeUnknownProgram.
func (c *Client) Status(ctx context.Context, names ...string) (Status, error) {
	return get[Status](ctx, c, "/v1/status", url.Values{"name": names})
}

// Table is like Status, but has only the fields of a table, and the use of the processes. Its
// answer is at most half as large. An older agentinit that does not know it answers CodeBadRequest.
func (c *Client) Table(ctx context.Context, names ...string) (Status, error) {
	return get[Status](ctx, c, "/v1/status", url.Values{"name": names, "table": {"true"}})
}

// Program returns one program and its specification.
func (c *Client) Program(ctx context.Context, name string) (ProgramDetail, error) {
	return get[ProgramDetail](ctx, c, "/v1/program", url.Values{"name": {name}})
}

// Usage returns what the processes of every program use.
func (c *Client) Usage(ctx context.Context) (Usage, error) {
	return get[Usage](ctx, c, "/v1/usage", nil)
}

// Processes returns the processes of one program.
func (c *Client) Processes(ctx context.Context, name string) (Processes, error) {
	return get[Processes](ctx, c, "/v1/processes", url.Values{"name": {name}})
}

// Manifest returns the manifest in force.
func (c *Client) Manifest(ctx context.Context) (Manifest, error) {
	return get[Manifest](ctx, c, "/v1/manifest", nil)
}

// Start starts programs. Unless NoWait is set, it returns when each is RUNNING, has completed, or
// has failed. The failure of a single program is in the result.
func (c *Client) Start(ctx context.Context, req ActionRequest) (ActionResult, error) {
	return c.action(ctx, "/v1/start", req)
}

// Run starts a run of programs now, also of schedules. Otherwise it is like Start.
func (c *Client) Run(ctx context.Context, req ActionRequest) (ActionResult, error) {
	return c.action(ctx, "/v1/run", req)
}

// Stop stops programs. Unless NoWait is set, it returns when their processes have ended.
func (c *Client) Stop(ctx context.Context, req ActionRequest) (ActionResult, error) {
	return c.action(ctx, "/v1/stop", req)
}

// Restart stops and starts programs; Rolling does so one after the other.
func (c *Client) Restart(ctx context.Context, req ActionRequest) (ActionResult, error) {
	return c.action(ctx, "/v1/restart", req)
}

// Signal sends req.Signal to the programs.
func (c *Client) Signal(ctx context.Context, req ActionRequest) (ActionResult, error) {
	return c.action(ctx, "/v1/signal", req)
}

func (c *Client) action(ctx context.Context, path string, req ActionRequest) (ActionResult, error) {
	var out ActionResult
	err := c.do(ctx, http.MethodPost, path, nil, req, &out)
	return out, err
}

// Why explains one program's state.
func (c *Client) Why(ctx context.Context, name string) (Why, error) {
	return get[Why](ctx, c, "/v1/why", url.Values{"name": {name}})
}

// Wait returns when the condition in q holds. CodeTimeout means that it did not hold in time,
// CodeConflict that it can no longer hold without a further request.
func (c *Client) Wait(ctx context.Context, q WaitQuery) (WaitResult, error) {
	v := url.Values{"name": q.Names, "for": {q.For}}
	if q.Timeout > 0 {
		v.Set("timeout", q.Timeout.String())
	}
	var out WaitResult
	err := c.do(ctx, http.MethodGet, "/v1/wait", v, nil, &out)
	return out, err
}

// Plan returns the plan the running box follows, as schema/plan writes it.
func (c *Client) Plan(ctx context.Context) (json.RawMessage, error) {
	return get[json.RawMessage](ctx, c, "/v1/plan", nil)
}

// Apply reads the manifest again. CodeInvalid carries the findings of an
// invalid one, which changes nothing.
func (c *Client) Apply(ctx context.Context, req ApplyRequest) (ApplyResult, error) {
	var out ApplyResult
	err := c.do(ctx, http.MethodPost, "/v1/apply", nil, req, &out)
	return out, err
}

// Ready returns the readiness of the box.
func (c *Client) Ready(ctx context.Context) (Readiness, error) {
	return get[Readiness](ctx, c, "/v1/ready", nil)
}

// Boot returns the record of the boot.
func (c *Client) Boot(ctx context.Context) (Boot, error) {
	return get[Boot](ctx, c, "/v1/boot", nil)
}

// PreviousBoot returns the record of the boot before this one.
func (c *Client) PreviousBoot(ctx context.Context) (Boot, error) {
	return get[Boot](ctx, c, "/v1/boot", url.Values{"previous": {"true"}})
}

// LogLevel returns the level of agentinit's own log.
func (c *Client) LogLevel(ctx context.Context) (LogLevel, error) {
	return get[LogLevel](ctx, c, "/v1/log-level", nil)
}

// SetLogLevel changes the level of agentinit's own log and returns the level now in force.
func (c *Client) SetLogLevel(ctx context.Context, level string) (LogLevel, error) {
	var out LogLevel
	err := c.quick(ctx, http.MethodPut, "/v1/log-level", nil, LogLevel{Level: level}, &out)
	return out, err
}

// Shutdown asks agentinit to stop everything and exit; it does not wait.
func (c *Client) Shutdown(ctx context.Context, req ShutdownRequest) error {
	return c.quick(ctx, http.MethodPost, "/v1/shutdown", nil, req, nil)
}

// ReopenLogs closes every log file and opens it again by its path, for tools that have moved the
// files away.
func (c *Client) ReopenLogs(ctx context.Context) error {
	return c.quick(ctx, http.MethodPost, "/v1/logs/reopen", nil, nil, nil)
}

// Version returns the version of the agentinit that answers.
func (c *Client) Version(ctx context.Context) (Version, error) {
	return get[Version](ctx, c, "/v1/version", nil)
}

// Meta returns the document of GET /v1/meta unchanged.
func (c *Client) Meta(ctx context.Context) (json.RawMessage, error) {
	return get[json.RawMessage](ctx, c, "/v1/meta", nil)
}

// Health returns the document of GET /health unchanged.
func (c *Client) Health(ctx context.Context) (json.RawMessage, error) {
	return get[json.RawMessage](ctx, c, "/health", nil)
}

// Metrics returns the Prometheus exposition of GET /metrics, at most 16 MiB.
func (c *Client) Metrics(ctx context.Context) (string, error) {
	resp, err := c.send(ctx, http.MethodGet, "/metrics", nil, nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxMetrics))
	if err != nil {
		return "", c.lost(ctx, err)
	}
	return string(text), nil
}

// OpenAPI returns the OpenAPI document of the server.
func (c *Client) OpenAPI(ctx context.Context) (json.RawMessage, error) {
	return get[json.RawMessage](ctx, c, "/v1/openapi.json", nil)
}

// values writes the query of GET /v1/logs.
func (q LogQuery) values() url.Values {
	v := url.Values{"name": q.Names}
	if q.Stream != "" {
		v.Set("stream", q.Stream)
	}
	if !q.Since.IsZero() {
		v.Set("since", q.Since.UTC().Format(time.RFC3339Nano))
	}
	if !q.Until.IsZero() {
		v.Set("until", q.Until.UTC().Format(time.RFC3339Nano))
	}
	if q.After != "" {
		v.Set("after", q.After)
	}
	if q.Grep != "" {
		v.Set("grep", q.Grep)
	}
	switch {
	case q.Lines != 0:
		v.Set("lines", strconv.Itoa(q.Lines))
	case q.All:
		v.Set("lines", "all")
	}
	if q.Previous {
		v.Set("previous", "true")
	}
	if q.Follow {
		v.Set("follow", "true")
	}
	return v
}
