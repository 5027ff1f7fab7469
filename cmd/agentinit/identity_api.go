package main

import (
	"context"
	"errors"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/supervisor/control"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// identityAPI is the box's identity for the API: it implements rest.Identity.
type identityAPI struct{ self *self }

func report(i identity.Identity) rest.IdentityReport {
	return rest.IdentityReport{
		AgentID: i.AgentID, CreatedAt: i.CreatedAt, RotatedAt: i.RotatedAt, PublicKey: string(i.PublicKey), Npub: i.Npub, DID: i.DID,
	}
}

func noIdentity() error {
	return adapters.Errorf(adapters.CodeNotFound, "%v", errNoIdentity).With("resource", "identity", "id", "")
}

func (a identityAPI) Show() (rest.IdentityReport, error) {
	i, ok := a.self.current()
	if !ok {
		return rest.IdentityReport{}, noIdentity()
	}
	return report(i), nil
}

func (a identityAPI) Rotate(context.Context) (rest.IdentityReport, error) {
	i, err := a.self.Rotate()
	if errors.Is(err, errNoIdentity) {
		return rest.IdentityReport{}, noIdentity()
	}
	if err != nil {
		return rest.IdentityReport{}, err
	}
	out := report(i)
	lists, all := a.self.listsNaming(i.Previous)
	out.FormerKeyIn, out.FormerKeyPartly = lists, !all
	return out, nil
}

// Export implements rest.Identity. A request over the network never gets the key, whatever its
// credential. Only a peer of the control socket with the right to make changes gets it.
func (a identityAPI) Export(ctx context.Context) (rest.ExportedKey, error) {
	if control.Granted(ctx) != control.Write {
		return rest.ExportedKey{}, adapters.Errorf(adapters.CodePermissionDenied, "the private key is exported only over the control socket: agentctl identity export")
	}
	signer := a.self.Signer()
	if signer == nil {
		return rest.ExportedKey{}, noIdentity()
	}
	key := signer.Key()
	a.self.b.publishIdentity(event.Warn, eventKeyExported, map[string]any{"npub": key.Public().Npub()})
	return rest.ExportedKey{Npub: key.Public().Npub(), Nsec: key.Nsec()}, nil
}

func (a identityAPI) Rekey(context.Context) error {
	err := a.self.Rekey()
	if errors.Is(err, bootstrap.ErrKeyElsewhere) {
		return adapters.Errorf(adapters.CodeConflict, "%v", err)
	}
	return err
}

// Document implements rest.Identity. A did:nostr name contains its own key, so every valid name has
// a document. The document of the box also names its services.
func (a identityAPI) Document(did string) (map[string]any, error) {
	key, err := identity.ParsePublicKey(did)
	if err != nil {
		return nil, adapters.Invalid("did", "is not did:nostr: and 64 lower-case hexadecimal digits, or an npub")
	}
	if own, ok := a.self.current(); ok && own.PublicKey == key {
		return a.own(own), nil
	}
	return identity.Identity{PublicKey: key, Npub: key.Npub(), DID: key.DID()}.DIDDocument("", nil), nil
}

func (a identityAPI) own(i identity.Identity) map[string]any {
	a.self.mu.Lock()
	base := a.self.podBase
	a.self.mu.Unlock()
	return i.DIDDocument(base, a.self.services(a.self.b.manifest(), base))
}

func (a identityAPI) WellKnown() (map[string]any, error) {
	i, ok := a.self.current()
	if !ok {
		return nil, noIdentity()
	}
	if !a.self.b.manifest().LinkedData.DID.PublishToWellKnown {
		return nil, adapters.Errorf(adapters.CodeNotFound, "linked_data.did.publish_to_well_known is false").With("resource", "did", "id", "did.json")
	}
	return a.own(i), nil
}
