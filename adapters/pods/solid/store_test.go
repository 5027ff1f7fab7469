package solid

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"
)

// A request that changes names waits for the disk. Reads are answered meanwhile.
func TestReadsDoNotWaitForWrites(t *testing.T) {
	s := opened(t)
	read := func(while string) {
		t.Helper()
		if !s.store.mu.TryRLock() { // a read would wait for ever
			t.Errorf("%s, reads wait", while)
			return
		}
		s.store.mu.RUnlock()
		for _, path := range []string{"/d/kept", "/d/"} {
			if got := s.answered(t, http.MethodGet, path, "", ""); got != http.StatusOK {
				t.Errorf("%s, GET of %s: %d", while, path, got)
			}
		}
	}
	s.store.writing.Lock()
	read("while a write waits for the disk")
	s.store.writing.Unlock()
	u, err := s.store.receive(strings.NewReader("<#a> <#b> <#c>."), 100)
	if err != nil {
		t.Fatal(err)
	}
	defer u.drop()
	at := root().in("new", true).in("document", false)
	if _, _, _, err := s.store.put(at, u, "text/turtle", func(*document, []resource) error { read("in a write"); return nil }); err != nil {
		t.Error(err)
	}
	if _, err := s.store.create(root().in("made", true), func(*document, []resource) error { read("while a container is made"); return nil }); err != nil {
		t.Error(err)
	}
	for _, r := range []resource{at, root().in("made", true)} {
		if err := s.store.remove(r, func(*document) error { read("in a deletion"); return nil }, func(resource, int64) { read("after a deletion") }); err != nil {
			t.Error(err)
		}
	}
}

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

// live measures the memory in use when an answer has more bytes than after.
type live struct {
	written, after int
	heap           uint64
}

func (l *live) Write(b []byte) (int, error) {
	if l.written += len(b); l.written > l.after && l.heap == 0 {
		l.heap = heapNow()
	}
	return len(b), nil
}

func heapNow() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A listing is not in memory as a whole: several of a large container at once would take a gigabyte.
func TestMemoryOfAListing(t *testing.T) {
	s := opened(t)
	members := make([]member, 20_000)
	for i := range members {
		members[i] = member{resource: root().in("many", true).in(fmt.Sprint(i), false), document: document{contentType: "text/plain", modified: time.Unix(int64(i), 0)}}
	}
	for _, as := range rdfTypes {
		out := &live{after: math.MaxInt}
		if err := write(out, as, s.listing(root(), members), "the listing"); err != nil {
			t.Fatal(err)
		}
		before := heapNow()
		out = &live{after: out.written * 9 / 10}
		if err := write(out, as, s.listing(root(), members), "the listing"); err != nil {
			t.Fatal(err)
		}
		if perMember := (int64(out.heap) - int64(before)) / int64(len(members)); perMember > 100 {
			t.Errorf("as %s, each member takes %d bytes", as, perMember)
		}
	}
	runtime.KeepAlive(members)
}
