package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// attackSignals sends agentinit every signal that could end it or trigger an action, in every
// possible way. It prints how many signals were accepted.
func attackSignals(args []string) error {
	pid, err := number(args, 0, os.Getppid())
	if err != nil {
		return err
	}
	taken := 0
	count := func(errno syscall.Errno) {
		if errno == 0 {
			taken++
		}
	}
	asked := []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2}
	faults := []syscall.Signal{syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE, syscall.SIGTRAP, syscall.SIGSTKFLT, syscall.SIGSYS, syscall.SIGABRT}
	for _, sig := range append(asked, faults...) {
		_, _, errno := syscall.Syscall(syscall.SYS_KILL, uintptr(pid), uintptr(sig), 0)
		count(errno)
		_, _, errno = syscall.Syscall(syscall.SYS_TGKILL, uintptr(pid), uintptr(pid), uintptr(sig))
		count(errno)
		// As if sent by root from outside the pid namespace.
		count(sigqueue(pid, sig, -1))
		count(sigqueue(pid, sig, -60))
	}
	fasync(pid, syscall.SIGTERM)
	fasync(pid, syscall.SIGSEGV)
	fmt.Println("taken", taken)
	return forever()
}

func sigqueue(pid int, sig syscall.Signal, code int32) syscall.Errno {
	var info [128]byte // siginfo_t: si_code at 8, si_pid at 16, si_uid at 20
	*(*int32)(unsafe.Pointer(&info[8])) = code
	_, _, errno := syscall.Syscall(syscall.SYS_RT_SIGQUEUEINFO, uintptr(pid), uintptr(sig), uintptr(unsafe.Pointer(&info[0])))
	return errno
}

// fasync makes the kernel send the signal when a socket becomes readable (fcntl(2), F_SETOWN,
// F_SETSIG). If the kernel refuses that, the attack does not count.
func fasync(pid int, sig syscall.Signal) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return
	}
	const setSig = 10 // F_SETSIG
	for _, call := range [][2]uintptr{{syscall.F_SETOWN, uintptr(pid)}, {setSig, uintptr(sig)}, {syscall.F_SETFL, syscall.O_ASYNC}} {
		if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(pair[0]), call[0], call[1]); errno != 0 {
			return
		}
	}
	_, _ = syscall.Write(pair[1], []byte("x"))
}

// attackShort sends TERM from a process that has ended before agentinit inspects it.
func attackShort([]string) error {
	pid := os.Getppid()
	for range 50 {
		child, err := syscall.ForkExec("/proc/self/exe", []string{"testprog", "kill", fmt.Sprint(pid), "15"}, &syscall.ProcAttr{})
		if err != nil {
			return err
		}
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(child, &ws, 0, nil); err != nil {
			return err
		}
	}
	fmt.Println("sent")
	return forever()
}

func kill(args []string) error {
	pid, err := number(args, 0, 1)
	if err != nil {
		return err
	}
	sig, err := number(args, 1, 15)
	if err != nil {
		return err
	}
	return fromThread(args, func() error { return syscall.Kill(pid, syscall.Signal(sig)) })
}

// attackPids uses up all free pids, prints "full" and their number, and then takes each pid that
// becomes free. Its children are forks that never run Go again, so they need no threads. After the
// first fork it makes system calls without the Go runtime, because the runtime would end the
// program if it could not make a thread.
func attackPids([]string) error {
	runtime.LockOSThread()
	signal.Ignore(syscall.SIGCHLD) // ended children must not keep a pid
	said := false
	pause := syscall.Timespec{Nsec: int64(time.Millisecond)}
	for n := 0; ; {
		pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
		switch {
		case errno == 0 && pid == 0:
			for {
				syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
			}
		case errno == 0:
			n++
			continue
		case !said:
			line := fmt.Appendf(nil, "full %d\n", n)
			_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, 1, uintptr(unsafe.Pointer(&line[0])), uintptr(len(line))) // if the write fails, the test waits and times out
			said = true
		}
		_, _, _ = syscall.RawSyscall(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&pause)), 0, 0)
	}
}
