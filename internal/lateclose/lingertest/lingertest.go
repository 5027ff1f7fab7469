// Package lingertest makes descriptors whose close waits, for tests.
package lingertest

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// Lingering returns a TCP connection whose other end reads nothing. The process that closes it last
// waits ten minutes (SO_LINGER, socket(7)), or until release is called. The test closes the
// descriptor.
func Lingering(t testing.TB) (fd int, release func()) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	must(err)
	far, err := l.Accept()
	must(err)
	t.Cleanup(func() { far.Close() })
	file, err := near.(*net.TCPConn).File()
	must(err)
	defer file.Close()
	must(near.Close())
	fd, err = unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	must(err)
	must(unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 600}))
	must(unix.SetNonblock(fd, true))
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 64<<10))
	}
	if err != unix.EAGAIN {
		t.Fatal(err)
	}
	must(unix.SetNonblock(fd, false)) // package net would wait anyway; a nonblocking socket lingers too
	// The end of the other side is a reset, because it has not read everything.
	return fd, func() { far.Close() }
}

// Full takes all descriptors that the process may still open, until the end of the test.
func Full(t testing.TB) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	free, err := unix.Dup(0) // the kernel gives the lowest one
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(free)
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free), Max: before.Max}); err != nil {
		t.Fatal(err)
	}
}
