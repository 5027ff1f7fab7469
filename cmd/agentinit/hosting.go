package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/federation"
	mesh "github.com/dreamlab-ai/agentinit/adapters/federation/host"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
	"github.com/dreamlab-ai/agentinit/probes"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// registryFile is the file of a host's registry in the workspace.
const registryFile = "federation.db"

// Limits for a host's operations on its registry.
const (
	openLimit  = 10 * time.Second
	tokenLimit = 2 * time.Second
	sweepEvery = time.Hour
)

// hosting is federation.mode = "host": the registry opens when the workspace is ready. Its methods
// may be called from any goroutine.
type hosting struct {
	lateHost
	b       *box
	m       *schema.Manifest
	members map[string]bool // keys that may register

	refusals *event.Throttle
}

// refusalEvents bounds the events about refused boxes: registrations have no rate limit, and each
// event is a line of the log.
func refusalEvents() *event.Throttle { return &event.Throttle{Burst: 50, Every: time.Second / 5} }

// maxBoxText bounds the texts of a box in an event, in bytes: another machine writes them, as often as
// it likes.
const maxBoxText = 300

// newHosting returns nil in a box that is not a host.
func (b *box) newHosting(m *schema.Manifest) (*hosting, error) {
	if m.Federation.Mode != "host" {
		return nil, nil
	}
	if d := m.Federation.Heartbeat.Std(); d < federation.MinInterval || d > federation.MaxInterval {
		return nil, &bootstrap.Failure{Code: bootstrap.ExitManifest, Reason: "federation.heartbeat is " + d.String() + "; write 5s to 5m"}
	}
	h := &hosting{b: b, m: m, members: map[string]bool{}, refusals: refusalEvents()}
	for i, text := range m.Federation.AllowedPubkeys {
		key, err := identity.ParsePublicKey(text)
		if err != nil {
			return nil, &bootstrap.Failure{Code: bootstrap.ExitManifest, Reason: fmt.Sprintf("federation.allowed_pubkeys[%d] is no public key", i), Err: err}
		}
		h.members[string(key)] = true
	}
	if err := federation.CheckRelays(m.Federation.RelayURLs); err != nil {
		return nil, &bootstrap.Failure{Code: bootstrap.ExitManifest, Reason: "federation.relay_urls cannot be given to boxes", Err: err}
	}
	return h, nil
}

// open tries to open the registry until that succeeds or the box ends: a database may start after
// its hosts.
func (h *hosting) open(ctx context.Context) {
	server := mesh.NewServer(cmp.Or(h.b.getenv("AGENTBOX_FEDERATION_REGISTRY"), h.m.Federation.Registry))
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		opening, cancel := context.WithTimeout(ctx, openLimit)
		host, err := mesh.Open(opening, mesh.Config{
			File:     filepath.Join(h.b.roots.Workspace, registryFile),
			Server:   server,
			Interval: h.m.Federation.Heartbeat.Std(), Endpoints: h.endpoints,
			Trouble: func(err error) { h.tell("FederationRegistryUnavailable", err) },
		})
		cancel()
		if err == nil {
			h.set(host)
			h.sweep(ctx, host)
			if err := host.Close(); err != nil {
				h.tell("FederationRegistryNotClosed", err)
			}
			return
		}
		h.tell("FederationRegistryUnavailable", err)
		if !sleep.For(ctx, pause) {
			return
		}
	}
}

func (h *hosting) sweep(ctx context.Context, host *mesh.Host) {
	for sleep.For(ctx, sweepEvery) {
		if err := host.Sweep(ctx); err != nil {
			h.tell("FederationSweepFailed", err)
		}
	}
}

func (h *hosting) tell(name string, err error) {
	h.publish(event.Warn, name, map[string]any{"error": err.Error()})
}

// endpoints are the slots of this box that others can use over HTTP, and the relays that the
// manifest gives to boxes.
func (h *hosting) endpoints() federation.Endpoints {
	base := h.b.publicBase(h.m)
	e := federation.Endpoints{Events: federation.EventsEndpoint{RelayURLs: h.m.Federation.RelayURLs}}
	for _, s := range h.b.slots.Status() {
		if s.Class == adapters.ClassOff || base == "" {
			continue
		}
		switch s.Slot {
		case adapters.SlotBeads:
			e.Beads.URL = base
		case adapters.SlotEvents:
			e.Events.URL = base
		}
	}
	return e
}

// publicBase is the address at which others reach this box: its first public URL. If it is "", the
// boxes keep using the address at which they have registered.
func (b *box) publicBase(m *schema.Manifest) string {
	if origins, err := bootstrap.PublicOrigins(m, b.getenv); err == nil && len(origins) > 0 {
		return origins[0]
	}
	return ""
}

// principal is the holder of a token of the federation. A box that gets 401 ends its session. So if
// the registry cannot be read, the answer must be 503.
func (h *hosting) principal(token string) (probes.Principal, error) {
	if h == nil {
		return probes.Principal{}, probes.ErrBadCredential
	}
	if shared := h.b.tokenIn(federationToken); shared != "" {
		a, b := sha256.Sum256([]byte(shared)), sha256.Sum256([]byte(token))
		if subtle.ConstantTimeCompare(a[:], b[:]) == 1 {
			return probes.Principal{Role: rest.RoleMember, ID: "federation-token"}, nil
		}
	}
	host := h.get()
	if host == nil {
		return probes.Principal{}, probes.ErrCannotTell
	}
	ctx, cancel := context.WithTimeout(context.Background(), tokenLimit)
	defer cancel()
	m, err := host.ByToken(ctx, token)
	switch {
	case errors.Is(err, adapters.ErrNotFound):
		return probes.Principal{}, probes.ErrBadCredential
	case err != nil:
		return probes.Principal{}, probes.ErrCannotTell
	case m.Ended:
		return probes.Principal{Role: rest.RoleEnded, ID: m.Box}, nil
	}
	return probes.Principal{Role: rest.RoleBox, ID: m.Box}, nil
}

// signer is the principal that may register with a signature.
func (h *hosting) signer(pubkey string) (probes.Principal, bool) {
	if h == nil || !h.members[pubkey] {
		return probes.Principal{}, false
	}
	return probes.Principal{Role: rest.RoleMember, ID: pubkey}, true
}

// api is the host in the form of the API; nil in a box that is not a host.
func (h *hosting) api() rest.Host {
	if h == nil {
		return nil
	}
	return h
}

// Register, Deregister, Evict and Admit add an event to what the host does.
func (h *hosting) Register(ctx context.Context, principal string, r federation.Registration) (federation.Grant, error) {
	grant, err := h.lateHost.Register(ctx, principal, r)
	switch code := adapters.CodeOf(err); {
	case err == nil:
		h.publish(event.Info, "FederationBoxRegistered", map[string]any{"box": r.BoxID, "session_id": grant.SessionID, "version": escape.Line(r.Version, maxBoxText)})
	case code == adapters.CodePermissionDenied || code == adapters.CodeContractMismatch:
		h.tellRefused(r.BoxID, err)
	}
	return grant, err
}

// tellRefused publishes a refusal, unless there were too many.
func (h *hosting) tellRefused(box string, why error) {
	n, ok := h.refusals.Pass(time.Now())
	if !ok {
		return
	}
	fields := map[string]any{"box": box, "reason": why.Error()}
	if n > 0 {
		fields["suppressed"] = n
	}
	h.publish(event.Warn, "FederationBoxRefused", fields)
}

func (h *hosting) Deregister(ctx context.Context, box string, f federation.Farewell) error {
	err := h.lateHost.Deregister(ctx, box, f)
	if err == nil {
		h.publish(event.Info, "FederationBoxLeft", map[string]any{"box": box, "session_id": f.SessionID, "reason": escape.Line(f.Reason, maxBoxText)})
	}
	return err
}

func (h *hosting) Evict(ctx context.Context, box, reason string, permanent bool, retryAfter time.Duration) error {
	err := h.lateHost.Evict(ctx, box, reason, permanent, retryAfter)
	if err == nil {
		h.publish(event.Warn, "FederationBoxEvicted", map[string]any{"box": box, "reason": reason, "permanent": permanent})
	}
	return err
}

func (h *hosting) Admit(ctx context.Context, box string) error {
	err := h.lateHost.Admit(ctx, box)
	if err == nil {
		h.publish(event.Info, "FederationBoxAdmitted", map[string]any{"box": box})
	}
	return err
}

// Known implements rest.Host. The host itself is known too.
func (h *hosting) Known(ctx context.Context, box string) (bool, error) {
	if box == h.b.boxName() {
		return true, nil
	}
	return h.lateHost.Known(ctx, box)
}

func (h *hosting) publish(level event.Level, name string, fields map[string]any) {
	h.b.bus.Publish(event.Event{Level: level, Stage: "federation", Name: name, Fields: fields})
}

// status reports the host for GET /v1/federation.
func (h *hosting) status() rest.FederationStatus {
	out := rest.FederationStatus{Mode: h.m.Federation.Mode, State: string(federation.Idle), Since: adapters.At(h.b.started)}
	host, err := h.ready()
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), tokenLimit)
		defer cancel()
		out.Boxes, err = host.Count(ctx)
	}
	if err != nil {
		out.Boxes, out.Detail = nil, err.Error()
	}
	return out
}
