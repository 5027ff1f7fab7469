package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"
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
