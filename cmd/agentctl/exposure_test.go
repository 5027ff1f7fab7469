package main

import (
	"os"
	"testing"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

func TestExposure(t *testing.T) {
	root := api.Confinement{Capabilities: "000001ffffffffff", Bounding: "000001ffffffffff", Control: true}
	confined := api.Confinement{UID: 20001, Capabilities: "0000000000000000", Bounding: "0", NoNewPrivs: true, Seccomp: 2, Paths: true, Ports: true, Limited: []string{"nproc"}}
	shared := confined
	shared.Limited, shared.Limits = nil, []api.ProgramLimit{{Name: "pids", Max: 225, Source: api.LimitDefault, Counts: api.LimitOfProgram}}
	unshared := shared
	unshared.Limits = []api.ProgramLimit{
		{Name: "pids", Max: 300, Source: api.LimitDefault, Counts: api.LimitOfPrograms}, {Name: "memory", Max: 1, Source: api.LimitManifest, Counts: api.LimitOfProgram},
	}
	same := confined
	same.UID, same.BoxUID = 1000, 1000
	for _, c := range []struct {
		name    string
		x       api.Confinement
		score   float64
		verdict string
	}{{"root", root, 10, "UNSAFE"}, {"confined", confined, 0, "SAFE"}, {"of agentinit's user", same, 1, "OK"},
		{"with a share of the processes", shared, 0, "SAFE"}, {"with no share of its own", unshared, 10. / 15, "SAFE"}} {
		got := score(exposures(c.x))
		if got != c.score || verdict(got) != c.verdict {
			t.Errorf("%s: %v %s", c.name, got, verdict(got))
		}
	}
}

// A directory with the name of a program does not hide the program.
func TestIsProgram(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("web", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("manifest", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for arg, want := range map[string]bool{
		"web": true, "db": true, "app:0": true, "manifest": false, "box.toml": false, "./web": false, "-": false,
	} {
		if got := isProgram(arg); got != want {
			t.Errorf("isProgram(%q) = %t", arg, got)
		}
	}
}
