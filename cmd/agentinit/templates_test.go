package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/orchestrator"
	"github.com/dreamlab-ai/agentinit/adapters/tasks"
	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// manifestOf loads a manifest that must be valid.
func manifestOf(t *testing.T, text string) (*schema.Manifest, *schema.Document) {
	t.Helper()
	m, doc, findings := schema.Load("agentbox.toml", []byte(text))
	if len(findings) > 0 {
		t.Fatalf("%v", findings)
	}
	return m, doc
}

const templateManifest = `
[templates.shell]
command = ["/bin/sh", "-c"]
args = ['echo "$GREETING in ${PWD##*/}: $0"; grep NoNewPrivs /proc/self/status', "{task}"]
environment = { GREETING = "hello" }
directory = "sub"
sandbox = { no_new_privileges = true }
[templates.piped]
command = "cat"
stdin = "pipe"
[templates.endless]
command = ["sleep", "1000"]
timeout = "1s"
[templates.caged]
command = ["true"]
sandbox = { seccomp = "strict" }
[templates.misplaced]
command = ["true"]
sandbox = { write = ["/no/such/directory"] }
[templates.audited]
command = ["true"]
sandbox = { seccomp = "strict", mode = "audit" }
[templates.refused]
command = ["sh", "-c", "mount -t tmpfs none /; mount -t tmpfs none /; echo over"]
sandbox = { seccomp = "default" }
[templates.free]
command = ["sh", "-c", "echo over"]
sandbox = { seccomp = "default" }
[templates.open]
command = ["true"]
sandbox = { seccomp = "strict", mode = "off" }
`

// TestTemplates runs each key of a template through tasks and the real process manager, and checks
// the result.
func TestTemplates(t *testing.T) {
	m, _ := manifestOf(t, templateManifest)
	workspace := t.TempDir()
	if err := os.Chmod(filepath.Dir(workspace), 0o755); err != nil { // agents have their own users
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(workspace, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	spawner := nursery(t, nil)
	var err error
	if spawner.confinements, err = confinements(m, bootstrap.ParseUsers(nil, nil)); err != nil {
		t.Fatal(err)
	}
	skipped := make(chan string, 4)
	bus := event.NewBus(100)
	spawner.refusals = supervisor.NewAgentRefusals(bus)
	spawner.skipped = func(template string, what error) { skipped <- template + ": " + what.Error() }
	slot := connected(t, manager(t, orchestrator.LocalConfig{Spawner: spawner, Roots: []string{workspace}}))
	manager, err := tasks.New(tasks.Config{
		Dir: filepath.Join(workspace, "tasks"), Templates: templates(m), Orchestrator: slot,
		Report: func(id string, err error) { t.Errorf("task %s: %v", id, err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	for name, c := range map[string]struct{ task, prints, status string }{
		"shell":   {"it's $(me)", "hello in sub: it's $(me)\nNoNewPrivs:\t1\n", adapters.AgentExited},
		"piped":   {"by the pipe", "by the pipe", adapters.AgentExited},
		"endless": {"1", "", adapters.AgentFailed},
		"audited": {"x", "", adapters.AgentExited},
		"open":    {"x", "", adapters.AgentExited},
		"refused": {"x", "over\n", adapters.AgentExited},
		"free":    {"x", "over\n", adapters.AgentExited},
	} {
		t.Run(name, func(t *testing.T) {
			accepted, err := manager.Start(t.Context(), tasks.Request{Agent: name, Task: c.task})
			if err != nil {
				t.Fatal(err)
			}
			list, err := slot.ListAgents(t.Context(), adapters.AgentFilter{Labels: map[string]string{"task": accepted.ID}})
			if err != nil || len(list) != 1 {
				t.Fatalf("%v %v", list, err)
			}
			out := outputOf(t, slot, list[0].AgentID)
			a, err := slot.GetAgent(t.Context(), list[0].AgentID)
			if got := a.RefusedCalls; (got > 0) != (name == "refused") {
				t.Errorf("%d calls were refused", got)
			}
			if err != nil || out != c.prints || a.Status != c.status || a.Labels[orchestrator.LabelTemplate] != name {
				t.Errorf("printed %q, ended %+v (%v)", out, a, err)
			}
		})
	}
	if _, err := manager.Start(t.Context(), tasks.Request{Agent: "misplaced", Task: "x"}); !errors.Is(err, adapters.ErrSpawn) || !strings.Contains(err.Error(), "/no/such/directory") {
		t.Errorf("a sandbox that cannot be applied: %v", err)
	}
	close(skipped)
	var told []string
	for s := range skipped {
		told = append(told, s)
	}
	if len(told) != 1 || !strings.HasPrefix(told[0], "audited: ") {
		t.Errorf("told of %q", told)
	}
	if kinds := spawner.refusals.List(); len(kinds) != 1 || len(kinds["refused"]) != 1 || kinds["refused"][0].Call != "mount" || kinds["refused"][0].Count != 2 {
		t.Errorf("refused: %+v", kinds)
	}
	if e, ok := bus.Watch(0).TryNext(); !ok || e.Name != supervisor.EventRefused || e.Fields["template"] != "refused" || e.Fields["agent"] == "" || e.Fields["call"] != "mount" {
		t.Errorf("told %+v", e)
	}
	if got := confinedTemplates(spawner.confinements); !got["shell"] || !got["caged"] || got["audited"] || got["open"] || got["piped"] {
		t.Errorf("confined: %v", got)
	}
}

func TestPodAddress(t *testing.T) {
	for written, want := range map[string]string{
		``:                                     "http://127.0.0.1:8484",
		`port = 9000`:                          "http://127.0.0.1:9000",
		`bind = "0.0.0.0"`:                     "http://127.0.0.1:8484",
		"bind = \"::\"\nport = 1":              "http://[::1]:1",
		`bind = "[fd00::7]"`:                   "http://[fd00::7]:8484",
		`bind = "pods.example"`:                "http://pods.example:8484",
		"base_url = \"\"\nport = 9001":         "http://127.0.0.1:9001",
		`base_url = "https://pods.example/x/"`: "https://pods.example/x/",
	} {
		m, doc := manifestOf(t, "[integrations.solid_pod_rs]\n"+written)
		if got := podBase(m.Integrations.SolidPodRS, doc); got != want {
			t.Errorf("%q: %s, want %s", written, got, want)
		}
	}
}

// outputOf returns the output of an agent until its end.
func outputOf(t *testing.T, o adapters.Orchestrator, id string) string {
	t.Helper()
	s, err := o.StreamEvents(t.Context(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var out strings.Builder
	for {
		e, err := s.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return out.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		var payload struct{ Data string }
		if e.Kind == adapters.AgentEventStdout && json.Unmarshal(e.Payload, &payload) == nil {
			out.WriteString(payload.Data)
		}
	}
}
