package federation

import (
	"fmt"
	"net/url"

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

// Endpoints say where the slots are that a box has as external. Empty ones leave
// a slot where its manifest says.
type Endpoints struct {
	Beads        Endpoint       `json:"beads,omitzero"`
	Pods         Endpoint       `json:"pods,omitzero"`
	Memory       MemoryEndpoint `json:"memory,omitzero"`
	Events       Endpoint       `json:"events,omitzero"`
	Orchestrator Protocol       `json:"orchestrator,omitzero"`
}

// Endpoint is one slot's.
type Endpoint struct {
	URL   string `json:"url,omitempty"`
	Token string `json:"token,omitempty"` // the session's when empty
}

// MemoryEndpoint is that of the memory slot: a PostgreSQL connection string.
type MemoryEndpoint struct {
	Conninfo string `json:"conninfo,omitempty"`
	URL      string `json:"url,omitempty"`
}

// Protocol is how the orchestrator is spoken to.
type Protocol struct {
	Protocol string `json:"protocol,omitempty"`
}

// check refuses endpoints that no adapter can use.
func (e Endpoints) check() error {
	for _, one := range []struct{ name, url string }{
		{"beads", e.Beads.URL}, {"pods", e.Pods.URL}, {"memory", e.Memory.URL}, {"events", e.Events.URL},
	} {
		if one.url == "" {
			continue
		}
		u, err := url.Parse(one.url)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
			return fmt.Errorf("the endpoint of %s is no http URL", one.name)
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

// CheckRange compares a contract version with a host's range: "^1" or "^1.2",
// same MAJOR and not an older MINOR. The error has code CONTRACT_MISMATCH and
// names both.
func CheckRange(slot adapters.Slot, limits, have string) error {
	want := limits
	if len(want) > 0 && want[0] == '^' {
		want = want[1:]
	}
	return adapters.CheckVersion(slot, want, have, true)
}
