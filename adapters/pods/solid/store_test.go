package solid

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// What others send at once is bounded also before a quota counts it. Who owns the tree is not bound by it.
func TestUploadsInProgress(t *testing.T) {
	s := opened(t)
	put := func(path, body string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPut, "http://pods.test"+path, strings.NewReader(body))
		r.RequestURI = path
		r.Header.Set("Content-Type", "text/plain")
		answer := httptest.NewRecorder()
		s.ServeHTTP(answer, r)
		return answer.Code
	}
	s.uploads.Store(maxUploads - 3)
	for _, c := range []struct {
		path, body string
		want       int
	}{{"/d/x", "1234", 503}, {"/d/x", "123", 201}, {"/d/x", "456", 204}, {"/d/y", "1234", 503}, {"/d/y", "7", 201}} {
		if got := put(c.path, c.body); got != c.want {
			t.Errorf("%s gets %q: %d, want %d", c.path, c.body, got, c.want)
		}
		if got := s.uploads.Load(); got != maxUploads-3 {
			t.Errorf("%d bytes are counted after the upload", got-maxUploads+3)
		}
	}
	q := &request{s: s, owner: true}
	u, err := s.store.receive(q.metered(strings.NewReader("1234")), 10)
	if err != nil {
		t.Fatal(err)
	}
	u.drop()
}
