package control

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/sleep"
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// watch tells when it makes sense to read the state again. It reads the event stream, so a wait
// uses no CPU time while nothing happens.
type watch struct {
	events *event.Watcher
	looks  int       // how many reads of the state may follow one another at once
	last   time.Time // when looks was last counted
}

// A read copies the state of all programs, and a program can cause events very fast. So after some
// reads in a row, only one is allowed each lookEvery.
const (
	lookBurst = 16
	lookEvery = 20 * time.Millisecond
)

// watch begins now: call it before the snapshot that it continues from.
func (s *Server) watch() *watch {
	return &watch{events: s.cfg.Events.Watch(s.cfg.Events.Seq()), looks: lookBurst, last: time.Now()}
}

// next returns after the next event. It counts all events that have come by then as one, so that
// many events do not cause many snapshots.
func (w *watch) next(ctx context.Context) error {
	if _, err := w.events.Next(ctx); err != nil {
		return err
	}
	if err := w.pace(ctx); err != nil {
		return err
	}
	for {
		if _, more := w.events.TryNext(); !more {
			return nil
		}
	}
}

func (w *watch) pace(ctx context.Context) error {
	if earned := int(time.Since(w.last) / lookEvery); earned > 0 {
		w.looks = min(w.looks+earned, lookBurst)
		w.last = time.Now()
	}
	if w.looks > 0 {
		w.looks--
		return nil
	}
	if !sleep.For(ctx, lookEvery) {
		return context.Cause(ctx)
	}
	w.last = time.Now()
	return nil
}

func getWait(s *Server, r *http.Request) (any, error) {
	q := r.URL.Query()
	req, err := decodeWait(q)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.waitBound(r.Context(), req.Timeout)
	defer cancel()
	w := s.watch()
	if len(req.Names) == 0 && req.For == api.ForReady {
		return s.waitBox(ctx, w)
	}
	return s.waitPrograms(ctx, w, req)
}

func (s *Server) waitBox(ctx context.Context, w *watch) (any, error) {
	for {
		report := s.cfg.Readiness.Report()
		if report.Ready {
			return api.WaitResult{For: api.ForReady, Box: true}, nil
		}
		if err := w.next(ctx); err != nil {
			return nil, api.Errorf(endOfWait(err), "the box is not ready: %s", missing(report))
		}
	}
}

// endOfWait is the code of a wait that err has ended: its time is over, or agentinit ends.
func endOfWait(err error) api.Code {
	if errors.Is(err, context.DeadlineExceeded) {
		return api.CodeTimeout
	}
	return api.CodeShuttingDown
}

// missing says what a box that is not ready lacks: the reason in the report, and the requirements
// that the reason does not name.
func missing(report api.Readiness) string {
	var parts []string
	if report.Reason != "" {
		parts = append(parts, report.Reason)
	}
	for _, m := range report.Missing {
		if strings.Contains(report.Reason, m.ID) {
			continue
		}
		text := m.ID
		if m.Reason != "" {
			text += ": " + m.Reason
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

func (s *Server) waitPrograms(ctx context.Context, w *watch, req api.WaitQuery) (any, error) {
	holds := conditions[req.For]
	for {
		snapshot := s.cfg.Supervisor.Snapshot()
		programs := snapshot.Programs
		if snapshot.Phase != supervisor.Running && len(programs) == 0 { // the boot has not come to the programs, or has failed
			if err := w.next(ctx); err != nil {
				return nil, api.Errorf(endOfWait(err), "no program has started yet; agentctl boot shows the phases of the boot")
			}
			continue
		}
		if len(req.Names) > 0 {
			var err error
			if programs, err = resolve(req.Names, programs); err != nil {
				return nil, err
			}
		}
		open, err := firstOpen(programs, req.For, holds)
		if err != nil {
			return nil, err
		}
		if open == nil {
			return api.WaitResult{For: req.For, Programs: toPrograms(programs)}, nil
		}
		if err := w.next(ctx); err != nil {
			text := fmt.Sprintf("%s is not %s: it is %s%s", open.Name, req.For, open.Shown(), because(*open))
			code := endOfWait(err)
			if code == api.CodeShuttingDown {
				text = "agentinit is shutting down; " + text
			}
			return nil, about(code, *open, "%s", text)
		}
	}
}

// firstOpen returns the first program for which the condition does not hold. It returns an error if
// the condition cannot hold for a program.
func firstOpen(programs []supervisor.Status, what string, holds condition) (*supervisor.Status, error) {
	var open *supervisor.Status
	for i, p := range programs {
		ok, impossible := holds(p)
		if what == api.ForCompleted && p.Spec != nil && p.Spec.Type == program.Service {
			return nil, about(api.CodeConflict, p, "%s will not be completed, because it is a service and no job; wait for exited or stopped instead", p.Name)
		}
		if impossible && !ok {
			return nil, about(api.CodeConflict, p, "%s will not be %s: it is %s%s", p.Name, what, p.Shown(), because(p))
		}
		if !ok && open == nil {
			open = &programs[i]
		}
	}
	return open, nil
}

func because(p supervisor.Status) string {
	if p.Reason == "" {
		return ""
	}
	return ": " + p.Reason
}
