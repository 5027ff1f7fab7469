// Package polled owns connections that are accepted and served without epoll(7). A program can use
// up all epoll watches of its user (fs.epoll.max_user_watches). Package net then closes each new
// connection of every other process of that user.
package polled

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Most is how many connections of a listener may work without epoll at once, because each uses a
// thread while it waits. If there is one more, the oldest one is closed.
const Most = 8

// For is how long this package accepts connections after package net has failed.
const For = time.Minute

// slice is how long a connection waits in the kernel before it checks whether it was closed or its
// deadline has changed.
const slice = 20 * time.Millisecond

// Needed reports whether err means that package net has closed a connection because epoll could not
// watch it.
func Needed(err error) bool { return errors.Is(err, unix.ENOSPC) }

// Socket is a listener of package net.
type Socket interface {
	syscall.Conn
	Addr() net.Addr
}

// Listener accepts connections from a socket of package net while package net cannot.
type Listener struct {
	socket Socket
	watch  func(*os.File) (net.Conn, error) // net.FileConn, except in tests
	conns  []*Conn
}

// New returns a Listener. watch makes a connection of package net if epoll can watch the file. If
// watch is nil, net.FileConn is used.
func New(socket Socket, watch func(*os.File) (net.Conn, error)) *Listener {
	if watch == nil {
		watch = net.FileConn
	}
	return &Listener{socket: socket, watch: watch}
}

// Accept returns the next connection: one of package net if epoll can watch it, otherwise a *Conn.
// After the deadline, the error is os.ErrDeadlineExceeded. Only one goroutine may call Accept.
func (l *Listener) Accept(deadline time.Time) (net.Conn, error) {
	fd, peer, err := l.accept(deadline)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "connection")
	if c, err := l.watch(file); err == nil {
		return c, file.Close()
	}
	l.conns = slices.DeleteFunc(l.conns, (*Conn).closed)
	if len(l.conns) >= Most {
		_ = l.conns[0].Close() // the client can connect again
		l.conns = l.conns[1:]
	}
	c := &Conn{file: file, fd: fd, local: l.socket.Addr(), remote: peer}
	l.conns = append(l.conns, c)
	return c, nil
}

// accept releases the socket after each slice, so that another goroutine can close it.
func (l *Listener) accept(deadline time.Time) (fd int, peer net.Addr, err error) {
	raw, err := l.socket.SyscallConn()
	if err != nil {
		return -1, nil, err
	}
	for time.Now().Before(deadline) {
		var from unix.Sockaddr
		var failed error
		err := raw.Control(func(listener uintptr) {
			if fd, from, failed = unix.Accept4(int(listener), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC); failed == unix.EAGAIN {
				_, _ = unix.Poll([]unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}, int(slice.Milliseconds()))
			}
		})
		switch {
		case err != nil:
			return -1, nil, err
		case failed == nil:
			return fd, address(from), nil
		case failed != unix.EAGAIN && failed != unix.EINTR && failed != unix.ECONNABORTED:
			return -1, nil, os.NewSyscallError("accept4", failed)
		}
	}
	return -1, nil, os.ErrDeadlineExceeded
}

func address(from unix.Sockaddr) net.Addr {
	switch from := from.(type) {
	case *unix.SockaddrInet4:
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4(from.Addr), uint16(from.Port)))
	case *unix.SockaddrInet6:
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom16(from.Addr).Unmap(), uint16(from.Port)))
	case *unix.SockaddrUnix:
		return &net.UnixAddr{Net: "unix", Name: from.Name}
	}
	return &net.UnixAddr{Net: "unix"}
}

// Conn is a connection that waits with poll(2).
type Conn struct {
	file          *os.File
	fd            int // the descriptor of file while the connection is open
	local, remote net.Addr

	open sync.RWMutex // held for reading while the descriptor is used
	done bool

	mu          sync.Mutex
	read, write time.Time // deadlines
}

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	return c.ReadBy(func(fd int) (int, error) { return unix.Read(fd, b) })
}

// ReadBy is like Read, but calls read for it. read must not wait.
func (c *Conn) ReadBy(read func(fd int) (int, error)) (int, error) {
	n, err := c.try(unix.POLLIN, &c.read, func() (int, error) { return read(c.fd) })
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (written int, err error) {
	for written < len(b) && err == nil {
		var n int
		n, err = c.try(unix.POLLOUT, &c.write, func() (int, error) {
			return unix.SendmsgN(c.fd, b[written:], nil, nil, unix.MSG_NOSIGNAL)
		})
		written += n
	}
	return written, err
}

// try calls do until it succeeds or fails, and waits with poll(2) while it would block. It ends at
// the deadline.
func (c *Conn) try(event int16, deadline *time.Time, do func() (int, error)) (int, error) {
	for {
		n, again, err := c.once(event, deadline, do)
		if !again {
			return n, err
		}
	}
}

func (c *Conn) once(event int16, deadline *time.Time, do func() (int, error)) (n int, again bool, err error) {
	c.open.RLock()
	defer c.open.RUnlock()
	c.mu.Lock()
	until := *deadline
	c.mu.Unlock()
	switch {
	case c.done:
		return 0, false, net.ErrClosed
	case !until.IsZero() && !time.Now().Before(until):
		return 0, false, os.ErrDeadlineExceeded
	}
	n, err = do()
	if err == nil {
		return n, false, nil
	}
	if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
		return max(n, 0), false, err
	}
	// The result of Poll does not matter: the next attempt shows whether the connection is ready.
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(c.fd), Events: event}}, int(slice.Milliseconds()))
	return 0, true, nil
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.open.Lock()
	defer c.open.Unlock()
	c.done = true
	return c.file.Close()
}

func (c *Conn) closed() bool {
	c.open.RLock()
	defer c.open.RUnlock()
	return c.done
}

// SyscallConn implements syscall.Conn.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.file.SyscallConn() }

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read, c.write = t, t
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = t
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.write = t
	return nil
}
