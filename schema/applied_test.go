package schema_test

import (
	"fmt"
	"testing"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/plan"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// TestChangesAreAsDocumented changes the value of each key and checks that the change has the
// effect that docs/manifest.md describes.
func TestChangesAreAsDocumented(t *testing.T) {
	values := map[string]string{
		"command": `["other"]`, "type": `"oneshot"`, "priority": `5`, "needs": `["db"]`, "autostart": `false`,
		"required": `true`, "restart": `"always"`, "exit_codes": `[0, 3]`, "start_seconds": `5`, "start_timeout": `5`,
		"backoff": `{initial = "2s"}`, "restart_limit": `{count = 3}`, "start_retries": `3`, "ready": `{tcp = "127.0.0.1:1"}`,
		"health": `{tcp = "127.0.0.1:1"}`, "stop": `["INT 1s"]`, "stop_signal": `"INT"`, "stop_timeout": `3`,
		"stop_command": `["stop"]`, "kill": `"group"`, "essential": `true`, "on_fatal": `"shutdown"`, "umask": `"0027"`,
		"directory": `"/srv"`, "environment": `{A = "b"}`, "pass_environment": `"none"`, "limits": `{nofile = 10}`,
		"guard": `false`, "sandbox": `{no_new_privileges = true}`, "logs": `{to = "none"}`, "hooks": `{pre_start = ["x"]}`,
		"stdin": `"pipe"`, "tty": `true`, "control": `true`,
	}
	// These keys do not change a specification here: they decide the set of programs, depend on
	// files or accounts, or belong to a schedule.
	apart := map[string]bool{
		"enabled": true, "when": true, "instances": true, "env_file": true, "user": true, "group": true, "groups": true,
		"schedule": true, "overlap": true, "timezone": true,
	}
	specs := func(line string) (all []program.Spec) {
		text := fmt.Sprintf("[programs.db]\ncommand = ['db']\n[programs.web]\n%s\n", line)
		m, doc, findings := schema.Load("agentbox.toml", []byte(text))
		if len(findings) > 0 {
			t.Fatal(findings)
		}
		p, _ := plan.Resolve(m, doc, plan.Facts{Env: map[string]string{"HOME": "/root"}})
		for _, spec := range p.Specs() {
			all = append(all, *spec)
		}
		return all
	}
	before := specs("command = ['web']")
	for _, key := range schema.ProgramKeys() {
		documented := schema.ProgramChange(key)
		if documented == "" {
			t.Errorf("%s: nobody says what its change takes (changes_test.go)", key)
		}
		value, ok := values[key]
		if !ok {
			if !apart[key] {
				t.Errorf("%s: this test has no value for it", key)
			}
			continue
		}
		line := "command = ['web']\n" + key + " = " + value
		if key == "command" {
			line = key + " = " + value
		}
		for _, c := range program.Diff(before, specs(line)) {
			if c.Program != "web" {
				continue
			}
			if restarts := c.Kind == program.Restart; c.Kind == program.Unchanged || restarts != (documented == schema.ChangeRestart) {
				t.Errorf("%s is documented as %s and takes %s (%v)", key, documented, c.Kind, c.Fields)
			}
		}
	}
}
