package api

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"time"
)

// AuditEntry is one request that changed something, or was refused.
type AuditEntry struct {
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"`
	Via  string    `json:"via"` // socket, http, signal
	// Action is what was requested: stop, apply, signal TERM, POST /v1/agents.
	Action string `json:"action"`
	// Outcome is "refused", or the status of an HTTP request; otherwise it is empty.
	Outcome string `json:"outcome,omitempty"`
	// Over HTTP, Principal is the holder of the key or token, and Remote the address.
	Principal string     `json:"principal,omitempty"`
	Remote    string     `json:"remote,omitempty"`
	Peer      *AuditPeer `json:"peer,omitempty"`
	// Details are fields of the request, such as the programs and the reason.
	Details map[string]json.RawMessage `json:"details,omitempty"`
	// Prev is the hash of the line before, Hash the hash of this line.
	Prev string `json:"prev"`
	Hash string `json:"hash"`
}

// AuditPeer is the process that made the request, as the kernel reported it. PID 0 means a process
// of another pid namespace.
type AuditPeer struct {
	PID     int    `json:"pid"`
	UID     uint32 `json:"uid"`
	Exe     string `json:"exe,omitempty"`
	Program string `json:"program,omitempty"` // the supervised program that it belongs to
}

// AuditReport is the result of checking the record's file.
type AuditReport struct {
	Lines int    `json:"lines"`
	First uint64 `json:"first"` // numbers of the first and the last entry; 0 if there are none
	Last  uint64 `json:"last"`
	Head  string `json:"head"` // hash of the last line
	// Problem says which line was changed or is missing; "" means none.
	Problem string `json:"problem,omitempty"`
}

// Audit calls each with the entries that agentinit has in memory after since, oldest
// first.
func (c *Client) Audit(ctx context.Context, since uint64, each func(AuditEntry) error) error {
	q := url.Values{}
	if since > 0 {
		q.Set("since", strconv.FormatUint(since, 10))
	}
	return stream(ctx, c, "/v1/audit", q, each)
}

// AuditCheck checks the file of the record for consistency, and compares it with what agentinit has
// in memory.
func (c *Client) AuditCheck(ctx context.Context) (AuditReport, error) {
	return get[AuditReport](ctx, c, "/v1/audit/check", nil)
}
