package api

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 999 * time.Microsecond: "0ms", 350 * time.Millisecond: "350ms", 2199 * time.Millisecond: "2.1s",
		45 * time.Second: "45s", 192 * time.Second: "3m12s", 125 * time.Minute: "2h05m", 76*time.Hour + 59*time.Minute: "3d04h",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
}

func TestEventKeepsItsBytes(t *testing.T) {
	const raw = `{"seq":7,"level":"warn","time":"2026-01-02T03:04:05.006Z","agentbox.stage":"supervisor","event":"X","program":"web","run":2,"change":{"from":"A","to":"B","ready":false},"extra":{"n":1}}`
	var e Event
	if err := json.Unmarshal([]byte(raw), &e); err != nil {
		t.Fatal(err)
	}
	if e.Seq != 7 || e.Stage != "supervisor" || e.Change.To != "B" || len(e.Fields) != 1 || string(e.Fields["extra"]) != `{"n":1}` {
		t.Errorf("%+v", e)
	}
	again, err := json.Marshal(e)
	if err != nil || string(again) != raw {
		t.Errorf("%s %v", again, err)
	}
	if _, err := json.Marshal(Event{Seq: 1}); err == nil {
		t.Error("an event from nowhere was encoded")
	}
	if err := json.Unmarshal([]byte(`{"seq":8,"change":"restart"}`), &e); err != nil || e.Seq != 8 || e.Change != nil || string(e.Fields["change"]) != `"restart"` {
		t.Errorf("a key of another type: %+v %v", e, err)
	}
	if json.Unmarshal([]byte(`[]`), &e) == nil {
		t.Error("an array is no event")
	}
}

func TestEveryCodeHasAStatus(t *testing.T) {
	for code, status := range codeStatus {
		if e := Errorf(code, "m"); e.Status != status || e.Title == "" || status < 400 {
			t.Errorf("%s: %+v", code, e)
		}
	}
	if Code("new").HTTPStatus() != http.StatusInternalServerError {
		t.Error("an unknown code is no internal error")
	}
}

// serve answers every connection with the given bytes and then closes it.
func serve(t *testing.T, answer string) *Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "api")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 4096)
			if _, err := conn.Read(buf); err == nil {
				_, _ = conn.Write([]byte(answer)) // the client may have closed the connection
			}
			conn.Close()
		}
	}()
	return NewClient(l.Addr().String())
}

func TestStrangeServers(t *testing.T) {
	unreachable := func(err error) bool { _, ok := errors.AsType[*UnreachableError](err); return ok }
	internal := func(err error) bool { return CodeOf(err) == CodeInternal }
	const ok = "HTTP/1.1 200 OK\r\n"
	for name, c := range map[string]struct {
		answer string
		want   func(error) bool
	}{
		"silence":            {"", unreachable},
		"no HTTP":            {"220 smtp\r\n", unreachable},
		"endless header":     {ok + strings.Repeat("X: y\r\n", 20_000), unreachable},
		"cut body":           {ok + "Content-Length: 100\r\n\r\n{", unreachable},
		"no JSON":            {ok + "Content-Length: 5\r\n\r\nhello", internal},
		"wrong JSON":         {ok + "Content-Length: 9\r\n\r\n{\"seq\":-1", internal},
		"error without word": {"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops", internal},
		"problem": {"HTTP/1.1 403 No\r\nContent-Length: 34\r\n\r\n{\"code\":\"forbidden\",\"detail\":\"no\"}",
			func(err error) bool { return CodeOf(err) == CodeForbidden }},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := serve(t, c.answer).Status(t.Context())
			if !c.want(err) {
				t.Errorf("got %T %v", err, err)
			}
		})
	}
}

func TestStreamThatBreaksIsNoEnd(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
	count := func(c *Client) (n int, err error) {
		err = c.Events(t.Context(), 0, true, func(Event) error { n++; return nil })
		return n, err
	}
	if n, err := count(serve(t, head+"{\"seq\":1}\n\n{\"seq\":2}\n{}\n")); n != 2 || err != nil {
		t.Errorf("complete: %d %v", n, err)
	}
	n, err := count(serve(t, head+"{\"seq\":1}\n"))
	if _, ok := errors.AsType[*UnreachableError](err); n != 1 || !ok {
		t.Errorf("broken: %d %v", n, err)
	}
	n, err = count(serve(t, head+"{\"seq\":1}\n{\"se"))
	if _, ok := errors.AsType[*UnreachableError](err); n != 1 || !ok {
		t.Errorf("broken in a line: %d %v", n, err)
	}
	if _, err := count(serve(t, head+"[]\n")); CodeOf(err) != CodeInternal {
		t.Errorf("nonsense: %v", err)
	}
	if _, err := count(serve(t, head+strings.Repeat("x", maxLine+1)+"\n")); CodeOf(err) != CodeInternal {
		t.Errorf("endless line: %v", err)
	}
	enough := errors.New("enough")
	err = serve(t, head+"{\"seq\":1}\n{}\n").Events(t.Context(), 0, false, func(Event) error { return enough })
	if !errors.Is(err, enough) {
		t.Errorf("the callback's error: %v", err)
	}
}

func TestSilentServerEndsWithTheContext(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir) // a relative path is short enough
	l, err := net.Listen("unix", "s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := NewClient("s").Status(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestFallbackToTheAbstractName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fallsBack(t, path, os.ErrNotExist)
	if _, err := NewClient(path).dial(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a path that was asked for has no fallback: %v", err)
	}
}

// agentinit takes the abstract name also if it may not enter the directory of the socket.
func TestFallbackFromAForbiddenDirectory(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may enter every directory")
	}
	dir := filepath.Join(t.TempDir(), "run")
	if err := os.Mkdir(dir, 0); err != nil {
		t.Fatal(err)
	}
	fallsBack(t, filepath.Join(dir, "s"), os.ErrPermission)
}

// fallsBack checks that a client reaches the abstract name of a path that has no socket for it, and gets
// the error about the path if nothing listens on the abstract name either.
func fallsBack(t *testing.T, path string, want error) {
	t.Helper()
	l, err := net.Listen("unix", AbstractFallback(path))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := &Client{socket: path, fallback: AbstractFallback(path)}
	conn, err := c.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	l.Close()
	if _, err := c.dial(t.Context()); !errors.Is(err, want) {
		t.Errorf("with neither, the error is %v, want %v", err, want)
	}
}

// TestExpectInit: in a box, the client accepts only PID 1 as agentinit, on a socket file or an
// abstract name. Outside a box, this rule does not apply.
func TestExpectInit(t *testing.T) {
	dir := t.TempDir()
	pid := strconv.Itoa(os.Getpid())
	file := filepath.Join(dir, "s")
	for _, socket := range []string{file, "@" + file} {
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				conn.Close()
			}
		}()
		for _, c := range []struct {
			name, self, comm string
			refused          bool
		}{
			{"in the box", pid, "agentinit\n", true},
			{"on the host", pid, "systemd\n", false},
			{"beside a pause container", pid, "pause\n", false},
			{"a /proc of another pid namespace", "1" + pid, "agentinit\n", false},
			{"no /proc", "", "", false},
			{"PID 1 is hidden", pid, "", false},
		} {
			t.Run(c.name, func(t *testing.T) {
				proc := t.TempDir()
				if err := os.Mkdir(filepath.Join(proc, "1"), 0o700); err != nil {
					t.Fatal(err)
				}
				if c.self != "" {
					if err := os.Symlink(c.self, filepath.Join(proc, "self")); err != nil {
						t.Fatal(err)
					}
				}
				if c.comm != "" {
					if err := os.WriteFile(filepath.Join(proc, "1", "comm"), []byte(c.comm), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				conn, err := NewClient(socket).ExpectInit(proc).dial(t.Context())
				switch {
				case err == nil:
					conn.Close()
					if c.refused {
						t.Error("an impostor passes")
					}
				case !c.refused || !strings.Contains(err.Error(), "the listener is pid "+pid):
					t.Error(err)
				}
			})
		}
	}
}

// A request without a deadline waits as long as the server answers others, and no longer.
func TestRequestsToAFrozenServerEnd(t *testing.T) {
	for name, c := range map[string]struct {
		answers int // how many questions meanwhile are answered
		accepts bool
		want    string
	}{
		"busy":               {answers: 3, accepts: true},
		"freezes":            {answers: 2, accepts: true, want: "no answer within"},
		"has stopped before": {want: "no answer within"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir()) // a relative path is short enough
			l, err := net.Listen("unix", "s")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if c.accepts {
				asked := make(chan struct{})
				go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/v1/version" {
						select {
						case asked <- struct{}{}:
							w.Write([]byte("{}"))
						case <-r.Context().Done():
						}
						return
					}
					for range c.answers {
						<-asked
					}
					if c.want != "" {
						<-r.Context().Done()
					}
					w.Write([]byte(StreamEnd + "\n"))
				}))
			}
			client := NewClient("s")
			client.patience, client.aliveWithin = time.Millisecond, 10*time.Second
			if c.want != "" {
				client.aliveWithin = 20 * time.Millisecond
			}
			for what, ask := range map[string]func() error{
				"logs": func() error { return client.Logs(t.Context(), LogQuery{}, func(LogLine) error { return nil }) },
				"stop": func() error { _, err := client.Stop(t.Context(), ActionRequest{}); return err },
				"adapters": func() error {
					resp, err := client.Adapters(t.Context(), AdapterRequest{Method: "GET", Path: "/v1/status"})
					if err == nil {
						resp.Body.Close()
					}
					return err
				},
			} {
				err := ask()
				if _, ok := errors.AsType[*UnreachableError](err); c.want == "" && err != nil || c.want != "" && (!ok || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
}
