package supervisor

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

func TestAsAsked(t *testing.T) {
	byTerm := &program.Spec{}
	byUsr2 := &program.Spec{Stop: []program.StopStep{{Signal: "USR2"}}}
	for _, tc := range []struct {
		name string
		spec *program.Spec
		exit program.Exit
		byUs bool
		want bool
	}{
		{"the ladder's signal", byTerm, program.Exit{Signal: "TERM", SignalNumber: 15}, false, true},
		{"the status of it", byTerm, program.Exit{Code: 143}, false, true},
		{"a ladder of its own", byUsr2, program.Exit{Signal: "USR2", SignalNumber: 12}, false, true},
		{"not of another ladder", byTerm, program.Exit{Signal: "USR2", SignalNumber: 12}, false, false},
		{"our KILL", byTerm, program.Exit{Signal: "KILL", SignalNumber: 9}, true, true},
		{"the kernel's KILL", byTerm, program.Exit{Signal: "KILL", SignalNumber: 9}, false, false},
		{"a SEGV meanwhile", byTerm, program.Exit{Signal: "SEGV", SignalNumber: 11}, false, false},
		{"a status of its own", byTerm, program.Exit{Code: 3}, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := asAsked(tc.spec, tc.exit, tc.byUs); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

// A program that ends because agentinit stops it has not crashed. A program that another process
// kills has crashed, and so has one that crashes during its stop.
func TestAskedEndIsNoCrash(t *testing.T) {
	const sleeps = "exec sleep 1000"
	b := newRealBox(t, Config{}, spec("stopped", shell(sleeps)), spec("killed", shell(sleeps)),
		spec("broken", shell("trap 'kill -SEGV $$' TERM; echo up; while :; do sleep 0.01; done"), func(s *program.Spec) {
			s.Readiness.Probes = []program.Probe{{Dialect: "log", Target: "^up$"}}
		}),
		spec("deaf", shell("trap '' TERM; echo up; while :; do sleep 0.01; done"), func(s *program.Spec) {
			s.Stop = []program.StopStep{{Signal: "TERM", Wait: 1}}
			s.Readiness.Probes = []program.Probe{{Dialect: "log", Target: "^up$"}}
		}))
	b.sup.Boot()
	for _, name := range []string{"stopped", "killed", "broken", "deaf"} {
		b.await(name, in(program.Running))
	}
	must(t, b.sup.Signal(t.Context(), "TERM", "killed"))
	b.await("killed", func(st Status) bool { return st.LastExit != nil })
	for _, name := range []string{"stopped", "broken", "deaf"} {
		must(t, b.sup.Stop(t.Context(), name))
		b.await(name, in(program.Stopped))
	}
	for name, want := range map[string]string{
		"stopped": "ended by signal TERM",
		"deaf":    "ended by signal KILL when agentinit stopped it: it did not end in time",
	} {
		if st := b.await(name, in(program.Stopped)); st.LastExit.String() != want {
			t.Errorf("%s: %q, want %q", name, st.LastExit, want)
		}
	}
	crashes := b.sys.Crashes()
	for name, want := range map[string]bool{"stopped": false, "deaf": false, "killed": true, "broken": true} {
		if c, got := crashes[name]; got != want {
			t.Errorf("%s: a crash: %v (%+v)", name, got, c.Exit)
		}
	}
}

// The signal of an end that agentinit caused looks as one from outside: the record says who sent it, and why.
func TestCrashSaysWhyAgentinitStoppedTheRun(t *testing.T) {
	missing := program.Probe{Dialect: "file", Target: "/nonexistent", Interval: time.Millisecond, Timeout: time.Second}
	once := func(s *program.Spec) { s.Restart, s.RestartLimit = program.RestartNever, program.RestartLimit{} }
	b := newRealBox(t, Config{},
		spec("sick", shell("exec sleep 1000"), once, func(s *program.Spec) {
			s.Health = program.Health{Probes: []program.Probe{missing}, Failures: 1, Action: program.HealthRestart}
		}),
		spec("late", shell("exec sleep 1000"), once, func(s *program.Spec) {
			s.Readiness = program.Readiness{Probes: []program.Probe{missing}, Deadline: 50 * time.Millisecond}
		}))
	b.sup.Boot()
	for name, want := range map[string]string{
		"sick": "ended by signal TERM when agentinit stopped it: unhealthy: ",
		"late": "ended by signal TERM when agentinit stopped it: not ready within ",
	} {
		st := b.await(name, func(st Status) bool { return st.LastExit != nil })
		if got := b.sys.Crashes()[name].Exit.String(); got != st.LastExit.String() || !strings.HasPrefix(got, want) {
			t.Errorf("%s: the crash record says %q, the state %q", name, got, st.LastExit)
		}
	}
}

// A program may get another name before the last lines of its crash are there.
func TestTheLastLinesOfARenamedProgram(t *testing.T) {
	plane := logs.New(logs.Config{})
	defer func() { _ = plane.Close(context.Background()) }()
	s := &System{
		cfg: SystemConfig{Logs: plane, Bus: event.NewBus(10)}, stop: make(chan struct{}),
		crashes: map[string]*Crash{}, refusals: tallies{}, spent: map[string]time.Duration{},
	}
	capture, err := plane.Open(logs.Options{Program: "web", Run: 1})
	if err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Dup(int(capture.Stdout.Fd())) // of a process that holds the pipe
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.NewFile(uintptr(fd), "stdout")
	capture.Started(7)
	if _, err := stdout.WriteString("last words\n"); err != nil {
		t.Fatal(err)
	}
	for range plane.Read(t.Context(), logs.Query{Follow: true}) {
		break // the line is in the ring
	}
	p := spec("web")
	r := &systemRun{key: runKey{"web", 1}, spec: &p, capture: capture}
	s.mu.Lock()
	s.crashed(r, proc.Exit{PID: 7}, program.Exit{Code: 1}, false)
	s.mu.Unlock()
	s.Rename("web", "web:0")
	if err := stdout.Close(); err != nil {
		t.Fatal(err)
	}
	s.draining.Wait()
	if c := s.Crashes()["web:0"]; c.Program != "web:0" || len(c.Output) != 1 {
		t.Errorf("%+v", c)
	}
}
