package supervisor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

func dies(d time.Duration) habit { return habit{dies: d} }

func (b *box) shutdown() Result {
	b.t.Helper()
	b.sup.Shutdown("asked to")
	r := <-b.result
	if r.Cause.Kind != CauseRequested || r.Code != 0 {
		b.t.Errorf("%v, code %d", r.Cause, r.Code)
	}
	return r
}

// A box that cannot go on was not asked to stop: its cause and status say so.
func TestFailIsNoRequest(t *testing.T) {
	inBox(t, func(b *box) {
		b.boot(Config{}, spec("a"))
		b.pass(time.Second)
		b.sup.Fail("the boot failed", 67)
		if r := <-b.result; r.Cause.Kind != CauseFailed || r.Code != 67 || r.Cause.Detail != "the boot failed" {
			t.Errorf("%v, code %d", r.Cause, r.Code)
		}
	})
}

func TestShutdownGoesBackwards(t *testing.T) {
	inBox(t, func(b *box) {
		for _, name := range []string{"log", "db", "cache", "web", "worker", "proxy"} {
			b.k.habits[name] = dies(time.Second)
		}
		b.boot(Config{},
			spec("log", priority(1)),
			spec("db", priority(2)), spec("cache", priority(2)),
			spec("web", priority(2), needs("db", "cache")), spec("worker", priority(2), needs("db")),
			spec("proxy", priority(3)))
		b.pass(10 * time.Second)
		b.k.forget()
		r := b.shutdown()
		// The order is: proxy; then web and worker; then db and cache; then log.
		if r.Took != 4*time.Second || len(r.Leftover) > 0 {
			t.Errorf("took %v, leftover %v", r.Took, r.Leftover)
		}
		said := strings.Split(b.k.said(), ", ")
		slices.Sort(said[1:3])
		slices.Sort(said[3:5])
		if got := strings.Join(said, ", "); got != "TERM proxy, TERM web, TERM worker, TERM cache, TERM db, TERM log" {
			t.Error(got)
		}
		for _, st := range r.Programs {
			if st.State != program.Stopped {
				t.Errorf("%s is %v", st.Name, st.State)
			}
		}
	})
}

func TestIndependentBranchesStopInParallel(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["slow"] = dies(5 * time.Second)
		b.k.habits["fast"] = dies(time.Second)
		b.boot(Config{}, spec("slow"), spec("fast", needs("base")), spec("base"))
		b.pass(10 * time.Second)
		b.sup.Shutdown("x")
		b.pass(time.Second)
		b.is("base", program.Stopped, "")
		b.is("slow", program.Stopping, "")
		if r := <-b.result; r.Took != 5*time.Second {
			t.Errorf("took %v", r.Took)
		}
	})
}

func TestBudget(t *testing.T) {
	inBox(t, func(b *box) {
		deaf := func(s *program.Spec) {
			s.Stop = []program.StopStep{{Signal: "INT", Wait: 20 * time.Second}, {Signal: "TERM", Wait: 20 * time.Second}}
		}
		var specs []program.Spec
		for i := range 5 {
			name := fmt.Sprint("p", i)
			b.k.habits[name] = habit{deaf: true}
			specs = append(specs, spec(name, priority(i), deaf))
		}
		// It does not run, so it takes no part of the budget.
		specs = append(specs, spec("off", priority(5), deaf, manual))
		b.boot(Config{StopGrace: 25 * time.Second}, specs...)
		b.pass(10 * time.Second)
		b.k.forget()
		r := b.shutdown()
		if r.Took > 24*time.Second || r.Took < 22*time.Second || len(r.Leftover) > 0 {
			t.Errorf("took %v, leftover %v", r.Took, r.Leftover)
		}
		b.asked("INT p4, TERM p4, KILL p4, INT p3, TERM p3, KILL p3, INT p2, TERM p2, KILL p2, INT p1, TERM p1, KILL p1, INT p0, TERM p0, KILL p0")
	})
}

// A program that the manifest has no more, and that is still stopping, leaves the others time for
// their TERM.
func TestARemovedProgramTakesItsShareOfTheBudget(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["old"] = habit{deaf: true}
		slow := func(s *program.Spec) { s.Stop[0].Wait = time.Minute }
		b.boot(Config{}, spec("db"), spec("web", needs("db")), spec("old", slow))
		b.pass(10 * time.Second)
		if _, err := b.sup.Apply(b.t.Context(), []program.Spec{spec("db"), spec("web", needs("db"))}); err != nil {
			t.Fatal(err)
		}
		b.pass(time.Second)
		b.k.forget()
		if r := b.shutdown(); len(r.Leftover) > 0 {
			t.Errorf("leftover %v", r.Leftover)
		}
		b.askedTogether("KILL old", "forget old", "TERM web", "TERM db")
	})
}

func TestDrainCountsTowardsTheBudget(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["p"] = habit{deaf: true}
		b.boot(Config{StopGrace: 10 * time.Second, Drain: 4 * time.Second}, spec("p"))
		b.pass(time.Second)
		b.sup.Shutdown("x")
		b.pass(3999 * time.Millisecond)
		if b.sup.Phase() != Draining {
			t.Error(b.sup.Phase())
		}
		b.is("p", program.Running, "")
		err := b.sup.Start(b.t.Context(), "p")
		if _, ok := errors.AsType[*Refused](err); !ok {
			t.Errorf("%v", err)
		}
		b.pass(time.Millisecond)
		b.is("p", program.Stopping, "")
		if r := <-b.result; r.Took != 8*time.Second {
			t.Errorf("took %v", r.Took)
		}
	})
}

func TestAHangingHookCannotExceedTheBudget(t *testing.T) {
	inBox(t, func(b *box) {
		b.h.hang = "pre_stop p"
		b.boot(Config{StopGrace: 10 * time.Second}, spec("p", func(s *program.Spec) {
			s.Hooks.PreStop = &program.Hook{Argv: []string{"x"}, Timeout: time.Hour}
		}))
		b.pass(time.Second)
		if r := b.shutdown(); r.Took > 10*time.Second || len(r.Leftover) > 0 {
			t.Errorf("took %v, leftover %v", r.Took, r.Leftover)
		}
		for _, e := range b.events(event.HookFailed) {
			if text := fmt.Sprint(e.Fields["error"]); !strings.HasSuffix(text, "within its timeout of 7.978s") {
				t.Error(text)
			}
		}
	})
}

func TestUnkillableProgramEndsWithTheBudget(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["p"] = habit{leftover: time.Hour}
		b.boot(Config{StopGrace: 10 * time.Second}, spec("p"))
		b.pass(time.Second)
		r := b.shutdown()
		if r.Took != 10*time.Second || !slices.Equal(r.Leftover, []string{"p"}) {
			t.Errorf("took %v, leftover %v", r.Took, r.Leftover)
		}
		b.pass(2 * time.Hour)
	})
}

func TestEscalation(t *testing.T) {
	for _, c := range []struct {
		requests int
		took     time.Duration
		said     string
		why      string
	}{
		{1, 15 * time.Second, "TERM b, KILL b, TERM a, KILL a", "stopped by request"},
		{2, time.Second + time.Second, "TERM b, TERM a, KILL b, KILL a", "killed to end the shutdown"},
		{3, time.Second, "TERM b, TERM a, KILL b, KILL a", "killed to end the shutdown"},
	} {
		inBox(t, func(b *box) {
			for _, name := range []string{"a", "b"} {
				b.k.habits[name] = habit{deaf: true}
			}
			ladder := func(s *program.Spec) { s.Stop = []program.StopStep{{Signal: "TERM", Wait: 7500 * time.Millisecond}} }
			b.boot(Config{}, spec("a", priority(1), ladder), spec("b", priority(2), ladder))
			b.pass(10 * time.Second)
			b.k.forget()
			b.sup.Shutdown("first")
			b.pass(time.Second)
			for range c.requests - 1 {
				b.sup.Shutdown("again")
			}
			r := <-b.result
			if r.Took != c.took || r.Cause.Detail != "first" {
				t.Errorf("%d requests: took %v, %v", c.requests, r.Took, r.Cause)
			}
			b.askedTogether(strings.Split(c.said, ", ")...)
			if why := r.Programs[0].Reason; why != c.why {
				t.Errorf("%d requests: a is STOPPED: %s, want %s", c.requests, why, c.why)
			}
		})
	}
}

func TestShutdownMeetsEveryState(t *testing.T) {
	inBox(t, func(b *box) {
		hang := make(chan struct{})
		b.k.habits["forking"] = habit{slow: 20 * time.Second}
		b.k.habits["backoff"] = habit{lives: time.Millisecond, code: 1}
		b.k.habits["fatal"] = habit{fail: errors.New("nothing there")}
		b.k.habits["exited"] = habit{lives: 5 * time.Second}
		b.k.habits["stuck"] = habit{hang: hang}
		b.boot(Config{Barrier: program.BarrierNone, StopGrace: 30 * time.Second},
			spec("forking"), spec("stuck"), spec("backoff", func(s *program.Spec) { s.Backoff.Initial = time.Minute }),
			spec("fatal", func(s *program.Spec) { s.StartRetries = 0 }), spec("exited"), spec("warming", notify),
			spec("waiting", needs("warming")), spec("manual", manual))
		b.pass(10 * time.Second)
		r := b.shutdown()
		if !slices.Equal(r.Leftover, []string{"stuck"}) || r.Took != 30*time.Second {
			t.Errorf("took %v, leftover %v", r.Took, r.Leftover)
		}
		states := map[string]program.State{}
		for _, st := range r.Programs {
			states[st.Name] = st.State
		}
		for name, want := range map[string]program.State{
			"forking": program.Stopped, "backoff": program.Stopped, "fatal": program.Fatal, "exited": program.Exited,
			"warming": program.Stopped, "waiting": program.Stopped, "stuck": program.Stopping,
		} {
			if states[name] != want {
				t.Errorf("%s is %v, want %v", name, states[name], want)
			}
		}
		close(hang)
	})
}

func TestCauses(t *testing.T) {
	essential := func(s *program.Spec) { s.Essential = true }
	for _, c := range []struct {
		name  string
		habit habit
		spec  func(*program.Spec)
		kind  CauseKind
		code  int
	}{
		{"exit of an essential program", habit{lives: 5 * time.Second, code: 7}, essential, CauseEssential, 7},
		{"clean exit of an essential program", habit{lives: 5 * time.Second}, essential, CauseEssential, 0},
		{"early exit of an essential program", habit{lives: time.Millisecond, code: 4}, essential, CauseEssential, 4},
		{"essential program not found", habit{fail: notFound{}}, func(s *program.Spec) { essential(s); s.StartRetries = 0 }, CauseEssential, 127},
		{"on_fatal", habit{lives: time.Millisecond, code: 9}, func(s *program.Spec) { s.OnFatal = program.FatalShutdown }, CauseFatal, 9},
		{"on_fatal with code 0", habit{lives: time.Millisecond}, func(s *program.Spec) { s.OnFatal = program.FatalShutdown }, CauseFatal, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBox(t, func(b *box) {
				b.k.habits["p"] = c.habit
				b.boot(Config{}, spec("p", c.spec), spec("other"))
				<-b.sup.Ending()
				r := <-b.result
				if r.Cause.Kind != c.kind || r.Code != c.code || r.Cause.Program != "p" {
					t.Errorf("%v, code %d", r.Cause, r.Code)
				}
			})
		})
	}
}

type notFound struct{}

func (notFound) Error() string    { return "command not found: p" }
func (notFound) ShellStatus() int { return 127 }

func TestAnAskedStopOfAnEssentialProgramIsNoCause(t *testing.T) {
	inBox(t, func(b *box) {
		b.boot(Config{}, spec("p", func(s *program.Spec) { s.Essential = true }))
		b.pass(time.Second)
		must(b.t, b.sup.Restart(b.t.Context(), "p"))
		b.pass(time.Minute)
		b.is("p", program.Running, "")
		select {
		case <-b.sup.Ending():
			t.Error("a restart counts as a shutdown")
		default:
		}
	})
}

func TestUnhealthyForAWhile(t *testing.T) {
	inBox(t, func(b *box) {
		b.boot(Config{}, spec("p", func(s *program.Spec) {
			s.Health = program.Health{Watchdog: time.Second, Action: program.HealthNone}
		}))
		b.pass(time.Second)
		for _, r := range []Report{{Kind: ReportUnhealthy, Reason: "no watchdog"}, {Kind: ReportHealthy}} {
			b.p.report("p", r)
			b.pass(0)
			if st := b.status("p"); st.Healthy != (r.Kind == ReportHealthy) || !strings.HasSuffix(st.Reason, r.Reason) {
				t.Errorf("after %+v: %+v", r, st)
			}
		}
	})
}

func TestUnhealthyShutsDown(t *testing.T) {
	inBox(t, func(b *box) {
		b.boot(Config{}, spec("p", func(s *program.Spec) {
			s.Health = program.Health{Watchdog: time.Second, Action: program.HealthShutdown}
		}))
		b.pass(time.Second)
		b.p.report("p", Report{Kind: ReportUnhealthy, Reason: "no watchdog"})
		if r := <-b.result; r.Cause.Kind != CauseUnhealthy || r.Code != 1 {
			t.Errorf("%v", r.Cause)
		}
	})
}

func TestARequestDuringAnInnerShutdownIsNotTheSecond(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["main"] = habit{lives: 5 * time.Second, code: 3}
		b.k.habits["slow"] = dies(5 * time.Second)
		b.boot(Config{}, spec("main", func(s *program.Spec) { s.Essential = true }), spec("slow"))
		b.pass(6 * time.Second)
		b.sup.Shutdown("TERM")
		r := <-b.result
		if r.Took != 5*time.Second || r.Code != 3 {
			t.Errorf("took %v, code %d", r.Took, r.Code)
		}
	})
}

func TestAllExited(t *testing.T) {
	for _, c := range []struct {
		name string
		code int
		want string
	}{
		{"as expected", 0, ""},
		{"with a code", 5, "b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBox(t, func(b *box) {
				b.k.habits["a"] = habit{lives: 2 * time.Second}
				b.k.habits["b"] = habit{lives: 3 * time.Second, code: c.code}
				never := func(s *program.Spec) { s.Restart = program.RestartNever }
				b.boot(Config{ExitWhenAllExited: true}, spec("a", oneshot, never), spec("b", never), spec("off", manual),
					spec("c", oneshot, needs("a:completed")))
				b.k.mu.Lock()
				b.k.habits["c"] = habit{lives: time.Second}
				b.k.mu.Unlock()
				r := <-b.result
				if r.Cause.Kind != CauseAllExited || r.Code != c.code || r.Cause.Program != c.want {
					t.Errorf("%v, code %d", r.Cause, r.Code)
				}
				if time.Since(b.began) != 3*time.Second {
					t.Errorf("ended after %v", time.Since(b.began))
				}
			})
		})
	}
	inBox(t, func(b *box) {
		b.boot(Config{ExitWhenAllExited: true})
		synctest.Wait()
		if r, ok := b.sup.Result(); !ok || r.Code != 0 {
			t.Error("a box of nothing does not end")
		}
	})
}
