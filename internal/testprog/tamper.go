package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tamper tries the system calls with which a process can harm another process of the same user.
// Each call is in a form that changes no state: signal 0, or the limit and the priority that are
// set already. Each output line is the name of the call and the kernel's answer.
func tamper(args []string) error {
	pid, err := number(args, 0, 1)
	if err != nil {
		return err
	}
	tid, err := number(args, 1, pid)
	if err != nil {
		return err
	}
	say := func(what string, err error) {
		answer := "ok"
		if e, ok := err.(syscall.Errno); ok {
			answer = unix.ErrnoName(e)
		} else if err != nil {
			answer = err.Error()
		}
		fmt.Println(what, answer)
	}
	raw := func(what string, nr uintptr, a ...uintptr) {
		var args [6]uintptr
		copy(args[:], a)
		_, _, errno := syscall.Syscall6(nr, args[0], args[1], args[2], args[3], args[4], args[5])
		if errno == 0 {
			say(what, nil)
			return
		}
		say(what, errno)
	}
	p, t := uintptr(pid), uintptr(tid)
	raw("kill", unix.SYS_KILL, p, 0)
	raw("kill-thread", unix.SYS_KILL, t, 0)
	raw("tkill", unix.SYS_TKILL, t, 0)
	raw("tgkill", unix.SYS_TGKILL, p, t, 0)
	raw("tgkill-urg", unix.SYS_TGKILL, p, t, uintptr(unix.SIGURG)) // only Landlock refuses it, where there is a scope
	info := [128]byte{}
	*(*int32)(unsafe.Pointer(&info[8])) = -1 // si_code: SI_QUEUE
	raw("sigqueue", unix.SYS_RT_SIGQUEUEINFO, p, 0, uintptr(unsafe.Pointer(&info)))
	raw("tgsigqueue", unix.SYS_RT_TGSIGQUEUEINFO, p, t, 0, uintptr(unsafe.Pointer(&info)))
	raw("kill-term", unix.SYS_KILL, p, uintptr(unix.SIGURG)) // SIGURG, because the Go runtime ignores it
	fd, err := unix.PidfdOpen(pid, 0)
	say("pidfd_open", err)
	if err == nil {
		unix.Close(fd)
	}
	if fd, err = unix.Open("/proc/"+strconv.Itoa(pid), unix.O_RDONLY|unix.O_DIRECTORY, 0); err == nil {
		say("pidfd-of-proc", unix.PidfdSendSignal(fd, 0, nil, 0))
	}
	var lim unix.Rlimit
	raw("prlimit-read", unix.SYS_PRLIMIT64, p, unix.RLIMIT_CORE, 0, uintptr(unsafe.Pointer(&lim)))
	raw("prlimit", unix.SYS_PRLIMIT64, p, unix.RLIMIT_CORE, uintptr(unsafe.Pointer(&lim)))
	raw("prlimit-thread", unix.SYS_PRLIMIT64, t, unix.RLIMIT_CORE, uintptr(unsafe.Pointer(&lim)))
	var set unix.CPUSet
	say("affinity-read", unix.SchedGetaffinity(0, &set))
	raw("affinity", unix.SYS_SCHED_SETAFFINITY, t, unsafe.Sizeof(set), uintptr(unsafe.Pointer(&set)))
	param := int32(0)
	raw("scheduler", unix.SYS_SCHED_SETSCHEDULER, t, 0, uintptr(unsafe.Pointer(&param)))
	raw("schedparam", unix.SYS_SCHED_SETPARAM, t, uintptr(unsafe.Pointer(&param)))
	raw("priority", unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, t, 0)
	raw("priority-user", unix.SYS_SETPRIORITY, unix.PRIO_USER, uintptr(os.Getuid()), 0)
	raw("ioprio", unix.SYS_IOPRIO_SET, 1, t, 0)
	raw("ioprio-user", unix.SYS_IOPRIO_SET, 3, uintptr(os.Getuid()), 0)
	raw("own-limit", unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CORE, uintptr(unsafe.Pointer(&lim)))
	raw("own-signal", unix.SYS_KILL, uintptr(os.Getpid()), 0)
	raw("own-priority", unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, 0)
	raw("own-affinity", unix.SYS_SCHED_SETAFFINITY, uintptr(os.Getpid()), unsafe.Sizeof(set), uintptr(unsafe.Pointer(&set)))
	return nil
}

// rlimitSigpending is RLIMIT_SIGPENDING (getrlimit(2)).
const rlimitSigpending = 11

// borrowMark takes the mark of a guarded program, as only an unguarded program can.
func borrowMark(args []string) error {
	limit, err := number(args, 0, 0)
	if err != nil || len(args) < 2 {
		return errors.Join(err, errors.New("want a limit and a command"))
	}
	if err := unix.Setrlimit(rlimitSigpending, &unix.Rlimit{Cur: uint64(limit), Max: uint64(limit)}); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", append([]string{os.Args[0]}, args[1:]...), os.Environ())
}

func shedMark([]string) error {
	lim := unix.Rlimit{Cur: 500, Max: 500}
	if unix.Prlimit(0, rlimitSigpending, &lim, nil) == nil || unix.Setrlimit(rlimitSigpending, &lim) == nil {
		fmt.Println("shed")
		return nil
	}
	fmt.Println("kept")
	return nil
}
