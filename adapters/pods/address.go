package pods

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// ListenerURL is the address of a pod server of this box that listens on host and port. If it
// listens on all addresses, the loopback address is used.
func ListenerURL(host string, port int) string {
	return "http://" + net.JoinHostPort(listenerHost(host), strconv.Itoa(port))
}

func listenerHost(host string) string {
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	switch {
	case host == "" || err == nil && addr.Unmap().IsUnspecified() && addr.Unmap().Is4():
		return "127.0.0.1"
	case err == nil && addr.IsUnspecified():
		return "::1"
	case err == nil:
		return addr.String()
	}
	return host
}

// escapePath writes a checked pod path the one way this client writes it: each
// segment decoded once and escaped once.
func escapePath(path string) string {
	segments := strings.Split(path, "/")
	for i, s := range segments {
		if name, err := url.PathUnescape(s); err == nil {
			segments[i] = url.PathEscape(name)
		}
	}
	return strings.Join(segments, "/")
}

// podPath is the pod path for a URL of the server. It returns false if the URL is outside the base
// or must not name a resource.
func (s *Solid) podPath(u *url.URL) (string, bool) {
	if !sameOrigin(u, s.base) {
		return "", false
	}
	rest, ok := strings.CutPrefix(escapePath(u.EscapedPath()), escapePath(s.base.EscapedPath()))
	if !ok || adapters.CheckPodPath(rest) != nil {
		return "", false
	}
	return rest, true
}

// podRef is podPath of a reference found in an answer to a request for path.
func (s *Solid) podRef(path, ref string) (string, bool) {
	if ref == "" {
		return "", false
	}
	u, err := s.url(path).Parse(ref)
	if err != nil {
		return "", false
	}
	return s.podPath(u)
}

// url is the URL of an escaped pod path.
func (s *Solid) url(path string) *url.URL {
	u, err := url.Parse(s.base.String() + path)
	if err != nil {
		// A base that parsed and a path that was escaped make a URL.
		return s.base
	}
	return u
}

func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && hostPort(a) == hostPort(b)
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "ws": "80", "wss": "443"}[u.Scheme]
	}
	return strings.ToLower(u.Hostname()) + ":" + port
}

// links are the links in an answer for path. Targets below the base become pod paths; other targets
// become absolute URLs.
func (s *Solid) links(path string, h http.Header) []adapters.Link {
	links := adapters.ParseLinks(h)
	for i, l := range links {
		if p, ok := s.podRef(path, l.Target); ok {
			links[i].Target = p
		} else if u, err := s.url(path).Parse(l.Target); err == nil {
			links[i].Target = u.String()
		}
	}
	return links
}

// ofOthers drops the links to what the server has beside its pods: a client that reaches
// those under another address does not reach the server.
func (s *Solid) ofOthers(links []adapters.Link) []adapters.Link {
	return slices.DeleteFunc(links, func(l adapters.Link) bool {
		u, err := url.Parse(l.Target)
		return err == nil && u.Host != "" && sameOrigin(u, s.base)
	})
}
