package main

import (
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"
)

// int80 makes a system call in the way of a 32-bit program.
func int80(nr, a, b, c uint32) int32

const x32Bit = 0x40000000

// compatWays are the additional ways of a 64-bit program: the system call numbers of 32-bit
// programs, and those of x32.
func compatWays() []way {
	old := func(nr, a, b, c uint32) (err error) {
		// A kernel that runs no 32-bit programs (CONFIG_IA32_EMULATION) sends SIGSEGV instead.
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() {
			if recover() != nil {
				err = syscall.ENOSYS
			}
		}()
		if answer := int80(nr, a, b, c); answer < 0 {
			return syscall.Errno(-answer)
		}
		return nil
	}
	const (
		kill, setpriority, setscheduler, tkill, setaffinity, tgkill, ptrace = 37, 97, 156, 238, 241, 270, 26
	)
	return []way{
		{"int80-kill", func(t *target) error { return old(kill, t.p32(), uint32(unix.SIGTERM), 0) }},
		{"int80-tkill", func(t *target) error { return old(tkill, t.t32(), uint32(unix.SIGSEGV), 0) }},
		{"int80-tgkill", func(t *target) error { return old(tgkill, t.p32(), t.t32(), uint32(unix.SIGSEGV)) }},
		{"int80-setpriority", func(t *target) error { return old(setpriority, unix.PRIO_PROCESS, t.t32(), 0) }},
		{"int80-sched_setscheduler", func(t *target) error { return old(setscheduler, t.t32(), unix.SCHED_NORMAL, uint32(t.zero())) }},
		{"int80-sched_setaffinity", func(t *target) error { return old(setaffinity, t.t32(), maskSize, uint32(t.mask())) }},
		{"int80-ptrace", func(t *target) error { return old(ptrace, unix.PTRACE_ATTACH, t.t32(), 0) }},
		{"x32-kill", func(t *target) error { return raw(x32Bit|unix.SYS_KILL, t.p(), uintptr(unix.SIGTERM)) }},
		{"x32-sched_setaffinity", func(t *target) error {
			return raw(x32Bit|unix.SYS_SCHED_SETAFFINITY, t.t(), maskSize, t.mask())
		}},
	}
}
