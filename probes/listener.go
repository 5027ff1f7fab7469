package probes

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/idle"
	"github.com/dreamlab-ai/agentinit/internal/polled"
	"github.com/dreamlab-ai/agentinit/internal/problem"
)

// connectionLimit is how many connections one listener may hold if the process may open that many
// descriptors. The two listeners together have a quarter of them. So programs can be started during
// a flood of connections, although each start takes several descriptors.
func connectionLimit(descriptors uint64) int {
	return int(min(maxConnections, max(1, descriptors/8)))
}

// descriptors is how many the process may have open.
func descriptors() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // a usual value
	}
	return limit.Cur
}

// acceptAgain is the wait after a failed accept. acceptTold is how long such failures are then not
// reported again.
const (
	acceptAgain = 50 * time.Millisecond
	acceptTold  = time.Minute
)

// steadyListener accepts until it is closed. net/http closes a listener for every failure that it
// does not know as passing, and a program of agentinit's user can cause such ones: it takes all
// that epoll(7) watches for the user (ENOSPC). The port would then be free for that program.
type steadyListener struct {
	net.Listener
	failed func(error)
	polled *polled.Listener // nil for a listener without a descriptor

	// Of the goroutine that accepts.
	quiet     time.Time // from then on, failures are reported again
	unwatched time.Time // until then, connections are accepted that cannot be watched
}

// Steady returns a listener whose Accept fails only after Close. failed is called for the first
// failure, and again after a minute. Only one goroutine may accept.
func Steady(l net.Listener, failed func(error)) net.Listener {
	steady := &steadyListener{Listener: l, failed: failed}
	if socket, ok := l.(polled.Socket); ok {
		steady.polled = polled.New(socket, nil)
	}
	return steady
}

func (l *steadyListener) Accept() (net.Conn, error) {
	for {
		c, err := l.acceptNow()
		switch {
		case err == nil || errors.Is(err, net.ErrClosed):
			return c, err
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue // epoll is tried again
		}
		now := time.Now()
		if now.After(l.quiet) {
			l.quiet = now.Add(acceptTold)
			l.failed(err)
		}
		if l.polled != nil && polled.Needed(err) {
			l.unwatched = now.Add(polled.For)
			continue
		}
		time.Sleep(acceptAgain)
	}
}

func (l *steadyListener) acceptNow() (net.Conn, error) {
	if time.Now().Before(l.unwatched) {
		return l.polled.Accept(l.unwatched)
	}
	return l.Listener.Accept()
}

// boundedListener holds at most max connections. Requests may run on all but reserve of them;
// further requests get 503, so that their connections become free again soon. If there is no room
// for a new connection, it closes the connection that has been idle longest: a flood of connections
// that send nothing, or send slowly, cannot lock out the kubelet. It does not close connections
// that have been idle for less than idle.Patience, and connections whose request has arrived but has
// not begun to be served yet. Meanwhile new connections wait in the queue of the kernel.
type boundedListener struct {
	net.Listener
	max     int
	reserve int
	freed   chan struct{} // a token: there may be room

	mu      sync.Mutex
	conns   map[*boundedConn]struct{}
	working int // connections with a request at work
	idle    idle.Order[*boundedConn]
	agents  map[string]int // how many requests of each agent are at work
	ofAll   int            // the sum of agents
}

// queued is how long a newcomer waits at most.
const queued = time.Second

func newBoundedListener(l net.Listener, limit int) *boundedListener {
	return &boundedListener{
		Listener: l, max: limit, reserve: (limit + 7) / 8, freed: make(chan struct{}, 1), conns: make(map[*boundedConn]struct{}, limit),
		agents: make(map[string]int),
	}
}

func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		b := &boundedConn{Conn: c, owner: l, Place: idle.Place{Raw: idle.RawOf(c)}}
		b.boundMemory()
		if l.admit(b) {
			return b, nil
		}
		c.Close()
	}
}

// admit finds room for b. If that takes too long, the connection that is idle longest is closed,
// whatever it has sent. If there is none, b is refused.
func (l *boundedListener) admit(b *boundedConn) bool {
	begun := time.Now()
	for {
		left := queued - time.Since(begun)
		victim, ok := l.place(b, left <= 0)
		if victim != nil {
			victim.Conn.Close()
		}
		if ok || left <= 0 {
			return ok
		}
		timer := time.NewTimer(min(idle.Patience, left))
		select {
		case <-timer.C:
		case <-l.freed:
			timer.Stop()
		}
	}
}

// place adds b. If there is no room, b gets the place of a victim, which the caller closes. With
// now, the victim may be a connection that may have sent a request.
func (l *boundedListener) place(b *boundedConn, now bool) (victim *boundedConn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.conns) >= l.max {
		victim, ok = l.idle.Silent()
		if !ok && now {
			victim, ok = l.idle.Oldest()
		}
		if !ok {
			return nil, false
		}
		l.forget(victim)
	}
	l.conns[b] = struct{}{}
	l.idle.Rest(b)
	return victim, true
}

// deferAccept leaves a connection to the kernel until it has sent something, or for as long as a
// request may take to arrive (TCP_DEFER_ACCEPT, tcp(7)). So silent connections cost no descriptor
// and no memory here. If the kernel refuses the option, connections come at once.
func deferAccept(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, int(readHeaderTimeout.Seconds()))
	})
}

// shorten lets at most limit connections wait in the queue of the kernel. The default is 4096, and a new
// connection has its turn after all of them: in a flood of connections, a probe waited for seconds. If
// the queue is full, the client's kernel tries again after a second (listen(2)). If the kernel refuses
// the shorter queue, the long one stays.
func shorten(l net.Listener, limit int) {
	if raw := idle.RawOf(l); raw != nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Listen(int(fd), limit) })
	}
}

// socketBuffer bounds how many bytes the kernel holds for one connection in each direction; the
// kernel doubles the number (socket(7)). Without it, the kernel grows a buffer to megabytes for a
// client that asks for much and reads nothing.
const socketBuffer = 128 << 10

// boundMemory bounds the kernel memory of a connection, and for how long unread answers stay there,
// even after the connection was closed here (TCP_USER_TIMEOUT, tcp(7)). If the kernel refuses an
// option (gVisor does not have all), the connection works without it.
func (c *boundedConn) boundMemory() {
	if c.Raw == nil {
		return
	}
	_ = c.Raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, socketBuffer)
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, socketBuffer)
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(writeTimeout.Milliseconds()))
	})
}

// forget frees the place of c; a repeated call has no effect.
func (l *boundedListener) forget(c *boundedConn) {
	if _, ok := l.conns[c]; !ok {
		return
	}
	delete(l.conns, c)
	l.rest(c)
	l.idle.Leave(c)
	l.tell()
}

// rest records that c has no request at work, and tells whether it had one.
func (l *boundedListener) rest(c *boundedConn) bool {
	if !c.working {
		return false
	}
	l.working--
	c.working = false
	if c.agent != "" {
		l.ofAll--
		if l.agents[c.agent]--; l.agents[c.agent] == 0 {
			delete(l.agents, c.agent)
		}
		c.agent = ""
	}
	return true
}

func (l *boundedListener) tell() {
	select {
	case l.freed <- struct{}{}:
	default: // there is a token already
	}
}

// boundedConn is one connection; its fields belong to the owner's lock.
type boundedConn struct {
	net.Conn
	idle.Place
	owner   *boundedListener
	working bool   // has a request at work
	agent   string // whose request that is; "" if no agent's
}

func (c *boundedConn) Close() error {
	c.owner.mu.Lock()
	c.owner.forget(c)
	c.owner.mu.Unlock()
	return c.Conn.Close()
}

func (c *boundedConn) Read(b []byte) (n int, err error) {
	c.Busy(false)
	n, err = c.Conn.Read(b)
	c.Busy(n > 0)
	return n, err
}

// begin records that a request is being served. ok is false if there are too many. last tells whether the
// connection must be closed after the answer, because the listener is full: the client may have sent
// hundreds of requests at once, and an idle connection would be closed to make room, perhaps just when
// its client sends the next request. end must follow in all cases.
func (c *boundedConn) begin() (ok, last bool) {
	l := c.owner
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, here := l.conns[c]; here && !c.working {
		l.idle.Work(c)
		l.working++
		c.working = true
	}
	return l.working <= l.max-l.reserve, len(l.conns) >= l.max
}

func (c *boundedConn) end() {
	l := c.owner
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rest(c) {
		l.idle.Rest(c)
		l.tell()
	}
}

// serves records that the request at work is that of an agent. It returns false if there are too many
// of them: an agent may have an eighth of the connections at work, and all agents together half of
// them. So the agents, which may be hostile, cannot keep the operator from the listener with streams
// and with bodies that come slowly.
func (c *boundedConn) serves(agent string) bool {
	l := c.owner
	l.mu.Lock()
	defer l.mu.Unlock()
	if !c.working {
		return true // the connection was closed meanwhile
	}
	if l.agents[agent] >= max(1, l.max/8) || l.ofAll >= max(1, l.max/2) {
		return false
	}
	c.agent = agent
	l.agents[agent]++
	l.ofAll++
	return true
}

// tooMuch refuses a request and names a time for the next attempt, which differs between callers.
func tooMuch(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Connection", "close")
	busy(w, http.StatusServiceUnavailable, problem.Unavailable, 1+rand.IntN(comeBack), "too many requests are being answered")
}

type connKey struct{}

// connContext lets a handler find the connection it works for.
func connContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// comeBack is the number of seconds over which refused clients are spread for their next attempt.
const comeBack = 5

// bounded protects a connection from being closed while its request runs. If too many requests run,
// refuse answers all requests but those for which exempt returns true.
func bounded(exempt func(*http.Request) bool, refuse, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*boundedConn); ok {
			room, last := c.begin()
			defer c.end()
			if last {
				w.Header().Set("Connection", "close")
			}
			if !room && !exempt(r) {
				// It is idle from here on. The kernel resets a connection that is closed with
				// bytes unread (RFC 1122, 4.2.2.13), and the answer may be lost with it.
				c.end()
				_, _ = io.CopyN(io.Discard, r.Body, maxHeaderBytes) // a client that sends more is disconnected
				refuse.ServeHTTP(w, r)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
