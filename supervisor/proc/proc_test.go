package proc

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dreamlab-ai/agentinit/internal/testprog/built"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(built.Tests{M: m}) }

// patience is how long a test waits for an event that must come. It only decides how long a broken
// build takes to fail.
const patience = 30 * time.Second

func newOwner(t testing.TB, opts Options) *Owner {
	t.Helper()
	o := patientOwner(t, opts)
	t.Cleanup(func() {
		// All tests are one process: a leftover child would confuse the next test.
		if left := o.KillAll(0); left != 0 {
			t.Errorf("the test leaves %d processes", left)
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}

// patientOwner makes an Owner that gives up nothing, because a test may run on a machine that is busy
// with other work.
func patientOwner(t testing.TB, opts Options) *Owner {
	t.Helper()
	opts.KillTimeout = cmp.Or(opts.KillTimeout, patience)
	o, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	o.tags.patience = patience
	return o
}

func mustStart(t testing.TB, o *Owner, c Command) Process {
	t.Helper()
	p, err := o.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// next waits for the next notice of that kind about that process.
func next(t testing.TB, o *Owner, id uint64, kind ExitKind) Exit {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case e := <-o.Exits():
			if e.ID == id && e.Kind == kind {
				return e
			}
		case <-timeout:
			t.Fatalf("no notice of kind %d about process %d; members: %v; stats: %+v", kind, id, o.members(id), o.Stats())
		}
	}
}

func sh(script string) Command {
	return Command{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: os.Environ()}
}

func TestStartReportsHowItEnded(t *testing.T) {
	o := newOwner(t, Options{})
	for _, tc := range []struct {
		script string
		code   int
		signal syscall.Signal
		shell  int
	}{
		{"exit 0", 0, 0, 0},
		{"exit 7", 7, 0, 7},
		{"kill -TERM $$", -1, syscall.SIGTERM, 143},
		{"kill -KILL $$", -1, syscall.SIGKILL, 137},
	} {
		p := mustStart(t, o, sh(tc.script))
		e := next(t, o, p.ID, Exited)
		if e.Code() != tc.code || e.Signal() != tc.signal || e.ShellStatus() != tc.shell || e.PID != p.PID || e.ByUs {
			t.Errorf("%s: got %+v", tc.script, e)
		}
		if e := next(t, o, p.ID, Emptied); e.Leaked != 0 {
			t.Errorf("%s: leaked %d", tc.script, e.Leaked)
		}
	}
}

func TestRunCapturesAndBounds(t *testing.T) {
	o := newOwner(t, Options{})
	r, err := o.Run(t.Context(), sh("echo out; echo err >&2; exit 3"), 100)
	if err != nil || string(r.Output) != "out\nerr\n" || r.Exit.Code() != 3 || r.Truncated {
		t.Errorf("got %+v, %v", r, err)
	}
	r, err = o.Run(t.Context(), sh("head -c 1000000 /dev/zero"), 10)
	if err != nil || len(r.Output) != 10 || !r.Truncated || r.Exit.Code() != 0 {
		t.Errorf("got %d bytes, %+v, %v", len(r.Output), r.Exit, err)
	}
}

func TestRunDoesNotWaitForAGrandchildWithThePipe(t *testing.T) {
	o := newOwner(t, Options{})
	r, err := o.Run(t.Context(), sh("sleep 1000 & setsid sleep 1000 & echo done"), 100)
	if err != nil || string(r.Output) != "done\n" || r.Exit.Code() != 0 || o.Stats().Leaked != 0 {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestRunIsCutShort(t *testing.T) {
	o := newOwner(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		// The command reports that it runs; then it is cancelled.
		if _, err := r.Read(make([]byte, 1)); err == nil {
			cancel()
		}
	}()
	c := sh("trap '' TERM; (trap '' TERM; sleep 1000) & echo x >&3; wait; sleep 1000")
	c.Files = []*os.File{nil, nil, nil, w}
	res, err := o.Run(ctx, c, 100)
	w.Close()
	if !errors.Is(err, context.Canceled) || res.Exit.Signal() != syscall.SIGKILL || !res.Exit.ByUs {
		t.Errorf("got %+v, %v", res, err)
	}
}

func TestStartErrors(t *testing.T) {
	o := newOwner(t, Options{})
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		if err := os.WriteFile(dir+"/"+name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return dir + "/" + name
	}
	plain := write("plain", "x", 0o644)
	lost := write("lost", "#!/no/such/shell\n", 0o755)
	windows := write("windows", "#!/bin/sh\r\nexit\r\n", 0o755)
	bare := write("bare", "\x01\x02", 0o755)
	score := 5
	for _, scored := range []bool{false, true} {
		for _, tc := range []struct {
			name string
			c    Command
			want string
			code int
		}{
			{"no command", Command{}, "no command given", 126},
			{"not in PATH", Command{Path: "nonesuch", Env: []string{"PATH=/bin"}}, "command nonesuch: command not found (searched in PATH=/bin)", 127},
			{"no file", Command{Path: "/no/such"}, "command /no/such: file does not exist", 127},
			{"directory as command", Command{Path: dir}, "is a directory", 126},
			{"not executable", Command{Path: plain}, "not executable", 126},
			{"not executable in PATH", Command{Path: "plain", Env: []string{"PATH=" + dir}}, "not executable", 126},
			{"no interpreter", Command{Path: lost}, "its interpreter /no/such/shell does not exist", 126},
			{"Windows line ends", Command{Path: windows}, `its interpreter /bin/sh\r does not exist (the lines of the script end in CR LF, as on Windows; convert them to LF)`, 126},
			{"not a program", Command{Path: bare}, "exec format error", 126},
			{"large variable", Command{Path: "/bin/sh", Env: []string{"X=" + strings.Repeat("x", 256<<10)}},
				"argument list too long (its arguments and variables are too large for the kernel: each may have 128 KiB, all together a quarter of the stack limit)", 126},
			{"no directory", Command{Path: "/bin/sh", Dir: "/no/dir"}, "directory /no/dir: no such file or directory", 126},
			{"file as directory", Command{Path: "/bin/sh", Dir: plain}, "directory " + plain + ": not a directory", 126},
		} {
			if scored {
				tc.c.OOMScoreAdj = &score
			}
			_, err := o.Start(tc.c)
			if se, ok := errors.AsType[*StartError](err); !ok || !strings.Contains(err.Error(), tc.want) || se.ShellStatus() != tc.code {
				t.Errorf("%s (score %v): got %v", tc.name, scored, err)
			}
		}
	}
	select {
	case e := <-o.Exits():
		t.Errorf("a start that failed was announced: %+v", e)
	default:
	}
}

// A refused limit says what would allow it. Other failures of that step do not.
func TestStartErrorOfLimit(t *testing.T) {
	for _, c := range []struct {
		limit string
		errno syscall.Errno
		want  string
	}{
		{"nproc", syscall.EPERM, "operation not permitted (a limit above agentinit's own hard limit needs CAP_SYS_RESOURCE)"},
		{"nproc", syscall.EINVAL, "invalid argument"},
		{"nofile", syscall.EPERM, "operation not permitted (a limit above agentinit's own hard limit needs CAP_SYS_RESOURCE; none may be above /proc/sys/fs/nr_open)"},
	} {
		want := "cannot start: limit " + c.limit + ": " + c.want
		if got := explainStep(&Command{}, "/bin/true", stepInfo{op: opLimit + c.limit}, c.errno).Error(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestStdinPipeAndTTY(t *testing.T) {
	o := newOwner(t, Options{})
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := sh("cat")
	c.StdinPipe, c.Files = true, []*os.File{nil, w}
	p := mustStart(t, o, c)
	w.Close()
	if _, err := io.WriteString(p.Stdin, "hello"); err != nil {
		t.Fatal(err)
	}
	p.Stdin.Close()
	if b, err := io.ReadAll(r); string(b) != "hello" || err != nil {
		t.Errorf("got %q, %v", b, err)
	}
	next(t, o, p.ID, Emptied)

	c = sh("test -t 0 && test -t 2 && tty </dev/tty && echo yes")
	c.TTY = true
	p = mustStart(t, o, c)
	defer p.TTY.Close()
	next(t, o, p.ID, Exited)
	p.Slave.Close()
	// A read from a terminal without open slaves returns EIO.
	b, err := io.ReadAll(p.TTY)
	if !strings.Contains(string(b), "yes") || !errors.Is(err, syscall.EIO) {
		t.Errorf("got %q, %v", b, err)
	}
	next(t, o, p.ID, Emptied)
}

// A program of another user can open its terminal again, as nginx opens /dev/stderr.
func TestTerminalOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to change users")
	}
	o := newOwner(t, Options{})
	c := sh("echo yes >/dev/stdout")
	c.TTY, c.Credential = true, &Credential{UID: 12345, GID: 12345}
	p := mustStart(t, o, c)
	defer p.TTY.Close()
	next(t, o, p.ID, Exited)
	p.Slave.Close()
	if b, _ := io.ReadAll(p.TTY); string(b) != "yes\r\n" {
		t.Errorf("got %q", b)
	}
	next(t, o, p.ID, Emptied)
}

// Until its exec, a new process shares our memory, and the kernel counts that memory for the
// process. Therefore only a maximum above our own is known.
func TestLargestMemory(t *testing.T) {
	o := newOwner(t, Options{})
	p := mustStart(t, o, sh("exit 0"))
	if e := next(t, o, p.ID, Exited); e.Rusage.MaxRSS != 0 {
		t.Errorf("a shell: %d MiB", e.Rusage.MaxRSS>>20)
	}
	size := (ownPeak()+ownPeak()/8)>>20 + 64
	large := startTester(t, o, prog(built.Path(t), "memory", strconv.FormatInt(size, 10)))
	large.line(t)
	if err := o.Kill(large.ID); err != nil {
		t.Fatal(err)
	}
	if e := next(t, o, large.ID, Exited); e.Rusage.MaxRSS>>20 < size || e.Rusage.MaxRSS>>20 > 4*size {
		t.Errorf("one of %d MiB: %d MiB", size, e.Rusage.MaxRSS>>20)
	}
}
