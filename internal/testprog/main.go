// Command testprog is the adversary of the tests. As its arguments say, it exits, ignores signals,
// forks, escapes from its process tree or floods its output. It owns the misbehaviour that the
// tests need, and must never be part of a release. It uses no code of the product.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// verb is one action of the program.
type verb struct {
	name, args, help string
	run              func(args []string) error
}

func verbs() []verb {
	return []verb{
		{"sleep", "[SECONDS]", "sleep, for ever without an argument", sleep},
		{"exit", "N", "exit with status N", exit},
		{"die", "SIGNAL", "end by that signal number", die},
		{"ignore-term", "", "ignore TERM, INT, HUP and QUIT, say \"ready\", stay", ignoreTerm},
		{"trap-and-exit-after", "MILLISECONDS CODE", "on TERM say \"trapped\", wait, exit", trapAndExit},
		{"stopped", "", "stop itself with SIGSTOP", stopped},
		{"fork-orphans", "N [stay]", "leave N orphans that exit at once, or stay", forkOrphans},
		{"setsid-escape", "[scrub] [headless]", "leave a child in a session of its own, without environment when scrubbed, without its first thread when headless, and exit", setsidEscape},
		{"headless", "", "end the first thread; the others stay", headless},
		{"double-fork", "[scrub] [headless]", "stay, with a grandchild in a session of its own; say its pid, and \"ready\" when its parent is gone", doubleFork},
		{"sibling", "", "stay, with a process in a session of its own whose parent is ours (CLONE_PARENT); say its pid", sibling},
		{"fork-tree", "DEPTH WIDTH", "a tree of processes, every other one in a session of its own", forkTree},
		{"refork", "", "children that replace themselves for ever in sessions of their own", refork},
		{"print-lines", "N [TEXT]", "N lines on standard output", printLines},
		{"spam", "BYTES", "that many bytes on standard output, without a line end", spam},
		{"both", "", "a line on each of standard output and error", both},
		{"cat", "", "copy lines from standard input", cat},
		{"env", "[NAME…]", "the environment, or those variables", env},
		{"fds", "", "the open descriptors, one number a line", fds},
		{"signals", "", "blocked and ignored signals as in /proc/self/status", signals},
		{"report-signals", "", "say \"ready\", then every signal that arrives, until TERM", reportSignals},
		{"limits", "", "limits, umask, nice and oom_score_adj", limits},
		{"ids", "", "uid, gid, groups, pid, parent, group and session", ids},
		{"notify", "TEXT…", "send to $NOTIFY_SOCKET, then stay", notify},
		{"notify-fd", "FD", "write a newline to that descriptor, then stay", notifyFD},
		{"notify-fds", "[N]", "send N messages full of descriptors to $NOTIFY_SOCKET, then READY=1, then stay", notifyFDs},
		{"notify-flood", "[N]", "send N messages of nonsense to $NOTIFY_SOCKET, then READY=1, then stay", notifyFlood},
		{"notify-as", "WORD", "speak for the process with WORD in its command line, then READY=1 for itself, then stay", notifyAs},
		{"listen", "PORT|PATH", "accept and close connections to a TCP port or a unix socket", listen},
		{"gorge", "N SECONDS ADDRESS…", "for so long, N connections to each address (a path or host:port) with requests that are large and never done, and with answers that it does not read; $GORGE_AUTHORIZATION is their Authorization", gorge},
		{"gorge-relay", "N SECONDS FILE ADDRESS…", "for so long, N websockets to each Nostr relay (host:port) with large messages and subscriptions, and the event in the file, which is to be ephemeral, again and again; it does not read what the relay says", gorgeRelay},
		{"flood", "N ADDRESS…", "N connections to each address (a path or host:port) with half a request on them, say \"held\" and how many, stay", flood},
		{"http", "PORT", "answer 200 to every HTTP request", serveHTTP},
		{"pester", "N SECONDS ADDRESS…", "ask each address on N connections without pause; say how many answers", pester},
		{"get", "URL", "print what that address answers", httpGet},
		{"lease", "FILE", "take a write lease on the file, say \"held\", stay, keep it", lease},
		{"hold-memory", "FILE", "map the file again and again, until the kernel does not return and so keeps the lock of our memory", holdMemory},
		{"trace", "PID [thread] [from-thread] [at-exit] [wait]", "trace that process, or another thread of it than the first, or from another thread than the first, say \"seized\", and do not wait for its end, unless told to; stop it at its exit", trace},
		{"traceme", "", "make the parent the tracer, say \"traced\", and stop in the exec of \"sleep\"", traceme},
		{"tamper", "PID TID", "try what could hurt that process, harmlessly; say what each attempt answers", tamper},
		{"shed-mark", "", "lower the limit of queued signals, by either call; say \"shed\" if that works", shedMark},
		{"borrow-mark", "LIMIT COMMAND…", "set the limit of queued signals and run another command of this program", borrowMark},
		{"stop-storm", "", "as a child of PID 1, say \"storm\" and stop every other process of the namespace, again and again", stopStorm},
		{"cpu", "[SECONDS]", "burn one processor", cpu},
		{"kill", "PID SIGNAL [from-thread]", "send the signal by number, or from another thread than the first", kill},
		{"attack-signals", "[PID]", "send every signal that could hurt, in every way, to the parent; say \"taken\" and how many; stay", attackSignals},
		{"attack-short", "", "send TERM to the parent from 50 processes that end at once, say \"sent\", stay", attackShort},
		{"attack-pids", "", "fork until no more pid is to be had, say \"full\" and how many, take those that become free", attackPids},
		{"assault", "PID [last]", "try every way to hurt or read that agentinit, say for each what the kernel answers, or those that could end the box; say \"done\", stay", assault},
		{"memory", "MIB", "keep that much memory touched", memory},
	}
}

func main() {
	if len(os.Args) > 1 {
		for _, v := range verbs() {
			if v.name == os.Args[1] {
				if err := v.run(os.Args[2:]); err != nil {
					fmt.Fprintln(os.Stderr, "testprog:", v.name+":", err)
					os.Exit(1)
				}
				return
			}
		}
	}
	for _, v := range verbs() {
		fmt.Fprintf(os.Stderr, "testprog %s %s\n\t%s\n", v.name, v.args, v.help)
	}
	os.Exit(2)
}

func number(args []string, i, otherwise int) (int, error) {
	if i >= len(args) {
		return otherwise, nil
	}
	return strconv.Atoi(args[i])
}

func has(args []string, word string) bool { return slices.Contains(args, word) }

func forever() error {
	// Not select{}: the Go runtime would report a deadlock.
	for {
		time.Sleep(time.Hour)
	}
}

func sleep(args []string) error {
	if len(args) == 0 {
		return forever()
	}
	s, err := strconv.ParseFloat(args[0], 64)
	if err != nil {
		return err
	}
	time.Sleep(time.Duration(s * float64(time.Second)))
	return nil
}

func exit(args []string) error {
	n, err := number(args, 0, 0)
	if err == nil {
		os.Exit(n)
	}
	return err
}

func die(args []string) error {
	n, err := number(args, 0, int(syscall.SIGKILL))
	if err != nil {
		return err
	}
	signal.Reset(syscall.Signal(n))
	if err := syscall.Kill(os.Getpid(), syscall.Signal(n)); err != nil {
		return err
	}
	return forever()
}

func ignoreTerm([]string) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	fmt.Println("ready")
	return forever()
}

func trapAndExit(args []string) error {
	ms, err := number(args, 0, 0)
	if err != nil {
		return err
	}
	code, err := number(args, 1, 0)
	if err != nil {
		return err
	}
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM)
	fmt.Println("ready")
	<-c
	fmt.Println("trapped")
	time.Sleep(time.Duration(ms) * time.Millisecond)
	os.Exit(code)
	return nil
}

func stopped([]string) error {
	fmt.Println("stopping")
	if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
		return err
	}
	return forever()
}

// self is a command that runs this program with other arguments.
func self(newSession, scrub bool, args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", args...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if scrub {
		// Without agentinit's tag in the environment, and without its pipes.
		c.Env, c.Stdout, c.Stderr = []string{}, nil, nil
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: newSession}
	return c
}

func forkOrphans(args []string) error {
	n, err := number(args, 0, 1)
	if err != nil {
		return err
	}
	start := forkAndExit
	if has(args, "stay") {
		start = func() error { return self(false, false, "sleep").Start() }
	}
	for range n {
		if err := start(); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	return nil
}

// forkAndExit makes a child that ends at once. The child never runs Go again, so it needs no threads.
func forkAndExit() error {
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	switch {
	case errno != 0:
		return errno
	case pid == 0:
		for {
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	return nil
}

func setsidEscape(args []string) error {
	stays := "sleep"
	if has(args, "headless") {
		stays = "headless"
	}
	c := self(true, has(args, "scrub"), stays)
	if err := c.Start(); err != nil {
		return err
	}
	fmt.Println(c.Process.Pid)
	if stays == "headless" {
		return untilZombie(c.Process.Pid)
	}
	return nil
}

func doubleFork(args []string) error {
	c := self(false, false, append([]string{"setsid-escape"}, args...)...)
	if err := c.Run(); err != nil {
		return err
	}
	fmt.Println("ready")
	return forever()
}

func sibling([]string) error {
	c := self(true, false, "sleep")
	c.SysProcAttr.Cloneflags = syscall.CLONE_PARENT
	if err := c.Start(); err != nil {
		return err
	}
	fmt.Println(c.Process.Pid)
	return forever()
}

// stopStorm sends a signal to every process that its user may signal. It refuses to run if that
// could reach processes outside the test's own namespace.
func stopStorm([]string) error {
	if os.Getppid() != 1 || os.Getenv("AGENTINIT_TEST_PID1") == "" {
		return errors.New("the storm is for a pid namespace of a test's own")
	}
	fmt.Println("storm")
	for {
		_ = syscall.Kill(-1, syscall.SIGSTOP) // if there is no process to signal, continue
	}
}

func lease(args []string) error {
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	const setLease = 1024 // F_SETLEASE, fcntl(2)
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, f.Fd(), setLease, syscall.F_WRLCK); errno != 0 {
		return errno
	}
	fmt.Println("held")
	err = forever()
	runtime.KeepAlive(f)
	return err
}

// holdMemory needs a file of a FUSE server that answers no read, and that serves an open with
// O_NOATIME past the page cache (FOPEN_DIRECT_IO). The read locks a page of the cache. The mmap holds
// the lock of our memory for writing while it waits for that page (fs/fuse/file.c, fuse_file_mmap).
func holdMemory(args []string) error {
	cached, err := syscall.Open(args[0], syscall.O_RDONLY, 0)
	if err != nil {
		return err
	}
	direct, err := syscall.Open(args[0], syscall.O_RDONLY|syscall.O_NOATIME, 0)
	if err != nil {
		return err
	}
	go func() { _, _ = syscall.Read(cached, make([]byte, 1)) }() // it returns when the server is gone
	for {
		m, err := syscall.Mmap(direct, 0, 4096, syscall.PROT_READ, syscall.MAP_PRIVATE)
		if err != nil {
			return err
		}
		if err := syscall.Munmap(m); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

func forkTree(args []string) error {
	depth, err := number(args, 0, 1)
	if err != nil {
		return err
	}
	width, err := number(args, 1, 1)
	if err != nil {
		return err
	}
	if depth > 0 {
		for i := range width {
			if err := self(i%2 == 1, false, "fork-tree", strconv.Itoa(depth-1), strconv.Itoa(width)).Start(); err != nil {
				return err
			}
		}
	}
	fmt.Println("ready")
	return forever()
}

func refork(args []string) error {
	for {
		// Each generation ends at once, so its child is an orphan immediately.
		if err := self(true, has(args, "scrub"), append([]string{"refork"}, args...)...).Start(); err == nil {
			return nil
		}
	}
}

func printLines(args []string) error {
	n, err := number(args, 0, 1)
	if err != nil {
		return err
	}
	text := "line"
	if len(args) > 1 {
		text = strings.Join(args[1:], " ")
	}
	w := bufio.NewWriter(os.Stdout)
	for i := range n {
		fmt.Fprintln(w, text, i+1)
	}
	return w.Flush()
}

func spam(args []string) error {
	n, err := number(args, 0, 1<<20)
	if err != nil {
		return err
	}
	chunk := []byte(strings.Repeat("x", 64<<10))
	for n > 0 {
		m, err := os.Stdout.Write(chunk[:min(n, len(chunk))])
		if err != nil {
			return err
		}
		n -= m
	}
	return nil
}

func both([]string) error {
	fmt.Println("to stdout")
	fmt.Fprintln(os.Stderr, "to stderr")
	return nil
}

func cat([]string) error {
	s := bufio.NewScanner(os.Stdin)
	for s.Scan() {
		fmt.Println(s.Text())
	}
	return s.Err()
}
