// Package relaytest serves the box's relay for the tests of its clients. It must never
// be part of a binary.
package relaytest

import (
	"errors"
	"net"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/mesh/relay"
)

// NewKey makes a key.
func NewKey(t testing.TB) *identity.Key {
	t.Helper()
	k, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Serve runs a relay whose box has the key own, until the test ends, and returns its URL.
func Serve(t testing.TB, own *identity.Key, ingress relay.Ingress, kinds ...int) (url string) {
	t.Helper()
	policy := relay.Policy{Ingress: ingress, Own: []string{string(own.Public())}, Kinds: kinds, MaxEventBytes: 1 << 16}
	r, err := relay.Start(t.Context(), relay.Config{
		Dir: t.TempDir(), MessagesPerSec: 100, MaxBytes: 64 << 20, Policy: func() relay.Policy { return policy }, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(errors.Join(err, r.Close()))
	}
	done := make(chan error, 1)
	go func() { done <- r.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(r.Close(), <-done); err != nil {
			t.Error(err)
		}
	})
	return "ws://" + l.Addr().String()
}
