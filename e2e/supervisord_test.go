package e2e

import (
	"bufio"
	"context"
	"errors"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// supervisordBox has programs for the verbs of supervisorctl.
const supervisordBox = `
[supervisor]
listen = "127.0.0.1:PORT"
[programs.web]
command = ["sh", "-c", "i=0; while sleep 0.1; do i=$((i+1)); echo line $i; done"]
[programs.worker]
command = ["sleep", "1000"]
instances = 2
[programs.idle]
command = ["sleep", "1000"]
autostart = false
[programs.broken]
command = ["/nonexistent"]
autostart = false
required = false
`

// The supervisorctl of supervisord controls a box over XML-RPC, and gets from it what supervisord would
// say.
func TestSupervisorctlOfSupervisord(t *testing.T) {
	needsRoot(t)
	client, err := exec.LookPath("supervisorctl")
	if err != nil {
		t.Skip("needs supervisorctl of the Debian package supervisor")
	}
	b := boot(t, asPID1, supervisordBox).sealed()
	b.mustCtl("wait", "web", "worker", "--for", "running")
	url := "unix://" + b.socket()
	for _, test := range []struct {
		command string
		exit    int
		want    string // a regular expression of the whole output
	}{
		{"status web", 0, `web +RUNNING   pid \d+, uptime \d:\d\d:\d\d\n`},
		{"status", 3, `broken +STOPPED   Not started\nidle +STOPPED   Not started\nweb +RUNNING .*\nworker:0 +RUNNING .*\nworker:1 +RUNNING .*\n`},
		{"status nosuch", 4, `nosuch: ERROR \(no such process\)\n`},
		{"pid", 0, `1\n`},
		{"pid idle", 7, `0\n`},
		{"version", 0, `\S+\n`},
		{"avail", 0, `worker:0 +in use +auto +999:999\nworker:1 +in use +auto +999:999\nbroken +in use +manual +999:999\nidle +.*\nweb +.*\n`},
		{"start idle", 0, `idle: started\n`},
		{"start idle", 0, `idle: ERROR \(already started\)\n`},
		{"start broken", 7, `broken: ERROR \(spawn error\)\n`},
		{"start nosuch", 1, `nosuch: ERROR \(no such process\)\n`},
		{"signal HUP idle", 0, `idle: signalled\n`},
		{"signal BOGUS web", 1, `web: ERROR \(bad signal name\)\n`},
		{"stop worker:*", 0, `worker:0: stopped\nworker:1: stopped\n`},
		{"stop worker:0", 0, `worker:0: ERROR \(not running\)\n`},
		{"start worker:", 0, `worker:0: started\nworker:1: started\n`},
		{"restart web", 0, `web: stopped\nweb: started\n`},
		{"tail -7 web", 0, `(?s:.{7})\n`},
		{"tail nosuch", 1, `nosuch: ERROR \(no such process name\)\n`},
		// Nothing has stopped before the refusal.
		{"update", 1, `error: .*UNKNOWN_METHOD: use agentctl apply.*\n`},
		{"status worker:*", 0, `worker:0 +RUNNING .*\nworker:1 +RUNNING .*\n`},
		{"stop all", 0, `(?:\S+: stopped\n){4,5}`},
	} {
		out, err := exec.Command(client, append([]string{"-s", url}, strings.Fields(test.command)...)...).Output()
		code := 0
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != test.exit || !regexp.MustCompile("^"+test.want+"$").Match(out) {
			t.Errorf("supervisorctl %s: exit status %d, want %d\n%s", test.command, code, test.exit, out)
		}
	}

	b.mustCtl("start", "web")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	follow := exec.CommandContext(ctx, client, "-s", url, "tail", "-f", "web")
	out, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	lines := 0
	for in := bufio.NewScanner(out); lines < 20 && in.Scan(); { // more than the past that it begins with
		if strings.HasPrefix(in.Text(), "line ") {
			lines++
		}
	}
	cancel()
	_ = follow.Wait() // it was killed
	if lines < 20 {
		t.Errorf("tail -f: %d lines", lines)
	}
	b.stopsWell()
}
