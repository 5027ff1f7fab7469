package relay

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/internal/rate"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

// Ingress says which sessions may write.
type Ingress string

// The ingress policies of sovereign_mesh.relay.ingress_policy.
const (
	Allowlist  Ingress = "allowlist"   // sessions that have proved a key of Own or Allowed
	SignedOnly Ingress = "signed-only" // sessions that have proved any key
	Open       Ingress = "open"        // every session
)

const (
	challengeLife = 60 * time.Second
	authSkew      = 60 * time.Second
	futureSkew    = 15 * time.Minute
)

// ownKinds are the kinds that the box itself publishes in addition to the allowed kinds: its relay
// lists (NIP-65, NIP-17) and the history of its events.
var ownKinds = []int{10002, 10050, 1078}

// Policy decides about events and sessions. It is an immutable value.
type Policy struct {
	Ingress Ingress
	Own     []string // public keys that may always write: the box's, the operator's
	Allowed []string // keys that may write under Allowlist; evicted later than strangers' events
	Kinds   []int    // allowed kinds, as for nip01.KindAllowed
	NIP04   bool     // accept direct messages of the older form (NIP-04)
	// MaxEventBytes limits the size of an event as the client sent it.
	MaxEventBytes int
	// Hosts are names, with or without a port, by which clients know this relay, in addition to the
	// address of their connection (NIP-42, tag relay).
	Hosts []string
}

// refusal is the reason of a refusal: a machine-readable prefix of NIP-01 and a text.
type refusal struct{ Prefix, Text string }

func (r *refusal) Error() string { return r.Prefix + ": " + r.Text }

func refuse(prefix, format string, args ...any) *refusal {
	return &refusal{prefix, fmt.Sprintf(format, args...)}
}

// authWanted tells whether a session must prove a key.
func (p Policy) authWanted() bool { return p.Ingress != Open }

// writer decides whether a sender may write. key is the key that the session has proved, "" for none.
// The event's own key does not identify the sender: the key of a gift wrap is used only once.
func (p Policy) writer(key string) *refusal {
	switch {
	case p.Ingress == Open:
		return nil
	case key == "":
		return refuse("auth-required", "this relay takes events from sessions that have shown their key (NIP-42)")
	case p.Ingress == SignedOnly, p.own(key), slices.Contains(p.Allowed, key):
		return nil
	}
	return refuse("restricted", "the key of this session may not write here")
}

// rank is the order of eviction when the database is full: events of the lowest rank go first.
type rank int

const (
	stranger  rank = iota
	listedKey      // a key of Allowed, under each ingress policy
	ownKey
)

// rank returns the rank of an event from a session that has proved key. The event's own key counts
// only if it is in Own: then the signature of the event is sufficient.
func (p Policy) rank(key string, e *nostr.Event) rank {
	switch {
	case p.own(key), p.own(e.PubKey):
		return ownKey
	case key != "" && slices.Contains(p.Allowed, key):
		return listedKey
	}
	return stranger
}

func (p Policy) own(key string) bool { return key != "" && slices.Contains(p.Own, key) }

// standing returns the standing of a session that has proved key.
func (p Policy) standing(key string) standing {
	if p.own(key) || slices.Contains(p.Allowed, key) {
		return listed
	}
	return unlisted
}

// event makes the cheap checks on an event that is parsed but not verified yet.
func (p Policy) event(key string, e *nostr.Event, size int, now time.Time) *refusal {
	switch {
	case size > p.MaxEventBytes:
		return refuse("invalid", "payload-too-large: the event has %d bytes, the limit is %d", size, p.MaxEventBytes)
	case e.Kind == nip01.KindAuth:
		return refuse("invalid", "kind 22242 is sent as AUTH")
	case !p.kind(key, e.Kind):
		return refuse("blocked", "kind-not-allowed: this relay does not take kind %d", e.Kind)
	case nip01.Protected(e) && e.PubKey != key:
		return refuse("auth-required", "a protected event (NIP-70) is taken from its author alone")
	case nip01.Expired(e, now):
		return refuse("invalid", "the event has expired")
	case e.CreatedAt.Time().After(now.Add(futureSkew)):
		return refuse("invalid", "created_at is more than %s ahead", futureSkew)
	}
	return nil
}

func (p Policy) kind(key string, kind int) bool {
	return nip01.KindAllowed(p.Kinds, kind) || p.NIP04 && kind == nip01.KindNIP04 || p.own(key) && slices.Contains(ownKinds, kind)
}

// request decides about a subscription. A client that asks only for private kinds must have proved a
// key.
func (p Policy) request(key string, filters []nip01.Filter) *refusal {
	if key != "" {
		return nil
	}
	for _, f := range filters {
		if f.Kinds == nil || slices.ContainsFunc(f.Kinds, func(k int) bool { return !nip01.Private(k) }) {
			return nil
		}
	}
	return refuse("auth-required", "direct messages are read by those they are for (NIP-42)")
}

// readable tells whether a session may read e. Only the author and the keys in the p tags may read
// private kinds.
func (p Policy) readable(key string, e *nostr.Event) bool {
	return !nip01.Private(e.Kind) || key != "" && (e.PubKey == key || nip01.HasTag(e, "p", key))
}

// Challenge is the text that a session must sign (NIP-42). It is valid for one login.
type Challenge struct {
	Text   string
	Issued time.Time
}

// fresh tells whether the challenge may still be answered.
func (c Challenge) fresh(now time.Time) bool {
	return c.Text != "" && now.Sub(c.Issued) <= challengeLife
}

// auth checks the answer to a challenge, except its signature. local is the local address of the
// connection.
func (p Policy) auth(e *nostr.Event, c Challenge, local string, now time.Time) *refusal {
	skew := now.Sub(e.CreatedAt.Time()).Abs()
	switch {
	case e.Kind != nip01.KindAuth:
		return refuse("invalid", "AUTH wants an event of kind 22242")
	case !c.fresh(now):
		return refuse("invalid", "the challenge is older than %s or used; sign the new one", challengeLife)
	case nip01.TagValue(e, "challenge") != c.Text:
		return refuse("invalid", "the challenge is another one")
	case skew > authSkew:
		return refuse("invalid", "created_at is %s from this relay's clock, the limit is %s", skew.Round(time.Second), authSkew)
	case !p.knownAs(nip01.TagValue(e, "relay"), local):
		return refuse("invalid", "the relay tag names another relay")
	}
	return nil
}

// knownAs tells whether a relay URL means this relay: the address of the connection, localhost with
// its port, or a configured host. It ignores the Host header, because the client writes it: a client
// could otherwise use a signature that another user has made for another relay.
func (p Policy) knownAs(raw, local string) bool {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "ws" && u.Scheme != "wss" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return false
	}
	host := strings.ToLower(u.Hostname())
	if slices.ContainsFunc(p.Hosts, func(h string) bool { return strings.EqualFold(h, host) || strings.EqualFold(h, u.Host) }) {
		return true
	}
	localHost, port, err := net.SplitHostPort(local)
	if err != nil || u.Port() != port {
		return false
	}
	ip, localIP := net.ParseIP(host), net.ParseIP(localHost)
	if localIP == nil {
		return false
	}
	return ip != nil && ip.Equal(localIP) || host == "localhost" && localIP.IsLoopback()
}

// messageRate is the rate limit of one connection, with a burst of twice perSecond messages.
func messageRate(perSecond int) rate.Limit {
	return rate.Limit{PerSecond: float64(perSecond), Burst: 2 * float64(perSecond)}
}
