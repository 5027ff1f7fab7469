package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/internal/lateclose"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
	"github.com/dreamlab-ai/agentinit/supervisor/ready"
)

// wantsNotify tells whether the program is expected to use sd_notify.
func wantsNotify(spec *program.Spec) bool {
	if spec.Health.Watchdog > 0 {
		return true
	}
	for _, probes := range [][]program.Probe{spec.Readiness.Probes, spec.Health.Probes} {
		for _, p := range probes {
			if p.Dialect == program.DialectNotify {
				return true
			}
		}
	}
	return false
}

// Ready implements Prober.
func (s *System) Ready(spec *program.Spec, run uint64, report func(Report)) (stop func()) {
	target := s.target(spec, run, report)
	return s.watch(func(ctx context.Context) {
		s.watcher.Watch(ctx, target, spec.Readiness, func(r ready.Result) {
			if r.Ready {
				report(Report{Kind: ReportReady})
				return
			}
			report(Report{Kind: ReportWaiting, Reason: s.hide(spec, r.Reason)})
		})
	})
}

// Health implements Prober.
func (s *System) Health(spec *program.Spec, run uint64, report func(Report)) (stop func()) {
	target := s.target(spec, run, report)
	if spec.Health.Wedge.On() {
		return s.watchWedge(spec, run, target, report)
	}
	return s.check(spec, target, report)
}

// check reports the results of the probes and of the watchdog.
func (s *System) check(spec *program.Spec, target ready.Target, report func(Report)) (stop func()) {
	return s.watch(func(ctx context.Context) {
		s.watcher.Check(ctx, target, spec.Health, func(r ready.Result) {
			if r.Ready {
				report(Report{Kind: ReportHealthy})
				return
			}
			report(Report{Kind: ReportUnhealthy, Reason: s.hide(spec, r.Reason)})
		})
	})
}

// hide hides the secrets in what readers get about a program: those of its manifest table, and all
// others that the logs know.
func (s *System) hide(spec *program.Spec, text string) string {
	return s.cfg.Logs.Mask(spec.Hide(text))
}

// output is hide for what a command of the program has printed.
func (s *System) output(spec *program.Spec, res proc.Result) string {
	text := spec.HideOutput(res.Output, res.Truncated)
	if res.Truncated {
		return s.cfg.Logs.MaskCut(text)
	}
	return s.cfg.Logs.Mask(text)
}

// watch runs f until it ends or is stopped.
func (s *System) watch(f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		f(ctx)
	}()
	return cancel
}

// target is the run in the form that probes need. Messages of the program go to report until no
// process of the run is left, even during its stop.
func (s *System) target(spec *program.Spec, run uint64, report func(Report)) ready.Target {
	t := ready.Target{Program: spec.Name, Run: run, Dir: spec.Directory}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.runs[runKey{spec.Name, run}]
	if r == nil {
		return t
	}
	t.Program = r.born.name
	r.report = report
	for _, what := range r.untold {
		report(what)
	}
	r.untold = nil
	if r.readyFD != nil {
		r.watched = make(chan struct{})
		t.ReadyFD, r.readyFD = watchedFD{lateclose.Pipe{File: r.readyFD}, r.watched}, nil
	}
	return t
}

// watchedFD tells when the watch has closed the descriptor.
type watchedFD struct {
	lateclose.Pipe
	closed chan struct{}
}

func (f watchedFD) Close() error {
	defer close(f.closed)
	return f.Pipe.Close()
}

// heard handles what a program says through the notification socket. Its first readiness and watchdog
// messages are left to the watcher.
func (s *System) heard(m ready.Message) {
	s.mu.Lock()
	r := s.runs[runKey{m.Program, m.Run}]
	s.mu.Unlock()
	if r == nil {
		return
	}
	if m.MainPID != 0 {
		s.follow(r, m)
	}
	if m.Ready || m.Withdrawn != "" {
		s.withdraw(r, m)
	}
	if m.Status != nil {
		s.tell(r, Report{Kind: ReportText, Text: s.cfg.Logs.Mask(*m.Status)})
	}
	if m.Extend > 0 {
		s.tell(r, Report{Kind: ReportExtend, Extend: m.Extend})
	}
}

// tell passes on what the program says about itself. A program can be quicker than the first watch: the
// latest report of each kind then waits for that watch.
func (s *System) tell(r *systemRun, what Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.report != nil {
		r.report(what)
		return
	}
	if r.untold == nil {
		r.untold = make(map[ReportKind]Report)
	}
	r.untold[what.Kind] = what
}

func (s *System) refused(pid int, reason string) {
	if n, ok := s.unheard.Pass(time.Now()); ok {
		s.warn(event.NotifyRefused, "", map[string]any{"pid": pid, "reason": reason, "suppressed": n})
	}
}

// notAsked handles a health check that agentinit could not make. It does not change the program's state.
func (s *System) notAsked(t ready.Target, reason string) {
	if n, ok := s.unasked.Pass(time.Now()); ok {
		s.warn(event.HealthUnknown, t.Program, map[string]any{"reason": reason, "suppressed": n})
	}
}

// probeOutput is how much of an exec probe's output is kept.
const probeOutput = 4 << 10

// execProbe runs the command of an exec probe.
func (s *System) execProbe(ctx context.Context, t ready.Target, argv []string) (status int, output []byte, err error) {
	s.mu.Lock()
	r := s.runs[runKey{t.Program, t.Run}]
	s.mu.Unlock()
	if r == nil || len(argv) == 0 {
		return 0, nil, proc.ErrNoProcess
	}
	c, err := beside(r.spec, argv)
	if err != nil {
		return 0, nil, err
	}
	c.Refused = s.tally(r)
	res, err := s.cfg.Owner.Run(ctx, c, probeOutput)
	return res.Exit.ShellStatus(), []byte(s.output(r.spec, res)), err
}

const (
	hookOutput = 16 << 10 // how much of a hook's output is kept
	hookReason = 256      // how much of its last line is in the reason why it failed
)

// Run implements HookRunner. The command gets the program's user, directory and environment, and
// MAINPID if the program runs.
func (s *System) Run(ctx context.Context, spec *program.Spec, run uint64, kind program.HookKind) error {
	h := spec.Hook(kind)
	if h == nil || len(h.Argv) == 0 {
		return errors.New("the command is empty")
	}
	c, err := beside(spec, h.Argv)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if r := s.runs[runKey{spec.Name, run}]; r != nil {
		c.Env = append(c.Env, fmt.Sprintf("MAINPID=%d", r.main))
		c.Refused = s.tally(r)
	}
	s.mu.Unlock()
	begin := time.Now()
	res, err := s.cfg.Owner.Run(ctx, c, hookOutput)
	if err == nil && res.Exit.ShellStatus() != 0 {
		err = fmt.Errorf("ended with status %d", res.Exit.ShellStatus())
	}
	if res.Exit.PID == 0 {
		return err // it never ran
	}
	output := s.output(spec, res)
	if err != nil && !res.Truncated { // otherwise the end of the output is not known
		if last := escape.LastLine(output, hookReason); last != "" {
			err = fmt.Errorf("%w: %s", err, last)
		}
	}
	s.cfg.Bus.Publish(event.Event{
		Level: event.Info, Stage: stage, Name: event.HookCompleted, Program: spec.Name, Run: run,
		Fields: map[string]any{
			"hook": string(kind), "duration_ms": time.Since(begin).Milliseconds(),
			"status": res.Exit.ShellStatus(), "output": output, "truncated": res.Truncated,
		},
	})
	return err
}
