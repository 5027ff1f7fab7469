package supervisor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// instances returns the specs of a set of n instances, named as schema/plan names them.
func instances(group string, n int, f ...func(*program.Spec)) []program.Spec {
	specs := make([]program.Spec, n)
	for i := range specs {
		name := group
		if n > 1 {
			name = laneOf(&program.Spec{Group: group, Instance: i})
		}
		specs[i] = spec(name, f...)
		specs[i].Group, specs[i].Instance = group, i
		if specs[i].Argv[0] == name {
			specs[i].Argv = []string{group}
		}
	}
	return specs
}

func (b *box) apply(specs ...program.Spec) ApplyResult {
	b.t.Helper()
	r, err := b.sup.Apply(b.t.Context(), specs)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// When a set is scaled, each instance that remains keeps its process and its run, even if its name
// changes.
func TestScalingKeepsProcesses(t *testing.T) {
	inBox(t, func(b *box) {
		user := func(needs ...string) program.Spec { return spec("user", needsOf(needs)) }
		b.boot(Config{}, append(instances("late", 1, required), user("late"))...)
		b.pass(2 * time.Second)
		pid := b.status("late").PID
		b.k.forget()
		r := b.apply(append(instances("late", 2, required), user("late:0", "late:1"))...)
		b.pass(2 * time.Second)
		if got := kinds(r); got != "late:0:live late:1:add user:live " || r.Changes[0].Was != "late" {
			t.Errorf("%s %+v", got, r.Changes[0])
		}
		if st := b.status("late:0"); st.PID != pid || st.Run != 1 || st.State != program.Running {
			t.Errorf("%+v", st)
		}
		if _, ok := b.sup.Status("late"); ok {
			t.Error("late is still there")
		}
		if st := b.status("late:0"); !slices.Equal(st.Names(), []string{"late:0", "late"}) {
			t.Errorf("its names are %q", st.Names())
		}
		b.askedTogether("rename late late:0", "start late:1")

		// An end after the renaming is reported under the new name, even if the notice has the old
		// name.
		b.k.crash("late:0", 1)
		b.pass(2 * time.Second)
		b.is("late:0", program.Running, "")
		if st := b.status("late:0"); st.Run != 2 {
			t.Errorf("%+v", st)
		}
		b.pass(2 * time.Second)
		pid = b.status("late:0").PID
		b.k.forget()
		b.apply(append(instances("late", 1, required), user("late"))...)
		b.pass(15 * time.Second)
		if st := b.status("late"); st.PID != pid || st.Run != 2 || st.State != program.Running {
			t.Errorf("%+v", st)
		}
		if st := b.status("late"); !slices.Equal(st.Names(), []string{"late", "late:0"}) {
			t.Errorf("its names are %q", st.Names())
		}
		b.askedTogether("rename late:0 late", "TERM late:1", "forget late:1")
	})
}

// needsOf is needs for instances, whose names contain a colon.
func needsOf(names []string) func(*program.Spec) {
	return func(s *program.Spec) {
		for _, name := range names {
			s.Needs = append(s.Needs, program.Need{Program: name, Condition: program.NeedReady})
		}
	}
}

// As soon as an apply begins to remove a program, the program is no longer required, so the box
// does not become unready.
func TestARemovedProgramIsRequiredNoLonger(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["web:2"] = dies(time.Second) // otherwise it could be gone before the first check
		b.boot(Config{}, instances("web", 3, required)...)
		b.pass(2 * time.Second)
		seq := b.bus.Seq()
		b.apply(instances("web", 2, required)...)
		// A client that follows the events reads the status again at ProgramsApplied, which comes
		// before the first change of a program's state.
		w := b.bus.Watch(seq)
		e, _ := w.TryNext()
		if e.Name != event.ProgramsApplied {
			t.Errorf("the first event is %s", e.Name)
		}
		if st := b.status("web:2"); st.Required {
			t.Errorf("%+v", st)
		}
		if len(b.events(event.ProgramRemoved)) != 0 {
			t.Error("web:2 is gone already: the test shows nothing")
		}
	})
}

// An apply replaces the instances of a set one by one. It goes on to the next instance when the
// previous one is ready.
func TestApplyRollsASet(t *testing.T) {
	inBox(t, func(b *box) {
		for _, name := range []string{"w:0", "w:1", "w:2"} {
			b.p.after[name] = 5 * time.Second
			b.k.habits[name] = dies(time.Second)
		}
		b.boot(Config{}, append(instances("w", 3, notify), spec("other"))...)
		b.pass(10 * time.Second)
		b.k.forget()
		begin := time.Now()
		least := 3
		done := make(chan struct{})
		go func() {
			defer close(done)
			watch := b.bus.Watch(b.bus.Seq())
			for {
				up := 0
				for _, p := range b.sup.Snapshot().Programs {
					if p.Group == "w" && p.Ready {
						up++
					}
				}
				least = min(least, up)
				if e, err := watch.Next(b.t.Context()); err != nil || e.Name == "over" {
					return
				}
			}
		}()
		r := b.apply(append(instances("w", 3, notify, argv("new")), spec("other"))...)
		b.bus.Publish(event.Event{Name: "over"})
		<-done
		if took := time.Since(begin); took != 18*time.Second || least != 2 || len(r.Troubles) > 0 {
			t.Errorf("it took %v, at least %d instances were ready, troubles %v", took, least, r.Troubles)
		}
		b.asked("TERM w:0, start w:0, TERM w:1, start w:1, TERM w:2, start w:2")
	})
}

// If an instance does not come back, the apply leaves the remaining instances unchanged. A later
// apply replaces them.
func TestARollEndsAtTheFirstThatDoesNotReturn(t *testing.T) {
	inBox(t, func(b *box) {
		never := func(s *program.Spec) { s.Restart = program.RestartNever }
		b.boot(Config{}, instances("w", 3, never)...)
		b.pass(2 * time.Second)
		b.k.habits["w:1"] = habit{lives: time.Millisecond, code: 1}
		r := b.apply(instances("w", 3, never, argv("new"))...)
		if r.RolledBack || len(r.Troubles) != 2 || !strings.Contains(r.Troubles["w:1"], "FATAL") ||
			!strings.Contains(r.Troubles["w:2"], "w:1 did not return") {
			t.Errorf("%+v", r)
		}
		if st := b.status("w:2"); st.Run != 1 || st.Spec.Argv[0] != "w" {
			t.Errorf("%+v", st)
		}
		delete(b.k.habits, "w:1")
		r = b.apply(instances("w", 3, never, argv("new"))...)
		if got := kinds(r); got != "w:0:unchanged w:1:unchanged w:2:restart " {
			t.Error(got)
		}
		b.pass(20 * time.Second)
		if st := b.status("w:2"); st.Spec.Argv[0] != "new" {
			t.Errorf("%+v", st)
		}
	})
}

// A request may stop an instance before its turn comes. It stays stopped, and the instances after it
// restart without waiting for it.
func TestARollPassesAnInstanceThatWasStopped(t *testing.T) {
	inBox(t, func(b *box) {
		for _, name := range []string{"w:0", "w:1", "w:2", "w:3"} {
			b.p.after[name] = 5 * time.Second
		}
		b.boot(Config{}, instances("w", 4, notify)...)
		b.pass(time.Minute)
		begin, done := time.Now(), make(chan ApplyResult)
		go func() { done <- b.apply(instances("w", 4, notify, argv("new"))...) }()
		b.pass(0)
		must(b.t, b.sup.Stop(b.t.Context(), "w:1", "w:3"))
		b.pass(0)
		r := <-done
		if took := time.Since(begin); took > 30*time.Second || r.RolledBack || len(r.Troubles) > 0 {
			t.Errorf("after %v: %+v", took, r)
		}
		for name, want := range map[string]program.State{
			"w:0": program.Running, "w:1": program.Stopped, "w:2": program.Running, "w:3": program.Stopped,
		} {
			if st := b.status(name); st.State != want || st.Spec.Argv[0] != "new" {
				t.Errorf("%s is %s and runs %s, want %s", name, st.State, st.Spec.Argv[0], want)
			}
		}
	})
}

// The first instance may be on its way to a requested stop when the apply begins. It stays stopped, and
// the others restart without waiting for it.
func TestARollBeginsAfterAnInstanceThatIsBeingStopped(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["w:0"] = dies(2 * time.Second)
		b.boot(Config{}, instances("w", 3, required)...)
		b.pass(time.Minute)
		must(b.t, b.sup.Stop(b.t.Context(), "w:0"))
		b.pass(time.Second)
		b.is("w:0", program.Stopping, "stopping by request")
		if r := b.apply(instances("w", 3, required, argv("new"))...); r.RolledBack || len(r.Troubles) > 0 {
			t.Errorf("%+v", r)
		}
		b.pass(time.Minute)
		b.is("w:0", program.Stopped, "stopped by request")
		for _, name := range []string{"w:1", "w:2"} {
			if st := b.status(name); st.State != program.Running || st.Spec.Argv[0] != "new" {
				t.Errorf("%+v", st)
			}
		}
	})
}

// An apply that arrives during another apply waits. It reads the manifest when its turn comes, and
// is not lost.
func TestTheLastApplyWins(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["web"] = habit{slow: 5 * time.Second}
		b.boot(Config{}, spec("web", required))
		b.pass(10 * time.Second)
		var manifest atomic.Value
		manifest.Store("first")
		apply := func(done chan<- error) {
			_, err := b.sup.ApplyWith(b.t.Context(), func() ([]program.Spec, Steps, error) {
				return []program.Spec{spec("web", required, argv(manifest.Load().(string)))}, Steps{}, nil
			})
			done <- err
		}
		done := make(chan error, 2)
		go apply(done)
		b.pass(time.Second)
		go apply(done)
		b.pass(time.Second)
		manifest.Store("second")
		for range 2 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		if st := b.status("web"); st.Spec.Argv[0] != "second" {
			t.Errorf("web runs %v", st.Spec.Argv)
		}
	})
}

// Dependents stop first, and later waves stop before earlier ones.
func TestStopAllGoesBackwards(t *testing.T) {
	inBox(t, func(b *box) {
		for _, name := range []string{"db", "web", "proxy", "late"} {
			b.k.habits[name] = dies(time.Second)
		}
		b.boot(Config{}, spec("db", priority(1)), spec("web", priority(1), needs("db")), spec("proxy", priority(1), needs("web")), spec("late", priority(2)))
		b.pass(10 * time.Second)
		b.k.forget()
		must(b.t, b.sup.Stop(b.t.Context(), "db", "web", "proxy", "late"))
		if st := b.status("db"); st.State != program.Running || !st.Halting {
			t.Errorf("%+v", st)
		}
		b.pass(500 * time.Millisecond)
		b.asked("TERM late")
		// A start cancels the stop of db.
		must(b.t, b.sup.Start(b.t.Context(), "db"))
		b.pass(5 * time.Second)
		b.asked("TERM proxy, TERM web")
		b.is("db", program.Running, "")
	})
}

// A start of all programs goes in waves and starts only the programs that the boot would start.
func TestStartAllGoesInWaves(t *testing.T) {
	inBox(t, func(b *box) {
		b.p.after["db"] = 3 * time.Second
		b.k.habits["migrate"] = habit{lives: time.Second}
		specs := []program.Spec{spec("db", priority(1), notify), spec("migrate", priority(1), oneshot), spec("web", priority(2))}
		b.boot(Config{}, specs...)
		b.pass(10 * time.Second)
		must(b.t, b.sup.Stop(b.t.Context(), "db", "web"))
		b.pass(30 * time.Second)
		b.k.forget()
		must(b.t, b.sup.StartAll(b.t.Context(), "db", "web"))
		b.pass(2 * time.Second)
		b.asked("start db")
		b.is("web", program.Stopped, "waits for its turn")
		b.pass(2 * time.Second)
		b.asked("start web")
		if st := b.status("migrate"); st.StartsWithBox() || st.Run != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// A restart of all programs first stops them backwards and then starts them in waves.
func TestRestartAllStopsAllFirst(t *testing.T) {
	inBox(t, func(b *box) {
		for _, name := range []string{"db", "web", "late"} {
			b.k.habits[name] = dies(time.Second)
		}
		b.p.after["db"] = 3 * time.Second
		b.boot(Config{ExitWhenAllExited: true},
			spec("db", priority(1), notify), spec("web", priority(1), needs("db")), spec("late", priority(2)), spec("idle", manual))
		b.pass(10 * time.Second)
		b.k.forget()
		must(b.t, b.sup.RestartAll(b.t.Context(), "db", "web", "late"))
		b.pass(500 * time.Millisecond)
		b.asked("TERM late")
		b.pass(time.Second)
		b.asked("TERM web")
		b.is("late", program.Stopped, "starts again when all programs have stopped")
		if st := b.status("late"); !st.Queued {
			t.Errorf("%+v", st)
		}
		b.pass(time.Second)
		b.asked("TERM db")
		b.pass(time.Second)
		b.asked("start db")
		b.is("late", program.Stopped, "waits for its turn")
		b.pass(10 * time.Second)
		b.asked("start web, start late")
		for _, name := range []string{"db", "web", "late"} {
			if st := b.status(name); st.State != program.Running || st.Run != 2 || st.Queued {
				t.Errorf("%s: %+v", name, st)
			}
		}
		b.is("idle", program.Stopped, "")
	})
}

// A shutdown comes before the second half of a restart of all programs.
func TestAShutdownInARestartOfAll(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["db"] = dies(5 * time.Second)
		b.boot(Config{}, spec("db"), spec("web", needs("db")))
		b.pass(10 * time.Second)
		must(b.t, b.sup.RestartAll(b.t.Context(), "db", "web"))
		b.pass(time.Second)
		b.is("web", program.Stopped, "starts again when all programs have stopped")
		b.sup.Shutdown("test")
		b.pass(time.Second)
		b.is("web", program.Stopped, "not started: the box is shutting down")
		b.is("db", program.Stopping, "stopping by request")
		err := b.sup.Start(b.t.Context(), "web")
		if refused, ok := errors.AsType[*Refused](err); !ok || !refused.Ending {
			b.t.Errorf("a start is refused by %v, as at other times", err)
		}
	})
}

// A restart of all programs in the middle of the boot keeps the waves: the next one does not begin
// while the programs of the one before are stopped.
func TestRestartAllInTheBoot(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["db"] = dies(time.Second)
		b.p.after["db"] = 5 * time.Second
		b.boot(Config{}, spec("db", priority(1), notify), spec("web", priority(2)))
		b.pass(time.Second)
		must(b.t, b.sup.RestartAll(b.t.Context(), "db", "web"))
		b.pass(4 * time.Second)
		b.asked("start db, TERM db, start db")
		b.pass(10 * time.Second)
		b.asked("start web")
		b.is("web", program.Running, "")
	})
}

// A program that is stopped during RestartAll stays stopped.
func TestRestartAllGivesWayToAStop(t *testing.T) {
	inBox(t, func(b *box) {
		for _, name := range []string{"db", "web"} {
			b.k.habits[name] = dies(time.Second)
		}
		b.boot(Config{}, spec("db"), spec("web", needs("db")))
		b.pass(10 * time.Second)
		must(b.t, b.sup.RestartAll(b.t.Context(), "db", "web"))
		b.pass(500 * time.Millisecond)
		must(b.t, b.sup.Stop(b.t.Context(), "db", "web"))
		b.pass(time.Minute)
		b.is("db", program.Stopped, "")
		b.is("web", program.Stopped, "")
	})
}

// The same holds if it has stopped already, and waits for the others to stop.
func TestRestartAllGivesWayToALateStop(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["db"] = dies(5 * time.Second)
		b.boot(Config{}, spec("db"), spec("web", needs("db")))
		b.pass(10 * time.Second)
		must(b.t, b.sup.RestartAll(b.t.Context(), "db", "web"))
		b.pass(time.Second)
		b.is("web", program.Stopped, "starts again when all programs have stopped")
		if err := b.sup.Stop(b.t.Context(), "web"); err != nil {
			t.Error(err)
		}
		b.is("web", program.Stopped, "stopped by request before it was started")
		if st := b.status("web"); st.Queued {
			t.Errorf("%+v", st)
		}
		b.pass(time.Minute)
		b.is("db", program.Running, "")
		b.is("web", program.Stopped, "stopped by request before it was started")
	})
}

// A start of a program that a restart of all programs is about to stop does not take it out of the
// restart.
func TestAStartInARestartOfAll(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["web"] = dies(5 * time.Second)
		b.boot(Config{}, spec("db"), spec("web", needs("db")))
		b.pass(10 * time.Second)
		must(b.t, b.sup.RestartAll(b.t.Context(), "db", "web"))
		b.pass(time.Second)
		b.is("db", program.Running, "stops after the programs that depend on it")
		if err := b.sup.Start(b.t.Context(), "db"); err != nil {
			t.Error(err)
		}
		b.pass(time.Minute)
		for _, name := range []string{"db", "web"} {
			if st := b.status(name); st.State != program.Running || st.Run != 2 {
				t.Errorf("%+v", st)
			}
		}
	})
}

// The run of a schedule that a restart of all programs stops starts again after the others, also if the
// next one is due already.
func TestRestartAllOfAScheduleWithAQueuedRun(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["db"] = dies(5 * time.Second)
		b.boot(Config{}, spec("db"), backup(func(s *program.Spec) { s.Overlap = program.OverlapQueue }))
		b.pass(21 * time.Minute)
		must(b.t, b.sup.RestartAll(b.t.Context(), "db", "job"))
		b.pass(time.Second)
		b.is("job", program.Stopped, "starts again when all programs have stopped")
		b.pass(time.Minute)
		if st := b.status("job"); st.State != program.Starting || st.Run != 2 {
			t.Errorf("%+v", st)
		}
	})
}

// A start of all programs starts each of them, also one of which an apply takes autostart away before its
// wave comes.
func TestStartAllAndAnApply(t *testing.T) {
	inBox(t, func(b *box) {
		b.p.after["db"] = 3 * time.Second
		b.boot(Config{}, spec("db", priority(1), notify), spec("web", priority(2)))
		b.pass(10 * time.Second)
		must(b.t, b.sup.Stop(b.t.Context(), "db", "web"))
		b.pass(30 * time.Second)
		must(b.t, b.sup.StartAll(b.t.Context(), "db", "web"))
		b.pass(time.Second)
		b.is("web", program.Stopped, "waits for its turn")
		b.apply(spec("db", priority(1), notify), spec("web", priority(2), manual))
		b.pass(10 * time.Second)
		b.is("web", program.Running, "")
	})
}

// If a need has given up, a start of the dependent program starts the need again. If the need fails
// again, the start returns at once.
func TestStartTriesTheNeedsAgain(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["db"] = habit{lives: time.Millisecond, code: 1, good: 1}
		once := func(s *program.Spec) { s.Restart = program.RestartNever }
		b.boot(Config{}, spec("db", once), spec("mid", needs("db")), spec("web", needs("mid")))
		b.pass(time.Second)
		b.is("db", program.Fatal, "")
		if st := b.status("web"); !st.Blocked || st.GaveUp() == "" {
			t.Errorf("%+v", st)
		}
		must(b.t, b.sup.Start(b.t.Context(), "web"))
		if st := b.status("web"); st.Blocked {
			t.Errorf("%+v", st)
		}
		b.pass(5 * time.Second)
		b.is("web", program.Running, "")
	})
}

func backup(f ...func(*program.Spec)) program.Spec {
	return spec("job", append([]func(*program.Spec){func(s *program.Spec) {
		s.Type, s.Schedule, s.StartTimeout, s.Restart = program.Schedule, "@every 10m", 0, program.RestartNever
	}}, f...)...)
}

// A stop of a waiting schedule pauses it, and a start resumes it. "Run now" changes neither.
func TestSchedulePauses(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["job"] = habit{lives: time.Second}
		b.boot(Config{}, backup())
		b.pass(time.Minute)
		first := b.status("job").Schedule
		if first == nil || first.Paused || first.NextRun == nil || first.LastRun != nil {
			t.Fatalf("%+v", first)
		}
		do := func(request func(context.Context, ...string) error) {
			t.Helper()
			if err := request(b.t.Context(), "job"); err != nil {
				t.Error(err)
			}
		}
		do(b.sup.Stop)
		b.is("job", program.Stopped, "paused")
		if st := b.status("job"); !st.Schedule.Paused || st.Schedule.NextRun != nil || st.Shown() != program.ShownPaused {
			t.Errorf("%+v", st.Schedule)
		}
		b.pass(time.Hour)
		b.asked("")
		do(b.sup.RunNow)
		b.pass(2 * time.Second)
		b.asked("start job, KILL job")
		b.is("job", program.Exited, "paused")
		if st := b.status("job"); st.Schedule.LastRun == nil || !strings.Contains(st.Schedule.LastResult, "completed") {
			t.Errorf("%+v", st.Schedule)
		}
		b.pass(time.Hour)
		b.asked("")
		do(b.sup.Start)
		b.pass(0)
		b.asked("") // resumed, not run
		b.is("job", program.Exited, "waits for its next run")
		b.pass(10*time.Minute + 2*time.Second)
		b.asked("start job, KILL job")
		if err := b.sup.Start(b.t.Context(), "job"); err == nil {
			t.Error("a start of an active schedule is taken")
		}
		// A stop during a run pauses the schedule too.
		b.k.habits["job"] = habit{dies: time.Second}
		do(b.sup.RunNow)
		b.pass(time.Second)
		do(b.sup.Stop)
		b.pass(time.Hour)
		b.asked("start job, TERM job")
	})
}

// A schedule without autostart that is started before the boot has its runs.
func TestScheduleStartedBeforeTheBoot(t *testing.T) {
	inBox(t, func(b *box) {
		b.run(Config{}, backup(manual))
		must(b.t, b.sup.Start(b.t.Context(), "job"))
		b.sup.Boot()
		b.pass(0)
		b.is("job", program.Stopped, "waits for its next run at")
	})
}

// A schedule whose run failed waits for its next time and shows the result of its latest run.
func TestAFailedScheduleWaitsForItsNextTime(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["job"] = habit{lives: time.Second, code: 3}
		b.boot(Config{}, backup())
		b.pass(11 * time.Minute)
		b.asked("start job, KILL job")
		st := b.status("job")
		if st.State != program.Exited || st.Restarts != 0 || !strings.HasPrefix(st.Reason, "exited with code 3; waits for its next run at ") ||
			!strings.Contains(st.Schedule.LastResult, "code 3") || !st.Counts() {
			t.Errorf("%+v %+v", st, st.Schedule)
		}
		b.pass(10 * time.Minute)
		b.asked("start job, KILL job")
		if st := b.status("job"); st.Run != 2 {
			t.Errorf("%+v", st)
		}
	})
}

func TestTheWordsOfAProgramEndWithIt(t *testing.T) {
	inBox(t, func(b *box) {
		b.p.after["web"] = 0
		b.boot(Config{}, spec("web", notify))
		b.pass(time.Second)
		b.p.report("web", Report{Kind: ReportText, Text: "serving"})
		b.pass(0)
		if st := b.status("web"); st.Text != "serving" {
			t.Errorf("%+v", st)
		}
		b.k.crash("web", 1)
		b.pass(0)
		b.p.report("web", Report{Kind: ReportText, Text: "late"})
		b.pass(0)
		if st := b.status("web"); st.Text != "" {
			t.Errorf("after its end it says %q", st.Text)
		}
	})
}
