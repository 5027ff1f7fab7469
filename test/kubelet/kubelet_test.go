// Package kubelet_test asks a real box the probes of its generated pod with the
// code that the kubelet itself asks with: its timeouts, redirects and user agent.
// It is a module of its own, because Kubernetes has no place among the product's
// dependencies.
package kubelet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kubernetes/pkg/probe"
	execprobe "k8s.io/kubernetes/pkg/probe/exec"
	httpprobe "k8s.io/kubernetes/pkg/probe/http"
	"k8s.io/utils/exec"
)

// patience bounds every wait for something that must happen.
const patience = 60 * time.Second

// podIP is where the box listens: it shares the network of the test.
const podIP = "127.0.0.1"

// manifest has %d, the port, and %s, a FIFO: `first` completes when the test has
// opened and closed it. A drain ends early at a second TERM.
const manifest = `
[supervisor]
listen = ":%d"
metrics_listen = "off"
drain = "60s"
stop_grace = "90s"
[programs.first]
command = ["/bin/cat", %q]
type = "oneshot"
required = true
[programs.web]
command = ["/bin/sleep", "infinity"]
start_seconds = 0
needs = ["first:completed"]
required = true
`

// pod is a box that runs as the container of its generated pod: its port, its
// environment, its user, without privileges.
type pod struct {
	t         *testing.T
	dir       string
	container corev1.Container
	cmd       *osexec.Cmd
	log       bytes.Buffer
	ended     chan struct{}
}

func run(t *testing.T, manifest string) *pod {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	p := &pod{t: t, ended: make(chan struct{})}
	// Not t.TempDir: the container's user cannot walk into that.
	dir, err := os.MkdirTemp("", "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	p.dir = dir
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o777), os.Mkdir(filepath.Join(dir, "dev"), 0o755)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "agentbox.toml")
	if err := errors.Join(
		os.WriteFile(file, []byte(manifest), 0o644),
		// The kubelet makes this file, for everyone to write.
		os.WriteFile(p.terminationLog(), nil, 0o666), os.Chmod(p.terminationLog(), 0o666),
	); err != nil {
		t.Fatal(err)
	}
	p.container = generated(t, file)
	p.cmd = osexec.Command("unshare", append([]string{"--pid", "--fork", "--mount-proc"},
		p.asUser("../../bin/agentinit", "--root", dir, "--manifest", file)...)...)
	p.cmd.Env = append(os.Environ(), "MANAGEMENT_API_HOST="+podIP)
	for _, e := range p.container.Env {
		p.cmd.Env = append(p.cmd.Env, e.Name+"="+e.Value)
	}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		// An exit status other than 0 is an answer to the test.
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // fails if it has ended
		<-p.ended
		if t.Failed() {
			t.Logf("what the box printed:\n%s", p.log.String())
		}
	})
	return p
}

// generated is the container of the pod that agentctl makes of a manifest.
func generated(t *testing.T, file string) corev1.Container {
	t.Helper()
	cmd := osexec.Command("../../bin/agentctl", "generate", "kubernetes", "--image", "agentbox", file)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: run make build first\n%s", err, stderr.String())
	}
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(out), 1<<16); ; {
		var set appsv1.StatefulSet
		if err := d.Decode(&set); errors.Is(err, io.EOF) {
			t.Fatalf("no StatefulSet in\n%s", out)
		} else if err == nil && set.Kind == "StatefulSet" {
			return set.Spec.Template.Spec.Containers[0]
		}
	}
}

// asUser is a command as the pod's security context wants it; it dies with whoever
// started it.
func (p *pod) asUser(command ...string) []string {
	s := p.container.SecurityContext
	return append([]string{
		"setpriv", "--reuid", strconv.FormatInt(*s.RunAsUser, 10), "--regid", strconv.FormatInt(*s.RunAsGroup, 10),
		"--clear-groups", "--bounding-set=-all", "--no-new-privs", "--pdeathsig", "KILL",
	}, command...)
}

// terminationLog is the path where the kubelet looks, below the box's root.
func (p *pod) terminationLog() string {
	return filepath.Join(p.dir, corev1.TerminationMessagePathDefault)
}

// pid1 is agentinit's pid outside its namespace.
func (p *pod) pid1() int {
	p.t.Helper()
	pid := p.cmd.Process.Pid
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if err != nil {
		p.t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		p.t.Fatalf("%v: the box has ended", err)
	}
	return child
}

func (p *pod) signal(s syscall.Signal) {
	p.t.Helper()
	if err := syscall.Kill(p.pid1(), s); err != nil {
		p.t.Fatal(err)
	}
}

// ctl is an agentctl command inside the container.
func (p *pod) ctl(args ...string) []string {
	p.t.Helper()
	agentctl, err := filepath.Abs("../../bin/agentctl")
	if err != nil {
		p.t.Fatal(err)
	}
	words := append([]string{agentctl, "--socket", filepath.Join(p.dir, "run/agentbox/agentinit.sock")}, args...)
	return append([]string{"nsenter", "--target", strconv.Itoa(p.pid1()), "--pid", "--mount"}, p.asUser(words...)...)
}

func (p *pod) mustCtl(args ...string) {
	p.t.Helper()
	words := p.ctl(args...)
	if out, err := osexec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		p.t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

// get asks one HTTP probe as the kubelet does.
func (p *pod) get(action corev1.HTTPGetAction, timeoutSeconds int32) (probe.Result, string) {
	p.t.Helper()
	req, err := httpprobe.NewRequestForHTTPGetAction(&action, &p.container, podIP, "probe")
	if err != nil {
		p.t.Fatal(err)
	}
	if !strings.HasPrefix(req.UserAgent(), "kube-probe/") {
		p.t.Fatalf("asks as %q", req.UserAgent())
	}
	result, output, err := httpprobe.New(false).Probe(req, time.Duration(timeoutSeconds)*time.Second)
	if err != nil {
		p.t.Fatalf("%s: %v", action.Path, err)
	}
	return result, output
}

func (p *pod) ask(of *corev1.Probe) (probe.Result, string) {
	p.t.Helper()
	return p.get(*of.HTTPGet, of.TimeoutSeconds)
}

// exec asks `agentctl ready` in the container, which is what the compose file's
// health check runs and an exec probe would.
func (p *pod) exec(timeoutSeconds int32) (probe.Result, string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Duration(timeoutSeconds)*time.Second)
	defer cancel()
	words := p.ctl("ready")
	result, output, err := execprobe.New().Probe(exec.New().CommandContext(ctx, words[0], words[1:]...))
	if err != nil {
		p.t.Fatalf("exec: %v", err)
	}
	return result, output
}

// are fails unless the pod's probes say what is wanted now. With the readiness goes
// the exec probe.
func (p *pod) are(when string, readiness, liveness probe.Result) {
	p.t.Helper()
	if got, out := p.ask(p.container.ReadinessProbe); got != readiness || got == probe.Failure && !strings.Contains(out, "503") {
		p.t.Errorf("%s: readiness is %s (%s)", when, got, out)
	}
	if got, out := p.exec(p.container.ReadinessProbe.TimeoutSeconds); got != readiness {
		p.t.Errorf("%s: exec is %s (%s)", when, got, out)
	}
	if got, out := p.ask(p.container.LivenessProbe); got != liveness {
		p.t.Errorf("%s: liveness is %s (%s)", when, got, out)
	}
}

// until repeats a probe until it says what is wanted.
func (p *pod) until(what string, of *corev1.Probe, want probe.Result) {
	p.t.Helper()
	var got probe.Result
	var out string
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); got != want; <-tick.C {
		if got, out = p.ask(of); time.Now().After(end) {
			p.t.Fatalf("%s: still %s (%s)", what, got, out)
		}
	}
}

// exitCode waits for the end of the box.
func (p *pod) exitCode() int {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		p.t.Fatal("the box does not end")
		return -1
	}
}

// terminationMessage is what the kubelet would show.
func (p *pod) terminationMessage() string {
	p.t.Helper()
	text, err := os.ReadFile(p.terminationLog())
	if err != nil {
		p.t.Fatal(err)
	}
	if len(text) > 4096 { // the kubelet keeps no more
		p.t.Errorf("the termination message has %d bytes", len(text))
	}
	return string(text)
}

// booting starts the box of the manifest; release lets its first program complete.
func booting(t *testing.T) (p *pod, release func()) {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	fifo := filepath.Join(dir, "fifo")
	if err := errors.Join(syscall.Mkfifo(fifo, 0o644), os.Chmod(fifo, 0o644)); err != nil {
		t.Fatal(err)
	}
	p = run(t, fmt.Sprintf(manifest, freePort(t), fifo))
	p.until("the listener", p.container.LivenessProbe, probe.Success)
	return p, func() {
		t.Helper()
		w, err := os.OpenFile(fifo, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(podIP, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// The life of a pod: startup, a program that goes and comes, the drain, the end.
func TestProbesOfAPod(t *testing.T) {
	p, release := booting(t)
	if got, out := p.ask(p.container.StartupProbe); got != probe.Failure {
		t.Errorf("startup of a box that boots is %s (%s)", got, out)
	}
	p.are("while the box boots", probe.Failure, probe.Success)
	release()
	p.until("startup", p.container.StartupProbe, probe.Success)
	p.are("in the sealed box", probe.Success, probe.Success)

	// A required program that is away takes the pod out of its Service and does not
	// restart the container.
	p.mustCtl("stop", "web")
	p.are("without web", probe.Failure, probe.Success)
	p.mustCtl("start", "web")
	p.until("readiness", p.container.ReadinessProbe, probe.Success)

	p.signal(syscall.SIGTERM)
	p.until("the drain", p.container.ReadinessProbe, probe.Failure)
	p.are("in the drain", probe.Failure, probe.Success)
	if message := p.terminationMessage(); message != "" {
		t.Errorf("the termination message of a box that runs: %s", message)
	}
	p.signal(syscall.SIGTERM)
	if code := p.exitCode(); code != 0 {
		t.Errorf("ended with %d", code)
	}
	if message := p.terminationMessage(); !strings.Contains(message, "exit 0: requested: signal terminated") {
		t.Errorf("the termination message: %s", message)
	}
	if got, _ := p.ask(p.container.LivenessProbe); got != probe.Failure {
		t.Errorf("liveness of a box that has ended is %s", got)
	}
}

// A box that does not run is found out by the kubelet's timeouts.
func TestProbesOfAFrozenBox(t *testing.T) {
	p, _ := booting(t)
	words := p.ctl("ready")
	p.signal(syscall.SIGSTOP)
	if got, out := p.get(*p.container.LivenessProbe.HTTPGet, 1); got != probe.Failure || !strings.Contains(out, "Client.Timeout") {
		t.Errorf("liveness of a frozen box is %s (%s)", got, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if got, out, err := execprobe.New().Probe(exec.New().CommandContext(ctx, words[0], words[1:]...)); got != probe.Failure {
		t.Errorf("exec in a frozen box is %s (%s, %v)", got, out, err)
	}
	p.signal(syscall.SIGCONT)
	if got, out := p.ask(p.container.LivenessProbe); got != probe.Success {
		t.Errorf("liveness of the thawed box is %s (%s)", got, out)
	}
}

// A redirect to another host counts as success for the kubelet (with a warning), and
// one to the same host is followed. So a box that is not ready must answer neither.
func TestNoProbeIsRedirected(t *testing.T) {
	p, _ := booting(t)
	port := p.container.ReadinessProbe.HTTPGet.Port
	host := func(name string) []corev1.HTTPHeader { return []corev1.HTTPHeader{{Name: "Host", Value: name}} }
	for _, c := range []struct {
		action corev1.HTTPGetAction
		want   probe.Result
		says   string
	}{
		{corev1.HTTPGetAction{Path: "/ready"}, probe.Failure, "503"},
		{corev1.HTTPGetAction{Path: "ready"}, probe.Failure, "503"},
		{corev1.HTTPGetAction{Path: "/ready?verbose"}, probe.Failure, "503"},
		{corev1.HTTPGetAction{Path: "/ready/"}, probe.Failure, "404"},
		{corev1.HTTPGetAction{Path: "/ui/../ready"}, probe.Failure, "404"},
		{corev1.HTTPGetAction{Path: "/ready", HTTPHeaders: host("agentbox.default.svc.cluster.local")}, probe.Failure, "503"},
		{corev1.HTTPGetAction{Path: "/livez", HTTPHeaders: host("agentbox.default.svc.cluster.local")}, probe.Success, ""},
		{corev1.HTTPGetAction{Path: "/livez", HTTPHeaders: host("box.example.org")}, probe.Failure, "421"},
		{corev1.HTTPGetAction{Path: "/livez?verbose"}, probe.Success, "livez check passed"},
	} {
		c.action.Port = port
		if got, out := p.get(c.action, 5); got != c.want || !strings.Contains(out, c.says) {
			t.Errorf("%s %v: %s (%s)", c.action.Path, c.action.HTTPHeaders, got, out)
		}
	}

	elsewhere := httptest.NewServer(http.RedirectHandler("http://localhost.example/ready", http.StatusFound))
	defer elsewhere.Close()
	req, err := http.NewRequest(http.MethodGet, elsewhere.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, out, err := httpprobe.New(false).Probe(req, time.Second); got != probe.Warning {
		t.Errorf("a redirect to another host is %s (%s, %v)", got, out, err)
	}
}

// The kubelet restarts a box that cannot boot and shows why.
func TestTerminationMessageOfAFailedBoot(t *testing.T) {
	p := run(t, fmt.Sprintf(`
[supervisor]
listen = ":%d"
metrics_listen = "off"
[programs.db]
command = ["/bin/sh", "-c", "echo no space on device >&2; exit 3"]
required = true
restart_limit = { count = 1, window = "1m" }
backoff = { initial = "10ms" }
`, freePort(t)))
	if code := p.exitCode(); code != 67 {
		t.Errorf("ended with %d", code)
	}
	for _, want := range []string{"db", "exit 3", "no space on device"} {
		if message := p.terminationMessage(); !strings.Contains(message, want) {
			t.Errorf("no %q in the termination message: %s", want, message)
		}
	}
}
