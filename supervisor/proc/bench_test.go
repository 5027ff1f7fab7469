package proc

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/highfd"
	"github.com/dreamlab-ai/agentinit/supervisor/proc/filter"
)

// pauseProgram is the program that starts fastest: a static C program if there is a compiler, else
// sleep(1).
func pauseProgram(b *testing.B) Command {
	b.Helper()
	src, bin := b.TempDir()+"/pause.c", b.TempDir()+"/pause"
	if err := os.WriteFile(src, []byte("#include <unistd.h>\nint main(void){pause();return 0;}\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	if err := exec.Command("cc", "-O2", "-static", "-o", bin, src).Run(); err == nil {
		return Command{Path: bin}
	}
	return Command{Path: "/bin/sleep", Args: []string{"sleep", "1000"}}
}

// BenchmarkStart1000 starts 1000 programs that stay, from the given number of goroutines.
func BenchmarkStart1000(b *testing.B) {
	for _, tc := range []struct {
		name    string
		workers int
		open    int // descriptors with high numbers, as agentinit holds for its programs
		opts    Options
	}{
		{"workers=1", 1, 0, Options{}}, {"workers=2", 2, 0, Options{}}, {"workers=8", 8, 0, Options{}},
		{"workers=2,cgroups", 2, 0, Options{Cgroups: true}},
		{"workers=2,open=3000", 2, 3000, Options{}},
	} {
		b.Run(tc.name, func(b *testing.B) {
			for range tc.open {
				r, w, err := os.Pipe()
				if err != nil {
					b.Fatal(err)
				}
				fd, err := unix.FcntlInt(r.Fd(), unix.F_DUPFD_CLOEXEC, highfd.First)
				if err := errors.Join(err, r.Close(), w.Close()); err != nil {
					b.Fatal(err)
				}
				defer unix.Close(fd)
			}
			cmd, workers := pauseProgram(b), tc.workers
			o := newOwner(b, tc.opts)
			b.ResetTimer()
			for range b.N {
				startMany(b, o, cmd, 1000, workers)
				b.StopTimer()
				killAllOf(b, o)
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N)/1000, "ms/start")
		})
	}
}

// BenchmarkStart1000Floor is the lower bound: the same with only fork and exec.
func BenchmarkStart1000Floor(b *testing.B) {
	cmd := pauseProgram(b)
	for range b.N {
		pids := make([]int, 0, 1000)
		for range 1000 {
			pid, err := syscall.ForkExec(cmd.Path, cmd.argv(), &syscall.ProcAttr{Sys: &syscall.SysProcAttr{Setsid: true}})
			if err != nil {
				b.Fatal(err)
			}
			pids = append(pids, pid)
		}
		b.StopTimer()
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				b.Fatal(err)
			}
			if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N)/1000, "ms/start")
}

func startMany(b *testing.B, o *Owner, cmd Command, n, workers int) {
	b.Helper()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range n / workers {
				if _, err := o.Start(cmd); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func killAllOf(b *testing.B, o *Owner) {
	b.Helper()
	o.mu.Lock()
	ids := make([]uint64, 0, len(o.byID))
	for id := range o.byID {
		ids = append(ids, id)
	}
	o.mu.Unlock()
	for _, id := range ids {
		if err := o.Kill(id); err != nil {
			b.Fatal(err)
		}
	}
	for left := len(ids); left > 0; {
		if e := <-o.Exits(); e.Kind == Emptied {
			left--
		}
	}
}

// BenchmarkKillNotice is the time from a kill to its notice, with 1000 other programs alive.
func BenchmarkKillNotice(b *testing.B) {
	cmd := pauseProgram(b)
	o := newOwner(b, Options{})
	startMany(b, o, cmd, 1000, 2)
	b.Cleanup(func() { killAllOf(b, o) })
	b.ResetTimer()
	for range b.N {
		p, err := o.Start(cmd)
		if err != nil {
			b.Fatal(err)
		}
		if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
			b.Fatal(err)
		}
		for e := range o.Exits() {
			if e.ID == p.ID && e.Kind == Emptied {
				break
			}
		}
	}
}

// BenchmarkStart is the time of one start, from the call to the program's exec.
func BenchmarkStart(b *testing.B) {
	ballast := make([][]byte, 30) // as large as the heap of a box: a plain fork would have to copy its page tables
	for i := range ballast {
		ballast[i] = make([]byte, 1<<20)
		for j := 0; j < len(ballast[i]); j += 4096 {
			ballast[i][j] = 1
		}
	}
	strict := compiled(b, filter.Policy{Preset: "strict"})
	score, umask, nice := 200, 0o027, 5
	limits := map[string]Rlimit{"nofile": {1000, 1000}, "core": {0, 0}, "nproc": {5000, 5000}}
	for _, tc := range []struct {
		name  string
		shape func(*Command)
	}{
		{"plain", func(*Command) {}},
		{"limits", func(c *Command) { c.Rlimits, c.Umask, c.Nice, c.NoNewPrivs = limits, &umask, &nice, true }},
		{"guard", func(c *Command) { c.Guard = GuardFull }},
		{"guard, refusals told", func(c *Command) { c.Guard, c.Refused = GuardFull, func(Refusal) {} }},
		{"guard,limits,sandbox", func(c *Command) {
			c.Guard, c.Rlimits, c.Umask, c.Nice = GuardFull, limits, &umask, &nice
			c.Sandbox = &Sandbox{
				Read: []string{"/"}, Execute: []string{"/"}, Write: []string{"/tmp"}, TCPBind: []int{80}, TCPConnect: []int{443},
				Capabilities: []int{}, Filter: strict,
			}
		}},
		{"score", func(c *Command) { c.OOMScoreAdj = &score }},
		{"score,limits", func(c *Command) {
			c.OOMScoreAdj, c.Rlimits, c.Umask, c.Nice, c.NoNewPrivs = &score, limits, &umask, &nice, true
		}},
	} {
		b.Run(tc.name, func(b *testing.B) {
			cmd := pauseProgram(b)
			tc.shape(&cmd)
			o := newOwner(b, Options{})
			b.ResetTimer()
			for i := range b.N {
				if _, err := o.Start(cmd); err != nil {
					b.Fatal(err)
				}
				if i%200 == 199 {
					b.StopTimer()
					killAllOf(b, o)
					b.StartTimer()
				}
			}
			b.StopTimer()
			killAllOf(b, o)
		})
	}
	runtime.KeepAlive(ballast)
}
