package supervisor

import (
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// webAndDB boots web, which needs db, and waits until both run.
func webAndDB(b *box, f ...func(*program.Spec)) {
	b.t.Helper()
	b.boot(Config{}, spec("db"), spec("web", append(f, needs("db"))...))
	b.pass(3 * time.Second)
	b.is("web", program.Running, "")
	b.k.forget()
}

// webWithoutDB is webAndDB, then db is stopped by request and web crashes with status 3.
func webWithoutDB(b *box) {
	b.t.Helper()
	webAndDB(b)
	must(b.t, b.sup.Stop(b.t.Context(), "db"))
	b.pass(0)
	b.k.crash("web", 3)
}

// Whatever makes a program start, the program waits for its needs as at its first start.
func TestNoStartBeforeItsNeeds(t *testing.T) {
	down := func(b *box) {
		b.k.mu.Lock()
		b.k.habits["db"] = habit{lives: time.Millisecond, code: 1}
		b.k.mu.Unlock()
		b.k.crash("db", 1)
		b.pass(0)
	}
	up := func(b *box) {
		b.k.mu.Lock()
		b.k.habits["db"] = habit{}
		b.k.mu.Unlock()
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	for name, start := range map[string]func(*box){
		"a restart": func(b *box) {
			down(b)
			check(b.sup.Restart(b.t.Context(), "web"))
		},
		"a start while it is STOPPING": func(b *box) {
			b.k.mu.Lock()
			b.k.habits["web"] = habit{dies: time.Second}
			b.k.mu.Unlock()
			check(b.sup.Stop(b.t.Context(), "web"))
			check(b.sup.Start(b.t.Context(), "web"))
			down(b)
			b.pass(time.Second)
		},
		"a start in BACKOFF": func(b *box) {
			down(b)
			b.k.crash("web", 1)
			b.pass(0)
			b.is("web", program.Backoff, "")
			check(b.sup.Start(b.t.Context(), "web"))
		},
		"the restart after a crash": func(b *box) {
			down(b)
			b.k.crash("web", 1)
			b.pass(time.Second)
		},
		"an apply": func(b *box) {
			down(b)
			specs := []program.Spec{spec("db"), spec("web", needs("db"), func(s *program.Spec) { s.Argv = []string{"other"} })}
			go func() {
				_, err := b.sup.Apply(b.t.Context(), specs)
				check(err)
			}()
		},
		"the processes of the run before are gone": func(b *box) {
			b.k.mu.Lock()
			b.k.live["web"].emptyD = 2 * time.Second
			b.k.mu.Unlock()
			b.k.crash("web", 1)
			b.pass(time.Second)
			b.is("web", program.Starting, "waits until all processes of run 1 are gone")
			down(b)
			b.pass(time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBox(t, func(b *box) {
				webAndDB(b)
				start(b)
				b.pass(20 * time.Millisecond)
				b.is("web", program.Stopped, "waits for db to be ready (it is BACKOFF")
				if st := b.status("web"); !st.Queued || st.Blocked || st.Run != 1 {
					t.Errorf("%+v", st)
				}
				up(b)
				b.pass(time.Minute)
				b.is("web", program.Running, "")
				if said := b.k.said(); strings.Count(said, "start web") != 1 {
					t.Error(said)
				}
			})
		})
	}
}

// A requested restart also starts the program's needs, as a start does. The restart after a crash
// waits for a need that was stopped by request, and the reason says so.
func TestARestartStartsWhatItNeeds(t *testing.T) {
	inBox(t, func(b *box) {
		webWithoutDB(b)
		b.pass(time.Minute)
		b.is("web", program.Stopped, "exited with code 3; waits for db to be ready (it is STOPPED: stopped by request)")
		if st := b.status("web"); !st.Blocked || st.Restarts != 0 {
			t.Errorf("%+v", st)
		}
		must(b.t, b.sup.Restart(b.t.Context(), "web"))
		b.pass(3 * time.Second)
		b.is("db", program.Running, "")
		b.is("web", program.Running, "")
		if st := b.status("web"); st.Restarts != 0 {
			t.Errorf("a start by request counts as a restart: %+v", st)
		}
	})
}

// A program that crashes repeatedly reaches its restart limit, even if each restart waits for a
// need.
func TestWaitingForNeedsForgivesNoCrash(t *testing.T) {
	inBox(t, func(b *box) {
		webAndDB(b, func(s *program.Spec) { s.RestartLimit.Count = 2 })
		for range 3 {
			b.is("web", program.Running, "")
			b.k.crash("web", 1)
			b.k.crash("db", 1)
			b.pass(20 * time.Second)
		}
		b.is("web", program.Fatal, "gave up: 2 restarts within")
		if st := b.status("web"); st.Restarts != 2 {
			t.Errorf("%d restarts", st.Restarts)
		}
	})
}

func TestAStopCallsOffARestartThatWaits(t *testing.T) {
	inBox(t, func(b *box) {
		webWithoutDB(b)
		b.pass(time.Second)
		must(b.t, b.sup.Stop(b.t.Context(), "web"))
		b.is("web", program.Stopped, "stopped by request")
		must(b.t, b.sup.Start(b.t.Context(), "db"))
		b.pass(time.Minute)
		b.is("web", program.Stopped, "stopped by request")
	})
}

// A queued run of a schedule waits for the program's needs.
func TestAQueuedRunWaitsForItsNeeds(t *testing.T) {
	inBox(t, func(b *box) {
		b.k.habits["job"] = habit{lives: 15 * time.Minute}
		b.boot(Config{}, spec("db"), backup(needs("db"), func(s *program.Spec) { s.Overlap = program.OverlapQueue }))
		b.pass(24 * time.Minute) // its run goes on until the 25th minute; one more is queued
		must(b.t, b.sup.Stop(b.t.Context(), "db"))
		b.pass(2 * time.Minute)
		b.is("job", program.Exited, "waits for db to be ready")
		if st := b.status("job"); st.Run != 1 {
			t.Errorf("%d runs", st.Run)
		}
		must(b.t, b.sup.Start(b.t.Context(), "db"))
		b.pass(2 * time.Second)
		if st := b.status("job"); st.Run != 2 || st.PID == 0 {
			t.Errorf("%+v", st)
		}
	})
}

// A waiting program starts if an apply removes the need that it waits for.
func TestApplyTakesAwayTheNeed(t *testing.T) {
	inBox(t, func(b *box) {
		b.boot(Config{}, spec("db", manual, func(s *program.Spec) { s.Readiness.Probes = []program.Probe{{Dialect: "notify"}} }), spec("web", needs("db")))
		b.pass(time.Second)
		b.is("web", program.Stopped, "waits for db")
		b.apply(spec("db", manual, notify), spec("web"))
		b.pass(time.Second)
		b.is("web", program.Running, "")
	})
}
