package main

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/probes"
	"github.com/dreamlab-ai/agentinit/schema"
)

// ports holds the listeners that were opened before the first program started: a program that is
// quicker than agentinit could listen on the port, and answer in its place. Clients that connect
// before the servers are made wait in the queue of the kernel.
//
// A client that is given the name localhost may try the other loopback address first. So a port at
// one of them is kept from programs at the other one too, until the end.
type ports struct {
	mu    sync.Mutex
	held  map[string]net.Listener // by name
	twins []int                   // sockets at the other loopback address, which refuse connections
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
			p.holdTwin(l.Addr())
		}
	}
}

// holdTwin does nothing if there is no other loopback address, or if another process has the port there: that
// is then its own service, which was there before.
func (p *ports) holdTwin(at net.Addr) {
	tcp, ok := at.(*net.TCPAddr)
	if !ok {
		return
	}
	family, other := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: tcp.Port, Addr: [16]byte(net.IPv6loopback)})
	switch {
	case tcp.IP.Equal(net.IPv6loopback):
		family, other = unix.AF_INET, &unix.SockaddrInet4{Port: tcp.Port, Addr: [4]byte{127, 0, 0, 1}}
	case !tcp.IP.Equal(net.IPv4(127, 0, 0, 1)):
		return
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	if unix.Bind(fd, other) != nil {
		_ = unix.Close(fd) // it is bound to nothing
		return
	}
	p.twins = append(p.twins, fd)
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

// close closes the listeners that listen has not handed out, and the twins of all.
func (p *ports) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.held {
		_ = l.Close() // it has served no client
	}
	clear(p.held)
	for _, fd := range p.twins {
		_ = unix.Close(fd) // it has served no client
	}
	p.twins = nil
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
