package main

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/probes"
	"github.com/dreamlab-ai/agentinit/schema"
)

// ports holds the listeners that were opened before the first program started: a program that is
// quicker than agentinit could listen on the port, and answer in its place. Clients that connect
// before the servers are made wait in the queue of the kernel.
type ports struct {
	mu   sync.Mutex
	held map[string]net.Listener // by name
}

// relayListener is the name of the relay's listener beside those of probes.Server.
const relayListener = "relay"

// hold opens the listeners, but for those that are off. It leaves those that cannot be opened to listen,
// which reports the error.
func (p *ports) hold(addresses map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = map[string]net.Listener{}
	for name, address := range addresses {
		if address == bootstrap.Off {
			continue
		}
		if l, err := open(context.Background(), name, address); err == nil {
			p.held[name] = l
		}
	}
}

// listen hands out the held listener. It opens another one if there is none any more.
func (p *ports) listen(ctx context.Context, name, address string) (net.Listener, error) {
	p.mu.Lock()
	l := p.held[name]
	delete(p.held, name)
	p.mu.Unlock()
	if l != nil {
		return l, nil
	}
	return open(ctx, name, address)
}

func open(ctx context.Context, name, address string) (net.Listener, error) {
	if name == relayListener {
		return new(net.ListenConfig).Listen(ctx, "tcp", address)
	}
	return probes.Listen(ctx, name, address)
}

// close closes the listeners that listen has not handed out.
func (p *ports) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.held {
		_ = l.Close() // it has served no client
	}
	clear(p.held)
}

// holdPorts opens the listeners of the box.
func (b *box) holdPorts() {
	b.ports.hold(map[string]string{
		probes.ManagementListener: b.addresses.Management, probes.MetricsListener: b.addresses.Metrics, relayListener: relayAddress(b.manifest()),
	})
}

// relayAddress is where the relay inside agentinit listens. The brackets that other relays want around an IPv6
// address are allowed.
func relayAddress(m *schema.Manifest) string {
	if !embedded(m) {
		return bootstrap.Off
	}
	return net.JoinHostPort(strings.Trim(m.SovereignMesh.Relay.Bind, "[]"), strconv.Itoa(m.SovereignMesh.Relay.Port))
}
