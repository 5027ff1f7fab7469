package solid

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/safeopen"
)

// answered is the status of the answer to a request of everyone.
func (s *Server) answered(t testing.TB, method, path, contentType, body string) int {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "http://pods.test"+path, strings.NewReader(body))
	r.RequestURI = path
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Code
}

// reopened is a server on the tree of another one, which has been killed.
func reopened(t *testing.T, killed *Server) *Server {
	t.Helper()
	if err := unix.Flock(int(killed.store.lock.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	s, err := New(killed.cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// A server that is killed while it deletes a document: the access list of the document does not hold for the next one of that name.
func TestKilledWhileItDeletes(t *testing.T) {
	s := opened(t)
	in := func(name string) string { return filepath.Join(s.cfg.Root, "d", name) }
	for _, name := range []string{"away", "stays"} {
		for path, contentType := range map[string]string{name: "text/plain", name + ".meta": "text/turtle"} {
			if got := s.answered(t, "PUT", "/d/"+path, contentType, ""); got != 201 {
				t.Fatalf("%s: %d", path, got)
			}
		}
		d, err := s.store.below(resource{names: []string{"d"}, container: true})
		if err != nil {
			t.Fatal(err)
		}
		s.store.note(d, resource{names: []string{"d", name}})
		d.Close()
	}
	if notes, err := s.store.private.Names(isNote, maxLeft); err != nil || len(notes) != 2 {
		t.Errorf("the notes are %q, %v", notes, err)
	}
	if err := os.Remove(in("away")); err != nil { // and no further
		t.Fatal(err)
	}
	s = reopened(t, s)
	for name, there := range map[string]bool{"away.meta": false, "stays": true, "stays.meta": true} {
		if _, err := os.Stat(in(name)); errors.Is(err, fs.ErrNotExist) == there {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := s.answered(t, "DELETE", "/d/stays", "", ""); got != 204 {
		t.Errorf("deletion: %d", got)
	}
	if left, err := os.ReadDir(filepath.Join(s.cfg.Root, privateDir)); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// What one start cannot finish, the next one does. A note that was not written to its end is no note.
func TestWhatCannotBeFinishedWaits(t *testing.T) {
	s := opened(t)
	in := func(name string) string { return filepath.Join(s.cfg.Root, name) }
	if err := errors.Join(
		os.WriteFile(in(privateDir+"/deleting-A"), []byte("/d/away"), 0o600),
		os.WriteFile(in(privateDir+"/deleting-B.tmp-C"), []byte("/d/sta"), 0o600), // of /d/stays
		os.WriteFile(in("d/sta.acl"), nil, 0o600),
		os.Mkdir(in("d/away.acl"), 0o700), // cannot be removed as a file
	); err != nil {
		t.Fatal(err)
	}
	left := func(want ...string) {
		t.Helper()
		s = reopened(t, s)
		names, err := s.store.private.Names(func(string) bool { return true }, maxLeft)
		if err != nil || !slices.Equal(names, want) {
			t.Errorf("left are %q, %v; want %q", names, err, want)
		}
	}
	left("deleting-A")
	if err := errors.Join(os.Remove(in("d/away.acl")), os.WriteFile(in("d/away.acl"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	left()
	for name, there := range map[string]bool{"d/away.acl": false, "d/sta.acl": true} {
		if _, err := os.Stat(in(name)); errors.Is(err, fs.ErrNotExist) == there {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Unfinished files are only in the private directory, from which the next start removes them.
func TestUnfinishedFilesArePrivate(t *testing.T) {
	s := opened(t)
	put := func(contentType string) {
		t.Helper()
		if got := s.answered(t, "PUT", "/d/x", contentType, ""); got >= 300 {
			t.Fatalf("put: %d", got)
		}
	}
	put("a/b")
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for _, dir := range []string{"d", "d/" + typesDir} {
		if _, err := unix.InotifyAddWatch(fd, filepath.Join(s.cfg.Root, dir), unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
			t.Fatal(err)
		}
	}
	put("c/d")
	buf := make([]byte, 4096)
	n, err := unix.Read(fd, buf)
	if err != nil {
		t.Fatal(err)
	}
	for rest := buf[:n]; len(rest) > 0; rest = rest[unix.SizeofInotifyEvent+binary.NativeEndian.Uint32(rest[12:]):] {
		if binary.NativeEndian.Uint32(rest[4:])&unix.IN_CREATE != 0 {
			t.Errorf("%s was made in the tree", rest[unix.SizeofInotifyEvent:][:binary.NativeEndian.Uint32(rest[12:])])
		}
	}
}

// The sum of a pod is the same whether the server keeps it or counts it.
func TestQuotaIsExact(t *testing.T) {
	s := opened(t)
	s.quotas.limit = 200_000
	roomy := "/pods/a/" + strings.Repeat("c/", 40)
	const open = `@prefix acl: <http://www.w3.org/ns/auth/acl#>. <#o> a acl:Authorization; acl:agentClass <http://xmlns.com/foaf/0.1/Agent>; acl:accessTo <x>, <./>; acl:default <./>; acl:mode acl:Read, acl:Write, acl:Control.`
	if err := os.WriteFile(filepath.Join(s.cfg.Root, ".acl"), []byte(open), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		method, path, contentType, body string
		want                            int
	}{
		{"PUT", "/pods/x", "text/plain", strings.Repeat("x", 10_000), 201},
		{"PUT", "/pods/a/b/x", "a/b", strings.Repeat("x", 10_000), 201},
		{"PUT", "/pods/a/b/x", "c/d", strings.Repeat("x", 20_000), 204},
		{"PUT", "/pods/a/b/x.acl", "text/turtle", open, 201},
		{"PUT", "/pods/a/b/x.meta", "text/turtle", strings.Repeat("# comment\n", 2000), 201},
		{"PUT", roomy + "x", "text/plain", "", 413},
		{"PUT", roomy, "", "", 413},
		{"GET", "/pods/a/c/", "", "", 404},
		{"PUT", "/pods/a/d/e/", "", "", 201},
		{"PUT", "/pods/a/d/e/.meta", "text/turtle", strings.Repeat("# comment\n", 2000), 201},
		{"PUT", "/pods/a/d/e/f/x/", "text/plain", "no body belongs here", 415},
		{"PUT", "/pods/a/b/x/below/y", "text/plain", "", 409},
		{"DELETE", "/pods/a/d/e/", "", "", 204},
		{"DELETE", "/pods/a/b/x", "", "", 204},
		{"DELETE", "/pods/x", "", "", 204},
	} {
		if got := s.answered(t, step.method, step.path, step.contentType, step.body); got != step.want {
			t.Errorf("%s %s: %d, want %d", step.method, step.path, got, step.want)
		}
		for path, u := range s.quotas.used {
			pod, err := parse(path)
			if err != nil {
				t.Fatal(err)
			}
			if sum, err := s.quotas.count(pod); err != nil || sum != u.bytes {
				t.Errorf("after %s %s, %s has %d, and the server reckons with %d: %v", step.method, step.path, path, sum, u.bytes, err)
			}
		}
	}
}

// On a full or read-only file system, a long answer stays in memory, within a limit.
func TestLongAnswersWithoutAFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	gone, err := safeopen.MakeDirectory(dir, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	if err := os.Remove(dir); err != nil { // no file can be made there
		t.Fatal(err)
	}
	s := &store{private: gone}
	long := strings.Repeat("0123456789", 10_000)
	answer := s.spool("the answer")
	for _, part := range []string{long, long[:5]} {
		if n, err := answer.Write([]byte(part)); err != nil || n != len(part) {
			t.Errorf("%d, %v", n, err)
		}
	}
	if got, err := io.ReadAll(answer.reader()); err != nil || string(got) != long+long[:5] {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	s.held.Add(maxHeld - 100_005)
	more := s.spool("the answer")
	if _, err := more.Write([]byte(long)); err == nil {
		t.Error("there is no limit")
	}
	more.close()
	answer.close()
	if got := s.held.Load(); got != maxHeld-100_005 {
		t.Errorf("%d bytes are still counted", got-maxHeld+100_005)
	}
}

// If the file system is full in the middle of an answer, the answer goes on in memory.
func TestLongAnswerWhoseFileIsFull(t *testing.T) {
	s := opened(t).store
	answer := s.spool("the answer")
	defer answer.close()
	long := strings.Repeat("x", maxShort)
	for _, part := range []string{long, "more", "and", "more"} {
		if answer.file != nil && part == "and" {
			read, err := os.Open("/proc/self/fd/" + strconv.Itoa(int(answer.file.Fd()))) // cannot be written
			if err != nil {
				t.Fatal(err)
			}
			answer.file.Close()
			answer.file = read
		}
		if _, err := answer.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := io.ReadAll(answer.reader()); err != nil || string(got) != long+"moreandmore" || answer.file != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// A server that cannot open an access list says so: it does not deny the access as if the list did.
func TestNoFileDescriptors(t *testing.T) {
	s := opened(t)
	if got := s.answered(t, "GET", "/d/kept", "", ""); got != 200 {
		t.Fatalf("before: %d", got)
	}
	var old unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: old.Max}, nil); err != nil {
		t.Fatal(err)
	}
	got := s.answered(t, "GET", "/d/kept", "", "")
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &old, nil); err != nil {
		t.Fatal(err)
	}
	if got != 503 {
		t.Errorf("without a file descriptor: %d", got)
	}
}
