package proc

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ReleaseText gives back the mapped pages of agentinit's program file that are rarely needed again,
// such as those of the start (madvise(2), MADV_DONTNEED). They are read-only: a page that is needed
// after all comes back from the page cache with a minor fault. Writable mappings stay as they are.
//
// Then ReleaseText waits until the channel is closed; nil is for ever. A return would need the pages
// of its caller. At the end of a goroutine, the Go runtime reads its function tables
// (isSystemGoroutine in runtime/traceback.go).
func ReleaseText(until <-chan struct{}) error {
	mapped, err := ownText()
	if err != nil {
		return err
	}
	// The code that runs from here on is mapped again, and each fault maps the sixteen pages around it
	// that have the same advice. The page of this loop gets advice of its own, so that it is mapped
	// alone. The advice has no other effect, because the file is in the page cache. The loop calls as
	// little as possible: unix.RawSyscall would only call syscall.RawSyscall.
	var failed syscall.Errno
	page := uintptr(os.Getpagesize())
	here, _, _, _ := runtime.Caller(0)
	if _, _, errno := syscall.RawSyscall(unix.SYS_MADVISE, here&^(page-1), page, unix.MADV_RANDOM); errno != 0 {
		failed = errno
	}
	for _, m := range mapped {
		if _, _, errno := syscall.RawSyscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED); errno != 0 {
			failed = errno
		}
	}
	if failed != 0 {
		return fmt.Errorf("madvise: %w", failed)
	}
	<-until
	return nil
}

// mapping is a range of addresses.
type mapping struct{ from, to uintptr }

// ownText lists the mappings of agentinit's program file that are not writable.
func ownText() ([]mapping, error) {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	var all []mapping
	for line := range strings.Lines(string(maps)) {
		// address perms offset dev inode path (proc(5))
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[5] != exe || strings.Contains(fields[1], "w") {
			continue
		}
		from, to, _ := strings.Cut(fields[0], "-")
		begin, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err1 == nil && err2 == nil && begin < end {
			all = append(all, mapping{uintptr(begin), uintptr(end)})
		}
	}
	return all, nil
}
