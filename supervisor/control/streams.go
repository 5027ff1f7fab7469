package control

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/supervisord"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// lines writes an answer of JSON lines, of server-sent events with one JSON
// value each (HTML Living Standard, section 9.2), or of the text of log lines.
// Close it before the handler returns.
type lines struct {
	w     http.ResponseWriter
	ctl   *http.ResponseController
	bound time.Duration // for one line; 0 for none
	sse   bool
	plain bool // an answer of log lines: their text alone
	head  bool // of a HEAD request: the header is the whole answer

	mu    sync.Mutex // shared by the stream and its timer
	begun bool
	timer *time.Timer // pending flush
}

const eventStream = "text/event-stream"

// errHead ends a stream that answers a HEAD request. Without it, a follower would go on unseen, and the
// next request on the connection would never be read.
var errHead = errors.New("the header is the whole answer")

// flushDelay is how long a line may wait in the buffer for more lines.
const flushDelay = 5 * time.Millisecond

// begin sends the header. A follower sends it before the first line, so that the client knows that
// it misses nothing from now on.
func (l *lines) begin() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.header(); err != nil {
		return err
	}
	return l.ctl.Flush()
}

func (l *lines) header() error {
	l.begun = true
	contentType := "application/x-ndjson"
	switch {
	case l.sse:
		contentType = eventStream
	case l.plain:
		contentType = plainText
	}
	begin(l.w, contentType)
	l.w.WriteHeader(http.StatusOK)
	if l.head {
		return errHead
	}
	// An earlier answer on the same connection has set another deadline.
	return l.arm()
}

// write sends one value. A client resumes from id; "" means none.
func (l *lines) write(v any, id string) error {
	if line, ok := v.(api.LogLine); ok && l.plain {
		return l.raw([]byte(supervisord.Raw(line)))
	}
	value, err := event.Encode(v)
	if err != nil {
		return err
	}
	if !l.sse {
		return l.raw(value, []byte{'\n'})
	}
	// JSON has no line breaks, so one data field holds the whole value.
	field := "data: "
	if id != "" {
		field = "id: " + id + "\n" + field
	}
	return l.raw([]byte(field), value, []byte("\n\n"))
}

// end tells the client that the stream is complete.
func (l *lines) end() error {
	switch {
	case l.plain:
		return nil
	case l.sse:
		return l.raw([]byte("event: end\ndata: " + api.StreamEnd + "\n\n"))
	}
	return l.raw([]byte(api.StreamEnd + "\n"))
}

// raw writes parts of an answer. They are not joined, because each may be megabytes long.
func (l *lines) raw(parts ...[]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.begun {
		if err := l.header(); err != nil {
			return err
		}
	}
	if err := l.arm(); err != nil {
		return err
	}
	for _, part := range parts {
		if _, err := l.w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

func (l *lines) flush() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.arm(); err != nil {
		return err
	}
	return l.ctl.Flush()
}

// flushSoon is for a stream that cannot know whether more lines will come soon.
func (l *lines) flushSoon() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil {
		l.timer = time.AfterFunc(flushDelay, l.flushDue)
	}
}

func (l *lines) flushDue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil {
		return
	}
	l.timer = nil
	if l.arm() == nil {
		_ = l.ctl.Flush() // the next write of the stream gets the same error
	}
}

// close ensures that the timer no longer uses the answer.
func (l *lines) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

func (l *lines) arm() error {
	var deadline time.Time
	if l.bound > 0 {
		deadline = time.Now().Add(l.bound)
	}
	return l.ctl.SetWriteDeadline(deadline)
}

type baseKey struct{}

// serverEnding tells whether the server, not the client, has ended a request's context.
func serverEnding(ctx context.Context) bool {
	base, ok := ctx.Value(baseKey{}).(context.Context)
	return ok && base.Err() != nil
}

// outlasting returns a context that ends with ctx, but goes on for endGrace if the server has ended ctx: a
// follower that is behind can then still get what there is.
func outlasting(ctx context.Context) (context.Context, context.CancelFunc) {
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if !serverEnding(ctx) {
			cancel()
			return
		}
		time.AfterFunc(endGrace, cancel)
	})
	return lasting, func() { stop(); cancel() }
}

// serveStream answers with lines until the stream or the peer ends. A peer of a supervised program
// must keep reading. Others may pause their terminal as long as they like, because they only block
// their own connection.
func (s *Server) serveStream(w http.ResponseWriter, r *http.Request, rt route) {
	out := &lines{w: w, ctl: http.NewResponseController(w), plain: rt.plain, head: r.Method == http.MethodHead}
	out.sse = !rt.plain && strings.Contains(r.Header.Get("Accept"), eventStream)
	if peer := peerOf(r.Context()); peer.guest() || peer.Principal != "" {
		out.bound = s.cfg.Limits.Write
	}
	defer out.close()
	err := rt.stream(s, r, out)
	ending := serverEnding(r.Context())
	switch {
	case errors.Is(err, errHead):
		s.bound(w)
	case err == nil:
		// If the peer has disconnected, the last line is lost, which does not matter.
		if out.end() == nil {
			_ = out.flush()
		}
	case !out.begun && ending:
		s.fail(w, api.Errorf(api.CodeShuttingDown, "agentinit is shutting down; the answer is not complete"))
	case !out.begun:
		s.fail(w, asProblem(err))
	case ending || r.Context().Err() == nil:
		panic(http.ErrAbortHandler) // an incomplete answer must not look complete
	}
}

func getEvents(s *Server, r *http.Request, out *lines) error {
	boot := s.cfg.Version.BootID
	since, follow, err := decodeEvents(r.URL.Query(), boot)
	if err != nil {
		return err
	}
	// A browser's EventSource sends this when it reconnects.
	if last, err := eventNumber(r.Header.Get("Last-Event-ID"), boot); err == nil {
		since = last
	}
	if since > s.cfg.Events.Seq() {
		// The number is one of an earlier boot: numbers begin at 1 again. Without this, the reader
		// would miss the events of this boot up to that number.
		since = 0
	}
	w := s.cfg.Events.Watch(since)
	write := func(e event.Event) error { return out.write(e, eventID(boot, e.Seq)) }
	if !follow {
		return heldEvents(w, s.cfg.Events.Seq(), write)
	}
	if err := out.begin(); err != nil {
		return err
	}
	return followEvents(r.Context(), w, out, write)
}

// heldEvents passes on the events up to number last. With later events, it might never end.
func heldEvents(w *event.Watcher, last uint64, write func(event.Event) error) error {
	for {
		e, ok := w.TryNext()
		if !ok || e.Seq > last {
			return nil
		}
		if err := write(e); err != nil {
			return err
		}
	}
}

// followEvents flushes its buffer before it waits for more events.
func followEvents(ctx context.Context, w *event.Watcher, out *lines, write func(event.Event) error) error {
	for {
		e, ok := w.TryNext()
		if !ok {
			if err := out.flush(); err != nil {
				return err
			}
			var err error
			if e, err = w.Next(ctx); err != nil {
				if serverEnding(ctx) {
					return nil // the client has all events
				}
				return err
			}
		}
		if err := write(e); err != nil {
			return err
		}
	}
}

// previousRuns returns the latest run of each program that has ended.
func previousRuns(programs []supervisor.Status) map[string]uint64 {
	runs := make(map[string]uint64, len(programs))
	for _, p := range programs {
		switch {
		case p.Run > 0 && runEnded(p):
			setRun(runs, p, p.Run)
		case p.Run > 1:
			setRun(runs, p, p.Run-1)
		}
	}
	return runs
}

// runEnded tells whether the present run has ended. At the beginning of a start, it has no process yet.
func runEnded(p supervisor.Status) bool {
	switch p.State {
	case program.Starting, program.Stopping:
		return p.EndedAt != nil
	}
	return p.PID == 0
}

// maxLogText is the most bytes of one line in an answer. In JSON it may become six times as long,
// which is still less than clients read (api.Client).
const maxLogText = 1 << 20

// setRun names a run under each name of a program: the rings keep what it printed under a former
// name.
func setRun(runs map[string]uint64, p supervisor.Status, run uint64) {
	for _, name := range p.Names() {
		runs[name] = run
	}
}

// logPlace is the place of a request that reads lines.
func logPlace(s *Server, peer Peer) (leave func(), err error) {
	leave, ok := s.logGuests.take(peer, s.mayControl)
	if !ok {
		return nil, api.Errorf(api.CodeBusy, "supervised programs read the logs %d times already; try again when one has ended", s.cfg.Limits.LogGuests)
	}
	return leave, nil
}

func getLogs(s *Server, r *http.Request, out *lines) error {
	q, err := s.logsQuery(r, out.sse)
	if err != nil {
		return err
	}
	ctx := r.Context()
	if q.Follow {
		if err := out.begin(); err != nil {
			return err
		}
		q.Ending = ctx.Done()
		lasting, cancel := outlasting(ctx)
		defer cancel()
		ctx = lasting
	}
	for line := range s.cfg.Logs.Read(ctx, q) {
		l := toLogLine(line, s.cfg.Version.BootID)
		if err := out.write(l, l.Cursor); err != nil {
			return err
		}
		if q.Follow {
			out.flushSoon()
		}
	}
	return context.Cause(ctx)
}

// logsQuery is what the request asks for, with the programs as they are now. sse says that the answer
// is a stream of server-sent events.
func (s *Server) logsQuery(r *http.Request, sse bool) (logs.Query, error) {
	q, err := decodeLogs(r.URL.Query(), s.cfg.Version.BootID)
	if err != nil {
		return q, err
	}
	// A browser's EventSource sends this when it reconnects. It needs all lines that it has missed,
	// even if it began with only a few.
	if last := r.Header.Get("Last-Event-ID"); last != "" && sse {
		if err := resume(&q, last, s.cfg.Version.BootID); err != nil {
			return q, err
		}
		q.Lines = 0
	}
	programs := s.cfg.Supervisor.Snapshot().Programs
	if len(q.Programs) > 0 {
		if programs, err = resolve(q.Programs, programs); err != nil {
			return q, err
		}
		if q.Follow {
			q.Also = laterPrograms(q.Programs, programs)
		}
		q.Programs = nil
		for _, p := range programs {
			q.Programs = append(q.Programs, p.Names()...)
		}
	}
	q.Cut = maxLogText
	previous, err := boolParam(r.URL.Query(), "previous")
	if err != nil || !previous {
		return q, err
	}
	if q.Follow {
		return q, api.Errorf(api.CodeBadRequest, "follow and previous exclude each other: a run that has ended prints no more lines")
	}
	q.Runs = previousRuns(programs)
	return q, nil
}
