package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// The events that control publishes.
const (
	EventChange  = "ControlChange"  // a change was requested and will be tried
	EventRefused = "ControlRefused" // a peer was refused
	EventPanic   = "ControlPanic"   // a handler panicked; the server continues
	EventTrouble = "ControlTrouble" // the socket or the server met an error

	// EventSocketLost: the file of the socket was missing or replaced.
	EventSocketLost = "ControlSocketLost"
	// EventUpgradeEnded: a connection that had changed its protocol has ended.
	EventUpgradeEnded = "ControlUpgradeEnded"
	// EventListenerBehind: a pool of event listeners has dropped its oldest event, the first one since the
	// pool was last empty.
	EventListenerBehind = "ControlListenerBehind"
)

// stage is the part of the box in control's events.
const stage = "supervisor"

// Server serves one control socket.
type Server struct {
	cfg      Config
	mux      func() http.Handler
	panics   atomic.Uint64
	quiet    *event.Throttle // for refusals
	noisy    *event.Throttle // for trouble
	lost     *event.Throttle // for lost sockets
	jam      jam
	usage    sampler[api.Usage]
	trees    trees
	upgraded sync.WaitGroup // handlers that have taken over their connections from net/http

	logGuests guestPlaces // for answers of logs: one that nobody reads keeps a line in memory
	rpcGuests guestPlaces // for calls of XML-RPC: each takes megabytes until its answer is sent

	listenGuests guestPlaces
	listeners    listeners
	ended        event.Throttle // for connections of peers that may only read
}

// New returns a server for the route table. The table is built at the first request, so that a box
// starts its programs first. The server does not listen yet.
func New(cfg Config) *Server {
	cfg.Limits = cfg.Limits.withDefaults()
	s := &Server{
		cfg: cfg, quiet: eachSecond(), noisy: eachSecond(), lost: eachSecond(),
		logGuests: newGuestPlaces(cfg.Limits.LogGuests), rpcGuests: newGuestPlaces(maxRPCGuests),
		listenGuests: newGuestPlaces(maxListeners),
	}
	s.listeners.s = s
	s.mux = sync.OnceValue(s.layOut)
	return s
}

func (s *Server) layOut() http.Handler {
	mux := http.NewServeMux()
	allowed := make(map[string][]string)
	for _, rt := range append(routes(), supervisordRoutes()...) {
		mux.Handle(rt.Method+" "+rt.Path, s.serveRoute(rt, asItIs))
		allowed[rt.Path] = append(allowed[rt.Path], rt.Method)
	}
	for path, methods := range allowed {
		mux.Handle(path, s.methodNotAllowed(methods))
	}
	mux.Handle(api.AdaptersPrefix+"/", s.serveAdapters())
	mux.Handle(api.AdaptersPrefix, s.noRoute(openAPIPath)) // ServeMux would redirect it to the path with "/"
	mux.Handle("/", s.noRoute(openAPIPath))
	return s.onlyCleanPaths(mux, openAPIPath)
}

// Panics returns how many handlers have panicked.
func (s *Server) Panics() uint64 { return s.panics.Load() }

// endGrace is how long requests under way may go on when the server ends.
const endGrace = time.Second

// Serve answers on the socket until ctx ends. Then it ends the streams, gives requests under way up
// to endGrace to finish, and closes the socket.
func (s *Server) Serve(ctx context.Context, socket *Socket) error {
	l := s.cfg.Limits
	base, endStreams := context.WithCancel(context.WithoutCancel(ctx))
	defer endStreams()
	var handler http.Handler = s
	if s.cfg.Wrap != nil {
		handler = s.cfg.Wrap(s)
	}
	srv := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: l.Header,
		ReadTimeout:       l.Body,
		IdleTimeout:       l.Idle,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          log.New(troubleWriter{s}, "", 0),
		BaseContext:       func(net.Listener) context.Context { return context.WithValue(base, baseKey{}, base) },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return withConn(ctx, c.(*peerConn))
		},
		DisableGeneralOptionsHandler: true,
	}
	listener := admit(socket, l, s.cfg.Owner, s.mayControl, s.accepted, func(err error) { s.trouble(err.Error()) })
	var keeper sync.WaitGroup
	kept, leave := context.WithCancel(ctx)
	defer leave()
	keeper.Go(func() { s.keep(kept, socket, listener) })
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
		keeper.Wait() // before the current listener is closed: the keeper may still replace it
		endStreams()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), endGrace)
		defer cancel()
		if srv.Shutdown(grace) != nil {
			err = srv.Close()
		}
		<-served
	}
	endStreams()
	s.upgraded.Wait()
	leave()
	keeper.Wait()
	return errors.Join(err, listener.Close(), socket.Close())
}

type peerKey struct{}

// peerOf returns the peer of a request that came to a Server.
func peerOf(ctx context.Context) Peer {
	peer, ok := ctx.Value(peerKey{}).(Peer)
	if !ok {
		// Without a peer, nothing is known about the process: this invalid user has no rights.
		return Peer{UID: ^uint32(0), GID: ^uint32(0), Uncertain: true}
	}
	return peer
}

// answer remembers whether the answer has begun.
type answer struct {
	http.ResponseWriter
	begun bool
}

func (a *answer) WriteHeader(status int) {
	a.begun = true
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (int, error) {
	a.begun = true
	return a.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// ServeHTTP answers one request. If a handler panics, ServeHTTP recovers, counts the panic and
// publishes it.
func (s *Server) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w := &answer{ResponseWriter: rw}
	defer s.contain(w, r)
	s.mux().ServeHTTP(w, r)
}

func (s *Server) contain(w *answer, r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if v == http.ErrAbortHandler {
		panic(v)
	}
	s.panics.Add(1)
	s.publish(event.Error, EventPanic, map[string]any{
		"panic": fmt.Sprint(v), "route": r.Pattern, "stack": string(shorten(debug.Stack(), 4096)),
	})
	if w.begun {
		// Cut the connection, so that the client sees that the answer is incomplete.
		panic(http.ErrAbortHandler)
	}
	s.fail(w, api.Errorf(api.CodeInternal, "agentinit failed on this request because of a defect; see its log"))
}

func shorten(b []byte, n int) []byte { return b[:min(len(b), n)] }

func (s *Server) publish(level event.Level, name string, fields map[string]any) {
	s.cfg.Events.Publish(event.Event{Level: level, Stage: stage, Name: name, Fields: fields})
}

// troubleWriter turns net/http's log lines into events.
type troubleWriter struct{ s *Server }

func (t troubleWriter) Write(p []byte) (int, error) {
	t.s.trouble(strings.TrimSpace(string(p)))
	return len(p), nil
}

var _ io.Writer = troubleWriter{}

func (s *Server) trouble(message string) {
	if n, ok := s.noisy.Pass(time.Now()); ok {
		s.publish(event.Warn, EventTrouble, map[string]any{"error": message, "suppressed": n})
	}
}

// jam is a time in which the socket accepts no connections: no descriptor of the system is free, for
// example. A program can make many short ones, so not each is published.
type jam struct {
	mu       sync.Mutex
	told     bool
	throttle event.Throttle
}

// accepted publishes the first failure to accept a connection, and when one is accepted again.
func (s *Server) accepted(err error) {
	s.jam.mu.Lock()
	defer s.jam.mu.Unlock()
	switch {
	case err == nil && s.jam.told:
		s.jam.told = false
		s.publish(event.Info, EventTrouble, map[string]any{"message": "connections are accepted again"})
	case err != nil && !s.jam.told:
		var n uint64
		if n, s.jam.told = s.jam.throttle.Pass(time.Now()); s.jam.told {
			s.publish(event.Warn, EventTrouble, map[string]any{"error": err.Error(), "suppressed": n})
		}
	}
}

// eachSecond lets one event pass each second. Otherwise a peer that is refused again and again could
// push other events out of the ring.
func eachSecond() *event.Throttle { return &event.Throttle{Burst: 1, Every: time.Second} }

// policy uses the specifications that are in force now.
func (s *Server) policy() policy {
	return policy{uid: s.cfg.UID, gid: s.cfg.GID, mayControl: s.mayControl}
}

func (s *Server) mayControl(name string) bool {
	spec := specOf(s.cfg.Supervisor.Snapshot().Programs, name)
	return spec != nil && spec.Control
}

func peerFields(p Peer) map[string]any {
	if p.Principal != "" {
		return map[string]any{"principal": p.Principal}
	}
	f := map[string]any{"peer_uid": p.UID, "peer_gid": p.GID, "peer_pid": p.PID}
	if exe := executable(p.PID); exe != "" {
		f["peer_exe"] = exe
	}
	if p.Program != "" {
		f["peer_program"] = p.Program
	}
	return f
}
