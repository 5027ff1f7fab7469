package relay

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
)

// ended tells whether the relay has closed an idle connection.
func ended(t *testing.T, c net.Conn) bool {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, err := c.Read(make([]byte, 1))
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

// Idle connections use only a limited number of file descriptors, and do not keep out a client.
func TestSilentConnectionsMakeRoom(t *testing.T) {
	_, url := serve(t, nil)
	var silent []net.Conn
	for range 3 * maxKnocking {
		c, err := net.Dial("tcp", strings.TrimPrefix(url, "ws://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		silent = append(silent, c)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http"+strings.TrimPrefix(url, "ws"), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/nostr+json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("the document: %s", resp.Status)
	}
	for i, c := range silent[:2*maxKnocking] {
		if !ended(t, c) {
			t.Fatalf("connection %d of %d is still open", i, len(silent))
		}
	}
	dial(t, url)
}

// The box always gets a session, even if strangers hold many: the relay closes the oldest session
// without a key, and limits the sessions with an unlisted key.
func TestStrangersLeaveRoom(t *testing.T) {
	own := newKey(t)
	_, url := serve(t, func(_ *Config, p *Policy) { p.Ingress, p.Own = SignedOnly, []string{string(own.Public())} })
	first := dial(t, url)
	for range 2*maxUnauthenticated + 50 {
		dial(t, url)
	}
	if _, _, err := first.conn.Read(t.Context()); err == nil {
		t.Error("the oldest stranger is still there")
	}
	login := func(k *identity.Key, want bool) {
		t.Helper()
		if ok, why := dial(t, url).auth(k, url); ok != want {
			t.Fatalf("the login is accepted: %v (%s)", ok, why)
		}
	}
	login(own, true)
	for range maxUnlisted {
		login(newKey(t), true)
	}
	login(newKey(t), false)
	login(own, true)
}
