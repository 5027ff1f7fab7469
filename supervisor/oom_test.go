package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// files creates a directory that stands for the root of a file system.
func files(t *testing.T, all map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range all {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestMemoryKillsAreRead(t *testing.T) {
	const v1 = "sys/fs/cgroup/memory/"
	for _, c := range []struct {
		name         string
		files        map[string]string
		kills, limit uint64
		ok           bool
	}{
		{"version 2", map[string]string{"proc/self/cgroup": "0::/box\n", "sys/fs/cgroup/box/memory.events": "low 0\noom 4\noom_kill 3\n", "sys/fs/cgroup/box/memory.max": "536870912\n"}, 3, 512 << 20, true},
		{"version 2, where PID 1 has moved itself", map[string]string{"proc/self/cgroup": "0::/box/agentinit.self\n", "sys/fs/cgroup/box/memory.events": "oom_kill 3\n", "sys/fs/cgroup/box/agentinit.self/memory.events": "oom_kill 0\n", "sys/fs/cgroup/box/memory.max": "536870912\n"}, 3, 512 << 20, true},
		{"version 2 without a limit", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.events": "oom_kill 0\n", "sys/fs/cgroup/memory.max": "max\n"}, 0, 0, true},
		{"version 1 in a container", map[string]string{"proc/self/cgroup": "9:pids:/a\n4:memory:/host/path\n0::/\n", v1 + "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n", v1 + "memory.limit_in_bytes": "1073741824\n"}, 7, 1 << 30, true},
		{"version 1 without a limit", map[string]string{"proc/self/cgroup": "4:memory:/x\n", v1 + "x/memory.oom_control": "oom_kill 1\n", v1 + "x/memory.limit_in_bytes": "9223372036854771712\n"}, 1, 0, true},
		{"no cgroups", map[string]string{"proc/self/cgroup": ""}, 0, 0, false},
		{"not a number", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.events": "oom_kill many\n"}, 0, 0, false},
	} {
		w := newOOMWatch(files(t, c.files))
		kills, ok := w.kills()
		limit := w.limit()
		w.close()
		if kills != c.kills || limit != c.limit || ok != c.ok {
			t.Errorf("%s: %d %d %v", c.name, kills, limit, ok)
		}
	}
}

func TestEachKillOfTheKernelExplainsOneExit(t *testing.T) {
	var kills uint64
	w := &oomWatch{kills: func() (uint64, bool) { return kills, true }, limit: func() uint64 { return 512 << 20 }}
	now := time.Unix(1e9, 0)
	if got := w.verdict(now, 0); got != "" {
		t.Errorf("somebody's KILL: %q", got)
	}
	kills = 2
	const want = "killed by the kernel: out of memory (limit 512 MiB)"
	for i, expect := range []string{want, want, ""} {
		if got := w.verdict(now, 0); got != expect {
			t.Errorf("exit %d: %q", i, got)
		}
	}
	kills++
	if got := w.verdict(now, 64<<20); got != "killed by the kernel: out of memory (limit 64 MiB)" {
		t.Errorf("at the program's own limit: %q", got)
	}
	kills = 4 // one of these kills may be of a child; a KILL much later is not explained by it
	w.verdict(now, 0)
	kills = 6
	w.verdict(now.Add(time.Second), 0)
	if got := w.verdict(now.Add(time.Minute), 0); got != "" {
		t.Errorf("long after: %q", got)
	}
	kills = 7 // of a child whose parent lives on
	w.look(now.Add(time.Minute))
	if got := w.verdict(now.Add(2*time.Minute), 0); got != "" {
		t.Errorf("long after the kill of a child: %q", got)
	}
}

// The root cgroup has no counter: where agentinit is the init of a virtual machine, only the cgroup of a
// program tells of a kill.
func TestAKillAtTheProgramsOwnLimitNeedsNoCounterOfTheBox(t *testing.T) {
	w := newOOMWatch(files(t, map[string]string{"proc/self/cgroup": "0::/\n"}))
	if got := w.verdict(time.Unix(1e9, 0), 64<<20); got != "killed by the kernel: out of memory (limit 64 MiB)" {
		t.Errorf("at the program's own limit: %q", got)
	}
	if got := w.verdict(time.Unix(1e9, 0), 0); got != "" {
		t.Errorf("without a sign: %q", got)
	}
}

func TestBinarySize(t *testing.T) {
	for n, want := range map[uint64]string{512 << 20: "512 MiB", 1 << 30: "1 GiB", 1500 << 20: "1500 MiB", 4096: "4 KiB", 100: "100 bytes", 5<<20 + 1: "5 MiB"} {
		if got := binarySize(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}

func TestExpandCore(t *testing.T) {
	for pattern, want := range map[string]string{"core": "core", "/cores/%e.%p%%": "/cores/web.7%", "c.%t.%h": "c.*.*", "x%": "x%"} {
		if got := expandCore(pattern, fmt.Sprint(7), "web"); got != want {
			t.Errorf("%s: %s", pattern, got)
		}
	}
}

// A program without a directory of its own leaves its core in that of agentinit.
func TestCoreIsInTheWorkingDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, c := range [][3]string{
		{"", "core", dir + "/core"}, {"/srv", "core", "/srv/core"}, {"sub", "core", dir + "/sub/core"}, {"/srv", "/var/core.7", "/var/core.7"},
	} {
		if got := fromDirectory(c[0], c[1]); got != c[2] {
			t.Errorf("%q in %q is %s, want %s", c[1], c[0], got, c[2])
		}
	}
}
