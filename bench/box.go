package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// box is one running init and the FIFO to which its programs report.
type box struct {
	dir   string
	cmd   *exec.Cmd
	fifo  *os.File
	begun time.Time    // when the init was exec'ed
	told  map[byte]int // reports that were read before a call of expect asked for them, by kind
}

// open starts peer p with n copies of command. It returns when the init has been exec'ed.
func (l *lab) open(ctx context.Context, p peer, n int, command []string, env ...string) (*box, error) {
	dir, err := os.MkdirTemp(l.dir, "box")
	if err != nil {
		return nil, err
	}
	argv, err := p.setup(dir, n, command)
	if err != nil {
		return nil, err
	}
	name := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		return nil, err
	}
	// The FIFO is also opened for writing: otherwise a read returns end of file while no writer has
	// it open.
	fifo, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, l.path("start"), argv...)
	cmd.Env = append(os.Environ(), append(env, "BENCH_FIFO="+name)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if l.root {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, errors.Join(err, fifo.Close())
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, fifo.Close())
	}
	b := &box{dir: dir, cmd: cmd, fifo: fifo, told: map[byte]int{}}
	if err := b.expect('S', 1); err != nil {
		return nil, errors.Join(err, b.kill())
	}
	b.begun = time.Now()
	return b, nil
}

// reportSize is the size of every report. A write of this size is atomic (pipe(7)).
const reportSize = 16

// expect reads reports until n reports of this kind have arrived. If none arrives for two minutes,
// the error quotes the last output of the init.
func (b *box) expect(kind byte, n int) error {
	buf := make([]byte, reportSize*256)
	for b.told[kind] < n {
		if err := b.fifo.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
			return err
		}
		m, err := b.fifo.Read(buf)
		if err != nil {
			log, readErr := os.ReadFile(filepath.Join(b.dir, "log"))
			return errors.Join(fmt.Errorf("%d reports %q missing: %w; log: %.300s", n-b.told[kind], kind, err, log), readErr)
		}
		if m%reportSize != 0 {
			return fmt.Errorf("half a report: %q", buf[:m])
		}
		for at := 0; at < m; at += reportSize {
			b.told[buf[at]]++
		}
	}
	b.told[kind] -= n
	return nil
}

// drain discards the reports that have arrived so far.
func (b *box) drain() error {
	if err := b.fifo.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		return err
	}
	clear(b.told)
	_, err := io.Copy(io.Discard, b.fifo)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

func (b *box) pid() int { return b.cmd.Process.Pid }

// stop sends TERM and waits until the init has ended.
func (b *box) stop() error {
	if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return errors.Join(err, b.kill())
	}
	return b.wait()
}

// kill kills the init with its programs and waits until the init has ended. Every measurement that
// fails calls it: otherwise the box would run beside all later ones.
func (b *box) kill() error {
	killTree(b.pid())
	return b.wait()
}

func (b *box) wait() error { return errors.Join(b.reap(), b.fifo.Close()) }

// reap waits until the init has ended. Its exit status does not matter.
func (b *box) reap() error {
	err := b.cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil
	}
	return err
}

// cgroups is the directory in which the init has made a cgroup for each program, or "" if it has
// made none.
func (b *box) cgroups() string {
	for _, p := range victims(b.pid(), "prog") {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p))
		if err != nil {
			continue // the process has ended
		}
		for line := range strings.Lines(string(data)) {
			path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
			if base := filepath.Dir(path); ok && strings.HasPrefix(filepath.Base(base), "agentinit-") {
				return base
			}
		}
	}
	return ""
}

// removeEmpty removes the cgroups that a killed init has left behind.
func removeEmpty(base string) error {
	if base == "" {
		return nil
	}
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		entries, err := os.ReadDir(filepath.Join(mount, base))
		if err != nil {
			continue // the path belongs to the other cgroup hierarchy
		}
		for _, e := range entries {
			if e.IsDir() {
				err = errors.Join(err, os.Remove(filepath.Join(mount, base, e.Name())))
			}
		}
		return errors.Join(err, os.Remove(filepath.Join(mount, base)))
	}
	return nil
}

// killTree kills an init and all processes below it. Without a pid namespace, the programs would
// outlive the init. The init goes first: it would start a killed program again, and the output of
// that start would be counted.
func killTree(pid int) {
	for _, p := range append([]int{pid}, descendants(pid)...) {
		// If the process has ended already, that is fine.
		_ = syscall.Kill(p, syscall.SIGKILL)
	}
}

// descendants lists the processes below pid, as the host numbers them.
func descendants(pid int) []int {
	var all []int
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		for word := range strings.FieldsSeq(string(data)) {
			if child, err := strconv.Atoi(word); err == nil {
				all = append(all, child)
				all = append(all, descendants(child)...)
			}
		}
	}
	return all
}

// victims lists the processes below pid that run the program called name. It compares the
// executable file, because s6 and runit give every program the comm "run".
func victims(pid int, name string) []int {
	return slices.DeleteFunc(descendants(pid), func(p int) bool {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p))
		return err != nil || filepath.Base(exe) != name
	})
}

// zombies counts the processes below pid that have ended and are not yet reaped.
func zombies(pid int) int {
	n := 0
	for _, p := range descendants(pid) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
		if err == nil && strings.Contains(string(stat), ") Z ") {
			n++
		}
	}
	return n
}

// helpers lists an init and the processes that belong to it. s6 and runit have one supervise process
// for each service. The programs, which run the file called program, are left out.
func helpers(pid int, program string) []int {
	programs := victims(pid, program)
	return slices.DeleteFunc(append(descendants(pid), pid), func(p int) bool { return slices.Contains(programs, p) })
}

// switches is how often each process of an init was switched to and from a processor. The programs
// are left out.
func switches(pid int, program string) (map[int]int, error) {
	all := map[int]int{}
	for _, p := range helpers(pid, program) {
		n, err := sumStatus(p, "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
		if err != nil {
			return nil, err
		}
		all[p] = n
	}
	return all, nil
}

// sumStatus adds up numeric fields of /proc/PID/task/*/status.
func sumStatus(pid int, fields ...string) (int, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("no threads of %d: %v", pid, err)
	}
	sum := 0
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		for line := range strings.Lines(string(data)) {
			key, value, _ := strings.Cut(line, ":")
			if slices.Contains(fields, key) {
				n, err := strconv.Atoi(strings.Fields(value)[0])
				if err != nil {
					return 0, err
				}
				sum += n
			}
		}
	}
	return sum, nil
}

// pss is the proportional set size of an init and its helpers in KiB. The programs are left out.
func pss(pid int, program string) (int, error) {
	sum := 0
	for _, p := range helpers(pid, program) {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p))
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(data)) {
			if value, ok := strings.CutPrefix(line, "Pss:"); ok {
				n, err := strconv.Atoi(strings.Fields(value)[0])
				if err != nil {
					return 0, err
				}
				sum += n
			}
		}
	}
	return sum, nil
}
