package logs

import (
	"os"

	"golang.org/x/sys/unix"
)

// duplicateBlocking copies a descriptor as fork does: same file, same blocking mode.
func duplicateBlocking(f *os.File) (int, error) {
	return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
}
