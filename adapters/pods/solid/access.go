package solid

import (
	"cmp"
	"errors"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
	"github.com/dreamlab-ai/agentinit/adapters/pods/wac"
)

// maxACL bounds an access list: one is read for each request.
const maxACL = 64 << 10

// need is one condition of a request: the modes that its agent must have on a resource.
type need struct {
	on    resource
	modes wac.Mode
}

// rules are the access list that holds for a resource.
type rules struct {
	of        resource // whose list it is
	triples   []rdf.Triple
	inherited bool
	failed    *fault // of the server: it could not read the list
}

// rulesOf finds the effective access list: that of the resource itself, or else that of the nearest container. All
// access is denied if that list cannot be read, and if there is no list.
func (s *Server) rulesOf(r resource) rules {
	for at := r; ; at = at.parent() {
		list := at.beside(".acl")
		triples, err := s.lists.read(s, list)
		if err == nil {
			return rules{of: at, triples: triples, inherited: at.path() != r.path()}
		}
		if !errors.Is(err, absent) {
			s.seldom(list.path(), "an access list cannot be used and denies all access", err)
			denied := rules{of: at}
			if f, ok := errors.AsType[*fault](err); ok && f.cause != nil {
				denied.failed = f
			}
			return denied
		}
		if at.isRoot() {
			return rules{of: at}
		}
	}
}

// accessLists keeps lists that were read, until they change.
type accessLists struct {
	mu   sync.Mutex
	kept map[string]accessList // by path
}

type accessList struct {
	etag    string
	triples []rdf.Triple
}

// maxKept bounds the lists that are kept.
const maxKept = 128

func (a *accessLists) read(s *Server, list resource) ([]rdf.Triple, error) {
	f, doc, err := s.store.open(list)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	path := list.path()
	a.mu.Lock()
	known, ok := a.kept[path]
	a.mu.Unlock()
	if ok && known.etag == doc.etag {
		return known.triples, nil
	}
	raw, err := readAll(f, maxACL)
	if err != nil {
		return nil, err
	}
	triples, err := s.parse(doc.contentType, raw, list)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kept == nil || len(a.kept) >= maxKept {
		a.kept = map[string]accessList{}
	}
	a.kept[path] = accessList{doc.etag, triples}
	return triples, nil
}

// ownsAll tells whether the agent of the request has Control of the whole tree, as the box itself has. Other limits hold
// for it: its requests are those of all agents of the box, which the box limits itself.
func (q *request) ownsAll() bool {
	return len(q.agent.IDs) > 0 && q.s.modes(q.s.rulesOf(root()), q.agent).Has(wac.Control)
}

// modes are what an agent may do with the resource.
func (s *Server) modes(r rules, who wac.Agent) wac.Mode {
	return wac.Allowed(r.triples, s.iri(r.of), r.inherited, who)
}

// iri is the absolute IRI of a resource.
func (s *Server) iri(r resource) string { return s.origin + r.path() }

// parse reads RDF. IRIs under another address of this server become those under its own.
func (s *Server) parse(contentType string, raw []byte, at resource) ([]rdf.Triple, error) {
	base, err := url.Parse(s.iri(at))
	if err != nil {
		return nil, err
	}
	var out []rdf.Triple
	err = rdf.Parse(adapters.MediaType(contentType), raw, base, func(t rdf.Triple) {
		t.Subject, t.Object = s.ours(t.Subject), s.ours(t.Object)
		out = append(out, t)
	})
	return out, err
}

func (s *Server) ours(t rdf.Term) rdf.Term {
	if t.Kind != rdf.IRI {
		return t
	}
	for _, alias := range s.aliases {
		if rest, ok := strings.CutPrefix(t.Value, alias+"/"); ok {
			t.Value = s.origin + "/" + rest
			break
		}
	}
	return t
}

// public tells whether everyone may read a document.
func (q *request) public(r resource) bool {
	return q.s.modes(q.s.rulesOf(r), wac.Agent{Origin: q.agent.Origin}).Has(wac.Read)
}

// allow checks all needs, and marks the signature as used. That of a request that any key may make is not remembered: who has seen
// one can sign another, and keys that cost nothing cannot fill the memory. A write asks once more at the moment when it has an effect:
// rights may have been taken away while its body was on its way.
func (q *request) allow(needs ...need) error {
	if err := q.judge(needs); err != nil || q.used || q.standing == Anyone {
		return err
	}
	return q.use()
}

// use marks the signature as used.
func (q *request) use() error {
	if q.who == nil {
		return nil
	}
	q.used = true
	standing := q.standing
	if q.owner {
		standing = Owner
	}
	if err := q.who.Use(standing); err != nil {
		return badSignature(err)
	}
	return nil
}

// judge checks all needs. It tells the modes on the first need in WAC-Allow. An access list needs Control of its subject, whatever the
// modes.
func (q *request) judge(needs []need) error {
	public, anyKey := wac.Agent{Origin: q.agent.Origin}, wac.Agent{Origin: q.agent.Origin, IDs: []string{""}}
	common, denied := true, false
	var failed *fault
	for i, n := range needs {
		subject, control := n.on.subject()
		if control {
			n.modes = wac.Control
		}
		list := q.s.rulesOf(subject)
		user, everyone := q.s.modes(list, q.agent), q.s.modes(list, public)
		if i == 0 {
			q.reads = user.Has(wac.Read) || control && user.Has(wac.Control)
			q.w.Header().Set("WAC-Allow", wac.Allow(user, everyone))
		}
		common = common && q.s.modes(list, anyKey).Has(n.modes)
		if !user.Has(n.modes) {
			denied, failed = true, cmp.Or(failed, list.failed)
		}
	}
	switch {
	case failed != nil:
		return failed
	case denied && len(q.agent.IDs) == 0:
		return faulty(adapters.CodeUnauthenticated, "this needs a signed request (NIP-98)")
	case denied:
		return faulty(adapters.CodePermissionDenied, "the access lists do not allow this")
	case common:
		q.standing = Anyone
	case q.owner:
		q.standing = Owner
	default:
		q.standing = Listed
	}
	return nil
}

// creating are the needs of a request that makes a resource: beside those on itself, Append on the nearest container
// that exists. An access list needs only Control.
func (q *request) creating(r resource, modes wac.Mode) []need {
	needs := []need{{r, modes}}
	if _, control := r.subject(); control {
		return needs
	}
	at := r.parent()
	for !at.isRoot() {
		if _, err := q.s.store.stat(at); err == nil {
			break
		}
		at = at.parent()
	}
	return append(needs, need{at, wac.Append})
}

// seldom logs a trouble of a path, at most once in a minute.
func (s *Server) seldom(path, what string, err error) {
	if _, ok := s.troubles.Take(path, time.Now()); ok {
		s.log.Warn(what, "path", path, "error", err.Error())
	}
}
