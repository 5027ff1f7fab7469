package e2e

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// podman runs a podman command with options for machines that have no systemd and no writable
// cgroup tree.
func podman(t testing.TB, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("podman", append([]string{
		"--storage-driver", "vfs", "--root", storage(t), "--runtime", "runc", "--cgroup-manager", "cgroupfs",
	}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

var storageDir string

// storage is the container store of the whole test run: loading the image is the slowest step.
func storage(t testing.TB) string {
	t.Helper()
	if storageDir == "" {
		dir, err := filepath.Abs(filepath.Join("..", "dist", "containers"))
		if err != nil {
			t.Fatal(err)
		}
		storageDir = dir
	}
	return storageDir
}

func needsPodman(t testing.TB) {
	t.Helper()
	needsRoot(t)
	for _, tool := range []string{"podman", "runc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs podman and runc: %v", err)
		}
	}
}

func mustPodman(t testing.TB, args ...string) string {
	t.Helper()
	out, err := podman(t, args...)
	if err != nil {
		t.Fatalf("podman %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

// limits are set by the test: podman would raise them, which some machines do not permit.
var limits = []string{"--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"}

var hardened = []string{
	"--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "1000:1000",
	"--network", "none", "--tmpfs", "/run", "--tmpfs", "/tmp",
}

// engineDefaults is a box with the defaults of the engine: seccomp profile, default capabilities,
// root, a writable image.
var engineDefaults = []string{"--network", "none"}

func TestContainer(t *testing.T) {
	needsPodman(t)
	for name, options := range map[string][]string{"hardened": hardened, "engine defaults": engineDefaults} {
		t.Run(name, func(t *testing.T) { containerLives(t, options) })
	}
}

// container is a running container.
type container struct {
	t  *testing.T
	id string
}

var imageLoaded bool

// loadTestImage loads the image into the store once per test run.
func loadTestImage(t testing.TB) {
	t.Helper()
	if imageLoaded {
		return
	}
	image, err := filepath.Abs(filepath.Join("..", "dist", "agentbox-test.tar"))
	if err != nil {
		t.Fatal(err)
	}
	mustPodman(t, "load", "-q", "-i", image)
	imageLoaded = true
}

func runContainer(t *testing.T, options []string) container {
	t.Helper()
	id := mustPodman(t, append(slices.Concat([]string{"run", "-d"}, limits, options), "localhost/agentbox:test")...)
	id = id[strings.LastIndex(id, "\n")+1:]
	t.Cleanup(func() {
		if t.Failed() {
			logs, err := podman(t, "logs", id)
			t.Logf("logs (%v):\n%s", err, logs)
		}
		mustPodman(t, "rm", "-f", "-t", "0", id)
	})
	c := container{t, id}
	waitFor(t, "agentctl answers", func() bool {
		_, err := podman(t, "exec", id, "/bin/agentctl", "wait", "--for", "ready", "--timeout", patience.String())
		return err == nil
	})
	return c
}

func (c container) inside(args ...string) string {
	c.t.Helper()
	return mustPodman(c.t, append([]string{"exec", c.id}, args...)...)
}

func containerLives(t *testing.T, options []string) {
	t.Helper()
	loadTestImage(t)
	c := runContainer(t, options)
	id, inside := c.id, c.inside
	inside("/bin/agentctl", "wait", "adversary", "--for", "running")
	if out := inside("/bin/agentctl", "status"); !strings.Contains(out, "web") || !strings.Contains(out, "RUNNING") {
		t.Errorf("status: %s", out)
	} else {
		t.Log("\n" + out)
	}
	// PID 1 listens at the default socket: the table is printed before agentctl's other packages exist.
	if out := mustPodman(t, "exec", "--env", "GODEBUG=inittrace=1", id, "/bin/agentctl", "status"); !strings.Contains(out, "RUNNING") ||
		!strings.Contains(out, "init os ") || strings.Contains(out, "init net/http ") {
		t.Errorf("status with a trace of the initialisation: %s", out)
	}
	inside("/bin/agentctl", "ready")
	if out := inside("/bin/testprog", "get", "http://127.0.0.1:9090/ready"); !strings.Contains(out, `"ready":true`) {
		t.Errorf("/ready: %s", out)
	}
	metrics := inside("/bin/testprog", "get", "http://127.0.0.1:9091/metrics")
	if !strings.Contains(metrics, `agentinit_program_up{program="web"} 1`) {
		t.Errorf("/metrics: %.600s", metrics)
	}
	promtool(t, metrics+"\n")
	began := time.Now()
	mustPodman(t, "stop", "-t", "30", id)
	t.Logf("podman stop took %v", time.Since(began))
	if code := mustPodman(t, "inspect", "--format", "{{.State.ExitCode}}", id); code != "0" {
		t.Errorf("ended with %s", code)
	}
	if logs := mustPodman(t, "logs", id); !strings.Contains(logs, "BootstrapCompleted") {
		t.Errorf("the log does not tell of the boot: %.600s", logs)
	}
}

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func promtool(t testing.TB, metrics string) {
	t.Helper()
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("needs promtool")
	}
	cmd := exec.Command("promtool", "check", "metrics")
	cmd.Stdin = strings.NewReader(metrics)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}
