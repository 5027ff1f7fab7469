package control

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/polled"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// peerConn is a connection whose peer is known.
type peerConn struct {
	net.Conn
	peer Peer
	done func()
	once sync.Once

	crowd  *crowd
	place  *list.Element // in the crowd; with the two below under its lock
	since  time.Time
	closed bool
}

// Close closes the connection and gives its places back.
func (c *peerConn) Close() error {
	c.crowd.leave(c)
	err := c.Conn.Close()
	c.once.Do(c.done)
	return err
}

// admission is the net.Listener the HTTP server accepts from. It bounds the
// connections: beyond the whole number one that says nothing makes room or the
// kernel's queue holds them, and supervised programs together have a share of
// their own, so that a program that opens all the connections it can get does not
// keep an operator out.
type admission struct {
	addr     net.Addr
	abstract bool
	owner    func(int) (string, bool)
	failed   func(error) // told about accepts that did not work

	slots, guests chan struct{}
	ready         chan *peerConn
	ctx           context.Context
	stop          context.CancelFunc
	running       sync.WaitGroup
	crowd         crowd

	mu      sync.Mutex
	current *net.UnixListener
}

func admit(socket *Socket, limits Limits, owner func(int) (string, bool), failed func(error)) *admission {
	ctx, stop := context.WithCancel(context.Background())
	first := socket.listener // the socket may have another one soon
	a := &admission{
		addr: first.Addr(), current: first, abstract: socket.Abstract(), owner: owner, failed: failed,
		slots: make(chan struct{}, limits.Connections), guests: make(chan struct{}, limits.Guests),
		ready: make(chan *peerConn), ctx: ctx, stop: stop,
	}
	a.running.Go(func() { a.loop(first) })
	return a
}

// turnTo accepts from another listener. The one before goes on for a moment, for
// those who are in its queue.
func (a *admission) turnTo(next *net.UnixListener) {
	a.mu.Lock()
	before := a.current
	a.current = next
	a.mu.Unlock()
	// It fails on a listener that is closed, which is what is meant.
	_ = before.SetDeadline(time.Now().Add(farewell))
	a.running.Go(func() { a.loop(next) })
}

// Accept returns the next connection whose peer is known.
func (a *admission) Accept() (net.Conn, error) {
	select {
	case c := <-a.ready:
		return c, nil
	case <-a.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Addr is the listener's address.
func (a *admission) Addr() net.Addr { return a.addr }

// Close stops admitting and waits until nothing is under way.
func (a *admission) Close() error {
	a.stop()
	a.mu.Lock()
	err := a.current.Close()
	a.mu.Unlock()
	a.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (a *admission) loop(listener *net.UnixListener) {
	// Also one that is on its way out.
	defer context.AfterFunc(a.ctx, func() { listener.Close() })()
	unwatched := polled.New(listener, nil)
	var until time.Time // connections are accepted that epoll cannot watch
	for {
		polling := time.Now().Before(until)
		conn, err := accept(listener, unwatched, until)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if polling {
				continue
			}
			listener.Close()
			return
		}
		if polled.Needed(err) {
			until = time.Now().Add(polled.For)
		}
		if err != nil {
			if !a.pause(err) {
				return
			}
			continue
		}
		if !a.room() {
			conn.Close()
			return
		}
		// Off the loop, because owner may have to look around in /proc.
		a.running.Go(func() { a.greet(conn) })
	}
}

func accept(listener *net.UnixListener, unwatched *polled.Listener, until time.Time) (net.Conn, error) {
	if time.Now().Before(until) {
		return unwatched.Accept(until)
	}
	return listener.Accept()
}

// pause waits a moment after a failed accept (out of descriptors, most likely)
// and reports whether to go on.
func (a *admission) pause(err error) bool {
	if a.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
		return false
	}
	a.failed(err)
	select {
	case <-time.After(100 * time.Millisecond):
		return true
	case <-a.ctx.Done():
		return false
	}
}

func (a *admission) greet(conn net.Conn) {
	peer, err := identify(conn, a.abstract, a.owner)
	if err != nil {
		a.failed(err)
		conn.Close()
		<-a.slots
		return
	}
	release := func() { <-a.slots }
	if peer.Program != "" {
		select {
		case a.guests <- struct{}{}:
			release = func() { <-a.guests; <-a.slots }
		default:
			turnAway(conn)
			<-a.slots
			return
		}
	}
	c := &peerConn{Conn: conn, peer: peer, done: release, crowd: &a.crowd}
	a.crowd.rest(c)
	select {
	case a.ready <- c:
	case <-a.ctx.Done():
		c.Close()
	}
}

// turnAway answers without reading: the peer learns why if it still listens.
func turnAway(conn net.Conn) {
	defer conn.Close()
	problem := api.Errorf(api.CodeBusy, "too many connections by supervised programs")
	body, err := json.Marshal(problem)
	if err != nil {
		return
	}
	if conn.SetDeadline(time.Now().Add(time.Second)) != nil {
		return
	}
	header := "HTTP/1.1 503 " + http.StatusText(http.StatusServiceUnavailable) +
		"\r\nContent-Type: application/problem+json\r\nConnection: close\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n"
	// The peer is being refused; that it does not hear why changes nothing.
	_, _ = conn.Write(append([]byte(header), body...))
}
