package e2e

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
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
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
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

// needsChildutils returns a Python that has supervisord's library for event listeners.
func needsChildutils(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"/usr/bin/python3", "python3"} {
		check := exec.Command(name, "-c", "from supervisor import childutils")
		check.Dir = "/" // this repository has a directory of that name
		if check.Run() == nil {
			return name
		}
	}
	t.Skip("needs the Python library of the Debian package supervisor")
	return ""
}

// writingListener is an event listener that writes what it gets to a file.
const writingListener = `
import sys
from supervisor import childutils
out = open(sys.argv[1], "a", buffering=1)
while True:
    headers, payload = childutils.listener.wait(sys.stdin, sys.stdout)
    print(" ".join("%s:%s" % h for h in headers.items()), "|", payload.strip(), file=out)
    childutils.listener.ok(sys.stdout)
`

// Programs of one life under both supervisors: one that is stopped, two that crash, one that ends, and two
// that never become RUNNING.
const (
	livesInSupervisord = `
[supervisord]
nodaemon=true
logfile=DIR/log
pidfile=DIR/pid
[unix_http_server]
file=DIR/socket
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[eventlistener:watch]
command=PYTHON DIR/listener.py DIR/events
events=PROCESS_STATE,SUPERVISOR_STATE_CHANGE
buffer_size=100
[program:web]
command=sleep 1000
[program:crash]
command=sh -c "sleep 2; exit 3"
autorestart=false
[program:again]
command=sh -c "test -e DIR/once && exec sleep 1000; touch DIR/once; sleep 2; exit 3"
[program:done]
command=sleep 2
autorestart=false
[program:broken]
command=false
startretries=1
[program:missing]
command=/nonexistent
startretries=1
[program:slow]
command=sh -c "trap 'sleep 2; exit' TERM; while true; do sleep 0.1; done"
`
	lives = "web again crash done broken missing"
)

// An event listener gets from agentinit what it gets from supervisord, with the same lines.
func TestEventListenersAsInSupervisord(t *testing.T) {
	needsRoot(t)
	python := needsChildutils(t)
	original, err := exec.LookPath("supervisord")
	if err != nil {
		t.Skip("needs supervisord of the Debian package supervisor")
	}
	dirs := make([]string, 2)
	for i := range dirs {
		dirs[i] = t.TempDir()
		if err := os.WriteFile(filepath.Join(dirs[i], "listener.py"), []byte(writingListener), 0o644); err != nil {
			t.Fatal(err)
		}
		config := strings.NewReplacer("DIR", dirs[i], "PYTHON", python).Replace(livesInSupervisord)
		if err := os.WriteFile(filepath.Join(dirs[i], "s.conf"), []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	daemon := exec.Command(original, "-c", filepath.Join(dirs[0], "s.conf"))
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = daemon.Process.Kill(); _ = daemon.Wait() })
	manifest, err := exec.Command(binary(t, "agentctl"), "import", "supervisord", filepath.Join(dirs[1], "s.conf")).Output()
	if err != nil {
		t.Fatal(err)
	}
	b := boot(t, asPID1, strings.NewReplacer(`"agentctl", "listen"`, `"AGENTCTL", "listen"`, "[supervisor]\n", "[supervisor]\nlisten = \"127.0.0.1:PORT\"\n").Replace(string(manifest))).sealed()
	var got []map[string][]string
	for i, dir := range dirs {
		file := filepath.Join(dir, "events")
		waitForLines(t, file, "processname:crash .* expected:0", "processname:done .* expected:1", "processname:again .*from_state:EXITED", "processname:broken groupname:broken from_state:BACKOFF$",
			"processname:missing groupname:missing from_state:BACKOFF$", "PROCESS_STATE_RUNNING .*processname:web", "PROCESS_STATE_RUNNING .*processname:slow", "PROCESS_STATE_RUNNING .*processname:again(.|\n)*PROCESS_STATE_RUNNING .*processname:again")
		socket := filepath.Join(dir, "socket")
		if i == 1 {
			socket = b.socket()
		}
		for _, command := range [][]string{{"stop", "web", "again"}, {"shutdown"}} {
			ctl := exec.Command(binary(t, "agentctl"), append([]string{"-s", "unix://" + socket}, command...)...)
			ctl.Args[0] = "supervisorctl"
			if i == 0 {
				ctl = exec.Command("supervisorctl", append([]string{"-s", "unix://" + socket}, command...)...)
			}
			if out, err := ctl.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		waitForLines(t, file, "SUPERVISOR_STATE_CHANGE_STOPPING") // it comes while the program slow stops
		got = append(got, eventsByProgram(t, file))
	}
	for _, name := range append(strings.Fields(lives), "") {
		if theirs, ours := strings.Join(got[0][name], "\n"), strings.Join(got[1][name], "\n"); theirs != ours {
			t.Errorf("%s: supervisord\n%s\nagentinit\n%s", name, theirs, ours)
		}
	}
}

// waitForLines waits until a file has what all expressions match.
func waitForLines(t *testing.T, file string, expressions ...string) {
	t.Helper()
	for _, e := range expressions {
		waitFor(t, file+" has "+e, func() bool {
			text, err := os.ReadFile(file)
			return err == nil && regexp.MustCompile("(?m)"+e).Match(text)
		})
	}
}

// eventsByProgram returns the events in a file by program, "" for those of no program, without the numbers
// that differ in each run.
func eventsByProgram(t *testing.T, file string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	events := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		name := ""
		if m := regexp.MustCompile(`processname:(\S+)`).FindStringSubmatch(line); m != nil {
			name = m[1]
		}
		line = regexp.MustCompile(`server:\S+`).ReplaceAllString(line, "server:S")
		line = regexp.MustCompile(`\b(serial|poolserial|pid|len):[1-9]\d*|\b(serial|poolserial|len):0`).ReplaceAllString(line, "$1$2:N")
		events[name] = append(events[name], strings.TrimSpace(line))
	}
	return events
}

// The event listener in the documentation works as it stands there.
func TestEventListenerOfTheDocumentation(t *testing.T) {
	needsRoot(t)
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3")
	}
	page, err := os.ReadFile(filepath.Join("..", "docs", "migrate", "supervisord.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := func(language string) string {
		m := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindSubmatch(page)
		if m == nil {
			t.Fatalf("the page has no block of %s", language)
		}
		return string(m[1])
	}
	script := filepath.Join(t.TempDir(), "crashes.py")
	if err := os.WriteFile(script, []byte(block("python")), 0o755); err != nil {
		t.Fatal(err)
	}
	manifest := strings.NewReplacer(`"agentctl"`, `"AGENTCTL"`, "/usr/local/bin/crashes.py", script).Replace(block("toml"))
	b := boot(t, asPID1, manifest+`
[supervisor]
listen = "127.0.0.1:PORT"
[programs.web]
command = ["sh", "-c", "exit 3"]
start_seconds = 0
restart = "never"
required = false
[programs.fine]
command = ["true"]
start_seconds = 0
restart = "never"
required = false
`).sealed()
	waitFor(t, "the listener reports the crash", func() bool { return strings.Contains(b.mustCtl("logs", "crashes"), "web has crashed") })
	if out := b.mustCtl("logs", "crashes"); strings.Contains(out, "fine") || strings.Contains(out, "READY") {
		t.Errorf("the listener printed\n%s", out)
	}
	// It goes on after a restart.
	b.mustCtl("restart", "crashes")
	b.ctl("restart", "web") // it exits with 1, because web crashes
	waitFor(t, "the listener reports the next crash", func() bool { return strings.Count(b.mustCtl("logs", "crashes", "-n", "100"), "web has crashed") == 2 })
}
