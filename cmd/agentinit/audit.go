package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"

	"github.com/dreamlab-ai/agentinit/adapters/federation"
	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/cmd/agentinit/early"
	"github.com/dreamlab-ai/agentinit/internal/exchange"
	"github.com/dreamlab-ai/agentinit/internal/signame"
	"github.com/dreamlab-ai/agentinit/supervisor/audit"
	"github.com/dreamlab-ai/agentinit/supervisor/control"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// auditFile is in the runtime directory, because that is writable in every box.
const auditFile = "audit.jsonl"

// openAudit opens the audit record. If bootstrap must not write its file, it stays in memory.
func (b *box) openAudit() *audit.Log {
	trouble := func(err error) {
		b.publish(event.Warn, "AuditTrouble", map[string]any{"error": fmt.Sprint(err)})
	}
	path := filepath.Join(b.roots.Runtime, auditFile)
	if err := bootstrap.NewPolicy(b.roots).Check(path); err != nil {
		trouble(err)
		path = ""
	}
	record := audit.Open(path, trouble)
	record.SetMask(b.plane.Mask)
	return record
}

// auditPath is how many bytes of a request's path are recorded.
const auditPath = 256

// auditRequests records every request to the slots and agents that may change something, with the
// caller and the status of the answer. A heartbeat is recorded only if it failed because of the
// caller: the heartbeats of ten thousand boxes would soon fill the record.
func auditRequests(record *audit.Log, next http.Handler) http.Handler {
	if record == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet, http.MethodHead, http.MethodOptions:
			next.ServeHTTP(w, r)
			return
		}
		answer := &exchange.Recorder{ResponseWriter: w}
		// Also if the handler panics, because it may have made a change before.
		defer func() {
			path := r.URL.Path
			if path == federation.HeartbeatPath && (answer.Status < 400 || answer.Status >= 500) {
				return
			}
			e := audit.Entry{
				Via: "http", Action: exchange.Method(r.Method, "other") + " " + path[:min(len(path), auditPath)],
				Remote: r.RemoteAddr, Outcome: strconv.Itoa(answer.Status),
			}
			if who, ok := principal(r.Context()); ok {
				e.Principal = who.Role + ":" + who.ID
			}
			if peer, ok := control.PeerOf(r.Context()); ok {
				e.Via, e.Remote, e.Peer = "socket", "", peer.AuditPeer()
			}
			record.Append(e)
		}()
		next.ServeHTTP(answer, r)
	})
}

// auditSignal records a signal that is a request.
func auditSignal(record *audit.Log, s early.Sent, program, outcome string) {
	e := audit.Entry{Via: "signal", Action: "signal " + signame.Of(s.Signal), Outcome: outcome}
	switch {
	case s.Outside:
		e.Details = map[string]any{"from": "outside the pid namespace"}
	case !s.Forgeable:
		e.Peer = &audit.Peer{PID: s.PID, UID: s.UID, Program: program}
	}
	record.Append(e)
}
