package solid

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// opened is a server with a public container d.
func opened(t testing.TB) *Server {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		".acl":   "@prefix acl: <http://www.w3.org/ns/auth/acl#>. <#e> a acl:Authorization; acl:agentClass <http://xmlns.com/foaf/0.1/Agent>; acl:mode acl:Read, acl:Write; acl:default <./>.",
		"d/gone": "", "d/kept": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(Config{Root: dir, BaseURL: "http://pods.test", Quota: -1, Notifications: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// What changes while a container is listed is not mistaken for what was there before.
func TestChangesWhileAContainerIsListed(t *testing.T) {
	s := opened(t)
	w := s.hub.watcher
	d := resource{names: []string{"d"}, container: true}
	c := w.hold(d)
	is := func(name, state, want string) {
		t.Helper()
		if got := w.change(d.in(name, false), state); got != want {
			t.Errorf("%s gets the state %q: %q, want %q", name, state, got, want)
		}
	}
	is("new", "1", "")
	is("gone", "", "") // its name is still there when the container is listed
	w.list(c)
	is("new", "1", "")
	is("new", "2", "Update")
	is("gone", "1", "Create")
	is("kept", "1", "Update")
	is("kept", "", "Delete")
	w.release(d)
}

// A container is listed for a subscription only in a place of heavy work, and meanwhile notices go on.
func TestSubscriptionsWaitForAPlace(t *testing.T) {
	s := opened(t)
	subscribe := func(ctx context.Context) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://pods.test"+channelPath, strings.NewReader(`{"type":"`+channelType+`","topic":"http://pods.test/d/"}`))
		r.RequestURI = channelPath
		r.Header.Set("Content-Type", "application/ld+json")
		answer := httptest.NewRecorder()
		s.ServeHTTP(answer, r)
		return answer
	}
	channels := func() int {
		s.hub.mu.Lock()
		defer s.hub.mu.Unlock()
		return len(s.hub.channels)
	}
	for range maxHeavy {
		s.heavy[0] <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan *httptest.ResponseRecorder)
	go func() { ended <- subscribe(ctx) }()
	for channels() == 0 && t.Context().Err() == nil {
		runtime.Gosched()
	}
	s.tell(resource{names: []string{"d", "kept"}}, "1")
	cancel()
	if answer := <-ended; answer.Code == http.StatusOK || channels() > 0 {
		t.Errorf("%d, %d channels: the subscription had no place", answer.Code, channels())
	}
	<-s.heavy[0]
	if answer := subscribe(t.Context()); answer.Code != http.StatusOK {
		t.Errorf("%d %s", answer.Code, answer.Body)
	}
}
