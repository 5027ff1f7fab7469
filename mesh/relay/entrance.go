package relay

import (
	"container/list"
	"context"
	"net"
	"sync"
)

// maxKnocking limits the open connections without a session. Each connection uses a file descriptor,
// and agentinit needs descriptors to start programs.
const maxKnocking = 128

// entrance is a listener that closes the oldest connection without a session if there are too many.
// So many idle connections cannot keep out a client that sends its request immediately.
type entrance struct {
	net.Listener

	mu       sync.Mutex
	knocking list.List // of *visitor, the oldest first
}

// visitor is one connection.
type visitor struct {
	net.Conn
	at    *entrance
	place *list.Element // nil if the connection has a session or is closed
}

// Accept implements net.Listener.
func (e *entrance) Accept() (net.Conn, error) {
	c, err := e.Listener.Accept()
	if err != nil {
		return nil, err
	}
	v := &visitor{Conn: c, at: e}
	e.mu.Lock()
	v.place = e.knocking.PushBack(v)
	var oldest *visitor
	if e.knocking.Len() > maxKnocking {
		oldest = e.knocking.Remove(e.knocking.Front()).(*visitor)
		oldest.place = nil
	}
	e.mu.Unlock()
	if oldest != nil {
		_ = oldest.Conn.Close() // an error does not matter: the connection was idle
	}
	return v, nil
}

// enter records that the connection has a session. It returns false if entrance has closed the
// connection to make room.
func (v *visitor) enter() bool {
	v.at.mu.Lock()
	defer v.at.mu.Unlock()
	if v.place == nil {
		return false
	}
	v.at.knocking.Remove(v.place)
	v.place = nil
	return true
}

// Close implements net.Conn.
func (v *visitor) Close() error {
	v.enter()
	return v.Conn.Close()
}

type visitorKey struct{}

// withVisitor is the ConnContext of the HTTP server.
func withVisitor(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, visitorKey{}, c)
}

// visitorOf returns the connection of a request, nil if another listener has accepted it.
func visitorOf(ctx context.Context) *visitor {
	v, _ := ctx.Value(visitorKey{}).(*visitor)
	return v
}
