package probes

import (
	"mime"
	"net/http"
	"net/netip"
	"strings"
)

// maxHops bounds how far a chain of proxies is followed.
const maxHops = 32

// client is the address that a request comes from: the socket's, unless that is
// a trusted proxy's, which then tells for whom it asks: in X-Forwarded-For or in
// Forwarded (RFC 7239). A proxy that writes one of them passes the other on as
// the client has sent it, and nothing shows which one it wrote. So where both
// are there and do not agree, neither is believed, and the proxy's own address
// counts.
func (s *Server) client(r *http.Request) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	address := bare(peer.Addr())
	if !s.trusts(address) {
		return address.String()
	}
	old := strings.Join(r.Header.Values("X-Forwarded-For"), ",")
	standard := strings.Join(r.Header.Values("Forwarded"), ",")
	by, byStandard := s.follow(address, old, lastEntry, nodeAddress), s.follow(address, standard, lastElement, elementAddress)
	switch {
	case standard == "" || by == byStandard:
		return by.String()
	case old == "":
		return byStandard.String()
	}
	return address.String()
}

// follow walks a chain from its end, which the proxy has written that asks us,
// to the first address that is no trusted proxy's: everything before it may be
// the client's own invention. An entry without an address ends it: the proxy
// does not say for whom it asks, and answers for it.
func (s *Server) follow(address netip.Addr, chain string, last func(string) (rest, entry string), read func(string) (netip.Addr, bool)) netip.Addr {
	for hops := 0; chain != "" && hops < maxHops && s.trusts(address); hops++ {
		rest, entry := last(chain)
		next, ok := read(entry)
		if !ok {
			break
		}
		address, chain = next, rest
	}
	return address
}

func (s *Server) trusts(address netip.Addr) bool {
	for _, p := range s.cfg.TrustedProxies {
		if p.Contains(address) {
			return true
		}
	}
	return false
}

func lastEntry(chain string) (rest, entry string) {
	return cutAt(chain, strings.LastIndexByte(chain, ','))
}

// lastElement is the last of Forwarded's elements, which are parted by commas
// outside of quoted strings. It is looked for from the end: a quote that the
// client leaves open in its part must not swallow what a proxy has added.
func lastElement(chain string) (rest, element string) {
	quoted := false
	for i := len(chain) - 1; i >= 0; i-- {
		switch {
		case chain[i] == '"':
			quoted = !quoted
		case chain[i] == ',' && !quoted:
			return cutAt(chain, i)
		}
	}
	return "", chain
}

func cutAt(chain string, comma int) (before, after string) {
	return chain[:max(comma, 0)], chain[comma+1:]
}

// elementAddress reads the "for" of a forwarded-element (RFC 7239, 4). Its
// grammar is that of a media type's parameters: pairs of a token and a token or
// quoted string, names in any case and each of them once.
func elementAddress(element string) (netip.Addr, bool) {
	_, pairs, err := mime.ParseMediaType("forwarded;" + element)
	if err != nil {
		return netip.Addr{}, false
	}
	node := pairs["for"]
	if at := strings.LastIndex(node, ":_"); at >= 0 {
		node = node[:at] // a port that the proxy keeps to itself (RFC 7239, 6.3)
	}
	return nodeAddress(node)
}

// nodeAddress reads one entry: an address, which some proxies write with its
// port, and a standard one of IPv6 in brackets. "unknown" and what begins with
// "_" name no address.
func nodeAddress(s string) (netip.Addr, bool) {
	s = strings.TrimSpace(s)
	a, err := netip.ParseAddr(strings.Trim(s, "[]"))
	if err != nil {
		ap, err := netip.ParseAddrPort(s)
		if err != nil {
			return netip.Addr{}, false
		}
		a = ap.Addr()
	}
	return bare(a), true
}

// bare is an address without what it looks like on this host.
func bare(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
