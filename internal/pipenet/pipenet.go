// Package pipenet owns a network of connections in memory. With it, a test in a bubble of
// testing/synctest can wait for network traffic. It must never be part of a box's binaries.
package pipenet

import (
	"context"
	"net"
	"sync"
)

// Listener accepts the other ends of the connections that DialContext returns. Its methods may be
// called from any goroutine. Make it with Listen.
type Listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

var _ net.Listener = (*Listener)(nil)

// Listen returns a listener without connections.
func Listen() *Listener {
	return &Listener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept waits for a connection. After Close it returns net.ErrClosed.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept and DialContext. Existing connections stay open. Further calls do nothing.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr returns an address that cannot be dialled.
func (*Listener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// DialContext has the signature that http.Transport needs. It ignores network and address. It waits
// until Accept has taken the connection.
func (l *Listener) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
