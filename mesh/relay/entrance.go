package relay

import (
	"container/list"
	"context"
	"net"
	"sync"
)

// maxKnocking is how many connections may be open that are no session yet: each costs a descriptor
// of agentinit, which needs them to start programs.
const maxKnocking = 128

// entrance is a listener that closes the oldest connection without a session when there are too
// many: a flood of connections that ask for nothing keeps out no client that asks at once.
type entrance struct {
	net.Listener

	mu       sync.Mutex
	knocking list.List // of *visitor, the oldest first
}

// visitor is one connection.
type visitor struct {
	net.Conn
	at    *entrance
	place *list.Element // nil once it has a session, or is closed
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
		_ = oldest.Conn.Close() // its client has asked for nothing
	}
	return v, nil
}

// enter says that the connection has a session now; false if it was closed to make room.
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

// withVisitor is the ConnContext of the server.
func withVisitor(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, visitorKey{}, c)
}

// visitorOf is the connection of a request; nil if another listener has accepted it.
func visitorOf(ctx context.Context) *visitor {
	v, _ := ctx.Value(visitorKey{}).(*visitor)
	return v
}
