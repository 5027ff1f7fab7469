package api

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// DialSocket connects to a path, or to an abstract name that begins with "@". While the queue of the
// listener is full, it waits until ctx ends, but at most dialTimeout. Package net gives up at once
// then, so programs that connect without pause would keep others out.
func DialSocket(ctx context.Context, name string) (*net.UnixConn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", name)
	if err == nil {
		return conn.(*net.UnixConn), nil
	}
	if !errors.Is(err, unix.EAGAIN) {
		return nil, err
	}
	until := time.Now().Add(dialTimeout)
	if end, ok := ctx.Deadline(); ok && end.Before(until) {
		until = end
	}
	type outcome struct {
		conn *net.UnixConn
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		conn, err := connectUntil(name, until)
		done <- outcome{conn, err}
	}()
	select {
	case o := <-done:
		return o.conn, o.err
	case <-ctx.Done():
	}
	go func() {
		if o := <-done; o.err == nil {
			o.conn.Close()
		}
	}()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, err // it says why
	}
	return nil, ctx.Err()
}

// connectUntil waits in connect(2): the kernel wakes those who wait there one by one, so that each
// gets its turn. One that tries again and again would mostly find the queue full.
func connectUntil(name string, until time.Time) (*net.UnixConn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close() // net.FileConn has its own descriptor
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		left := time.Until(until)
		if left < time.Millisecond {
			return nil, os.NewSyscallError("connect", unix.EAGAIN)
		}
		limit := unix.NsecToTimeval(int64(left))
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
			return nil, os.NewSyscallError("setsockopt", err)
		}
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: name})
	}
	if err != nil {
		return nil, os.NewSyscallError("connect", err)
	}
	conn, err := net.FileConn(file) // it makes the socket non-blocking: SO_SNDTIMEO has no effect then
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}
