package rest

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Identity is the box's own identity as the API shows it. Its methods may be
// called from any goroutine. Without an identity they answer NOT_FOUND.
type Identity interface {
	Show() (IdentityReport, error)
	// Rotate replaces the key.
	Rotate(ctx context.Context) (IdentityReport, error)
	// Export returns the private key if the caller may have it.
	Export(ctx context.Context) (ExportedKey, error)
	// Rekey makes a new management key and encrypts the private key with it.
	Rekey(ctx context.Context) error
	// Document returns the DID document of a did:nostr name. Any valid name has one.
	Document(did string) (map[string]any, error)
	// WellKnown returns the box's own DID document, if the box publishes it.
	WellKnown() (map[string]any, error)
}

// IdentityReport is the public part of the identity.
type IdentityReport struct {
	AgentID   string     `json:"agent_id"`
	CreatedAt time.Time  `json:"created_at"`
	RotatedAt *time.Time `json:"rotated_at"` // null before the first rotation
	PublicKey string     `json:"public_key_hex"`
	Npub      string     `json:"npub"`
	DID       string     `json:"did"`
	// FormerKeyIn is the answer to a rotation: access lists of the pods that still name the key before, by
	// their paths below the directory of the pods. FormerKeyPartly says that not all could be read.
	FormerKeyIn     []string `json:"former_key_in,omitempty"`
	FormerKeyPartly bool     `json:"former_key_partly,omitempty"`
}

// ExportedKey is a private key on its way to an operator.
type ExportedKey struct {
	Npub string `json:"npub"`
	Nsec string `json:"nsec"`
}

func identityRoutes() []route {
	return needing(needsIdentity, []route{
		{Method: "GET", Path: "/v1/identity", ID: "identity", Roles: everyone, Reply: IdentityReport{}, Doc: "Who the box is.", handle: getIdentity},
		{Method: "POST", Path: "/v1/identity/rotate", ID: "rotateIdentity", Roles: adminOnly, Reply: IdentityReport{}, Doc: "Replace the private key; the old one goes to the archive.", handle: rotateIdentity},
		{Method: "POST", Path: "/v1/identity/export", ID: "exportIdentity", Roles: adminOnly, Reply: ExportedKey{}, Doc: "The private key; over the control socket alone.", handle: exportIdentity},
		{Method: "POST", Path: "/v1/identity/rekey", ID: "rekeyIdentity", Roles: adminOnly, Status: 204, Doc: "Make a new management key where it lies in a file, and encrypt the private key with it.", handle: rekeyIdentity},
		{Method: "GET", Path: "/v1/did/{did}", ID: "resolveDID", Roles: everyone, Reply: map[string]any{}, Doc: "The DID document of a did:nostr name.", handle: getDID},
		{Method: "GET", Path: "/.well-known/did.json", ID: "wellKnownDID", Reply: map[string]any{}, open: true, Doc: "The box's DID document.", handle: getWellKnownDID},
	})
}

func needsIdentity(q *request) error {
	if q.s.cfg.Identity == nil {
		return adapters.NotFound("identity", "")
	}
	return nil
}

// answer replies with the result of f.
func answer[T any](q *request, f func(Identity) (T, error)) error {
	out, err := f(q.s.cfg.Identity)
	return q.result(http.StatusOK, out, err)
}

func getIdentity(q *request) error { return answer(q, Identity.Show) }

func rotateIdentity(q *request) error {
	return answer(q, func(i Identity) (IdentityReport, error) {
		report, err := i.Rotate(q.Context())
		return report, keyError(err, "cannot replace the private key")
	})
}

// keyError is the reason why a key could not be changed. An administrator may see it: it names a file
// of the box, for example on a full disk.
func keyError(err error, what string) error {
	if _, ok := errors.AsType[*adapters.Error](err); err == nil || ok {
		return err
	}
	return adapters.Unavailable(err, "%s", what)
}

func exportIdentity(q *request) error {
	return answer(q, func(i Identity) (ExportedKey, error) { return i.Export(q.Context()) })
}

func rekeyIdentity(q *request) error {
	return q.done(keyError(q.s.cfg.Identity.Rekey(q.Context()), "cannot change the management key"))
}

func getDID(q *request) error {
	return answer(q, func(i Identity) (map[string]any, error) { return i.Document(q.param("did")) })
}

func getWellKnownDID(q *request) error { return answer(q, Identity.WellKnown) }
