// Package leased owns how to find out that a plain open of a file would wait for the holder of a lease (fcntl(2)). It
// must not wait itself, and does not know what the file is for.
package leased

import (
	"errors"
	"os"
	"syscall"
)

// Check fails with EWOULDBLOCK if another process has a lease on a regular file. A plain open would wait then until the
// holder gives it up, for 45 seconds at most (/proc/sys/fs/lease-break-time). Other reasons for which the file cannot
// be opened are no error here. It may be called from any goroutine.
func Check(file string) error {
	// Without O_NONBLOCK, this open would wait too (open(2)).
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	switch {
	case err == nil:
		_ = f.Close() // nothing was written
	case errors.Is(err, syscall.EWOULDBLOCK):
		return err
	}
	return nil
}
