package probes

import (
	"mime"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// maxHops bounds how far a chain of proxies is followed.
const maxHops = 32

// client is the address that a request comes from: the address of the peer, unless the peer is a
// trusted proxy. Then the proxy names the client, in X-Forwarded-For or in Forwarded (RFC 7239). A
// proxy that writes one of the two passes the other on unchanged, and a request does not show which
// one the proxy has written. So if both are there and differ, neither is used, and the client is
// the proxy.
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

// follow walks along a chain from its end, which the nearest proxy has written, to the first
// address that is not a trusted proxy. The client may have made up everything before that address.
// At an entry without an address the walk ends: the proxy that wrote the entry counts as the
// client.
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

func (s *Server) trusts(address netip.Addr) bool { return contains(s.cfg.TrustedProxies, address) }

func contains(networks []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(address) })
}

func lastEntry(chain string) (rest, entry string) {
	return cutAt(chain, strings.LastIndexByte(chain, ','))
}

// lastElement is the last element of Forwarded. Commas outside of quoted strings separate the
// elements. The search begins at the end, so that a quote which the client leaves open cannot
// swallow what a proxy has added.
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

// elementAddress reads the "for" of a forwarded-element (RFC 7239, 4). It has the grammar of the
// parameters of a media type: a name in any case, at most once, and a token or quoted string as its
// value.
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

// nodeAddress reads one entry: an address, which some proxies write with a port; then IPv6 has
// brackets. "unknown" and entries that begin with "_" name no address.
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

// bare is an address without a zone; an IPv4 address that is mapped to IPv6 becomes one of IPv4.
func bare(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
