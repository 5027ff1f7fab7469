package control

import (
	"container/list"
	"context"
	"net/http"
	"sync"
	"time"
)

// patience is how long a connection may be without a whole request before it has
// to make room, when there is none: a client sends its request as it connects.
const patience = 250 * time.Millisecond

// crowd knows the connections for which nothing is being done, the one that has
// been so the longest first: half a request has come, or none since the last.
// They are the ones that can be given up when there are too many.
type crowd struct {
	mu   sync.Mutex
	idle list.List // of *peerConn
}

// rest notes that nothing is being done for c.
func (w *crowd) rest(c *peerConn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.place == nil && !c.closed {
		c.since, c.place = time.Now(), w.idle.PushBack(c)
	}
}

// work notes that a whole request has come by c.
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

// thin closes the connection that has rested the longest, if that is long enough.
func (w *crowd) thin() {
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

// room takes a place for a connection, another one's if it must. It reports
// whether there is one before the server ends.
func (a *admission) room() bool {
	select {
	case a.slots <- struct{}{}:
		return true
	default:
	}
	for {
		a.crowd.thin()
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

// underWay notes that a whole request has come, until what it returns is called.
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
