package probes

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// connectionLimit is how many connections one listener may hold when the process
// may have that many descriptors. The two listeners together have a quarter: as
// long as a flood lasts, programs are still started, and each takes several.
func connectionLimit(descriptors uint64) int {
	return int(min(MaxConnections, max(1, descriptors/8)))
}

// descriptors is how many the process may have open.
func descriptors() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // what is usual
	}
	return limit.Cur
}

// acceptAgain is the wait after a connection that could not be accepted, and acceptTold how long
// such failures are then told of no more.
const (
	acceptAgain = 50 * time.Millisecond
	acceptTold  = time.Minute
)

// steadyListener accepts until it is closed. net/http closes a listener for every failure that it
// does not know as passing, and a program of agentinit's user can cause such ones: it takes all
// that epoll(7) watches for the user (ENOSPC). The port would then be free for that program.
type steadyListener struct {
	net.Listener
	failed func(error)
	quiet  time.Time // when failures are told of again; of the goroutine that accepts
}

// Steady returns a listener whose Accept fails only once it is closed. failed is told of the
// first failure, and after a minute again. Only one goroutine may accept.
func Steady(l net.Listener, failed func(error)) net.Listener {
	return &steadyListener{Listener: l, failed: failed}
}

// Accept implements net.Listener.
func (l *steadyListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return c, err
		}
		if now := time.Now(); now.After(l.quiet) {
			l.quiet = now.Add(acceptTold)
			l.failed(err)
		}
		time.Sleep(acceptAgain)
	}
}

// boundedListener holds at most max connections. When one more arrives, the
// oldest that is not inside a handler is closed: a flood of connections that
// send nothing, or send it slowly, cannot lock out the kubelet, and accepting
// never stops. When all are inside handlers, the newcomer is closed.
type boundedListener struct {
	net.Listener
	max int

	mu    sync.Mutex
	conns map[*boundedConn]struct{}
	first *boundedConn // oldest
	last  *boundedConn // newest
}

func newBoundedListener(l net.Listener, limit int) *boundedListener {
	return &boundedListener{Listener: l, max: limit, conns: make(map[*boundedConn]struct{}, limit)}
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		boundMemory(c)
		b := &boundedConn{Conn: c, owner: l}
		if l.full() {
			// Those that were accepted before read their requests first: on one
			// processor a burst would otherwise close all of them unread.
			runtime.Gosched()
		}
		victim, ok := l.admit(b)
		if victim != nil {
			victim.Close()
		}
		if ok {
			return b, nil
		}
		c.Close()
	}
}

// socketBuffer bounds what the kernel holds of one connection in each direction, in
// bytes; it doubles the number (socket(7)). By itself it grows a buffer to megabytes
// for a client that asks much and reads nothing.
const socketBuffer = 128 << 10

// boundMemory bounds how much kernel memory a connection can take, and for how long
// it can hold answers that it does not read, also after it was closed here
// (TCP_USER_TIMEOUT, tcp(7)). A kernel that refuses (gVisor knows not all options)
// serves the connection as it always has.
func boundMemory(c net.Conn) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	_ = t.SetWriteBuffer(socketBuffer)
	_ = t.SetReadBuffer(socketBuffer)
	if raw, err := t.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(WriteTimeout.Milliseconds()))
		})
	}
}

func (l *boundedListener) full() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns) >= l.max
}

// admit adds b; the victim is to be closed to make room.
func (l *boundedListener) admit(b *boundedConn) (victim *boundedConn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.conns) >= l.max {
		if victim = l.oldestIdle(); victim == nil {
			return nil, false
		}
		l.unlink(victim)
	}
	l.conns[b] = struct{}{}
	b.prev = l.last
	if l.last != nil {
		l.last.next = b
	} else {
		l.first = b
	}
	l.last = b
	return victim, true
}

func (l *boundedListener) oldestIdle() *boundedConn {
	for c := l.first; c != nil; c = c.next {
		if c.busy == 0 {
			return c
		}
	}
	return nil
}

// unlink forgets c; calling it again does nothing.
func (l *boundedListener) unlink(c *boundedConn) {
	if _, ok := l.conns[c]; !ok {
		return
	}
	delete(l.conns, c)
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		l.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		l.last = c.prev
	}
	c.prev, c.next = nil, nil
}

// boundedConn is one connection; its list fields belong to the owner's lock.
type boundedConn struct {
	net.Conn
	owner      *boundedListener
	prev, next *boundedConn
	busy       int // handlers at work for it
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.owner.mu.Lock()
	c.owner.unlink(c)
	c.owner.mu.Unlock()
	return c.Conn.Close()
}

func (c *boundedConn) work(delta int) {
	c.owner.mu.Lock()
	c.busy += delta
	c.owner.mu.Unlock()
}

type connKey struct{}

// connContext lets a handler find the connection it works for.
func connContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// markBusy keeps the connection from being closed while its handler works.
func markBusy(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*boundedConn); ok {
			c.work(1)
			defer c.work(-1)
		}
		next.ServeHTTP(w, r)
	})
}
