package proc

import (
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// leaveTable gives a new process that shares agentinit's descriptor table one of its own. It must be
// the first step. If the process did not share the table at first, the kernel would copy all of it,
// and the exec would close the copies: a third of a start's cost in a box of a thousand programs.
func (l *launch) leaveTable() {
	l.add(stepInfo{op: opDescriptors}, unix.SYS_CLOSE_RANGE, 0, uintptr(^uint32(0)), unix.CLOSE_RANGE_UNSHARE)
}

// keepInTable says what leaveTable keeps: the descriptors up to the highest that a step names. The
// kernel copies whole words of 64, and some old ones only do so correctly if they are asked to.
func (o *Owner) keepInTable(l *launch, c *Command, io *childIO, cgroup int) {
	last := max(int(slices.Max(io.fds)), c.TTYFD, cgroup, l.ruleset, o.guard.scope)
	if r := o.refused.Load(); r != nil {
		last = max(last, r.remote)
	}
	l.steps[0].Args[0] = uintptr(last+64) &^ 63
}

// copiesTables tells whether the kernel can copy the lower part of a descriptor table
// (CLOSE_RANGE_UNSHARE). The call is in Linux from 5.9 on, and correct from 6.11 on. Some series
// before that were mended later, so they are tried.
func copiesTables() bool {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return false
	}
	var major, minor int
	if n, _ := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); n < 2 {
		return false
	}
	return major > 6 || major == 6 && minor >= 11 || tryTableCopy()
}

// tryTableCopy tries what a kernel before the correction does wrong: if 64 numbers above the copied
// part are all in use in the original, they count as used in the copy too, and a program gets none of
// them. A thread makes the copy for itself, and ends.
func tryTableCopy() bool {
	const first, after = 256, 320 // one word of the kernel's bitmap
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	for n := 0; n < after-1; {
		n, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, first)
		if err != nil {
			return false // the limit of open files is too low for such numbers
		}
		defer unix.Close(n)
	}
	free := -1
	onThread(func() {
		if unix.CloseRange(uint(fd)+1, uint(^uint32(0)), unix.CLOSE_RANGE_UNSHARE) == nil {
			free, _ = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, first)
		}
	})
	return free == first
}

// onThread runs f on a thread that ends after it. That is never the first thread: Go does not end that
// one, but parks it, and /proc/self shows its descriptors for ever.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onThread(f) // this goroutine holds the first thread meanwhile
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}
