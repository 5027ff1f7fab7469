package relay

import (
	"context"
	"net"

	"github.com/dreamlab-ai/agentinit/internal/idle"
)

// maxKnocking limits the open connections without a session. Each connection uses a file descriptor,
// and agentinit needs descriptors to start programs.
const maxKnocking = 128

// entrance is a listener that closes the oldest connection without a session if there are too many.
// So many idle connections cannot keep out a client that sends its request immediately.
type entrance struct {
	net.Listener
	knocking idle.Order[*visitor]
}

// visitor is one connection. It counts as idle until it has a session.
type visitor struct {
	net.Conn
	idle.Place
	at *entrance
}

func (e *entrance) Accept() (net.Conn, error) {
	c, err := e.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if e.knocking.Len() >= maxKnocking {
		if oldest, ok := e.knocking.Oldest(); ok {
			_ = oldest.Conn.Close() // an error does not matter: the connection was idle
		}
	}
	v := &visitor{Conn: c, at: e}
	e.knocking.Rest(v)
	return v, nil
}

// enter records that the connection has a session. It returns false if entrance has closed the
// connection to make room.
func (v *visitor) enter() bool { return v.at.knocking.Work(v) }

func (v *visitor) Close() error {
	v.at.knocking.Leave(v)
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
