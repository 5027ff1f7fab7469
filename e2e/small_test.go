package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Processes that are all smaller than PID 1 fill the memory of the box. The kernel kills them, and not
// PID 1: neither by the recommended options, where they have a user of their own, nor without a guard.
func TestManySmallProcessesFillTheMemory(t *testing.T) {
	needsPodman(t)
	needsMemoryLimits(t)
	loadTestImage(t)
	capabilities := []string{"--cap-drop", "ALL", "--cap-add", "SETUID", "--cap-add", "SETGID", "--cap-add", "KILL"}
	for name, how := range map[string]struct {
		key     string
		options []string
	}{
		"another user":    {`user = "1001:1001"`, slices.Concat(engineDefaults, capabilities)},
		"without a guard": {"guard = false", hardened},
		"with a guard":    {"", hardened},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir()) // the engine leaves a file named oom in its directory
			manifest := filepath.Join(t.TempDir(), "agentbox.toml")
			text := `
[programs.small]
command = ["/bin/testprog", "memory", "6"]
instances = 20
autostart = false
restart = "never"
` + how.key + "\n"
			if err := os.WriteFile(manifest, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			c := runContainer(t, slices.Concat(how.options, []string{"--memory", "96m", "-v", manifest + ":/etc/agentbox.toml:ro"}))
			mustPodman(t, "exec", c.id, "/bin/agentctl", "start", "--no-wait", "small")
			waitFor(t, "the memory is full", func() bool {
				if mustPodman(t, "inspect", "--format", "{{.State.Running}}", c.id) != "true" {
					t.Fatal("PID 1 has ended")
				}
				out, _ := podman(t, "exec", c.id, "/bin/agentctl", "status", "small") // the kernel may kill this agentctl
				return strings.Contains(out, "out of memory (limit 96 MiB)")
			})
			mustPodman(t, "stop", "-t", "30", c.id)
			if code := mustPodman(t, "inspect", "--format", "{{.State.ExitCode}}", c.id); code != "0" {
				t.Errorf("PID 1 ended with %s", code)
			}
		})
	}
}

func needsMemoryLimits(t *testing.T) {
	t.Helper()
	controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers") // version 2
	if err == nil && slices.Contains(strings.Fields(string(controllers)), "memory") {
		return
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		t.Skip("needs a memory controller of cgroups")
	}
}
