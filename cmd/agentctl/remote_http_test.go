package main

import (
	"archive/tar"
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
)

// With --url, a command asks the box at that address and never the box of the socket. A command that
// only the socket can answer is refused: it would show or change the wrong box.
func TestTheBoxOfTheURL(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large.tar")
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, maxInput+2); err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 1)
	var received int64
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		received, _ = io.Copy(io.Discard, r.Body)
		asked <- r.Method + " " + r.URL.Path
		if r.URL.Path == "/v1/backup" {
			archive := tar.NewWriter(w)
			defer archive.Close()
			archive.WriteHeader(&tar.Header{Name: "backup.json", Size: 2, Mode: 0o600})
			io.WriteString(archive, "{}")
			archive.WriteHeader(&tar.Header{Name: "tasks/", Typeflag: tar.TypeDir, Mode: 0o700})
			return
		}
		io.WriteString(w, "{}")
	}))
	defer far.Close()
	cfg := controltest.New().Own()
	cfg.Adapters = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- "the box of the socket" })
	socket := controltest.Serve(t, cfg)
	none := func(string) (string, bool) { return "", false }
	for _, c := range []struct {
		args []string
		want int
		asks string
		says string
	}{
		{[]string{"bead", "export"}, exitOK, "GET /v1/beads/export", ""},
		{[]string{"pod", "get", "/a"}, exitOK, "GET /pods/a", ""},
		{[]string{"backup", "-"}, exitOK, "GET /v1/backup", "the backup holds no files; keys and identities need --include-secrets\n"},
		{[]string{"backup", "--include-secrets", "-"}, exitOK, "GET /v1/backup", "the backup holds no files\n"},
		{[]string{"restore", large}, exitOK, "POST /v1/restore", ""},
		{[]string{"mem", "get", "k"}, exitOK, "GET /v1/memory/default/k", ""},
		{[]string{"shutdown"}, exitUsage, "", "agentctl shutdown does not work with --url"},
		{[]string{"status"}, exitUsage, "", "agentctl status does not work with --url"},
		{[]string{"bridge"}, exitUsage, "", "agentctl bridge does not work with --url"},
		{[]string{"help", "bead"}, exitOK, "", ""},
	} {
		var stdout, stderr bytes.Buffer
		args := append([]string{"--socket", socket, "--url", far.URL}, c.args...)
		code := run(t.Context(), args, none, strings.NewReader(""), &stdout, &stderr)
		asks := ""
		select {
		case asks = <-asked:
		default:
		}
		if code != c.want || asks != c.asks || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%q: status %d, asked %q, stderr %q", c.args, code, asks, &stderr)
		}
		if strings.HasPrefix(asks, "POST") && received != maxInput+2 {
			t.Errorf("%q: the box received %d bytes of %d", c.args, received, maxInput+2)
		}
	}
}

// A request that cannot be sent has the exit status of its reason.
func TestStatusOfAURL(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	shut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		io.WriteString(w, `{"code":"UNAUTHENTICATED","detail":"no credential was given"}`)
	}))
	defer shut.Close()
	env := func(key string) (string, bool) { return "no nsec", key == envNsec }
	for _, c := range []struct {
		args []string
		want int
		says string
	}{
		{[]string{"--url", gone.URL, "mem", "ls"}, exitUnreachable, "cannot reach the box at " + gone.URL},
		{[]string{"--url", gone.URL, "pod", "get", "/a"}, exitUnreachable, "cannot reach the box at " + gone.URL},
		{[]string{"--url", gone.URL, "event", "tail"}, exitUnreachable, "cannot reach the box at " + gone.URL},
		{[]string{"--url", "127.0.0.1:9090", "mem", "ls"}, exitUsage, "write it as in http://127.0.0.1:9090"},
		{[]string{"--url", "ftp://127.0.0.1", "mem", "ls"}, exitUsage, "write it as in http://127.0.0.1:9090"},
		{[]string{"--url", gone.URL, "pod", "get", "/x/../y"}, exitUsage, "a path must not have \"..\" in it"},
		{[]string{"pod", "get", "/./y"}, exitUsage, "a path must not have \".\" in it"},
		{[]string{"--url", shut.URL, "mem", "ls"}, exitFailure, "put the management key into the variable MANAGEMENT_API_KEY"},
		{[]string{"--url", gone.URL, "--nostr", "-", "mem", "ls"}, exitUsage, "NOSTR_NSEC holds no nsec"},
		{[]string{"--nostr", "-", "mem", "ls"}, exitUsage, "--nostr signs requests to --url"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), c.args, env, strings.NewReader(""), &stdout, &stderr); code != c.want || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%q: status %d, want %d, stderr %q", c.args, code, c.want, &stderr)
		}
	}
}

// A name is one segment of the path, whatever it holds.
func TestNamesInPaths(t *testing.T) {
	var path string
	box := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path = r.RequestURI
		io.WriteString(w, "{}")
	}))
	defer box.Close()
	none := func(string) (string, bool) { return "", false }
	for _, c := range []struct {
		args []string
		want int
		path string
	}{
		{[]string{"mem", "get", "."}, exitOK, "/v1/memory/default/%2E"},
		{[]string{"mem", "get", "-n", "..", "a/../b"}, exitOK, "/v1/memory/%2E%2E/a%2F..%2Fb"},
		{[]string{"bead", "show", ".."}, exitOK, "/v1/beads/%2E%2E"},
		{[]string{"agent", "kill", "."}, exitOK, "/v1/agents/%2E"},
		{[]string{"mem", "store", "", "v"}, exitUsage, ""},
		{[]string{"mem", "ls", "-n", ""}, exitUsage, ""},
		{[]string{"bead", "claim", ""}, exitUsage, ""},
		{[]string{"agent", "kill", ""}, exitUsage, ""},
		{[]string{"agent", "logs", ""}, exitUsage, ""},
	} {
		path = ""
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), append([]string{"--url", box.URL}, c.args...), none, strings.NewReader(""), &stdout, &stderr)
		if code != c.want || path != c.path || code == exitUsage && !strings.Contains(stderr.String(), "is empty") {
			t.Errorf("%q: status %d, path %q, stderr %q", c.args, code, path, &stderr)
		}
	}
}

// silent takes requests and answers none, but /livez for as long as it lives.
type silent struct{ lives time.Time }

func (s silent) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == "/livez" && time.Now().Before(s.lives) {
		return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: http.NoBody, Request: r}, nil
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// With --url, a command waits for an answer as over the socket: for any time while the box answers others,
// and for seconds if it answers none.
func TestABoxThatAnswersNothing(t *testing.T) {
	for lives, want := range map[time.Duration]time.Duration{0: 15 * time.Second, time.Hour + time.Second: time.Hour + 15*time.Second} {
		synctest.Test(t, func(t *testing.T) {
			var stderr strings.Builder
			began := time.Now()
			c := &cli{lookupEnv: func(string) (string, bool) { return "", false }, stderr: &stderr, transport: silent{began.Add(lives)}}
			code := c.run(t.Context(), []string{"--url", "http://far:9090", "adapters"}, io.Discard)
			if code != exitUnreachable || !strings.HasPrefix(stderr.String(), "agentctl: cannot reach the box at http://far:9090: no answer within 15s: ") {
				t.Errorf("%d %s", code, &stderr)
			}
			if took := time.Since(began); took != want {
				t.Errorf("it took %v and not %v", took, want)
			}
		})
	}
}
