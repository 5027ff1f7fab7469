package control

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// Bridge is the orchestrator's end of the channel to its host. Attach serves conn until the host or
// ctx ends it, and closes it. It returns why the channel ended, or nil if the host ended it.
type Bridge interface {
	Attach(ctx context.Context, conn io.ReadWriteCloser) error
}

func attachBridge(s *Server, r *http.Request) (func(io.ReadWriteCloser) error, error) {
	if s.cfg.Bridge == nil {
		e := unsupported("bridge")
		e.Hint = `the manifest's adapters.orchestrator must be "stdio-bridge"`
		return nil, e
	}
	return func(conn io.ReadWriteCloser) error { return s.cfg.Bridge.Attach(r.Context(), conn) }, nil
}

// serveUpgrade hands the connection over after status 101 (RFC 9110, 7.8). The connection counts as
// a connection until it is closed, and ends with the server.
func (s *Server) serveUpgrade(w http.ResponseWriter, r *http.Request, rt route) {
	if rt.Access == Write {
		s.audit(r, strings.TrimPrefix(rt.Path, "/v1/"), nil)
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), rt.Protocol) {
		e := api.Errorf(api.CodeBadRequest, "this route changes the protocol of the connection")
		e.Hint = "ask with Connection: Upgrade and Upgrade: " + rt.Protocol
		s.fail(w, e)
		return
	}
	serve, err := rt.upgrade(s, r)
	if err != nil {
		s.fail(w, asProblem(err))
		return
	}
	s.upgraded.Add(1)
	defer s.upgraded.Done()
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.fail(w, api.Errorf(api.CodeInternal, "cannot take the connection over: %v", err))
		return
	}
	if err := s.switchOver(conn, rt.Protocol); err != nil {
		conn.Close()
		s.trouble(err.Error())
		return
	}
	fields := peerFields(peerOf(r.Context()))
	fields["route"] = r.Pattern
	level := event.Info
	if err := serve(&upgraded{conn, buffered.Reader}); err != nil {
		level, fields["error"] = event.Warn, err.Error()
	}
	if rt.Access < Write { // then any program can end connections without pause
		n, ok := s.ended.Pass(time.Now())
		if !ok {
			return
		}
		fields["suppressed"] = n
	}
	s.publish(level, EventUpgradeEnded, fields)
}

// switchOver answers 101 and removes the deadlines of HTTP.
func (s *Server) switchOver(conn net.Conn, protocol string) error {
	if err := conn.SetDeadline(time.Now().Add(s.cfg.Limits.Write)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", protocol); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}

// upgraded is a connection from which HTTP may already have read some bytes of the new protocol.
type upgraded struct {
	net.Conn
	r *bufio.Reader
}

func (u *upgraded) Read(p []byte) (int, error) { return u.r.Read(p) }
