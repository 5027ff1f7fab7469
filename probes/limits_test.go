package probes

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/pipenet"
	"github.com/dreamlab-ai/agentinit/internal/problem"
)

// served is the management listener of a rig over pipes; the returned function
// opens a connection. Within a bubble of synctest.
func served(t *testing.T, r *rig) func() net.Conn {
	t.Helper()
	p := pipenet.Listen()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.server.serve(ctx, &listener{name: "management", handler: r.server.public()}, newBoundedListener(p, maxConnections))
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return func() net.Conn {
		c, err := p.DialContext(ctx, "", "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
}

// ended waits for the end of the connection and returns what came before it.
func ended(t *testing.T, c net.Conn) string {
	t.Helper()
	all, err := io.ReadAll(c)
	if err != nil && !errors.Is(err, io.ErrClosedPipe) {
		t.Fatal(err)
	}
	return string(all)
}

func TestConnectionsHaveTimeouts(t *testing.T) {
	for name, c := range map[string]struct {
		sent  string
		after time.Duration
		says  string // what the answer, if any, begins with
	}{
		"nothing at all":       {"", readHeaderTimeout, ""},
		"half a header":        {"GET /livez HTTP/1.1\r\nHo", readHeaderTimeout, "HTTP/1.1 400"},
		"half a body":          {"POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf", readTimeout, "HTTP/1.1 400"},
		"a request, then idle": {"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", idleTimeout, "HTTP/1.1 200"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, AuthBearer)
				r.server.Mount("/body", http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
					if _, err := io.Copy(io.Discard, q.Body); err != nil {
						w.Header().Set("Connection", "close")
						fail(w, http.StatusBadRequest, problem.Validation, err.Error())
					}
				}), Open())
				conn := served(t, r)()
				begin := time.Now()
				fmt.Fprint(conn, c.sent)
				said := ended(t, conn)
				// An answer that closes lets the peer read it for half a second.
				if took := time.Since(begin); took < c.after || took > c.after+time.Second || !strings.HasPrefix(said, c.says) || c.says == "" && said != "" {
					t.Errorf("ended after %s, want %s: %q", took, c.after, said)
				}
			})
		})
	}
}

// An answer that nobody takes does not hold its handler.
func TestAnswersHaveATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, AuthBearer)
		failed := make(chan time.Duration, 1)
		r.server.Mount("/flood", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			begin := time.Now()
			for {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					failed <- time.Since(begin)
					return
				}
			}
		}), Open())
		fmt.Fprint(served(t, r)(), "GET /flood HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if took := <-failed; took != writeTimeout {
			t.Errorf("cut off after %s", took)
		}
	})
}

// The request line and the header together are bounded to the byte.
func TestHeadersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := served(t, newRig(t, AuthBearer))
		for n, status := range map[int]string{
			maxHeaderBytes - 1: "200", maxHeaderBytes: "200", maxHeaderBytes + 1: "431", 4 * maxHeaderBytes: "431",
		} {
			conn := open()
			const frame = "GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: %s\r\n\r\n"
			text := fmt.Sprintf(frame, strings.Repeat("x", n-len(frame)+len("%s")))
			// The other end stops reading when it has had enough.
			go func() { _, _ = io.WriteString(conn, text) }()
			line, err := bufio.NewReader(conn).ReadString('\n')
			if err != nil || !strings.Contains(line, " "+status+" ") || len(text) != n {
				t.Errorf("%d bytes: %q %v, want %s", len(text), line, err, status)
			}
			conn.Close()
		}
	})
}

// Bodies are bounded to the byte where the handler does not do it by itself.
func TestMountedBodiesAreBounded(t *testing.T) {
	r := newRig(t, AuthBearer)
	r.server.Mount("/body", http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if _, err := io.Copy(io.Discard, q.Body); err != nil {
			fail(w, http.StatusRequestEntityTooLarge, problem.Validation, err.Error())
		}
	}), Open())
	for n, status := range map[int]int{maxBodyBytes - 1: 200, maxBodyBytes: 200, maxBodyBytes + 1: 413} {
		w := r.ask(t, "POST", "/body/", func(q *http.Request) { q.Body = io.NopCloser(strings.NewReader(strings.Repeat("x", n))) })
		if w.Code != status {
			t.Errorf("%d bytes: %d", n, w.Code)
		}
	}
}
