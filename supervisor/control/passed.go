package control

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/lateclose"
	"github.com/dreamlab-ai/agentinit/internal/polled"
)

// A process can pass descriptors with its request. The kernel closes them in the thread that reads the
// request without taking them, or that closes the connection. That may wait for ever, see
// lateclose.Strays. So passedConn has both interrupted. It takes no descriptor: the table of agentinit
// would fill up while the closes wait, and the kernel drops what has no place there in any case.

// strayThreads is how many threads at once read requests or close connections.
const strayThreads = 4

// passedConn is a connection that keeps nothing of what its peer passes.
type passedConn struct {
	net.Conn
	raw    syscall.RawConn // for a *net.UnixConn
	strays *lateclose.Strays

	reading sync.Mutex // held while the connection is read

	mu     sync.Mutex
	closed bool
}

func withoutPassed(conn net.Conn, raw syscall.RawConn, strays *lateclose.Strays) net.Conn {
	return &passedConn{Conn: conn, raw: raw, strays: strays}
}

func (c *passedConn) Read(b []byte) (n int, err error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	read := func(fd int) (n int, err error) {
		for again := true; again; again = err == syscall.EINTR {
			c.strays.Interrupt(func() { n, err = syscall.Read(fd, b) })
		}
		return n, err
	}
	if unwatched, ok := c.Conn.(*polled.Conn); ok {
		return unwatched.ReadBy(read)
	}
	waitErr := c.raw.Read(func(fd uintptr) bool {
		n, err = read(int(fd))
		return err != syscall.EAGAIN
	})
	switch {
	case waitErr != nil:
		return 0, waitErr
	case err != nil:
		return 0, &net.OpError{Op: "read", Net: "unix", Err: os.NewSyscallError("read", err)}
	case n == 0 && len(b) > 0:
		return 0, io.EOF
	}
	return n, nil
}

// Close ends a read first: package net lets the goroutine that uses a descriptor last close it.
func (c *passedConn) Close() error {
	c.mu.Lock()
	c.closed = true
	// It fails only on a closed connection, which no goroutine reads.
	_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
	c.mu.Unlock()
	c.reading.Lock()
	defer c.reading.Unlock()
	var err error
	c.strays.Interrupt(func() { err = c.Conn.Close() })
	return err
}

func (c *passedConn) SetDeadline(t time.Time) error {
	return c.unlessClosed(func() error { return c.Conn.SetDeadline(t) })
}

func (c *passedConn) SetReadDeadline(t time.Time) error {
	return c.unlessClosed(func() error { return c.Conn.SetReadDeadline(t) })
}

func (c *passedConn) unlessClosed(set func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	return set()
}
