package e2e

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// chaos is a box under random attack. CHAOSTIME sets the duration: ten minutes in `make chaos`, one
// in CI. CHAOSSEED repeats the random choices of a run.
type chaos struct {
	*box
	rnd   *rand.Rand
	kills map[string]int // leaders killed, by program
	turn  int
}

// required are the programs that must run at the end.
var required = []string{"one", "two", "filed"}

func chaosManifest(turn int) string {
	text := header
	for _, name := range required[:2] {
		text += fmt.Sprintf(`
[programs.%s]
command = ["TESTPROG", "fork-tree", "2", "2"]
required = true
restart = "always"
restart_limit = { count = 0 }
backoff = { initial = "50ms", max = "500ms" }
environment = { TURN = "%d" }
`, name, turn)
	}
	return text + `
[programs.filed]
command = ["sh", "-c", "while :; do echo filed filed filed; sleep 0.01; done"]
required = true
restart = "always"
restart_limit = { count = 0 }
backoff = { initial = "50ms", max = "500ms" }
logs = { to = "file", path = "/full/filed.log", max_bytes = 200000, backups = 2, compress = true }
[programs.pids]
command = ["TESTPROG", "attack-pids"]
autostart = false
restart = "never"
[programs.signals]
command = ["TESTPROG", "attack-signals", "1"]
autostart = false
restart = "never"
[programs.lines]
command = ["TESTPROG", "print-lines", "300000"]
autostart = false
restart = "never"
[programs.escapes]
command = ["TESTPROG", "setsid-escape", "scrub"]
autostart = false
restart = "never"
[programs.refork]
command = ["TESTPROG", "refork"]
autostart = false
restart = "never"
`
}

func TestChaos(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("CHAOSTIME"))
	if err != nil {
		t.Skip("runs under `make chaos` (CHAOSTIME=60s)")
	}
	seed, err := strconv.ParseUint(os.Getenv("CHAOSSEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("CHAOSSEED=%d", seed)
	b := place(t, fewPids, chaosManifest(0))
	full := filepath.Join(b.dir, "full")
	if err := os.Mkdir(full, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", full, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("needs root: cannot mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(full, syscall.MNT_DETACH) })
	b.start()
	b.sealed()
	c := &chaos{box: b, rnd: rand.New(rand.NewPCG(seed, 0)), kills: map[string]int{}}
	c.calm()
	before := c.footprint()
	acts := []func(){c.killLeader, c.killAny, c.stopAny, c.storm("pids"), c.storm("signals"), c.storm("lines"), c.storm("escapes"),
		c.storm("refork"), c.garbage, c.connections, c.fillDisk(full), c.apply}
	for end := time.Now().Add(length); time.Now().Before(end); c.turn++ {
		acts[c.rnd.IntN(len(acts))]()
	}
	c.calm()
	c.account(before)
	t.Logf("%d turns; leaders killed: %v; before %+v, after %+v", c.turn, c.kills, before, c.footprint())
	b.stopsWell()
}

// killLeader kills the leader of a required program and waits for its next run.
func (c *chaos) killLeader() {
	name := required[c.rnd.IntN(len(required))]
	p := c.programs()[name]
	host := c.hostPIDs()[p.PID]
	if p.State != "RUNNING" || host == 0 || syscall.Kill(host, syscall.SIGKILL) != nil {
		return
	}
	c.kills[name]++
	waitFor(c.t, name+" runs again", func() bool {
		now := c.programs()[name]
		return now.PID != p.PID && now.State == "RUNNING"
	})
}

func (c *chaos) some() (pid int, ok bool) {
	init, err := c.initPID()
	if err != nil {
		c.t.Fatal(err)
	}
	if all := descendants(init); len(all) > 0 {
		return all[c.rnd.IntN(len(all))], true
	}
	return 0, false
}

func (c *chaos) killAny() {
	if pid, ok := c.some(); ok {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone
	}
}

// stopAny stops a process with SIGSTOP and continues it after the box has answered.
func (c *chaos) stopAny() {
	if pid, ok := c.some(); ok && syscall.Kill(pid, syscall.SIGSTOP) == nil {
		c.answers()
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
}

// storm runs a hostile program while the box must answer.
func (c *chaos) storm(name string) func() {
	return func() {
		c.ctl("start", name, "--no-wait")
		for range 5 {
			c.answers()
		}
		c.mustCtl("stop", name)
	}
}

func (c *chaos) garbage() {
	junk := make([]byte, 1+c.rnd.IntN(8192))
	for i := range junk {
		junk[i] = byte(c.rnd.Uint32())
	}
	for network, address := range map[string]string{"unix": c.socket(), "tcp": fmt.Sprintf("127.0.0.1:%d", c.port)} {
		conn, err := net.DialTimeout(network, address, time.Second)
		if err != nil {
			continue
		}
		_, _ = conn.Write(junk)
		conn.Close()
	}
}

// connections opens as many connections as it can and sends requests on them.
func (c *chaos) connections() {
	out, err := exec.Command(binary(c.t, "testprog"), "pester", "300", "1",
		fmt.Sprintf("127.0.0.1:%d", c.port), fmt.Sprintf("127.0.0.1:%d", c.metrics)).CombinedOutput()
	if err != nil {
		c.t.Errorf("pester: %v %s", err, out)
	}
}

func (c *chaos) fillDisk(dir string) func() {
	return func() {
		file := filepath.Join(dir, "filler")
		_ = os.WriteFile(file, make([]byte, 4<<20), 0o600) // until it is full
		c.answers()
		if err := os.Remove(file); err != nil {
			c.t.Error(err)
		}
	}
}

// apply alternates between two manifests, and tries one that is wrong.
func (c *chaos) apply() {
	text := strings.NewReplacer("TESTPROG", binary(c.t, "testprog"), "PORT", strconv.Itoa(c.port),
		"METRICS", strconv.Itoa(c.metrics)).Replace(chaosManifest(c.turn % 2))
	c.write("programs = 7")
	if out, code := c.ctl("apply"); code == 0 {
		c.t.Errorf("a wrong manifest was applied: %s", out)
	}
	c.write(text)
	// An apply rolls back if a program that it restarts is killed. The answer must say so.
	if out, code := c.ctl("apply"); code != 0 && !strings.Contains(out, "rolled back") && !strings.Contains(out, "BACKOFF") {
		c.t.Errorf("apply: status %d: %s", code, out)
	}
}

// answers checks that the box answers.
func (c *chaos) answers() {
	// The kubelet also asks three times before it restarts a container (failureThreshold).
	status, _, err := get(c.port, "/livez")
	for range 2 {
		if err == nil && status == 200 {
			break
		}
		<-time.After(2 * time.Second)
		status, _, err = get(c.port, "/livez")
	}
	if err != nil || status != 200 {
		c.t.Errorf("/livez three times in a row: %d %v", status, err)
	}
	if len(c.programs()) == 0 {
		c.t.Error("status shows no program")
	}
}

// calm waits until the required programs run and agentinit has no zombie children.
func (c *chaos) calm() {
	waitFor(c.t, "every required program runs", func() bool {
		all := c.programs()
		for _, name := range required {
			if all[name].State != "RUNNING" {
				return false
			}
		}
		return true
	})
	init, err := c.initPID()
	if err != nil {
		c.t.Fatal(err)
	}
	// A program must reap its own children.
	waitFor(c.t, "no zombie of agentinit's is left", func() bool { return zombies(children(init)) == 0 })
}

// footprint holds the resources of agentinit that must not grow.
type footprint struct{ descriptors, goroutines, threads, rssMiB int }

func (c *chaos) footprint() footprint {
	init, err := c.initPID()
	if err != nil {
		c.t.Fatal(err)
	}
	f := footprint{descriptors: c.descriptors()}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", init))
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		n, _ := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), " kB")))
		switch name {
		case "Threads":
			f.threads = n
		case "VmRSS":
			f.rssMiB = n >> 10
		}
	}
	_, metrics := c.get("/metrics")
	for line := range strings.Lines(metrics) {
		if value, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			f.goroutines, _ = strconv.Atoi(strings.TrimSpace(value))
		}
	}
	return f
}

// account compares the end with the beginning. It waits, because connections that a flood left open
// are closed only after the idle timeout.
func (c *chaos) account(before footprint) {
	waitFor(c.t, "what the box holds is what it held", func() bool {
		now := c.footprint()
		return now.descriptors <= before.descriptors+16 && now.goroutines <= before.goroutines+16 && now.threads <= before.threads+16
	})
	if now := c.footprint(); now.rssMiB > before.rssMiB+128 {
		c.t.Errorf("resident memory grew from %d to %d MiB", before.rssMiB, now.rssMiB)
	}
	for name, kills := range c.kills {
		if p := c.programs()[name]; p.Restarts < uint64(kills) {
			c.t.Errorf("%s was killed %d times and restarted %d times", name, kills, p.Restarts)
		}
	}
}
