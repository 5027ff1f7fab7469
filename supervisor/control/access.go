package control

import (
	"fmt"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// Access is what a route requires of a peer, and what a peer is allowed.
type Access int

// The levels of access; each contains the ones before it.
const (
	// Open routes answer every peer that can connect: the public probe port gives the same
	// information.
	Open Access = iota
	// Read shows programs, logs and events.
	Read
	// Write changes something.
	Write
)

var accessNames = map[Access]string{Open: "open", Read: "read", Write: "write"}

// String returns "open", "read" or "write".
func (a Access) String() string { return accessNames[a] }

// policy decides what a peer may do.
type policy struct {
	uid, gid uint32
	// mayControl reports whether a program's processes may change things.
	mayControl func(program string) bool
}

// byUser returns the access that the peer's user and groups give. If it is less than Write, byUser
// also says why.
func (p policy) byUser(peer Peer) (Access, string) {
	switch {
	case peer.UID == 0 || peer.UID == p.uid:
		return Write, ""
	case peer.Member(p.gid):
		return Read, fmt.Sprintf("user %d may only read; only %s may make changes", peer.UID, p.owners(" and "))
	}
	return Open, fmt.Sprintf("user %d is neither %s nor in group %d", peer.UID, p.owners(" nor "), p.gid)
}

// owners names the users that may make changes. One of them is agentinit's own, often root too.
func (p policy) owners(and string) string {
	if p.uid == 0 {
		return "root"
	}
	return fmt.Sprintf("root%suser %d", and, p.uid)
}

// authorize refuses what the peer may not do. A peer on an abstract socket whose process is outside
// the box's pid namespace is refused everything: sharing the box's network namespace does not make
// it trusted.
func (p policy) authorize(peer Peer, need Access) *api.Error {
	if peer.Abstract && peer.PID == 0 {
		return api.Errorf(api.CodeForbidden, "refused: the peer's process is not visible in this box")
	}
	if peer.Principal != "" {
		switch {
		case peer.Granted >= need:
			return nil
		case peer.Granted == Read:
			return api.Errorf(api.CodeForbidden, "refused: the credential of %s may only read; a key of [api.keys] with the role operator may also make changes", peer.Principal)
		}
		return api.Errorf(api.CodeForbidden, "refused: the credential of %s is not for programs and the box; a key of [api.keys] is", peer.Principal)
	}
	has, reason := p.byUser(peer)
	switch {
	case has < need:
	case need == Write && peer.Uncertain:
		reason = "the process that connected is gone, so it cannot be told whose it was"
	case need == Write && peer.Program != "" && !p.mayControl(peer.Program):
		reason = fmt.Sprintf("processes of program %s may only read, as it does not have control = true", peer.Program)
	default:
		return nil
	}
	return api.Errorf(api.CodeForbidden, "refused: %s", reason)
}
