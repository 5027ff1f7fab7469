package main

import (
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"

	"github.com/dreamlab-ai/agentinit/bootstrap"
	"github.com/dreamlab-ai/agentinit/probes"
	"github.com/dreamlab-ai/agentinit/schema"
)

// While a port is held, no other listener can be opened there. listen hands the held one out once.
func TestPortsAreHeld(t *testing.T) {
	for _, name := range []string{probes.ManagementListener, relayListener} {
		var p ports
		p.hold(map[string]string{name: "127.0.0.1:0"})
		defer p.close()
		address := p.held[name].Addr().String()
		if l, err := net.Listen("tcp", address); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s: another listener on a held port: %v, %v", name, l, err)
		}
		first, err := p.listen(t.Context(), name, address)
		if err != nil {
			t.Fatal(err)
		}
		if got := first.Addr().String(); got != address {
			t.Errorf("%s: got %s, not %s", name, got, address)
		}
		if _, err := p.listen(t.Context(), name, address); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s: a second time: %v", name, err)
		}
		first.Close()
		again, err := p.listen(t.Context(), name, address)
		if err != nil {
			t.Fatal(err)
		}
		again.Close()
	}
}

// A port at one loopback address is kept from others at the other one as well, even when the listener is handed
// out. A client that tries it there first is refused, and goes on to the right one.
func TestPortsAreHeldAtBothLoopbackAddresses(t *testing.T) {
	probe, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 here: ", err)
	}
	probe.Close()
	for held, other := range map[string]string{"127.0.0.1": "::1", "::1": "127.0.0.1"} {
		var p ports
		p.hold(map[string]string{probes.ManagementListener: net.JoinHostPort(held, "0")})
		l, err := p.listen(t.Context(), probes.ManagementListener, "")
		if err != nil {
			t.Fatal(err)
		}
		twin := net.JoinHostPort(other, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
		if impostor, err := net.Listen("tcp", twin); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s: another listener: %v, %v", twin, impostor, err)
		}
		if c, err := net.Dial("tcp", twin); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: a client: %v, %v", twin, c, err)
		}
		p.close()
		free, err := net.Listen("tcp", twin)
		if err != nil {
			t.Fatalf("after close: %v", err)
		}
		free.Close()
		l.Close()
	}
}

// After close, a port that listen has not handed out is free again. If another process has the port
// already, hold says nothing: listen reports it.
func TestPortsAreClosed(t *testing.T) {
	occupant, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer occupant.Close()
	var p ports
	p.hold(map[string]string{probes.ManagementListener: occupant.Addr().String(), probes.MetricsListener: "127.0.0.1:0"})
	if _, err := p.listen(t.Context(), probes.ManagementListener, occupant.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("the taken port: %v", err)
	}
	address := p.held[probes.MetricsListener].Addr().String()
	p.close()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func TestRelayAddress(t *testing.T) {
	var m schema.Manifest
	r := &m.SovereignMesh.Relay
	if got := relayAddress(&m); got != bootstrap.Off {
		t.Errorf("without a relay: %s", got)
	}
	r.Enabled, r.Implementation, r.Port = true, bootstrap.RelayEmbedded, 7777
	for bind, want := range map[string]string{"127.0.0.1": "127.0.0.1:7777", "::1": "[::1]:7777", "[::1]": "[::1]:7777", "localhost": "localhost:7777"} {
		if r.Bind = bind; relayAddress(&m) != want {
			t.Errorf("%s: %s, want %s", bind, relayAddress(&m), want)
		}
	}
}
