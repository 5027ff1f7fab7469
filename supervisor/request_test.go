package supervisor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

func TestRestartStorm(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["bad"] = habit{lives: 10 * time.Millisecond, code: 3}
		b.boot(Config{}, spec("bad"), spec("good"))
		b.pass(10 * time.Minute)
		b.is("bad", program.Fatal, "exited with code 3")
		b.is("good", program.Running, "")
		st := b.status("bad")
		if st.Restarts != 10 || st.Run != 11 || st.LastExit.Code != 3 || st.Deadline != nil {
			t.Errorf("%+v", st)
		}
		last := b.events(event.ProgramStateChanged)
		if e := last[len(last)-1]; e.Level != event.Error || e.Change.To != "FATAL" {
			t.Errorf("%+v", e)
		}
	})
}

// While the program is STOPPING, the end of its leader is not reported as an event. The next state
// reports it.
func TestStopIsToldOnce(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["p"] = habit{dies: time.Second, leftover: time.Second}
		b.boot(Config{}, spec("p"))
		b.pass(2 * time.Second)
		must(b.t, b.sup.Stop(b.t.Context(), "p"))
		b.pass(5 * time.Second)
		b.is("p", program.Stopped, "stopped by request")
		var told []string
		for _, e := range b.events(event.ProgramStateChanged) {
			told = append(told, e.Change.From+">"+e.Change.To)
		}
		want := "STOPPED>STARTING STARTING>STARTING STARTING>RUNNING RUNNING>STOPPING STOPPING>STOPPED"
		if got := strings.Join(told, " "); got != want {
			t.Errorf("told %s", got)
		}
	})
}

func TestRestartWaitsForTheTree(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["p"] = habit{leftover: 3 * time.Second}
		b.boot(Config{}, spec("p", func(s *program.Spec) { s.Backoff.Initial = 0 }))
		b.pass(time.Second)
		b.k.forget()
		b.k.crash("p", 1)
		b.pass(2500 * time.Millisecond)
		b.is("p", program.Starting, "waits until all processes of run 1 are gone")
		b.pass(time.Second)
		if st := b.status("p"); st.Run != 2 || st.PID == 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestRequests(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["p"] = habit{dies: 2 * time.Second}
		b.boot(Config{}, spec("p"), spec("off", manual))
		ctx := b.t.Context()
		b.pass(time.Second)
		b.k.forget()

		err := b.sup.Start(ctx, "p")
		if refused, ok := errors.AsType[*Refused](err); !ok || refused.State != program.Running {
			t.Errorf("%v", err)
		}
		err = b.sup.Stop(ctx, "off")
		if refused, ok := errors.AsType[*Refused](err); !ok || refused.ProgramName() != "off" || refused.State != program.Stopped {
			t.Errorf("%v", err)
		}
		err = b.sup.Signal(ctx, "HUP", "off")
		if _, ok := errors.AsType[*Refused](err); !ok {
			t.Errorf("%v", err)
		}
		err = b.sup.Restart(ctx, "nosuch", "p")
		if unknown, ok := errors.AsType[*UnknownProgram](err); !ok || unknown.ProgramName() != "nosuch" {
			t.Errorf("%v", err)
		}
		b.pass(0)
		b.is("p", program.Stopping, "a start is queued")
		st, err := b.sup.Await(ctx, "p", func(st Status) bool { return st.State == program.Running })
		if err != nil || st.Run != 2 || st.Restarts != 0 {
			t.Errorf("%v, %+v", err, st)
		}
		b.asked("TERM p, start p")
		if err := b.sup.Signal(ctx, "HUP", "p"); err != nil {
			t.Error(err)
		}
		if err := b.sup.Stop(ctx, "p"); err != nil {
			t.Error(err)
		}
		if err := b.sup.Stop(ctx, "p"); err != nil {
			t.Errorf("a second stop while stopping: %v", err)
		}
		b.pass(2 * time.Second)
		b.is("p", program.Stopped, "stopped by request")
		b.asked("HUP p, TERM p")
		if got := b.transitions("p"); got != "STARTING RUNNING STOPPING STARTING RUNNING STOPPING STOPPED" {
			t.Errorf("%s", got)
		}
		timeout, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := b.sup.Await(timeout, "p", func(st Status) bool { return st.State == program.Running }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
}

func TestStopLadderReachesKill(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["p"] = habit{deaf: true}
		b.boot(Config{}, spec("p"))
		b.pass(time.Second)
		b.k.forget()
		must(b.t, b.sup.Stop(b.t.Context(), "p"))
		b.pass(9999 * time.Millisecond)
		b.asked("TERM p")
		b.pass(time.Millisecond)
		b.asked("KILL p")
		b.is("p", program.Stopped, "")
	})
}

func TestHooksAndProbes(t *testing.T) {
	inBox(t, func(b *box) {
		b.p.after["p"] = time.Second
		hook := &program.Hook{Argv: []string{"x"}, Timeout: time.Second}
		b.h.hang = "pre_stop p"
		b.boot(Config{}, spec("p", notify, func(s *program.Spec) {
			s.Hooks = program.Hooks{PreStart: hook, PostReady: hook, PreStop: hook, PostExit: hook}
			s.StopCommand = hook
			s.Health = program.Health{Probes: []program.Probe{{Dialect: "tcp", Target: "x:1"}}, Failures: 1, Action: program.HealthRestart}
		}))
		b.pass(0)
		b.p.report("p", Report{Kind: ReportText, Text: "warming up"})
		b.pass(time.Second)
		b.is("p", program.Running, "")
		if st := b.status("p"); st.Text != "warming up" || !st.Healthy {
			t.Errorf("%+v", st)
		}
		b.p.report("p", Report{Kind: ReportUnhealthy, Reason: "no answer"})
		b.pass(0)
		b.is("p", program.Stopping, "unhealthy: no answer")
		b.pass(5 * time.Second)
		if got := strings.Join(b.h.ran, ", "); got != "pre_start p, post_ready p, pre_stop p, stop_command p, post_exit p, pre_start p, post_ready p" {
			t.Errorf("hooks: %s", got)
		}
		if len(b.p.stopped) != 2 {
			t.Errorf("%d probes stopped", len(b.p.stopped))
		}
		if len(b.events("HookFailed")) != 1 {
			t.Error("the hook that was cut off left no event")
		}
	})
}

// TestStatusNamesTheHook: as long as a program waits for a hook, its status names it.
func TestStatusNamesTheHook(t *testing.T) {
	inBox(t, func(b *box) {
		b.h.hang = "pre_start p"
		b.boot(Config{}, spec("p", func(s *program.Spec) {
			s.Hooks.PreStart = &program.Hook{Argv: []string{"x"}, Timeout: time.Second}
		}))
		if st := b.status("p"); st.State != program.Starting || st.Hook != program.PreStart {
			t.Errorf("%v, hook %q", st.State, st.Hook)
		}
		b.pass(time.Second)
		if st := b.status("p"); st.State != program.Backoff || st.Hook != "" {
			t.Errorf("%v, hook %q", st.State, st.Hook)
		}
	})
}

func TestNothingDueMeansNoTimer(t *testing.T) {
	inBox(t, func(b *box) {
		b.boot(Config{}, spec("p"))
		b.pass(time.Second)
		var due int
		must(b.t, b.sup.do(b.t.Context(), func() { due = len(b.sup.loop.agenda) }))
		if due != 0 {
			t.Errorf("%d appointments of a box at rest", due)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	bus, k := event.NewBus(1), &kernel{}
	for want, specs := range map[string][]program.Spec{
		"circle: a → b → a": {spec("a", needs("b")), spec("b", needs("a"))},
		"declares probes":   {spec("a", notify)},
		"declares hooks":    {spec("a", func(s *program.Spec) { s.StopCommand = &program.Hook{} })},
		`schedule "soon"`:   {spec("a", func(s *program.Spec) { s.Type, s.Schedule = program.Schedule, "soon" })},
	} {
		if _, err := New(Config{Processes: k, Bus: bus}, specs); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want …%s…", err, want)
		}
	}
	if _, err := New(Config{}, nil); err == nil {
		t.Error("a supervisor of nothing")
	}
}

func TestAfterTheEnd(t *testing.T) {
	inBox(t, func(b *box) {
		b.boot(Config{}, spec("p"))
		b.sup.Shutdown("x")
		synctest.Wait()
		if err := b.sup.Start(b.t.Context(), "p"); !errors.Is(err, ErrDone) {
			t.Errorf("%v", err)
		}
		if err := b.sup.Ping(b.t.Context()); !errors.Is(err, ErrDone) {
			t.Errorf("%v", err)
		}
		if b.sup.Snapshot().Phase != Done {
			t.Error(b.sup.Phase())
		}
		if r, ok := b.sup.Result(); !ok || r.Cause.Detail != "x" {
			t.Errorf("%+v", r)
		}
	})
}

func TestAPanicOfTheLoopEndsTheBox(t *testing.T) {
	inBox(t, func(b *box) {
		b.boot(Config{}, spec("p"))
		b.pass(time.Second)
		b.k.forget()
		b.sup.in.post(func() { panic("a bug") })
		<-b.sup.Ending()
		synctest.Wait()
		r := <-b.result
		if r.Code != 1 || r.Cause.Kind != CauseInternal || !strings.Contains(r.Cause.Detail, "a bug") {
			t.Errorf("%+v", r)
		}
		b.asked("KILL p")
	})
}

func TestRestartDuringTheBackoff(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["p"] = habit{lives: 2 * time.Second, code: 1, good: 1}
		b.boot(Config{}, spec("p", func(s *program.Spec) { s.Backoff.Initial = time.Hour }))
		b.pass(3 * time.Second)
		b.is("p", program.Backoff, "")
		must(b.t, b.sup.Restart(b.t.Context(), "p"))
		b.pass(time.Second)
		b.is("p", program.Running, "")
	})
}

func TestSchedule(t *testing.T) {
	for _, c := range []struct {
		overlap program.Overlap
		lives   time.Duration
		runs    uint64
		stops   string // why agentinit stops a run
	}{
		{program.OverlapSkip, 0, 3, ""},
		{program.OverlapSkip, 15 * time.Minute, 2, ""},
		{program.OverlapQueue, 15 * time.Minute, 2, ""},
		{program.OverlapKill, 15 * time.Minute, 3, `stopping: its next run is due (overlap = "kill")`},
	} {
		inBox(t, func(b *box) {
			b.k.habits["job"] = habit{lives: max(c.lives, time.Millisecond)}
			b.boot(Config{}, spec("job", func(s *program.Spec) {
				s.Type, s.Schedule, s.Overlap, s.StartTimeout = program.Schedule, "@every 10m", c.overlap, 0
			}))
			b.is("job", program.Stopped, "waits for its next run at ")
			if !isStarted(b) {
				t.Error("a schedule holds up the boot")
			}
			b.pass(31 * time.Minute)
			if st := b.status("job"); st.Run != c.runs {
				t.Errorf("%s, %v: %d runs: %s", c.overlap, c.lives, st.Run, b.k.said())
			}
			stops := ""
			for _, e := range b.events(event.ProgramStateChanged) {
				if e.Change.To == program.Stopping.String() {
					stops = e.Change.Reason
				}
			}
			if stops != c.stops {
				t.Errorf("%s: a run is stopped with the reason %q, want %q", c.overlap, stops, c.stops)
			}
		})
	}
}

// Between two readings of the clock some time passes.
func TestNextRunIsNotShownEarly(t *testing.T) {
	inBox(t, func(b *box) {
		at := time.Now()
		b.boot(Config{}, spec("job", func(s *program.Spec) {
			s.Type, s.Schedule, s.Timezone = program.Schedule, "@every 10m", "UTC"
		}))
		plan := func() {
			l := &b.sup.loop
			now, clock := l.now, l.clock
			read := func() time.Time { at = at.Add(time.Microsecond); return at }
			l.now, l.clock = read, read
			l.planNext(l.entries["job"])
			l.now, l.clock = now, clock
		}
		want := at.Add(10 * time.Minute).UTC().Format(time.RFC3339)
		must(b.t, b.sup.do(b.t.Context(), plan))
		b.is("job", program.Stopped, "waits for its next run at "+want)
	})
}

// daily is a job that runs at three o'clock.
func daily(s *program.Spec) {
	s.Type, s.Schedule, s.Timezone, s.StartTimeout = program.Schedule, "0 3 * * *", "UTC", 0
}

// The box boots at midnight. After some time, its wall clock is set.
func TestScheduleWhenTheClockIsSet(t *testing.T) {
	for name, c := range map[string]struct {
		after, by time.Duration
		due       time.Duration // time since the boot
		late      time.Duration // at most
		runs      uint64        // after that
	}{
		"not at all":          {time.Hour, 0, 3 * time.Hour, 0, 1},
		"back":                {time.Hour, -30 * time.Minute, 3*time.Hour + 30*time.Minute, 0, 1},
		"back over a run":     {3*time.Hour + 10*time.Minute, -time.Hour, 28 * time.Hour, 0, 2},
		"forward":             {time.Hour, 30 * time.Minute, 2*time.Hour + 30*time.Minute, 0, 1},
		"forward over a run":  {time.Hour, 5 * time.Hour, time.Hour, lookAgain, 1},
		"back by a year":      {time.Hour, -365 * 24 * time.Hour, 3 * time.Hour, 0, 1},
		"back by five hours":  {4 * time.Hour, -5 * time.Hour, 8 * time.Hour, 0, 2},
		"forward by a decade": {time.Hour, 3653*24*time.Hour + 5*time.Hour, time.Hour, lookAgain, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBox(t, func(b *box) {
				b.k.habits["job"] = habit{lives: time.Millisecond}
				b.boot(Config{}, spec("job", daily), spec("side"))
				b.pass(c.after)
				set := func() { b.sup.loop.clock = func() time.Time { return time.Now().Add(c.by) } }
				must(b.t, b.sup.do(b.t.Context(), set))
				if c.due > c.after {
					b.pass(c.due - c.after - time.Millisecond)
					if st := b.status("job"); st.Run != c.runs-1 {
						t.Errorf("run %d too soon", st.Run)
					}
					b.pass(time.Millisecond)
				}
				b.pass(c.late)
				if st := b.status("job"); st.Run != c.runs {
					t.Errorf("run %d, want %d: %s", st.Run, c.runs, st.Reason)
				}
				b.pass(2 * time.Hour)
				if st := b.status("job"); st.Run != c.runs {
					t.Errorf("run %d again", st.Run)
				}
			})
		})
	}
}

// The agenda compares all its times with each other, so all of them must be monotonic. A time of
// the wall clock would move relative to the others when the clock is set.
func TestAgendaIsMonotonic(t *testing.T) {
	monotonic := func(at time.Time) bool { return at != at.Round(0) }
	for _, schedule := range []string{"0 3 * * *", "* * * * *", "@every 10m"} {
		var l loop
		job := spec("job", daily, func(s *program.Spec) { s.Schedule = schedule })
		l.init(&Supervisor{})
		e := l.newEntry(&job)
		l.timetable(e)
		if at, ok := l.agenda.next(); !ok || !monotonic(at) {
			t.Errorf("%s: %v on the agenda", schedule, at)
		}
		// Conversely, a time of the wall clock must have no monotonic part.
		if every := schedule == "@every 10m"; monotonic(e.cron.at) != every {
			t.Errorf("%s: due at %v", schedule, e.cron.at)
		}
	}
}

// The error of a start names the command, and may therefore contain the value of a secret.
func TestAReasonHoldsNoSecret(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["p"] = habit{fail: errors.New("cannot exec /bin/s3cret: no such file or directory")}
		b.boot(Config{}, spec("p", func(s *program.Spec) { s.Secrets = []program.Secret{{Name: "TOKEN", Value: "s3cret"}} }))
		b.pass(0)
		if st := b.status("p"); !strings.HasPrefix(st.Reason, "cannot exec /bin/${TOKEN}: no such file or directory") {
			t.Errorf("the reason is %q", st.Reason)
		}
		for _, e := range b.events("ProgramStateChanged") {
			if text := fmt.Sprintf("%+v", e); strings.Contains(text, "s3cret") {
				t.Errorf("an event says %s", text)
			}
		}
	})
}
