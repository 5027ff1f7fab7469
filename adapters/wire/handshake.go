package wire

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// assumedVersion is the contract of a peer that has no /v1/meta.
const assumedVersion = "1.0"

// ErrNoDescription is in the error of a handshake if the peer answered /v1/meta with something
// other than its description: a page, or other JSON.
var ErrNoDescription = errors.New("the peer does not describe itself at /v1/meta")

// Peer is what a peer reported about itself.
type Peer struct {
	Contract     string // MAJOR.MINOR of the client's slot
	Capabilities []string
}

// Handshake asks the peer's /v1/meta for its contract. Another MAJOR is CONTRACT_MISMATCH. A lower
// MINOR is accepted; the missing methods return UNSUPPORTED. A peer without /v1/meta is assumed to
// use 1.0.
func (c *Client) Handshake(ctx context.Context) (Peer, error) {
	res, err := c.Do(ctx, Request{Method: http.MethodGet, Path: "/v1/meta", Probe: true})
	if errors.Is(err, adapters.ErrNotFound) || errors.Is(err, adapters.ErrUnsupported) {
		return Peer{Contract: assumedVersion}, nil
	}
	if err != nil {
		return Peer{}, err
	}
	var meta struct {
		Versions     map[adapters.Slot]string   `json:"adapter_contract_versions"`
		Capabilities map[adapters.Slot][]string `json:"capabilities"`
	}
	if err := decode(res, &meta); err != nil {
		return Peer{}, adapters.AsError(err).Wrap(ErrNoDescription)
	}
	peer := Peer{Contract: meta.Versions[c.cfg.Slot], Capabilities: meta.Capabilities[c.cfg.Slot]}
	peer.Contract = cmp.Or(peer.Contract, assumedVersion)
	ours, _ := adapters.ContractOf(c.cfg.Slot)
	return peer, adapters.CheckVersion(c.cfg.Slot, ours.Version, peer.Contract, false)
}

// AtLeast tells whether the peer's contract is MAJOR.minor or newer.
func (p Peer) AtLeast(minor int) bool {
	v, err := adapters.ParseVersion(p.Contract)
	return err == nil && v.Minor >= minor
}
