package orchestrator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"go.uber.org/goleak"

	"github.com/dreamlab-ai/agentinit/adapters"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func spawn(t *testing.T, l *Local, spec adapters.AgentSpec) adapters.Agent {
	t.Helper()
	spec.Command = cmp.Or(spec.Command, "agent")
	a, err := l.SpawnAgent(context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestTerminateLadder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSpawner{}
		l := fakeLocal(t, f)
		a := spawn(t, l, adapters.AgentSpec{})
		f.last().deaf = true
		begin := time.Now()
		got, err := l.TerminateAgent(t.Context(), a.AgentID, -1)
		if err != nil || got.Status != adapters.AgentTerminated || got.Signal != "SIGKILL" {
			t.Fatalf("%+v: %v", got, err)
		}
		if d := time.Since(begin); d != adapters.DefaultGrace {
			t.Errorf("killed after %v", d)
		}
		if s := f.last().signals; !slices.Equal(s, []syscall.Signal{syscall.SIGTERM, syscall.SIGCONT}) {
			t.Errorf("signals %v", s)
		}
	})
}

func TestShorterGraceWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSpawner{}
		l := fakeLocal(t, f)
		a := spawn(t, l, adapters.AgentSpec{})
		f.last().deaf = true
		first := make(chan error, 1)
		go func() { _, err := l.TerminateAgent(t.Context(), a.AgentID, time.Minute); first <- err }()
		synctest.Wait()
		begin := time.Now()
		if _, err := l.TerminateAgent(t.Context(), a.AgentID, time.Second); err != nil {
			t.Fatal(err)
		}
		if err := <-first; err != nil || time.Since(begin) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}

func TestTimeoutFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSpawner{}
		l := fakeLocal(t, f)
		a := spawn(t, l, adapters.AgentSpec{TimeoutS: 60})
		time.Sleep(time.Minute)
		synctest.Wait()
		if got, err := l.GetAgent(t.Context(), a.AgentID); err != nil || got.Status != adapters.AgentFailed || got.EndedAt.Sub(got.StartedAt.Time) != time.Minute {
			t.Errorf("%+v: %v", got, err)
		}
	})
}

// An agent's end is never before its start, however quickly the agent was reaped.
func TestAnAgentEndsAfterItsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSpawner{}
		l := fakeLocal(t, f)
		a := spawn(t, l, adapters.AgentSpec{})
		f.last().end(Ending{Time: time.Now().Add(-time.Second)})
		synctest.Wait()
		if got, err := l.GetAgent(t.Context(), a.AgentID); err != nil || got.EndedAt.Before(got.StartedAt.Time) {
			t.Errorf("%+v: %v", got, err)
		}
	})
}

// TestRetention: ended agents are kept for an hour, running agents without limit.
func TestRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSpawner{}
		l := fakeLocal(t, f)
		spawn(t, l, adapters.AgentSpec{})
		f.last().end(Ending{})
		spawn(t, l, adapters.AgentSpec{})
		count := func() int {
			list, err := l.ListAgents(t.Context(), adapters.AgentFilter{})
			if err != nil {
				t.Fatal(err)
			}
			return len(list)
		}
		time.Sleep(keepFor - time.Second)
		if n := count(); n != 2 {
			t.Errorf("%d agents before the hour", n)
		}
		time.Sleep(2 * time.Second)
		if n := count(); n != 1 {
			t.Errorf("%d agents after it", n)
		}
		// Each of several is forgotten an hour after its own end.
		f.last().end(Ending{})
		time.Sleep(keepFor / 2)
		spawn(t, l, adapters.AgentSpec{})
		f.last().end(Ending{})
		for _, want := range []int{2, 1, 0} {
			if n := count(); n != want {
				t.Errorf("%d agents, want %d", n, want)
			}
			time.Sleep(keepFor/2 + time.Second)
		}
		if err := l.Disconnect(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestKeptMost: the newest keepMost agents are kept, and their output within the budget.
func TestKeptMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSpawner{}
		l := fakeLocal(t, f)
		var first, last string
		chunk := make([]byte, 32<<10)
		for i := range keepMost + 5 {
			last = spawn(t, l, adapters.AgentSpec{}).AgentID
			if i == 0 {
				first = last
			}
			if i >= keepMost-100 {
				for range 40 {
					f.last().command.Output(Stdout, chunk)
				}
			}
			f.last().end(Ending{})
			synctest.Wait()
		}
		if _, err := l.GetAgent(t.Context(), first); !errors.Is(err, adapters.ErrNotFound) || !strings.Contains(err.Error(), "no agent has the id") {
			t.Errorf("the oldest: %v", err)
		}
		if len(l.agents) != keepMost || len(l.ended) != keepMost || len(l.tokens) != 0 || l.held > keepBytes {
			t.Errorf("%d agents, %d ended, %d tokens, %d bytes", len(l.agents), len(l.ended), len(l.tokens), l.held)
		}
		sum := 0
		for _, a := range l.ended {
			sum += a.events.size()
		}
		if sum != l.held {
			t.Errorf("%d bytes are held, counted as %d", sum, l.held)
		}
		s, err := l.StreamEvents(t.Context(), last, 0)
		if err != nil {
			t.Fatal(err)
		}
		if e, err := s.Next(t.Context()); err != nil || e.Kind == adapters.AgentEventExit {
			t.Errorf("the youngest has lost its output: %+v: %v", e, err)
		}
	})
}

// A list of agents with as many labels as the contract allows would take agentinit's memory: JSON makes six
// bytes of "<". The newest agents are in the list.
func TestListIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSpawner{}
		l := fakeLocal(t, f)
		labels := map[string]string{}
		for i := range adapters.MaxAgentLabels {
			labels[fmt.Sprint(i)] = strings.Repeat("<", 1024)
		}
		var last string
		for range 60 {
			last = spawn(t, l, adapters.AgentSpec{Labels: labels}).AgentID
			f.last().end(Ending{})
			synctest.Wait()
		}
		list, err := l.ListAgents(t.Context(), adapters.AgentFilter{})
		if err != nil {
			t.Fatal(err)
		}
		if size := len(mustJSON(list)); size > keepShown+len(list) || size < keepShown/2 || list[len(list)-1].AgentID != last {
			t.Errorf("%d agents take %d bytes", len(list), size)
		}
		time.Sleep(keepFor)
		synctest.Wait()
		if l.shown != 0 || l.held != 0 || len(l.agents) != 0 {
			t.Errorf("later: %d bytes shown, %d held, %d agents", l.shown, l.held, len(l.agents))
		}
	})
}

// An agent that is forgotten because there are keepMost younger ones takes no memory any more: an
// orchestrator that starts agents all the time would fill the box with them.
func TestForgottenAgentsAreFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSpawner{}
		l := fakeLocal(t, f)
		var agents []weak.Pointer[agent]
		for range keepMost + 100 {
			id := spawn(t, l, adapters.AgentSpec{}).AgentID
			agents = append(agents, weak.Make(l.agents[id]))
			f.last().end(Ending{})
			synctest.Wait()
		}
		f.started = nil // the fake processes refer to their agents
		runtime.GC()
		alive := 0
		for _, a := range agents {
			if a.Value() != nil {
				alive++
			}
		}
		if alive > keepMost {
			t.Errorf("%d agents are in memory, %d are kept", alive, len(l.agents))
		}
		runtime.KeepAlive(l)
	})
}

func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSpawner{}
		l := fakeLocal(t, f)
		a := spawn(t, l, adapters.AgentSpec{})
		i := slices.IndexFunc(f.last().command.Env, func(kv string) bool { return strings.HasPrefix(kv, EnvAgentToken+"=") })
		_, token, _ := strings.Cut(f.last().command.Env[i], "=")
		if id, ok := l.AgentByToken(token); !ok || id != a.AgentID {
			t.Errorf("token of %q, %v", id, ok)
		}
		if _, ok := l.AgentByToken(""); ok {
			t.Error("no token is a token")
		}
		f.last().end(Ending{})
		synctest.Wait()
		if _, ok := l.AgentByToken(token); ok {
			t.Error("the token outlives its agent")
		}
	})
}

// TestSlowStart: a caller's deadline also holds while an exec hangs. If the agent starts later, it
// is killed.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSpawner{hold: make(chan struct{})}
		l := fakeLocal(t, f)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.SpawnAgent(ctx, adapters.AgentSpec{Command: "a"}); !errors.Is(err, adapters.ErrTimeout) {
			t.Fatal(err)
		}
		close(f.hold)
		synctest.Wait()
		list, err := l.ListAgents(t.Context(), adapters.AgentFilter{Status: adapters.AgentRunning})
		if err != nil || len(list) != 0 || l.running != 0 {
			t.Errorf("%+v: %v", list, err)
		}
	})
}

func TestSpawnErrorFreesThePlace(t *testing.T) {
	f := &fakeSpawner{fail: errNoExec}
	l := fakeLocal(t, f)
	for range 2 * defaultRunning {
		if _, err := l.SpawnAgent(t.Context(), adapters.AgentSpec{Command: "a"}); !errors.Is(err, adapters.ErrSpawn) {
			t.Fatal(err)
		}
	}
}

// TestInputBackPressure: input that an agent does not read is accepted up to a limit. An input is
// accepted completely or not at all.
func TestInputBackPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSpawner{}
		l := fakeLocal(t, f)
		a := spawn(t, l, adapters.AgentSpec{StdinOpen: true})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		chunk := make([]byte, adapters.MaxAgentInput)
		n := 0
		for ; ; n++ {
			if err := l.SendInput(ctx, a.AgentID, chunk, false); err != nil {
				if !errors.Is(err, adapters.ErrTimeout) {
					t.Error(err)
				}
				break
			}
			synctest.Wait()
		}
		if got := n * len(chunk); got < inputQueued || got > 2*inputQueued+len(chunk) {
			t.Errorf("%d bytes were taken", got)
		}
		f.last().end(Ending{})
		synctest.Wait()
		if err := l.SendInput(t.Context(), a.AgentID, nil, true); !errors.Is(err, adapters.ErrConflict) {
			t.Errorf("input for the dead: %v", err)
		}
	})
}

func TestGrantsNoSecret(t *testing.T) {
	for _, name := range []string{"MANAGEMENT_API_KEY", "AGENTBOX_NSEC", "NOSTR_PRIVATE_KEY", "RUVECTOR_PG_CONNINFO", "DATABASE_URL", "PG_DSN", "DSN"} {
		_, err := NewLocal(LocalConfig{Roots: []string{"/"}, Granted: []string{name}})
		if _, ok := errors.AsType[*adapters.ConfigError](err); !ok {
			t.Errorf("%s may be granted: %v", name, err)
		}
	}
	if _, err := NewLocal(LocalConfig{Roots: []string{"/"}, Granted: []string{"ANTHROPIC_API_KEY", "OPENAI_API_KEY"}}); err != nil {
		t.Error(err)
	}
}

func TestTemplates(t *testing.T) {
	ts := Templates{
		"piped": {Command: []string{"claude", "-p"}, Args: []string{"--json"}, StdinPipe: true, Timeout: 1500 * time.Millisecond, Directory: "sub"},
		"mark":  {Command: []string{"run"}, Args: []string{"--task={task}", "x"}},
		"last":  {Command: []string{"run"}, Environment: map[string]string{"A": "b"}},
	}
	for name, want := range map[string]string{
		"piped": `claude ["-p" "--json"] stdin "$(rm) 'x'" 2 s in "sub"`,
		"mark":  `run ["--task=$(rm) 'x'" "x"] stdin "" 0 s in ""`,
		"last":  `run ["$(rm) 'x'"] stdin "" 0 s in ""`,
	} {
		s, err := ts.Spec(name, "$(rm) 'x'")
		if got := fmt.Sprintf("%s %q stdin %q %d s in %q", s.Command, s.Args, s.Stdin, s.TimeoutS, s.Cwd); err != nil || got != want || s.Labels[LabelTemplate] != name {
			t.Errorf("%s: %s (%v)", name, got, err)
		}
	}
	if _, err := ts.Spec("none", ""); !errors.Is(err, adapters.ErrNotFound) {
		t.Error(err)
	}
	if got := ts["mark"].Args[0]; got != "--task={task}" {
		t.Errorf("the template itself became %q", got)
	}
}

// TestExitIsLast: the exit is the last event of an agent, even if its output is delivered later.
func TestExitIsLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSpawner{}
		l := fakeLocal(t, f)
		a := spawn(t, l, adapters.AgentSpec{})
		p := f.last()
		p.command.Output(Stdout, []byte("\xe2\x82"))
		p.end(Ending{Code: 1})
		synctest.Wait()
		p.command.Output(Stdout, []byte("late"))
		s, err := l.StreamEvents(t.Context(), a.AgentID, 0)
		if err != nil {
			t.Fatal(err)
		}
		var kinds []string
		for {
			e, err := s.Next(t.Context())
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			kinds = append(kinds, e.Kind)
		}
		if want := []string{"started", "stdout", "exit"}; !slices.Equal(kinds, want) {
			t.Errorf("got %v, want %v", kinds, want)
		}
	})
}
