package telemetry

import (
	"context"
	"net"
	"sync"

	"github.com/dreamlab-ai/agentinit/internal/hostname"
)

// line holds the connections of one attempt, so that they are closed when the attempt ends.
// Otherwise HTTP/2 would keep the connection of a cancelled call while the peer is silent, and a
// dial in progress could still succeed later.
type line struct {
	mu    sync.Mutex
	over  bool
	conns []net.Conn
}

func (l *line) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := hostname.Dial(&net.Dialer{Timeout: ExportTimeout})(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		conn.Close()
		return nil, net.ErrClosed
	}
	l.conns = append(l.conns, conn)
	return conn, nil
}

// hangUp closes all connections of the attempt.
func (l *line) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	for _, conn := range l.conns {
		conn.Close()
	}
}
