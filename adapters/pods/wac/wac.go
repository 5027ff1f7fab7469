// Package wac decides by the rules of Web Access Control 1.0 (https://solidproject.org/TR/wac): which
// modes of access the authorizations of an ACL document give to an agent. It is pure.
//
// It must never give a mode that no authorization gives: what is missing, malformed or unknown in an
// ACL document denies. It fetches nothing, so agent groups (acl:agentGroup), whose members are in
// another document, have no members.
package wac

import (
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
)

// Mode is a set of access modes.
type Mode uint8

// The modes of access. Write includes Append; Control, which guards the ACL document itself, includes
// no other one (WAC 1.0, 4.2).
const (
	Read Mode = 1 << iota
	Write
	Append
	Control
)

// Has tells whether m has all modes of want.
func (m Mode) Has(want Mode) bool { return m&want == want }

// String lists the modes as a WAC-Allow header does: "read write append control".
func (m Mode) String() string {
	var names []string
	for i, name := range [...]string{"read", "write", "append", "control"} {
		if m.Has(1 << i) {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// Allow is the value of the WAC-Allow header of a response (WAC 1.0, 6.1).
func Allow(user, public Mode) string {
	return `user="` + user.String() + `",public="` + public.String() + `"`
}

// Agent is who asks. Without IDs it is an anonymous agent.
type Agent struct {
	IDs    []string // all names of the same agent: WebID, did:nostr:<hex>
	Origin string   // the Origin header of the request, or ""
}

// authorization is what an ACL document says about one acl:Authorization.
type authorization struct {
	typed    bool // it has the class acl:Authorization
	applies  bool // to the resource
	agent    bool // it names the agent
	modes    Mode
	origins  bool // it names origins
	ofOrigin bool // it names that of the request
}

// Allowed returns the modes that the ACL document acl gives to who. resource is the IRI that an
// authorization has to name: by acl:accessTo the resource itself, or, if the document is inherited,
// by acl:default the container to which the document belongs.
//
// An authorization that names origins (acl:origin) applies only to requests from one of them: both the
// agent and the origin must be named. An authorization that names an origin and no agent
// gives nothing, because a program other than a browser can send any Origin header.
func Allowed(acl []rdf.Triple, resource string, inherited bool, who Agent) Mode {
	target := rdf.ACL + "accessTo"
	if inherited {
		target = rdf.ACL + "default"
	}
	rules := map[rdf.Term]*authorization{}
	for _, t := range acl {
		a := rules[t.Subject]
		if a == nil {
			a = &authorization{}
			rules[t.Subject] = a
		}
		object := ""
		if t.Object.Kind == rdf.IRI {
			object = t.Object.Value
		}
		switch t.Predicate {
		case rdf.Type:
			a.typed = a.typed || object == rdf.ACL+"Authorization"
		case target:
			a.applies = a.applies || object != "" && object == resource
		case rdf.ACL + "agent":
			a.agent = a.agent || object != "" && slices.Contains(who.IDs, object)
		case rdf.ACL + "agentClass":
			a.agent = a.agent || object == rdf.FOAF+"Agent" || object == rdf.ACL+"AuthenticatedAgent" && len(who.IDs) > 0
		case rdf.ACL + "origin":
			a.origins = true // also one that is no IRI, which no request has
			a.ofOrigin = a.ofOrigin || object != "" && object == who.Origin
		case rdf.ACL + "mode":
			a.modes |= mode(object)
		}
	}
	var all Mode
	for _, a := range rules {
		if a.typed && a.applies && a.agent && (!a.origins || a.ofOrigin) {
			all |= a.modes
		}
	}
	return all
}

func mode(iri string) Mode {
	switch iri {
	case rdf.ACL + "Read":
		return Read
	case rdf.ACL + "Write":
		return Write | Append
	case rdf.ACL + "Append":
		return Append
	case rdf.ACL + "Control":
		return Control
	}
	return 0
}
