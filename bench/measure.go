package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// measurement is one measurement of every peer for which on returns true. run returns a number for
// each column.
type measurement struct {
	title   string
	columns []Column
	rounds  int
	on      func(peer) bool
	run     func(context.Context, *lab, peer) ([]float64, error)
}

func supervises(p peer) bool   { return p.setup != nil }
func hasStatus(p peer) bool    { return p.status != nil }
func capturesLogs(p peer) bool { return p.capture != nil }
func runsOneChild(p peer) bool { return p.init != nil }
func isOurs(p peer) bool       { return p.name == ours }
func makesCgroups(p peer) bool { return p.name == ours || p.name == floorName }

// stopsOnTerm excludes runit: runsvdir stops its services only on HUP and never sends KILL.
func stopsOnTerm(p peer) bool { return p.setup != nil && p.name != "runit" }

// The peers that goals refer to.
const (
	ours        = "agentinit"
	floorName   = "floor (C loop)"
	dinitName   = "dinit"
	superName   = "supervisord"
	tiniName    = "tini"
	startRounds = 3 // start-up takes milliseconds, so it gets this many times more rounds
)

func ofDinit(times float64) []Goal { return []Goal{{Times: times, Of: dinitName}} }

func measurements(o options) []measurement {
	all := append(boots(o), controls(o)...)
	all = append(all, memories(o)...)
	return append(append(all, captures(o)...), initMode(o)...)
}

func boots(o options) []measurement {
	var all []measurement
	for _, size := range []struct {
		programs int
		goal     float64
	}{{1, 2.5}, {10, 1}, {100, 1}, {1000, 1}} {
		n, rounds := size.programs, o.rounds
		if o.quick && n > 100 {
			continue
		}
		if n <= 10 {
			rounds *= startRounds
		}
		all = append(all, measurement{fmt.Sprintf("boot of %d programs, from exec", n),
			[]Column{{Name: "all run", Unit: "ms", Goals: ofDinit(size.goal)}}, rounds, supervises,
			func(ctx context.Context, l *lab, p peer) ([]float64, error) { return boot(ctx, l, p, n) }})
	}
	last := 1000
	if o.quick {
		last = 100
	}
	return append(all, measurement{fmt.Sprintf("boot of %d programs, each in a cgroup where the init makes one", last),
		[]Column{{Name: "all run", Unit: "ms"}}, o.rounds, makesCgroups,
		func(ctx context.Context, l *lab, p peer) ([]float64, error) {
			return boot(ctx, l, p, last, "BENCH_CGROUPS=1")
		}}, measurement{fmt.Sprintf("start of %d programs until the status command says so", last),
		[]Column{{Name: "all reported", Unit: "ms", Goals: ofDinit(1.2)}}, o.rounds, hasStatus,
		func(ctx context.Context, l *lab, p peer) ([]float64, error) { return reported(ctx, l, p, last) }})
}

func controls(o options) []measurement {
	all := []measurement{
		{"killed program running again, 200 times in at most 10 s", []Column{
			{Name: "p50", Unit: "ms", Goals: ofDinit(0.9)}, {Name: "p99", Unit: "ms", Goals: ofDinit(0.9)}, {Name: "samples", Count: true}}, o.rounds, supervises, restart},
		{"20,000 orphans reaped", []Column{
			{Name: "all gone", Unit: "ms", Goals: []Goal{{Times: 1.05, Of: floorName}}}, {Name: "peak", Unit: "zombies", Goals: []Goal{{Times: 60}}},
			{Name: "left", Unit: "zombies", Goals: []Goal{{Times: 0}}}}, o.rounds, supervises, orphans},
		{"status of 100 programs, whole command", []Column{{Name: "median of 50", Unit: "ms", Goals: ofDinit(1.5)}}, o.rounds, hasStatus, status},
		{"100 programs at rest, 5 s", []Column{{Name: "context switches", Unit: "", Goals: []Goal{{Times: 0}}}}, min(o.rounds, 2), supervises, idle},
		{"10 programs that ignore TERM, KILL after 2 s", []Column{{Name: "beyond the 2 s", Unit: "ms", Goals: ofDinit(2)}}, o.rounds, stopsOnTerm, stubborn},
	}
	for _, n := range []int{100, 1000} {
		if o.quick && n > 100 {
			continue
		}
		all = append(all, measurement{fmt.Sprintf("SIGTERM to gone, %d programs that all handle it", n),
			[]Column{{Name: "gone", Unit: "ms", Goals: ofDinit(1.2)}}, o.rounds, stopsOnTerm,
			func(ctx context.Context, l *lab, p peer) ([]float64, error) { return shutdown(ctx, l, p, n) }})
	}
	return all
}

func memories(o options) []measurement {
	var all []measurement
	for _, size := range []struct {
		programs   int
		bare, full float64
	}{{1, 5, 12}, {100, 6.5, 14}, {1000, 14, 22}} {
		n := size.programs
		if o.quick && n > 100 {
			continue
		}
		all = append(all,
			measurement{fmt.Sprintf("own memory with %d programs", n), []Column{{Name: "PSS", Unit: "MiB", Goals: []Goal{{Times: size.bare}}}}, min(o.rounds, 3), supervises,
				func(ctx context.Context, l *lab, p peer) ([]float64, error) { return memory(ctx, l, p, n) }},
			measurement{fmt.Sprintf("own memory with %d programs, listeners and slots on", n), []Column{{Name: "PSS", Unit: "MiB", Goals: []Goal{{Times: size.full}}}}, min(o.rounds, 3), isOurs,
				func(ctx context.Context, l *lab, p peer) ([]float64, error) {
					p.setup = l.agentinitFull
					return memory(ctx, l, p, n, ready)
				}})
	}
	most := 1000
	if o.quick {
		most = 100
	}
	return append(all, measurement{fmt.Sprintf("%d programs, listeners on, the console off and on", most), []Column{
		{Name: "all run, off", Unit: "ms"}, {Name: "all run, on", Unit: "ms"}, {Name: "PSS off", Unit: "MiB"}, {Name: "PSS on", Unit: "MiB"}},
		o.rounds, isOurs, func(ctx context.Context, l *lab, p peer) ([]float64, error) { return console(ctx, l, p, most) }})
}

func captures(o options) []measurement {
	var all []measurement
	for _, c := range []struct {
		name    string
		n, size int
	}{{"capture of 1 GiB of lines of one program", 1, 1 << 30}, {"capture of 200 programs of 5 MiB each", 200, 5 << 20}} {
		if o.quick {
			c.name, c.size = c.name+", a sixteenth", c.size/16
		}
		all = append(all, measurement{c.name, []Column{
			{Name: "speed", Unit: "MB/s", Higher: true, Goals: []Goal{{Times: 0.9, Of: floorName}, {Times: 1, Of: superName}}},
			{Name: "CPU", Unit: "s", Goals: []Goal{{Times: 1, Of: superName}}},
			{Name: "cut", Unit: "lines", Goals: []Goal{{Times: 0}}}, {Name: "lost", Unit: "lines", Goals: []Goal{{Times: 0}}}}, o.rounds, capturesLogs,
			func(ctx context.Context, l *lab, p peer) ([]float64, error) { return capture(ctx, l, p, c.n, c.size) }})
	}
	return all
}

func initMode(o options) []measurement {
	return []measurement{
		{"init mode: -- /bin/true, whole command", []Column{{Name: "median of 20", Unit: "ms", Goals: []Goal{{Times: 3, Of: tiniName}}}}, o.rounds, runsOneChild, initStart},
		{"init mode: memory", []Column{{Name: "PSS", Unit: "MiB", Goals: []Goal{{Times: 3}}}}, min(o.rounds, 3), runsOneChild, initMemory},
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// one is the result of a measurement with one column.
func one(v float64, err error) ([]float64, error) {
	if err != nil {
		return nil, err
	}
	return []float64{v}, nil
}

// rest is the pause before a start is measured. Meanwhile the kernel cleans up the processes that
// were killed before.
const rest = 100 * time.Millisecond

func boot(ctx context.Context, l *lab, p peer, n int, env ...string) ([]float64, error) {
	time.Sleep(rest)
	b, err := l.open(ctx, p, n, []string{l.path("prog")}, env...)
	if err != nil {
		return nil, err
	}
	err = b.expect('B', n)
	took := time.Since(b.begun)
	groups := b.cgroups()
	return one(ms(took), errors.Join(err, b.kill(), removeEmpty(groups)))
}

// reported runs the status command until it lists all programs as running. The command before the
// last was too early, so the error is at most the duration of one command.
func reported(ctx context.Context, l *lab, p peer, n int) ([]float64, error) {
	time.Sleep(rest)
	b, err := l.open(ctx, p, n, []string{l.path("prog")})
	if err != nil {
		return nil, err
	}
	argv := p.status(b.dir)
	for end := b.begun.Add(time.Minute); time.Now().Before(end); {
		// The command fails until the control socket exists, and while programs start.
		out, _ := exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
		if strings.Count(string(out), p.running) >= n {
			took := time.Since(b.begun)
			return one(ms(took), errors.Join(b.expect('B', n), b.kill()))
		}
	}
	return nil, errors.Join(errors.New("not all programs were reported within a minute"), b.kill())
}

// settled opens a box of n programs and waits until all have begun. Then it waits 1.5 seconds, so
// that the measurement that follows sees an idle init.
func settled(ctx context.Context, l *lab, p peer, n int, env ...string) (*box, error) {
	b, err := l.open(ctx, p, n, []string{l.path("prog")}, env...)
	if err != nil {
		return nil, err
	}
	if err := b.expect('B', n); err != nil {
		return nil, errors.Join(err, b.kill())
	}
	time.Sleep(1500 * time.Millisecond)
	if err := b.drain(); err != nil {
		return nil, errors.Join(err, b.kill())
	}
	return b, nil
}

func restart(ctx context.Context, l *lab, p peer) ([]float64, error) {
	b, err := settled(ctx, l, p, 10)
	if err != nil {
		return nil, err
	}
	took, err := b.restarts(200, 10*time.Second)
	if err = errors.Join(err, b.kill()); err != nil {
		return nil, err
	}
	return []float64{ms(quantile(took, 0.5)), ms(quantile(took, 0.99)), float64(len(took))}, nil
}

// restarts kills a program and waits until one runs again, kills times. It stops earlier when limit
// has passed, because some peers wait a second before each restart.
func (b *box) restarts(kills int, limit time.Duration) (took []time.Duration, err error) {
	for end := time.Now().Add(limit); len(took) < kills && time.Now().Before(end); {
		live := victims(b.pid(), "prog")
		if len(live) == 0 {
			return nil, errors.New("no program left")
		}
		began := time.Now()
		if err := syscall.Kill(live[len(took)%len(live)], syscall.SIGKILL); err != nil {
			return nil, err
		}
		if err := b.expect('B', 1); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}

// orphans runs the load twice, because counting zombies takes processor time from the reaper. The
// first run measures the time, the second run counts the zombies.
func orphans(ctx context.Context, l *lab, p peer) ([]float64, error) {
	took, left, err := reap(ctx, l, p, func(*box) {})
	if err != nil {
		return nil, err
	}
	peak := 0
	if _, _, err = reap(ctx, l, p, func(b *box) { peak = max(peak, zombies(b.pid())) }); err != nil {
		return nil, err
	}
	return []float64{ms(took), float64(peak), float64(left)}, nil
}

// reap makes 20,000 orphans and waits until no zombie is left, for at most five seconds. Until the
// orphans are made, it calls look every 5 ms.
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

func status(ctx context.Context, l *lab, p peer) ([]float64, error) {
	b, err := settled(ctx, l, p, 100)
	if err != nil {
		return nil, err
	}
	var took []time.Duration
	for range 50 {
		argv := p.status(b.dir)
		began := time.Now()
		out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
		took = append(took, time.Since(began))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %.200s", err, out), b.kill())
		}
	}
	return one(ms(quantile(took, 0.5)), b.kill())
}

func idle(ctx context.Context, l *lab, p peer) ([]float64, error) {
	b, err := settled(ctx, l, p, 100)
	if err != nil {
		return nil, err
	}
	before, err := switches(b.pid(), "prog")
	if err != nil {
		return nil, errors.Join(err, b.kill())
	}
	time.Sleep(5 * time.Second)
	after, err := switches(b.pid(), "prog")
	sum := 0
	for p, n := range after {
		sum += n - before[p] // 0 for a helper that was started meanwhile
	}
	return one(float64(sum), errors.Join(err, b.kill()))
}

// atRest is the time in which an init can release the memory that only its start needed.
const atRest = 2 * time.Second

// memory waits until each function of until returns, then for atRest.
func memory(ctx context.Context, l *lab, p peer, n int, until ...func(context.Context, *box) error) ([]float64, error) {
	b, err := settled(ctx, l, p, n)
	if err != nil {
		return nil, err
	}
	for _, holds := range until {
		if err := holds(ctx, b); err != nil {
			return nil, errors.Join(err, b.kill())
		}
	}
	time.Sleep(atRest)
	kib, err := pss(b.pid(), "prog")
	return one(float64(kib)/1024, errors.Join(err, b.kill()))
}

// console compares boxes that differ only in the console. No user logs in to the console.
func console(ctx context.Context, l *lab, p peer, programs int) ([]float64, error) {
	var times, sizes []float64
	for _, on := range []bool{false, true} {
		p.setup = l.agentinitConsole(on)
		took, err := boot(ctx, l, p, programs)
		if err != nil {
			return nil, err
		}
		size, err := memory(ctx, l, p, programs, ready)
		if err != nil {
			return nil, err
		}
		times, sizes = append(times, took...), append(sizes, size...)
	}
	return append(times, sizes...), nil
}

// ready waits until a box of agentinitFull has published that it is ready. From then on its slots
// are connected. ready reads the log, because a request to the box would change its memory.
func ready(ctx context.Context, b *box) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		log, err := os.ReadFile(filepath.Join(b.dir, "log"))
		if err != nil || bytes.Contains(log, []byte(`"ReadinessReached"`)) {
			return err
		}
	}
	return errors.New("the box is not ready within a minute")
}

func shutdown(ctx context.Context, l *lab, p peer, n int) ([]float64, error) {
	b, err := settled(ctx, l, p, n)
	if err != nil {
		return nil, err
	}
	handled := make(chan error, 1)
	go func() { handled <- b.expect('T', n) }()
	began := time.Now()
	if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return nil, errors.Join(err, b.kill())
	}
	err = b.reap()
	took := time.Since(began)
	// The FIFO must stay open until every report is read.
	return one(ms(took), errors.Join(err, <-handled, b.fifo.Close()))
}

// ladder is the configured time between TERM and KILL of every peer.
const ladder = 2 * time.Second

func stubborn(ctx context.Context, l *lab, p peer) ([]float64, error) {
	b, err := settled(ctx, l, p, 10, "IGNORE_TERM=1")
	if err != nil {
		return nil, err
	}
	began := time.Now()
	err = b.stop()
	return one(ms(time.Since(began)-ladder), err)
}

func initStart(ctx context.Context, l *lab, p peer) ([]float64, error) {
	argv := p.init("/bin/true")
	var took []time.Duration
	for range 20 {
		began := time.Now()
		if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%w: %s", err, out)
		}
		took = append(took, time.Since(began))
	}
	return one(ms(quantile(took, 0.5)), nil)
}

func initMemory(ctx context.Context, l *lab, p peer) ([]float64, error) {
	argv := p.init("/bin/sleep", "60")
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	time.Sleep(300 * time.Millisecond)
	kib, err := pss(cmd.Process.Pid, "sleep")
	killTree(cmd.Process.Pid)
	// The command was killed on purpose, so its exit status does not matter.
	_ = cmd.Wait()
	return one(float64(kib)/1024, err)
}
