package contract

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// orchestratorCase is one case over a connected orchestrator without agents.
type orchestratorCase struct {
	name string
	run  func(t *testing.T, o orchestra)
}

// orchestra is a connected orchestrator and the program its agents run.
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

// Orchestrator runs the suite of the slot. prog is the test program; newAdapter
// makes a fresh, unconnected adapter without agents.
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

// follow returns an agent's events from a seq to the end.
func (o orchestra) follow(t *testing.T, id string, from uint64) []adapters.AgentEvent {
	t.Helper()
	s := ok[adapters.AgentStream](t, "stream")(o.StreamEvents(o.ctx, id, from))
	defer s.Close()
	var all []adapters.AgentEvent
	for {
		e, err := s.Next(o.ctx)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("after %d events: %v", len(all), err)
		}
		if e.AgentID != id || e.TS.IsZero() {
			t.Errorf("event: %+v", e)
		}
		all = append(all, e)
	}
}

// until returns the stream's output up to the first that contains text.
func (o orchestra) until(t *testing.T, id, text string) string {
	t.Helper()
	s := ok[adapters.AgentStream](t, "stream")(o.StreamEvents(o.ctx, id, 0))
	defer s.Close()
	var got strings.Builder
	for !strings.Contains(got.String(), text) {
		e, err := s.Next(o.ctx)
		if err != nil {
			t.Fatalf("waiting for %q after %q: %v", text, got.String(), err)
		}
		got.Write(output(t, e))
	}
	return got.String()
}

// output is what an output event carries, nothing for others.
func output(t *testing.T, e adapters.AgentEvent) []byte {
	t.Helper()
	if e.Kind != adapters.AgentEventStdout && e.Kind != adapters.AgentEventStderr {
		return nil
	}
	var p struct{ Data, Encoding string }
	if err := json.Unmarshal(e.Payload, &p); err != nil {
		t.Fatal(err)
	}
	data := []byte(p.Data)
	if p.Encoding != "" {
		var err error
		if data, err = base64.StdEncoding.DecodeString(p.Data); err != nil || p.Encoding != "base64" {
			t.Fatalf("payload %s: %v", e.Payload, err)
		}
	}
	if len(data) == 0 || len(data) > adapters.MaxAgentOutput {
		t.Errorf("a piece of %d bytes", len(data))
	}
	return data
}

// check demands of a whole stream what holds of each: started first, exit last
// and once, seq growing by one.
func check(t *testing.T, all []adapters.AgentEvent) (stdout, stderr string) {
	t.Helper()
	var out [2]strings.Builder
	for i, e := range all {
		if e.Seq != uint64(i)+1 {
			t.Fatalf("event %d has seq %d", i+1, e.Seq)
		}
		if (e.Kind == adapters.AgentEventStarted) != (i == 0) || (e.Kind == adapters.AgentEventExit) != (i == len(all)-1) {
			t.Fatalf("event %d of %d is %s", i+1, len(all), e.Kind)
		}
		if e.Kind == adapters.AgentEventStderr {
			out[1].Write(output(t, e))
		} else {
			out[0].Write(output(t, e))
		}
	}
	if len(all) < 2 {
		t.Fatalf("only %d events", len(all))
	}
	return out[0].String(), out[1].String()
}

func orchestratorOutput(t *testing.T, o orchestra) {
	a := o.spawn(t, "both")
	all := o.follow(t, a.AgentID, 0)
	stdout, stderr := check(t, all)
	if stdout != "to stdout\n" || stderr != "to stderr\n" {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
	if last := all[len(all)-1]; string(last.Payload) != `{"code":0,"signal":null}` {
		t.Errorf("exit: %s", last.Payload)
	}
	again := o.follow(t, a.AgentID, 0)
	if len(again) != len(all) {
		t.Errorf("a second reader got %d events, the first %d", len(again), len(all))
	}
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
		if got.Status != c.status || (got.ExitCode == nil) != (c.code == nil) || got.Signal != c.signal || got.EndedAt.IsZero() {
			t.Errorf("%v: %+v", c.args, got)
		}
		if c.code != nil && got.ExitCode != nil && *got.ExitCode != *c.code {
			t.Errorf("%v: exit code %d", c.args, *got.ExitCode)
		}
		if got.Name != "n" || got.Labels["k"] != "v" || !slices.Equal(got.Command, append([]string{o.prog}, c.args...)) || got.PID != a.PID {
			t.Errorf("%v: %+v", c.args, got)
		}
	}
}

// orchestratorBinary sends what is not UTF-8, and text of long runes in pieces
// that cut them: what comes back is cut nowhere.
func orchestratorBinary(t *testing.T, o orchestra) {
	runes := strings.Repeat(strings.Repeat("ä€😀", 1000)+"\n", 20)
	for _, text := range []string{"\xff\xfe bad\n", "nul \x00 nul\n", runes} {
		a := o.start(t, adapters.AgentSpec{Command: o.prog, Args: []string{"cat"}, StdinOpen: true})
		for rest := []byte(text); len(rest) > 0; {
			n := min(len(rest), 60<<10)
			if err := o.SendInput(o.ctx, a.AgentID, rest[:n], n == len(rest)); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		all := o.follow(t, a.AgentID, 0)
		if stdout, _ := check(t, all); stdout != text {
			t.Errorf("got %.60q of %d bytes, want %.60q of %d", stdout, len(stdout), text, len(text))
		}
		for _, e := range all {
			if text == runes && (strings.Contains(string(e.Payload), "base64") || strings.Contains(string(e.Payload), "\ufffd")) {
				t.Fatalf("text was cut inside a rune: %.100s", e.Payload)
			}
		}
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
	for _, c := range []struct {
		name string
		spec adapters.AgentSpec
		code adapters.Code // "" = taken
	}{
		{"most arguments", adapters.AgentSpec{Args: append([]string{"exit"}, args(adapters.MaxAgentArgs-1)...)}, ""},
		{"too many arguments", adapters.AgentSpec{Args: append([]string{"exit"}, args(adapters.MaxAgentArgs)...)}, adapters.CodeValidation},
		{"most variables", adapters.AgentSpec{Args: []string{"exit"}, Env: env(adapters.MaxAgentEnv, 1)}, ""},
		{"too many variables", adapters.AgentSpec{Args: []string{"exit"}, Env: env(adapters.MaxAgentEnv+1, 1)}, adapters.CodeValidation},
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

func orchestratorInput(t *testing.T, o orchestra) {
	a := o.start(t, adapters.AgentSpec{Command: o.prog, Args: []string{"cat"}, Stdin: "first\n"})
	if stdout, _ := check(t, o.follow(t, a.AgentID, 0)); stdout != "first\n" {
		t.Errorf("stdin: %q", stdout)
	}
	a = o.start(t, adapters.AgentSpec{Command: o.prog, Args: []string{"cat"}, Stdin: "one\n", StdinOpen: true})
	for i := range 20 {
		if err := o.SendInput(o.ctx, a.AgentID, fmt.Appendf(nil, "line %d\n", i), false); err != nil {
			t.Fatal(err)
		}
	}
	o.until(t, a.AgentID, "line 19\n")
	if err := o.SendInput(o.ctx, a.AgentID, []byte("last\n"), true); err != nil {
		t.Fatal(err)
	}
	stdout, _ := check(t, o.follow(t, a.AgentID, 0))
	if !strings.HasPrefix(stdout, "one\nline 0\nline 1\n") || !strings.HasSuffix(stdout, "line 19\nlast\n") {
		t.Errorf("input came as %q", stdout)
	}
	want(t, "input after the end", o.SendInput(o.ctx, a.AgentID, []byte("x"), false), adapters.CodeConflict)
	deaf := o.spawn(t, "sleep")
	want(t, "input without standard input", o.SendInput(o.ctx, deaf.AgentID, []byte("x"), false), adapters.CodeConflict)
	want(t, "input for nobody", o.SendInput(o.ctx, "nobody", nil, true), adapters.CodeNotFound)
}

func orchestratorResume(t *testing.T, o orchestra) {
	a := o.start(t, adapters.AgentSpec{Command: o.prog, Args: []string{"cat"}, StdinOpen: true})
	for i := range 5 {
		line := fmt.Sprintf("line %d\n", i)
		if err := o.SendInput(o.ctx, a.AgentID, []byte(line), false); err != nil {
			t.Fatal(err)
		}
		o.until(t, a.AgentID, line) // so that each is an event of its own
	}
	if err := o.SendInput(o.ctx, a.AgentID, nil, true); err != nil {
		t.Fatal(err)
	}
	all := o.follow(t, a.AgentID, 0)
	for from := range uint64(len(all)) {
		got := o.follow(t, a.AgentID, from+1)
		if len(got) != len(all)-int(from) || got[0].Seq != from+1 {
			t.Fatalf("from %d: %d events of %d", from+1, len(got), len(all))
		}
	}
	if got := o.follow(t, a.AgentID, uint64(len(all))+1); len(got) != 0 {
		t.Errorf("after the exit: %+v", got)
	}
}

func orchestratorLagged(t *testing.T, o orchestra) {
	a := o.spawn(t, "spam", strconv.Itoa(4<<20))
	o.wait(t, a.AgentID)
	all := o.follow(t, a.AgentID, 1)
	if all[0].Kind != adapters.AgentEventLagged || all[len(all)-1].Kind != adapters.AgentEventExit {
		t.Fatalf("%d events, first %s, last %s", len(all), all[0].Kind, all[len(all)-1].Kind)
	}
	var p struct {
		Dropped    uint64 `json:"dropped"`
		ResumeFrom uint64 `json:"resume_from"`
	}
	if err := json.Unmarshal(all[0].Payload, &p); err != nil || p.Dropped == 0 || p.ResumeFrom != all[1].Seq || p.Dropped != all[1].Seq-1 {
		t.Errorf("lagged %s before seq %d (%v)", all[0].Payload, all[1].Seq, err)
	}
	held := 0
	for _, e := range all {
		held += len(output(t, e))
	}
	if held == 0 || held > 1<<20 {
		t.Errorf("%d bytes are held", held)
	}
	if oldest := o.follow(t, a.AgentID, 0); oldest[0].Kind == adapters.AgentEventLagged {
		t.Error("whoever asks for the oldest kept has missed nothing")
	}
}

// wait returns when the agent has ended.
func (o orchestra) wait(t *testing.T, id string) adapters.Agent {
	t.Helper()
	s := ok[adapters.AgentStream](t, "stream")(o.StreamEvents(o.ctx, id, 0))
	defer s.Close()
	for {
		if _, err := s.Next(o.ctx); errors.Is(err, io.EOF) {
			return ok[adapters.Agent](t, "get")(o.GetAgent(o.ctx, id))
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func orchestratorStreamEnds(t *testing.T, o orchestra) {
	a := o.spawn(t, "ignore-term")
	s := ok[adapters.AgentStream](t, "stream")(o.StreamEvents(o.ctx, a.AgentID, 1000))
	brief, cancel := context.WithCancel(o.ctx)
	cancel()
	_, err := s.Next(brief)
	want(t, "next with an ended context", err, adapters.CodeTimeout)
	waiting := make(chan error)
	go func() { _, err := s.Next(o.ctx); waiting <- err }()
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	want(t, "next while closing", <-waiting, adapters.CodeUnavailable)
	_, err = s.Next(o.ctx)
	want(t, "next after close", err, adapters.CodeUnavailable)

	opened, stop := context.WithCancel(o.ctx)
	s = ok[adapters.AgentStream](t, "stream")(o.StreamEvents(opened, a.AgentID, 1000))
	defer s.Close()
	go func() { _, err := s.Next(o.ctx); waiting <- err }()
	stop()
	want(t, "next after the stream's own context", <-waiting, adapters.CodeTimeout)
}

func orchestratorTerminate(t *testing.T, o orchestra) {
	a := o.spawn(t, "trap-and-exit-after", "1", "7")
	o.until(t, a.AgentID, "ready")
	var wg sync.WaitGroup
	ends := make([]adapters.Agent, 8)
	for i := range ends {
		wg.Go(func() { ends[i] = ok[adapters.Agent](t, "terminate")(o.TerminateAgent(o.ctx, a.AgentID, -1)) })
	}
	wg.Wait()
	ends = append(ends, ok[adapters.Agent](t, "terminate again")(o.TerminateAgent(o.ctx, a.AgentID, 0)))
	for _, e := range ends {
		if e.Status != adapters.AgentTerminated || e.ExitCode == nil || *e.ExitCode != 7 || e.EndedAt != ends[0].EndedAt {
			t.Errorf("terminated: %+v", e)
		}
	}
	if stdout, _ := check(t, o.follow(t, a.AgentID, 0)); stdout != "ready\ntrapped\n" {
		t.Errorf("said %q", stdout)
	}
	done := o.spawn(t, "exit", "0")
	o.wait(t, done.AgentID)
	if e := ok[adapters.Agent](t, "terminate the ended")(o.TerminateAgent(o.ctx, done.AgentID, 0)); e.Status != adapters.AgentExited {
		t.Errorf("what ended by itself is %s", e.Status)
	}
}

// orchestratorTree ends an agent whose grandchild has left its session.
func orchestratorTree(t *testing.T, o orchestra) {
	a := o.spawn(t, "double-fork")
	said := strings.Fields(o.until(t, a.AgentID, "ready"))
	e := ok[adapters.Agent](t, "terminate")(o.TerminateAgent(o.ctx, a.AgentID, 100*time.Millisecond))
	if e.Status != adapters.AgentTerminated {
		t.Errorf("%+v", e)
	}
	gone(t, strconv.Itoa(a.PID), said[0])
}

// gone fails if a process is left; what a terminated agent was must be reaped
// already.
func gone(t *testing.T, pids ...string) {
	t.Helper()
	for _, pid := range pids {
		if _, err := os.Stat("/proc/" + pid); err == nil {
			status, _ := os.ReadFile("/proc/" + pid + "/status")
			t.Errorf("process %s is still there: %.200s", pid, status)
		}
	}
}

func orchestratorDeaf(t *testing.T, o orchestra) {
	for _, verb := range []string{"ignore-term", "stopped"} {
		a := o.spawn(t, verb)
		o.until(t, a.AgentID, "\n")
		e := ok[adapters.Agent](t, "terminate")(o.TerminateAgent(o.ctx, a.AgentID, 50*time.Millisecond))
		if e.Status != adapters.AgentTerminated || verb == "ignore-term" && e.Signal != "SIGKILL" {
			t.Errorf("%s: %+v", verb, e)
		}
		gone(t, strconv.Itoa(a.PID))
	}
	a := o.spawn(t, "ignore-term")
	o.until(t, a.AgentID, "ready")
	brief, cancel := context.WithTimeout(o.ctx, 50*time.Millisecond)
	defer cancel()
	_, err := o.TerminateAgent(brief, a.AgentID, time.Second)
	want(t, "terminate with a short deadline", err, adapters.CodeTimeout)
	if e := o.wait(t, a.AgentID); e.Status != adapters.AgentTerminated {
		t.Errorf("the end was given up with its caller: %+v", e)
	}
}

// orchestratorLeftBehind: an agent that ends and leaves children has not ended
// before they have.
func orchestratorLeftBehind(t *testing.T, o orchestra) {
	a := o.spawn(t, "setsid-escape")
	said := strings.TrimSpace(o.until(t, a.AgentID, "\n"))
	if e := o.wait(t, a.AgentID); e.Status != adapters.AgentExited {
		t.Errorf("%+v", e)
	}
	gone(t, said)
}

func orchestratorTimeout(t *testing.T, o orchestra) {
	a := o.start(t, adapters.AgentSpec{Command: o.prog, Args: []string{"sleep"}, TimeoutS: 1})
	all := o.follow(t, a.AgentID, 0)
	check(t, all)
	if e := all[len(all)-2]; e.Kind != adapters.AgentEventError || !strings.Contains(string(e.Payload), string(adapters.CodeTimeout)) {
		t.Errorf("before the exit: %+v", e)
	}
	if e := ok[adapters.Agent](t, "get")(o.GetAgent(o.ctx, a.AgentID)); e.Status != adapters.AgentFailed || e.Signal != "SIGTERM" {
		t.Errorf("%+v", e)
	}
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
