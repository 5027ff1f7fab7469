package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
	"github.com/dreamlab-ai/agentinit/mesh/pool"
	"github.com/dreamlab-ai/agentinit/mesh/relay"
	"github.com/dreamlab-ai/agentinit/probes"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// Times of the box's own relay.
const (
	relayRetry  = 5 * time.Second // the pause before an unavailable port or database is tried again
	relayStart  = 10 * time.Second
	relayStatus = 2 * time.Second
)

// meshRelay is the relay inside agentinit; it is nil while there is none.
type meshRelay struct{ running atomic.Pointer[relay.Relay] }

// embedded tells whether agentinit itself is the box's relay.
func embedded(m *schema.Manifest) bool {
	r := m.SovereignMesh.Relay
	return r.Enabled && r.Implementation == bootstrap.RelayEmbedded
}

// serveRelay runs the relay beside the programs. If it cannot start, that is reported and tried
// again: the box also runs without a relay.
func (b *box) serveRelay() {
	m := b.manifest()
	if !embedded(m) {
		return
	}
	b.background(func() {
		for told := ""; ; {
			err := b.runRelay(m)
			if b.stopped.Err() != nil {
				return
			}
			if why := err.Error(); why != told {
				told = why
				b.publish(event.Warn, "RelayUnavailable", map[string]any{"message": why})
			}
			if !sleep.For(b.stopped, relayRetry) {
				return
			}
		}
	})
}

// runRelay opens the relay and serves it until the box is stopped or it fails.
func (b *box) runRelay(m *schema.Manifest) error {
	settings := m.SovereignMesh.Relay
	l, err := b.ports.listen(b.stopped, relayListener, relayAddress(b.manifest()))
	if err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(b.stopped, relayStart)
	defer cancel()
	r, err := relay.Start(starting, b.relayConfig(m))
	if err != nil {
		_ = l.Close() // it has not served any client
		return err
	}
	b.relay.running.Store(r)
	defer b.relay.running.Store(nil)
	stop := context.AfterFunc(b.stopped, func() { b.closeRelay(r) })
	defer stop()
	b.publish(event.Info, "RelayListening", map[string]any{"address": l.Addr().String(), "ingress_policy": settings.IngressPolicy})
	err = r.Serve(probes.Steady(l, func(err error) {
		b.publish(event.Warn, "RelayAcceptFailed", map[string]any{"address": l.Addr().String(), "reason": err.Error()})
	}))
	b.closeRelay(r)
	return err
}

func (b *box) closeRelay(r *relay.Relay) {
	if err := r.Close(); err != nil {
		b.publish(event.Warn, "RelayNotClosed", map[string]any{"message": err.Error()})
	}
}

// relayConfig is the manifest's configuration of the relay. The box's own keys are read at each
// message, because a rotation changes them.
func (b *box) relayConfig(m *schema.Manifest) relay.Config {
	settings := m.SovereignMesh.Relay
	kinds := make([]int, len(settings.AllowedKinds))
	for i, k := range settings.AllowedKinds {
		kinds[i] = int(k)
	}
	policy := relay.Policy{
		Ingress: relay.Ingress(settings.IngressPolicy), Allowed: settings.AllowedPubkeys, Kinds: kinds, NIP04: settings.AllowNIP04,
		MaxEventBytes: int(settings.MaxEventBytes), Hosts: b.boundary.names,
	}
	info := relay.Info{Name: "agentbox", Description: settings.InfoDescription, Contact: settings.InfoContact, Version: version}
	return relay.Config{
		Dir: b.roots.Path(settings.DataDir), MessagesPerSec: int(settings.MessagesPerSec), RetentionDays: settings.KeptDays(),
		MaxBytes: int64(settings.MaxBytes), Kinds: kinds, Info: info, Registerer: b.registry,
		Policy: func() relay.Policy {
			p := policy
			p.Own = b.boot.OwnKeys()
			if self, ok := b.self.current(); ok {
				p.Own = append(p.Own, string(self.PublicKey)) // a rotation happened after phase 3
			}
			return p
		},
		Report: func(what string, err error) {
			b.publish(event.Warn, "RelayTrouble", map[string]any{"what": what, "message": err.Error()})
		},
	}
}

// publishedFile records how far the agents' events were published; it lies below the workspace.
const publishedFile = "mesh/published.json"

// relayNotice publishes that a relay is connected, or no longer.
func (b *box) relayNotice(s pool.Status) {
	fields := map[string]any{"relay": schema.PublicURL(s.URL), "state": string(s.State)}
	level := event.Debug
	switch s.State {
	case pool.Connected:
		level, fields["latency_ms"] = event.Info, s.LatencyMS
		select {
		case b.mesh.connected <- struct{}{}:
		default: // it has an element already
		}
	case pool.Waiting:
		fields["error"] = s.Error
		if s.Retries == 1 { // further attempts are not reported
			level = event.Warn
		}
	}
	b.publish(level, "RelayState", fields)
}

// relayServer is the program of the catalogue that is the relay, if agentinit is not.
const relayServer = "nostr-relay"

// relayHealth answers /health/relay; nil if the box runs no relay.
func (b *box) relayHealth(m *schema.Manifest) func() any {
	own := embedded(m)
	if !own && !(m.SovereignMesh.Relay.Enabled && m.SovereignMesh.Relay.Implementation == bootstrap.RelayProgram) {
		return nil
	}
	return func() any {
		health := relayReport{State: "starting"}
		if own {
			b.askRelay(&health)
		} else {
			health.Program, health.State = b.programReport(relayServer), "degraded"
			if health.Program != nil && health.Program.Ready {
				health.State = "ok"
			}
		}
		if health.State != "ok" {
			return health
		}
		if mesh, err := b.mesh.Status(); err == nil {
			for _, r := range mesh.Relays {
				if !r.Own && r.State == string(pool.Connected) {
					health.FanoutUp++
				}
			}
			if mesh.Mailbox != nil {
				health.OutboxPending = mesh.Mailbox.Pending
			}
		}
		return health
	}
}

// askRelay adds what agentinit knows as the relay.
func (b *box) askRelay(health *relayReport) {
	r := b.relay.running.Load()
	if r == nil {
		return
	}
	ctx, cancel := context.WithTimeout(b.stopped, relayStatus)
	defer cancel()
	status, err := r.Status(ctx)
	health.Status = &status
	health.State = "ok"
	if err != nil {
		health.State, health.Error = "degraded", err.Error()
	}
}

// relayReport is the body of /health/relay.
type relayReport struct {
	State         string         `json:"status"`
	*relay.Status                // nil until agentinit is the relay
	OutboxPending int            `json:"outbox_pending"`
	FanoutUp      int            `json:"fanout_up"`         // outside relays that are connected
	Program       *programReport `json:"program,omitempty"` // nil if agentinit is the relay
	Error         string         `json:"error,omitempty"`
}
