package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// trace attaches to the process or to one of its other threads (ptrace(2), PTRACE_SEIZE). Then the
// parent is not told of the end of that process before the tracer has waited for it, and trace
// waits only with "wait".
func trace(args []string) error {
	return fromThread(args, func() error { return traceHere(args) })
}

// fromThread calls f, with "from-thread" on another thread than the first, whose number is that of the
// process.
func fromThread(args []string, f func() error) error {
	if !has(args, "from-thread") {
		return f()
	}
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		return f()
	}
	ended := make(chan error)
	go func() { ended <- fromThread(args, f) }() // not on this thread, which is locked
	return <-ended
}

func traceHere(args []string) error {
	runtime.LockOSThread() // the kernel binds a tracer to a thread
	pid, err := number(args, 0, 1)
	if err != nil {
		return err
	}
	tid := pid
	if has(args, "thread") {
		if tid, err = lastThread(pid); err != nil {
			return err
		}
	}
	options := uintptr(0)
	if has(args, "at-exit") {
		options = unix.PTRACE_O_TRACEEXIT
	}
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, options, 0, 0); errno != 0 {
		fmt.Println("refused", errno)
		return forever()
	}
	fmt.Println("seized")
	if has(args, "wait") {
		for {
			var status unix.WaitStatus
			if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
				return err
			}
			if !status.Stopped() {
				break
			}
			// A signal, such as those of a Go runtime to itself, stops a traced process until its tracer
			// lets it go on.
			_ = unix.PtraceCont(pid, int(status.StopSignal())) // fails if it was killed meanwhile
		}
		fmt.Println("waited")
	}
	return forever()
}

// traceme makes the parent the tracer (ptrace(2), PTRACE_TRACEME) and executes itself, which stops the
// process until the tracer lets it go on.
func traceme([]string) error {
	runtime.LockOSThread()
	// The Go runtime interrupts its threads with URG, which would stop the process too early.
	mask := unix.Sigset_t{}
	mask.Val[0] = 1 << (unix.SIGURG - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &mask, nil); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0); errno != 0 {
		fmt.Println("refused", errno)
		return forever()
	}
	fmt.Println("traced")
	return unix.Exec("/proc/self/exe", []string{"testprog", "sleep"}, os.Environ())
}

// lastThread waits until the process has a thread other than its first, and returns it.
func lastThread(pid int) (int, error) {
	for {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return 0, err
		}
		if last := threads[len(threads)-1].Name(); last != strconv.Itoa(pid) {
			return strconv.Atoi(last)
		}
		time.Sleep(time.Millisecond)
	}
}

// headless ends the first thread; the process goes on with the others.
func headless(args []string) error {
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		go func() { _ = headless(args) }() // not on this thread, which is locked
		return forever()
	}
	_, _, errno := syscall.Syscall(unix.SYS_EXIT, 0, 0, 0) // only of this thread; the runtime counts it as waiting in a call
	return errno
}

// untilZombie waits until the first thread of the process has ended.
func untilZombie(pid int) error {
	for {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(b), ") Z ") {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}
