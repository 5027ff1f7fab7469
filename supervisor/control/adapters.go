package control

import (
	"context"
	"net/http"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

type grantedKey struct{}

// Granted returns what the peer of a request to Config.Adapters may do: Read or Write. Open means
// that the request did not come through a control socket.
func Granted(ctx context.Context) Access {
	a, _ := ctx.Value(grantedKey{}).(Access)
	return a
}

// serveAdapters passes requests below api.AdaptersPrefix to Config.Adapters, with the prefix cut
// off. That handler's own table says which of its routes need more than Read. A peer without Read
// is refused here.
func (s *Server) serveAdapters() http.Handler {
	return http.StripPrefix(api.AdaptersPrefix, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer := peerOf(r.Context())
		granted := Write
		if s.policy().authorize(peer, Write) != nil {
			granted = Read
			if refused := s.policy().authorize(peer, Read); refused != nil {
				s.auditRefusal(r, refused)
				s.fail(w, refused)
				return
			}
		}
		defer underWay(r)() // the handler's own time limits apply from here on
		s.bound(w)
		s.cfg.Adapters.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), grantedKey{}, granted)))
	}))
}
