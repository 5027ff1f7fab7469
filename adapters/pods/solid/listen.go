package solid

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/idle"
	"github.com/dreamlab-ai/agentinit/internal/rate"
)

const (
	// maxConns limits the open connections. If there is one more, the one that has been idle longest is closed; a connection
	// is idle until its request has arrived.
	maxConns = 256
	// maxWorking limits the requests at work, fewer than the connections: a new connection always finds an idle one to
	// take the place of. It is more than maxGuests, maxAsking and all channels together: 64 are for who owns the tree.
	maxWorking  = 208
	headerTime  = 10 * time.Second
	requestTime = 30 * time.Second // of a request without a large body
	idleTime    = time.Minute
	maxHeader   = 64 << 10
	// shutdownTime is shorter than the second that agentctl has to end after a signal.
	shutdownTime = 700 * time.Millisecond
)

// Serve serves a listener until ctx ends. Then requests at work have a short time to end.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	door := &entrance{Listener: l, working: make(chan struct{}, maxWorking)}
	server := &http.Server{
		Handler: door.admit(s), ReadHeaderTimeout: headerTime, ReadTimeout: requestTime, WriteTimeout: requestTime, IdleTimeout: idleTime,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(door) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	if s.hub != nil {
		s.hub.close() // Shutdown does not know the connections of channels
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	err := server.Shutdown(limited)
	if errors.Is(err, context.DeadlineExceeded) {
		err = server.Close()
	}
	<-ended
	return err
}

// entrance is a listener that holds at most maxConns connections.
type entrance struct {
	net.Listener
	idle    idle.Order[*conn]
	working chan struct{}

	mu   sync.Mutex
	open int
}

// conn is one connection.
type conn struct {
	net.Conn
	idle.Place
	at   *entrance
	once sync.Once

	mu     sync.Mutex
	bucket *rate.Bucket
}

type connKey struct{}

// connOf is the connection of a request; nil if another listener has accepted it.
func connOf(ctx context.Context) *conn {
	c, _ := ctx.Value(connKey{}).(*conn)
	return c
}

// take takes a token of the connection's bucket.
func (c *conn) take(l rate.Limit) (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.bucket == nil {
		full := rate.Full(l, now)
		c.bucket = &full
	}
	return c.bucket.Take(now)
}

// Accept implements net.Listener.
func (e *entrance) Accept() (net.Conn, error) {
	inner, err := e.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: inner, at: e, Place: idle.Place{Raw: idle.RawOf(inner)}}
	e.mu.Lock()
	e.open++
	crowded := e.open > maxConns
	e.mu.Unlock()
	if crowded {
		if oldest, ok := e.idle.Oldest(); ok {
			_ = oldest.Close() // an error does not matter: the connection was idle
		}
	}
	e.idle.Rest(c)
	return c, nil
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.once.Do(func() {
		c.at.idle.Leave(c)
		c.at.mu.Lock()
		c.at.open--
		c.at.mu.Unlock()
	})
	return c.Conn.Close()
}

func busy() *fault {
	f := faulty(adapters.CodeUnavailable, "the server works on too many requests")
	f.retry = 1
	return f
}

// admit lets at most maxWorking requests work at once.
func (e *entrance) admit(s *Server) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := connOf(r.Context())
		select {
		case e.working <- struct{}{}:
		default:
			w.Header().Set("Connection", "close")
			(&request{s: s, w: w, r: r}).fail(busy())
			return
		}
		defer func() { <-e.working }()
		if c != nil && e.idle.Work(c) {
			defer e.idle.Rest(c)
		}
		s.ServeHTTP(w, r)
	})
}
