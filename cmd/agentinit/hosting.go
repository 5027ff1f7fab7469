package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"path/filepath"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/federation"
	mesh "github.com/dreamlab-ai/agentinit/adapters/federation/host"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/probes"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// registryFile is the registry of a host in the workspace.
const registryFile = "federation.db"

// Limits of a host's work on its registry.
const (
	openLimit  = 10 * time.Second
	tokenLimit = 2 * time.Second
	sweepEvery = time.Hour
)

// hosting is federation.mode = "host": the registry opens once the workspace is
// there. Its methods may be called from any goroutine.
type hosting struct {
	*lateHost
	b       *box
	m       *schema.Manifest
	members map[string]bool // keys that may register
}

// newHosting is nil in a box that is no host.
func (b *box) newHosting(m *schema.Manifest) (*hosting, error) {
	if m.Federation.Mode != "host" {
		return nil, nil
	}
	if d := m.Federation.Heartbeat.Std(); d < federation.MinInterval || d > federation.MaxInterval {
		return nil, &bootstrap.Failure{Code: bootstrap.ExitManifest, Reason: "federation.heartbeat is " + d.String() + "; write 5s to 5m"}
	}
	h := &hosting{lateHost: newLateHost(), b: b, m: m, members: map[string]bool{}}
	for _, text := range m.Federation.AllowedPubkeys {
		key, err := identity.ParsePublicKey(text)
		if err != nil {
			return nil, &bootstrap.Failure{Code: bootstrap.ExitManifest, Reason: "federation.allowed_pubkeys has a key that is none", Err: err}
		}
		h.members[string(key)] = true
	}
	return h, nil
}

// open opens the registry, again and again until it works or the box ends: a
// database may come up after its hosts.
func (h *hosting) open(ctx context.Context) {
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		opening, cancel := context.WithTimeout(ctx, openLimit)
		host, err := mesh.Open(opening, mesh.Config{
			File:     filepath.Join(h.b.roots.Workspace, registryFile),
			Conninfo: cmp.Or(h.b.getenv("AGENTBOX_FEDERATION_REGISTRY"), h.m.Federation.Registry),
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
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

func (h *hosting) sweep(ctx context.Context, host *mesh.Host) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := host.Sweep(ctx); err != nil {
			h.tell("FederationSweepFailed", err)
		}
	}
}

func (h *hosting) tell(name string, err error) {
	h.publish(event.Warn, name, map[string]any{"error": err.Error()})
}

// endpoints are the slots of this box that others can use over HTTP.
func (h *hosting) endpoints() federation.Endpoints {
	base := h.b.publicBase(h.m)
	var e federation.Endpoints
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

// publicBase is where others reach this box: its first public URL; "" when it
// does not know, and boxes then go on asking where they have registered.
func (b *box) publicBase(m *schema.Manifest) string {
	if origins, err := bootstrap.PublicOrigins(m, b.getenv); err == nil && len(origins) > 0 {
		return origins[0]
	}
	return ""
}

// principal is who holds a token of the federation. A box that hears 401 gives its
// session up: while the registry cannot be asked, it must hear 503.
func (h *hosting) principal(token string) (probes.Principal, error) {
	if h == nil {
		return probes.Principal{}, probes.ErrBadCredential
	}
	if shared := h.b.getenv("AGENTBOX_FEDERATION_TOKEN"); shared != "" {
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

// signer is who may register with a signature.
func (h *hosting) signer(pubkey string) (probes.Principal, bool) {
	if h == nil || !h.members[pubkey] {
		return probes.Principal{}, false
	}
	return probes.Principal{Role: rest.RoleMember, ID: pubkey}, true
}

// api is the host for the API; nil in a box that is none.
func (h *hosting) api() rest.Host {
	if h == nil {
		return nil
	}
	return h
}

// Register and the three after it add an event to what the host does.
func (h *hosting) Register(ctx context.Context, principal string, r federation.Registration) (federation.Grant, error) {
	grant, err := h.lateHost.Register(ctx, principal, r)
	switch code := adapters.CodeOf(err); {
	case err == nil:
		h.publish(event.Info, "FederationBoxRegistered", map[string]any{"box": r.BoxID, "session_id": grant.SessionID, "version": r.Version})
	case code == adapters.CodePermissionDenied || code == adapters.CodeContractMismatch:
		h.publish(event.Warn, "FederationBoxRefused", map[string]any{"box": r.BoxID, "reason": err.Error()})
	}
	return grant, err
}

func (h *hosting) Deregister(ctx context.Context, box string, f federation.Farewell) error {
	err := h.lateHost.Deregister(ctx, box, f)
	if err == nil {
		h.publish(event.Info, "FederationBoxLeft", map[string]any{"box": box, "session_id": f.SessionID, "reason": f.Reason})
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

// Known implements rest.Host: the host itself is known, too.
func (h *hosting) Known(ctx context.Context, box string) (bool, error) {
	if box == h.b.boxName() {
		return true, nil
	}
	return h.lateHost.Known(ctx, box)
}

func (h *hosting) publish(level event.Level, name string, fields map[string]any) {
	h.b.bus.Publish(event.Event{Level: level, Stage: "federation", Name: name, Fields: fields})
}

// status is the host for GET /v1/federation.
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
