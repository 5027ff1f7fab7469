package main

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/dreamlab-ai/agentinit/probes"
)

// While a port is held, nobody else can listen there. The one who asks for it gets it, once.
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

// A port that nobody has asked for is free again after close. One that was taken before is no error of
// hold: listen reports it.
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
