package main

import (
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// attackSignals sends agentinit everything that could end it or make it do
// something, by every way there is, and says how many were taken.
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
		// As if from outside the pid namespace, by root.
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

// fasync has the kernel send the signal when a socket becomes readable (fcntl(2),
// F_SETOWN, F_SETSIG). Where it is refused, it is no attack.
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

// attackShort sends TERM from a process that is gone when agentinit looks.
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
	return syscall.Kill(pid, syscall.Signal(sig))
}

// attackThreads fills the pids that are left, or NPROC, with threads of its own
// while it holds connections to each address under way, says "full" and how many
// threads it got, and keeps both.
func attackThreads(args []string) error {
	for _, address := range args {
		go pester(address)
	}
	n := 0
	for refused := 0; refused < 50 && n < 20_000; {
		pid, err := syscall.ForkExec("/proc/self/exe", []string{"testprog", "sleep"}, &syscall.ProcAttr{})
		if err != nil || pid == 0 {
			refused++
			time.Sleep(10 * time.Millisecond)
			continue
		}
		n++
	}
	fmt.Println("full", n)
	return forever()
}

// pester asks again and again, many at once.
func pester(address string) {
	for {
		for range 200 {
			go func() {
				c, err := net.DialTimeout("tcp", address, time.Second)
				if err != nil {
					return
				}
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(2 * time.Second))
				_, _ = c.Write([]byte("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
				buf := make([]byte, 4096)
				for {
					if _, err := c.Read(buf); err != nil {
						return
					}
				}
			}()
		}
		time.Sleep(50 * time.Millisecond)
	}
}
