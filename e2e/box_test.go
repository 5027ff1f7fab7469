// Package e2e runs the real binaries as an operator would: as PID 1 of a pid
// namespace, in an OCI container, and unprivileged below a directory. It holds
// tests only. They run under `make e2e`, which builds what they need.
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/foreign"
)

// patience bounds every wait for something that must happen. It is far above
// what is ever needed, on a slow machine that does other work too: a test that runs into it has found a
// hang.
const patience = 5 * time.Minute

func TestMain(m *testing.M) {
	if os.Getenv("AGENTINIT_E2E") == "" {
		fmt.Println("end-to-end tests run under `make e2e` (AGENTINIT_E2E=1)")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func binary(t testing.TB, name string) string {
	t.Helper()
	p, err := filepath.Abs(filepath.Join("..", "bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("%v: run `make e2e`", err)
	}
	return p
}

func needsRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// how says in which isolation a box runs.
type how int

const (
	asPID1       how = iota // PID 1 of a pid namespace
	unprivileged            // an ordinary process of another uid, a subreaper
	scarce                  // as PID 1, with 1024 descriptors and no more
	longUp                  // as PID 1 of a machine that has been up for a year
	fewPids                 // as PID 1 in a pids cgroup of fewPidsMax
	littleMemory            // as PID 1 in a memory cgroup of littleMemoryMax
	ownCgroup               // as PID 1, alone in a cgroup v2 of ownCgroupLimits
	sameUser                // as PID 1 of another uid, which all its programs have
	rootBare                // as PID 1 of root without capabilities
)

// year is one in seconds.
const year = "31536000"

// box is one running agentinit.
type box struct {
	t        testing.TB
	dir      string // its --root
	mode     how
	cmd      *exec.Cmd
	port     int
	metrics  int
	unread   *os.File            // its output where nobody reads it; nil otherwise
	node     *node               // the network it is in; nil: that of the test
	env      []string            // added to the test's own
	events   chan map[string]any // what it printed, parsed
	exited   chan struct{}
	exitCode int

	mu  sync.Mutex
	log bytes.Buffer
}

// boot starts agentinit with the manifest and returns at once. In the manifest
// TESTPROG, AGENTCTL, PORT, METRICS and CONTROL are replaced.
func boot(t testing.TB, mode how, manifest string, args ...string) *box {
	t.Helper()
	b := place(t, mode, manifest)
	b.start(args...)
	return b
}

// bootWith is boot with more environment variables, for tests that run at the same time as others.
func bootWith(t testing.TB, mode how, env []string, manifest string) *box {
	t.Helper()
	b := place(t, mode, manifest)
	b.env = env
	b.start()
	return b
}

// place is boot without the start.
func place(t testing.TB, mode how, manifest string) *box {
	t.Helper()
	b := &box{t: t, dir: t.TempDir(), mode: mode, port: freePort(t), metrics: freePort(t)}
	if err := os.Chmod(b.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(b.dir); strings.HasPrefix(dir, os.TempDir()) && dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(b.dir, "agentbox.toml")
	text := strings.NewReplacer("TESTPROG", binary(t, "testprog"), "PORT", strconv.Itoa(b.port),
		"METRICS", strconv.Itoa(b.metrics), "AGENTCTL", binary(t, "agentctl"), "CONTROL", b.socket()).Replace(manifest)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return b
}

// again boots a box that has ended, on what it left behind.
func (b *box) again() *box {
	b.t.Helper()
	next := &box{t: b.t, dir: b.dir, mode: b.mode, port: b.port, metrics: b.metrics, node: b.node, env: b.env}
	next.start()
	return next
}

func (b *box) start(args ...string) {
	t := b.t
	t.Helper()
	b.events, b.exited = make(chan map[string]any, 1<<20), make(chan struct{})
	argv := append([]string{binary(t, "agentinit"), "--manifest", filepath.Join(b.dir, "agentbox.toml"), "--root", b.dir}, args...)
	switch b.mode {
	case asPID1:
		needsRoot(t)
		argv = append([]string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"}, argv...)
	case fewPids, littleMemory:
		needsRoot(t)
		dir := ""
		if b.mode == fewPids {
			dir = cgroup(t, "pids", map[string]int{"pids.max": fewPidsMax})
		} else {
			dir = cgroup(t, "memory", map[string]int{"memory.limit_in_bytes": littleMemoryMax, "memory.max": littleMemoryMax})
		}
		argv = append([]string{"sh", "-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(dir, "cgroup.procs"),
			"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"}, argv...)
	case ownCgroup:
		needsRoot(t)
		dir := cgroup2(t, ownCgroupLimits)
		argv = append([]string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
			"sh", "-c", `echo 0 >"$0" && exec "$@"`, filepath.Join(dir, "cgroup.procs")}, argv...)
	case sameUser:
		needsRoot(t)
		argv = append([]string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
			"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set=-all", "--no-new-privs"}, argv...)
	case rootBare:
		needsRoot(t)
		argv = append([]string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
			"setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"}, argv...)
	case scarce:
		needsRoot(t)
		argv = append([]string{"prlimit", "--nofile=1024:1024", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"}, argv...)
	case longUp:
		needsRoot(t)
		if _, err := os.Stat("/proc/self/ns/time"); err != nil {
			t.Skipf("needs time namespaces: %v", err)
		}
		argv = append([]string{"unshare", "--time", "--monotonic", year, "--boottime", year, "--pid", "--fork", "--mount-proc", "--kill-child"}, argv...)
	case unprivileged:
		if os.Geteuid() == 0 {
			argv = append([]string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set=-all", "--no-new-privs"}, argv...)
		}
	}
	if b.node != nil {
		argv = append([]string{"ip", "netns", "exec", b.node.name}, argv...)
	}
	b.cmd = exec.Command(argv[0], argv[1:]...)
	b.cmd.Env = append(append(os.Environ(), "MANAGEMENT_API_HOST=127.0.0.1"), b.env...)
	if b.unread != nil {
		b.cmd.Stdout, b.cmd.Stderr = b.unread, b.unread
		if err := b.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go b.wait()
		t.Cleanup(b.cleanup)
		return
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	b.cmd.Stdout, b.cmd.Stderr = w, w
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	go b.read(r)
	t.Cleanup(b.cleanup)
}

func freePort(t testing.TB) int {
	t.Helper()
	port, err := foreign.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// read collects the output until its end, then the exit status.
func (b *box) read(r io.Reader) {
	lines := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		b.mu.Lock()
		b.log.Write(line)
		b.mu.Unlock()
		var e map[string]any
		// Lines of programs are no events. A million of them would fill the channel.
		if json.Unmarshal(line, &e) == nil && e["event"] != nil {
			b.events <- e
		}
		if err != nil {
			break
		}
	}
	close(b.events)
	b.wait()
}

// wait collects the exit status.
func (b *box) wait() {
	// An exit status other than 0 is an error here and an answer to the test.
	_ = b.cmd.Wait()
	b.exitCode = b.cmd.ProcessState.ExitCode()
	if ws, ok := b.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		b.exitCode = 128 + int(ws.Signal())
	}
	close(b.exited)
}

func (b *box) cleanup() {
	select {
	case <-b.exited:
	default:
		// --kill-child takes the namespace along, unless agentinit changed its user meanwhile
		// (prctl(2), PR_SET_PDEATHSIG).
		pid, err := b.initPID()
		_ = b.cmd.Process.Kill()
		if err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		<-b.exited
	}
	if b.t.Failed() {
		b.t.Logf("what the box printed:\n%s", b.tail(12_000))
	}
}

func (b *box) tail(n int) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := b.log.String()
	return text[max(0, len(text)-n):]
}

// event waits for the next event of that name and returns it.
func (b *box) event(name string) map[string]any {
	b.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case e, ok := <-b.events:
			if !ok {
				b.t.Fatalf("the box ended before %s", name)
			}
			if e["event"] == name {
				return e
			}
		case <-deadline:
			b.t.Fatalf("no %s", name)
		}
	}
}

func (b *box) sealed() *box {
	b.t.Helper()
	b.event("BootstrapCompleted")
	return b
}

// initPID is agentinit's pid as the host numbers it.
func (b *box) initPID() (int, error) {
	pid := b.cmd.Process.Pid
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return 0, err
	}
	if strings.TrimSpace(string(comm)) != "unshare" {
		return pid, nil // the shell of fewPids has become unshare by the time anything answers
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(children)))
}

func (b *box) signal(s syscall.Signal) {
	b.t.Helper()
	pid, err := b.initPID()
	if err == nil {
		err = syscall.Kill(pid, s)
	}
	if err != nil {
		b.t.Fatalf("cannot signal agentinit: %v", err)
	}
}

// ended waits for the end and returns the exit status.
func (b *box) ended() int {
	b.t.Helper()
	select {
	case <-b.exited:
		return b.exitCode
	case <-time.After(patience):
		b.t.Fatal("the box does not end")
		return -1
	}
}

// write replaces the manifest, as it stands.
func (b *box) write(manifest string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, "agentbox.toml"), []byte(manifest), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// manifest reads the manifest.
func (b *box) manifest() string {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.dir, "agentbox.toml"))
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text)
}

func (b *box) stop() int {
	b.t.Helper()
	b.signal(syscall.SIGTERM)
	return b.ended()
}

// stopsWell stops the box, which must end with status 0.
func (b *box) stopsWell() {
	b.t.Helper()
	if code := b.stop(); code != 0 {
		b.t.Errorf("ended with %d", code)
	}
}

func (b *box) socket() string { return filepath.Join(b.dir, "run/agentbox/agentinit.sock") }

func (b *box) sentinel() string { return filepath.Join(b.dir, "run/agentbox/bootstrap.done") }

// ctl runs agentctl and returns its standard output and status.
func (b *box) ctl(args ...string) (string, int) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary(b.t, "agentctl"), append([]string{"--socket", b.socket()}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil && cmd.ProcessState == nil {
		b.t.Fatal(err)
	}
	return string(out) + stderr.String(), cmd.ProcessState.ExitCode()
}

// mustCtl is ctl that must succeed.
func (b *box) mustCtl(args ...string) string {
	b.t.Helper()
	out, code := b.ctl(args...)
	if code != 0 {
		b.t.Fatalf("agentctl %s: status %d: %s", strings.Join(args, " "), code, out)
	}
	return out
}

// client makes requests from the box's own network.
func (b *box) client(limit time.Duration) *http.Client {
	if b.node == nil {
		return &http.Client{Timeout: limit}
	}
	return &http.Client{Timeout: limit, Transport: b.node.transport}
}

// get asks the management listener.
func (b *box) get(path string) (int, string) {
	b.t.Helper()
	status, body, err := getBy(b.client(20*time.Second), b.port, path)
	if err != nil {
		b.t.Fatal(err)
	}
	return status, body
}

func get(port int, path string) (int, string, error) {
	return getBy(&http.Client{Timeout: 20 * time.Second}, port, path)
}

func getBy(client *http.Client, port int, path string) (int, string, error) {
	resp, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// status is one program in `agentctl status --json`.
type status struct {
	Name     string `json:"name"`
	State    string `json:"state"`
	PID      int    `json:"pid"`
	Restarts uint64 `json:"restarts"`
	Reason   string `json:"reason"`
}

func (b *box) programs() map[string]status {
	b.t.Helper()
	out, _ := b.ctl("status", "--json")
	var answer struct {
		Programs []status `json:"programs"`
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		b.t.Fatalf("%v in %s", err, out)
	}
	all := map[string]status{}
	for _, p := range answer.Programs {
		all[p.Name] = p
	}
	return all
}

// hostPIDs maps pids inside the box's namespace to the host's.
func (b *box) hostPIDs() map[int]int {
	b.t.Helper()
	init, err := b.initPID()
	if err != nil {
		b.t.Fatal(err)
	}
	all := map[int]int{}
	for _, pid := range descendants(init) {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue // gone meanwhile
		}
		for line := range strings.Lines(string(data)) {
			if value, ok := strings.CutPrefix(line, "NSpid:"); ok {
				words := strings.Fields(value)
				inner, err := strconv.Atoi(words[len(words)-1])
				if err != nil {
					b.t.Fatal(err)
				}
				all[inner] = pid
			}
		}
	}
	return all
}

func children(pid int) (all []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // that thread has ended
		}
		for word := range strings.FieldsSeq(string(data)) {
			if child, err := strconv.Atoi(word); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

func descendants(pid int) (all []int) {
	for _, child := range children(pid) {
		all = append(append(all, child), descendants(child)...)
	}
	return all
}

// zombies counts those of the processes that have ended and were not reaped.
func zombies(pids []int) (n int) {
	for _, p := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
		if err == nil && strings.Contains(string(stat), ") Z ") {
			n++
		}
	}
	return n
}
