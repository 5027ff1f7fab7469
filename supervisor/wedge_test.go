package supervisor

import (
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// If a program writes no output, the box reports it, sends the signal that makes the program write
// its stacks, and restarts it.
func TestWedgedProgramIsRestarted(t *testing.T) {
	b := newRealBox(t, Config{},
		spec("silent", shell("trap 'echo stacks' QUIT; echo begin; while :; do sleep 0.05; done"), func(s *program.Spec) {
			s.Health = program.Health{Action: program.HealthRestart, Wedge: program.Wedge{NoOutput: time.Second, StackSignal: "QUIT"}}
			s.Stop = []program.StopStep{{Signal: "KILL"}}
		}),
		// Two loops want a whole processor also on a machine whose host takes half of each processor.
		spec("spins", shell("while :; do :; done & while :; do :; done"), func(s *program.Spec) {
			s.Health = program.Health{Action: program.HealthNone, Wedge: program.Wedge{Spinning: time.Second}}
			s.Stop = []program.StopStep{{Signal: "KILL"}}
		}),
		spec("chatty", shell("while :; do echo x; sleep 0.05; done"), func(s *program.Spec) {
			s.Health = program.Health{Action: program.HealthRestart, Wedge: program.Wedge{NoOutput: 20 * time.Second}}
		}),
	)
	b.sup.Boot()
	spinning := b.await("spins", func(st Status) bool { return !st.Healthy && st.State == program.Running })
	if spinning.Reason != "unhealthy: wedged: it spins (a whole processor wanted, no output) for 1s" {
		t.Errorf("spins is unhealthy because of %q", spinning.Reason)
	}
	b.await("silent", func(st Status) bool { return st.Run > 1 && st.State == program.Running })
	if st, _ := b.sup.Status("chatty"); st.Run != 1 || !st.Healthy {
		t.Errorf("chatty is in run %d, healthy: %v (%s)", st.Run, st.Healthy, st.Reason)
	}
	var why any
	for w := b.bus.Watch(0); ; {
		e, ok := w.TryNext()
		if !ok {
			break
		}
		if e.Name == EventWedged && e.Program == "silent" {
			why = e.Fields["reason"]
		}
	}
	if why != "wedged: no output for 1s" {
		t.Errorf("the event says %v", why)
	}
	wrote := 0
	for l := range b.plane.Read(t.Context(), logs.Query{Programs: []string{"silent"}}) {
		if l.Text == "stacks" {
			wrote++
		}
	}
	if wrote == 0 {
		t.Error("it was not sent the signal for its stacks")
	}
}

// A program is healthy if both its checks and its wedge rules say so.
func TestTwoJudges(t *testing.T) {
	var last Report
	both := twoJudges{report: func(r Report) { last = r }}
	for i, step := range []struct {
		judge int
		kind  ReportKind
		want  ReportKind
	}{
		{0, ReportHealthy, ReportHealthy}, {1, ReportUnhealthy, ReportUnhealthy}, {0, ReportHealthy, ReportUnhealthy}, {0, ReportUnhealthy, ReportUnhealthy},
		{1, ReportHealthy, ReportUnhealthy}, {0, ReportHealthy, ReportHealthy},
	} {
		both.say(step.judge, Report{Kind: step.kind, Reason: map[ReportKind]string{ReportUnhealthy: "bad"}[step.kind]})
		if last.Kind != step.want {
			t.Errorf("step %d: %v, want %v", i, last.Kind, step.want)
		}
	}
}
