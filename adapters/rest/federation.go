package rest

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/federation"
	mesh "github.com/dreamlab-ai/agentinit/adapters/federation/host"
)

// Host is the host side of federation. *Host of adapters/federation/host implements it.
type Host interface {
	Register(ctx context.Context, principal string, r federation.Registration) (federation.Grant, error)
	Heartbeat(ctx context.Context, box string, b federation.Beat) (federation.BeatAnswer, *federation.Eviction, error)
	Deregister(ctx context.Context, box string, f federation.Farewell) error
	Evict(ctx context.Context, box, reason string, permanent bool, retryAfter time.Duration) error
	Admit(ctx context.Context, box string) error
	Boxes(ctx context.Context, after string, limit int) ([]mesh.BoxStatus, error)
	// Known tells whether a box is registered here.
	Known(ctx context.Context, box string) (bool, error)
}

var _ Host = (*mesh.Host)(nil)

// EvictBody is the body of POST /v1/federation/evict.
type EvictBody struct {
	Box         string `json:"box_id"`
	Reason      string `json:"reason,omitempty"`
	Permanent   bool   `json:"permanent,omitempty"` // until an admin admits the box again
	RetryAfterS int    `json:"retry_after_s,omitempty"`
}

// AdmitBody is the body of POST /v1/federation/admit.
type AdmitBody struct {
	Box string `json:"box_id"`
}

// maxSession is the largest body of a session request. It is small because many boxes send them at
// once.
const maxSession = 64 << 10

func federationRoutes() []route {
	return needing(needsHost, []route{
		// No rate limit per principal: all boxes may share one token. Instead, the host limits how
		// many boxes register at once, and tells each other box when to try again.
		{Method: "POST", Path: federation.RegisterPath, ID: "register", Roles: member, Body: federation.Registration{}, Reply: federation.Grant{}, Status: 201, MaxBody: maxSession, paced: true,
			Doc: "Make a session for a box; the one it had before ends.", handle: fromJSON(postRegister)},
		{Method: "POST", Path: federation.HeartbeatPath, ID: "heartbeat", Roles: box | ended, Body: federation.Beat{}, Reply: federation.BeatAnswer{}, MaxBody: maxSession, told: true,
			Doc: "Tell how the box is; 410 when its session has ended.", handle: fromJSON(postHeartbeat)},
		{Method: "POST", Path: federation.DeregisterPath, ID: "deregister", Roles: box | ended, Body: federation.Farewell{}, Status: 204, MaxBody: maxSession,
			Doc: "End the box's session.", handle: fromJSON(postDeregister)},
		{Method: "GET", Path: "/v1/federation/boxes", ID: "boxes", Roles: reader, Reply: adapters.Page[mesh.BoxStatus]{},
			Query: []param{{"limit", "integer", "boxes of the page, 1-1000, default 1000"}, {"cursor", "string", "next_cursor of the page before"}},
			Doc:   "The boxes that are registered here, by id.", handle: getBoxes},
		{Method: "POST", Path: "/v1/federation/evict", ID: "evict", Roles: adminOnly, Body: EvictBody{}, Status: 204, Doc: "End a box's session; permanently if the body says so.", handle: fromJSON(postEvict)},
		{Method: "POST", Path: "/v1/federation/admit", ID: "admit", Roles: adminOnly, Body: AdmitBody{}, Status: 204, Doc: "Let a box register again that was evicted permanently.", handle: fromJSON(postAdmit)},
	})
}

// needsHost also closes the connection after each answer: a box sends its next heartbeat only after
// about half a minute, and its idle connection would keep other connections out.
func needsHost(q *request) error {
	q.w.Header().Set("Connection", "close")
	if q.s.cfg.Host == nil {
		return adapters.Unsupported("federation", `this box is no host: federation.mode is not "host"`)
	}
	return nil
}

func postRegister(q *request, in federation.Registration) error {
	// A box that signs its request must register with the key that signed it.
	if isKey(q.who.ID) {
		switch {
		case in.BoxID != q.who.ID:
			return adapters.Errorf(adapters.CodePermissionDenied, "box_id is not the key that signed the request")
		case in.DID != "" && in.DID != "did:nostr:"+q.who.ID:
			return adapters.Errorf(adapters.CodePermissionDenied, "did is not that of the key that signed the request")
		}
	}
	grant, err := q.s.cfg.Host.Register(q.Context(), q.who.Role+" "+q.who.ID, in)
	return q.result(http.StatusCreated, grant, err)
}

// isKey tells whether an id is a public key.
func isKey(id string) bool {
	return len(id) == 64 && strings.Trim(id, "0123456789abcdef") == ""
}

func postHeartbeat(q *request, in federation.Beat) error {
	answer, gone, err := q.s.cfg.Host.Heartbeat(q.Context(), q.who.ID, in)
	switch {
	case err != nil:
		return err
	case gone != nil:
		return adapters.Errorf(adapters.CodeSessionEvicted, "%s", gone.Reason).
			With("reason", gone.Reason, "permanent", gone.Permanent, "retry_after_s", gone.RetryAfterS)
	}
	return q.reply(http.StatusOK, answer)
}

func postDeregister(q *request, in federation.Farewell) error {
	err := q.s.cfg.Host.Deregister(q.Context(), q.who.ID, in)
	if err == nil {
		q.s.endStreams(Principal{Role: RoleBox, ID: q.who.ID})
	}
	return q.done(err)
}

func getBoxes(q *request) error {
	opt, err := q.page()
	if err != nil {
		return err
	}
	limit := cmp.Or(opt.Limit, adapters.MaxPageLimit)
	boxes, err := q.s.cfg.Host.Boxes(q.Context(), opt.Cursor, limit)
	page := adapters.Page[mesh.BoxStatus]{Items: boxes}
	if len(boxes) == limit {
		// The id itself, so that another host with the same registry can give the next page.
		page.NextCursor = adapters.NullString(boxes[limit-1].Box)
	}
	return list(q, page, err)
}

func postEvict(q *request, in EvictBody) error {
	if in.RetryAfterS < 0 || in.RetryAfterS > 3600 {
		return adapters.Invalid("retry_after_s", "must be 0 to 3600")
	}
	err := q.s.cfg.Host.Evict(q.Context(), in.Box, in.Reason, in.Permanent, time.Duration(in.RetryAfterS)*time.Second)
	if err == nil {
		q.s.endStreams(Principal{Role: RoleBox, ID: in.Box})
	}
	return q.done(err)
}

func postAdmit(q *request, in AdmitBody) error {
	return q.done(q.s.cfg.Host.Admit(q.Context(), in.Box))
}
