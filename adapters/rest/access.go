package rest

import (
	"context"
	"net/http"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// The roles a principal can have.
const (
	RoleAdmin  = "admin"  // everything
	RoleAgent  = "agent"  // one spawned agent: its own stream and input, beads as itself, memory, events
	RoleHost   = "host"   // the host of a federation session: agents and events
	RoleReader = "reader" // reads only
	RoleMember = "member" // a box that may only register here
	RoleBox    = "box"    // a registered box: beads, memory, events, for its own actors
	RoleEnded  = "ended"  // a box whose session has ended: its next heartbeat gets the reason
)

// Principal is the caller of a request, as authentication found it.
type Principal struct {
	Role string
	// ID identifies the principal: an agent's id or a public key. It is the default actor of each
	// write.
	ID string
}

// guest tells whether the principal may be hostile: an agent, or a box that is registered here.
func (p Principal) guest() bool { return p.Role == RoleAgent || p.Role == RoleBox }

// roles is a set of roles. Every set contains admin.
type roles uint8

const (
	agent roles = 1 << iota
	host
	reader
	member
	box
	ended
	adminOnly roles = 0
	everyone        = agent | host | reader
)

func (s roles) admits(role string) bool {
	switch role {
	case RoleAdmin:
		return true
	case RoleAgent:
		return s&agent != 0
	case RoleHost:
		return s&host != 0
	case RoleReader:
		return s&reader != 0
	case RoleMember:
		return s&member != 0
	case RoleBox:
		return s&box != 0
	case RoleEnded:
		return s&ended != 0
	}
	return false
}

// names lists the roles of the set, for the OpenAPI document.
func (s roles) names() []string {
	out := []string{RoleAdmin}
	for _, r := range []string{RoleAgent, RoleHost, RoleReader, RoleMember, RoleBox, RoleEnded} {
		if s.admits(r) {
			out = append(out, r)
		}
	}
	return out
}

// Headers for the metadata of a call, as external adapters send them.
const (
	headerActor     = "Agentbox-Actor"
	headerSession   = "Agentbox-Session"
	headerExecution = "Agentbox-Execution"
	headerContract  = "Agentbox-Contract"
	headerKey       = "Idempotency-Key"
	headerReplayed  = "Idempotent-Replayed"
)

// metaOf makes the metadata of a call. The actor is the principal, unless an admin or a registered
// box names another actor. The call then has only that actor's rights: a box that forwards a call
// of its agent must not give the agent the rights of the box.
func metaOf(h http.Header, who Principal) (adapters.Meta, error) {
	m := adapters.Meta{
		Actor: who.ID, Admin: who.Role == RoleAdmin,
		SessionID: h.Get(headerSession), ExecutionID: h.Get(headerExecution),
		TraceParent: h.Get("Traceparent"),
	}
	keys := h.Values(headerKey)
	if len(keys) > 1 {
		return m, adapters.Invalid(headerKey, "was sent more than once")
	}
	if len(keys) == 1 {
		if keys[0] == "" {
			return m, adapters.Invalid(headerKey, "is empty")
		}
		m.IdempotencyKey = keys[0]
	}
	for _, id := range [][2]string{{headerSession, m.SessionID}, {headerExecution, m.ExecutionID}} {
		if id[1] != "" {
			if err := adapters.CheckID(id[0], id[1]); err != nil {
				return m, err
			}
		}
	}
	named := h.Get(headerActor)
	if named == "" || named == who.ID {
		return m, nil
	}
	if err := mayName(who, named); err != nil {
		return m, err
	}
	m.Actor, m.Admin = named, false
	return m, nil
}

func mayName(who Principal, actor string) error {
	// A registered box forwards the calls of its agents.
	if who.Role != RoleAdmin && who.Role != RoleBox && actor != who.ID {
		return adapters.Errorf(adapters.CodePermissionDenied, "%q may not act as %q; only an admin and a registered box may name another actor", adapters.Cut(who.ID, 64), adapters.Cut(actor, 64))
	}
	return adapters.CheckText("actor", actor, adapters.MaxBeadActor)
}

// actorOr returns the actor that the body names, if the caller may name it. If the body names no
// actor, it returns the caller's.
func actorOr(ctx context.Context, who Principal, named string) (string, error) {
	actor := adapters.MetaFrom(ctx).Actor
	if named == "" || named == actor {
		return actor, nil
	}
	return named, mayName(who, named)
}

// checkContract refuses a caller that speaks another MAJOR version of the slot's contract.
func checkContract(h http.Header, slot adapters.Slot) error {
	said := h.Get(headerContract)
	if said == "" || slot == "" {
		return nil
	}
	name, version, ok := strings.Cut(said, "/")
	if !ok || name != string(slot) {
		return adapters.Invalid(headerContract, "must be %s/MAJOR", slot)
	}
	contract, _ := adapters.ContractOf(slot)
	return adapters.CheckVersion(slot, version, contract.Version, false)
}
