package sysroots

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/dreamlab-ai/agentinit/internal/slowcall"
)

// server is a TLS server, and the file of the authority that has signed its certificate.
func server(t *testing.T) (s *httptest.Server, authority []byte) {
	t.Helper()
	s = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	t.Cleanup(s.Close)
	return s, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

// place sets where read looks, and returns the file and the directory. Both are absent.
func place(t *testing.T) (file, dir string) {
	t.Helper()
	file, dir = filepath.Join(t.TempDir(), "file"), filepath.Join(t.TempDir(), "dir")
	t.Setenv("SSL_CERT_FILE", file)
	t.Setenv("SSL_CERT_DIR", dir+":"+filepath.Join(dir, "absent"))
	return file, dir
}

func write(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// fifo makes a FIFO that has no writer: a plain open waits for ever.
func fifo(t *testing.T, file string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(file, 0o644); err != nil {
		t.Fatal(err)
	}
}

// sparse makes a file of 8 TiB. os.ReadFile would ask the runtime for as much memory, which ends the process.
func sparse(t *testing.T, file string) {
	t.Helper()
	write(t, file, nil)
	if err := os.Truncate(file, 8<<40); err != nil {
		t.Skipf("the file system has no such file: %v", err)
	}
}

func TestRead(t *testing.T) {
	s, authority := server(t)
	for name, test := range map[string]struct {
		make  func(t *testing.T, file, dir string)
		trust bool
		err   string // "" for none
	}{
		"nothing":   {func(*testing.T, string, string) {}, false, ""},
		"a file":    {func(t *testing.T, file, _ string) { write(t, file, authority) }, true, ""},
		"no PEM":    {func(t *testing.T, file, _ string) { write(t, file, []byte("x")) }, false, ""},
		"directory": {func(t *testing.T, _, dir string) { write(t, filepath.Join(dir, "a.pem"), authority) }, true, ""},
		"a link to another directory": {func(t *testing.T, _, dir string) {
			target := filepath.Join(t.TempDir(), "a.crt")
			write(t, target, authority)
			write(t, filepath.Join(dir, "b.pem"), nil)
			if err := os.Symlink(target, filepath.Join(dir, "a.pem")); err != nil {
				t.Fatal(err)
			}
		}, true, ""},
		"a FIFO as the file":      {func(t *testing.T, file, _ string) { fifo(t, file) }, false, "is no regular file"},
		"terabytes as the file":   {func(t *testing.T, file, _ string) { sparse(t, file) }, false, "is no regular file of at most"},
		"a device as the file":    {func(t *testing.T, _, _ string) { t.Setenv("SSL_CERT_FILE", "/dev/zero") }, false, "is no regular file"},
		"a FIFO as the directory": {func(t *testing.T, _, dir string) { fifo(t, dir) }, false, "not a directory"},
		"hostile files beside a good one": {func(t *testing.T, file, dir string) {
			sparse(t, file)
			fifo(t, filepath.Join(dir, "a"))
			sparse(t, filepath.Join(dir, "b"))
			write(t, filepath.Join(dir, "c"), authority)
		}, true, ""},
		"too much in all": {func(t *testing.T, _, dir string) {
			for _, n := range []string{"a", "b", "c", "d", "e"} {
				write(t, filepath.Join(dir, n), []byte(strings.Repeat("#", MaxFile)))
			}
		}, false, "is no regular file of at most 0 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			file, dir := place(t)
			test.make(t, file, dir)
			pool, err := read()
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("got %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.Certificate().Verify(x509.VerifyOptions{Roots: pool, DNSName: "example.com"})
			if (err == nil) != test.trust {
				t.Errorf("the server is trusted: %v", err)
			}
		})
	}
}

// A file does not answer: each caller waits until its own context ends, and the files are read once. An
// error is not kept, the certificates are.
func TestPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type answer struct {
			pool *x509.CertPool
			err  error
		}
		answers, readings := make(chan answer), 0
		c := &cache{read: slowcall.New(func() (*x509.CertPool, error) {
			readings++
			a := <-answers
			return a.pool, a.err
		})}
		ended, end := context.WithCancel(t.Context())
		end()
		for range 3 {
			if pool, err := c.get(ended); pool != nil || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "does not answer") {
				t.Errorf("while a file does not answer: %v %v", pool, err)
			}
		}
		wrong, want := errors.New("wrong"), x509.NewCertPool()
		got := make(chan error)
		for range 2 {
			go func() {
				_, err := c.get(t.Context())
				got <- err
			}()
		}
		synctest.Wait()
		answers <- answer{nil, wrong}
		for range 2 {
			if err := <-got; !errors.Is(err, wrong) {
				t.Errorf("the reading that was under way: %v", err)
			}
		}
		go func() { answers <- answer{want, nil} }()
		for range 2 {
			if pool, err := c.get(t.Context()); pool != want || err != nil {
				t.Errorf("the next reading: %v %v", pool, err)
			}
		}
		if readings != 2 {
			t.Errorf("the files were read %d times", readings)
		}
	})
}

// trusting is a cache that trusts the authority.
func trusting(t *testing.T, authority []byte) *cache {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		t.Fatal("no certificate")
	}
	return &cache{pool: pool}
}

func TestTransport(t *testing.T) {
	s, authority := server(t)
	plain := httptest.NewServer(s.Config.Handler)
	defer plain.Close()
	hanging := &cache{read: slowcall.New(func() (*x509.CertPool, error) { select {} })}
	failing := &cache{read: slowcall.New(func() (*x509.CertPool, error) { return nil, errors.New("wrong") })}
	for name, test := range map[string]struct {
		roots *cache
		url   string
		err   string
	}{
		"trusted":                        {trusting(t, authority), s.URL, ""},
		"not trusted":                    {&cache{pool: x509.NewCertPool()}, s.URL, "unknown authority"},
		"certificates cannot be read":    {failing, s.URL, "cannot read the certificates of the system: wrong"},
		"certificates do not answer":     {hanging, s.URL, "a file does not answer"},
		"no TLS needs no certificates":   {hanging, plain.URL, ""},
		"a proxy over TLS needs them":    {failing, "http://proxied.example", "cannot read the certificates of the system: wrong"},
		"a plain proxy does not":         {failing, "http://plainly.proxied.example", ""},
		"a plain proxy, then TLS, needs": {failing, "https://plainly.proxied.example", "cannot read the certificates of the system: wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			rt := Transport(&http.Transport{Proxy: func(r *http.Request) (*url.URL, error) {
				switch r.URL.Hostname() {
				case "proxied.example":
					return url.Parse(s.URL)
				case "plainly.proxied.example":
					return url.Parse(plain.URL)
				}
				return nil, nil
			}}).(*transport)
			rt.roots = test.roots
			defer rt.CloseIdleConnections()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if test.roots == hanging && test.err != "" {
				cancel()
			}
			body := &closing{Reader: strings.NewReader("body")}
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, test.url, body)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := rt.RoundTrip(r)
			if err == nil {
				resp.Body.Close()
			}
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("got %v, want %q", err, test.err)
			}
			if strings.HasPrefix(test.err, "cannot") && !body.closed {
				t.Error("the body of the request stays open")
			}
		})
	}
}

type closing struct {
	*strings.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

// HTTP/2 is chosen where net/http would choose it.
func TestHTTP2(t *testing.T) {
	dial := (&net.Dialer{}).DialContext
	for name, test := range map[string]struct {
		t    *http.Transport
		want bool
	}{
		"as it comes":   {&http.Transport{}, true},
		"own dialer":    {&http.Transport{DialContext: dial}, false},
		"forced":        {&http.Transport{DialContext: dial, ForceAttemptHTTP2: true}, true},
		"configuration": {&http.Transport{TLSClientConfig: &tls.Config{}}, false},
	} {
		Transport(test.t)
		if test.t.ForceAttemptHTTP2 != test.want {
			t.Errorf("%s: HTTP/2 is tried: %v", name, test.t.ForceAttemptHTTP2)
		}
	}
}

func TestComplete(t *testing.T) {
	file, _ := place(t)
	_, authority := server(t)
	write(t, file, authority)
	own := x509.NewCertPool()
	verify := func([][]byte, [][]*x509.Certificate) error { return nil }
	for name, test := range map[string]struct {
		config *tls.Config
		gets   bool
	}{
		"verifies":               {&tls.Config{}, true},
		"verifies by a function": {&tls.Config{InsecureSkipVerify: true, VerifyPeerCertificate: verify}, true},
		"does not verify":        {&tls.Config{InsecureSkipVerify: true}, false},
		"has its own":            {&tls.Config{RootCAs: own}, false},
	} {
		before := test.config.RootCAs
		if err := Complete(t.Context(), nil, test.config); err != nil {
			t.Fatal(err)
		}
		if got := test.config.RootCAs != before; got != test.gets {
			t.Errorf("%s: gets the certificates: %v", name, got)
		}
	}
}
