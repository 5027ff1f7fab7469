// Package leasetest takes leases on files, for tests.
package leasetest

import (
	"os"
	"os/signal"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Hold takes a write lease on a file, until the test ends or release is called. No process may have the file open. Hold
// skips the test if the file system has no leases.
func Hold(t testing.TB, file string) (release func()) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() }) // which gives the lease up
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, syscall.SIGIO) // the kernel tells the holder that another process wants the file
	t.Cleanup(func() { signal.Stop(ignored) })
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skipf("the file system of %s has no leases: %v", file, err)
	}
	return func() {
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK); err != nil {
			t.Fatal(err)
		}
	}
}
