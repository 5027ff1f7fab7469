package initmode

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/dreamlab-ai/agentinit/internal/testprog/built"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
)

func TestMain(m *testing.M) { os.Exit(built.Tests{M: m}.Run()) }

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		args string
		want options
		err  string // "": no error; "not": not init mode; else a part of the message
	}{
		{"-- a -b --", options{command: []string{"a", "-b", "--"}}, ""},
		{"-g -- a", options{group: true, command: []string{"a"}}, ""},
		{"-s -g -- a", options{group: true, command: []string{"a"}}, ""},
		{"-sg -- a", options{group: true, command: []string{"a"}}, ""},
		{"init -- a", options{command: []string{"a"}}, ""},
		{"init -g a -s", options{group: true, command: []string{"a", "-s"}}, ""},
		{"init", options{}, "no command"},
		{"init -x -- a", options{}, "unknown flag -x"},
		{"--", options{}, "no command"},
		{"", options{}, "not"},
		{"-g", options{}, "not"},
		{"--manifest f -- a", options{}, "not"},
		{"--version", options{}, "not"},
		{"-h", options{}, "not"},
	} {
		got, err := parse(strings.Fields(tc.args))
		switch {
		case tc.err == "not":
			if !errors.Is(err, errNotInit) {
				t.Errorf("%q: got %+v, %v", tc.args, got, err)
			}
		case tc.err != "":
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%q: got %v", tc.args, err)
			}
		case err != nil || !reflect.DeepEqual(got, tc.want) && (got.group != tc.want.group || strings.Join(got.command, " ") != strings.Join(tc.want.command, " ")):
			t.Errorf("%q: got %+v, %v", tc.args, got, err)
		}
	}
}

// initCmd runs this test binary, which enters init mode as agentinit does.
func initCmd(args ...string) *exec.Cmd { return exec.Command("/proc/self/exe", args...) }

// pid1 makes a command run as PID 1 of a new PID namespace.
func pid1(t *testing.T, c *exec.Cmd) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a pid namespace")
	}
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	return c
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	ee, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		t.Fatal(err)
	}
	return ee.ExitCode()
}

func TestInitExitStatus(t *testing.T) {
	for _, asPID1 := range []bool{false, true} {
		t.Run(fmt.Sprintf("pid1=%v", asPID1), func(t *testing.T) {
			for _, tc := range []struct {
				args []string
				code int
			}{
				{[]string{"--", "sh", "-c", "exit 0"}, 0},
				{[]string{"--", "sh", "-c", "exit 7"}, 7},
				{[]string{"-g", "--", "sh", "-c", "kill -TERM $$"}, 143},
				{[]string{"init", "--", "sh", "-c", "kill -KILL $$"}, 137},
				{[]string{"--", "/no/such"}, 127},
				{[]string{"--", "no-such-command"}, 127},
				{[]string{"--", "/"}, 126},
				{[]string{"--"}, 2},
			} {
				c := initCmd(tc.args...)
				if asPID1 {
					c = pid1(t, c)
				}
				if code := exitCode(t, c.Run()); code != tc.code {
					t.Errorf("%v: exit status %d, want %d", tc.args, code, tc.code)
				}
			}
		})
	}
}

// reporting is an init whose child prints the signals that it receives.
type reporting struct {
	*exec.Cmd
	out   io.ReadCloser
	lines *bufio.Scanner
}

// startReady starts an init and returns when its child has printed "ready".
func startReady(t *testing.T, args ...string) reporting {
	t.Helper()
	c := initCmd(args...)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	// A signal that does not arrive must fail the test, not block it.
	watchdog := time.AfterFunc(30*time.Second, func() { c.Process.Kill(); out.Close() })
	t.Cleanup(func() { watchdog.Stop() })
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("got %q", lines.Text())
	}
	return reporting{c, out, lines}
}

// forwards sends a signal and checks that the child reports it.
func (c reporting) forwards(t *testing.T, n int) {
	t.Helper()
	if err := c.Process.Signal(syscall.Signal(n)); err != nil {
		t.Fatal(err)
	}
	if !c.lines.Scan() || c.lines.Text() != strconv.Itoa(n) {
		t.Fatalf("sent %d, the child reports %q", n, c.lines.Text())
	}
}

// TestInitForwardsSignals sends every signal that can be forwarded and compares it with the child's
// report.
func TestInitForwardsSignals(t *testing.T) {
	prog := built.Path(t)
	for _, group := range []string{"-s", "-g"} {
		c := startReady(t, group, "--", prog, "report-signals")
		// The list leaves out TERM, which ends the child, signals that cannot be caught or are not
		// forwarded, and 27 and 32 to 34, which a Go program cannot receive: see
		// TestInitForwardsWhatGoCannotCatch.
		for _, n := range []int{1, 2, 3, 5, 6, 10, 12, 13, 14, 16, 18, 24, 25, 26, 28, 29, 30, 35, 36, 37, 50, 63, 64} {
			c.forwards(t, n)
		}
		for _, n := range []syscall.Signal{syscall.SIGURG, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGTERM} {
			if err := c.Process.Signal(n); err != nil {
				t.Fatal(err)
			}
		}
		rest, err := io.ReadAll(c.out)
		// Scanner may have read ahead.
		if err != nil {
			t.Fatal(err)
		}
		tail := ""
		for c.lines.Scan() {
			tail += c.lines.Text() + " "
		}
		if got := strings.Fields(tail + string(rest)); len(got) != 1 || got[0] != "15" {
			t.Errorf("after the signals that are not forwarded and TERM the child reports %q", got)
		}
		if code := exitCode(t, c.Wait()); code != 0 {
			t.Errorf("exit status %d", code)
		}
	}
}

// TestInitForwardsWhatGoCannotCatch sends SIGPROF, 34 (glibc's SIGRTMIN), and 64, the signal that
// stands for them inside agentinit. The child is a shell.
func TestInitForwardsWhatGoCannotCatch(t *testing.T) {
	c := startReady(t, "--", "sh", "-c",
		`for n in 27 34 64; do trap "echo $n" $n; done; trap 'kill $!; exit 5' TERM; sleep 1000 & echo ready; while :; do wait; done`)
	for _, n := range []int{27, 34, 64, 34, 64, 27} {
		c.forwards(t, n)
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, c.Wait()); code != 5 {
		t.Errorf("exit status %d", code)
	}
}

// TestInitReapsAndSaysGoodbye: when the child has ended, its orphan gets TERM, and the orphan's
// last output arrives.
func TestInitReapsAndSaysGoodbye(t *testing.T) {
	c := pid1(t, initCmd("--", "sh", "-c",
		`(trap 'echo bye; exit' TERM; echo armed >&3; while :; do sleep 1000 & wait; done) & read x <&4; exit 3`))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	// Init mode must not leak descriptors above 2, so the shell opens its own.
	c.Args = append([]string{"/proc/self/exe", "--", "sh", "-c"},
		`mkfifo "$0/f" && exec 3<>"$0/f" 4<&3; `+
			`(trap 'echo bye; exit' TERM; echo armed >&3; while :; do sleep 1000 & wait; done) & read x <&4; exit 3`, t.TempDir())
	var out bytes.Buffer
	c.Stdout = &out
	if code := exitCode(t, c.Run()); code != 3 || out.String() != "bye\n" {
		t.Errorf("exit status %d, output %q", code, out.String())
	}
}

// TestInitLeavesTheEnvironmentAlone: the child has agentinit's environment, with the mark of an
// outer agentinit too.
func TestInitLeavesTheEnvironmentAlone(t *testing.T) {
	for _, env := range [][]string{{"A=b"}, {"A=b", proc.EnvTag + "=1.outer"}} {
		c := initCmd("--", "/usr/bin/env")
		c.Env = env
		if out, err := c.Output(); err != nil || string(out) != strings.Join(env, "\n")+"\n" {
			t.Errorf("given %q the child has %q, %v", env, out, err)
		}
	}
}

// TestInitNeedsNoDevices: the smallest image contains only agentinit and a program.
func TestInitNeedsNoDevices(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to change the root directory")
	}
	root := t.TempDir()
	for name, from := range map[string]string{"init": "/proc/self/exe", "prog": built.Path(t)} {
		content, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(root, name), content, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command("/init", "--", "/prog", "fds")
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	var errors bytes.Buffer
	c.Stderr = &errors
	out, err := c.Output()
	if os.IsNotExist(err) {
		t.Skip("this test binary needs a dynamic linker: " + err.Error())
	}
	if code := exitCode(t, err); code == 126 || strings.Contains(errors.String(), "agentinit:") {
		t.Errorf("exit status %d, %q, %s", code, out, &errors)
	}
}

func TestInitLeaksNoDescriptors(t *testing.T) {
	prog := built.Path(t)
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := initCmd("--", prog, "fds")
	c.ExtraFiles = []*os.File{f, f, f}
	out, err := c.Output()
	if err != nil || string(out) != "0\n1\n2\n" {
		t.Errorf("the child has %q, %v", out, err)
	}
}

// TestInitResetsSignals: signals that agentinit inherited as ignored have the default action in the
// child.
func TestInitResetsSignals(t *testing.T) {
	prog := built.Path(t)
	c := exec.Command("sh", "-c", `trap "" HUP INT TERM USR1 TTIN TTOU TSTP; exec "$@"`, "sh", "/proc/self/exe", "--", prog, "signals")
	c.Args[4] = os.Args[0]
	out, err := c.Output()
	if err != nil || string(out) != "SigBlk 0000000000000000\nSigIgn 0000000000000000\n" {
		t.Errorf("the child has %q, %v", out, err)
	}
}

// TestInitHandsOverTheTerminal: the child is in the foreground process group of agentinit's
// terminal, and reads from the terminal.
func TestInitHandsOverTheTerminal(t *testing.T) {
	c := initCmd("--", "sh", "-c", `read -r pid name state ppid pgrp sid tty tpgid rest </proc/self/stat; read -r line; echo "$pgrp $tpgid $line"`)
	tty, err := pty.Start(c)
	if err != nil {
		t.Skip("needs a pseudo-terminal: " + err.Error())
	}
	defer tty.Close()
	if _, err := tty.WriteString("hello\n"); err != nil {
		t.Fatal(err)
	}
	// A terminal without users returns its text and then an error.
	out, _ := io.ReadAll(tty)
	if err := c.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	lines := strings.Fields(string(out))
	if n := len(lines); n < 3 || lines[n-3] != lines[n-2] || lines[n-1] != "hello" {
		t.Errorf("group, foreground group, line: %q", lines)
	}
}

// TestInitStartCost prints the cost of a start. It fails only if it cannot measure.
func TestInitStartCost(t *testing.T) {
	begin := time.Now()
	if out, err := initCmd("--", "true").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("one command under init mode: %v", time.Since(begin))
	out, err := initCmd("--", "sh", "-c", `grep RssAnon /proc/$PPID/status`).Output()
	if err != nil {
		t.Skip("needs root: an undumpable parent's status cannot be read")
	}
	t.Logf("%s", out)
}
