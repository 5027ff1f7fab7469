package solid_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/dreamlab-ai/agentinit/adapters/pods/solid"
)

// What other programs put into the tree cannot lead out of it, hold up the server or be replaced.
func TestFilesThatAreNoDocuments(t *testing.T) {
	s := serve(t, nil)
	outside := filepath.Join(t.TempDir(), "secret")
	in := func(name string) string { return filepath.Join(s.dir, "d", name) }
	s.put("/d/real.txt", "text/plain", "real").is(201)
	if err := os.Mkdir(filepath.Join(s.dir, "pods"), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for what, err := range map[string]error{
		"outside":  os.WriteFile(outside, []byte("secret"), 0o600),
		"out":      os.Symlink(outside, in("out")),
		"up":       os.Symlink("../.acl", in("up")),
		"sibling":  os.Symlink("real.txt", in("sibling")),
		"dir":      os.Symlink("/", in("dir")),
		"fifo":     syscall.Mkfifo(in("fifo"), 0o600),
		"socket":   os.Rename(l.Addr().String(), in("socket")),
		"types":    os.Symlink(filepath.Dir(outside), in(".types")),
		"pod link": os.Symlink("../d", filepath.Join(s.dir, "pods", "npub1x")),
	} {
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	for _, name := range []string{"out", "up", "sibling", "dir", "fifo", "socket"} {
		s.do(owner, "GET", "/d/"+name, "").is(404)
		s.do(owner, "GET", "/d/"+name+"/", "").is(404)
		s.do(owner, "GET", "/d/"+name+"/etc/passwd", "").is(404)
		s.put("/d/"+name, "text/plain", "x").is(409)
		s.put("/d/"+name+"/x", "text/plain", "x").is(409)
		s.do(owner, "DELETE", "/d/"+name, "").is(404)
		s.do(owner, "DELETE", "/d/"+name+"/", "").is(404)
		if _, err := os.Lstat(in(name)); err != nil {
			t.Errorf("%s is gone: %v", name, err)
		}
	}
	s.do(owner, "GET", "/pods/npub1x/real.txt", "").is(404)
	if a := s.do(owner, "GET", "/d/", ""); strings.Count(a.body, "contains") != 1 || !strings.Contains(a.body, "/d/real") {
		t.Errorf("listing: %s", a.body)
	}
	s.do(owner, "PUT", "/d/typed", "x", "Content-Type", "application/x-own").is(500)
	if names, err := os.ReadDir(filepath.Dir(outside)); err != nil || len(names) != 1 {
		t.Errorf("outside: %v, %v", names, err)
	}
}

// An access list in the place of which is a FIFO denies, and does not hold up the server.
func TestAccessListThatIsNoFile(t *testing.T) {
	s := serve(t, nil)
	s.put("/d/x", "text/plain", "x").is(201)
	if err := syscall.Mkfifo(filepath.Join(s.dir, "d", ".acl"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.do(owner, "GET", "/d/x", "").is(403)
	s.do("", "GET", "/d/x", "").is(401)
}

// The type of a document whose name does not tell it is kept beside it. After a crash between the two, the inode tells which
// type holds.
func TestTypes(t *testing.T) {
	s := serve(t, nil)
	s.put("/d/plain.txt", "text/plain", "x").is(201)
	if _, err := os.Stat(filepath.Join(s.dir, "d", ".types")); err == nil {
		t.Error("a type is kept that the name tells")
	}
	s.put("/d/doc", "application/x-one; v=1", "1").is(201)
	s.do(owner, "GET", "/d/doc", "").is(200).has("Content-Type", "application/x-one; v=1")
	s.put("/d/doc", "application/x-two", "2").is(204)
	s.do(owner, "GET", "/d/doc", "").is(200).has("Content-Type", "application/x-two")
	lines, err := os.ReadFile(filepath.Join(s.dir, "d", ".types", "doc"))
	if err != nil || strings.Count(string(lines), "\n") != 2 {
		t.Fatalf("%q, %v", lines, err)
	}
	// The crash: the document that was to be replaced is still there.
	swapped := strings.Split(strings.TrimSpace(string(lines)), "\n")
	if err := os.WriteFile(filepath.Join(s.dir, "d", ".types", "doc"), []byte(swapped[1]+"\n"+swapped[0]+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.do(owner, "GET", "/d/doc", "").is(200).has("Content-Type", "application/x-two")
	// A copied tree has other inodes: the latest type holds.
	if err := os.WriteFile(filepath.Join(s.dir, "d", "copy"), []byte("2"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(s.dir, "d", ".types", "copy"), []byte("1 a/b\n2 c/d\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	s.do(owner, "GET", "/d/copy", "").is(200).has("Content-Type", "c/d")
	if err := os.WriteFile(filepath.Join(s.dir, "d", ".types", "copy"), []byte("1 a/b\r\nX: y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.do(owner, "GET", "/d/copy", "").is(200).has("Content-Type", "application/octet-stream")
	s.do(owner, "DELETE", "/d/doc", "").is(204)
	if _, err := os.Stat(filepath.Join(s.dir, "d", ".types", "doc")); err == nil {
		t.Error("the type of a deleted document stays")
	}
}

// A new server removes the temporary files of one that was killed, and works also where it cannot remove all of them at once.
func TestLeftovers(t *testing.T) {
	s := &served{t: t, dir: t.TempDir(), log: &lockedLog{}}
	private := filepath.Join(s.dir, ".pod-server")
	if err := os.MkdirAll(filepath.Join(private, "gone", "x"), 0o777); err != nil {
		t.Fatal(err)
	}
	for i := range 10_001 {
		if err := os.WriteFile(filepath.Join(private, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int{2, 0} {
		server, err := solid.New(solid.Config{Root: s.dir, BaseURL: "http://pods.test", Log: logger(s.log)})
		if err != nil {
			t.Fatal(err)
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(private); err != nil || len(left) != want {
			t.Errorf("left: %d, want %d, %v", len(left), want, err)
		}
	}
	if !strings.Contains(s.log.String(), "an earlier server has left") {
		t.Errorf("log: %s", s.log)
	}
	if info, err := os.Stat(private); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// A second server does not disturb the one that has the tree.
func TestTwoServers(t *testing.T) {
	s := serve(t, nil)
	inside := filepath.Join(s.dir, ".pod-server", "upload")
	if err := os.WriteFile(inside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	server, err := solid.New(solid.Config{Root: s.dir, BaseURL: "http://pods.test", Log: logger(s.log)})
	if err == nil {
		server.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "another server serves "+s.dir) {
		t.Errorf("the second server: %v", err)
	}
	if _, err := os.Stat(inside); err != nil {
		t.Error(err)
	}
}

// The directory for uploads is not one of another user.
func TestUploadsOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a directory of another user")
	}
	dir := t.TempDir()
	private := filepath.Join(dir, ".pod-server")
	open := func() error {
		server, err := solid.New(solid.Config{Root: dir, BaseURL: "http://pods.test", Log: logger(io.Discard)})
		if err == nil {
			err = server.Close()
		}
		return err
	}
	if err := errors.Join(os.Mkdir(private, 0o777), os.Chown(private, 4711, 4711)); err != nil {
		t.Fatal(err)
	}
	if err := open(); err == nil || !strings.Contains(err.Error(), "belongs to user 4711") {
		t.Errorf("opened: %v", err)
	}
	if err := errors.Join(os.Chown(dir, 4711, 4711), open()); err != nil {
		t.Errorf("the directory belongs to the owner of the tree: %v", err)
	}
}

// A body that is too large, or breaks off, leaves nothing behind.
func TestBodies(t *testing.T) {
	s := serve(t, func(c *solid.Config) { c.Quota = 100_000 })
	huge := s.do(owner, "PUT", "/x", "", "Content-Type", "a/b", "Expect", "100-continue")
	huge.is(201)
	send := func(body io.Reader, size int64) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "PUT", s.base+"/x", body)
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = size
		_ = webID(owner).Authorize(req, nil)
		req.Header.Set("Content-Type", "a/b")
		req.Header.Set("Expect", "100-continue")
		res, err := (&http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: time.Minute}).RoundTrip(req)
		if err != nil {
			return 0
		}
		res.Body.Close()
		return res.StatusCode
	}
	zeros := func(n int64) io.Reader { return io.LimitReader(zero{}, n) }
	for name, c := range map[string]struct {
		body io.Reader
		size int64
		want int
	}{
		"declared over the quota": {zeros(100_001), 100_001, 413},
		"chunked over the quota":  {zeros(100_001), -1, 413},
		"over 64 MiB":             {zeros(1), 64<<20 + 1, 413},
		"broken off":              {io.MultiReader(zeros(10), errReader{}), -1, 0},
	} {
		if got := send(c.body, c.size); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if a := s.do(owner, "GET", "/x", "").is(200); a.body != "" {
		t.Errorf("%d bytes are in the document", len(a.body))
	}
	waitUntil(t, func() bool {
		left, err := os.ReadDir(filepath.Join(s.dir, ".pod-server"))
		return err == nil && len(left) == 0
	})
	if got := send(zeros(90_000), -1); got != 204 {
		t.Errorf("what fits: %d", got)
	}
	s.put("/y", "a/b", strings.Repeat("y", 20_000)).is(413)
	s.do(owner, "DELETE", "/x", "").is(204)
	s.put("/y", "a/b", strings.Repeat("y", 20_000)).is(201)
}

type zero struct{}

func (zero) Read(b []byte) (int, error) { clear(b); return len(b), nil }

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("broken on purpose") }

// waitUntil returns when the condition holds; the test's deadline bounds it.
func waitUntil(t *testing.T, condition func() bool) {
	t.Helper()
	for !condition() {
		if t.Context().Err() != nil {
			t.Fatal("the condition does not become true")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestRateLimit(t *testing.T) {
	s := serve(t, func(c *solid.Config) { c.RatePerSecond = 5 })
	refused := 0
	for range 50 {
		switch a := s.do(stranger, "GET", "/x", ""); a.status {
		case 429:
			refused++
			a.has("Retry-After", "1")
		case 403:
		default:
			a.is(403)
		}
	}
	if refused == 0 {
		t.Error("50 requests on one connection passed")
	}
	for range 50 { // who has Control of the whole tree
		s.do(owner, "GET", "/x", "").is(404)
	}
}

// A key has no more requests on many connections. Those of others are not its own.
func TestRateLimitOfAKey(t *testing.T) {
	s := serve(t, func(c *solid.Config) { c.RatePerSecond = 1 })
	refused := 0
	for range 50 {
		transport.CloseIdleConnections() // the next request makes a new one
		if s.do(stranger, "GET", "/x", "").status == 429 {
			refused++
		}
	}
	if refused == 0 {
		t.Error("50 requests on 50 connections passed")
	}
	transport.CloseIdleConnections()
	s.do("https://other.test/#me", "GET", "/x", "").is(403)
}

// A page of another origin that gives its own name this address (DNS rebinding) gets nothing. CORS lets it ask openly.
func TestHostsAndOrigins(t *testing.T) {
	s := serve(t, func(c *solid.Config) { c.Aliases = []string{"http://other.test"} })
	s.do(owner, "GET", "/", "", "Host", "evil.test").is(421)
	s.do(owner, "GET", "/", "", "Host", "OTHER.test:80").is(200)
	s.do("", "GET", "/", "", "Origin", "https://app.test").is(401).has("Access-Control-Allow-Origin", "https://app.test")
	s.do("", "OPTIONS", "/", "", "Origin", "https://app.test", "Access-Control-Request-Method", "PUT").is(204).has("Access-Control-Allow-Methods", "PATCH")
	// An access list may name an address under any origin of the server.
	s.put("/x", "text/plain", "x").is(201)
	s.put("/x.acl", "text/turtle", rule("o", me, allModes, "acl:accessTo <http://other.test/x>")).is(201)
	s.do(owner, "GET", "/x", "").is(200)
}

// Connections that send nothing do not keep out a client.
func TestFloodOfConnections(t *testing.T) {
	s := serve(t, nil)
	var flood []net.Conn
	defer func() {
		for _, c := range flood {
			c.Close()
		}
	}()
	for range 400 {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("GET / HTTP/1.1\r\nHost:")); err != nil {
			t.Fatal(err)
		}
		flood = append(flood, c)
	}
	s.do(owner, "GET", "/", "").is(200)
}

// Each of many writes has an ETag of its own, and a reader sees one of the documents, never a mix of two.
func TestManyWrites(t *testing.T) {
	s := serve(t, nil)
	s.put("/x", "text/a", "a").is(201)
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			a := s.do(owner, "GET", "/x", "")
			if want := "text/" + a.body[:1]; a.header.Get("Content-Type") != want || strings.Trim(a.body, a.body[:1]) != "" {
				t.Errorf("a mix: %s %.10s", a.header.Get("Content-Type"), a.body)
				return
			}
		}
	})
	seen := map[string]bool{}
	for i := range 100 {
		letter := string("ab"[i%2])
		a := s.put("/x", "text/"+letter, strings.Repeat(letter, 1000)).is(204)
		if tag := a.header.Get("ETag"); seen[tag] {
			t.Errorf("write %d has the ETag of another one", i)
		} else {
			seen[tag] = true
		}
	}
	close(stop)
	reader.Wait()
}

// A container is deleted only if it is empty, also of what clients do not see.
func TestDeleteOfContainers(t *testing.T) {
	s := serve(t, nil)
	s.put("/d/x", "application/x-own", "x").is(201)
	s.do(owner, "DELETE", "/d/", "").is(409)
	s.do(owner, "DELETE", "/d/x", "").is(204)
	if err := os.WriteFile(filepath.Join(s.dir, "d", ".hidden"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.do(owner, "DELETE", "/d/", "").is(409)
	if err := os.Remove(filepath.Join(s.dir, "d", ".hidden")); err != nil {
		t.Fatal(err)
	}
	s.put("/d/.meta", "text/turtle", "").is(201)
	tag := s.do(owner, "GET", "/d/", "").header.Get("ETag")
	s.do(owner, "DELETE", "/d/", "", "If-Match", `"other"`).is(412)
	s.do(owner, "DELETE", "/d/", "", "If-Match", tag).is(204)
	s.do(owner, "GET", "/d/", "").is(404)
}

// subscribe asks for a channel and returns the answer.
func (s *served) subscribe(who webID, topic string) (a answer, receiveFrom string) {
	s.t.Helper()
	ask, err := json.Marshal(map[string]string{"type": "http://www.w3.org/ns/solid/notifications#WebSocketChannel2023", "topic": topic})
	if err != nil {
		s.t.Fatal(err)
	}
	a = s.do(who, "POST", "/.notifications/WebSocketChannel2023/", string(ask), "Content-Type", "application/ld+json")
	var got struct{ ReceiveFrom string }
	if a.status == 200 && json.Unmarshal([]byte(a.body), &got) != nil {
		s.t.Fatalf("answer %s", a.body)
	}
	return a, got.ReceiveFrom
}

// Only who may read the topic gets a channel, as long as that is so. The number of channels is bounded, and a client that reads
// nothing does not stop the others.
func TestChannels(t *testing.T) {
	s := serve(t, nil)
	s.put("/d/x", "text/plain", "0").is(201)
	for _, c := range []struct {
		who   webID
		topic string
		want  int
	}{
		{"", s.base + "/d/x", 401}, {stranger, s.base + "/d/x", 403}, {owner, s.base + "/none", 404},
		{owner, "http://evil.test/d/x", 400}, {owner, "/d/x", 400}, {owner, s.base + "/d/x?a", 400},
	} {
		a, _ := s.subscribe(c.who, c.topic)
		a.is(c.want)
	}
	s.do(owner, "POST", "/.notifications/WebSocketChannel2023/", "{}", "Content-Type", "application/ld+json").is(400)
	s.do(owner, "POST", "/.notifications/WebSocketChannel2023/", strings.Repeat(" ", 20_000), "Content-Type", "application/ld+json").is(413)
	s.do("", "GET", "/.notifications/WebSocketChannel2023/guess", "").is(404)

	s.put("/d/.acl", "text/turtle", rule("o", me, allModes, "acl:accessTo <./>; acl:default <./>")+rule("s", "acl:agent <"+stranger+">", "acl:Read", "acl:accessTo <./>; acl:default <./>")).is(201)
	_, at := s.subscribe(stranger, s.base+"/d/x")
	conn, _, err := websocket.Dial(t.Context(), at, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if _, _, err := websocket.Dial(t.Context(), at, nil); err == nil {
		t.Error("an address is good for two connections")
	}
	s.put("/d/x", "text/plain", "1").is(204)
	if _, text, err := conn.Read(t.Context()); err != nil || !bytes.Contains(text, []byte(`"Update"`)) {
		t.Fatalf("%s %v", text, err)
	}
	s.put("/d/.acl", "text/turtle", rule("o", me, allModes, "acl:accessTo <./>; acl:default <./>")).is(204)
	s.put("/d/x", "text/plain", "2").is(204) // the stranger does not learn of it
	s.put("/d/.acl", "text/turtle", rule("o", me, allModes, "acl:accessTo <./>; acl:default <./>")+rule("e", everyone, "acl:Read", "acl:accessTo <./>; acl:default <./>")).is(204)
	a := s.put("/d/x", "text/plain", "3").is(204)
	if _, text, err := conn.Read(t.Context()); err != nil || !bytes.Contains(text, []byte(strings.Trim(a.header.Get("ETag"), `"`))) {
		t.Errorf("%s %v, want the state %s", text, err, a.header.Get("ETag"))
	}
	for i := 0; ; i++ {
		if a, _ := s.subscribe(owner, s.base+"/d/x"); a.status == 503 {
			break
		} else if a.is(200); i > 100 {
			t.Fatal("there is no limit")
		}
	}
	for i := range 400 { // of which no channel is read
		s.put("/d/x", "text/plain", fmt.Sprint(i)).is(204)
	}
}

// Notices of an access list and of a description are for who may read them at that moment.
func TestChannelsOfAuxiliaries(t *testing.T) {
	s := serve(t, nil)
	s.put("/d/x", "text/plain", "0").is(201)
	s.put("/d/.acl", "text/turtle", rule("o", me, allModes, "acl:accessTo <./>; acl:default <./>")+rule("s", "acl:agent <"+stranger+">", "acl:Read, acl:Control", "acl:accessTo <./>; acl:default <./>")).is(201)
	s.put("/d/x.meta", "text/turtle", "").is(201)
	mine := rule("o", me, allModes, "acl:accessTo <x>")
	const by = "acl:agent <" + stranger + ">"
	s.put("/d/x.acl", "text/turtle", mine+rule("s", by, "acl:Read, acl:Control", "acl:accessTo <x>")).is(201)
	conns := map[string]*websocket.Conn{}
	for _, name := range []string{"/d/x.acl", "/d/x.meta"} {
		_, at := s.subscribe(stranger, s.base+name)
		conn, _, err := websocket.Dial(t.Context(), at, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.CloseNow()
		conns[name] = conn
	}
	next := func(name string, want answer) {
		t.Helper()
		_, text, err := conns[name].Read(t.Context())
		if state := strings.Trim(want.header.Get("ETag"), `"`); err != nil || !bytes.Contains(text, []byte(state)) {
			t.Errorf("%s: %s %v, want the state %s", name, text, err, state)
		}
	}
	s.put("/d/x.acl", "text/turtle", mine+rule("s", by, "acl:Read", "acl:accessTo <x>")).is(204) // the list itself is not to be read any more
	next("/d/x.meta", s.put("/d/x.meta", "text/turtle", "<> <#a> 1 .").is(204))
	s.put("/d/x.acl", "text/turtle", mine).is(204)
	s.put("/d/x.meta", "text/turtle", "<> <#a> 2 .").is(204)
	next("/d/x.acl", s.put("/d/x.acl", "text/turtle", mine+rule("s", by, "acl:Read, acl:Control", "acl:accessTo <x>")).is(204))
	next("/d/x.meta", s.put("/d/x.meta", "text/turtle", "<> <#a> 3 .").is(204))
}

// What another program does in the tree is told too, once; what it has not finished is not.
func TestChangesByOthers(t *testing.T) {
	s := serve(t, nil)
	s.put("/d/old", "text/plain", "0").is(201)
	follow := func(topic string) func() (kind, object string) {
		t.Helper()
		_, at := s.subscribe(owner, s.base+topic)
		conn, _, err := websocket.Dial(t.Context(), at, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.CloseNow() })
		return func() (kind, object string) {
			t.Helper()
			_, text, err := conn.Read(t.Context())
			var got struct{ Type, Object string }
			if err != nil || json.Unmarshal(text, &got) != nil {
				t.Fatalf("%s %v", text, err)
			}
			return got.Type, strings.TrimPrefix(got.Object, s.base)
		}
	}
	box, doc := follow("/d/"), follow("/d/old")
	want := func(next func() (string, string), kind, object string) {
		t.Helper()
		if k, o := next(); k != kind || o != object {
			t.Errorf("%s %s, want %s %s", k, o, kind, object)
		}
	}
	in := func(name string) string { return filepath.Join(s.dir, "d", name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(in("new.tmp-1"), []byte("1"), 0o600))
	must(os.Rename(in("new.tmp-1"), in("new")))
	want(box, "Add", "/d/new")
	must(os.Mkdir(in("sub"), 0o700))
	want(box, "Add", "/d/sub/")
	must(os.WriteFile(in("x.tmp-1"), []byte("1"), 0o600))
	must(os.Rename(in("x.tmp-1"), in("old")))
	want(doc, "Update", "/d/old")
	s.put("/d/by-us", "text/plain", "1").is(201)
	want(box, "Add", "/d/by-us")
	s.put("/d/old", "text/plain", "2").is(204)
	want(doc, "Update", "/d/old")
	must(os.Remove(in("sub")))
	want(box, "Remove", "/d/sub/")
	must(os.Remove(in("old")))
	want(doc, "Delete", "/d/old")
	want(box, "Remove", "/d/old")
}

// The server stops while clients are connected.
func TestStop(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &served{t: t, base: "http://" + l.Addr().String(), log: &lockedLog{}}
	server, err := solid.New(solid.Config{Root: t.TempDir(), BaseURL: s.base, Identify: identify, Log: logger(s.log)})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	s.do("", "GET", "/health", "").is(200)
	idle, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := io.ReadAll(idle); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
}

// A base URL with a path, or a root that is no directory, is an error.
func TestConfigurations(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]solid.Config{
		"path": {Root: t.TempDir(), BaseURL: "http://a/b"}, "no host": {Root: t.TempDir(), BaseURL: "x"}, "file": {Root: file, BaseURL: "http://a"},
	} {
		if s, err := solid.New(c); err == nil {
			t.Errorf("%s: no error", name)
			s.Close()
		}
	}
}

// Clients that do not read what they ask for do not keep out the owner of the tree.
func TestSlowReaders(t *testing.T) {
	s := serve(t, nil)
	s.put("/big", "text/plain", strings.Repeat("x", 32<<20)).is(201)
	s.put("/big.acl", "text/turtle", rule("o", me, allModes, "acl:accessTo </big>")+rule("e", everyone, "acl:Read", "acl:accessTo </big>")).is(201)
	full := false
	for i := 0; i < 200 && !full; i++ {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /big HTTP/1.1\r\nHost: "+strings.TrimPrefix(s.base, "http://")+"\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		status := make([]byte, len("HTTP/1.1 200"))
		if _, err := io.ReadFull(c, status); err != nil {
			t.Fatal(err)
		}
		full = string(status) == "HTTP/1.1 503"
	}
	if !full {
		t.Error("200 clients that do not read are at work")
	}
	s.do("", "GET", "/big", "").is(503)
	s.do("", "GET", "/health", "").is(200)
	s.do(owner, "GET", "/", "").is(200)
}

// The ETags of a request are compared with one state of the container, which is not listed for each of them.
func TestManyETags(t *testing.T) {
	s := serve(t, nil)
	s.do(owner, "PUT", "/empty/", "").is(201)
	tag := s.do(owner, "GET", "/empty/", "").header.Get("ETag")
	for i := range 50 {
		s.put(fmt.Sprintf("/full/%d", i), "text/plain", "x").is(201)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	many := strings.Repeat(`"a",`, 500)
	s.do(owner, "DELETE", "/full/", "", "If-Match", many).is(409)
	s.do(owner, "PUT", "/full/", "", "If-Match", many).is(412)
	s.do(owner, "PUT", "/full/", "", "If-None-Match", many).is(409)
	s.do(owner, "PUT", "/full/", "", "If-None-Match", "*").is(412)
	s.do(owner, "DELETE", "/empty/", "", "If-Match", many).is(412)
	s.do(owner, "DELETE", "/empty/", "", "If-Match", many+tag).is(204)
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 10<<20 {
		t.Errorf("six requests allocate %d bytes", used)
	}
}

// slowly is a request without the end of its body.
type slowly struct {
	body *io.PipeWriter
	done chan int
}

// slowly sends a request and the first byte of its body.
func (s *served) slowly(who webID, method, path string) slowly {
	s.t.Helper()
	body, w := io.Pipe()
	one := slowly{w, make(chan int, 1)}
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.base+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	_ = who.Authorize(req, nil)
	req.Header.Set("Content-Type", "a/b")
	go func() {
		res, err := transport.RoundTrip(req)
		if err != nil {
			one.done <- 0
			return
		}
		res.Body.Close()
		one.done <- res.StatusCode
	}()
	if _, err := io.WriteString(w, "x"); err != nil {
		s.t.Fatal(err)
	}
	return one
}

// finish ends the body, and returns the status of the answer.
func (one slowly) finish() int {
	one.body.Close()
	return <-one.done
}

// Many writes of one document at once do not make room for each other: each takes the place of what is there then.
func TestQuotaOfWritesAtOnce(t *testing.T) {
	s := serve(t, func(c *solid.Config) { c.Quota = 500_000 })
	s.put("/x", "a/b", strings.Repeat("x", 100_000)).is(201)
	var all []slowly
	for range 20 {
		all = append(all, s.slowly(owner, "PUT", "/x"))
	}
	waitUntil(t, func() bool { // all of them have seen the large document
		bodies, err := os.ReadDir(filepath.Join(s.dir, ".pod-server"))
		return err == nil && len(bodies) == len(all)
	})
	for _, one := range all {
		if got := one.finish(); got != 204 {
			t.Errorf("a short one: %d", got)
		}
	}
	stored := 0
	for i := range 10 {
		if s.put(fmt.Sprintf("/y%d", i), "a/b", strings.Repeat("y", 90_000)).status == 201 {
			stored += 90_000
		}
	}
	if stored > 500_000 {
		t.Errorf("%d bytes are stored", stored)
	}
}

// Empty documents and containers count too: the quota bounds how many there are.
func TestQuotaOfEntries(t *testing.T) {
	s := serve(t, func(c *solid.Config) { c.Quota = 100_000 })
	deep := "/" + strings.Repeat("d/", 15)
	s.do(owner, "PUT", deep, "").is(201)
	made := 0
	for made < 100 && s.put(fmt.Sprintf("/x%d", made), "application/octet-stream", "").status == 201 {
		made++
	}
	if made < 2 || made > 9 { // with .acl and 15 containers
		t.Errorf("there is room for %d empty documents", made)
	}
	s.do(owner, "PUT", "/new/", "").is(413)
	s.do(owner, "POST", "/", "", "Link", `<http://www.w3.org/ns/ldp#BasicContainer>; rel="type"`).is(413)
	s.do(owner, "DELETE", "/x0", "").is(204)
	s.do(owner, "PUT", "/new/", "").is(201)
	s.do(owner, "DELETE", "/new/", "").is(204)
	s.put("/x0", "application/octet-stream", "").is(201)
	s.put("/x0", "application/octet-stream", strings.Repeat("x", 4096)).is(204)
	s.put("/x0", "application/octet-stream", strings.Repeat("x", 40_000)).is(413)
}

// A listing has a limit, and one that a client does not read takes no memory.
func TestLargeListings(t *testing.T) {
	s := serve(t, nil)
	if err := os.Mkdir(filepath.Join(s.dir, "many"), 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 9_000 {
		if err := os.WriteFile(filepath.Join(s.dir, "many", fmt.Sprintf("%0200d", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := s.do(owner, "GET", "/many/", "", "Accept", "application/n-triples").is(413)
	if !strings.Contains(a.body, "the listing has more than 16777216 bytes") {
		t.Errorf("the answer is %s", a.body)
	}
	tag := s.do(owner, "HEAD", "/many/", "").is(200).header.Get("ETag")
	if a := s.do(owner, "GET", "/many/", "").is(200).has("ETag", tag); strings.Count(a.body, "a ldp:Resource") < 9_000 {
		t.Errorf("%d bytes", len(a.body))
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for range 5 {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /many/ HTTP/1.1\r\nAuthorization: WebID "+owner+"\r\nHost: "+strings.TrimPrefix(s.base, "http://")+"\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		status := make([]byte, len("HTTP/1.1 200"))
		if _, err := io.ReadFull(c, status); err != nil || string(status) != "HTTP/1.1 200" {
			t.Fatalf("%s, %v", status, err)
		}
	}
	if after := heap(); after > before+10<<20 {
		t.Errorf("five clients that do not read take %d bytes", after-before)
	}
	if left, err := os.ReadDir(filepath.Join(s.dir, ".pod-server")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// The work of a JSON Patch has a limit: each operation may move the whole document, and so may each step of a path.
func TestWorkOfJSONPatches(t *testing.T) {
	s := serve(t, nil)
	patch := func(path string, operations ...string) answer {
		return s.do(owner, "PATCH", path, "["+strings.Join(operations, ",")+"]", "Content-Type", "application/json-patch+json")
	}
	times := func(n int) []string { return slices.Repeat([]string{`{"op":"add","path":"/0","value":0}`}, n) }
	s.put("/small.json", "application/json", "[0]").is(201)
	patch("/small.json", times(1000)...).is(204)
	patch("/small.json", times(1001)...).is(413)
	copies := slices.Repeat([]string{`{"op":"copy","from":"","path":"/0"}`}, 20)
	patch("/small.json", append(copies, times(100)...)...).is(413)
	zeros := "[" + strings.Repeat("0,", 250_000) + "0]"
	s.put("/large.json", "application/json", zeros).is(201)
	patch("/large.json", times(20)...).is(204)
	patch("/large.json", times(1000)...).is(413)
	s.put("/deep.json", "application/json", strings.Repeat("[", 1000)+zeros+strings.Repeat("]", 1000)).is(201)
	patch("/deep.json", `{"op":"add","path":"`+strings.Repeat("/0", 1001)+`","value":0}`).is(413)
	patch("/deep.json", `{"op":"copy","path":"/0","from":"`+strings.Repeat("/0", 1001)+`"}`).is(413)
	if a := s.do(owner, "GET", "/large.json", ""); len(a.body) != len(zeros)+40 {
		t.Errorf("%d bytes", len(a.body))
	}
}

// Patches of one document do not make each other fail, however many there are.
func TestManyPatchesOfOneDocument(t *testing.T) {
	s := serve(t, nil)
	const clients, each = 16, 25
	s.put("/one.json", "application/json", "[]").is(201)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for range each {
				s.do(owner, "PATCH", "/one.json", `[{"op":"add","path":"/-","value":0}]`, "Content-Type", "application/json-patch+json").is(204)
			}
		})
	}
	all.Wait()
	if got := strings.Count(s.do(owner, "GET", "/one.json", "").body, "0"); got != clients*each {
		t.Errorf("%d of %d patches are in the document", got, clients*each)
	}
}

// Who loses a right while a body is on its way cannot use it any more. A member is not made in a container that is gone.
func TestRightsThatAreTakenAway(t *testing.T) {
	s := serve(t, nil)
	list := func(extra string) {
		t.Helper()
		for _, of := range []string{"/d/", "/gone/"} {
			if a := s.put(of+".acl", "text/turtle", rule("o", me, allModes, "acl:accessTo <./>; acl:default <./>")+extra); a.status >= 300 {
				a.is(204)
			}
		}
	}
	guest := rule("g", "acl:agent <"+stranger+">", "acl:Read, acl:Write", "acl:accessTo <./>; acl:default <./>")
	s.put("/d/x", "text/plain", "old").is(201)
	list(guest)
	requests := map[string]slowly{
		"replace": s.slowly(stranger, "PUT", "/d/x"), "make": s.slowly(stranger, "PUT", "/d/new"),
		"make below": s.slowly(stranger, "PUT", "/d/c/new"), "add": s.slowly(stranger, "POST", "/d/"),
		"add to what is gone": s.slowly(stranger, "POST", "/gone/"), "of the owner": s.slowly(owner, "PUT", "/d/y"),
		"of the owner, to what is gone": s.slowly(owner, "POST", "/gone/"),
	}
	waitUntil(t, func() bool {
		bodies, err := os.ReadDir(filepath.Join(s.dir, ".pod-server"))
		return err == nil && len(bodies) == len(requests)
	})
	list("")
	s.do(owner, "DELETE", "/gone/", "").is(204)
	for name, r := range requests {
		want := map[string]int{"of the owner": 201, "of the owner, to what is gone": 404}[name]
		if want == 0 {
			want = 403
		}
		if got := r.finish(); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
	if a := s.do(owner, "GET", "/d/x", "").is(200); a.body != "old" {
		t.Errorf("/d/x is %q", a.body)
	}
	s.do(owner, "GET", "/gone/", "").is(404)
	s.do(owner, "GET", "/d/c/", "").is(404)
}

const readByAll = "acl:accessTo <./>; acl:default <./>"

// Clients do not fill the log. A fault of the server is in it, once.
func TestLog(t *testing.T) {
	s := serve(t, nil)
	s.put("/x.txt", "text/plain", "x").is(201)
	for range 50 {
		s.subscribe(owner, s.base+"/x.txt")
	}
	if text := s.log.String(); strings.Contains(text, "cannot answer") {
		t.Errorf("log: %s", text)
	}
	if err := os.Symlink("/", filepath.Join(s.dir, ".types")); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		s.do(owner, "PUT", fmt.Sprintf("/typed-%d", i), "x", "Content-Type", "application/x-own").is(500)
	}
	if text := s.log.String(); strings.Count(text, "cannot answer") != 1 || !strings.Contains(text, "/typed-0") {
		t.Errorf("log: %s", text)
	}
}

// Channels of others do not keep out who owns the tree, nor those of one agent all others.
func TestChannelsOfOthers(t *testing.T) {
	s := serve(t, nil)
	s.put("/p/x", "text/plain", "x").is(201)
	s.put("/p/.acl", "text/turtle", rule("o", me, allModes, readByAll)+rule("e", everyone, "acl:Read", readByAll)).is(201)
	fill := func(who webID) (n int) {
		for ; n <= 100; n++ {
			if a, _ := s.subscribe(who, s.base+"/p/x"); a.status != 200 {
				a.is(503)
				break
			}
		}
		return n
	}
	for _, c := range []struct {
		who  webID
		want int
	}{{"", 16}, {stranger, 16}, {"https://third.test/#me", 0}, {owner, 32}} {
		if got := fill(c.who); got != c.want {
			t.Errorf("%q has %d channels, want %d", c.who, got, c.want)
		}
	}
}

// Subscriptions whose bodies do not come keep out no other request, nor other subscriptions.
func TestSlowSubscriptions(t *testing.T) {
	s := serve(t, nil)
	s.put("/x", "text/plain", "x").is(201)
	s.put("/p/x", "text/plain", "x").is(201)
	s.put("/p/.acl", "text/turtle", rule("o", me, allModes, readByAll)+rule("e", everyone, "acl:Read", readByAll)).is(201)
	host := strings.TrimPrefix(s.base, "http://")
	var slow []net.Conn
	for range 70 {
		c, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "POST /.notifications/WebSocketChannel2023/ HTTP/1.1\r\nHost: "+host+
			"\r\nContent-Type: application/ld+json\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if status := statusLine(t, c); status != "HTTP/1.1 100 Continue" { // the server waits for the body
			t.Fatal(status)
		}
		slow = append(slow, c)
	}
	for _, c := range slow[:70-16] {
		if status := statusLine(t, c); status != "HTTP/1.1 408 Request Timeout" {
			t.Errorf("one of the oldest: %s", status)
		}
	}
	s.do(stranger, "GET", "/x", "").is(403)
	s.do("", "GET", "/x", "").is(401)
	for _, who := range []webID{owner, stranger, ""} {
		a, _ := s.subscribe(who, s.base+"/p/x")
		a.is(200)
	}
}

// statusLine reads the next line that is one.
func statusLine(t *testing.T, c net.Conn) string {
	t.Helper()
	var line []byte
	for one := make([]byte, 1); ; line = append(line, one...) {
		if _, err := io.ReadFull(c, one); err != nil {
			t.Fatal(err)
		}
		if text := strings.TrimSpace(string(line)); one[0] == '\n' && text != "" {
			return text
		}
	}
}
