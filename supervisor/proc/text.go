package proc

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ReleaseText gives back the pages of our own program file that are mapped and
// will hardly be needed again, such as those of the start (madvise(2),
// MADV_DONTNEED). They are read-only: whatever is needed after all comes from the
// page cache with a minor fault. Writable mappings are left alone.
func ReleaseText() error {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	var errs []error
	lines := bufio.NewScanner(bytes.NewReader(maps))
	for lines.Scan() {
		// address perms offset dev inode path (proc(5))
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[5] != exe || strings.Contains(fields[1], "w") {
			continue
		}
		from, to, ok := strings.Cut(fields[0], "-")
		begin, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if !ok || err1 != nil || err2 != nil || end <= begin {
			continue
		}
		addr := uintptr(begin)
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, addr, uintptr(end-begin), unix.MADV_DONTNEED)
		if errno != 0 {
			errs = append(errs, errno)
		}
	}
	return errors.Join(append(errs, lines.Err())...)
}
