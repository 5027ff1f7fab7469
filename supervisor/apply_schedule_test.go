package supervisor

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// A removed schedule whose last run is slow to stop starts no other run. What it needed may be
// forgotten by then.
func TestARemovedScheduleStartsNoRun(t *testing.T) {
	for _, overlap := range []program.Overlap{program.OverlapQueue, program.OverlapKill, program.OverlapSkip} {
		t.Run(string(overlap), func(t *testing.T) {
			inBox(t, func(b *box) {
				b.k.habits["job"] = habit{dies: 15 * time.Minute}
				slow := func(s *program.Spec) {
					s.Overlap, s.Stop = overlap, []program.StopStep{{Signal: "TERM", Wait: time.Hour}}
				}
				b.boot(Config{}, spec("db"), spec("rest"), backup(needs("db"), slow))
				b.pass(11 * time.Minute)
				b.k.forget()
				if _, err := b.sup.Apply(b.t.Context(), []program.Spec{spec("rest")}); err != nil {
					t.Fatal(err)
				}
				b.pass(time.Hour)
				b.askedTogether("TERM job", "TERM db", "forget db", "forget job")
				b.is("rest", program.Running, "")
			})
		})
	}
}

// A program that becomes a schedule without autostart is paused, as if it had been one at the boot.
func TestAProgramBecomesAPausedSchedule(t *testing.T) {
	inBox(t, func(b *box) {
		b.boot(Config{}, spec("job"), spec("other", manual))
		b.pass(time.Minute)
		other := backup(manual)
		other.Name, other.Group = "other", "other"
		if _, err := b.sup.Apply(b.t.Context(), []program.Spec{backup(manual), other}); err != nil {
			t.Fatal(err)
		}
		b.pass(time.Hour)
		b.is("job", program.Stopped, "paused")
		b.is("other", program.Stopped, "paused")
	})
}

// A schedule that becomes a service or a oneshot starts as such, as if it had been one at the boot,
// unless it is paused.
func TestAScheduleBecomesAProgram(t *testing.T) {
	for name, x := range map[string]struct{ ran, paused bool }{
		"before its first run": {}, "after a run": {ran: true},
		"paused before its first run": {paused: true}, "paused after a run": {ran: true, paused: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBox(t, func(b *box) {
				b.k.habits["job"] = habit{lives: time.Second}
				b.boot(Config{}, backup())
				b.pass(time.Minute)
				if x.ran {
					b.pass(30 * time.Minute)
				}
				if x.paused {
					must(b.t, b.sup.Stop(b.t.Context(), "job"))
				}
				b.k.habits["job"] = habit{}
				b.apply(spec("job"))
				b.pass(time.Minute)
				if got := b.status("job").State == program.Running; got == x.paused {
					t.Errorf("%+v", b.status("job"))
				}
			})
		})
	}
}

// A shutdown that comes during a roll ends it: no further instance restarts, even while the box
// drains, and the apply returns.
func TestAShutdownEndsARoll(t *testing.T) {
	for _, drain := range []time.Duration{0, 10 * time.Second} {
		t.Run(drain.String(), func(t *testing.T) {
			inBox(t, func(b *box) {
				for _, name := range []string{"w:0", "w:1", "w:2"} {
					b.p.after[name] = 5 * time.Second
				}
				b.boot(Config{Drain: drain, StopGrace: time.Minute}, instances("w", 3, notify)...)
				b.pass(time.Minute)
				b.k.forget()
				done := make(chan struct{})
				go func() {
					defer close(done)
					_, _ = b.sup.Apply(context.Background(), instances("w", 3, notify, argv("new"))) // its result is that of the moment
				}()
				b.pass(time.Second)
				b.sup.Shutdown("test")
				<-done
				<-b.sup.Done()
				b.pass(0)
				if said := b.k.said(); strings.Contains(said, "start w:1") || strings.Contains(said, "start w:2") {
					t.Error(said)
				}
			})
		})
	}
}

// A start of all programs resumes a paused schedule; it starts no run.
func TestStartAllResumesASchedule(t *testing.T) {
	inBox(t, func(b *box) {
		b.boot(Config{}, backup(manual), spec("a", manual))
		b.pass(0)
		must(b.t, b.sup.StartAll(b.t.Context(), "job", "a"))
		b.pass(time.Minute)
		b.asked("start a")
		b.is("job", program.Stopped, "waits for its next run")
	})
}

// A queued run of a schedule is forgotten when the schedule becomes another program.
func TestAQueuedRunEndsWithItsSchedule(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["job"] = habit{lives: 15 * time.Minute}
		b.boot(Config{}, backup(func(s *program.Spec) { s.Overlap = program.OverlapQueue }))
		b.pass(21 * time.Minute) // the second run waits for the end of the first
		b.k.forget()
		b.k.habits["job"] = habit{lives: time.Minute}
		b.apply(spec("job", func(s *program.Spec) { s.Restart = program.RestartNever }))
		b.pass(time.Hour)
		b.asked("TERM job, start job, KILL job")
		b.is("job", program.Exited, "")
	})
}

// An apply that sets autostart activates a schedule that was never resumed, as it starts a service
// that was never started.
func TestAutostartActivatesASchedule(t *testing.T) {
	inBox(t, func(b *box) {
		b.boot(Config{}, backup(manual), spec("a", manual))
		b.pass(time.Minute)
		b.apply(backup(), spec("a"))
		b.pass(time.Minute)
		b.is("a", program.Running, "")
		b.is("job", program.Stopped, "waits for its next run")
	})
}
