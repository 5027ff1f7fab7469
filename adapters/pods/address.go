package pods

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
)

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

// podPath is the pod path of a URL of the server; false when it lies outside
// the base or may not name a resource.
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

// url is where an escaped pod path lies.
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

// maxLinks bounds the links kept of one answer.
const maxLinks = 256

// parseLinks reads the Link headers (RFC 8288, 3): one entry per relation. What
// is broken ends its header line; what stood before it counts.
func parseLinks(h http.Header) []adapters.Link {
	var links []adapters.Link
	for _, line := range h.Values("Link") {
		for line != "" && len(links) < maxLinks {
			var target, rel string
			var ok bool
			if target, rel, line, ok = nextLink(line); !ok {
				break
			}
			for _, r := range strings.Fields(rel) {
				links = append(links, adapters.Link{Rel: r, Target: target})
			}
		}
	}
	return links
}

// nextLink cuts one <target>; parameters off a header line.
func nextLink(line string) (target, rel, rest string, ok bool) {
	line = strings.TrimLeft(line, " \t,")
	if !strings.HasPrefix(line, "<") {
		return "", "", "", false
	}
	target, line, ok = strings.Cut(line[1:], ">")
	for ok {
		line = strings.TrimLeft(line, " \t")
		if !strings.HasPrefix(line, ";") {
			break
		}
		var name, value string
		name, value, line, ok = nextParam(line[1:])
		if name == "rel" && rel == "" {
			rel = value
		}
	}
	return target, rel, line, ok
}

// nextParam cuts name, name=token or name="quoted" off a header line.
func nextParam(line string) (name, value, rest string, ok bool) {
	line = strings.TrimLeft(line, " \t")
	end := strings.IndexAny(line, "=;,")
	if end < 0 {
		return strings.ToLower(strings.TrimSpace(line)), "", "", true
	}
	name = strings.ToLower(strings.TrimSpace(line[:end]))
	if line[end] != '=' {
		return name, "", line[end:], true
	}
	line = strings.TrimLeft(line[end+1:], " \t")
	if !strings.HasPrefix(line, `"`) {
		end = strings.IndexAny(line, ";,")
		if end < 0 {
			end = len(line)
		}
		return name, strings.TrimSpace(line[:end]), line[end:], true
	}
	var text strings.Builder
	for i := 1; i < len(line); i++ {
		switch line[i] {
		case '"':
			return name, text.String(), line[i+1:], true
		case '\\':
			if i++; i == len(line) {
				return name, "", "", false
			}
		}
		text.WriteByte(line[i])
	}
	return name, "", "", false
}

// links are those of an answer to a request for path, their targets made pod
// paths where they lie below the base and absolute URLs elsewhere.
func (s *Solid) links(path string, h http.Header) []adapters.Link {
	links := parseLinks(h)
	for i, l := range links {
		if p, ok := s.podRef(path, l.Target); ok {
			links[i].Target = p
		} else if u, err := s.url(path).Parse(l.Target); err == nil {
			links[i].Target = u.String()
		}
	}
	return links
}
