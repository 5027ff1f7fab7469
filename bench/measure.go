package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// measurement is one row of questions asked of every peer. An empty answer means
// that it does not apply.
type measurement struct {
	name, unit string
	run        func(context.Context, *lab, peer) (string, error)
}

func measurements(quick bool) []measurement {
	var all []measurement
	sizes, times := []int{1, 10, 100, 1000}, 5
	if quick {
		sizes, times = []int{1, 10, 100}, 3
	}
	for _, n := range sizes {
		all = append(all, measurement{fmt.Sprintf("boot of %d programs, from exec", n), "median ms",
			func(ctx context.Context, l *lab, p peer) (string, error) { return boot(ctx, l, p, n, times) }})
		all = append(all, measurement{fmt.Sprintf("boot of %d programs, each in a cgroup where the init makes one", n), "median ms",
			func(ctx context.Context, l *lab, p peer) (string, error) {
				if p.name != "agentinit" && p.name != floorName {
					return "", nil // no other makes one
				}
				return boot(ctx, l, p, n, times, "BENCH_CGROUPS=1")
			}})
	}
	all = append(all,
		measurement{"killed program running again", "p50 / p99 ms of 200", restart},
		measurement{"20,000 orphans reaped", "ms; peak zombies; left", orphans},
		measurement{"status of 100 programs, whole command", "median ms of 100", status},
		measurement{"context switches when idle, 100 programs", "in 5 s", idle},
		measurement{"SIGTERM to gone, 100 programs", "median ms", func(ctx context.Context, l *lab, p peer) (string, error) { return shutdown(ctx, l, p, times) }},
		measurement{"10 programs that ignore TERM, KILL after 2 s", "median ms beyond the 2 s", func(ctx context.Context, l *lab, p peer) (string, error) { return stubborn(ctx, l, p, times) }},
	)
	for _, n := range []int{1, 100, 1000} {
		if quick && n > 100 {
			continue
		}
		all = append(all, measurement{fmt.Sprintf("own memory with %d programs", n), "PSS, MiB",
			func(ctx context.Context, l *lab, p peer) (string, error) { return memory(ctx, l, p, n) }})
	}
	for _, c := range []struct {
		name    string
		n, size int
	}{{"capture of 1 GiB of lines to rotated files", 1, 1 << 30}, {"capture of 200 programs of 5 MiB each", 200, 5 << 20}} {
		if quick {
			c.name, c.size = c.name+", a sixteenth", c.size/16
		}
		all = append(all, measurement{c.name, "MB/s; CPU s of the init and its loggers; lines",
			func(ctx context.Context, l *lab, p peer) (string, error) { return capture(ctx, l, p, c.n, c.size) }})
	}
	return append(all,
		measurement{"init mode: -- /bin/true, whole command", "median ms of 50", initStart},
		measurement{"init mode: memory", "RssAnon, KiB", initMemory})
}

func median(d []time.Duration) string { return ms(quantile(d, 0.5)) }

func quantile(d []time.Duration, q float64) time.Duration {
	slices.Sort(d)
	return d[min(int(q*float64(len(d))), len(d)-1)]
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d.Microseconds())/1000) }

// rest is what the machine gets to clear away what was killed before the next
// start is measured.
const rest = 100 * time.Millisecond

func boot(ctx context.Context, l *lab, p peer, n, times int, env ...string) (string, error) {
	if n <= 10 {
		times *= 5 // short ones vary more
	}
	var took []time.Duration
	for range times {
		time.Sleep(rest)
		b, err := l.open(ctx, p, n, []string{l.path("prog")}, env...)
		if err != nil {
			return "", err
		}
		err = b.expect('B', n)
		took = append(took, time.Since(b.begun))
		groups := b.cgroups()
		if killErr := b.kill(); err == nil {
			err = killErr
		}
		if err == nil {
			err = removeEmpty(groups)
		}
		if err != nil {
			return "", err
		}
	}
	return median(took), nil
}

// settled opens a box of n programs and waits until all have begun and a second
// has passed, so that what follows measures the resting init.
func settled(ctx context.Context, l *lab, p peer, n int, env ...string) (*box, error) {
	b, err := l.open(ctx, p, n, []string{l.path("prog")}, env...)
	if err != nil {
		return nil, err
	}
	if err := b.expect('B', n); err != nil {
		killTree(b.pid())
		return nil, err
	}
	time.Sleep(1500 * time.Millisecond)
	return b, b.drain()
}

func restart(ctx context.Context, l *lab, p peer) (string, error) {
	const kills = 200
	b, err := settled(ctx, l, p, 10)
	if err != nil {
		return "", err
	}
	var took []time.Duration
	end := time.Now().Add(30 * time.Second) // peers that wait a second per restart
	for len(took) < kills && time.Now().Before(end) {
		live := victims(b.pid(), "prog")
		if len(live) == 0 {
			return "", fmt.Errorf("no program left; %v", b.kill())
		}
		began := time.Now()
		if err := syscall.Kill(live[len(took)%len(live)], syscall.SIGKILL); err != nil {
			return "", err
		}
		if err := b.expect('B', 1); err != nil {
			return "", err
		}
		took = append(took, time.Since(began))
	}
	return fmt.Sprintf("%s / %s", ms(quantile(took, 0.5)), ms(quantile(took, 0.99))), b.kill()
}

// orphans is measured twice: who counts zombies takes time from the reaper, and
// more of it the more threads that has.
func orphans(ctx context.Context, l *lab, p peer) (string, error) {
	took, left, err := reap(ctx, l, p, func(*box) {})
	if err != nil {
		return "", err
	}
	peak := 0
	if _, _, err = reap(ctx, l, p, func(b *box) { peak = max(peak, zombies(b.pid())) }); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s; %d; %d", ms(took), peak, left), nil
}

// reap has 20,000 orphans made and waits until no zombie is left, for five seconds
// at most. Meanwhile look is called every 5 ms.
func reap(ctx context.Context, l *lab, p peer, look func(*box)) (took time.Duration, left int, err error) {
	b, err := l.open(ctx, p, 1, []string{l.path("orphans"), "20000"})
	if err != nil {
		return 0, 0, err
	}
	done := make(chan error, 1)
	go func() { done <- b.expect('D', 1) }()
	for took == 0 {
		select {
		case err := <-done:
			if err != nil {
				return 0, 0, errors.Join(err, b.kill())
			}
			took = time.Since(b.begun)
		case <-time.After(5 * time.Millisecond):
			look(b)
		}
	}
	left = zombies(b.pid())
	for end := time.Now().Add(5 * time.Second); left > 0 && time.Now().Before(end); left = zombies(b.pid()) {
		took = time.Since(b.begun)
		time.Sleep(time.Millisecond)
	}
	return took, left, b.kill()
}

func status(ctx context.Context, l *lab, p peer) (string, error) {
	if p.status == nil {
		return "", nil
	}
	b, err := settled(ctx, l, p, 100)
	if err != nil {
		return "", err
	}
	var took []time.Duration
	for range 100 {
		argv := p.status(b.dir)
		began := time.Now()
		out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
		took = append(took, time.Since(began))
		if err != nil {
			return "", fmt.Errorf("%w: %.200s; %v", err, out, b.kill())
		}
	}
	return median(took), b.kill()
}

func idle(ctx context.Context, l *lab, p peer) (string, error) {
	b, err := settled(ctx, l, p, 100)
	if err != nil {
		return "", err
	}
	fields := []string{"voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"}
	before, err := sumStatus(b.pid(), fields...)
	if err != nil {
		return "", err
	}
	time.Sleep(5 * time.Second)
	after, err := sumStatus(b.pid(), fields...)
	if err != nil {
		return "", err
	}
	return fmt.Sprint(after - before), b.kill()
}

func memory(ctx context.Context, l *lab, p peer, n int) (string, error) {
	b, err := settled(ctx, l, p, n)
	if err != nil {
		return "", err
	}
	kib, err := pss(b.pid(), "prog")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%.1f", float64(kib)/1024), b.kill()
}

func shutdown(ctx context.Context, l *lab, p peer, times int) (string, error) {
	var took []time.Duration
	for range times {
		b, err := settled(ctx, l, p, 100)
		if err != nil {
			return "", err
		}
		if p.name == "runit" {
			return "", b.kill() // runsvdir stops its services on HUP only
		}
		handled := make(chan error, 1)
		go func() { handled <- b.expect('T', 100) }()
		began := time.Now()
		// The fifo must stay open until every report is read.
		if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return "", err
		}
		state, err := b.cmd.Process.Wait()
		took = append(took, time.Since(began))
		if err != nil {
			return "", fmt.Errorf("%w (%v)", err, state)
		}
		if err := <-handled; err != nil {
			return "", err
		}
		if err := b.fifo.Close(); err != nil {
			return "", err
		}
	}
	return median(took), nil
}

// ladder is how long every peer is told to wait between TERM and KILL.
const ladder = 2 * time.Second

func stubborn(ctx context.Context, l *lab, p peer, times int) (string, error) {
	if p.name == "runit" {
		return "", nil // never kills
	}
	var beyond []time.Duration
	for range times {
		b, err := settled(ctx, l, p, 10, "IGNORE_TERM=1")
		if err != nil {
			return "", err
		}
		began := time.Now()
		if err := b.stop(); err != nil {
			return "", err
		}
		beyond = append(beyond, time.Since(began)-ladder)
	}
	return median(beyond), nil
}

// initCommand is the command line of an init of one child.
func initCommand(l *lab, p peer, child ...string) []string {
	switch p.name {
	case "agentinit":
		return append([]string{filepath.Join(l.bin, "agentinit"), "--"}, child...)
	case floorName:
		if found("tini") {
			return append([]string{"tini", "-s", "--"}, child...)
		}
	}
	return nil
}

func initStart(ctx context.Context, l *lab, p peer) (string, error) {
	argv := initCommand(l, p, "/bin/true")
	if argv == nil {
		return "", nil
	}
	var took []time.Duration
	for range 50 {
		began := time.Now()
		if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
		took = append(took, time.Since(began))
	}
	return median(took) + " (" + argv[0][strings.LastIndex(argv[0], "/")+1:] + ")", nil
}

func initMemory(ctx context.Context, l *lab, p peer) (string, error) {
	argv := initCommand(l, p, "/bin/sleep", "60")
	if argv == nil {
		return "", nil
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	if err := cmd.Start(); err != nil {
		return "", err
	}
	time.Sleep(300 * time.Millisecond)
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	killTree(cmd.Process.Pid)
	// Killed on purpose: its status says nothing.
	_ = cmd.Wait()
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			return strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), err
		}
	}
	return "", err
}
