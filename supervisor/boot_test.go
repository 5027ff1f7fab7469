package supervisor

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

func isStarted(b *box) bool {
	select {
	case <-b.sup.Started():
		return true
	default:
		return false
	}
}

func TestWaveWaitsForReadiness(t *testing.T) {
	inBox(t, func(b *box) {
		b.p.after["db"] = 3 * time.Second
		b.k.habits["plain"] = habit{slow: 2 * time.Second}
		b.boot(Config{}, spec("web", priority(20)), spec("db", priority(10), notify), spec("plain", priority(10)))
		b.askedTogether("start db", "start plain")
		b.is("web", program.Stopped, "waits for its turn (priority 20)")
		if got := b.sup.Snapshot().Awaited; got != "plain" && got != "db" {
			t.Errorf("the wave of web waits for %q", got)
		}
		b.pass(2999 * time.Millisecond)
		b.is("db", program.Starting, "not ready yet")
		b.asked("")
		b.pass(time.Millisecond)
		b.is("db", program.Running, "")
		b.asked("start web")
		if got := b.sup.Snapshot().Awaited; got != "" {
			t.Errorf("all waves are released, and one waits for %q", got)
		}
		if !isStarted(b) || len(b.events("ProgramsStarted")) != 1 {
			t.Error("not all started once the last wave was exec'ed")
		}
	})
}

// A stop holds for a program that the boot has not started yet: neither its wave nor a program that
// needs it starts it later.
func TestAStopBeforeTheTurn(t *testing.T) {
	inBox(t, func(b *box) {
		b.p.after["db"] = 5 * time.Second
		b.boot(Config{}, spec("db", priority(1), notify), spec("web", priority(2)), spec("cache", priority(2), needs("db")), spec("proxy", priority(3), needs("web")))
		b.pass(time.Second)
		if st := b.status("web"); !st.Queued {
			t.Errorf("%+v", st)
		}
		b.k.forget()
		must(b.t, b.sup.Stop(b.t.Context(), "web"))
		b.pass(30 * time.Second)
		b.asked("start cache")
		b.is("web", program.Stopped, "stopped by request before it was started")
		b.is("proxy", program.Stopped, "waits for web to be ready")
		if !isStarted(b) || !b.status("proxy").Blocked {
			t.Error("the boot waits for what was stopped")
		}
		must(b.t, b.sup.Start(b.t.Context(), "proxy"))
		b.pass(5 * time.Second)
		b.asked("start web, start proxy")
	})
}

// A stop of all programs in the middle of the boot ends the boot.
func TestAStopOfAllInTheBoot(t *testing.T) {
	inBox(t, func(b *box) {
		b.p.after["db"] = time.Hour
		b.boot(Config{}, spec("db", priority(1), notify), spec("web", priority(2)), spec("late", priority(3), needs("web")))
		b.pass(time.Second)
		b.k.forget()
		must(b.t, b.sup.Stop(b.t.Context(), "db", "web", "late"))
		b.pass(30 * time.Second)
		b.asked("TERM db")
		if !isStarted(b) {
			t.Error("the boot goes on")
		}
		b.p.after["db"] = 0
		must(b.t, b.sup.StartAll(b.t.Context(), "db", "web", "late"))
		b.pass(5 * time.Second)
		b.asked("start db, start web, start late")
	})
}

// A start by name comes before the turn of start --all, and a stop of that run holds.
func TestAStopBetweenStartAllAndTheTurn(t *testing.T) {
	inBox(t, func(b *box) {
		b.boot(Config{}, spec("db", priority(1), notify), spec("web", priority(2)))
		b.pass(5 * time.Second)
		must(b.t, b.sup.Stop(b.t.Context(), "db", "web"))
		b.pass(5 * time.Second)
		b.p.after["db"] = 30 * time.Second // before its start_timeout of a minute
		for _, request := range []func() error{
			func() error { return b.sup.StartAll(b.t.Context(), "db", "web") },
			func() error { return b.sup.Start(b.t.Context(), "web") },
			func() error { return b.sup.Stop(b.t.Context(), "web") },
		} {
			if err := request(); err != nil {
				t.Fatal(err)
			}
			b.pass(2 * time.Second)
		}
		b.is("web", program.Stopped, "stopped by request")
		b.pass(2 * time.Minute)
		b.is("db", program.Running, "")
		b.is("web", program.Stopped, "stopped by request")
	})
}

func TestBarriers(t *testing.T) {
	specs := func() []program.Spec {
		return []program.Spec{spec("a", priority(1)), spec("b", priority(2), notify), spec("c", priority(3))}
	}
	for _, c := range []struct {
		barrier program.Barrier
		startsB time.Duration
		startsC time.Duration
	}{
		{program.BarrierNone, 0, 0},
		{program.BarrierReady, 0, 5 * time.Second},
		{program.BarrierRunning, time.Second, 6 * time.Second},
	} {
		t.Run(string(c.barrier), func(t *testing.T) {
			inBox(t, func(b *box) {
				b.p.after["b"] = 5 * time.Second
				b.boot(Config{Barrier: c.barrier}, specs()...)
				b.pass(10 * time.Second)
				for name, want := range map[string]time.Duration{"a": 0, "b": c.startsB, "c": c.startsC} {
					if got := b.status(name).StartedAt.Sub(b.began); got != want {
						t.Errorf("%s started after %v, want %v", name, got, want)
					}
				}
			})
		})
	}
}

func TestOneshotHoldsTheWaveUntilItIsCompleted(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["migrate"] = habit{lives: 2 * time.Minute}
		b.boot(Config{}, spec("migrate", priority(1), oneshot), spec("web", priority(2)))
		b.pass(119 * time.Second)
		b.is("web", program.Stopped, "")
		b.pass(time.Second)
		b.is("migrate", program.Exited, "completed")
		b.is("web", program.Starting, "")
	})
}

// The next wave waits for a program of which one need holds and another one does not yet.
func TestOneNeedThatHoldsIsNotEnough(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["migrate"] = habit{lives: time.Second}
		b.p.after["db"] = 30 * time.Second
		b.boot(Config{}, spec("migrate", oneshot, priority(1)), spec("db", manual, notify, priority(1)),
			spec("web", needs("migrate:completed", "db"), priority(1)), spec("next", priority(2)))
		b.pass(29 * time.Second)
		b.is("migrate", program.Exited, "completed")
		b.is("next", program.Stopped, "waits for its turn")
		b.pass(3 * time.Second)
		b.is("next", program.Running, "")
	})
}

// The notices of a program that ends at once come before the result of its start.
func TestEndBeforeTheStartReturns(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["p"] = habit{hasty: true}
		b.boot(Config{}, spec("p", oneshot))
		b.pass(time.Second)
		b.is("p", program.Exited, "completed")
	})
}

func TestWaveGoesOnWhenAMemberGivesUp(t *testing.T) {
	for name, h := range map[string]habit{
		"FATAL":            {fail: errors.New("command not found: bad")},
		"never ready":      {},
		"crashes for ever": {lives: 10 * time.Millisecond, code: 1},
		"hangs in exec":    {hang: make(chan struct{})},
	} {
		t.Run(name, func(t *testing.T) {
			inBox(t, func(b *box) {
				if h.hang != nil {
					h.hang = make(chan struct{})
					defer close(h.hang)
				}
				b.k.habits["bad"] = h
				b.boot(Config{}, spec("bad", priority(1), notify), spec("next", priority(2)),
					spec("dependent", priority(1), needs("bad")))
				b.pass(61 * time.Second)
				if st := b.status("next"); st.State != program.Running && st.State != program.Starting {
					t.Errorf("next is %v: %s; bad is %v: %s", st.State, st.Reason, b.status("bad").State, b.status("bad").Reason)
				}
				b.is("dependent", program.Stopped, "waits for bad to be ready")
				b.pass(time.Minute)
				if !isStarted(b) {
					t.Error("the boot has no end")
				}
			})
		})
	}
}

func TestNeeds(t *testing.T) {
	inBox(t, func(b *box) {
		b.p.after["db"] = 2 * time.Second
		b.k.habits["migrate"] = habit{lives: time.Second}
		b.boot(Config{},
			spec("web", needs("migrate:completed", "db")), spec("migrate", oneshot, needs("db")),
			spec("db", notify), spec("sidecar", needs("db:started")))
		b.askedTogether("start db", "start sidecar")
		b.is("migrate", program.Stopped, "waits for db to be ready (it is STARTING")
		b.pass(2 * time.Second)
		b.asked("start migrate")
		b.is("web", program.Stopped, "waits for migrate to be completed")
		b.pass(time.Second)
		b.askedTogether("KILL migrate", "start web")
	})
}

func TestAnUnstartedNeedIsStartedToo(t *testing.T) {
	inBox(t, func(b *box) {
		b.boot(Config{}, spec("web", manual, needs("db")), spec("db", manual))
		b.is("web", program.Stopped, "autostart is off")
		must(b.t, b.sup.Start(b.t.Context(), "web"))
		b.pass(0)
		b.asked("start db")
		b.pass(time.Second)
		b.asked("start web")
	})
}

func TestBlockedDependentStartsOnceItsNeedReturns(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["db"] = habit{fail: errors.New("command not found: db")}
		b.boot(Config{}, spec("web", needs("db")), spec("db", func(s *program.Spec) { s.StartRetries = 0 }))
		b.is("db", program.Fatal, "command not found: db")
		b.is("web", program.Stopped, "it is FATAL: command not found")
		b.k.mu.Lock()
		delete(b.k.habits, "db")
		b.k.mu.Unlock()
		must(b.t, b.sup.Start(b.t.Context(), "db"))
		b.pass(time.Second)
		b.is("web", program.Starting, "")
	})
}

func TestAHangingStartHoldsUpNobodyElse(t *testing.T) {
	inBox(t, func(b *box) {
		hang := make(chan struct{})
		defer close(hang)
		var specs []program.Spec
		for i := range 10 {
			name := fmt.Sprint("stuck", i)
			b.k.habits[name] = habit{hang: hang}
			specs = append(specs, spec(name))
		}
		b.boot(Config{}, append(specs, spec("good"))...)
		must(b.t, b.sup.Ping(b.t.Context()))
		b.pass(5 * time.Second)
		b.is("good", program.Running, "")
		b.pass(time.Minute)
		b.is("stuck0", program.Starting, "could not be started within 1m0s")
	})
}

func TestAStuckSubscriberHoldsUpNobody(t *testing.T) {
	inBox(t, func(b *box) {
		b.bus = event.NewBus(4)
		stuck := b.bus.Watch(0)
		b.k.habits["flap"] = habit{lives: 100 * time.Millisecond, code: 1}
		b.boot(Config{}, spec("flap", func(s *program.Spec) { s.RestartLimit.Count = 0; s.Backoff.Initial = 0 }))
		if _, ok := stuck.TryNext(); !ok {
			t.Fatal("no event")
		}
		b.pass(time.Minute)
		if n := b.status("flap").Restarts; n < 500 {
			t.Errorf("only %d restarts in a minute", n)
		}
		if e, _ := stuck.TryNext(); e.Name != event.Lagged {
			t.Errorf("the late reader got %s", e.Name)
		}
	})
}

func TestThousandPrograms(t *testing.T) {
	inBox(t, func(b *box) {
		var specs []program.Spec
		for i := range 1000 {
			specs = append(specs, spec(fmt.Sprint("p", i), priority(i%7)))
		}
		b.boot(Config{}, specs...)
		b.pass(time.Second)
		for _, st := range b.sup.Snapshot().Programs {
			if st.State != program.Running {
				t.Fatalf("%s is %v", st.Name, st.State)
			}
		}
		snap := b.sup.Snapshot()
		if snap.Seq != b.bus.Seq() || snap.Phase != Running || snap.Programs[0].Name != "p0" || snap.Programs[1].Name != "p7" {
			t.Errorf("%d, %v, %s", snap.Seq, snap.Phase, snap.Programs[1].Name)
		}
		b.sup.Shutdown("enough")
		synctest.Wait()
		r := <-b.result
		if r.Took != 0 || len(r.Leftover) > 0 || r.Code != 0 {
			t.Errorf("%+v", r.Cause)
		}
	})
}

func TestEventsContinueASnapshotWithoutAGap(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["flap"] = habit{lives: 10 * time.Millisecond, code: 1}
		b.boot(Config{}, spec("flap", func(s *program.Spec) { s.RestartLimit.Count = 0 }))
		snap := b.sup.Snapshot()
		state, run := snap.Programs[0].State.String(), snap.Programs[0].Run
		w := b.bus.Watch(snap.Seq)
		b.pass(time.Hour)
		n := 0
		for e, ok := w.TryNext(); ok; e, ok = w.TryNext() {
			if e.Name != event.ProgramStateChanged {
				continue
			}
			if n++; e.Change.From != state || e.Run < run {
				t.Fatalf("event %d goes from %s, but the state was %s", e.Seq, e.Change.From, state)
			}
			state, run = e.Change.To, e.Run
		}
		if n < 100 {
			t.Errorf("only %d changes", n)
		}
	})
}

// The needs in a long chain share members, so the number of paths through the chain is huge. The
// supervisor must not walk each path. The reason of a waiting program must not contain the reasons
// of all programs before it.
func TestLongChainOfSharedNeeds(t *testing.T) {
	inBox(t, func(b *box) {
		const length = 200
		name := func(i int) string { return fmt.Sprintf("p%03d", i) }
		specs := []program.Spec{spec(name(0), notify)}
		b.p.after[name(0)] = 2 * time.Second
		for i := 1; i < length; i++ {
			var before []string
			for j := max(0, i-5); j < i; j++ {
				before = append(before, name(j))
			}
			specs = append(specs, spec(name(i), needs(before...)))
		}
		b.boot(Config{ExitWhenAllExited: true}, specs...)
		if st := b.status(name(length - 1)); len(st.Reason) > 200 {
			t.Errorf("the reason of the last has %d bytes", len(st.Reason))
		}
		b.pass(length * 2 * time.Second)
		b.is(name(length-1), program.Running, "")
	})
}
