package forward

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/logs"
)

// Collectors stall, reset, cut off, flood or lie. Each gets the line at the second attempt, is
// reported once, and costs limited time and memory.
func TestHostileCollectors(t *testing.T) {
	hijack := func(w http.ResponseWriter, use func(net.Conn)) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		use(conn)
	}
	for name, first := range map[string]func(w http.ResponseWriter, r *http.Request){
		"stalls": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"resets": func(w http.ResponseWriter, _ *http.Request) {
			hijack(w, func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }) // close then sends RST
		},
		"closes": func(w http.ResponseWriter, _ *http.Request) { hijack(w, func(net.Conn) {}) },
		"is no HTTP server": func(w http.ResponseWriter, _ *http.Request) {
			hijack(w, func(c net.Conn) { _, _ = io.WriteString(c, "220 mail ESMTP\r\n") })
		},
		"floods headers": func(w http.ResponseWriter, _ *http.Request) {
			hijack(w, func(c net.Conn) {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nX: ")
				for range 100 {
					if _, err := io.WriteString(c, strings.Repeat("x", 64<<10)); err != nil {
						return
					}
				}
			})
		},
		"floods an error": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			for range 1000 {
				if _, err := io.WriteString(w, strings.Repeat("x", 64<<10)); err != nil {
					return
				}
			}
		},
		"is full":         func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInsufficientStorage) },
		"is overwhelmed":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
		"answers at once": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests, said atomic.Int32
			taken := make(chan struct{}, 1)
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					return
				}
				if requests.Add(1) == 1 {
					first(w, r)
					return
				}
				select {
				case taken <- struct{}{}:
				default: // a machine under load may need another attempt
				}
			}))
			defer srv.Close()
			s := newSource(line(1, "web", "a"))
			timeout := 10 * time.Second
			if name == "stalls" {
				timeout = time.Second
			}
			f := start(t, Config{Name: "x", Kind: "http", URL: srv.URL, BatchLines: 1, Timeout: timeout,
				OnTrouble: func(err error) {
					if said.Add(1); name == "stalls" && err != nil && !strings.Contains(err.Error(), "no answer within 1s") {
						t.Error(err)
					}
				}}, s)
			<-taken
			finish(t, f, s)
			if st := f.Stats(); st.Sent != 1 || st.Dropped != 0 || st.Retries == 0 || said.Load() != 2 {
				t.Errorf("stats %+v, said %d times", st, said.Load())
			}
		})
	}
}

// What a program puts in the place of ca_file neither holds up agentinit nor fills its memory.
func TestHostileCAFile(t *testing.T) {
	dir := t.TempDir()
	fifo, empty, huge := filepath.Join(dir, "fifo"), filepath.Join(dir, "empty"), filepath.Join(dir, "huge")
	if err := syscall.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int64{empty: 0, huge: 1 << 30} {
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(name, size); err != nil {
			t.Fatal(err)
		}
	}
	for file, want := range map[string]string{
		fifo: "is no regular file", huge: "is no regular file of at most 4 MiB", dir: "is no regular file", "/dev/zero": "is no regular file",
		empty: "holds no certificate", filepath.Join(dir, "none"): "no such file",
	} {
		for kind, url := range map[string]string{"syslog": "tls://collector", "loki": "https://collector"} {
			if _, err := New(Config{Name: "x", Kind: kind, URL: url, CAFile: file}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, %s: %v, want %q", kind, file, err, want)
			}
		}
	}
}

// A file among the certificates of the system does not answer. An attempt ends in its time, and the
// forwarder works when the file answers.
func TestHostileSystemRoots(t *testing.T) {
	for kind, url := range map[string]string{"syslog": "tls://127.0.0.1", "loki": "https://127.0.0.1"} {
		f, err := New(Config{Name: "x", Kind: kind, URL: url})
		if err != nil {
			t.Fatal(err)
		}
		var roots *readRoots
		var config *tls.Config
		switch s := f.sender.(type) {
		case *syslog:
			roots, config = &s.roots, s.tls
		case *push:
			roots, config = &s.roots, s.tls
		}
		if *roots == nil {
			t.Fatalf("%s: crypto/tls reads the files itself", kind)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		want, answers := x509.NewCertPool(), false
		*roots = func(ctx context.Context) (*x509.CertPool, error) {
			if !answers {
				<-ctx.Done()
				return nil, errors.New("a file does not answer")
			}
			return want, nil
		}
		for range 2 {
			if err := f.sender.send(ctx, []logs.Line{line(1, "web", "a")}); err == nil || !strings.Contains(err.Error(), "does not answer") {
				t.Errorf("%s: %v", kind, err)
			}
		}
		answers = true
		if err := f.sender.send(ctx, []logs.Line{line(1, "web", "a")}); err == nil {
			t.Errorf("%s: sent after the end of ctx", kind)
		}
		if config.RootCAs != want || *roots != nil {
			t.Errorf("%s: the certificates are not used", kind)
		}
	}
}

// A collector that takes only small requests gets the lines in parts, in order, at the end too. Only
// the line that alone is too large is dropped and reported.
func TestSmallCollector(t *testing.T) {
	for name, atEnd := range map[string]bool{"while it runs": false, "at the end": true} {
		synctest.Test(t, func(t *testing.T) {
			var said []error
			f, err := New(Config{Name: "x", Kind: "http", URL: "http://x", OnTrouble: func(err error) { said = append(said, err) }})
			if err != nil {
				t.Fatal(err)
			}
			sink := &small{}
			f.sender = sink
			s := newSource()
			for i := range uint64(9) {
				s.add(line(i+1, "web", string(rune('a'+i))))
			}
			s.lines[4].Text = "too long alone"
			f.Start(s)
			if !atEnd {
				time.Sleep(time.Minute)
			}
			f.Close(t.Context(), s)
			if st := f.Stats(); sink.got != "abcdfghi" || st != (Stats{Sent: 8, Dropped: 1}) {
				t.Errorf("%s: got %q, stats %+v", name, sink.got, st)
			}
			if len(said) != 2 || !errors.Is(said[0], errTooLarge) || said[1] != nil {
				t.Errorf("%s: said %v", name, said)
			}
		})
	}
}

// small is a collector that takes three bytes at once.
type small struct{ got string }

func (s *small) send(_ context.Context, batch []logs.Line) error {
	text := strings.Join(texts(batch), "")
	if len(text) > 3 {
		return errTooLarge
	}
	s.got += text
	return nil
}

func (s *small) close() {}

func texts(lines []logs.Line) (out []string) {
	for _, l := range lines {
		out = append(out, l.Text)
	}
	return out
}

// A status decides whether a batch is tried again, in parts or not at all.
func TestStatuses(t *testing.T) {
	for status, want := range map[int]struct{ refused, tooLarge, later bool }{
		200: {}, 204: {}, 302: {refused: true}, 401: {refused: true}, 413: {refused: true, tooLarge: true}, 429: {later: true}, 503: {later: true},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		p, err := newPush(Config{Kind: "http", URL: srv.URL})
		if err != nil {
			t.Fatal(err)
		}
		err = p.send(t.Context(), []logs.Line{line(1, "web", "a")})
		got := want
		got.refused, got.tooLarge = errors.Is(err, errRefused), errors.Is(err, errTooLarge)
		if got.later = err != nil && !got.refused; got != want {
			t.Errorf("%d: %v", status, err)
		}
		p.close()
		srv.Close()
	}
}

// An OTLP collector may answer 200 and reject a part of the lines, or all.
func TestOTLPPartialSuccess(t *testing.T) {
	answer := func(rejected int64, why string) string {
		return string(message{}.bytes(1, message{}.number(1, uint64(rejected)).text(2, why)))
	}
	for body, want := range map[string]Stats{
		answer(1, "too old"):      {Sent: 1, Dropped: 1},
		answer(9, ""):             {Dropped: 2},
		answer(math.MaxInt64, ""): {Dropped: 2},
		answer(-1, "odd"):         {Sent: 2},
		answer(0, "a warning"):    {Sent: 2},
		// A message that is longer than the part that is reported.
		answer(2, strings.Repeat("x", 2000)): {Dropped: 2},
		answer(1, "cut short")[:5]:           {Sent: 2},
		"":                                   {Sent: 2}, "<html>": {Sent: 2},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }))
		var said atomic.Int32
		s := newSource(line(1, "web", "a"), line(2, "web", "b"))
		f := start(t, Config{Name: "x", Kind: "otlp", URL: srv.URL, BatchLines: 2, OnTrouble: func(error) { said.Add(1) }}, s)
		finish(t, f, s)
		srv.Close()
		if st := f.Stats(); st != want || (said.Load() > 0) != (want.Dropped > 0) {
			t.Errorf("%q: stats %+v, want %+v; said %d times", body, st, want, said.Load())
		}
	}
}
