package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/rest"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
	"github.com/dreamlab-ai/agentinit/mesh/pool"
)

// The box's connections follow no redirect of a relay, so such a relay must not count as reachable.
func TestRelayThatRedirectsIsNotReachable(t *testing.T) {
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := websocket.Accept(w, r, nil); err == nil {
			_ = c.CloseNow()
		}
	}))
	defer relay.Close()
	elsewhere := httptest.NewServer(http.RedirectHandler(relay.URL, http.StatusFound))
	defer elsewhere.Close()
	b := new(box)
	for url, reachable := range map[string]bool{relay.URL: true, elsewhere.URL: false} {
		if err := b.relayReachable(t.Context(), strings.Replace(url, "http", "ws", 1)); (err == nil) != reachable {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// Readers of the API cannot take the subscription by which the mailbox receives.
func TestStreamsLeaveTheMailboxASubscription(t *testing.T) {
	p, err := pool.Start(pool.Config{
		URLs: []string{"ws://relay"},
		Dial: func(context.Context, string) (pool.Conn, error) { return nil, errors.New("refused") },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	n := &neighbours{}
	n.pool.Store(p)
	var last rest.MeshStream
	for range maxMeshStreams {
		if last, err = n.Subscribe(t.Context(), rest.MeshFilter{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.Subscribe(t.Context(), rest.MeshFilter{}); !errors.Is(err, adapters.ErrRateLimited) {
		t.Errorf("one more: %v", err)
	}
	mail, err := p.Subscribe([]nip01.Filter{{}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	mail.Close()
	last.Close()
	if _, err := n.Subscribe(t.Context(), rest.MeshFilter{}); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}
