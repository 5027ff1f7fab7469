package main

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
	"github.com/dreamlab-ai/agentinit/supervisor/control/listing"
)

// full is a disk that is full after room bytes.
type full struct{ room int }

var errFull = errors.New("no space left")

func (f *full) Write(p []byte) (int, error) {
	n := min(f.room, len(p))
	f.room -= n
	if n < len(p) {
		return n, errFull
	}
	return n, nil
}

// A finding has the same text from the validator, from a running box and in the box's log.
func TestFindingHasOneForm(t *testing.T) {
	for _, f := range []schema.Finding{
		{Code: "E016", File: "agentbox.toml", Line: 3, Column: 1, Message: "no such key", Hint: "did you mean needs?"},
		{Code: "E000", File: "agentbox.toml", Message: "cannot read"},
		{Code: "W120", Message: "long"},
	} {
		said := api.Finding{Code: f.Code, File: f.File, Line: f.Line, Column: f.Column, Message: f.Message, Hint: f.Hint}
		if said.String() != f.Error() {
			t.Errorf("%q and %q", said, f.Error())
		}
	}
}

// TestOutputThatCannotBeWritten: if the output is lost, no command exits with 0 or with the status
// for a wrong command line.
func TestOutputThatCannotBeWritten(t *testing.T) {
	manifest := filepath.Join(t.TempDir(), "agentbox.toml")
	if err := os.WriteFile(manifest, []byte("[programs.web]\ncommand = [\"/bin/web\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := controltest.New(controltest.Program("web"))
	furnish(b)
	socket := controltest.Serve(t, b.Own())
	none := func(string) (string, bool) { return "", false }
	for _, c := range []struct {
		args    string
		endless bool // has no end, or changes the box so that a second run says something else
	}{
		{"status", false}, {"status --json", false}, {"status --watch", true}, {"ready", false}, {"version", false}, {"boot", false},
		{"why web", false}, {"metrics", false}, {"log-level", false}, {"stop web", true}, {"apply", false}, {"events", false},
		{"events --follow", true}, {"logs --follow", true}, {"config schema", false}, {"config explain E016", false},
		{"config show " + manifest, false}, {"plan " + manifest, false}, {"plan --json " + manifest, false},
		{"generate env " + manifest, false}, {"completion bash", false}, {"--help", false},
	} {
		t.Run(c.args, func(t *testing.T) {
			args := append([]string{"--socket", socket}, strings.Fields(c.args)...)
			var all, stderr bytes.Buffer
			if !c.endless {
				if code := run(t.Context(), args, none, strings.NewReader(""), &all, &stderr); code != exitOK || all.Len() == 0 {
					t.Fatalf("with room: status %d, stdout %q, stderr %q", code, &all, &stderr)
				}
			}
			for _, room := range []int{0, max(0, all.Len()-1)} {
				stderr.Reset()
				code := run(t.Context(), args, none, strings.NewReader(""), &full{room}, &stderr)
				if code != exitFailure || stderr.String() != "agentctl: cannot write the output: no space left\n" {
					t.Errorf("room for %d bytes: status %d, stderr %q", room, code, &stderr)
				}
			}
		})
	}
}

// A request that takes long says what it waits for, and one that is answered soon does not.
func TestSlowRequestSaysWhatItWaitsFor(t *testing.T) {
	for took, want := range map[time.Duration]string{time.Second: "", 3 * time.Second: "agentctl: waiting until web is ready\n"} {
		synctest.Test(t, func(t *testing.T) {
			var stderr bytes.Buffer
			c := &cli{stderr: &stderr}
			refused := errors.New("refused")
			err := c.slow("web is ready", func() error { time.Sleep(took); return refused })
			if err != refused || stderr.String() != want {
				t.Errorf("after %s: %v, %q, want %q", took, err, stderr.String(), want)
			}
		})
	}
}

// The value of --env and --label is taken as it is, with its commas and quotes.
func TestPairsKeepTheirValue(t *testing.T) {
	var env map[string]string
	for _, text := range []string{"CMD=a,b=c", `SAY="hi, there"`, "EMPTY=", "CMD=x=1,y=2"} {
		if err := (*pairs)(&env).Set(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	if want := map[string]string{"CMD": "x=1,y=2", "SAY": `"hi, there"`, "EMPTY": ""}; !maps.Equal(env, want) {
		t.Errorf("got %q, want %q", env, want)
	}
	for _, text := range []string{"A", "=x", ""} {
		if err := (*pairs)(&env).Set(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// Zombies count toward the limit of processes, so an operator must see them beside the processes.
func TestUseNamesZombies(t *testing.T) {
	p := listing.Program{Program: api.Program{PID: 7, Usage: &api.ProgramUsage{Processes: 1, Zombies: 19}}}
	if s := useText(p); !strings.HasSuffix(s, ", processes 1, threads 0, open files 0, zombies 19") {
		t.Error(s)
	}
	p.Usage.Zombies = 0
	if s := useText(p); strings.Contains(s, "zombies") {
		t.Error(s)
	}
}
