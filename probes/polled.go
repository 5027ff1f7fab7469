package probes

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// mostPolled is how many connections of a listener may do without epoll at once: each takes a
// thread while it waits. A further one has the oldest closed.
const mostPolled = 8

// pollSlice is how long such a connection waits in the kernel before it looks whether it was
// closed, or its deadline changed.
const pollSlice = 20 * time.Millisecond

// acceptUnwatched accepts a connection itself, because package net closes one that it cannot
// watch.
func (l *steadyListener) acceptUnwatched() (net.Conn, error) {
	fd, peer, err := l.acceptByPolling()
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "connection")
	if c, err := l.watch(file); err == nil {
		return c, file.Close()
	}
	if len(l.polled) >= mostPolled {
		_ = l.polled[0].Close() // whoever it was can come again
		l.polled = l.polled[1:]
	}
	c := &polledConn{file: file, fd: fd, local: l.Addr(), remote: peer}
	l.polled = append(l.polled, c)
	return c, nil
}

// acceptByPolling lets go of the listener now and then, so that it can be closed.
func (l *steadyListener) acceptByPolling() (fd int, peer net.Addr, err error) {
	raw, err := l.Listener.(syscall.Conn).SyscallConn()
	if err != nil {
		return -1, nil, err
	}
	for {
		var from unix.Sockaddr
		var failed error
		err := raw.Control(func(listener uintptr) {
			if fd, from, failed = unix.Accept4(int(listener), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC); failed == unix.EAGAIN {
				_, _ = unix.Poll([]unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}, int(pollSlice.Milliseconds()))
			}
		})
		switch {
		case err != nil:
			return -1, nil, err
		case failed == nil:
			return fd, tcpAddr(from), nil
		case failed != unix.EAGAIN && failed != unix.EINTR && failed != unix.ECONNABORTED:
			return -1, nil, os.NewSyscallError("accept4", failed)
		}
	}
}

func tcpAddr(from unix.Sockaddr) net.Addr {
	switch from := from.(type) {
	case *unix.SockaddrInet4:
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4(from.Addr), uint16(from.Port)))
	case *unix.SockaddrInet6:
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom16(from.Addr).Unmap(), uint16(from.Port)))
	}
	return &net.TCPAddr{}
}

// polledConn is a connection that waits by poll(2), not by epoll(7).
type polledConn struct {
	file *os.File
	fd   int // file's own, as long as the connection is open

	local, remote net.Addr

	open sync.RWMutex // held for reading while the descriptor is used
	done bool

	mu          sync.Mutex
	read, write time.Time // deadlines
}

// Read implements net.Conn.
func (c *polledConn) Read(b []byte) (int, error) {
	n, err := c.try(unix.POLLIN, &c.read, func() (int, error) { return unix.Read(c.fd, b) })
	if n == 0 && err == nil && len(b) > 0 {
		return 0, io.EOF
	}
	return n, err
}

// Write implements net.Conn.
func (c *polledConn) Write(b []byte) (written int, err error) {
	for written < len(b) && err == nil {
		var n int
		n, err = c.try(unix.POLLOUT, &c.write, func() (int, error) {
			return unix.SendmsgN(c.fd, b[written:], nil, nil, unix.MSG_NOSIGNAL)
		})
		written += n
	}
	return written, err
}

// try does it as soon as the kernel says that it can be done, and not after the deadline.
func (c *polledConn) try(event int16, deadline *time.Time, do func() (int, error)) (int, error) {
	for {
		n, err, again := c.once(event, deadline, do)
		if !again {
			return n, err
		}
	}
}

func (c *polledConn) once(event int16, deadline *time.Time, do func() (int, error)) (n int, err error, again bool) {
	c.open.RLock()
	defer c.open.RUnlock()
	c.mu.Lock()
	until := *deadline
	c.mu.Unlock()
	switch {
	case c.done:
		return 0, net.ErrClosed, false
	case !until.IsZero() && !time.Now().Before(until):
		return 0, os.ErrDeadlineExceeded, false
	}
	n, err = do()
	if err == nil {
		return n, nil, false
	}
	if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
		return max(n, 0), err, false
	}
	// Whatever it answers, the next attempt tells.
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(c.fd), Events: event}}, int(pollSlice.Milliseconds()))
	return 0, nil, true
}

// Close implements net.Conn.
func (c *polledConn) Close() error {
	c.open.Lock()
	defer c.open.Unlock()
	c.done = true
	return c.file.Close()
}

// LocalAddr implements net.Conn.
func (c *polledConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *polledConn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *polledConn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read, c.write = t, t
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *polledConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = t
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *polledConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.write = t
	return nil
}
