package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/foreign"
)

// token is the token with which the boxes register.
const token = "0123456789abcdef0123456789abcdef"

// machine raises this process's limit of descriptors. If there is more than one processor, it
// reserves the first one for the host.
func machine(boxes int) error {
	limit := unix.Rlimit{Cur: uint64(boxes) + 1000, Max: uint64(boxes) + 1000}
	var have unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &have); err != nil {
		return err
	}
	if have.Cur < limit.Cur {
		limit.Max = max(limit.Max, have.Max)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return fmt.Errorf("cannot have %d open files: %w", limit.Cur, err)
		}
	}
	if runtime.NumCPU() == 1 {
		return nil
	}
	var others unix.CPUSet
	for i := 1; i < runtime.NumCPU(); i++ {
		others.Set(i)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, one := range threads {
		tid, err := strconv.Atoi(one.Name())
		if err != nil {
			return err
		}
		// New threads inherit the affinity of the thread that makes them (sched_setaffinity(2)).
		if err := unix.SchedSetaffinity(tid, &others); err != nil {
			return err
		}
	}
	return nil
}

// host is the agentinit under measurement.
type host struct {
	dir, bin string
	port     int
	cmd      *exec.Cmd
	server   *foreign.Server
}

func newHost(bin string, heartbeat time.Duration) (*host, error) {
	bin, err := filepath.Abs(filepath.Join(bin, "agentinit"))
	if err != nil {
		return nil, err
	}
	port, err := foreign.FreePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench-federation-")
	if err != nil {
		return nil, err
	}
	h := &host{dir: dir, bin: bin, port: port}
	manifest := fmt.Sprintf("[supervisor]\nlisten = \"127.0.0.1:%d\"\nmetrics_listen = \"off\"\n[federation]\nmode = \"host\"\nheartbeat = %q\n[adapters]\n", port, heartbeat)
	return h, os.WriteFile(filepath.Join(dir, "agentbox.toml"), []byte(manifest), 0o644)
}

func (h *host) url() string { return fmt.Sprintf("http://127.0.0.1:%d", h.port) }

// start starts the host on the first processor and waits until it is ready.
func (h *host) start(ctx context.Context) error {
	cmd := exec.Command("taskset", "-c", "0", h.bin, "--manifest", filepath.Join(h.dir, "agentbox.toml"), "--root", h.dir)
	cmd.Env = append(os.Environ(), "MANAGEMENT_API_KEY="+token, "MANAGEMENT_API_HOST=127.0.0.1", "AGENTBOX_FEDERATION_TOKEN="+token+"-boxes")
	server, err := foreign.Start(ctx, cmd, h.dir, foreign.Answers(h.url()+"/ready"))
	if err != nil {
		return err
	}
	h.cmd, h.server = cmd, server
	return nil
}

// kill ends the host without a shutdown, like a power cut.
func (h *host) kill() {
	_ = h.cmd.Process.Kill() // taskset has exec'ed agentinit
	h.server.Stop()
}

func (h *host) remove() {
	h.server.Stop()
	_ = os.RemoveAll(h.dir) // scratch directory
}

// usage is the resources that the host has used so far.
type usage struct {
	cpu                 time.Duration
	rss, peak, registry int64 // bytes
}

// userHz is the unit of times in /proc/PID/stat on every current Linux (proc(5)).
const userHz = 100

func (h *host) usage() usage {
	var u usage
	proc := fmt.Sprintf("/proc/%d/", h.cmd.Process.Pid)
	if stat, err := os.ReadFile(proc + "stat"); err == nil {
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		for _, i := range []int{11, 12} { // utime and stime; the index counts from the field "state"
			ticks, _ := strconv.ParseInt(fields[i], 10, 64)
			u.cpu += time.Duration(ticks) * time.Second / userHz
		}
	}
	status, _ := os.ReadFile(proc + "status") // a host that has ended uses no memory
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "VmRSS":
			u.rss = n << 10
		case "VmHWM":
			u.peak = n << 10
		}
	}
	files, _ := filepath.Glob(filepath.Join(h.dir, "workspace", "federation.db*"))
	for _, f := range files {
		if info, err := os.Stat(f); err == nil {
			u.registry += info.Size()
		}
	}
	return u
}
