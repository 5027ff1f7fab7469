// Package resttest owns clients of the routes that adapters/rest serves and no
// class of the product speaks: memory and agents over HTTP. Each satisfies its
// slot, so that the contract suites run through the routes. It is for tests and
// must never be part of a binary.
package resttest

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/wire"
)

// remote is what both clients are: one peer, connected or not.
type remote struct {
	slot   adapters.Slot
	impl   string // a word of the manifest: what is behind the routes
	client *wire.Client
	peer   atomic.Pointer[wire.Peer] // nil until connected
}

func (r *remote) open(slot adapters.Slot, impl, url string, auth wire.Authorizer) error {
	c, err := wire.New(wire.Config{Slot: slot, BaseURL: url, Key: "test", Auth: auth})
	r.slot, r.impl, r.client = slot, impl, c
	return err
}

// The descriptive methods of adapters.Adapter.

func (r *remote) Slot() adapters.Slot   { return r.slot }
func (r *remote) Impl() string          { return r.impl }
func (r *remote) Class() adapters.Class { return adapters.ClassExternal }
func (r *remote) Enabled() bool         { return true }

// ContractVersion is what this code speaks.
func (r *remote) ContractVersion() string {
	c, _ := adapters.ContractOf(r.slot)
	return c.Version
}

// Capabilities are the peer's, none before it is known.
func (r *remote) Capabilities() []string {
	if p := r.peer.Load(); p != nil {
		return append([]string{}, slices.Sorted(slices.Values(p.Capabilities))...)
	}
	return []string{}
}

// Connect asks the peer which contract it speaks.
func (r *remote) Connect(ctx context.Context) error {
	if r.peer.Load() != nil {
		return nil
	}
	p, err := r.client.Handshake(ctx)
	if err != nil {
		return err
	}
	r.peer.Store(&p)
	return nil
}

// Health asks the same again.
func (r *remote) Health(ctx context.Context) adapters.Health {
	if r.peer.Load() == nil {
		return adapters.Unhealthy(adapters.Closed(r.slot))
	}
	if _, err := r.client.Handshake(ctx); err != nil {
		return adapters.Unhealthy(err)
	}
	return adapters.Healthy()
}

// Disconnect forgets the peer.
func (r *remote) Disconnect(context.Context) error {
	r.peer.Store(nil)
	r.client.Close()
	return nil
}

// json makes one call that is answered with JSON.
func (r *remote) json(ctx context.Context, q wire.Request, in, out any) error {
	if err := ctx.Err(); err != nil {
		return adapters.AsError(err)
	}
	if r.peer.Load() == nil {
		return adapters.Closed(r.slot)
	}
	_, err := r.client.JSON(ctx, q, in, out)
	return err
}
