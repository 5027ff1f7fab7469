package pods

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/pods/rdf"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
)

// maxFound bounds what is kept of a server's description of itself.
const maxFound = 256

const (
	dialectAge  = 5 * time.Minute
	maxDialects = 1024 // paths remembered
	wellKnownAt = "/.well-known/solid"
)

// dialects remembers which resources take a JSON Patch (Accept-Patch), for five minutes each, and
// which patch types worked at all. It keeps no type itself: a server may name thousands of them.
type dialects struct {
	mu     sync.Mutex
	byPath map[string]patchTypes
	worked map[string]bool
}

type patchTypes struct {
	jsonPatch bool
	until     time.Time
}

func newDialects() *dialects {
	return &dialects{byPath: map[string]patchTypes{}, worked: map[string]bool{}}
}

// learn records what an answer says about a resource; a missing header changes nothing.
func (d *dialects) learn(target string, h http.Header) {
	types := acceptPatch(h)
	if len(types) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range types {
		d.note(t)
	}
	if len(d.byPath) >= maxDialects {
		d.prune()
	}
	d.byPath[target] = patchTypes{slices.Contains(types, jsonPatchType), time.Now().Add(dialectAge)}
}

// note keeps the types that are capabilities. The caller holds mu.
func (d *dialects) note(mediaType string) {
	if patchCaps[mediaType] != "" {
		d.worked[mediaType] = true
	}
}

// prune makes room: the stale first, else everything. The caller holds mu.
func (d *dialects) prune() {
	now := time.Now()
	for path, p := range d.byPath {
		if !p.until.After(now) {
			delete(d.byPath, path)
		}
	}
	if len(d.byPath) >= maxDialects {
		clear(d.byPath)
	}
}

// seen notes that a patch of a type was carried out.
func (d *dialects) seen(mediaType string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note(mediaType)
}

// forget drops what was recorded about a resource.
func (d *dialects) forget(target string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.byPath, target)
}

func (d *dialects) known(target string) (jsonPatch, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.byPath[target]
	return p.jsonPatch, ok && p.until.After(time.Now())
}

var jsonPatchType = adapters.PatchType(adapters.DialectJSONPatch)

var patchCaps = map[string]string{
	adapters.PatchType(adapters.DialectN3):           CapN3Patch,
	adapters.PatchType(adapters.DialectSPARQLUpdate): CapSPARQLUpdate,
}

func (d *dialects) capabilities() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var caps []string
	for t := range d.worked {
		caps = append(caps, patchCaps[t])
	}
	return caps
}

func acceptPatch(h http.Header) []string {
	var types []string
	for _, line := range h.Values("Accept-Patch") {
		for item := range strings.SplitSeq(line, ",") {
			mt, _, _ := strings.Cut(item, ";")
			if mt = strings.ToLower(strings.TrimSpace(mt)); mt != "" {
				types = append(types, mt)
			}
		}
	}
	return types
}

// takesJSONPatch tells whether a resource accepts a JSON Patch. It asks with OPTIONS and, if that does
// not tell, with HEAD. A missing resource is NOT_FOUND.
func (s *Solid) takesJSONPatch(ctx context.Context, path, target string) (bool, error) {
	if takes, ok := s.dialect.known(target); ok {
		return takes, nil
	}
	for _, method := range []string{http.MethodOptions, http.MethodHead} {
		res, err := s.client.Do(ctx, wire.Request{Method: method, Path: target, Accept: "*/*", Keep: kept})
		if method == http.MethodOptions && err != nil && ctx.Err() == nil && !adapters.AsError(err).Retryable {
			continue // a server need not know OPTIONS, or guards it
		}
		if err != nil {
			return false, about(err, path)
		}
		s.dialect.learn(target, res.Header)
		if takes, ok := s.dialect.known(target); ok {
			return takes, nil
		}
	}
	return false, nil
}

// describe reads the storage description of the server, if it has one. If a part cannot be read,
// only the optional features in it are missing.
func (s *Solid) describe(ctx context.Context, c *session) error {
	res, err := s.origin.Do(ctx, wire.Request{Method: http.MethodGet, Path: wellKnownAt, Accept: acceptRDF})
	if err != nil {
		if ctx.Err() != nil {
			return adapters.AsError(ctx.Err())
		}
		return nil
	}
	var channels []string
	services := map[string]bool{}
	err = rdf.ParseLenient(mediaType(res.Header), res.Body, res.URL, func(t rdf.Triple) {
		switch {
		case t.Predicate == rdf.Notify+"subscription" && t.Object.Kind == rdf.IRI && len(channels) < maxFound:
			channels = append(channels, t.Object.Value)
		case t.Predicate == rdf.Notify+"channelType" && t.Object.Value == rdf.Notify+"WebSocketChannel2023" && len(services) < maxFound:
			services[t.Subject.Value] = true
		}
	})
	if err != nil {
		return nil
	}
	for _, ch := range channels {
		if u, err := url.Parse(ch); err == nil && services[ch] && sameOrigin(u, s.base) && s.takesChannel(u) {
			c.subscribe = append(c.subscribe, u.EscapedPath())
		}
	}
	if len(c.subscribe) > 0 {
		c.caps = append(c.caps, CapNotifications)
	}
	return nil
}

// takesChannel tells whether a subscription may be sent to an address of the server. In the box, another program may have had
// the port and have named it: what is sent there is signed, and could be any container.
func (s *Solid) takesChannel(u *url.URL) bool {
	return s.class != adapters.ClassLocal || u.EscapedPath() == channelPath
}

// live is the session, or the error of a client without one.
func (s *Solid) live() (*session, error) {
	if c := s.session.Load(); c != nil {
		return c, nil
	}
	return nil, adapters.Closed(adapters.SlotPods)
}
