package control

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/audit"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// PeerOf returns the peer of a request that came through a control socket; ok is false for other
// requests.
func PeerOf(ctx context.Context) (peer Peer, ok bool) {
	peer, ok = ctx.Value(peerKey{}).(Peer)
	return peer, ok
}

// AuditPeer is the peer in the form of the audit record.
func (p Peer) AuditPeer() *audit.Peer {
	return &audit.Peer{PID: p.PID, UID: p.UID, Exe: executable(p.PID), Program: p.Program}
}

// audit publishes and records who requested a change, before the change is made. So the events
// after it can be read as its effect.
func (s *Server) audit(r *http.Request, action string, fields map[string]any) {
	peer := peerOf(r.Context())
	e := peerFields(peer)
	e["action"] = action
	maps.Copy(e, fields)
	s.publish(event.Info, EventChange, e)
	s.record(r, audit.Entry{Action: action, Details: fields})
}

func (s *Server) auditRefusal(r *http.Request, why *api.Error) {
	n, ok := s.quiet.Pass(time.Now())
	if !ok {
		return
	}
	peer := peerOf(r.Context())
	e := peerFields(peer)
	e["route"] = r.Pattern
	e["reason"] = why.Message
	e["suppressed"] = n
	s.publish(event.Warn, EventRefused, e)
	s.record(r, audit.Entry{Action: r.Pattern, Outcome: "refused", Details: map[string]any{"reason": why.Message, "suppressed": n}})
}

// record adds who made the request: a process on the socket, or a principal over HTTP.
func (s *Server) record(r *http.Request, e audit.Entry) {
	if s.cfg.Audit == nil {
		return
	}
	if peer := peerOf(r.Context()); peer.Principal != "" {
		e.Via, e.Principal, e.Remote = "http", peer.Principal, r.RemoteAddr
	} else {
		e.Via, e.Peer = "socket", peer.AuditPeer()
	}
	s.cfg.Audit.Append(e)
}

func getAudit(s *Server, r *http.Request, out *lines) error {
	if s.cfg.Audit == nil {
		return unsupported("audit record")
	}
	var since uint64
	if v := r.URL.Query().Get("since"); v != "" {
		var err error
		if since, err = strconv.ParseUint(v, 10, 63); err != nil {
			return api.Errorf(api.CodeBadRequest, "since must be the number of an entry")
		}
	}
	for _, line := range s.cfg.Audit.Lines(since) {
		if err := out.write(json.RawMessage(line), ""); err != nil {
			return err
		}
	}
	return nil
}

func getAuditCheck(s *Server, _ *http.Request) (any, error) {
	if s.cfg.Audit == nil {
		return nil, unsupported("audit record")
	}
	report, err := s.cfg.Audit.Check()
	if err != nil {
		return nil, api.Errorf(api.CodeInternal, "cannot read the audit record: %v", err)
	}
	return api.AuditReport(report), nil
}
