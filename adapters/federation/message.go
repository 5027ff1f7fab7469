package federation

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Paths of the protocol, below the host's base URL.
const (
	RegisterPath   = "/v1/register"
	HeartbeatPath  = "/v1/heartbeat"
	DeregisterPath = "/v1/deregister"
)

// Registration is the body of POST /v1/register.
type Registration struct {
	BoxID            string                   `json:"box_id"`  // stays over restarts
	BootID           string                   `json:"boot_id"` // a new one replaces the session of the old
	ImageHash        string                   `json:"image_hash"`
	ManifestChecksum string                   `json:"manifest_checksum"`
	Version          string                   `json:"version"`
	Adapters         map[string]AdapterReport `json:"adapters"` // by slot
	DID              string                   `json:"did"`
	MetaURL          string                   `json:"meta_url"`
	Nonce            string                   `json:"nonce"` // comes back in the answer
}

// AdapterReport is what a box has in one slot.
type AdapterReport struct {
	Impl            string   `json:"impl"`
	ContractVersion string   `json:"contract_version"`
	Capabilities    []string `json:"capabilities"`
}

// Grant is the answer to a Registration.
type Grant struct {
	SessionID string `json:"session_id"`
	Token     string `json:"token,omitempty"`
	Nonce     string `json:"nonce"`
	// HeartbeatIntervalS is 5 to 300; 30 without.
	HeartbeatIntervalS int `json:"heartbeat_interval_s,omitempty"`
	// ContractRanges are the contract versions that the host supports, such as "^1", by slot.
	ContractRanges map[string]string `json:"contract_ranges,omitempty"`
	Endpoints      Endpoints         `json:"endpoints"`
}

// Endpoints are the addresses for a box's external slots. For an empty one, the manifest's address
// stays.
type Endpoints struct {
	Beads        Endpoint       `json:"beads,omitzero"`
	Pods         Endpoint       `json:"pods,omitzero"`
	Memory       MemoryEndpoint `json:"memory,omitzero"`
	Events       EventsEndpoint `json:"events,omitzero"`
	Orchestrator Protocol       `json:"orchestrator,omitzero"`
}

// Endpoint is one slot's.
type Endpoint struct {
	URL   string `json:"url,omitempty"`
	Token string `json:"token,omitempty"` // the session's when empty
}

// MemoryEndpoint is the address of the memory slot: a PostgreSQL connection string.
type MemoryEndpoint struct {
	Conninfo string `json:"conninfo,omitempty"`
	URL      string `json:"url,omitempty"`
}

// EventsEndpoint is that of the events slot.
type EventsEndpoint struct {
	Endpoint
	// RelayURLs are Nostr relays for as long as the session lasts, beside those of the box. The
	// box's manifest decides whether it uses any.
	RelayURLs []string `json:"relay_urls,omitempty"`
}

// MaxRelays is how many relays a host may name.
const MaxRelays = 8

// CheckRelays refuses relays that no box may be sent to.
func CheckRelays(urls []string) error {
	if len(urls) > MaxRelays {
		return fmt.Errorf("%d relays are named, the limit is %d", len(urls), MaxRelays)
	}
	for _, one := range urls {
		u, err := url.Parse(one)
		if err != nil || u.Scheme != "ws" && u.Scheme != "wss" || u.Hostname() == "" || u.User != nil || u.Fragment != "" || len(one) > maxAddress {
			return fmt.Errorf("%.100q is no address of a relay (want ws:// or wss://, without credentials)", one)
		}
	}
	return nil
}

// same tells whether two answers of a host say the same.
func (e Endpoints) same(o Endpoints) bool {
	return e.Beads == o.Beads && e.Pods == o.Pods && e.Memory == o.Memory && e.Orchestrator == o.Orchestrator &&
		e.Events.Endpoint == o.Events.Endpoint && slices.Equal(e.Events.RelayURLs, o.Events.RelayURLs)
}

// Protocol is how the orchestrator is spoken to.
type Protocol struct {
	Protocol string `json:"protocol,omitempty"`
}

// check refuses endpoints that no adapter can use.
func (e Endpoints) check() error {
	for _, one := range []struct{ name, url, token string }{
		{"beads", e.Beads.URL, e.Beads.Token}, {"pods", e.Pods.URL, e.Pods.Token}, {"memory", e.Memory.URL, ""}, {"events", e.Events.URL, e.Events.Token},
	} {
		if err := checkToken("the endpoint of "+one.name, one.token); err != nil {
			return err
		}
		if one.url == "" {
			continue
		}
		u, err := url.Parse(one.url)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || len(one.url) > maxAddress {
			return fmt.Errorf("the endpoint of %s is no http URL", one.name)
		}
	}
	if err := checkConninfo(e.Memory.Conninfo); err != nil {
		return err
	}
	return CheckRelays(e.Events.RelayURLs)
}

// Bounds of what a host says, in bytes.
const (
	maxAddress = 2000
	maxToken   = 4096
)

// checkToken refuses what cannot be sent as a bearer token (RFC 6750, 2.1).
func checkToken(of, token string) error {
	if len(token) > maxToken {
		return fmt.Errorf("the token of %s has more than %d bytes", of, maxToken)
	}
	for _, c := range []byte(token) {
		if c <= ' ' || c >= 0x7f {
			return fmt.Errorf("the token of %s has a character that no token has", of)
		}
	}
	return nil
}

// namesFile finds the options of a connection string that name a file with secrets. pgx takes a
// vertical tab as white space too, which \s does not match.
var namesFile = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(passfile|service|servicefile|sslcert|sslkey)[\s\v]*=`)
})

// checkConninfo refuses a connection string that names such files of this box (libpq, 34.1.2): the
// box would log in to another server with what is in them.
func checkConninfo(conninfo string) error {
	if len(conninfo) > maxAddress {
		return fmt.Errorf("the connection string of memory has more than %d bytes", maxAddress)
	}
	texts := []string{conninfo}
	if decoded, err := url.QueryUnescape(conninfo); err == nil { // the form of a URL
		texts = append(texts, decoded)
	}
	for _, text := range texts {
		if found := namesFile().FindStringSubmatch(text); found != nil {
			return fmt.Errorf("the connection string of memory names a file of this box (%s)", strings.ToLower(found[1]))
		}
	}
	return nil
}

// Beat is the body of POST /v1/heartbeat.
type Beat struct {
	SessionID string            `json:"session_id"`
	Seq       uint64            `json:"seq"`
	Status    string            `json:"status"`
	Ready     bool              `json:"ready"`
	Slots     map[string]string `json:"slots"` // state by slot
	Agents    int               `json:"agents"`
	UptimeS   int64             `json:"uptime_s"`
}

// BeatAnswer is the answer to a Beat.
type BeatAnswer struct {
	NextInS   int        `json:"next_in_s,omitempty"`
	Endpoints *Endpoints `json:"endpoints,omitempty"`
}

// Eviction is the answer 410 to a Beat.
type Eviction struct {
	Reason      string `json:"reason"`
	Permanent   bool   `json:"permanent,omitempty"`
	RetryAfterS int    `json:"retry_after_s,omitempty"`
}

// Farewell is the body of POST /v1/deregister.
type Farewell struct {
	SessionID string `json:"session_id"`
	Reason    string `json:"reason"`
}

// checkRange compares a contract version with a host's range: "^1" or "^1.2",
// same MAJOR and not an older MINOR. The error has code CONTRACT_MISMATCH and
// names both.
func checkRange(slot adapters.Slot, limits, have string) error {
	want := limits
	if len(want) > 0 && want[0] == '^' {
		want = want[1:]
	}
	return adapters.CheckVersion(slot, want, have, true)
}
