package main

import (
	"strings"

	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/probes"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// signedRequests checks requests that are signed by a Nostr key (NIP-98).
func (b *box) signedRequests(m *schema.Manifest, h *hosting) (*probes.Nostr, error) {
	public, err := bootstrap.PublicOrigins(m, b.getenv)
	if err != nil {
		return nil, err
	}
	operators := b.operators(m)
	return probes.NewNostr(probes.NostrConfig{
		Origins: public, Names: b.boundary.names, TrustedProxies: b.boundary.proxies,
		Role: func(pubkey string) (probes.Principal, bool) {
			if own, ok := b.self.current(); operators[pubkey] || ok && pubkey == string(own.PublicKey) {
				return probes.Principal{Role: probes.RoleAdmin, ID: pubkey}, true
			}
			return h.signer(pubkey)
		},
	}), nil
}

// operators are the keys of the owners of the box.
func (b *box) operators(m *schema.Manifest) map[string]bool {
	keys := map[string]bool{}
	for _, text := range []string{m.SovereignMesh.Operator.PubkeyHex, m.SovereignMesh.Operator.NPub} {
		if text == "" {
			continue
		}
		key, err := identity.ParsePublicKey(strings.ToLower(text))
		if err != nil {
			b.publishIdentity(event.Warn, eventIdentityWarning, map[string]any{
				"message": "sovereign_mesh.operator names a text that is no public key, so requests signed with it are refused: " + err.Error(),
			})
			continue
		}
		keys[string(key)] = true
	}
	return keys
}
