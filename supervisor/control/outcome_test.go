package control

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// at makes a status from a state, a run number and facts.
func at(state program.State, run uint64, facts string) supervisor.Status {
	p := supervisor.Status{Name: "p", State: state, Run: run, Reason: "because", Healthy: true}
	p.Ready = strings.Contains(facts, "ready")
	p.Completed = strings.Contains(facts, "completed")
	if strings.Contains(facts, "ran") {
		p.RunningAt = &time.Time{}
	}
	p.Queued, p.Blocked, p.Halting = facts == "queued", facts == "blocked", facts == "halting"
	if facts == "schedule" {
		p.Schedule = &program.ScheduleStatus{}
	}
	if state == program.Running || state == program.Starting || state == program.Stopping {
		p.PID = 7
	}
	return p
}

// TestGoals checks every state against every goal, in two columns: the run from before the
// request, and a new run. "-" waits, "ok" is reached, "x" has failed, "over" is overtaken by another
// request.
func TestGoals(t *testing.T) {
	goals := map[string]goal{"started": started, "restarted": restarted, "returned": returned, "stopped": stopped}
	cases := []struct {
		state                              program.State
		facts                              string
		started, restarted, returned, stop string
	}{
		{program.Stopped, "", "over x", "over x", "over x", "ok ok"},
		{program.Stopped, "queued", "- x", "- x", "- x", "ok ok"},
		{program.Stopped, "blocked", "over x", "over x", "over x", "ok ok"},
		{program.Starting, "", "- -", "- -", "- -", "over over"},
		{program.Running, "", "ok ok", "over ok", "over -", "over over"},
		{program.Running, "ready", "ok ok", "over ok", "over ok", "over over"},
		{program.Running, "queued", "ok ok", "- ok", "- -", "over over"},
		{program.Running, "halting", "ok ok", "- ok", "- -", "- -"},
		{program.Backoff, "", "- x", "- x", "- x", "over over"},
		{program.Backoff, "ran", "- ok", "- ok", "- x", "over over"},
		{program.Stopping, "", "- -", "- -", "- -", "- -"},
		{program.Exited, "", "over x", "over x", "over x", "ok ok"},
		{program.Exited, "ran", "over ok", "over ok", "over x", "ok ok"},
		{program.Exited, "completed", "over ok", "over ok", "over ok", "ok ok"},
		{program.Fatal, "", "over x", "over x", "over x", "ok ok"},
		{program.Fatal, "ran", "over ok", "over ok", "over x", "ok ok"},
	}
	seen := make(map[program.State]bool)
	for _, c := range cases {
		seen[c.state] = true
		for name, want := range map[string]string{"started": c.started, "restarted": c.restarted, "returned": c.returned, "stopped": c.stop} {
			before := at(program.Stopped, 3, "")
			old, anew := at(c.state, 3, c.facts), at(c.state, 4, c.facts)
			goal := goals[name]
			got := verdict(goal(before, old)) + " " + verdict(goal(before, anew))
			if got != want {
				t.Errorf("%s in %s %s: got %q, want %q", name, c.state, c.facts, got, want)
			}
		}
	}
	for _, s := range program.States {
		if !seen[s] {
			t.Errorf("state %s has no row", s)
		}
	}
}

// The runs of a schedule with overlap = "kill" can follow each other without a pause. A request for one
// of them must not wait until one ends by itself.
func TestTheNextRunOfAScheduleEndsTheWait(t *testing.T) {
	before := at(program.Exited, 3, "schedule")
	for _, c := range []struct {
		state program.State
		run   uint64
		facts string
		want  string
	}{
		{program.Starting, 4, "schedule", "-"},
		{program.Stopping, 4, "schedule", "-"},
		{program.Starting, 5, "schedule", "over"},
		{program.Stopping, 6, "schedule", "over"},
		{program.Starting, 5, "", "-"}, // a service that is started again
	} {
		for name, goal := range map[string]goal{"ran": ran, "restarted": restarted, "returned": returned} {
			if got := verdict(goal(before, at(c.state, c.run, c.facts))); got != c.want {
				t.Errorf("%s in run %d, %s %s: got %q, want %q", name, c.run, c.state, c.facts, got, c.want)
			}
		}
	}
}

func verdict(done bool, failure *api.Error) string {
	switch {
	case !done:
		return "-"
	case failure != nil && failure.Code == api.CodeConflict:
		return "over"
	case failure != nil:
		return "x"
	}
	return "ok"
}

func TestConditions(t *testing.T) {
	cases := []struct {
		state program.State
		facts string
		holds string // the conditions that hold; ! marks those that cannot hold
	}{
		{program.Stopped, "", "stopped"},
		{program.Starting, "", "starting"},
		{program.Running, "", "running"},
		{program.Running, "ready", "ready running"},
		{program.Backoff, "", "backoff"},
		{program.Stopping, "ready", "stopping"},
		{program.Exited, "", "!ready !running stopped !completed exited"},
		{program.Exited, "queued", "stopped exited"},
		{program.Exited, "schedule", "stopped exited"},
		{program.Exited, "completed", "ready running stopped completed exited"},
		{program.Fatal, "", "!ready !running stopped !completed !starting !stopping !exited !backoff fatal"},
	}
	for _, c := range cases {
		var got []string
		for _, name := range api.Conditions() {
			holds, impossible := conditions[name](at(c.state, 1, c.facts))
			switch {
			case holds:
				got = append(got, name)
			case impossible:
				got = append(got, "!"+name)
			}
		}
		if text := strings.Join(got, " "); text != c.holds {
			t.Errorf("%s %s: got %q, want %q", c.state, c.facts, text, c.holds)
		}
	}
	if len(conditions) != len(api.Conditions()) {
		t.Errorf("%d conditions, %d of them told", len(conditions), len(api.Conditions()))
	}
	if told := strings.Join(api.Conditions(), ", "); strings.Replace(api.ForAny, " or ", ", ", 1) != told {
		t.Errorf("ForAny is %q, the conditions are %s", api.ForAny, told)
	}
}

func TestExplain(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	soon := now.Add(2100 * time.Millisecond)
	describe := func(p supervisor.Status) string {
		p.Since = now.Add(-time.Minute)
		w := explain(p, supervisor.Snapshot{Time: now, Programs: []supervisor.Status{p}}, "")
		return w.Summary + " | " + w.Next
	}
	waiting := at(program.Running, 1, "")
	waiting.Reason = ""
	waiting.Spec = &program.Spec{Readiness: program.Readiness{Any: true, Probes: []program.Probe{{Dialect: "notify"}, {Dialect: "tcp", Target: ":80"}}}}
	backoff := at(program.Backoff, 2, "")
	backoff.Reason, backoff.Deadline, backoff.LastExit = "", &soon, &program.Exit{Code: -1, Signal: "SEGV", Core: true}
	sick := at(program.Running, 1, "ready")
	sick.Healthy, sick.Reason = false, "unhealthy: no answer"
	stopping := at(program.Stopping, 1, "")
	stopping.Deadline = &soon
	nightly := at(program.Exited, 1, "completed")
	nightly.Schedule = &program.ScheduleStatus{NextRun: &soon}
	running := func(o program.Overlap) supervisor.Status {
		p := at(program.Starting, 1, "")
		p.Schedule, p.Spec = nightly.Schedule, &program.Spec{Type: program.Schedule, Overlap: o}
		return p
	}
	daemon := at(program.Exited, 1, "")
	daemon.Spec = &program.Spec{Type: program.Service, Kill: program.KillTree}
	failed := at(program.Fatal, 1, "")
	failed.Schedule = &program.ScheduleStatus{NextRun: &soon}
	paused := at(program.Stopped, 1, "")
	paused.Schedule = &program.ScheduleStatus{Paused: true}
	blocked := at(program.Stopped, 0, "")
	blocked.Blocked = true
	queued := at(program.Stopped, 0, "")
	queued.Queued = true
	starting := at(program.Starting, 1, "")
	starting.Deadline = &soon
	hooked := starting
	hooked.Spec, hooked.Hook = &program.Spec{Type: program.Oneshot}, program.PreStart
	clearing := starting
	clearing.EndedAt, clearing.Hook = &now, program.PostExit
	job := starting
	job.Spec = &program.Spec{Type: program.Schedule}
	for _, c := range []struct {
		p    supervisor.Status
		want string
	}{
		{at(program.Running, 1, "ready"), "p has been RUNNING for 1m00s and is ready | "},
		{waiting, "p has been RUNNING for 1m00s, but is not ready: it declares readiness by READY=1 on its notify socket or TCP :80 | "},
		{sick, "p has been RUNNING for 1m00s, but is not healthy: no answer | "},
		{backoff, "p has been BACKOFF for 1m00s: ended by signal SEGV (core dumped) | agentinit starts it again in 2.1s"},
		{queued, "p has been STOPPED for 1m00s: because | agentinit starts it when its turn comes and what it needs holds"},
		{at(program.Stopped, 1, ""), "p has been STOPPED for 1m00s: because | it starts when a start is asked for"},
		{starting, "p has been STARTING for 1m00s: because | within 2.1s it is RUNNING, or this start has failed"},
		{hooked, "p has been STARTING for 1m00s: because | within 2.1s its pre_start hook has ended, or this start has failed"},
		{clearing, "p has been STARTING for 1m00s: because | agentinit starts it when all processes of its last run are gone"},
		{job, "p has been STARTING for 1m00s: because | within 2.1s it has completed, or this start has failed"},
		{stopping, "p has been STOPPING for 1m00s: because | agentinit takes the next step of its stop, such as KILL, in 2.1s at the latest"},
		{at(program.Fatal, 5, ""), "p has been FATAL for 1m00s: because | it stays FATAL until a start is asked for"},
		{at(program.Exited, 1, "completed"), "p has been COMPLETED for 1m00s: because | "},
		{daemon, "p has been EXITED for 1m00s: because | it starts when a start is asked for; any process that it left in the background has been killed"},
		{nightly, "p has been COMPLETED for 1m00s: because | its schedule starts a run in 2.1s, at 2026-01-02T03:04:07Z"},
		{running(program.OverlapSkip), "p has been STARTING for 1m00s: because | its schedule starts a run in 2.1s, at 2026-01-02T03:04:07Z, if this run has ended by then"},
		{running(program.OverlapQueue), "p has been STARTING for 1m00s: because | its schedule starts a run in 2.1s, at 2026-01-02T03:04:07Z, or when this run has ended, if that is later"},
		{running(program.OverlapKill), "p has been STARTING for 1m00s: because | its schedule starts a run in 2.1s, at 2026-01-02T03:04:07Z, and first stops this run if it still goes on"},
		{failed, "p has been FATAL for 1m00s: because | its schedule starts a run in 2.1s, at 2026-01-02T03:04:07Z"},
		{paused, "p has been PAUSED for 1m00s: because | its schedule is paused; `start` resumes it, `run` starts a run now"},
		{blocked, "p has been STOPPED for 1m00s: because | what it needs does not start by itself; a start of this program starts that, too"},
	} {
		if got := describe(c.p); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

func TestExplainNeeds(t *testing.T) {
	web := supervisor.Status{Name: "web", Spec: &program.Spec{Needs: []program.Need{
		{Program: "db", Condition: program.NeedReady}, {Program: "job", Condition: program.NeedCompleted}, {Program: "tool", Condition: program.NeedStarted},
	}}}
	ended := time.Unix(1, 0)
	programs := []supervisor.Status{
		web, {Name: "db", State: program.Running, Reason: "no answer"},
		{Name: "job", State: program.Exited, EndedAt: &ended, LastExit: &program.Exit{}, Spec: &program.Spec{ExitCodes: []int{0}}}, {Name: "tool", State: program.Starting, PID: 5},
	}
	w := explain(web, supervisor.Snapshot{Programs: programs}, "")
	got := ""
	for _, n := range w.Needs {
		got += fmt.Sprintf("%s:%s %t; ", n.Program, n.Condition, n.Met)
	}
	if got != "db:ready false; job:completed true; tool:started true; " {
		t.Error(got)
	}
}

// TestStormOfEventsIsNotAStormOfLooks: even if a program causes very many events, a waiting request
// checks the state rarely.
func TestStormOfEventsIsNotAStormOfLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Events: event.NewBus(64)})
		w := s.watch()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var noise sync.WaitGroup
		defer noise.Wait()
		noise.Go(func() {
			for ctx.Err() == nil {
				s.cfg.Events.Publish(event.Event{Name: "Noise"})
				time.Sleep(time.Millisecond)
			}
		})
		looks := 0
		for w.next(ctx) == nil {
			looks++
		}
		if most := lookBurst + int(time.Second/lookEvery) + 1; looks > most || looks < most/2 {
			t.Errorf("%d looks in a second of 1000 events, want at most %d", looks, most)
		}
	})
}
