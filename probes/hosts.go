package probes

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// onlyOurNames refuses requests to a host that is none of the box's names. The
// threat is DNS rebinding: a page of evil.example whose name is made to lead to
// the box is, for the browser, of one origin with it, and may read what it
// answers. Such a request carries the page's name as its Host, always a name,
// never an address. So any address will do: a kubelet asks by the pod's, a
// client of a published port by the host's, which the box cannot know.
//
// Probes and metrics are asked by service names that the box does not know
// either. There a name is accepted that cannot be registered in the public DNS.
func (s *Server) onlyOurNames(next http.Handler) http.Handler {
	refuse := s.metrics.instrument(unmatched, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		// 421 (RFC 9110, 15.5.20): this server does not speak for that host.
		problem(w, http.StatusMisdirectedRequest, codeValidation,
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

// Origin is the origin by which a request has reached the box: a public one of the
// configuration where the Host is its, else that of the listener itself. nil for a
// request whose Host is none of the box's, as on the control socket.
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

// privateSuffixes are of names that the public DNS will never hold: RFC 6761
// (localhost), ICANN's reservation of 2024 (internal), and what Kubernetes
// gives its services.
var privateSuffixes = []string{".localhost", ".internal", ".svc", ".cluster.local"}

// isPrivateName tells whether a name is a single word, as services are called
// on one network, or below a private suffix.
func isPrivateName(name string) bool {
	if !strings.Contains(name, ".") {
		return true
	}
	for _, suffix := range privateSuffixes {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}
