package supervisor

import (
	"context"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/signame"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
	"github.com/dreamlab-ai/agentinit/supervisor/ready"
)

// EventWedged: a program lives but does no work any more, by a rule of its manifest.
const EventWedged = "ProgramWedged"

// stackTime is how long a wedged program may take to write its stacks.
const stackTime = time.Second

// watchWedge checks the run by the rules of wedge, in addition to the health checks if there are
// any.
func (s *System) watchWedge(spec *program.Spec, run uint64, target ready.Target, report func(Report)) (stop func()) {
	both := &twoJudges{report: report}
	stopChecks := func() {}
	if len(spec.Health.Probes) > 0 || spec.Health.Watchdog > 0 {
		stopChecks = s.check(spec, target, func(r Report) { both.say(0, r) })
	}
	stopLooks := s.watch(func(ctx context.Context) { s.lookForWedge(ctx, spec, run, func(r Report) { both.say(1, r) }) })
	return func() {
		stopChecks()
		stopLooks()
	}
}

// twoJudges combines two judges of health: the program is healthy if both say so.
type twoJudges struct {
	report func(Report)

	mu  sync.Mutex
	bad [2]string // each judge's reason, "" if healthy
}

func (t *twoJudges) say(judge int, r Report) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bad[judge] = ""
	if r.Kind == ReportUnhealthy {
		t.bad[judge] = r.Reason
		t.report(r)
		return
	}
	if other := t.bad[1-judge]; other != "" {
		t.report(Report{Kind: ReportUnhealthy, Reason: other})
		return
	}
	t.report(r)
}

// lookForWedge checks until ctx ends.
func (s *System) lookForWedge(ctx context.Context, spec *program.Spec, run uint64, report func(Report)) {
	rules := spec.Health.Wedge
	name, first := s.vitals(rules, spec.Name, run)
	watch := program.NewWedgeWatch(rules, time.Now(), first)
	wedged := ""
	for sleep.For(ctx, rules.Every()) {
		now, v := s.vitals(rules, name, run)
		name = now
		why := watch.Look(time.Now(), v)
		switch {
		case why == wedged:
		case why == "":
			report(Report{Kind: ReportHealthy})
		case wedged == "":
			if !s.wedged(ctx, spec, name, run, why) {
				return
			}
			report(Report{Kind: ReportUnhealthy, Reason: why})
		}
		wedged = why
	}
}

// vitals reads the values that the rules need. It may take long, because a program decides how many
// processes and threads it has. name is the program's present name.
func (s *System) vitals(rules program.Wedge, was string, run uint64) (name string, v program.Vitals) {
	s.mu.Lock()
	r := s.runs[runKey{was, run}]
	var born string
	name = was
	if r != nil {
		name, born = r.key.name, r.born.name
	}
	s.mu.Unlock()
	if r == nil {
		return name, v
	}
	for _, stream := range s.cfg.Logs.Stats(born) {
		v.Output += stream.Bytes
	}
	now := time.Now()
	if rules.Spinning > 0 {
		if u, err := s.cfg.Owner.Usage(r.proc.ID, now); err == nil { // otherwise the program has ended
			v.CPU = u.CPU
		}
		v.Runnable = s.cfg.Owner.Runnable(r.proc.ID, now)
	}
	if rules.Blocked <= 0 {
		return name, v
	}
	for _, m := range s.Processes(name, run, now) {
		if m.State == 'D' {
			v.Blocked = append(v.Blocked, m.PID)
		}
	}
	return name, v
}

// wedged reports a wedged program and lets it write its stacks. It returns false if ctx ended
// meanwhile.
func (s *System) wedged(ctx context.Context, spec *program.Spec, name string, run uint64, why string) bool {
	fields := map[string]any{"reason": why, "action": string(spec.Health.Action)}
	signal := spec.Health.Wedge.StackSignal
	if signal != "" {
		fields["stack_signal"] = signal
	}
	s.cfg.Bus.Publish(event.Event{Level: event.Warn, Stage: stage, Name: EventWedged, Program: name, Run: run, Fields: fields})
	if signal == "" {
		return true
	}
	id, ok := s.id(name, run)
	sig, err := signame.Parse(signal) // the manifest was checked, so there is no error
	if !ok || err != nil {
		return true
	}
	if err := s.cfg.Owner.Signal(id, sig, proc.ScopeProcess); err != nil {
		return true // the program has ended meanwhile
	}
	return sleep.For(ctx, stackTime)
}
