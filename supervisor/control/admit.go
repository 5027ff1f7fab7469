package control

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/idle"
	"github.com/dreamlab-ai/agentinit/internal/lateclose"
	"github.com/dreamlab-ai/agentinit/internal/polled"
	"github.com/dreamlab-ai/agentinit/internal/problem"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// peerConn is a connection whose peer is known.
type peerConn struct {
	net.Conn
	peer Peer
	done func()
	once sync.Once

	idle.Place
	idle *idle.Order[*peerConn]
}

// Close closes the connection and frees its places.
func (c *peerConn) Close() error {
	c.idle.Leave(c)
	err := c.Conn.Close()
	c.once.Do(c.done)
	return err
}

// admission is the net.Listener from which the HTTP server accepts. It bounds the number of
// connections. If the limit is reached, it closes an idle connection; otherwise new ones wait in
// the kernel's queue. All supervised programs together have a smaller limit of their own, and those
// with control = true another one. So a program that opens many connections does not keep an
// operator out, nor a program that has more rights.
type admission struct {
	addr     net.Addr
	abstract bool
	owner    func(int) (string, bool)
	trusted  func(program string) bool // tells whether a program has control = true
	accepted func(error)               // called with the outcome of each accept
	failed   func(error)               // called if the peer of a connection cannot be identified

	slots   chan struct{}
	guests  guestPlaces
	ready   chan *peerConn
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
	// A connection is idle if no whole request has come since the last answer.
	idle   idle.Order[*peerConn]
	strays *lateclose.Strays

	mu      sync.Mutex
	current *net.UnixListener
}

func admit(socket *Socket, limits Limits, owner func(int) (string, bool), trusted func(string) bool, accepted, failed func(error)) *admission {
	ctx, stop := context.WithCancel(context.Background())
	first := socket.listener // the socket may get another listener soon
	a := &admission{
		addr: first.Addr(), current: first, abstract: socket.Abstract(), owner: owner, trusted: trusted, accepted: accepted, failed: failed,
		slots: make(chan struct{}, limits.Connections), guests: newGuestPlaces(limits.Guests),
		ready: make(chan *peerConn), ctx: ctx, stop: stop, strays: lateclose.NewStrays(strayThreads),
	}
	a.running.Go(func() { a.loop(first) })
	return a
}

// turnTo accepts from another listener. The listener before it goes on for a moment, for the
// connections in its queue.
func (a *admission) turnTo(next *net.UnixListener) {
	a.mu.Lock()
	before := a.current
	a.current = next
	a.mu.Unlock()
	// It fails if the listener is closed, and then there is nothing to end.
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

// Close stops admitting and waits until no connection is being checked.
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
	// This also closes a listener that turnTo has replaced.
	defer context.AfterFunc(a.ctx, func() { listener.Close() })()
	unwatched := polled.New(listener, nil)
	var until time.Time // until then, accepting works without epoll, which could not watch
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
		if !polling { // otherwise epoll may still be unable to watch
			a.accepted(nil)
		}
		if !a.room() {
			withoutPassed(conn, nil, a.strays).Close()
			return
		}
		// In a goroutine, because owner may have to read /proc.
		a.running.Go(func() { a.greet(conn) })
	}
}

func accept(listener *net.UnixListener, unwatched *polled.Listener, until time.Time) (net.Conn, error) {
	if time.Now().Before(until) {
		return unwatched.Accept(until)
	}
	return listener.Accept()
}

// pause waits a moment after a failed accept, mostly because no descriptor is free. It reports
// whether to continue.
func (a *admission) pause(err error) bool {
	if a.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
		return false
	}
	a.accepted(err)
	return sleep.For(a.ctx, 100*time.Millisecond)
}

func (a *admission) greet(conn net.Conn) {
	peer, err := identify(conn, a.abstract, a.owner)
	raw := idle.RawOf(conn)
	conn = withoutPassed(conn, raw, a.strays)
	if err != nil {
		a.failed(err)
		conn.Close()
		<-a.slots
		return
	}
	leave, ok := a.guests.take(peer, a.trusted)
	if !ok {
		turnAway(conn)
		<-a.slots
		return
	}
	release := func() { leave(); <-a.slots }
	c := &peerConn{Conn: conn, peer: peer, done: release, Place: idle.Place{Raw: raw}, idle: &a.idle}
	a.idle.Rest(c)
	select {
	case a.ready <- c:
	case <-a.ctx.Done():
		c.Close()
	}
}

// guestPlaces bounds what supervised programs may hold at once. Those with control = true have places
// of their own, so that a program without it cannot take them all.
type guestPlaces struct{ untrusted, trusted chan struct{} }

func newGuestPlaces(each int) guestPlaces {
	return guestPlaces{make(chan struct{}, each), make(chan struct{}, each)}
}

// take takes a place if the peer is a guest; others need none. The caller calls leave at the end. If
// ok is false, there is no place.
func (g guestPlaces) take(peer Peer, trusted func(program string) bool) (leave func(), ok bool) {
	if !peer.guest() {
		return func() {}, true
	}
	places := g.untrusted
	if !peer.Uncertain && trusted(peer.Program) {
		places = g.trusted
	}
	select {
	case places <- struct{}{}:
		return func() { <-places }, true
	default:
		return nil, false
	}
}

// turnAway answers without reading the request: the peer learns why, if it still reads.
func turnAway(conn net.Conn) {
	defer conn.Close()
	body, err := json.Marshal(api.Errorf(api.CodeBusy, "too many connections by supervised programs"))
	if err != nil {
		return
	}
	if conn.SetDeadline(time.Now().Add(time.Second)) != nil {
		return
	}
	header := "HTTP/1.1 503 " + http.StatusText(http.StatusServiceUnavailable) +
		"\r\nContent-Type: " + problem.Type + "\r\nConnection: close\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n"
	// The peer is refused in any case, even if it cannot read why.
	_, _ = conn.Write(append([]byte(header), body...))
}
