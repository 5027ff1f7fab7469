package contract

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// orchestratorCase is one case over a connected orchestrator without agents.
type orchestratorCase struct {
	name string
	run  func(t *testing.T, o orchestra)
}

// orchestra is a connected orchestrator and the test program that its agents run.
type orchestra struct {
	adapters.Orchestrator
	ctx  context.Context
	prog string
}

func orchestratorCases() []orchestratorCase {
	return []orchestratorCase{
		{"output and end", orchestratorOutput},
		{"status", orchestratorStatus},
		{"binary output", orchestratorBinary},
		{"limits", orchestratorLimits},
		{"spawn errors", orchestratorSpawnErrors},
		{"environment", orchestratorEnvironment},
		{"directory", orchestratorDirectory},
		{"input", orchestratorInput},
		{"resume", orchestratorResume},
		{"lagged", orchestratorLagged},
		{"stream ends", orchestratorStreamEnds},
		{"terminate", orchestratorTerminate},
		{"terminate a tree", orchestratorTree},
		{"terminate the deaf", orchestratorDeaf},
		{"what is left behind", orchestratorLeftBehind},
		{"timeout", orchestratorTimeout},
		{"list", orchestratorList},
		{"unknown ids", orchestratorUnknown},
		{"many at once", orchestratorMany},
	}
}

// Orchestrator runs the suite of the orchestrator slot. prog is the path of the test program.
// newAdapter makes a fresh, unconnected adapter without agents.
func Orchestrator(t *testing.T, prog string, newAdapter func(testing.TB) adapters.Orchestrator) {
	t.Run("life", func(t *testing.T) {
		a := newAdapter(t)
		describe(t, a, adapters.SlotOrchestrator)
		w := adapters.WrapOrchestrator(a, nil)
		life(t, a, func(ctx context.Context) error { _, err := w.GetAgent(ctx, "nobody"); return err })
	})
	if !newAdapter(t).Enabled() {
		t.Run("off", func(t *testing.T) { orchestratorOff(t, adapters.WrapOrchestrator(newAdapter(t), nil)) })
		return
	}
	for _, c := range orchestratorCases() {
		t.Run(c.name, func(t *testing.T) {
			a := newAdapter(t)
			ctx := connect(t, a)
			c.run(t, orchestra{adapters.WrapOrchestrator(a, nil), ctx, prog})
		})
	}
}

func orchestratorOff(t *testing.T, o adapters.Orchestrator) {
	ctx := context.Background()
	one := func(_ any, err error) error { return err }
	for name, err := range map[string]error{
		"spawnAgent": one(o.SpawnAgent(ctx, adapters.AgentSpec{Command: "true"})), "streamEvents": one(o.StreamEvents(ctx, "a", 0)),
		"listAgents": one(o.ListAgents(ctx, adapters.AgentFilter{})), "terminateAgent": one(o.TerminateAgent(ctx, "a", 0)),
		"getAgent": one(o.GetAgent(ctx, "a")), "sendInput": o.SendInput(ctx, "a", nil, true),
	} {
		if e := want(t, name, err, adapters.CodeDisabled); e.Retryable || e.HTTPStatus() != 501 || e.Method != name {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// spawn starts the test program with arguments.
func (o orchestra) spawn(t *testing.T, args ...string) adapters.Agent {
	t.Helper()
	return o.start(t, adapters.AgentSpec{Command: o.prog, Args: args})
}

func (o orchestra) start(t *testing.T, spec adapters.AgentSpec) adapters.Agent {
	t.Helper()
	a := ok[adapters.Agent](t, "spawn "+strings.Join(spec.Args, " "))(o.SpawnAgent(o.ctx, spec))
	if adapters.CheckID("agentId", a.AgentID) != nil || a.PID <= 0 || a.StartedAt.IsZero() || a.Labels == nil {
		t.Errorf("spawned: %+v", a)
	}
	return a
}

func orchestratorStatus(t *testing.T, o orchestra) {
	three := 3
	zero := 0
	for _, c := range []struct {
		args   []string
		status string
		code   *int
		signal adapters.NullString
	}{
		{[]string{"exit", "0"}, adapters.AgentExited, &zero, ""},
		{[]string{"exit", "3"}, adapters.AgentFailed, &three, ""},
		{[]string{"die", "9"}, adapters.AgentFailed, nil, "SIGKILL"},
	} {
		a := o.start(t, adapters.AgentSpec{Command: o.prog, Args: c.args, Name: "n", Labels: map[string]string{"k": "v"}})
		o.follow(t, a.AgentID, 0)
		got := ok[adapters.Agent](t, "get")(o.GetAgent(o.ctx, a.AgentID))
		what := fmt.Sprint(c.args)
		equal(t, what+" status", got.Status, c.status)
		equal(t, what+" exit code", got.ExitCode, c.code)
		equal(t, what+" signal", got.Signal, c.signal)
		equal(t, what+" command", got.Command, append([]string{o.prog}, c.args...))
		holds(t, got, facts{"name": got.Name == "n", "label": got.Labels["k"] == "v", "pid": got.PID == a.PID, "end": !got.EndedAt.IsZero()})
	}
}

func orchestratorLimits(t *testing.T, o orchestra) {
	args := func(n int) []string { return slices.Repeat([]string{"x"}, n) }
	env := func(n, size int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m["V"+strconv.Itoa(i)] = long(size)
		}
		return m
	}
	exact := func(n int) map[string]string { return map[string]string{"V": long(n - len("V="))} }
	for _, c := range []struct {
		name string
		spec adapters.AgentSpec
		code adapters.Code // "" = accepted
	}{
		{"most arguments", adapters.AgentSpec{Args: append([]string{"exit"}, args(adapters.MaxAgentArgs-1)...)}, ""},
		{"too many arguments", adapters.AgentSpec{Args: append([]string{"exit"}, args(adapters.MaxAgentArgs)...)}, adapters.CodeValidation},
		{"most variables", adapters.AgentSpec{Args: []string{"exit"}, Env: env(adapters.MaxAgentEnv, 1)}, ""},
		{"too many variables", adapters.AgentSpec{Args: []string{"exit"}, Env: env(adapters.MaxAgentEnv+1, 1)}, adapters.CodeValidation},
		{"most labels", adapters.AgentSpec{Args: []string{"exit"}, Labels: env(adapters.MaxAgentLabels, 1)}, ""},
		{"too many labels", adapters.AgentSpec{Args: []string{"exit"}, Labels: env(adapters.MaxAgentLabels+1, 1)}, adapters.CodeValidation},
		{"environment of the limit", adapters.AgentSpec{Args: []string{"exit"}, Env: exact(adapters.MaxAgentEnvBytes)}, ""},
		{"environment above the limit", adapters.AgentSpec{Args: []string{"exit"}, Env: exact(adapters.MaxAgentEnvBytes + 1)}, adapters.CodePayloadTooLarge},
		{"environment too large", adapters.AgentSpec{Args: []string{"exit"}, Env: env(2, 40<<10)}, adapters.CodePayloadTooLarge},
		{"command line too large", adapters.AgentSpec{Args: slices.Repeat([]string{long(120 << 10)}, 9)}, adapters.CodePayloadTooLarge},
		{"negative timeout", adapters.AgentSpec{Args: []string{"exit"}, TimeoutS: -1}, adapters.CodeValidation},
		{"NUL", adapters.AgentSpec{Args: []string{"a\x00b"}}, adapters.CodeValidation},
		{"a bad name", adapters.AgentSpec{Args: []string{"exit"}, Env: map[string]string{"A=B": ""}}, adapters.CodeValidation},
	} {
		c.spec.Command = o.prog
		a, err := o.SpawnAgent(o.ctx, c.spec)
		if c.code != "" {
			want(t, c.name, err, c.code)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		o.follow(t, a.AgentID, 0)
	}
	a := o.spawn(t, "sleep")
	want(t, "input too large", o.SendInput(o.ctx, a.AgentID, make([]byte, adapters.MaxAgentInput+1), false), adapters.CodePayloadTooLarge)
	_, err := o.TerminateAgent(o.ctx, a.AgentID, adapters.MaxGrace+1)
	want(t, "grace too long", err, adapters.CodeValidation)
	ok[adapters.Agent](t, "grace of the limit")(o.TerminateAgent(o.ctx, a.AgentID, adapters.MaxGrace))
}

func orchestratorSpawnErrors(t *testing.T, o orchestra) {
	dir := t.TempDir()
	for _, command := range []string{"", dir + "/missing", dir, "no-such-command-anywhere"} {
		_, err := o.SpawnAgent(o.ctx, adapters.AgentSpec{Command: command})
		if e := want(t, "spawn "+command, err, adapters.CodeSpawn); e.Fields["reason"] == nil || e.HTTPStatus() != 422 {
			t.Errorf("%q: %+v", command, e)
		}
	}
	if list := ok[[]adapters.Agent](t, "list")(o.ListAgents(o.ctx, adapters.AgentFilter{})); len(list) != 0 {
		t.Errorf("agents that never were: %+v", list)
	}
}

func orchestratorEnvironment(t *testing.T, o orchestra) {
	a := o.start(t, adapters.AgentSpec{Command: o.prog, Args: []string{"env"}, Env: map[string]string{
		"OWN": "mine", "AGENTBOX_AGENT_ID": "forged", "TZ": "Asia/Tokyo",
	}})
	stdout, _ := check(t, o.follow(t, a.AgentID, 0))
	got := map[string]string{}
	for line := range strings.Lines(stdout) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		got[name] = value
	}
	if got["OWN"] != "mine" || got["AGENTBOX_AGENT_ID"] != a.AgentID || len(got["AGENTBOX_AGENT_TOKEN"]) < 32 || got["TZ"] != "Asia/Tokyo" || got["PATH"] == "" {
		t.Errorf("environment: %v", got)
	}
	allowed := []string{"PATH", "HOME", "LANG", "TERM", "WORKSPACE", "TZ", "OWN", "AGENTBOX_AGENT_ID", "AGENTBOX_AGENT_TOKEN", "AGENTINIT_RUN", "PROVIDER_KEY"}
	for name := range got {
		if !slices.Contains(allowed, name) {
			t.Errorf("%s has reached an agent", name)
		}
	}
}

func orchestratorDirectory(t *testing.T, o orchestra) {
	for _, cwd := range []string{"/", "..", "../..", "/etc"} {
		_, err := o.SpawnAgent(o.ctx, adapters.AgentSpec{Command: o.prog, Args: []string{"exit"}, Cwd: cwd})
		want(t, "cwd "+cwd, err, adapters.CodeValidation)
	}
	_, err := o.SpawnAgent(o.ctx, adapters.AgentSpec{Command: o.prog, Args: []string{"exit"}, Cwd: "not-there"})
	want(t, "a missing directory", err, adapters.CodeSpawn)
}

func orchestratorList(t *testing.T, o orchestra) {
	if list := ok[[]adapters.Agent](t, "list")(o.ListAgents(o.ctx, adapters.AgentFilter{})); list == nil || len(list) != 0 {
		t.Errorf("no agents: %v", list)
	}
	var ids []string
	for i := range 3 {
		a := o.start(t, adapters.AgentSpec{Command: o.prog, Args: []string{"sleep"}, Labels: map[string]string{"n": strconv.Itoa(i), "all": ""}})
		ids = append(ids, a.AgentID)
	}
	ok[adapters.Agent](t, "terminate")(o.TerminateAgent(o.ctx, ids[1], 0))
	for _, c := range []struct {
		filter adapters.AgentFilter
		want   []int
	}{
		{adapters.AgentFilter{}, []int{0, 1, 2}},
		{adapters.AgentFilter{Status: adapters.AgentRunning}, []int{0, 2}},
		{adapters.AgentFilter{Status: adapters.AgentTerminated}, []int{1}},
		{adapters.AgentFilter{Status: adapters.AgentExited}, nil},
		{adapters.AgentFilter{Labels: map[string]string{"n": "2"}}, []int{2}},
		{adapters.AgentFilter{Labels: map[string]string{"all": "", "n": "1"}, Status: adapters.AgentRunning}, nil},
		{adapters.AgentFilter{Labels: map[string]string{"other": ""}}, nil},
	} {
		var got []int
		for _, a := range ok[[]adapters.Agent](t, "list")(o.ListAgents(o.ctx, c.filter)) {
			got = append(got, slices.Index(ids, a.AgentID))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, want %v", c.filter, got, c.want)
		}
	}
}

func orchestratorUnknown(t *testing.T, o orchestra) {
	one := func(_ any, err error) error { return err }
	for name, err := range map[string]error{
		"streamEvents": one(o.StreamEvents(o.ctx, "nobody", 0)), "terminateAgent": one(o.TerminateAgent(o.ctx, "nobody", 0)),
		"getAgent": one(o.GetAgent(o.ctx, "nobody")), "sendInput": o.SendInput(o.ctx, "nobody", []byte("x"), false),
	} {
		if e := want(t, name, err, adapters.CodeNotFound); e.Method != name || e.Fields["resource"] != "agent" || e.Fields["id"] != "nobody" {
			t.Errorf("%s: %+v", name, e)
		}
	}
	want(t, "a bad id", one(o.GetAgent(o.ctx, "no/body")), adapters.CodeValidation)
}

func orchestratorMany(t *testing.T, o orchestra) {
	const n = 40
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			a, err := o.SpawnAgent(o.ctx, adapters.AgentSpec{Command: o.prog, Args: []string{"print-lines", "3", strconv.Itoa(i)}})
			if err != nil {
				t.Error(err)
				return
			}
			s, err := o.StreamEvents(o.ctx, a.AgentID, 0)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			exits, text := 0, ""
			for {
				e, err := s.Next(o.ctx)
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Error(err)
					return
				}
				if e.Kind == adapters.AgentEventExit {
					exits++
				}
				text += string(output(t, e))
			}
			if want := fmt.Sprintf("%[1]d 1\n%[1]d 2\n%[1]d 3\n", i); exits != 1 || text != want {
				t.Errorf("agent %d: %d exits, output %q", i, exits, text)
			}
		})
	}
	wg.Wait()
	if list := ok[[]adapters.Agent](t, "list")(o.ListAgents(o.ctx, adapters.AgentFilter{Status: adapters.AgentExited})); len(list) != n {
		t.Errorf("%d of %d have exited", len(list), n)
	}
}
