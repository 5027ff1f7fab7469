package proc

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/internal/testprog/built"
)

// playCgroup makes directories that stand for the cgroups of a box and of its programs. The files
// contain what the kernel would get.
func playCgroup(t *testing.T, own map[string]string) (dir string, b *cgroupBase) {
	t.Helper()
	dir = t.TempDir()
	b = &cgroupBase{dir: filepath.Join(dir, "agentinit-x")}
	if err := os.Mkdir(b.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range own {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, b
}

func textOf(t *testing.T, parts ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(parts...))
	if os.IsNotExist(err) {
		return "absent"
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// All programs together may use the limit of the box minus the reserve of agentinit.
func TestCgroupLeavesAgentinitItsReserve(t *testing.T) {
	for name, c := range map[string]struct {
		own          map[string]string
		pids, memory string
		share        uint64
	}{
		"limits of the box":          {map[string]string{"cgroup.controllers": "cpu pids memory", "pids.max": "1100\n", "memory.max": "536870912\n"}, "1000", "503316480", 750},
		"no limits of the box":       {map[string]string{"cgroup.controllers": "pids memory", "pids.max": "max\n", "memory.max": "max\n"}, "absent", "absent", 0},
		"little of both":             {map[string]string{"cgroup.controllers": "pids memory", "pids.max": "150\n", "memory.max": "80000000\n"}, "absent", "70000000", 0},
		"memory has no controller":   {map[string]string{"cgroup.controllers": "pids", "pids.max": "1100\n", "memory.max": "80000000\n"}, "1000", "absent", 750},
		"the root of all has no max": {map[string]string{"cgroup.controllers": "pids memory"}, "absent", "absent", 0},
	} {
		dir, b := playCgroup(t, c.own)
		// The kernel's file shows the controllers without the signs that were written.
		enabled := strings.TrimPrefix(c.own["cgroup.controllers"], "cpu ")
		if err := os.WriteFile(filepath.Join(b.dir, "cgroup.subtree_control"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := b.bound(dir, true); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, want := textOf(t, dir, "cgroup.subtree_control"), "+"+strings.ReplaceAll(enabled, " ", " +"); got != want {
			t.Errorf("%s: %q is enabled, want %q", name, got, want)
		}
		if _, err := os.Stat(filepath.Join(dir, SelfCgroup)); !os.IsNotExist(err) {
			t.Errorf("%s: agentinit left the root of the hierarchy: %v", name, err)
		}
		// The plain file keeps the signs, so the test reads the controllers from another file.
		b.counts = wordsOf(filepath.Join(dir, "cgroup.controllers"))
		if err := b.divide(dir); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, name := range controllers {
			text := "absent"
			if whole := b.whole[name]; whole > 0 {
				text = strconv.FormatUint(whole, 10)
			}
			if got := textOf(t, b.dir, name+".max"); got != text {
				t.Errorf("%s: the limit of %s for all programs is %s, but noted as %s", name, name, got, text)
			}
		}
		if pids, memory := textOf(t, b.dir, "pids.max"), textOf(t, b.dir, "memory.max"); pids != c.pids || memory != c.memory || b.share != c.share {
			t.Errorf("%s: pids %s, memory %s, share %d, want %s, %s, %d", name, pids, memory, b.share, c.pids, c.memory, c.share)
		}
	}
}

func TestCgroupWithoutControllers(t *testing.T) {
	dir, b := playCgroup(t, map[string]string{"cgroup.controllers": "cpu io"})
	if err := b.bound(dir, true); err == nil || !strings.Contains(err.Error(), "neither") {
		t.Error(err)
	}
	dir, b = playCgroup(t, map[string]string{"cgroup.controllers": "pids", "cgroup.type": "domain\n"})
	if err := b.bound(dir, false); err == nil || !strings.Contains(err.Error(), "not PID 1") {
		t.Error(err)
	}
	if got := textOf(t, dir, SelfCgroup, "cgroup.procs"); got != "absent" {
		t.Errorf("it moved although it is not PID 1: %q", got)
	}
}

// The cgroup sets the limits of a command if it can; setrlimit(2) sets the others.
func TestCgroupLimits(t *testing.T) {
	asked := map[string]Rlimit{"pids": {40, 50}, "memory": {1 << 20, 2 << 20}, "nofile": {7, 8}}
	for name, c := range map[string]struct {
		counts      []string
		asked       map[string]Rlimit
		rest        map[string]Rlimit
		pids        string
		high, limit string
	}{
		"both":    {[]string{"pids", "memory"}, asked, map[string]Rlimit{"nofile": {7, 8}}, "50", "1048576", "2097152"},
		"pids":    {[]string{"pids"}, asked, map[string]Rlimit{"nofile": {7, 8}, "data": {1 << 20, 2 << 20}}, "50", "absent", "absent"},
		"neither": {nil, asked, map[string]Rlimit{"nofile": {7, 8}, "nproc": {40, 50}, "data": {1 << 20, 2 << 20}}, "300", "absent", "absent"},
		"neither, and a limit of the user": {nil, map[string]Rlimit{"pids": {40, 50}, "nproc": {1, 1}}, map[string]Rlimit{"nproc": {1, 1}},
			"300", "absent", "absent"},
		"unlimited": {[]string{"pids"}, map[string]Rlimit{"pids": {^uint64(0), ^uint64(0)}}, map[string]Rlimit{}, "max", "absent", "absent"},
		"default":   {[]string{"pids", "memory"}, nil, nil, "300", "absent", "absent"},
	} {
		_, b := playCgroup(t, nil)
		b.share, b.counts = 300, map[string]bool{}
		for _, controller := range c.counts {
			b.counts[controller] = true
		}
		cg := b.create(1)
		rest, err := cg.limit(c.asked)
		if err != nil || !maps.Equal(rest, c.rest) {
			t.Errorf("%s: %v, %v is left to setrlimit, want %v", name, err, rest, c.rest)
		}
		for file, want := range map[string]string{"pids.max": c.pids, "memory.high": c.high, "memory.max": c.limit} {
			if got := textOf(t, cg.dir, file); got != want {
				t.Errorf("%s: %s is %s, want %s", name, file, got, want)
			}
		}
		cg.started()
	}
	var none *cgroup
	if rest, err := none.limit(asked); err != nil || rest["nproc"] != asked["pids"] || rest["data"] != asked["memory"] {
		t.Errorf("without a cgroup: %v, %v", rest, err)
	}
}

// The limits that a start reports are those that bind the process, and where they come from.
func TestCgroupBounds(t *testing.T) {
	const none = ^uint64(0)
	asked := map[string]Rlimit{"pids": {40, 50}, "memory": {1 << 20, 2 << 20}, "nofile": {7, 8}}
	both := []string{"pids", "memory"}
	share, all := Bound{"pids", true, OfTree, Rlimit{300, 300}}, Bound{"memory", true, OfAll, Rlimit{64 << 20, 64 << 20}}
	pids, memory := Bound{"pids", false, OfTree, Rlimit{50, 50}}, Bound{"memory", false, OfTree, Rlimit{1 << 20, 2 << 20}}
	nproc, data := Bound{"pids", false, OfUser, Rlimit{40, 50}}, Bound{"memory", false, OfProcess, Rlimit{1 << 20, 2 << 20}}
	for name, c := range map[string]struct {
		counts []string // nil: there is no cgroup
		limits bool     // the box has limits
		asked  map[string]Rlimit
		want   []Bound
	}{
		"the manifest":                       {both, true, asked, []Bound{pids, memory}},
		"the default":                        {both, true, nil, []Bound{share, all}},
		"the default of one":                 {both, true, map[string]Rlimit{"memory": asked["memory"]}, []Bound{share, memory}},
		"more than all programs may have":    {both, true, map[string]Rlimit{"memory": {65 << 20, 65 << 20}}, []Bound{share, {"memory", false, OfTree, Rlimit{65 << 20, 65 << 20}}, all}},
		"unlimited":                          {both, true, map[string]Rlimit{"pids": {40, none}, "memory": {none, none}}, []Bound{{"pids", true, OfAll, Rlimit{400, 400}}, all}},
		"unlimited, above a soft limit":      {both, false, map[string]Rlimit{"memory": {5, none}}, []Bound{{"memory", false, OfTree, Rlimit{5, none}}}},
		"the box has no limits":              {both, false, asked, []Bound{pids, memory}},
		"the box has no limits, nor has it":  {both, false, nil, nil},
		"no controller of memory":            {[]string{"pids"}, true, asked, []Bound{pids, data}},
		"no controller of memory, default":   {[]string{"pids"}, true, nil, []Bound{share}},
		"no cgroup":                          {nil, true, nil, nil},
		"no cgroup, the manifest":            {nil, true, asked, []Bound{nproc, data}},
		"no cgroup, other limits replace it": {nil, true, map[string]Rlimit{"pids": {40, 50}, "nproc": {1, 1}, "memory": {5, 5}, "data": {6, 6}}, nil},
		"no cgroup, unlimited":               {nil, true, map[string]Rlimit{"pids": {none, none}, "memory": {none, none}}, nil},
	} {
		var in *cgroup
		if c.counts != nil {
			_, b := playCgroup(t, nil)
			b.counts = map[string]bool{}
			for _, controller := range c.counts {
				b.counts[controller] = true
			}
			if c.limits {
				b.share, b.whole = 300, map[string]uint64{}
				for name, most := range map[string]uint64{"pids": 400, "memory": 64 << 20} {
					if b.counts[name] {
						b.whole[name] = most
					}
				}
			}
			in = &cgroup{base: b, dir: b.dir, open: -1}
		}
		if got := in.bounds(c.asked); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// A start reports the limits that it has set: without cgroups those of setrlimit(2), and none that
// only a cgroup could have.
func TestStartReportsItsLimits(t *testing.T) {
	c := prog(built.Path(t), "sleep")
	o := newOwner(t, Options{})
	if p := startTester(t, o, c); len(p.Bounds) != 0 {
		t.Errorf("a start without limits reports %+v", p.Bounds)
	}
	c.Rlimits = map[string]Rlimit{"memory": {1 << 30, 1 << 30}}
	if p, want := startTester(t, o, c), []Bound{{"memory", false, OfProcess, Rlimit{1 << 30, 1 << 30}}}; !slices.Equal(p.Bounds, want) {
		t.Errorf("a start reports %+v, want %+v", p.Bounds, want)
	}
}

// A program is out of its own memory if the kernel counts that in its own cgroup.
func TestCgroupExhausted(t *testing.T) {
	for name, c := range map[string]struct {
		events string
		memory bool
		want   uint64
	}{
		"its own limit":            {"low 0\nhigh 0\nmax 31\noom 1\noom_kill 1\n", true, 64 << 20},
		"the limit of the box":     {"low 0\nhigh 0\nmax 0\noom 0\noom_kill 1\n", true, 0},
		"the file has no such row": {"low 0\n", true, 0},
		"no controller":            {"oom 1\n", false, 0},
	} {
		_, b := playCgroup(t, nil)
		b.counts = map[string]bool{"memory": c.memory}
		cg := b.create(1)
		for file, text := range map[string]string{"memory.events": c.events, "memory.max": "67108864\n"} {
			if err := os.WriteFile(filepath.Join(cg.dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := cg.exhausted(); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
		cg.started()
	}
	var none *cgroup
	if got := none.exhausted(); got != 0 {
		t.Errorf("without a cgroup: %d", got)
	}
}

// TestCgroupHandsOn lets the kernel's cgroup v2 pass a controller to the cgroups of programs, below
// a cgroup that is not the root. The rule about processes is the same for all controllers. The test
// uses hugetlb, which cgroup v2 still has on machines that use cgroup v1 for pids and memory.
func TestCgroupHandsOn(t *testing.T) {
	inside, output, failed := asPID1(t)
	if !inside {
		if strings.Contains(output, "--- SKIP") {
			t.Skip("no cgroup v2 with the controller hugetlb here")
		}
		if failed {
			t.Error(output)
		}
		return
	}
	mount, err := cgroupMount()
	if err != nil || !wordsOf(filepath.Join(mount, "cgroup.controllers"))["hugetlb"] {
		t.Skip(err)
	}
	bin := built.Path(t)
	controllers = []string{"hugetlb"}
	if err := writeCgroup(mount, "cgroup.subtree_control", "+hugetlb"); err != nil {
		t.Skip(err)
	}
	box, err := os.MkdirTemp(mount, "agentinit-test-")
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []string{"with another process in it", "alone"} {
		if err := writeCgroup(box, "cgroup.procs", "0"); err != nil {
			t.Fatal(err)
		}
		if step != "alone" {
			other := exec.Command("sleep", "600")
			if err := other.Start(); err != nil {
				t.Fatal(err)
			}
			if err := handOn(box, "+hugetlb", true); err == nil || !strings.Contains(err.Error(), "other processes") {
				t.Errorf("%s: %v", step, err)
			}
			if at, _ := cgroupOf("self"); filepath.Base(at) != filepath.Base(box) {
				t.Errorf("%s: we are in %s", step, at)
			}
			_ = other.Process.Kill()
			_ = other.Wait() // killed
			continue
		}
		var said []string
		o, err := New(Options{Cgroups: true, Report: func(s string) { said = append(said, s) }})
		if err != nil {
			t.Fatal(err)
		}
		if o.cgroups() == nil || !o.cgroups().counts["hugetlb"] {
			t.Fatalf("%s: %q", step, said)
		}
		if at, _ := cgroupOf("self"); filepath.Base(at) != SelfCgroup {
			t.Errorf("%s: we are in %s", step, at)
		}
		p := startTester(t, o, prog(bin, "double-fork", "scrub"))
		escapee := p.number(t)
		p.line(t)
		if id, ok := o.Owns(escapee); id != p.ID || !ok {
			t.Errorf("%s: Owns says %d, %v", step, id, ok)
		}
		files, err := filepath.Glob(filepath.Join(o.cgroups().dir, "*", "hugetlb.*.max"))
		if err != nil || len(files) == 0 {
			t.Errorf("%s: a program's cgroup has no limit to set: %v", step, err)
		}
		if err := o.Kill(p.ID); err != nil {
			t.Error(err)
		}
		next(t, o, p.ID, Emptied)
		if err := o.Close(); err != nil {
			t.Error(err)
		}
		if i := slices.IndexFunc(said, func(s string) bool { return strings.Contains(s, "cgroup") }); i >= 0 {
			t.Errorf("%s: %s", step, said[i])
		}
	}
	for _, err := range []error{
		writeCgroup(mount, "cgroup.procs", "0"), os.Remove(filepath.Join(box, SelfCgroup)), os.Remove(box),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	// It may fail: another box may use the controller.
	_ = writeCgroup(mount, "cgroup.subtree_control", "-hugetlb")
}
