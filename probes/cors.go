package probes

import (
	"net/http"
	"slices"
	"strings"
)

// What a page of a listed origin may send and read in addition to what the Fetch Standard allows
// every page. The names are spelt out, because "*" does not cover Authorization.
var (
	corsMethods = strings.Join([]string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}, ", ")
	corsRequest = strings.Join([]string{
		"Accept", "Authorization", "Content-Type", "If-Match", "If-None-Match", "Idempotency-Key", "Last-Event-ID", "Range",
		"Traceparent", "Agentbox-Actor", "Agentbox-Contract", "Agentbox-Execution", "Agentbox-Session",
		"ce-id", "ce-source", "ce-specversion", "ce-type", "ce-subject", "ce-time", "ce-sessionid", "ce-executionid",
	}, ", ")
	corsAnswer = strings.Join([]string{
		"Accept-Ranges", "Content-Range", "ETag", "Link", "Location", "Retry-After", "WWW-Authenticate",
		"Agentbox-Subscription", "Idempotent-Replayed",
	}, ", ")
)

// corsMaxAge is how many seconds a browser keeps the answer of a preflight.
const corsMaxAge = "600"

// crossOrigin lets pages of the listed origins read answers (the CORS protocol of the Fetch
// Standard). Without a listed origin it adds nothing. The whole origin must match; it is never
// copied from the request unchecked. Credentials in the sense of the protocol, such as cookies, are
// never allowed.
func (s *Server) crossOrigin(next http.Handler) http.Handler {
	if len(s.cfg.Origins) == 0 {
		return next
	}
	preflight := s.metrics.instrument("preflight", http.HandlerFunc(answerPreflight))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Add("Vary", "Origin") // for caches: other origins get another answer
		origins := r.Header.Values("Origin")
		if len(origins) != 1 || !slices.Contains(s.cfg.Origins, origins[0]) {
			next.ServeHTTP(w, r)
			return
		}
		h.Set("Access-Control-Allow-Origin", origins[0])
		if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
			preflight.ServeHTTP(w, r)
			return
		}
		h.Set("Access-Control-Expose-Headers", corsAnswer)
		next.ServeHTTP(w, r)
	})
}

// answerPreflight says what a page may ask. It comes before authentication, because a browser sends
// no credential with a preflight.
func answerPreflight(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Add("Vary", "Access-Control-Request-Method, Access-Control-Request-Headers")
	h.Set("Access-Control-Allow-Methods", corsMethods)
	h.Set("Access-Control-Allow-Headers", corsRequest)
	h.Set("Access-Control-Max-Age", corsMaxAge)
	w.WriteHeader(http.StatusNoContent)
}
