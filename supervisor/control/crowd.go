package control

import (
	"container/list"
	"context"
	"net/http"
	"sync"
	"time"
)

// patience is how long a connection may stay idle if the limit is reached. A client normally sends
// its request when it connects.
const patience = 250 * time.Millisecond

// crowd knows the idle connections, the one idle longest first. A connection is idle if no whole
// request has come since the last answer. These connections can be closed when there are too many.
type crowd struct {
	mu   sync.Mutex
	idle list.List // of *peerConn
}

// rest records that c is idle.
func (w *crowd) rest(c *peerConn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.place == nil && !c.closed {
		c.since, c.place = time.Now(), w.idle.PushBack(c)
	}
}

// work records that a whole request has come on c.
func (w *crowd) work(c *peerConn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.take(c)
}

func (w *crowd) leave(c *peerConn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.closed = true
	w.take(c)
}

func (w *crowd) take(c *peerConn) {
	if c.place != nil {
		w.idle.Remove(c.place)
		c.place = nil
	}
}

// closeOldest closes the connection that has been idle longest, if it was idle for at least patience.
func (w *crowd) closeOldest() {
	w.mu.Lock()
	var oldest *peerConn
	if first := w.idle.Front(); first != nil && time.Since(first.Value.(*peerConn).since) >= patience {
		oldest = first.Value.(*peerConn)
		w.take(oldest)
	}
	w.mu.Unlock()
	if oldest != nil {
		oldest.Close()
	}
}

// room takes a place for a connection; if there is none, it waits or closes an idle connection. It
// returns false if the server ends first.
func (a *admission) room() bool {
	select {
	case a.slots <- struct{}{}:
		return true
	default:
	}
	for {
		a.crowd.closeOldest()
		again := time.NewTimer(patience / 10)
		select {
		case a.slots <- struct{}{}:
			again.Stop()
			return true
		case <-a.ctx.Done():
			again.Stop()
			return false
		case <-again.C:
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
	c.crowd.work(c)
	return func() { c.crowd.rest(c) }
}

func withConn(ctx context.Context, c *peerConn) context.Context {
	return context.WithValue(context.WithValue(ctx, peerKey{}, c.peer), connKey{}, c)
}
