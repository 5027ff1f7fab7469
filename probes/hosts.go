package probes

import (
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/problem"
)

// onlyOurNames refuses requests for a host that is not one of the box's names. It protects against
// DNS rebinding. If the name of a page of evil.example is made to point to the box, the browser
// treats both as one origin, and the page may read the box's answers. Such a request has the page's
// name as its Host: always a name, never an address. So every address is accepted. A kubelet uses
// the pod's address, and a client of a published port uses the host's, which the box cannot know.
//
// Probes and metrics are also called by service names that the box does not know. For them, a name
// is accepted if it cannot be registered in the public DNS.
func (s *Server) onlyOurNames(next http.Handler) http.Handler {
	refuse := s.metrics.instrument(unmatched, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		// 421 (RFC 9110, 15.5.20): this server is not responsible for that host.
		fail(w, http.StatusMisdirectedRequest, problem.Validation,
			"the Host is none of the box's names; [api].public_urls or MANAGEMENT_API_PUBLIC_URLS lists more", "field", "Host")
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := hostName(r.Host)
		if s.isOurName(name) || s.isProbe(r.URL.Path) && (name == "" || isPrivateName(name)) {
			next.ServeHTTP(w, r)
			return
		}
		refuse.ServeHTTP(w, r)
	})
}

// isOurName tells whether a host, in lower case, is an address or a name of the box.
func (s *Server) isOurName(host string) bool { return isAddress(host) || s.names[host] }

// ourNames are the names of the box, in lower case.
func ourNames(configured []string) map[string]bool {
	names := map[string]bool{"localhost": true}
	for _, n := range configured {
		names[strings.ToLower(strings.TrimSuffix(n, "."))] = true
	}
	return names
}

// Origin is the origin that the client of a request has used: a public origin of the configuration
// if the Host fits, otherwise that of the listener. It is nil if the Host is not one of the box's,
// as on the control socket.
func (s *Server) Origin(r *http.Request) *url.URL {
	if !s.isOurName(hostName(r.Host)) {
		return nil
	}
	host := strings.ToLower(r.Host)
	for _, origin := range s.cfg.PublicOrigins {
		if u, err := url.Parse(origin); err == nil && strings.EqualFold(u.Host, host) {
			return u
		}
	}
	return &url.URL{Scheme: "http", Host: host}
}

// hostName is a Host header (RFC 9110, 7.2) without its port, in lower case.
func hostName(host string) string {
	return strings.ToLower(strings.TrimSuffix((&url.URL{Host: host}).Hostname(), "."))
}

func isAddress(name string) bool {
	_, err := netip.ParseAddr(name)
	return err == nil
}

// privateSuffixes are the ends of names that the public DNS will never have: RFC 6761 (localhost),
// ICANN's reservation of 2024 (internal), and the suffixes of Kubernetes services.
var privateSuffixes = []string{".localhost", ".internal", ".svc", ".cluster.local"}

// isPrivateName tells whether a name is a single word, such as that of a service on the same
// network, or has a private suffix.
func isPrivateName(name string) bool {
	return !strings.Contains(name, ".") ||
		slices.ContainsFunc(privateSuffixes, func(suffix string) bool { return strings.HasSuffix(name, suffix) })
}
