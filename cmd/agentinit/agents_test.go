package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/contract"
	"github.com/dreamlab-ai/agentinit/adapters/orchestrator"
	"github.com/dreamlab-ai/agentinit/internal/testprog/built"
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// nursery is a real owner of processes with the agents' code on top. The test process can have
// only one owner at a time, so a test calls nursery once.
func nursery(t testing.TB, plane *logs.Plane) *agents {
	t.Helper()
	owner, err := proc.New(proc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	// The goroutine that counts refused calls starts with the first command that wants such a
	// count, and ends with the owner. unleaked must see that goroutine from the start.
	first := proc.Command{Path: "/bin/true", Args: []string{"true"}, Guard: proc.GuardFull, Refused: func(proc.Refusal) {}}
	if _, err := owner.Run(t.Context(), first, 0); err != nil {
		t.Fatal(err)
	}
	a := &agents{owner: owner, plane: plane}
	// Agents run as the test's own user: other users cannot enter the test's directories.
	a.confinements = map[string]confinement{"": {guard: true}}
	t.Cleanup(func() {
		// An agent's end is reported when no process of its tree is left. But a start that fails returns
		// before the process it made is reaped.
		waitUntil(func() bool { return owner.Stats().Live == 0 })
		s := owner.Stats()
		if s.Live != 0 || s.Adopted != 0 || s.Leaked != 0 {
			t.Errorf("processes are left: %+v", s)
		}
		if err := owner.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// waitUntil polls for what is not reported, for ten seconds at most.
func waitUntil(ok func() bool) {
	for end := time.Now().Add(10 * time.Second); !ok() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

func manager(t testing.TB, cfg orchestrator.LocalConfig) *orchestrator.Local {
	t.Helper()
	if cfg.Spawner == nil {
		cfg.Spawner = nursery(t, nil)
	}
	if cfg.Roots == nil {
		cfg.Roots = []string{t.TempDir()}
	}
	cfg.Environ = []string{"PATH=/usr/bin:/bin", "MANAGEMENT_API_KEY=secret", "PROVIDER_KEY=granted", "OTHER=no"}
	cfg.Granted = []string{"PROVIDER_KEY"}
	l, err := orchestrator.NewLocal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// unleaked returns a function that fails the test if it has begun goroutines that go on. The threads
// of an owner that start programs end with the owner.
func unleaked(t *testing.T) func() {
	const onThread = "github.com/dreamlab-ai/agentinit/supervisor/proc.onThread"
	before := goleak.IgnoreCurrent()
	return func() {
		goleak.VerifyNone(t, before, goleak.IgnoreAnyFunction(onThread), goleak.IgnoreAnyFunction(onThread+".func1"))
	}
}

func TestAgentsContract(t *testing.T) {
	prog := built.Path(t)
	spawner := nursery(t, nil)
	check := unleaked(t)
	contract.Orchestrator(t, prog, func(t testing.TB) adapters.Orchestrator {
		return manager(t, orchestrator.LocalConfig{Spawner: spawner})
	})
	check()
}

func connected(t testing.TB, l *orchestrator.Local) adapters.Orchestrator {
	t.Helper()
	if err := l.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := l.Disconnect(ctx); err != nil {
			t.Error(err)
		}
	})
	return adapters.WrapOrchestrator(l, nil)
}

// TestFiveHundredAgents starts 500 agents at once, each with a child. All are reaped, each with its
// own exit code.
func TestFiveHundredAgents(t *testing.T) {
	prog := built.Path(t)
	spawner := nursery(t, nil)
	o := connected(t, manager(t, orchestrator.LocalConfig{Spawner: spawner, MaxRunning: 500}))
	const n = 500
	codes := make([]int, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			codes[i] = -1
			args := []string{"exit", fmt.Sprint(i % 100)}
			if i%10 == 9 {
				args = []string{"fork-orphans", "3"}
			}
			a, err := o.SpawnAgent(t.Context(), adapters.AgentSpec{Command: prog, Args: args})
			if err != nil {
				t.Error(err)
				return
			}
			s, err := o.StreamEvents(t.Context(), a.AgentID, 0)
			if err != nil {
				t.Error(err)
				return
			}
			for err == nil {
				_, err = s.Next(t.Context())
			}
			a, err = o.GetAgent(t.Context(), a.AgentID)
			if err != nil || a.ExitCode == nil {
				t.Errorf("agent %d: %+v: %v", i, a, err)
				return
			}
			codes[i] = *a.ExitCode
		})
	}
	wg.Wait()
	for i, code := range codes {
		want := i % 100
		if i%10 == 9 {
			want = 0
		}
		if code != want {
			t.Errorf("agent %d ended with %d, not %d", i, code, want)
		}
	}
	if s := spawner.owner.Stats(); s.Exited < n || s.Live != 0 {
		t.Errorf("owner: %+v", s)
	}
}

func TestAgentsRunningLimit(t *testing.T) {
	prog := built.Path(t)
	l := manager(t, orchestrator.LocalConfig{MaxRunning: 3})
	o := connected(t, l)
	var ids []string
	for range 3 {
		a, err := o.SpawnAgent(t.Context(), adapters.AgentSpec{Command: prog, Args: []string{"sleep"}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, a.AgentID)
	}
	_, err := o.SpawnAgent(t.Context(), adapters.AgentSpec{Command: prog, Args: []string{"sleep"}})
	if e := adapters.AsError(err); e == nil || e.Code != adapters.CodeRateLimited || !e.Retryable || e.RetryAfter() == 0 {
		t.Fatalf("a fourth agent: %v", err)
	}
	if _, err := o.TerminateAgent(t.Context(), ids[0], 0); err != nil {
		t.Fatal(err)
	}
	if _, err := o.SpawnAgent(t.Context(), adapters.AgentSpec{Command: prog, Args: []string{"sleep"}}); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}

// TestAgentsHostile runs programs that try to outlive their agent.
func TestAgentsHostile(t *testing.T) {
	prog := built.Path(t)
	o := connected(t, manager(t, orchestrator.LocalConfig{}))
	for _, args := range [][]string{
		{"fork-tree", "3", "3"}, {"double-fork"}, {"fork-orphans", "20", "stay"}, {"refork"}, {"spam", "100000000"}, {"ignore-term"},
	} {
		a, err := o.SpawnAgent(t.Context(), adapters.AgentSpec{Command: prog, Args: args})
		if err != nil {
			t.Fatal(err)
		}
		s, err := o.StreamEvents(t.Context(), a.AgentID, 0)
		if err != nil {
			t.Fatal(err)
		}
		// Waits until the program has begun its work.
		for range 2 {
			if _, err := s.Next(t.Context()); err != nil {
				t.Fatal(args, err)
			}
			if args[0] == "refork" {
				break
			}
		}
		s.Close()
		if a, err = o.TerminateAgent(t.Context(), a.AgentID, 20*time.Millisecond); err != nil || a.Status == adapters.AgentRunning {
			t.Errorf("%v: %+v: %v", args, a, err)
		}
	}
}

// TestAgentsLimits shows that limits reach the program.
func TestAgentsLimits(t *testing.T) {
	prog := built.Path(t)
	o := connected(t, manager(t, orchestrator.LocalConfig{}))
	a, err := o.SpawnAgent(t.Context(), adapters.AgentSpec{
		Command: prog, Args: []string{"limits"}, Limits: adapters.AgentLimits{OpenFiles: 77, FileBytes: 123456},
	})
	if err != nil {
		t.Fatal(err)
	}
	text := printed(t, o, a.AgentID)
	for _, want := range []string{"Max open files 77 77 files ", "Max file size 123456 123456 bytes "} {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), want) {
			t.Errorf("limits do not show %q:\n%s", want, text)
		}
	}
}

// TestAgentEndsBesideAHeldStart: while the start of one program hangs, the ends of agents are still
// reported.
func TestAgentEndsBesideAHeldStart(t *testing.T) {
	prog := built.Path(t)
	spawner := nursery(t, nil)
	system := supervisor.NewSystem(supervisor.SystemConfig{
		Owner: spawner.owner, Logs: logs.New(logs.Config{}), Bus: event.NewBus(100), NotifyDir: t.TempDir(),
	})
	t.Cleanup(func() {
		if err := system.Close(); err != nil {
			t.Error(err)
		}
	})
	o := connected(t, manager(t, orchestrator.LocalConfig{Spawner: spawner}))
	leased := filepath.Join(t.TempDir(), "leased")
	if err := os.WriteFile(leased, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	holder, err := o.SpawnAgent(t.Context(), adapters.AgentSpec{Command: prog, Args: []string{"lease", leased}})
	if err != nil {
		t.Fatal(err)
	}
	awaitText(t, o, holder.AgentID, "held")
	answered := make(chan error, 1)
	go func() {
		_, err := system.Start(&program.Spec{Name: "held", Argv: []string{leased}, Umask: -1}, 1)
		answered <- err
	}()
	for spawner.owner.Stats().Live < 2 { // until the helper process of the start, which hangs, is there
		runtime.Gosched()
	}
	a, err := o.SpawnAgent(t.Context(), adapters.AgentSpec{Command: prog, Args: []string{"exit", "3"}})
	if err != nil {
		t.Fatal(err)
	}
	printed(t, o, a.AgentID) // until the agent's end
	select {
	case err := <-answered:
		t.Fatalf("the agent's end was told of only after the start: %v", err)
	default:
	}
	if a, err = o.GetAgent(t.Context(), a.AgentID); err != nil || a.ExitCode == nil || *a.ExitCode != 3 {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err := o.TerminateAgent(t.Context(), holder.AgentID, 0); err != nil {
		t.Error(err)
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	for range 2 { // Exited and Emptied: no process is left
		<-system.Notices()
	}
}

// awaitText waits until an agent has printed the text.
func awaitText(t *testing.T, o adapters.Orchestrator, id, text string) {
	t.Helper()
	s, err := o.StreamEvents(t.Context(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for {
		e, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(e.Payload), text) {
			return
		}
	}
}

func TestDisconnectTime(t *testing.T) {
	for _, c := range []struct{ grace, took, want time.Duration }{
		{25 * time.Second, 0, 25 * time.Second},
		{25 * time.Second, 20 * time.Second, 5 * time.Second},
		{25 * time.Second, 24 * time.Second, disconnectLeast},
		{25 * time.Second, time.Hour, disconnectLeast},
		{0, 0, program.DefaultStopGrace},
	} {
		if got := disconnectTime(c.grace, c.took); got != c.want {
			t.Errorf("after %s of %s: %s, want %s", c.took, c.grace, got, c.want)
		}
	}
}

func printed(t *testing.T, o adapters.Orchestrator, id string) string {
	t.Helper()
	s, err := o.StreamEvents(t.Context(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var all strings.Builder
	for {
		e, err := s.Next(t.Context())
		if err != nil {
			return all.String()
		}
		all.Write(e.Payload)
	}
}

// TestAgentsLog: the log plane has the output of agents too, each line with the pid of its agent.
func TestAgentsLog(t *testing.T) {
	prog := built.Path(t)
	plane := logs.New(logs.Config{})
	o := connected(t, manager(t, orchestrator.LocalConfig{Spawner: nursery(t, plane)}))
	pids := map[int]bool{}
	for range 3 {
		a, err := o.SpawnAgent(t.Context(), adapters.AgentSpec{Command: prog, Args: []string{"both"}})
		if err != nil {
			t.Fatal(err)
		}
		pids[a.PID] = true
		printed(t, o, a.AgentID)
	}
	var got []string
	for line := range plane.Read(t.Context(), logs.Query{Programs: []string{agentsLog}, Follow: true}) {
		if !pids[line.PID] {
			t.Errorf("line of a stranger: %+v", line)
		}
		if got = append(got, line.Stream.String()+" "+line.Text); len(got) == 6 {
			break
		}
	}
	slices.Sort(got)
	if want := []string{"stderr to stderr", "stdout to stdout"}; len(got) != 6 || got[0] != want[0] || got[5] != want[1] {
		t.Errorf("the plane has %q", got)
	}
	if err := plane.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
