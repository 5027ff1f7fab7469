package bootstrap

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/plan"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// fakeSupervisor holds programs and publishes their state changes.
type fakeSupervisor struct {
	bus *event.Bus

	mu       sync.Mutex
	programs map[string]program.Status
	reads    int
	specs    []program.Spec
	started  chan struct{}
}

func newFakeSupervisor(bus *event.Bus, programs ...program.Status) *fakeSupervisor {
	f := &fakeSupervisor{bus: bus, programs: make(map[string]program.Status), started: make(chan struct{})}
	for _, p := range programs {
		f.programs[p.Name] = p
	}
	return f
}

func (f *fakeSupervisor) All() (uint64, []program.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	var out []program.Status
	for _, p := range f.programs {
		out = append(out, p)
	}
	return f.bus.Seq(), out
}

func (f *fakeSupervisor) Status(name string) (program.Status, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.programs[name]
	return p, ok
}

func (f *fakeSupervisor) Start(_ context.Context, specs []program.Spec) (<-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.specs = specs
	for _, s := range specs {
		f.programs[s.Name] = program.Status{Name: s.Name, Required: s.Required, Spec: &s}
	}
	return f.started, nil
}

func (f *fakeSupervisor) become(name string, to program.State, ready bool, change event.Change) {
	f.mu.Lock()
	p := f.programs[name]
	from := p.State
	p.State, p.Ready, p.Completed, p.Reason, p.PID = to, ready, change.Completed, change.Reason, change.PID
	now := time.Now()
	switch {
	case to == program.Starting:
		p.StartedAt = &now
	case ready:
		p.RunningAt = &now
	}
	f.programs[name] = p
	f.mu.Unlock()
	change.From, change.To, change.Ready = from.String(), to.String(), ready
	f.bus.Publish(event.Event{Level: event.Info, Stage: "supervisor", Name: event.ProgramStateChanged, Program: name, Change: &change})
}

// sealRig is a boot just before its seal.
type sealRig struct {
	bus  *event.Bus
	sup  *fakeSupervisor
	boot *Boot
	out  chan result
}

type result struct {
	outcome Outcome
	err     error
}

func newSealRig(t *testing.T, on string, env []string, programs ...program.Status) *sealRig {
	t.Helper()
	bus := event.NewBus(256)
	sup := newFakeSupervisor(bus, programs...)
	b := New(Config{Bus: bus, Roots: testRoots(t), Environ: env, Started: time.Now(), BootID: "b1", Programs: sup, Starter: sup})
	b.Adopt(&Loaded{
		Manifest: &schema.Manifest{Bootstrap: schema.Bootstrap{OnSealTimeout: on}},
		Plan:     &plan.Plan{SealTimeout: 120 * time.Second}, Checksum: "sha256:00",
	})
	return &sealRig{bus: bus, sup: sup, boot: b, out: make(chan result, 1)}
}

// run starts the seal in the background.
func (r *sealRig) run(ctx context.Context) {
	r.boot.started = r.sup.started
	r.boot.watcher = newWatcher(r.bus, r.sup)
	go func() {
		o, err := seal(ctx, r.boot)
		r.out <- result{o, err}
	}()
	synctest.Wait()
}

func (r *sealRig) pending(t *testing.T) {
	t.Helper()
	synctest.Wait()
	select {
	case got := <-r.out:
		t.Fatalf("the seal has already ended: %+v", got)
	default:
	}
	if _, err := os.Stat(r.boot.cfg.Roots.Sentinel()); err == nil {
		t.Fatal("the sentinel is there too early")
	}
}

func (r *sealRig) events(name string) (out []event.Event) {
	w := r.bus.Watch(0)
	for {
		e, ok := w.TryNext()
		if !ok {
			return out
		}
		if e.Name == name {
			out = append(out, e)
		}
	}
}

func service(name string) program.Status {
	return program.Status{Name: name, Required: true}
}

func TestSealFiresWithTheLastRequiredProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		task := service("migrate")
		task.Spec = &program.Spec{Type: program.Oneshot}
		r := newSealRig(t, "stay", nil, service("web"), service("db"), task,
			program.Status{Name: "side"}, program.Status{Name: "nightly", Schedule: &program.ScheduleStatus{}, Required: true})
		r.run(t.Context())
		r.sup.become("web", program.Starting, false, event.Change{PID: 10})
		time.Sleep(3 * time.Second)
		r.sup.become("web", program.Running, false, event.Change{PID: 10}) // not ready yet
		r.sup.become("db", program.Running, true, event.Change{PID: 11})
		r.sup.become("migrate", program.Starting, false, event.Change{PID: 12}) // a oneshot that is running is not completed
		r.pending(t)
		r.sup.become("migrate", program.Exited, false, event.Change{Completed: true})
		r.pending(t)
		r.sup.become("web", program.Running, true, event.Change{PID: 10})
		synctest.Wait()
		got := <-r.out
		if got.err != nil || got.outcome.Status != StatusOK {
			t.Fatalf("got %+v", got)
		}
		if r.sup.reads != 1 {
			t.Errorf("the programs were read %d times", r.sup.reads)
		}
		var s Sentinel
		if err := json.Unmarshal([]byte(read(t, r.boot.cfg.Roots.Sentinel())), &s); err != nil {
			t.Fatal(err)
		}
		if s.BootID != "b1" || s.DurationMS != 3000 || s.ManifestChecksum != "sha256:00" || s.Stage != "bootstrap" ||
			s.Programs["web"] != (SealedProgram{PID: 10, TimeToRunningMS: 3000}) || len(s.Programs) != 4 {
			t.Fatalf("got %+v", s)
		}
		if _, took, ok := r.boot.Sealed(); !ok || took != 3*time.Second {
			t.Fatalf("%v %v", took, ok)
		}
		started, completed := r.events(EventSealStarted), r.events(EventCompleted)
		if len(started) != 1 || len(started[0].Fields["required"].([]string)) != 4 || len(completed) != 1 {
			t.Fatalf("%+v %+v", started, completed)
		}
	})
}

func TestSealWithoutRequiredProgramsWaitsForTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSealRig(t, "stay", nil, program.Status{Name: "side"})
		r.run(t.Context())
		r.pending(t)
		close(r.sup.started)
		if got := <-r.out; got.err != nil {
			t.Fatal(got.err)
		}
		started := r.events(EventSealStarted)
		if len(started) != 1 {
			t.Fatalf("%+v", started)
		}
		if text, err := json.Marshal(started[0].Fields["required"]); string(text) != "[]" || err != nil {
			t.Fatalf("the event shows %s as the required programs: %v", text, err)
		}
	})
}

// The supervisor may take over the programs only after Start has returned.
func TestSealDoesNotOverlookLatePrograms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSealRig(t, "stay", nil)
		r.run(t.Context())
		r.sup.mu.Lock()
		r.sup.programs["web"] = service("web")
		r.sup.mu.Unlock()
		close(r.sup.started)
		r.pending(t)
		r.sup.become("web", program.Running, true, event.Change{})
		if got := <-r.out; got.err != nil {
			t.Fatal(got.err)
		}
	})
}

func TestSealSurvivesLostEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSealRig(t, "stay", nil, service("web"))
		r.run(t.Context())
		r.sup.mu.Lock() // block the snapshot, so that the reader falls behind
		for range 600 {
			r.bus.Publish(event.Event{Name: "noise"})
		}
		p := r.sup.programs["web"]
		p.State, p.Ready = program.Running, true
		r.sup.programs["web"] = p
		r.sup.mu.Unlock()
		for range 600 {
			r.bus.Publish(event.Event{Name: "noise"})
		}
		if got := <-r.out; got.err != nil {
			t.Fatal(got.err)
		}
	})
}

func TestSealTimeout(t *testing.T) {
	for _, c := range []struct {
		on   string
		env  []string
		wait time.Duration
		code Code
	}{
		{"stay", nil, 120 * time.Second, ExitOK},
		{"exit", nil, 120 * time.Second, ExitSealTimeout},
		{"exit", []string{"BOOTSTRAP_SEAL_TIMEOUT=7"}, 7 * time.Second, ExitSealTimeout},
		{"exit", []string{"BOOTSTRAP_SEAL_TIMEOUT=0.5"}, 500 * time.Millisecond, ExitSealTimeout},
		{"stay", []string{"BOOTSTRAP_SEAL_TIMEOUT=0"}, 120 * time.Second, ExitOK},
		{"stay", []string{"BOOTSTRAP_SEAL_TIMEOUT=1m"}, time.Minute, ExitOK},
		{"stay", []string{"BOOTSTRAP_SEAL_TIMEOUT=soon"}, 120 * time.Second, ExitOK},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newSealRig(t, c.on, c.env, service("web"), service("db"))
			told := ""
			r.boot.cfg.Unsealed = func(reason string) { told = reason }
			begin := time.Now()
			r.run(t.Context())
			r.sup.become("db", program.Running, true, event.Change{})
			r.sup.become("web", program.Backoff, false, event.Change{Reason: "exit 1"})
			got := <-r.out
			if took := time.Since(begin); took != c.wait {
				t.Errorf("%+v: took %s", c, took)
			}
			if ExitCode(got.err) != c.code {
				t.Errorf("%+v: got %v", c, got.err)
			}
			e := r.events(EventSealTimeout)
			if len(e) != 1 || strings.Join(e[0].Fields["programs"].([]string), ";") != "web BACKOFF (exit 1)" {
				t.Errorf("%+v: %+v", c, e)
			}
			if why := r.boot.GivenUp(); c.on == "stay" && !strings.Contains(why, "web BACKOFF") || told != why {
				t.Errorf("given up: %q, told %q", why, told)
			}
			r.sup.become("web", program.Running, true, event.Change{})
			synctest.Wait()
			if _, err := os.Stat(r.boot.cfg.Roots.Sentinel()); err == nil {
				t.Error("sealed after the timeout")
			}
		})
	}
}

// The answer of a probe changes the reason of a program without an event. The report of the seal
// timeout has the latest reason.
func TestSealTimeoutHasTheLatestReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSealRig(t, "exit", nil, service("web"))
		r.run(t.Context())
		r.sup.become("web", program.Starting, false, event.Change{Reason: "started, not ready yet"})
		synctest.Wait()
		r.sup.mu.Lock()
		p := r.sup.programs["web"]
		p.Reason += ": tcp 127.0.0.1:9: connection refused"
		r.sup.programs["web"] = p
		r.sup.mu.Unlock()
		if got := <-r.out; ExitCode(got.err) != ExitSealTimeout || !strings.Contains(got.err.Error(), "web STARTING (started, not ready yet: tcp 127.0.0.1:9: connection refused)") {
			t.Errorf("got %v", got.err)
		}
	})
}

// Where no program is required, the seal waits until each has been started. A oneshot can hold that up.
func TestSealTimeoutNamesTheProgramThatIsStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSealRig(t, "exit", nil, program.Status{Name: "migrate"}, program.Status{Name: "web"})
		r.run(t.Context())
		r.sup.become("migrate", program.Starting, false, event.Change{Reason: "started"})
		if got := <-r.out; ExitCode(got.err) != ExitSealTimeout || !strings.HasSuffix(got.err.Error(), "waiting for migrate STARTING (started)") {
			t.Errorf("got %v", got.err)
		}
	})
}

func TestRequiredFatalEndsTheBoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSealRig(t, "stay", nil, service("web"), program.Status{Name: "side"})
		r.run(t.Context())
		r.sup.become("side", program.Fatal, false, event.Change{Reason: "no matter"})
		r.pending(t)
		r.sup.become("web", program.Fatal, false, event.Change{Reason: "10 restarts in 5m"})
		got := <-r.out
		if ExitCode(got.err) != ExitRequiredFatal || !strings.Contains(got.err.Error(), "web is FATAL: 10 restarts") {
			t.Fatalf("got %v", got.err)
		}
	})
}

// TestARequiredProgramThatCannotComeEndsTheBoot: a oneshot that has failed permanently, and a
// program whose needs cannot be met. The failure names the program that is the cause of it.
func TestARequiredProgramThatCannotComeEndsTheBoot(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*program.Status)
		want    string
		culprit string
	}{
		"a oneshot": {func(p *program.Status) { p.State, p.Reason = program.Exited, "exited with code 3" }, "has ended for good: exited with code 3", "web"},
		"a dependent": {func(p *program.Status) {
			p.State, p.Blocked, p.Reason = program.Stopped, true, "waits for db to be ready (it is FATAL: no disk)"
			p.Spec = &program.Spec{Needs: []program.Need{{Program: "side", Condition: program.NeedReady}, {Program: "db", Condition: program.NeedReady}}}
		}, "cannot start: it waits for db", "db"},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newSealRig(t, "stay", nil, service("web"), program.Status{Name: "side", State: program.Starting},
				program.Status{Name: "db", State: program.Fatal, Reason: "no disk"})
			r.run(t.Context())
			r.sup.mu.Lock()
			p := r.sup.programs["web"]
			c.change(&p)
			r.sup.programs["web"] = p
			r.sup.mu.Unlock()
			r.bus.Publish(event.Event{Name: event.ProgramStateChanged, Program: "web"})
			got := <-r.out
			if failure, ok := errors.AsType[*Failure](got.err); !ok || failure.Code != ExitRequiredFatal || failure.Program != c.culprit || !strings.Contains(got.err.Error(), c.want) {
				t.Errorf("%s: %+v", name, got.err)
			}
		})
	}
}

func TestSealIsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSealRig(t, "exit", nil, service("web"))
		ctx, cancel := context.WithCancelCause(t.Context())
		r.run(ctx)
		cancel(errors.New("SIGTERM"))
		if got := <-r.out; ExitCode(got.err) != ExitOK || got.err == nil || !strings.Contains(got.err.Error(), "SIGTERM") {
			t.Fatalf("got %v", got.err)
		}
	})
}

// A required program that is FATAL is reported as the cause of the failure, even if it has ended
// the box before the seal notices it.
func TestRequiredFatalIsNotAnInterruption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSealRig(t, "exit", nil, service("web"))
		ctx, cancel := context.WithCancelCause(t.Context())
		r.boot.started, r.boot.watcher = r.sup.started, newWatcher(r.bus, r.sup)
		r.sup.become("web", program.Fatal, false, event.Change{Reason: "exit 3"})
		cancel(errors.New("the box is stopping"))
		if _, err := seal(ctx, r.boot); ExitCode(err) != ExitRequiredFatal {
			t.Fatalf("got %v", err)
		}
	})
}

func TestSealInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSealRig(t, "stay", nil)
		write(t, r.boot.cfg.Roots.Prefix+"/run", "a file where the directory should be", 0o644)
		close(r.sup.started)
		r.run(t.Context())
		got := <-r.out
		if got.err != nil || got.outcome.Status != StatusWarning || len(r.events(EventSealInMemory)) != 1 {
			t.Fatalf("got %+v", got)
		}
		if _, _, ok := r.boot.Sealed(); !ok {
			t.Fatal("not sealed")
		}
		// The sentinel was never there, so no process has altered it. It is written as soon as that
		// is possible.
		r.boot.sentinel.watch = func(string) changes { return blind{} }
		ctx, cancel := context.WithCancel(t.Context())
		guarded := make(chan struct{})
		go func() { r.boot.GuardSentinel(ctx); close(guarded) }()
		time.Sleep(2 * sentinelCycle)
		synctest.Wait()
		if events := r.events(EventSentinelAltered); len(events) != 0 {
			t.Errorf("got %+v", events)
		}
		if err := os.Remove(r.boot.cfg.Roots.Prefix + "/run"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * sentinelCycle)
		synctest.Wait()
		read(t, r.boot.cfg.Roots.Sentinel())
		cancel()
		<-guarded
	})
}

func TestStaleSentinelIsRemoved(t *testing.T) {
	r := newSealRig(t, "stay", nil)
	if err := r.boot.RemoveStaleSentinel(); err != nil {
		t.Fatalf("nothing there: %v", err)
	}
	sentinel := r.boot.cfg.Roots.Sentinel()
	for name, goes := range map[string]bool{sentinel: true, sentinel + ".tmp-0a1b2c3d4e5f": true, sentinel + ".old": false} {
		write(t, name, "{}", 0o644)
		if err := r.boot.RemoveStaleSentinel(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) != goes {
			t.Errorf("%s: %v", name, err)
		}
	}
}
