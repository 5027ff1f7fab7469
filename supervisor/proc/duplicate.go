package proc

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Duplicate opens a second descriptor of a pipe's end. It is for a caller whose first descriptor
// another goroutine may close at any time. The new descriptor does not block and is closed on exec.
// The first descriptor becomes non-blocking too, because both share that flag (dup(2)).
func Duplicate(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var dupErr error
	err = raw.Control(func(p uintptr) {
		if fd, dupErr = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 0); dupErr == nil {
			dupErr = unix.SetNonblock(fd, true)
		}
	})
	if err = errors.Join(err, dupErr); err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
