package proc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/testprog/built"
)

// tester starts testprog and reads its output.
type tester struct {
	Process
	out *bufio.Scanner
}

func startTester(t testing.TB, o *Owner, c Command) tester {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	if err := r.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	c.Files = []*os.File{nil, w, os.Stderr}
	if c.Env == nil {
		c.Env = os.Environ()
	}
	p := mustStart(t, o, c)
	w.Close()
	return tester{p, bufio.NewScanner(r)}
}

func (p tester) line(t testing.TB) string {
	t.Helper()
	if !p.out.Scan() {
		t.Fatalf("no line from pid %d: %v", p.PID, p.out.Err())
	}
	return p.out.Text()
}

func (p tester) number(t testing.TB) int {
	t.Helper()
	n, err := strconv.Atoi(p.line(t))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func alivePID(pid int) bool {
	st, err := readStat(pid)
	return err == nil && !st.dead()
}

func prog(bin string, args ...string) Command {
	return Command{Path: bin, Args: append([]string{"testprog"}, args...)}
}

func TestKillFindsEscapees(t *testing.T) {
	bin := built.Path(t)
	o := newOwner(t, Options{})
	p := startTester(t, o, prog(bin, "double-fork"))
	escapee := p.number(t)
	p.line(t)
	if id, ok := o.Owns(escapee); id != p.ID || !ok {
		t.Errorf("escapee %d: Owns says %d, %v", escapee, id, ok)
	}
	if err := o.Kill(p.ID); err != nil {
		t.Fatal(err)
	}
	if e := next(t, o, p.ID, Emptied); e.Leaked != 0 {
		t.Errorf("leaked %d", e.Leaked)
	}
	if alivePID(escapee) {
		t.Errorf("escapee %d lives", escapee)
	}
}

// A process created with CLONE_PARENT is our child from its first moment, although it is not an
// orphan that the kernel gave us.
func TestSiblingsBelongToTheirMaker(t *testing.T) {
	bin := built.Path(t)
	for _, cgroups := range []bool{false, true} {
		t.Run(fmt.Sprintf("cgroups=%v", cgroups), func(t *testing.T) {
			o := newOwner(t, Options{Cgroups: cgroups})
			p := startTester(t, o, prog(bin, "sibling"))
			sibling := p.number(t)
			if id, ok := o.Owns(sibling); id != p.ID || !ok {
				t.Errorf("sibling %d: Owns says %d, %v", sibling, id, ok)
			}
			if err := o.Kill(p.ID); err != nil {
				t.Fatal(err)
			}
			if e := next(t, o, p.ID, Emptied); e.Leaked != 0 {
				t.Errorf("leaked %d", e.Leaked)
			}
			if alivePID(sibling) {
				t.Errorf("sibling %d lives", sibling)
			}
			p = startTester(t, o, prog(bin, "sibling"))
			sibling = p.number(t)
			if left := o.KillAll(patience); left != 0 || alivePID(sibling) {
				t.Errorf("%d left, sibling alive: %v", left, alivePID(sibling))
			}
		})
	}
}

// Owns may be called for a program between its exec and its registration, when its environment is
// unreadable. Owns then waits for the registration.
func TestOwnsWaitsForTheRegistration(t *testing.T) {
	bin := built.Path(t)
	o := newOwner(t, Options{})
	p := startTester(t, o, prog(bin, "sleep"))
	o.mu.Lock()
	run := o.byPID[p.PID]
	token := run.token
	delete(o.byPID, p.PID)
	delete(o.bySID, p.PID)
	run.token = "unreadable"
	clear(o.byPipe)
	o.forks, o.forking = 1, make(chan struct{})
	o.mu.Unlock()
	asked := make(chan uint64)
	go func() {
		id, _ := o.Owns(p.PID)
		asked <- id
	}()
	for met := false; !met; {
		o.mu.Lock()
		a := o.adopted[p.PID]
		met = a != nil && !a.pending
		o.mu.Unlock()
	}
	o.mu.Lock()
	run.token = token
	o.register(run, p.PID)
	o.mu.Unlock()
	if id := <-asked; id != p.ID {
		t.Errorf("Owns says %d, want %d", id, p.ID)
	}
	if err := o.Kill(p.ID); err != nil {
		t.Error(err)
	}
}

// An escapee whose first thread has ended is known by what its other threads tell: the tag in their
// environment or, without that, the pipes of its program.
func TestHeadlessEscapee(t *testing.T) {
	bin := built.Path(t)
	for name, c := range map[string]Command{
		"by its tag":   prog(bin, "double-fork", "headless"),
		"by its pipes": sh("exec env -u " + EnvTag + " " + bin + " double-fork headless"),
	} {
		t.Run(name, func(t *testing.T) {
			o := newOwner(t, Options{})
			p := startTester(t, o, c)
			escapee := p.number(t)
			p.line(t)
			if st := mustStat(t, escapee); !st.zombie() || st.dead() {
				t.Fatalf("the twin: %+v", st)
			}
			if id, ok := o.Owns(escapee); id != p.ID || !ok {
				t.Errorf("Owns says %d, %v; the program is %d", id, ok, p.ID)
			}
			if err := o.Kill(p.ID); err != nil {
				t.Fatal(err)
			}
			if e := next(t, o, p.ID, Emptied); e.Leaked != 0 || alivePID(escapee) {
				t.Errorf("got %+v, the escapee is alive: %v", e, alivePID(escapee))
			}
			o.KillAll(patience)
		})
	}
}

// TestTracelessEscapee states the limit of the search: the escapee has its own session, a parent
// that ended unseen, an empty environment, and no pipe of its program. Its program is unknown, but
// it is not taken for an outsider, and the end of the box kills it.
func TestTracelessEscapee(t *testing.T) {
	bin := built.Path(t)
	o := newOwner(t, Options{})
	p := startTester(t, o, prog(bin, "double-fork", "scrub"))
	escapee := p.number(t)
	p.line(t)
	if id, ok := o.Owns(escapee); id != 0 || !ok {
		t.Errorf("escapee %d: Owns says %d, %v", escapee, id, ok)
	}
	if err := o.Kill(p.ID); err != nil {
		t.Fatal(err)
	}
	next(t, o, p.ID, Emptied)
	if left := o.KillAll(patience); left != 0 || alivePID(escapee) {
		t.Errorf("%d left, escapee alive: %v", left, alivePID(escapee))
	}
}

func TestEmptiedWaitsForEscapees(t *testing.T) {
	bin := built.Path(t)
	o := newOwner(t, Options{})
	p := startTester(t, o, prog(bin, "setsid-escape"))
	escapee := p.number(t)
	next(t, o, p.ID, Exited)
	if got := o.members(p.ID); !slices.Equal(got, []int{escapee}) {
		t.Fatalf("members %v, want the escapee %d", got, escapee)
	}
	select {
	case e := <-o.Exits():
		t.Fatalf("announced while a member lives: %+v", e)
	default:
	}
	if err := o.Signal(p.ID, syscall.SIGTERM, ScopeTree); err != nil {
		t.Fatal(err)
	}
	next(t, o, p.ID, Emptied)
	if err := o.Signal(p.ID, syscall.SIGTERM, ScopeTree); !errors.Is(err, ErrNoProcess) {
		t.Errorf("signal to what is gone: %v", err)
	}
}

func TestKillStoppedAndTrees(t *testing.T) {
	bin := built.Path(t)
	o := newOwner(t, Options{})
	p := startTester(t, o, prog(bin, "stopped"))
	p.line(t)
	if err := o.Kill(p.ID); err != nil {
		t.Fatal(err)
	}
	if e := next(t, o, p.ID, Exited); e.Signal() != syscall.SIGKILL || !e.ByUs {
		t.Errorf("stopped: %+v", e)
	}
	next(t, o, p.ID, Emptied)

	// 1 + 3 + 9 + 27 processes, a third of them in their own sessions.
	p = startTester(t, o, prog(bin, "fork-tree", "3", "3"))
	for range 40 {
		p.line(t)
	}
	members := o.members(p.ID)
	if len(members) != 40 {
		t.Errorf("%d members, want 40", len(members))
	}
	if err := o.Kill(p.ID); err != nil {
		t.Fatal(err)
	}
	if e := next(t, o, p.ID, Emptied); e.Leaked != 0 {
		t.Errorf("leaked %d", e.Leaked)
	}
	for _, pid := range members {
		if alivePID(pid) {
			t.Errorf("member %d lives", pid)
		}
	}
}

// A process that repeatedly replaces itself by a child in a new session is gone each time when
// agentinit looks for it. Kill still ends it.
func TestKillOutrunsReforking(t *testing.T) {
	bin := built.Path(t)
	o := newOwner(t, Options{})
	p := startTester(t, o, prog(bin, "refork"))
	next(t, o, p.ID, Exited)
	if err := o.Kill(p.ID); err != nil && !errors.Is(err, ErrNoProcess) {
		t.Fatal(err)
	}
	if e := next(t, o, p.ID, Emptied); e.Leaked != 0 {
		t.Errorf("leaked %d", e.Leaked)
	}
	if left := strays(t, bin); len(left) > 0 {
		t.Errorf("left alive: %v", left)
		for _, pid := range left {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// strays returns the living processes that execute that file.
func strays(t *testing.T, bin string) []int {
	t.Helper()
	var pids []int
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if exe, err := os.Readlink(link); err == nil && exe == bin {
			pid, err := strconv.Atoi(strings.Split(link, "/")[2])
			if err == nil && alivePID(pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func TestKillForkBomb(t *testing.T) {
	o := newOwner(t, Options{})
	// Each generation doubles. The depth in the argument limits the bomb to about 2^9 processes.
	c := sh(`b() { if [ $1 -gt 0 ]; then b $(($1-1)) & b $(($1-1)) & wait; fi; sleep 1000; }; b 8`)
	p := mustStart(t, o, c)
	for len(o.members(p.ID)) < 20 {
		if !alivePID(p.PID) {
			t.Fatal("it ended by itself")
		}
	}
	if err := o.Kill(p.ID); err != nil {
		t.Fatal(err)
	}
	if e := next(t, o, p.ID, Emptied); e.Leaked != 0 {
		t.Errorf("leaked %d", e.Leaked)
	}
}

func TestScopes(t *testing.T) {
	bin := built.Path(t)
	for _, scope := range []Scope{ScopeProcess, ScopeGroup} {
		t.Run(scope.String(), func(t *testing.T) {
			o := newOwner(t, Options{})
			c := sh(bin + " sleep & echo $!; " + bin + " setsid-escape; exec " + bin + " sleep")
			c.Scope = scope
			p := startTester(t, o, c)
			inGroup, escapee := p.number(t), p.number(t)
			if err := o.Kill(p.ID); err != nil {
				t.Fatal(err)
			}
			if e := next(t, o, p.ID, Emptied); e.Leaked != 0 {
				t.Errorf("leaked %d", e.Leaked)
			}
			if got := alivePID(inGroup); got != (scope == ScopeProcess) {
				t.Errorf("member of the group alive: %v", got)
			}
			if !alivePID(escapee) {
				t.Error("the escapee is out of scope and was killed")
			}
			if left := o.KillAll(patience); left != 0 {
				t.Errorf("%d left after KillAll", left)
			}
			if alivePID(inGroup) || alivePID(escapee) {
				t.Error("alive after KillAll")
			}
		})
	}
}

// Between the search for members and the signal, a member may be reaped and its pid reused by
// another child.
func TestSignalOfAReusedPID(t *testing.T) {
	bin := built.Path(t)
	o := newOwner(t, Options{})
	p, err := o.Start(prog(bin, "sleep"))
	if err != nil {
		t.Fatal(err)
	}
	st, err := readStat(p.PID)
	if err != nil {
		t.Fatal(err)
	}
	before := st
	before.start--
	if err := o.signalTask(&task{before, true}, syscall.SIGKILL); !errors.Is(err, ErrNoProcess) {
		t.Errorf("the process before: %v", err)
	}
	if !alivePID(p.PID) {
		t.Fatal("a process was killed for another one")
	}
	if err := o.signalTask(&task{st, true}, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	if e := next(t, o, p.ID, Exited); e.Signal() != syscall.SIGKILL {
		t.Errorf("ended by %v", e.Signal())
	}
}

func TestOwns(t *testing.T) {
	bin := built.Path(t)
	o := newOwner(t, Options{})
	p := startTester(t, o, prog(bin, "fork-tree", "1", "2"))
	for range 3 {
		p.line(t)
	}
	for _, pid := range o.members(p.ID) {
		if id, ok := o.Owns(pid); id != p.ID || !ok {
			t.Errorf("member %d: %d, %v", pid, id, ok)
		}
	}
	for name, pid := range map[string]int{"ourselves": os.Getpid(), "our parent": os.Getppid(), "nobody": -1} {
		if id, ok := o.Owns(pid); ok {
			t.Errorf("%s: %d, %v", name, id, ok)
		}
	}
	// A process with a forged tag does not become a member of another tree. A process that leaves
	// no trace is still not an outsider.
	c := sh("env -i " + EnvTag + "=" + strconv.FormatUint(p.ID, 10) + ".0000000000000000 " + bin + " setsid-escape scrub")
	forger := startTester(t, o, c)
	escapee := forger.number(t)
	if id, ok := o.Owns(escapee); id == p.ID || !ok {
		t.Errorf("escapee: %d, %v", id, ok)
	}
	if err := o.Kill(p.ID); err != nil {
		t.Fatal(err)
	}
	if left := o.KillAll(patience); left != 0 {
		t.Errorf("%d left", left)
	}
}

// TestUsageCountsZombies: a program that does not wait for its children uses up its limit of processes with them.
func TestUsageCountsZombies(t *testing.T) {
	o := newOwner(t, Options{})
	p := startTester(t, o, sh("true & exec "+built.Path(t)+" memory 1"))
	p.line(t)
	for end := time.Now().Add(patience); ; {
		u, err := o.Usage(p.ID, time.Now())
		if err != nil || u.Members > 2 || time.Now().After(end) {
			t.Fatalf("got %+v, %v", u, err)
		}
		if u.Zombies == 1 && u.Members == 1 {
			return
		}
	}
}

func TestUsage(t *testing.T) {
	bin := built.Path(t)
	o := newOwner(t, Options{})
	p := startTester(t, o, sh(bin+" memory 32; true"))
	p.line(t)
	u, err := o.Usage(p.ID, time.Now())
	if err != nil || u.Members != 2 || u.RSS < 32<<20 || u.FDs < 6 && u.Blind == 0 || u.Threads < 2 {
		t.Errorf("got %+v, %v", u, err)
	}
	tree, err := o.Tree(p.ID, time.Now())
	if err != nil || len(tree) != 2 || tree[0].PID != p.PID || tree[1].PPID != p.PID || tree[0].Name != "sh" || tree[1].Name != "testprog" ||
		tree[1].RSS < 32<<20 || tree[1].Threads < 1 {
		t.Errorf("got %+v, %v", tree, err)
	}
	if err := o.Kill(p.ID); err != nil {
		t.Fatal(err)
	}
	if e := next(t, o, p.ID, Emptied); e.CPU < u.CPU {
		t.Errorf("%v in the end, %v before", e.CPU, u.CPU)
	}
	if _, err := o.Usage(p.ID, time.Now()); !errors.Is(err, ErrNoProcess) {
		t.Errorf("got %v", err)
	}
	if _, err := o.Tree(p.ID, time.Now()); !errors.Is(err, ErrNoProcess) {
		t.Errorf("got %v", err)
	}
}

func TestStartSets(t *testing.T) {
	bin := built.Path(t)
	o := newOwner(t, Options{})
	umask, nice, oom := 0o027, 7, 500
	c := prog(bin, "limits")
	c.Umask, c.Nice, c.OOMScoreAdj, c.NoNewPrivs, c.CPUs, c.IONice = &umask, &nice, &oom, true, []int{0}, "idle"
	c.Rlimits = map[string]Rlimit{"nofile": {100, 100}, "core": {0, 0}, "as": {4 << 30, 4 << 30}}
	r, err := o.Run(t.Context(), c, 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(string(r.Output)), " ")
	for _, want := range []string{
		"Max open files 100 100", "Max core file size 0 0", "Max address space 4294967296 4294967296",
		"umask 027", "nice 7", "oom_score_adj 500", "NoNewPrivs 1", "Cpus_allowed_list 0",
	} {
		// For an ordinary user, the score is set after the program has started:
		// TestOOMScoreIsTheProgramsAlone waits for it.
		if late := strings.HasPrefix(want, "oom") && !o.oomInChild; !late && !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
	c = Command{Path: bin, Args: []string{"testprog", "exit", "0"}, IONice: "sometimes"}
	if _, err := o.Start(c); err == nil || !strings.Contains(err.Error(), `ionice "sometimes"`) {
		t.Errorf("got %v", err)
	}
}

func TestNothingLeaksIntoPrograms(t *testing.T) {
	bin := built.Path(t)
	// A descriptor that the container runtime left open.
	fd, err := syscall.Open("/dev/null", syscall.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	o := newOwner(t, Options{})
	score := 1
	for _, scored := range []bool{false, true} {
		c := prog(bin, "fds")
		if scored {
			c.OOMScoreAdj = &score
		}
		if r, err := o.Run(t.Context(), c, 1000); err != nil || string(r.Output) != "0\n1\n2\n" {
			t.Errorf("descriptors %q, %v", r.Output, err)
		}
		c.Args[1] = "signals"
		want := "SigBlk 0000000000000000\nSigIgn 0000000000000000\n"
		if r, err := o.Run(t.Context(), c, 1000); err != nil || string(r.Output) != want {
			t.Errorf("signals %q, %v", r.Output, err)
		}
		c.Args = []string{"testprog", "env"}
		c.Env = []string{"A=b", EnvTag + "=stale"}
		r, err := o.Run(t.Context(), c, 1000)
		if tag, rest, _ := bytes.Cut(r.Output, []byte("\n")); err != nil || !bytes.HasPrefix(tag, []byte(EnvTag+"=")) || string(rest) != "A=b\n" {
			t.Errorf("environment %q, %v", r.Output, err)
		}
	}
}

func TestCredential(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
	bin := built.Path(t)
	o := newOwner(t, Options{})
	score := 1
	for _, scored := range []bool{false, true} {
		c := prog(bin, "ids")
		c.Credential = &Credential{UID: 12345, GID: 23456, Groups: []uint32{7, 8}}
		if scored {
			c.OOMScoreAdj = &score
		}
		r, err := o.Run(t.Context(), c, 1000)
		if err != nil || !strings.HasPrefix(string(r.Output), "uid 12345\ngid 23456\ngroups [7 8") { // and the mark
			t.Errorf("got %q, %v", r.Output, err)
		}
		// Without CAP_SYS_PTRACE its environment cannot be read, but its session can.
		c = prog(bin, "double-fork")
		c.Credential = &Credential{UID: 12345, GID: 23456}
		p := startTester(t, o, c)
		escapee := p.number(t)
		p.line(t)
		if err := o.Kill(p.ID); err != nil {
			t.Fatal(err)
		}
		next(t, o, p.ID, Emptied)
		if alivePID(escapee) {
			t.Error("the escapee lives")
		}
	}
}

func TestCredentialRefused(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("needs an ordinary user, who may not become another")
	}
	o := newOwner(t, Options{})
	_, err := o.Start(Command{Path: "/bin/true", Credential: &Credential{UID: 1, GID: 1}})
	if err == nil || !strings.Contains(err.Error(), "CAP_SETUID") {
		t.Errorf("got %v", err)
	}
}

// TestNoStatusIsStolen runs commands from several goroutines while orphans end.
func TestNoStatusIsStolen(t *testing.T) {
	o := newOwner(t, Options{})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 60 {
				code := (w*60 + i) % 256
				r, err := o.Run(t.Context(), sh(fmt.Sprintf("(true &) ; exit %d", code)), 0)
				if err != nil || r.Exit.Code() != code {
					t.Errorf("wanted %d, got %+v, %v", code, r.Exit, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestParseStat(t *testing.T) {
	line := "42 (a) b (c\n) S 1 42 41 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 5 0 777 1000 99 18446744073709551615 1"
	st, err := parseStat(42, []byte(line))
	if err != nil || st.ppid != 1 || st.pgrp != 42 || st.sid != 41 || st.utime != 10 || st.cstime != 40 || st.threads != 5 || st.start != 777 || st.rssPages != 99 || st.state != 'S' {
		t.Errorf("got %+v, %v", st, err)
	}
	for environ, empty := range map[string]bool{"": true, " 0 0": false, " 0 9": false, " 9 9": true, " 9 12": false} {
		st, err := parseStat(42, []byte(line+strings.Repeat(" 0", 23)+environ))
		if err != nil || st.noEnviron != empty {
			t.Errorf("environment at%q: %v, %v", environ, st.noEnviron, err)
		}
	}
	for _, bad := range []string{"", "42", "42 (x)", "42 (x) S 1 2"} {
		if _, err := parseStat(42, []byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (a) b (c\n) S 1 42 41 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 5 0 777 1000 99 1 1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if st, err := parseStat(1, b); err == nil && st.pid != 1 {
			t.Errorf("pid %d", st.pid)
		}
	})
}

// Signals that were requested at the same time share one search for members. A later request does
// not use an earlier search.
func TestSignalsAskedTogetherShareALook(t *testing.T) {
	o := newOwner(t, Options{})
	var ids []uint64
	for range 3 {
		p := mustStart(t, o, Command{Path: "/bin/sleep", Args: []string{"sleep", "60"}})
		ids = append(ids, p.ID)
	}
	asked := time.Now()
	looks := map[time.Time]bool{}
	signal := func(id uint64, at time.Time) {
		t.Helper()
		p, err := o.lookup(id)
		if err == nil {
			err = o.signal(p, syscall.SIGCONT, ScopeTree, at)
		}
		if err != nil {
			t.Fatal(err)
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		looks[o.lookedAt] = true
	}
	for _, id := range ids {
		signal(id, asked)
	}
	if len(looks) != 1 {
		t.Errorf("%d looks for what was asked for at once", len(looks))
	}
	signal(ids[0], time.Now())
	if len(looks) != 2 {
		t.Error("an earlier look served a later request")
	}
}

// Who reads many programs at once lists agentinit's children once, also while programs start.
func TestUsageReadTogetherSharesALook(t *testing.T) {
	o := newOwner(t, Options{})
	var ids []uint64
	for range 3 {
		ids = append(ids, mustStart(t, o, Command{Path: "/bin/sleep", Args: []string{"sleep", "60"}}).ID)
	}
	read := func(since time.Time) time.Time {
		t.Helper()
		for _, id := range ids {
			if u, err := o.Usage(id, since); err != nil || u.Members != 1 {
				t.Fatalf("%+v, %v", u, err)
			}
			if m, err := o.Tree(id, since); err != nil || len(m) != 1 {
				t.Fatalf("%+v, %v", m, err)
			}
			o.Runnable(id, since)
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.lookedAt
	}
	began := time.Now()
	look := read(began)
	ids = append(ids, mustStart(t, o, Command{Path: "/bin/sleep", Args: []string{"sleep", "60"}}).ID)
	if again := read(began); again != look {
		t.Error("the second reading made a look of its own")
	}
	if later := read(time.Now()); later == look {
		t.Error("an earlier look served a later request")
	}
}

// Kill may end the leader as one process of its tree, or through its cgroup, before it signals the
// leader. That end is not taken for one that the kernel or another process has caused.
func TestKillOfTheTreeIsByUs(t *testing.T) {
	o := newOwner(t, Options{})
	p := mustStart(t, o, sh("exec sleep 1000"))
	o.mu.Lock()
	leader := o.byID[p.ID]
	leader.killing, leader.emptied, leader.wake = true, make(chan struct{}), make(chan struct{}, 1) // as Kill does
	o.mu.Unlock()
	st, err := readStat(p.PID)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.signalTask(&task{st, true}, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := next(t, o, p.ID, Exited); e.Signal() != syscall.SIGKILL || !e.ByUs {
		t.Errorf("got %+v", e)
	}
}

// members lists the pids of the living members of a started process, the process itself first while
// it lives. The list is empty for an unknown id.
func (o *Owner) members(id uint64) []int {
	o.mu.Lock()
	p := o.byID[id]
	known := p != nil && p.pid != 0
	o.mu.Unlock()
	if !known {
		return nil
	}
	var pids []int
	for _, t := range o.tree(p) {
		pids = append(pids, t.pid)
	}
	return pids
}
