package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// descriptors counts the open descriptors of agentinit, without the ones it holds on its own threads:
// the Go runtime makes threads as it needs them.
func (b *box) descriptors() int {
	b.t.Helper()
	pid, err := b.initPID()
	if err != nil {
		b.t.Fatal(err)
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		b.t.Fatal(err)
	}
	n := 0
	for _, e := range entries {
		file, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err == nil && !strings.Contains(file, "/task/") { // an error: closed since ReadDir
			n++
		}
	}
	return n
}

// listeners tells which listeners are bound. It asks over the control socket, which does not depend
// on the ports.
func (b *box) listeners() map[string]bool {
	b.t.Helper()
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", b.socket())
		},
	}}
	resp, err := client.Get("http://box/health")
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	var health struct {
		Listeners []struct {
			Name  string `json:"name"`
			Bound bool   `json:"bound"`
		} `json:"listeners"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&health); err != nil {
		b.t.Fatal(err)
	}
	bound := map[string]bool{}
	for _, l := range health.Listeners {
		bound[l.Name] = l.Bound
	}
	return bound
}

// If a port is taken, only its listener is missing, and only until the port is free.
func TestTakenPortComesBack(t *testing.T) {
	occupant, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer occupant.Close()
	port := occupant.Addr().(*net.TCPAddr).Port
	b := boot(t, asPID1, fmt.Sprintf(`
[supervisor]
listen = "127.0.0.1:%d"
metrics_listen = "127.0.0.1:METRICS"
[programs.web]
command = ["TESTPROG", "sleep"]
required = true
`, port))
	b.sealed()
	if bound := b.listeners(); bound["management"] || !bound["metrics"] {
		t.Errorf("while the port is taken, bound are %v", bound)
	}
	if err := occupant.Close(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the listener comes back", func() bool { return b.listeners()["management"] })
	if status, body, err := get(port, "/livez"); err != nil || status != 200 {
		t.Errorf("/livez: %d %s %v", status, body, err)
	}
	b.stopsWell()
}

// agentinit listens on its ports before it starts any process. The first one is a command that probes the
// image. A program that listened there earlier could answer in the place of agentinit.
func TestPortsAreTakenBeforeAnyProcessStarts(t *testing.T) {
	b := place(t, asPID1, onlyWeb)
	file, err := os.OpenFile(filepath.Join(b.dir, "agentbox.toml"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range []int{b.port, b.metrics} {
		// 0A is the state LISTEN (proc_net_tcp(5)).
		fmt.Fprintf(file, `
[[artifacts]]
id = "port-%d"
command = ["grep", "-q", "0100007F:%04X 00000000:0000 0A", "/proc/net/tcp"]
required = true
`, port, port)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.sealed()
	b.stopsWell()
}

// If the sentinel is removed or altered, the box stays sealed and restores the sentinel.
func TestSentinelIsRestored(t *testing.T) {
	b := boot(t, asPID1, onlyWeb)
	b.sealed()
	path := b.sentinel()
	sealed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func() error{
		"removed":     func() error { return os.Remove(path) },
		"altered":     func() error { return os.WriteFile(path, []byte("{}"), 0o644) },
		"a link":      func() error { return replace(path, func() error { return os.Symlink("/etc/passwd", path) }) },
		"a directory": func() error { return replace(path, func() error { return os.Mkdir(path, 0o755) }) },
		"a pipe":      func() error { return replace(path, func() error { return syscall.Mkfifo(path, 0o666) }) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		e := b.event("SentinelAltered")
		if status, _ := b.get("/ready"); status != 200 {
			t.Errorf("%s: /ready is %d", name, status)
		}
		if restored, _ := e["restored"].(bool); !restored {
			if name != "a directory" { // agentinit does not delete a directory: it may hold files of others
				t.Errorf("%s: %v", name, e)
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			b.event("SentinelAltered")
		}
		if now, err := os.ReadFile(path); err != nil || string(now) != string(sealed) {
			t.Errorf("%s: now it is %q, %v", name, now, err)
		}
	}
	if passwd, err := os.ReadFile("/etc/passwd"); err != nil || strings.Contains(string(passwd), "boot_id") {
		t.Errorf("a link was followed: %v", err)
	}
}

func replace(path string, by func() error) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return by()
}

// agentinit closes descriptors that come with a notification at once. Invalid notifications do not
// affect other programs.
func TestNotifyAbuse(t *testing.T) {
	b := boot(t, asPID1, header+`
[programs.honest]
command = ["TESTPROG", "notify", "READY=1"]
required = true
ready = { notify = true, deadline = "60s" }
[programs.fds]
command = ["TESTPROG", "notify-fds", "300"]
ready = { notify = true, deadline = "60s" }
autostart = false
[programs.flood]
command = ["TESTPROG", "notify-flood", "20000"]
ready = { notify = true, deadline = "60s" }
autostart = false
`)
	b.sealed()
	before := b.descriptors()
	b.mustCtl("start", "--no-wait", "fds", "flood")
	for _, name := range []string{"fds", "flood"} {
		waitFor(t, name+" has sent everything", func() bool {
			return strings.Contains(b.mustCtl("logs", name), "sent")
		})
	}
	if p := b.programs()["honest"]; p.State != "RUNNING" {
		t.Errorf("disturbed: %+v", p)
	}
	b.mustCtl("restart", "honest") // its READY=1 is heard after the flood
	b.mustCtl("stop", "fds", "flood")
	// agentinit opens a few descriptors on first use; the test has sent 75,900.
	waitFor(t, fmt.Sprintf("no more than the %d descriptors of before are open", before), func() bool {
		return b.descriptors() <= before+10
	})
	b.stopsWell()
}

// agentinit accepts notifications of a program for that program only, whatever pid the program
// claims.
func TestNotifyImpersonation(t *testing.T) {
	b := boot(t, asPID1, header+`
[programs.silent]
command = ["TESTPROG", "sleep", "86397"]
ready = { notify = true, deadline = "10m" }
start_timeout = "10m"
[programs.liar]
command = ["TESTPROG", "notify-as", "86397"]
user = "65534"
group = "65534"
ready = { notify = true, deadline = "60s" }
needs = ["silent:started"]
`)
	b.event("ControlListening") // the seal waits for silent, which is never ready
	b.mustCtl("wait", "liar", "--for", "running")
	if out := b.mustCtl("logs", "liar"); !strings.Contains(out, "forged credentials: ") || !strings.Contains(out, "not permitted") {
		t.Errorf("the kernel let it forge its credentials: %s", out)
	}
	silent := b.programs()["silent"]
	if silent.State != "STARTING" || strings.Contains(silent.Reason, "forged") {
		t.Errorf("taken for ready by somebody else's word: %+v", silent)
	}
	b.stopsWell()
}

// talk sends bytes and returns the first line of the answer, or "" if the server closes the
// connection without an answer.
func talk(t testing.TB, port int, send string, half bool) string {
	t.Helper()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	// The server may close the connection early.
	_, _ = io.WriteString(c, send)
	if half {
		_ = c.(*net.TCPConn).CloseWrite()
	}
	line, _ := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line)
}

// Malformed HTTP gets an error or a closed connection, and both ports go on serving.
func TestHostileHTTP(t *testing.T) {
	b := boot(t, asPID1, onlyWeb)
	b.sealed()
	const get = "GET /livez HTTP/1.1\r\nHost: x\r\n"
	for _, port := range []int{b.port, b.metrics} {
		for _, c := range []struct {
			name, send string
			half       bool
			want       []string // status codes; "" is a closed connection
		}{
			{"header of 64 KiB and more", get + "X: " + strings.Repeat("a", 80<<10) + "\r\n\r\n", false, []string{"431", ""}},
			{"20,000 headers", get + strings.Repeat("X: a\r\n", 20_000) + "\r\n", false, []string{"431", ""}},
			{"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", false, []string{"400", "404", "405", "421", "505", ""}},
			{"upgrade to h2c", get + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n", false, []string{"200", "404"}},
			{"half-closed", get + "\r\n", true, []string{"200", "404"}},
			{"nothing, half-closed", "", true, []string{""}},
			{"two lengths", "POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde", false, []string{"400"}},
			{"length and chunks", "POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", false, []string{"400", "404", "405"}},
			{"negative length", "POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", false, []string{"400"}},
			{"no host", "GET /livez HTTP/1.1\r\n\r\n", false, []string{"400"}},
			{"two hosts", "GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", false, []string{"400"}},
			{"NUL", "GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n", false, []string{"400"}},
			{"pipelined", strings.Repeat(get+"\r\n", 2000), true, []string{"200", "404"}},
		} {
			line := talk(t, port, c.send, c.half)
			status := ""
			if words := strings.Fields(line); len(words) > 1 {
				status = words[1]
			}
			if !slices.Contains(c.want, status) {
				t.Errorf("port %d: %s: answered %q", port, c.name, line)
			}
		}
	}
	if status, body := b.get("/livez"); status != 200 {
		t.Errorf("/livez: %d %s", status, body)
	}
	b.stopsWell()
}

// Programs open 10,000 connections to the listeners. PID 1 keeps the descriptors that it needs for
// its own work, and clients still get answers.
func TestConnectionFlood(t *testing.T) {
	b := boot(t, scarce, header+`
[supervisor.defaults]
restart = "always"
backoff = { initial = "0s" }
restart_limit = { count = 0, window = "1m" }
start_seconds = 0
[programs.web]
command = ["TESTPROG", "sleep"]
instances = 20
[programs.flood]
command = ["TESTPROG", "flood", "334", "127.0.0.1:PORT", "127.0.0.1:METRICS", "CONTROL"]
instances = 10
autostart = false
`)
	b.sealed()
	before := b.programs()
	maps.DeleteFunc(before, func(name string, _ status) bool { return strings.HasPrefix(name, "flood") })
	b.mustCtl("start", "flood")
	waitFor(t, "the flood stands", func() bool { return strings.Count(b.mustCtl("logs", "flood"), "held") == 10 })
	t.Logf("%s agentinit has %d descriptors", b.mustCtl("logs", "flood"), b.descriptors())
	for _, name := range []string{"management", "metrics"} {
		if !b.listeners()[name] {
			t.Errorf("the %s listener is gone", name)
		}
	}
	if status, body := b.get("/livez"); status != 200 {
		t.Errorf("/livez: %d %s", status, body)
	}
	host := b.hostPIDs()
	for _, p := range before {
		if err := syscall.Kill(host[p.PID], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "all programs run again", func() bool {
		now, again := b.programs(), 0
		for name, was := range before {
			if p := now[name]; p.State == "RUNNING" && p.PID != was.PID {
				again++
			}
		}
		return again == len(before)
	})
	b.stopsWell()
}

// No deadline and no age is computed from the time since the machine started or from the time of
// day.
func TestClocksThatAreFarAhead(t *testing.T) {
	b := boot(t, longUp, header+`
[programs.web]
command = ["TESTPROG", "sleep"]
required = true
start_seconds = 0.2
[programs.weak]
command = ["TESTPROG", "exit", "3"]
start_seconds = 0
backoff = { initial = "50ms", max = "50ms" }
restart_limit = { count = 3, window = "1m" }
`)
	b.sealed()
	waitFor(t, "weak gives up", func() bool { return b.programs()["weak"].State == "FATAL" })
	if restarts := b.programs()["weak"].Restarts; restarts != 3 {
		t.Errorf("%d restarts, want 3", restarts)
	}
	var live struct {
		Uptime float64 `json:"uptime"`
	}
	_, body := b.get("/livez")
	if err := json.Unmarshal([]byte(body), &live); err != nil || live.Uptime > patience.Seconds() {
		t.Errorf("/livez: %s %v", body, err)
	}
	if _, metrics := b.get("/metrics"); !strings.Contains(metrics, `agentinit_program_up{program="web"} 1`) {
		t.Errorf("/metrics: %.400s", metrics)
	}
	b.stopsWell()
}
