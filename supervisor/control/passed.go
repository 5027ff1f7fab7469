package control

import (
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/lateclose"
)

// A process can pass descriptors with its request, and the kernel closes them in the thread that
// reads the request or closes the connection. That close may wait for ever, see lateclose.Strays.
// So passedConn takes the descriptors itself and has them closed.

// strayThreads is how many threads close at once what peers have passed.
const strayThreads = 4

// mostPassed is enough for the most descriptors that one message can carry (SCM_MAX_FD 253).
const mostPassed = 1040

// messenger is a connection that returns passed descriptors: a *net.UnixConn or a *polled.Conn.
type messenger interface {
	net.Conn
	ReadMsgUnix(b, oob []byte) (n, oobn, flags int, addr *net.UnixAddr, err error)
}

// passedConn is a connection that keeps nothing of what its peer passes.
type passedConn struct {
	messenger
	strays *lateclose.Strays

	reading sync.Mutex // held while the connection is read
	oob     [mostPassed]byte

	mu     sync.Mutex
	closed bool
}

func withoutPassed(conn net.Conn, strays *lateclose.Strays) net.Conn {
	m, ok := conn.(messenger)
	if !ok {
		return conn // no other kind is ever accepted
	}
	return &passedConn{messenger: m, strays: strays}
}

// Read implements net.Conn.
func (c *passedConn) Read(b []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	n, oobn, _, _, err := c.ReadMsgUnix(b, c.oob[:]) // n is -1 with an error
	afterWrite()
	if oobn > 0 {
		c.strays.Close(passed(c.oob[:oobn]))
	}
	return max(n, 0), err
}

// passed returns the descriptors of a message.
func passed(oob []byte) (fds []int) {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range messages {
		if rights, err := syscall.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, rights...)
		}
	}
	return fds
}

// Close ends a read first: package net lets the goroutine that uses a descriptor last close it.
func (c *passedConn) Close() error {
	c.mu.Lock()
	c.closed = true
	// It fails only on a closed connection, which no goroutine reads.
	_ = c.messenger.SetReadDeadline(time.Unix(1, 0))
	c.mu.Unlock()
	c.reading.Lock()
	defer c.reading.Unlock()
	var err error
	c.strays.Interrupt(func() { err = c.messenger.Close() })
	return err
}

// SetDeadline implements net.Conn.
func (c *passedConn) SetDeadline(t time.Time) error {
	return c.unlessClosed(func() error { return c.messenger.SetDeadline(t) })
}

// SetReadDeadline implements net.Conn.
func (c *passedConn) SetReadDeadline(t time.Time) error {
	return c.unlessClosed(func() error { return c.messenger.SetReadDeadline(t) })
}

func (c *passedConn) unlessClosed(set func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	return set()
}
