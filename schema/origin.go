package schema

import (
	"errors"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

var (
	errOrigin = errors.New(`an origin such as "https://box.example.org": scheme, host and, if need be, port`)
	errPrefix = errors.New(`an address or a prefix such as "10.0.0.0/8"`)
)

// ParseOrigin reads scheme://host[:port] and returns it in the form that a browser sends (RFC 6454,
// 6.2): lower case, without the default port of the scheme. One slash at the end is accepted. "*",
// "null" and any longer text are errors.
func ParseOrigin(s string) (string, error) {
	u, err := url.Parse(strings.TrimSuffix(s, "/"))
	switch {
	case err != nil, u.Scheme == "", u.Hostname() == "", u.User != nil, u.Path != "", strings.ContainsAny(s, "?#"):
		return "", errOrigin
	}
	for i := range len(u.Host) {
		if c := u.Host[i]; c <= ' ' || c >= 0x7f || strings.IndexByte(`%*,\`, c) >= 0 {
			return "", errOrigin // a browser sends a non-ASCII name in the form xn--
		}
	}
	if p := u.Port(); p != "" {
		if _, err := strconv.ParseUint(p, 10, 16); err != nil {
			return "", errOrigin
		}
	}
	host := strings.ToLower(u.Host)
	host = strings.TrimSuffix(host, impliedPort[u.Scheme])
	return u.Scheme + "://" + strings.TrimSuffix(host, ":"), nil
}

var impliedPort = map[string]string{"http": ":80", "https": ":443"}

// PublicURL is an address without user information, query and fragment, because these can contain a
// password or a token. If the text is not an address with a host, the result is "". The whole text
// must be an address; redactURL finds addresses inside a text.
func PublicURL(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

// ParsePrefix reads an address or a prefix in CIDR form (RFC 4632). An address becomes the prefix
// that contains only this address. IPv4 within IPv6 becomes IPv4.
func ParsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, errPrefix
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, errPrefix
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

func decodesOrigin(v any) error {
	_, err := ParseOrigin(v.(string))
	return err
}

func decodesPublicURL(v any) error {
	origin, err := ParseOrigin(v.(string))
	if err == nil && impliedPort[strings.SplitN(origin, ":", 2)[0]] == "" {
		return errOrigin
	}
	return err
}

func decodesPrefix(v any) error {
	_, err := ParsePrefix(v.(string))
	return err
}

// decodesHost refuses a host with a port or a path behind it: another key has the port. It refuses an empty
// one, which would listen on all addresses without saying so.
func decodesHost(v any) error {
	host := strings.Trim(v.(string), "[]")
	if addr, err := netip.ParseAddr(host); strings.TrimSpace(host) == "" || strings.ContainsAny(host, ":/") && (err != nil || addr.Zone() != "") {
		return errors.New(`an address or a name without a port, such as "127.0.0.1"`)
	}
	return nil
}
