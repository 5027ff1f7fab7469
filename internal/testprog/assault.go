package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// youngest is how many threads are attacked besides the first one, because agentinit has many
// threads.
const youngest = 8

// target is the agentinit under attack. tid is the thread that the current way attacks.
type target struct {
	pid, tid int
	tids     []int
	// page lies below 4 GiB, where 32-bit system calls can read it. It contains zeros, then a mask
	// of all processors.
	page uintptr
}

// The offset and the size of the mask in the page.
const maskAt, maskSize = 64, 64

// errSent is the result of a way that cannot detect whether it worked.
var errSent = errors.New("sent")

// way is one attempt to harm or to read a process. If a success would do harm at once, the way sets
// the value that is set already. The kernel makes the same permission checks for it.
type way struct {
	name string
	try  func(t *target) error
}

// assault tries every way and prints a line for each: its name and "ok", "sent" or the error. If a
// way works on one thread, it counts as successful. With "last", assault tries the ways that could
// end the box: their success could not be reported.
func assault(args []string) error {
	pid, err := number(args, 0, 1)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // ptrace(2) binds a tracer to a thread
	t, err := newTarget(pid)
	if err != nil {
		return err
	}
	switch {
	case has(args, "last"):
		t.try("", lastWays())
	case has(args, "once"):
		t.try("", allWays(pid))
		return nil
	case has(args, "in-userns"):
		t.tids = t.tids[:1]
		t.try("userns-", allWays(pid))
		return nil
	default:
		// Use a new process: when it ends, the processes that it traces continue.
		fmt.Println("once", word(again(pid, "once", nil)))
		// Try again as root of a new user namespace, with every capability there.
		fmt.Println("in-userns", word(again(pid, "in-userns", &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		})))
	}
	fmt.Println("done")
	return forever()
}

// again runs this program once more in a new process.
func again(pid int, how string, attr *syscall.SysProcAttr) error {
	inside := exec.Command("/proc/self/exe", "assault", strconv.Itoa(pid), how)
	inside.Stdout, inside.Stderr, inside.SysProcAttr = os.Stdout, os.Stderr, attr
	return inside.Run()
}

func newTarget(pid int) (*target, error) {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil || strings.TrimSpace(string(comm)) != "agentinit" {
		return nil, fmt.Errorf("process %d is %q and not agentinit; %v", pid, comm, err)
	}
	page, _, errno := unix.Syscall6(unix.SYS_MMAP, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|map32Bit, ^uintptr(0), 0)
	if errno != 0 {
		return nil, fmt.Errorf("mmap: %w", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SCHED_GETAFFINITY, 0, maskSize, page+maskAt); errno != 0 {
		return nil, fmt.Errorf("sched_getaffinity: %w", errno)
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil, err
	}
	t := &target{pid: pid, page: page}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			return nil, err
		}
		t.tids = append(t.tids, tid)
	}
	// The first thread is the process itself. The newest threads may have been made after the
	// guard.
	if n := len(t.tids); n > youngest {
		t.tids = append(t.tids[:1], t.tids[n-youngest:]...)
	}
	return t, nil
}

func allWays(pid int) []way {
	return slices.Concat(signalWays(), taskWays(), compatWays(), fileWays(pid))
}

func (t *target) try(prefix string, ways []way) {
	for _, w := range ways {
		fmt.Println(prefix+w.name, t.answer(w))
	}
}

func (t *target) answer(w way) string {
	var first error
	for i, tid := range t.tids {
		t.tid = tid
		err := w.try(t)
		if err == nil {
			return "ok"
		}
		if i == 0 {
			first = err
		}
	}
	return word(first)
}

// word is the printed form of a result.
func word(err error) string {
	errno, isErrno := errors.AsType[syscall.Errno](err)
	switch {
	case err == nil:
		return "ok"
	case isErrno:
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

func (t *target) p() uintptr    { return uintptr(t.pid) }
func (t *target) t() uintptr    { return uintptr(t.tid) }
func (t *target) p32() uint32   { return uint32(t.pid) }
func (t *target) t32() uint32   { return uint32(t.tid) }
func (t *target) zero() uintptr { return t.page }
func (t *target) mask() uintptr { return t.page + maskAt }

func raw(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, errno := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return errno
	}
	return nil
}

// Constants that package unix lacks on some or all architectures.
const (
	map32Bit      = 0x40 // MAP_32BIT, only on amd64
	sigevThreadID = 4
	lastSignal    = 64
	madvCold      = 20
	rlimits       = 16
	perfSoftware  = 1
	perfTaskClock = 1
	prioUser      = 2
	ioprioUser    = 3
)

// everySignal succeeds if one of the signals was accepted. In a process with many threads, it tries
// the first thread, which gets signals for the process, and the last one.
func everySignal(t *target, send func(sig uintptr) error) error {
	if t.tid != t.pid && t.tid != t.tids[len(t.tids)-1] {
		return unix.EPERM
	}
	var refused error
	taken := false
	for sig := uintptr(1); sig <= lastSignal; sig++ {
		if err := send(sig); err == nil {
			taken = true
		} else {
			refused = err
		}
	}
	if taken {
		return nil
	}
	return refused
}

// queued is a siginfo_t that claims to come from root outside the namespace.
func queued(sig uintptr, code int32) *[128]byte {
	info := new([128]byte)
	*(*int32)(unsafe.Pointer(&info[0])) = int32(sig)
	*(*int32)(unsafe.Pointer(&info[8])) = code
	return info
}

func signalWays() []way {
	const siQueue = -1
	return []way{
		{"kill", func(t *target) error {
			return everySignal(t, func(sig uintptr) error { return raw(unix.SYS_KILL, t.t(), sig) })
		}},
		{"tkill", func(t *target) error {
			return everySignal(t, func(sig uintptr) error { return raw(unix.SYS_TKILL, t.t(), sig) })
		}},
		{"tgkill", func(t *target) error {
			return everySignal(t, func(sig uintptr) error { return raw(unix.SYS_TGKILL, t.p(), t.t(), sig) })
		}},
		{"rt_sigqueueinfo", func(t *target) error {
			return everySignal(t, func(sig uintptr) error {
				return raw(unix.SYS_RT_SIGQUEUEINFO, t.t(), sig, uintptr(unsafe.Pointer(queued(sig, siQueue))))
			})
		}},
		{"rt_tgsigqueueinfo", func(t *target) error {
			return everySignal(t, func(sig uintptr) error {
				return raw(unix.SYS_RT_TGSIGQUEUEINFO, t.p(), t.t(), sig, uintptr(unsafe.Pointer(queued(sig, siQueue))))
			})
		}},
		{"pidfd_send_signal", func(t *target) error {
			return withFD(unix.PidfdOpen(t.pid, 0))(func(fd int) error {
				return everySignal(t, func(sig uintptr) error { return unix.PidfdSendSignal(fd, unix.Signal(sig), nil, 0) })
			})
		}},
		{"pidfd_send_signal-of-proc", func(t *target) error {
			return withFD(unix.Open(fmt.Sprintf("/proc/%d", t.tid), unix.O_RDONLY|unix.O_DIRECTORY, 0))(func(fd int) error {
				return everySignal(t, func(sig uintptr) error { return unix.PidfdSendSignal(fd, unix.Signal(sig), nil, 0) })
			})
		}},
		{"timer_create", func(t *target) error {
			var event [64]byte // struct sigevent: value, signal, how to notify, thread
			*(*int32)(unsafe.Pointer(&event[8])) = int32(unix.SIGTERM)
			*(*int32)(unsafe.Pointer(&event[12])) = sigevThreadID
			*(*int32)(unsafe.Pointer(&event[16])) = int32(t.tid)
			var id int32
			return raw(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&id)))
		}},
		{"exit-signal", func(*target) error { return exitSignal() }},
		{"credentials", func(t *target) error { return forgedCredentials(t.pid) }},
	}
}

// lastWays are ways of which the kernel does not report whether the signal arrives. A fault signal
// that arrives through a descriptor looks like a real fault.
func lastWays() []way {
	return []way{
		{"fcntl-setown", func(t *target) error { return owned(unix.F_SETOWN, t.p()) }},
		{"fcntl-setown-ex", func(t *target) error {
			owner := struct{ kind, pid int32 }{0, int32(t.tid)} // F_OWNER_TID
			return owned(unix.F_SETOWN_EX, uintptr(unsafe.Pointer(&owner)))
		}},
		{"kill-all", func(*target) error { return raw(unix.SYS_KILL, ^uintptr(0), uintptr(unix.SIGKILL)) }},
	}
}

// withFD returns a function that runs do with a descriptor, or reports why there is none.
func withFD(fd int, err error) func(do func(fd int) error) error {
	return func(do func(fd int) error) error {
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return do(fd)
	}
}

// owned makes the kernel send every signal when a socket becomes readable (fcntl(2), F_SETSIG).
// Landlock drops such a signal silently.
func owned(command int, owner uintptr) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	if err := raw(unix.SYS_FCNTL, uintptr(pair[0]), uintptr(command), owner); err != nil {
		return err
	}
	for sig := uintptr(1); sig <= lastSignal; sig++ {
		if err := raw(unix.SYS_FCNTL, uintptr(pair[0]), unix.F_SETSIG, sig); err != nil {
			return err
		}
		if err := raw(unix.SYS_FCNTL, uintptr(pair[0]), unix.F_SETFL, unix.O_ASYNC); err != nil {
			return err
		}
		if _, err := unix.Write(pair[1], []byte("x")); err != nil {
			return err
		}
	}
	return errSent
}

// exitSignal makes agentinit the parent of a child that is to report its end with SEGV (clone(2)).
// The kernel changes the signal to CHLD.
func exitSignal() error {
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, unix.CLONE_PARENT|uintptr(unix.SIGSEGV), 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		for {
			syscall.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
		}
	}
	return errSent
}

// forgedCredentials sends, on its own socket, credentials of another process.
func forgedCredentials(pid int) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	return unix.Sendmsg(pair[0], []byte("x"), unix.UnixCredentials(&unix.Ucred{Pid: int32(pid), Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())}), nil, 0)
}

// taskWays set limits and scheduling, trace, and read.
func taskWays() []way {
	return []way{
		{"prlimit64", func(t *target) error {
			var refused error
			for resource := range uintptr(rlimits) {
				var lim unix.Rlimit
				if err := raw(unix.SYS_PRLIMIT64, t.t(), resource, 0, uintptr(unsafe.Pointer(&lim))); err != nil {
					refused = err
					continue
				}
				err := raw(unix.SYS_PRLIMIT64, t.t(), resource, uintptr(unsafe.Pointer(&lim)))
				if err == nil {
					return nil
				}
				refused = err
			}
			return refused
		}},
		{"sched_setaffinity", func(t *target) error {
			return raw(unix.SYS_SCHED_SETAFFINITY, t.t(), maskSize, t.mask())
		}},
		{"sched_setscheduler", func(t *target) error {
			return raw(unix.SYS_SCHED_SETSCHEDULER, t.t(), unix.SCHED_NORMAL, t.zero())
		}},
		{"sched_setparam", func(t *target) error { return raw(unix.SYS_SCHED_SETPARAM, t.t(), t.zero()) }},
		{"sched_setattr", func(t *target) error {
			return unix.SchedSetAttr(t.tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr}, 0)
		}},
		{"setpriority", func(t *target) error { return raw(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, t.t(), 0) }},
		{"setpriority-user", func(t *target) error { return t.ifOurs(unix.SYS_SETPRIORITY, prioUser) }},
		{"ioprio_set", func(t *target) error { return raw(unix.SYS_IOPRIO_SET, 1, t.t(), 0) }},
		{"ioprio_set-user", func(t *target) error { return t.ifOurs(unix.SYS_IOPRIO_SET, ioprioUser) }},
		{"ptrace-attach", func(t *target) error {
			if err := raw(unix.SYS_PTRACE, unix.PTRACE_ATTACH, t.t()); err != nil {
				return err
			}
			return t.release()
		}},
		{"ptrace-seize", func(t *target) error {
			if err := raw(unix.SYS_PTRACE, unix.PTRACE_SEIZE, t.t()); err != nil {
				return err
			}
			if err := raw(unix.SYS_PTRACE, unix.PTRACE_INTERRUPT, t.t()); err != nil {
				return err
			}
			return t.release()
		}},
		{"process_vm_readv", func(t *target) error { return remote(unix.SYS_PROCESS_VM_READV, t.tid) }},
		{"process_vm_writev", func(t *target) error { return remote(unix.SYS_PROCESS_VM_WRITEV, t.tid) }},
		{"process_madvise", func(t *target) error {
			return withFD(unix.PidfdOpen(t.pid, 0))(func(fd int) error {
				iov := unix.RemoteIovec{Base: 0x400000, Len: 4096}
				return raw(unix.SYS_PROCESS_MADVISE, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1, madvCold)
			})
		}},
		{"process_mrelease", func(t *target) error {
			return withFD(unix.PidfdOpen(t.pid, 0))(func(fd int) error { return raw(unix.SYS_PROCESS_MRELEASE, uintptr(fd)) })
		}},
		{"pidfd_getfd", func(t *target) error {
			return withFD(unix.PidfdOpen(t.pid, 0))(func(fd int) error {
				return withFD(unix.PidfdGetfd(fd, 0, 0))(func(int) error { return nil })
			})
		}},
		{"setns-pidfd", func(t *target) error {
			return withFD(unix.PidfdOpen(t.pid, 0))(func(fd int) error { return unix.Setns(fd, unix.CLONE_NEWUTS) })
		}},
		{"setns", func(t *target) error {
			return withFD(unix.Open(fmt.Sprintf("/proc/%d/ns/uts", t.tid), unix.O_RDONLY, 0))(func(fd int) error { return unix.Setns(fd, 0) })
		}},
		{"kcmp", func(t *target) error { return raw(unix.SYS_KCMP, t.t(), t.t(), 1, 0, 0) }},
		{"get_robust_list", func(t *target) error {
			var head, size uintptr
			return raw(unix.SYS_GET_ROBUST_LIST, t.t(), uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&size)))
		}},
		{"move_pages", func(t *target) error { return raw(unix.SYS_MOVE_PAGES, t.t(), 0, 0, 0, 0, 0) }},
		{"migrate_pages", func(t *target) error {
			return raw(unix.SYS_MIGRATE_PAGES, t.t(), 1, t.mask(), t.mask())
		}},
		{"perf_event_open", func(t *target) error {
			attr := unix.PerfEventAttr{Type: perfSoftware, Config: perfTaskClock, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Bits: unix.PerfBitExcludeKernel}
			return withFD(unix.PerfEventOpen(&attr, t.tid, -1, -1, 0))(func(int) error { return nil })
		}},
		{"setpgid", func(t *target) error { return unix.Setpgid(t.tid, 0) }},
		{"io_uring-openat", func(t *target) error { return ringOpen(fmt.Sprintf("/proc/%d/mem", t.tid)) }},
	}
}

// release waits until the thread has stopped, then stops tracing it.
func (t *target) release() error {
	if _, err := unix.Wait4(t.tid, nil, unix.WALL, nil); err != nil {
		return err
	}
	return raw(unix.SYS_PTRACE, unix.PTRACE_DETACH, t.t())
}

// ifOurs changes the priority of all processes of our user, if the target belongs to that user.
func (t *target) ifOurs(nr, which uintptr) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", t.pid))
	if err != nil {
		return err
	}
	if !strings.Contains(string(text), fmt.Sprintf("\nUid:\t%d\t", os.Getuid())) {
		return unix.ESRCH
	}
	return raw(nr, which, uintptr(os.Getuid()), 0)
}

// remote reads or writes one byte of the process. A fault counts as success, because the kernel
// checks the permission first.
func remote(nr uintptr, pid int) error {
	var b byte
	local := unix.Iovec{Base: &b, Len: 1}
	far := unix.RemoteIovec{Base: 0x400000, Len: 1} // where the code of a Go program lies
	err := raw(nr, uintptr(pid), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&far)), 1, 0)
	if errors.Is(err, unix.EFAULT) {
		return nil
	}
	return err
}

// fileWays read files of /proc that are not for other users, and write the writable ones.
func fileWays(pid int) []way {
	var ways []way
	for _, name := range []string{
		"mem", "environ", "maps", "smaps", "numa_maps", "auxv", "pagemap", "syscall", "stack", "personality", "io", "timerslack_ns", "patch_state",
	} {
		ways = append(ways, way{"read-" + name, func(t *target) error {
			return withFD(unix.Open(fmt.Sprintf("/proc/%d/%s", t.tid, name), unix.O_RDONLY, 0))(func(fd int) error {
				var b [1]byte
				offset := int64(0)
				if name == "mem" {
					offset = 0x400000
				}
				n, err := unix.Pread(fd, b[:], offset)
				if err == nil && n == 0 {
					return unix.ENODATA
				}
				return err
			})
		}})
	}
	for _, name := range []string{"cwd", "root", "exe", "ns/pid", "ns/mnt", "fd/0"} {
		ways = append(ways, way{"follow-" + name, func(t *target) error {
			return withFD(unix.Open(fmt.Sprintf("/proc/%d/%s", t.tid, name), unix.O_PATH, 0))(func(int) error { return nil })
		}})
	}
	for _, name := range []string{"fd", "fdinfo", "map_files"} {
		ways = append(ways, way{"list-" + name, func(t *target) error {
			entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", t.tid, name))
			if err == nil && len(entries) == 0 {
				return unix.ENODATA
			}
			return err
		}})
	}
	// All files in /proc/PID that accept a value.
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/*", pid)) // the pattern is valid, so Glob returns no error
	for _, file := range files {
		info, err := os.Lstat(file)
		name := filepath.Base(file)
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o222 == 0 || name == "mem" {
			continue
		}
		ways = append(ways, way{"write-" + name, func(t *target) error { return written(fmt.Sprintf("/proc/%d/%s", t.tid, name)) }})
	}
	return append(ways, way{"write-mem", func(t *target) error {
		return withFD(unix.Open(fmt.Sprintf("/proc/%d/mem", t.tid), unix.O_WRONLY, 0))(func(int) error { return nil })
	}})
}

// written succeeds if the file accepts a value: a number, an id map or a word.
func written(file string) error {
	var refused error
	for _, value := range []string{"1", "0", "19", "0 0 1", "deny", "stolen"} {
		err := withFD(unix.Open(file, unix.O_WRONLY, 0))(func(fd int) error {
			_, err := unix.Write(fd, []byte(value))
			return err
		})
		if err == nil {
			return nil
		}
		refused = err
	}
	return refused
}
