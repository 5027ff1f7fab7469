// Package idle owns which connection a listener closes if it has too many: the one that has been idle
// longest. A listener says when its connections are idle.
package idle

import (
	"container/list"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Patience is how long a connection may be idle and yet stay, because a request or the end of an
// answer may be on its way. A client normally sends its request when it connects.
const Patience = 200 * time.Millisecond

// Place is a connection's place among the idle ones. A type of connections embeds it.
type Place struct {
	Raw syscall.RawConn // nil if the connection has no descriptor

	// The lock of the connection's Order guards these fields.
	since   time.Time
	element *list.Element // nil: not idle
	left    bool

	busy atomic.Bool
}

// RawOf returns the descriptor of a connection or a listener; nil if it has none.
func RawOf(c any) syscall.RawConn {
	if socket, ok := c.(syscall.Conn); ok {
		if raw, err := socket.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}

// Busy records whether the reader works on bytes that it has read. Such a connection is not silent,
// even if the reader waits for a processor. For a connection that never says so, only the bytes count
// that the kernel has.
func (p *Place) Busy(busy bool) { p.busy.Store(busy) }

// Unread reports whether the kernel has bytes that were not read yet: the reader waits for a
// processor. It returns false if the kernel cannot tell.
func (p *Place) Unread() (unread bool) {
	if p.Raw == nil {
		return false
	}
	// An error means that the connection is closed, and so has no request.
	_ = p.Raw.Control(func(fd uintptr) {
		n, err := unix.IoctlGetInt(int(fd), unix.SIOCINQ)
		unread = err == nil && n > 0
	})
	return unread
}

func (p *Place) place() *Place { return p }

// Order holds the idle connections of a listener, the one idle longest first. Its zero value is ready.
type Order[C interface{ place() *Place }] struct {
	mu    sync.Mutex
	conns list.List // of C
}

// Rest records that c is idle from now on. It does nothing if c is idle or has left.
func (o *Order[C]) Rest(c C) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := c.place(); p.element == nil && !p.left {
		p.since, p.element = time.Now(), o.conns.PushBack(c)
	}
}

// Work records that c is idle no more. It returns false if c was not idle.
func (o *Order[C]) Work(c C) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.remove(c)
}

// Leave records that c is closed. An owner calls it before it closes the descriptor, so that Silent
// never holds the last reference to one: closing it may then take long.
func (o *Order[C]) Leave(c C) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.remove(c)
	c.place().left = true
}

func (o *Order[C]) remove(c C) bool {
	p := c.place()
	if p.element == nil {
		return false
	}
	o.conns.Remove(p.element)
	p.element = nil
	return true
}

// Len is how many connections are idle.
func (o *Order[C]) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.conns.Len()
}

// Silent takes out the connection that has been idle longest, for the caller to close. It takes none
// that has been idle for less than Patience, none that is busy, and none of which bytes have arrived that
// were not read.
func (o *Order[C]) Silent() (c C, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for e := o.conns.Front(); e != nil; e = o.conns.Front() {
		c := e.Value.(C)
		p := c.place()
		switch {
		case time.Since(p.since) < Patience:
			return *new(C), false // as all after it
		case !p.busy.Load() && !p.Unread():
			return c, o.remove(c)
		}
		p.since = time.Now() // its request has arrived, so it begins once more
		o.conns.MoveToBack(e)
	}
	return c, false
}

// Oldest takes out the connection that has been idle longest, whatever it has sent.
func (o *Order[C]) Oldest() (c C, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	e := o.conns.Front()
	if e == nil {
		return c, false
	}
	c = e.Value.(C)
	return c, o.remove(c)
}
