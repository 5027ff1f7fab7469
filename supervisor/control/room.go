package control

import (
	"context"
	"net/http"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/idle"
)

// room takes a place for a connection; if there is none, it waits or closes an idle connection. It
// returns false if the server ends first.
func (a *admission) room() bool {
	select {
	case a.slots <- struct{}{}:
		return true
	default:
	}
	for {
		if c, ok := a.idle.Silent(); ok {
			c.Close()
		}
		select {
		case a.slots <- struct{}{}:
			return true
		case <-a.ctx.Done():
			return false
		case <-time.After(idle.Patience / 10):
		}
	}
}

type connKey struct{}

// underWay records that a whole request has come. The returned function ends that.
func underWay(r *http.Request) (done func()) {
	c, ok := r.Context().Value(connKey{}).(*peerConn)
	if !ok {
		return func() {}
	}
	c.idle.Work(c)
	return func() { c.idle.Rest(c) }
}

func withConn(ctx context.Context, c *peerConn) context.Context {
	return context.WithValue(context.WithValue(ctx, peerKey{}, c.peer), connKey{}, c)
}
