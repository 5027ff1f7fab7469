package control

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// lines writes an answer of JSON lines.
type lines struct {
	w     http.ResponseWriter
	ctl   *http.ResponseController
	bound time.Duration // for one line; 0 for none
	begun bool
}

// begin sends the header. A follower sends it before the first line, so that
// its peer knows that nothing is missed from now on.
func (l *lines) begin() error {
	l.begun = true
	l.w.Header().Set("Content-Type", "application/x-ndjson")
	l.w.Header().Set("Cache-Control", "no-store")
	l.w.WriteHeader(http.StatusOK)
	// An earlier answer on the connection has left its deadline.
	if err := l.ctl.SetWriteDeadline(time.Time{}); err != nil {
		return err
	}
	return l.flush()
}

func (l *lines) write(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return l.raw(line)
}

func (l *lines) raw(line []byte) error {
	if !l.begun {
		if err := l.begin(); err != nil {
			return err
		}
	}
	if err := l.arm(); err != nil {
		return err
	}
	_, err := l.w.Write(append(line, '\n'))
	return err
}

func (l *lines) flush() error {
	if err := l.arm(); err != nil {
		return err
	}
	return l.ctl.Flush()
}

func (l *lines) arm() error {
	if l.bound == 0 {
		return nil
	}
	return l.ctl.SetWriteDeadline(time.Now().Add(l.bound))
}

type baseKey struct{}

// serverEnding reports whether a request's context ended from this side.
func serverEnding(ctx context.Context) bool {
	base, ok := ctx.Value(baseKey{}).(context.Context)
	return ok && base.Err() != nil
}

// serveStream answers with lines until the stream or the peer ends. A peer that
// belongs to a supervised program has to keep reading; others may stop their
// terminal for as long as they like, since only their own place is held up.
func (s *Server) serveStream(w http.ResponseWriter, r *http.Request, rt route) {
	out := &lines{w: w, ctl: http.NewResponseController(w)}
	if peerOf(r.Context()).Program != "" {
		out.bound = s.cfg.Limits.Write
	}
	err := rt.stream(s, r, out)
	switch {
	case err == nil || serverEnding(r.Context()):
		// The peer may be gone by now; then nobody misses the last line.
		if out.raw([]byte(api.StreamEnd)) == nil {
			_ = out.flush()
		}
	case !out.begun:
		s.fail(w, asProblem(err))
	case r.Context().Err() == nil:
		panic(http.ErrAbortHandler) // a fragment must not look like the whole
	}
}

func getEvents(s *Server, r *http.Request, out *lines) error {
	since, follow, err := decodeEvents(r.URL.Query())
	if err != nil {
		return err
	}
	w := s.cfg.Events.Watch(since)
	if !follow {
		return heldEvents(w, s.cfg.Events.Seq(), out)
	}
	if err := out.begin(); err != nil {
		return err
	}
	return followEvents(r.Context(), w, out)
}

// heldEvents writes what was published up to last; with what comes meanwhile
// the stream might have no end.
func heldEvents(w *event.Watcher, last uint64, out *lines) error {
	for {
		e, ok := w.TryNext()
		if !ok || e.Seq > last {
			return nil
		}
		if err := out.write(e); err != nil {
			return err
		}
	}
}

// followEvents sends what it has before it waits for more.
func followEvents(ctx context.Context, w *event.Watcher, out *lines) error {
	for {
		e, ok := w.TryNext()
		if !ok {
			if err := out.flush(); err != nil {
				return err
			}
			var err error
			if e, err = w.Next(ctx); err != nil {
				return err
			}
		}
		if err := out.write(e); err != nil {
			return err
		}
	}
}

func getLogs(s *Server, r *http.Request, out *lines) error {
	if s.cfg.Logs == nil {
		return unsupported("captured output")
	}
	req, grep, err := decodeLogs(r.URL.Query())
	if err != nil {
		return err
	}
	q := LogQuery{Stream: req.Stream, Since: req.Since, Grep: grep, Lines: req.Lines, Follow: req.Follow}
	if len(req.Names) > 0 {
		programs, err := resolve(req.Names, s.cfg.Supervisor.Snapshot().Programs)
		if err != nil {
			return err
		}
		q.Programs = namesOf(programs)
	}
	if req.Follow {
		if err := out.begin(); err != nil {
			return err
		}
	}
	return s.cfg.Logs.Read(r.Context(), q, func(l api.LogLine) error {
		if err := out.write(l); err != nil || !req.Follow {
			return err
		}
		return out.flush()
	})
}
