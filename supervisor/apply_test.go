package supervisor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

func argv(s string) func(*program.Spec) {
	return func(p *program.Spec) { p.Argv = []string{s} }
}

func required(s *program.Spec) { s.Required = true }

func kinds(r ApplyResult) string {
	text := ""
	for _, c := range r.Changes {
		text += fmt.Sprintf("%s:%s ", c.Program, c.Kind)
	}
	return text
}

func TestApply(t *testing.T) {
	inBox(t, func(b *box) {
		for _, name := range []string{"same", "live", "changed", "gone"} {
			b.k.habits[name] = dies(time.Second)
		}
		b.boot(Config{}, spec("same"), spec("live"), spec("changed"), spec("gone"), spec("stopped"))
		b.pass(time.Second)
		must(b.t, b.sup.Stop(b.t.Context(), "stopped"))
		b.pass(time.Second)
		before := b.sup.Snapshot()
		b.k.forget()
		next := []program.Spec{
			spec("same"), spec("live", priority(5), func(s *program.Spec) { s.Stop = []program.StopStep{{Signal: "INT", Wait: time.Second}} }),
			spec("changed", argv("new")), spec("stopped", argv("new")), spec("new", needs("same")), spec("newmanual", manual),
		}
		const want = "same:unchanged live:live changed:restart stopped:restart new:add newmanual:add gone:remove "

		plan, err := b.sup.Plan(b.t.Context(), next)
		if err != nil || kinds(plan) != want {
			t.Errorf("%v, %s", err, kinds(plan))
		}
		b.asked("")
		r, err := b.sup.Apply(b.t.Context(), next)
		if err != nil || kinds(r) != want || r.RolledBack {
			t.Errorf("%v, %s", err, kinds(r))
		}
		b.pass(5 * time.Second)
		b.askedTogether("TERM changed", "start new", "TERM gone", "start changed", "forget gone")
		for _, was := range before.Programs {
			now, ok := b.sup.Status(was.Name)
			switch was.Name {
			case "same", "live":
				if now.PID != was.PID || now.Run != 1 {
					t.Errorf("%s has another process", was.Name)
				}
			case "changed":
				if now.Run != 2 || now.State != program.Running || now.Spec.Argv[0] != "new" {
					t.Errorf("%+v", now)
				}
			case "stopped":
				if now.State != program.Stopped || now.Spec.Argv[0] != "new" {
					t.Errorf("%+v", now)
				}
			case "gone":
				if ok {
					t.Errorf("gone is still %v", now.State)
				}
			}
		}
		b.is("new", program.Running, "")
		b.is("newmanual", program.Stopped, "autostart is off")
		if order := b.sup.Snapshot().Programs; len(order) != 6 || order[0].Name != "live" {
			t.Errorf("%d programs, first %s", len(order), order[0].Name)
		}
		b.k.forget()
		must(b.t, b.sup.Stop(b.t.Context(), "live"))
		b.pass(0)
		b.asked("INT live")
	})
}

func TestApplyOfAnInvalidSetChangesNothing(t *testing.T) {
	inBox(t, func(b *box) {
		b.boot(Config{}, spec("a"))
		b.pass(time.Second)
		b.k.forget()
		_, err := b.sup.Apply(b.t.Context(), []program.Spec{spec("a", argv("x"), needs("b")), spec("b", needs("a"))})
		if _, ok := errors.AsType[*program.CycleError](err); !ok {
			t.Errorf("%v", err)
		}
		b.pass(time.Minute)
		b.asked("")
	})
}

func TestARollBackSaysWhyTheProgramIsNotReady(t *testing.T) {
	inBox(t, func(b *box) {
		b.boot(Config{}, spec("web", required))
		b.pass(time.Second)
		time.AfterFunc(time.Second, func() { b.p.report("web", Report{Kind: ReportWaiting, Reason: "no answer"}) })
		unlimited := func(s *program.Spec) { s.StartTimeout = 0 }
		r, err := b.sup.Apply(b.t.Context(), []program.Spec{spec("web", required, argv("new"), notify, unlimited)})
		if err != nil || !strings.HasSuffix(r.Reason, "it is STARTING (started, not ready yet: no answer)") {
			t.Errorf("%v, %+v", err, r)
		}
	})
}

func TestApplyRollsBack(t *testing.T) {
	for name, bad := range map[string]func(*program.Spec){
		"FATAL":     func(s *program.Spec) { s.StartRetries = 0 },
		"too slow":  func(s *program.Spec) { notify(s); s.StartTimeout = 5 * time.Second },
		"in circle": func(s *program.Spec) { s.RestartLimit.Count = 0; s.StartTimeout = 5 * time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			inBox(t, func(b *box) {
				old := []program.Spec{spec("web", required), spec("side")}
				b.boot(Config{}, old...)
				b.pass(time.Second)
				side := b.status("side").PID
				if name != "too slow" {
					b.k.mu.Lock()
					b.k.habits["web"] = habit{lives: time.Millisecond, code: 1}
					b.k.mu.Unlock()
				}
				done := make(chan ApplyResult)
				go func() {
					r, err := b.sup.Apply(b.t.Context(), []program.Spec{spec("web", required, argv("new"), bad), spec("side"), spec("extra")})
					if err != nil {
						t.Error(err)
					}
					done <- r
				}()
				b.pass(4 * time.Second)
				b.k.mu.Lock()
				delete(b.k.habits, "web")
				b.k.mu.Unlock()
				if name == "in circle" {
					// web would start now; make it fail.
					b.k.mu.Lock()
					b.k.habits["web"] = habit{lives: time.Millisecond, code: 1}
					b.k.mu.Unlock()
				}
				r := <-done
				if !r.RolledBack || r.Reason == "" {
					t.Fatalf("%+v", r)
				}
				b.k.mu.Lock()
				delete(b.k.habits, "web")
				b.k.mu.Unlock()
				b.pass(time.Minute)
				b.is("web", program.Running, "")
				if st := b.status("web"); st.Spec.Argv[0] != "web" {
					t.Errorf("web runs %v", st.Spec.Argv)
				}
				if _, ok := b.sup.Status("extra"); ok {
					t.Error("extra is still there")
				}
				if b.status("side").PID != side {
					t.Error("side has another process")
				}
			})
		})
	}
}

// A request may stop a required program while an apply waits for it. The apply does not wait for the
// rest of the start timeout then: the program does not start, and other applies wait.
func TestApplyOfWhatIsStoppedMeanwhile(t *testing.T) {
	for name, x := range map[string]struct {
		stop    time.Duration // when, after the apply
		restart bool          // a request starts it again
	}{
		"before its new run":        {stop: time.Second},
		"in its new run":            {stop: 7 * time.Second},
		"restarted, in its new run": {stop: 7 * time.Second, restart: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBox(t, func(b *box) {
				deaf := func(s *program.Spec) { s.Stop = []program.StopStep{{Signal: "TERM", Wait: 5 * time.Second}} }
				b.k.habits["web"] = habit{deaf: true}
				b.p.after["web"] = 0
				b.boot(Config{}, spec("web", required, notify, deaf))
				b.pass(time.Second)
				b.is("web", program.Running, "")
				b.p.after["web"] = 30 * time.Second
				begin, done := time.Now(), make(chan ApplyResult)
				go func() {
					r, err := b.sup.Apply(b.t.Context(), []program.Spec{spec("web", required, notify, deaf, argv("new"))})
					if err != nil {
						t.Error(err)
					}
					done <- r
				}()
				b.pass(x.stop)
				request := b.sup.Stop
				if x.restart {
					request = b.sup.Restart
				}
				if err := request(b.t.Context(), "web"); err != nil {
					t.Error(err)
				}
				r, took := <-done, time.Since(begin)
				if x.restart {
					if r.RolledBack {
						t.Errorf("%+v", r)
					}
					return
				}
				if !r.RolledBack || !strings.Contains(r.Reason, "web is STOPPED: stopped by request") || took > 15*time.Second {
					t.Errorf("after %v: %+v", took, r)
				}
				b.is("web", program.Stopped, "stopped by request")
			})
		})
	}
}

// If a required program gave up before the apply, the apply judges it by its new run. That run may
// first have to wait for the program's needs.
func TestApplyOfWhatWasFatal(t *testing.T) {
	for name, c := range map[string]struct {
		web  habit
		gone bool // web fails again
	}{
		"mended":        {},
		"still broken":  {habit{lives: time.Millisecond, code: 1}, true},
		"no such file":  {habit{fail: errors.New("no such file")}, true},
		"slow to start": {web: habit{slow: 3 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			inBox(t, func(b *box) {
				once := func(s *program.Spec) { s.StartRetries = 0 }
				mend := func(name string, h habit) {
					b.k.mu.Lock()
					defer b.k.mu.Unlock()
					b.k.habits[name] = h
				}
				b.p.after["db"] = 0
				b.k.habits["db"] = habit{lives: 3 * time.Second, code: 1}
				b.k.habits["web"] = habit{lives: time.Millisecond, code: 1}
				b.boot(Config{}, spec("db", notify, func(s *program.Spec) { s.Restart = program.RestartNever }),
					spec("web", required, once, needs("db")))
				b.pass(time.Minute)
				b.is("db", program.Exited, "")
				b.is("web", program.Fatal, "")

				mend("db", habit{})
				mend("web", c.web)
				b.p.after["db"] = 2 * time.Second
				begin := time.Now()
				r, err := b.sup.Apply(b.t.Context(), []program.Spec{
					spec("db", notify, argv("new")), spec("web", required, once, needs("db"), argv("new")),
				})
				if err != nil || r.RolledBack != c.gone || c.gone == (r.Reason == "") {
					t.Errorf("%v, %+v", err, r)
				}
				// The answer comes after web could have run, and before its timeout.
				if took := time.Since(begin); took < 2*time.Second || took >= time.Minute {
					t.Errorf("answered after %v", took)
				}
			})
		})
	}
}

// steps records the steps of an apply in the log of the kernel.
func (b *box) steps(refusal error) Steps {
	note := func(what string) {
		b.k.mu.Lock()
		defer b.k.mu.Unlock()
		b.k.note("%s", what)
	}
	return Steps{
		Begin:  func() error { note("begin"); return refusal },
		Commit: func() { note("commit") },
		Undo:   func() { note("undo") },
	}
}

// An apply does its steps in order with the changes of the programs, even if its caller goes away.
func TestApplySteps(t *testing.T) {
	gone := errors.New("the caller is gone")
	refusal := errors.New("the disk is full")
	never := func(s *program.Spec) { notify(s); s.StartRetries = 0 }
	for _, c := range []struct {
		name    string
		change  func(*program.Spec)
		leaves  bool // the caller goes away while web starts
		refusal error
		stops   bool // the box shuts down before
		err     error
		want    string
	}{
		{name: "taken", want: "begin, TERM web, start web, commit"},
		{name: "taken without the caller", leaves: true, err: gone, want: "begin, TERM web, start web, commit"},
		{name: "rolled back", change: never, want: "begin, TERM web, start web, TERM web, undo, start web"},
		{name: "rolled back without the caller", change: never, leaves: true, err: gone,
			want: "begin, TERM web, start web, TERM web, undo, start web"},
		{name: "refused by a step", refusal: refusal, err: refusal, want: "begin"},
		{name: "refused by the box", stops: true, err: new(Refused), want: "begin, undo"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBox(t, func(b *box) {
				slow := func(s *program.Spec) { s.RunningAfter, s.StartTimeout = 10*time.Second, 20*time.Second }
				b.boot(Config{Drain: 10 * time.Second}, spec("web", required))
				b.pass(time.Second)
				if c.stops {
					b.sup.Shutdown("x")
					b.pass(0)
				}
				b.k.forget()
				if c.change == nil {
					c.change = func(*program.Spec) {}
				}
				ctx, cancel := context.WithCancelCause(b.t.Context())
				defer cancel(nil)
				if c.leaves {
					time.AfterFunc(5*time.Second, func() { cancel(gone) })
				}
				_, err := b.sup.ApplyWith(ctx, func() ([]program.Spec, Steps, error) {
					return []program.Spec{spec("web", required, argv("new"), slow, c.change)}, b.steps(c.refusal), nil
				})
				if _, ok := errors.AsType[*Refused](err); c.stops != ok || !c.stops && !errors.Is(err, c.err) {
					t.Errorf("got %v, want %v", err, c.err)
				}
				if c.leaves {
					b.pass(time.Minute)
				}
				b.pass(time.Second)
				b.asked(c.want)
			})
		})
	}
}

func TestApplyRemovesAndBringsBack(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["p"] = dies(5 * time.Second)
		b.boot(Config{}, spec("p"))
		b.pass(time.Second)
		if _, err := b.sup.Apply(b.t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		b.pass(time.Second)
		b.is("p", program.Stopping, "")
		if _, err := b.sup.Apply(b.t.Context(), []program.Spec{spec("p", argv("again"))}); err != nil {
			t.Fatal(err)
		}
		b.pass(6 * time.Second)
		if st := b.status("p"); st.State != program.Running || st.Spec.Argv[0] != "again" {
			t.Errorf("%+v", st)
		}
	})
}

func TestApplyDuringShutdownIsRefused(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["p"] = dies(5 * time.Second)
		b.boot(Config{}, spec("p"))
		b.pass(time.Second)
		b.sup.Shutdown("x")
		b.pass(time.Second)
		_, err := b.sup.Apply(b.t.Context(), nil)
		if _, ok := errors.AsType[*Refused](err); !ok {
			t.Errorf("%v", err)
		}
	})
}

// A requested stop that is under way holds, as one that is done: an apply does not start the program
// again. Its next run has the new specification.
func TestApplyDuringARequestedStop(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["web"] = dies(5 * time.Second)
		b.boot(Config{}, spec("db", required), spec("web", needs("db")), spec("again"))
		b.pass(10 * time.Second)
		b.k.habits["again"] = dies(5 * time.Second)
		must(b.t, b.sup.Stop(b.t.Context(), "db", "web"))
		must(b.t, b.sup.Restart(b.t.Context(), "again"))
		b.pass(time.Second)
		b.is("db", program.Running, "stops after the programs that depend on it")
		b.is("web", program.Stopping, "")
		if r := b.apply(spec("db", required, argv("new")), spec("web", needs("db"), argv("new")), spec("again", argv("new"))); r.RolledBack {
			t.Errorf("%+v", r)
		}
		b.pass(30 * time.Second)
		b.is("db", program.Stopped, "stopped by request")
		b.is("web", program.Stopped, "stopped by request")
		b.is("again", program.Running, "")
		must(b.t, b.sup.Start(b.t.Context(), "web"))
		b.pass(10 * time.Second)
		for _, name := range []string{"db", "web", "again"} {
			if st := b.status(name); st.State != program.Running || st.Spec.Argv[0] != "new" {
				t.Errorf("%+v", st)
			}
		}
	})
}

// The box may end while an apply waits for a required program. The error is then about the box.
func TestApplyEndsWithTheBox(t *testing.T) {
	inBox(t, func(b *box) {
		b.p.after["p"] = 0
		b.boot(Config{}, spec("p", required, notify))
		b.pass(time.Second)
		b.p.after["p"] = time.Hour
		done := make(chan error)
		go func() {
			_, err := b.sup.Apply(b.t.Context(), []program.Spec{spec("p", required, notify, argv("new"))})
			done <- err
		}()
		b.pass(time.Second)
		b.sup.Shutdown("x")
		err := <-done
		// Whether the apply sees the end of the program or that of the supervisor first is open.
		if err == nil || err.Error() != ErrDone.Error() && !strings.HasPrefix(err.Error(), "required program p is STOPPED") {
			t.Errorf("%v", err)
		}
	})
}

// If a removed program is added again at once, its new run starts only after the old one is
// forgotten. Otherwise its output and readiness would be forgotten with the old one.
func TestApplyBringsBackWhatIsBeingForgotten(t *testing.T) {
	for _, sticky := range []time.Duration{0, 500 * time.Millisecond, 30 * time.Second} {
		inBox(t, func(b *box) {
			b.k.habits["p"] = habit{sticky: sticky}
			b.boot(Config{}, spec("p"))
			b.pass(time.Second)
			for _, specs := range [][]program.Spec{{spec("other")}, {spec("other"), spec("p")}} {
				if _, err := b.sup.Apply(b.t.Context(), specs); err != nil {
					t.Fatal(err)
				}
				b.pass(0)
			}
			b.is("other", program.Starting, "") // other is not delayed
			b.pass(sticky + time.Second)
			b.is("p", program.Running, "")
			var said []string
			for what := range strings.SplitSeq(b.k.said(), ", ") {
				if strings.HasSuffix(what, " p") {
					said = append(said, what)
				}
			}
			if got := strings.Join(said, ", "); got != "start p, TERM p, forget p, start p" {
				t.Errorf("forgotten after %v: %s", sticky, got)
			}
			b.sup.loop.crew.mu.Lock()
			defer b.sup.loop.crew.mu.Unlock()
			if n := len(b.sup.loop.crew.lanes); n > 0 {
				t.Errorf("%d lanes of a box at rest", n)
			}
		})
	}
}

// An instance that is being removed under another name is not beside its new run.
func TestApplyBringsBackUnderAnotherName(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["web:0"] = habit{dies: 5 * time.Second}
		b.boot(Config{}, instances("web", 2)...)
		b.pass(time.Second)
		b.k.forget()
		b.apply()
		b.pass(time.Second)
		b.apply(instances("web", 1)...)
		b.pass(time.Second)
		b.askedTogether("TERM web:0", "TERM web:1", "forget web:1", "rename web:0 web")
		b.pass(5 * time.Second)
		b.is("web", program.Running, "")
		b.asked("start web")
	})
}

// A caller that gives up a plan and the loop that still makes the plan must not access the same
// memory. Only the race detector can see such a race.
func TestPlanGivenUp(t *testing.T) {
	inBox(t, func(b *box) {
		b.boot(Config{}, spec("p"))
		for range 20 {
			ctx, cancel := context.WithCancel(b.t.Context())
			b.sup.in.post(func() { <-ctx.Done() })
			planned := make(chan error)
			go func() {
				_, err := b.sup.Plan(ctx, nil)
				planned <- err
			}()
			synctest.Wait()
			cancel()
			// The loop may answer first.
			if err := <-planned; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		if r, err := b.sup.Plan(b.t.Context(), nil); err != nil || kinds(r) != "p:remove " {
			t.Errorf("%v, %s", err, kinds(r))
		}
	})
}
