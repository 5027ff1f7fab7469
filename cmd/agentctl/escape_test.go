package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// hostile is a program's text with characters that a terminal obeys.
const hostile = "a\u0085\u009b2J\u2028\u202eb\x7f\u2066ä漢"

// JSON output holds no character that a terminal obeys, and a JSON reader gets the program's text.
func TestJSONHoldsNoCharactersThatTerminalsObey(t *testing.T) {
	p := controltest.Program("web")
	p.State, p.Reason, p.Text = program.Fatal, hostile, hostile
	b := controltest.New(p)
	furnish(b)
	for i := range b.Lines {
		b.Lines[i].Text = hostile
	}
	b.Bus.Publish(event.Event{Level: event.Warn, Stage: "supervisor", Name: "X", Fields: map[string]any{"command": hostile}})
	b.BootData.Phases[1].Detail, b.BootData.Artifacts[0].Reason = hostile, hostile
	b.Crashes = map[string]supervisor.Crash{"web": {Program: "web", CoreAt: hostile}}
	b.Result.Reason = hostile
	socket := controltest.Serve(t, b.Own())
	manifest := t.TempDir() + "/agentbox.toml"
	text := "[programs.web]\ncommand = [\"/bin/web\"]\nenvironment = { A = \"" + strings.ReplaceAll(hostile, "\x7f", "\\u007F") + "\" }\nnosuch = 1\n"
	if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	none := func(string) (string, bool) { return "", false }
	// boot --trace writes the escapes of printable; a finding has no text of the manifest's values.
	for args, carries := range map[string]bool{
		"status --json": true, "status -o json": true, "why web --json": true, "events --json": true, "logs --json": true,
		"crash --json": true, "boot --json": true, "boot --trace": false, "apply --json": true,
		"config validate --format sarif " + manifest: false, "config validate --json " + manifest: false,
	} {
		t.Run(args, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			run(t.Context(), append([]string{"--socket", socket}, strings.Fields(args)...), none, strings.NewReader(""), &stdout, &stderr)
			out := stdout.Bytes()
			if len(out) == 0 || bytes.ContainsFunc(out, func(r rune) bool { return r == 0x7f || escape.Obeyed(r) }) {
				t.Errorf("stdout %q, stderr %q", out, &stderr)
			}
			found := false
			for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
				var v any
				if err := d.Decode(&v); err != nil {
					t.Fatalf("%v in %s", err, out)
				}
				found = found || holds(v, hostile)
			}
			if found != carries {
				t.Errorf("the text of the program is in it: %v: %s", found, out)
			}
		})
	}
}

// holds tells whether a string in decoded JSON contains the text.
func holds(v any, text string) bool {
	switch v := v.(type) {
	case string:
		return strings.Contains(v, text)
	case []any:
		for _, e := range v {
			if holds(e, text) {
				return true
			}
		}
	case map[string]any:
		for _, e := range v {
			if holds(e, text) {
				return true
			}
		}
	}
	return false
}

// A table holds no character that a terminal obeys, whoever chose its texts.
func TestTablesHoldNoCharactersThatTerminalsObey(t *testing.T) {
	var out bytes.Buffer
	c := &cli{stdout: &out, lookupEnv: func(string) (string, bool) { return "", false }}
	c.table(titled("NAME", "TEXT"), [][]cell{texts(hostile, hostile)})
	if text := out.String(); strings.ContainsFunc(text, func(r rune) bool { return r == 0x7f || escape.Obeyed(r) }) || strings.Count(text, `a\x85`) != 2 {
		t.Errorf("%q", text)
	}
}
