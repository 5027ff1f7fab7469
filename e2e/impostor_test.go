package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// taken is a request that another program than the pod server got.
type taken struct {
	r    *http.Request
	body string
}

// send sends the request again, to the host, with the Host header that it had.
func (q taken) send(host string) (int, string, error) {
	r, err := http.NewRequest(q.r.Method, "http://"+host+q.r.RequestURI, strings.NewReader(q.body))
	if err != nil {
		return 0, "", err
	}
	r.Host, r.Header = q.r.Host, q.r.Header
	if q.r.Trailer != nil {
		r.Trailer, r.ContentLength = q.r.Trailer, -1
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, string(body), err
}

// A program of the box has the port of the pods before the pod server does, and answers as one. It gets the requests of agentinit, and none
// of them is of use to it: neither the pod server nor the API takes one later. The box says that the server cannot listen.
func TestImpostorOfThePodServer(t *testing.T) {
	needsRoot(t)
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host := l.Addr().String()
	var mu sync.Mutex
	var got []taken
	solid := false
	impostor := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			got = append(got, taken{r, string(body)})
		}
		if solid {
			w.Header().Set("WAC-Allow", `user="read write append control",public=""`)
		}
		if r.Method == http.MethodPut {
			w.WriteHeader(http.StatusCreated)
		}
	})}
	go func() { _ = impostor.Serve(l) }() // until Close
	defer impostor.Close()

	b := bootWithPods(t, l.Addr().(*net.TCPAddr).Port)
	file := filepath.Join(t.TempDir(), "doc")
	if err := os.WriteFile(file, []byte(strings.Repeat("forged", 200_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	put := func() (string, int) { return b.ctl("pod", "put", "/x", file, "--type", "text/plain") }

	waitFor(t, "agentctl says that there is no pod server", func() bool {
		out, code := put()
		return code != 0 && strings.Contains(out, "agentctl adapters shows why")
	})
	if out, _ := b.ctl("adapters"); !strings.Contains(out, "no Solid server") {
		t.Errorf("agentctl adapters: %s", out)
	}
	waitFor(t, "the box says why", func() bool {
		out, _ := b.ctl("why", "solid-pod")
		return strings.Contains(out, "cannot listen") && strings.Contains(out, "address already in use")
	})
	mu.Lock()
	solid = true
	mu.Unlock()
	waitFor(t, "agentinit takes the impostor for the pod server", func() bool { _, code := put(); return code == 0 })
	b.mustCtl("pod", "rm", "/x")

	impostor.Close()
	waitFor(t, "the pod server has the port", func() bool {
		status, _, err := getBy(b.client(patience), l.Addr().(*net.TCPAddr).Port, "/health")
		return err == nil && status == 200
	})
	mu.Lock()
	defer mu.Unlock()
	methods := map[string]bool{}
	for _, q := range got {
		methods[q.r.Method] = true
		if status, body, err := q.send(host); err != nil || status != 401 {
			t.Errorf("%s %s again: %d %s %v", q.r.Method, q.r.RequestURI, status, body, err)
		}
		q.r.RequestURI = "/v1/programs"
		if status, body, err := q.send(fmt.Sprintf("127.0.0.1:%d", b.port)); err != nil || status < 400 {
			t.Errorf("%s to the API: %d %s %v", q.r.Method, status, body, err)
		}
	}
	if !methods["HEAD"] || !methods["PUT"] || !methods["DELETE"] {
		t.Errorf("the impostor got only %v", methods)
	}
	waitFor(t, "the slot is back", func() bool { _, code := b.ctl("pod", "ls", "/"); return code == 0 })
	if out, code := b.ctl("pod", "get", "/x"); code == 0 {
		t.Errorf("a request of the impostor was carried out: %d bytes", len(out))
	}
	if code := b.stop(); code != 0 {
		t.Errorf("the box ended with %d", code)
	}
}
