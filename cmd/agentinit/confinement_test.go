package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
)

// A limit reaches the control socket with its source and with what it counts.
func TestLimitsInForce(t *testing.T) {
	const none = ^uint64(0)
	got := limitsInForce([]proc.Bound{
		{Name: "pids", Default: true, Of: proc.OfTree, Rlimit: proc.Rlimit{Soft: 225, Hard: 225}},
		{Name: "memory", Default: true, Of: proc.OfAll, Rlimit: proc.Rlimit{Soft: 9, Hard: 9}},
		{Name: "pids", Of: proc.OfUser, Rlimit: proc.Rlimit{Soft: 4, Hard: 5}},
		{Name: "memory", Of: proc.OfProcess, Rlimit: proc.Rlimit{Soft: 6, Hard: none}},
	})
	want := []api.ProgramLimit{
		{Name: "pids", Max: 225, Source: "default", Counts: "program"},
		{Name: "memory", Max: 9, Source: "default", Counts: "programs"},
		{Name: "pids", Max: 5, Soft: 4, Source: "manifest", Counts: "user"},
		{Name: "memory", Soft: 6, Source: "manifest", Counts: "process"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := limitsInForce(nil); len(got) != 0 {
		t.Errorf("no limits became %+v", got)
	}
}

func TestConfinements(t *testing.T) {
	m, _ := manifestOf(t, `
[supervisor.agents]
user = "1234"
umask = "027"
limits = { nofile = 100 }
sandbox = { seccomp = "default" }
[templates.plain]
command = "true"
[templates.own]
command = "true"
user = "77"
group = "88"
limits = { nproc = 5 }
guard = false
sandbox = { seccomp = "strict" }
`)
	all, err := confinements(m, bootstrap.ParseUsers(nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		uid, gid       uint32
		nofile, nproc  uint64
		guard          bool
		seccomp, umask string
	}{
		"":      {1234, 1234, 100, 0, true, "default", "27"},
		"plain": {1234, 1234, 100, 0, true, "default", "27"},
		"own":   {77, 88, 0, 5, false, "strict", "27"},
	} {
		c := all[name]
		if c.credential.UID != want.uid || c.credential.GID != want.gid || c.limits.Rlimits["nofile"].Soft != want.nofile ||
			c.limits.Rlimits["nproc"].Soft != want.nproc || c.guard != want.guard || c.sandbox.Seccomp != want.seccomp || *c.umask != 0o27 {
			t.Errorf("%q: %+v, want %+v", name, c, want)
		}
	}
	a := &agents{confinements: all}
	if c := a.confinement("gone"); c.credential.UID != 1234 {
		t.Errorf("an unknown template: %+v", c)
	}
	if c := (&agents{}).confinement(""); !c.guard || c.ofItsOwn != mayChangeUser() {
		t.Errorf("without a manifest: %+v", c)
	}
	m, _ = manifestOf(t, "[supervisor.agents]\nuser = \"nosuch\"")
	if _, err := confinements(m, bootstrap.ParseUsers(nil, nil)); err == nil || !strings.Contains(err.Error(), "nosuch") {
		t.Errorf("an unknown user: %v", err)
	}
}

func TestAgentsBoundsHold(t *testing.T) {
	cmd := proc.Command{Rlimits: map[string]proc.Rlimit{"nofile": {Soft: 50, Hard: 100}}}
	addLimits(&cmd, adapters.AgentLimits{OpenFiles: 1000, Processes: 7})
	if cmd.Rlimits["nofile"] != (proc.Rlimit{Soft: 100, Hard: 100}) || cmd.Rlimits["nproc"] != (proc.Rlimit{Soft: 7, Hard: 7}) {
		t.Errorf("got %+v", cmd.Rlimits)
	}
}

// If agentinit is root, each run of an agent gets another user of its own, and the environment
// matches that user.
func TestAgentsHaveUsersOfTheirOwn(t *testing.T) {
	if !mayChangeUser() {
		t.Skip("needs root to change users")
	}
	dir := t.TempDir() // its parent directory is closed to other users
	if err := os.Chown(dir, 0, 4321); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", "/root")
	owner, err := proc.New(proc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	seen := []string{}
	for run := range uint64(3) {
		cmd := proc.Command{
			Path: "/bin/sh", Args: []string{"sh", "-c", "id -u; id -G; echo $HOME; ls /root >/dev/null 2>&1 || echo closed"},
			Env: []string{"PATH=/usr/bin:/bin", "HOME=/root"}, Dir: dir,
		}
		if _, err := (confinement{guard: true, ofItsOwn: true}).dress(&cmd, run, adapters.AgentLimits{}); err != nil {
			t.Fatal(err)
		}
		r, err := owner.Run(t.Context(), cmd, 1000)
		lines := strings.Fields(string(r.Output))
		// The groups include the mark of the tree.
		n := len(lines)
		if err != nil || n < 5 || lines[2] != "4321" || lines[n-2] != dir || lines[n-1] != "closed" || slices.Contains(seen, lines[0]) {
			t.Errorf("got %q, %v; seen %v", lines, err, seen)
			continue
		}
		seen = append(seen, lines[0])
	}
}
