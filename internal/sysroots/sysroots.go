// Package sysroots owns the certificates of the authorities that the system trusts, and the HTTP transports
// that verify servers by them.
//
// crypto/x509 reads the same files in the middle of the first handshake, with os.ReadFile, which asks for
// as much memory as the file is long and waits for the writer of a FIFO. A program of root could so end
// agentinit by a sparse file of terabytes, or hold up all its connections over TLS.
package sysroots

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/dreamlab-ai/agentinit/internal/slowcall"
)

// MaxFile bounds a file of certificates, in bytes. The certificates of a whole system have 300 KB.
const MaxFile = 4 << 20

const (
	// maxAll bounds the bytes of all files together, and maxNames the names that are read of a directory.
	maxAll   = 16 << 20
	maxNames = 10_000
)

// The places are those of crypto/x509 (root_linux.go).
var (
	files = []string{
		"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
		"/etc/pki/tls/cacert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
	}
	directories = []string{"/etc/ssl/certs", "/etc/pki/tls/certs"}
)

// read is x509.SystemCertPool, but takes regular files only, and of bounded size. It passes over the others
// as x509 does over files that it cannot read. It can wait without end for a file system that does not
// answer.
func read() (*x509.CertPool, error) {
	from, below := files, directories
	if f := os.Getenv("SSL_CERT_FILE"); f != "" {
		from = []string{f}
	}
	if d := os.Getenv("SSL_CERT_DIR"); d != "" {
		below = strings.Split(d, ":")
	}
	r := reading{pool: x509.NewCertPool(), left: maxAll}
	for _, file := range from {
		if r.add(file) {
			break
		}
	}
	for _, dir := range below {
		r.addAll(dir)
	}
	if !r.found && r.err != nil {
		return nil, r.err
	}
	return r.pool, nil
}

type reading struct {
	pool  *x509.CertPool
	left  int64 // bytes that may still be read
	found bool  // the pool has a certificate
	err   error // the first one that is not an absent file
}

// add reads the certificates of a file and tells whether it could be read.
func (r *reading) add(file string) bool {
	pem, err := ReadFile(file, min(MaxFile, r.left))
	if err != nil {
		r.fail(err)
		return false
	}
	r.left -= int64(len(pem))
	if r.pool.AppendCertsFromPEM(pem) {
		r.found = true
	}
	return true
}

func (r *reading) addAll(dir string) {
	d, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		r.fail(err)
		return
	}
	defer d.Close()
	names, err := d.Readdirnames(maxNames)
	if err != nil && !errors.Is(err, io.EOF) {
		r.fail(err)
		return
	}
	for _, name := range names {
		file := filepath.Join(dir, name)
		// A directory holds links to its own files, named by hashes.
		if target, err := os.Readlink(file); err != nil || strings.Contains(target, "/") {
			r.add(file)
		}
	}
}

func (r *reading) fail(err error) {
	if r.err == nil && !errors.Is(err, fs.ErrNotExist) {
		r.err = err
	}
}

// ErrNotTaken means that a file is not regular or too long.
var ErrNotTaken = errors.New("is no regular file")

// ReadFile reads a regular file of at most limit bytes. O_NONBLOCK waits neither for the writer of a
// FIFO nor for the holder of a lease (open(2)).
func ReadFile(file string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > limit {
		return nil, &fs.PathError{Op: "read", Path: file, Err: fmt.Errorf("%w of at most %d bytes", ErrNotTaken, limit)}
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// cache has the certificates, once they could be read.
type cache struct {
	read *slowcall.Call[*x509.CertPool]

	mu   sync.Mutex
	pool *x509.CertPool
}

// system is shared, as that of crypto/x509 is: the certificates take half a megabyte.
var system = &cache{read: slowcall.New(read)}

// Pool returns the certificates. The first call that succeeds decides for all later ones. If ctx ends
// while a file does not answer, Pool returns an error; there are never two readings at once.
func Pool(ctx context.Context) (*x509.CertPool, error) { return system.get(ctx) }

func (c *cache) get(ctx context.Context) (*x509.CertPool, error) {
	if pool := c.have(nil); pool != nil {
		return pool, nil
	}
	pool, err := c.read.Wait(ctx)
	switch {
	case err != nil && errors.Is(err, ctx.Err()):
		return nil, fmt.Errorf("cannot read the certificates of the system: a file does not answer: %w", err)
	case err != nil:
		return nil, fmt.Errorf("cannot read the certificates of the system: %w", err)
	}
	return c.have(pool), nil
}

// have returns the certificates, which are now those in read if there were none.
func (c *cache) have(read *x509.CertPool) *x509.CertPool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pool == nil {
		c.pool = read
	}
	return c.pool
}

// Complete gives the certificates to the configurations that verify servers by those of the system; nil is
// skipped. A configuration can verify by a function of its own in place of crypto/tls, as pgx does.
func Complete(ctx context.Context, configs ...*tls.Config) error {
	for _, c := range configs {
		if c == nil || c.RootCAs != nil || c.InsecureSkipVerify && c.VerifyPeerCertificate == nil {
			continue
		}
		pool, err := Pool(ctx)
		if err != nil {
			return err
		}
		c.RootCAs = pool
	}
	return nil
}

// transport is an http.Transport that has the certificates before it needs them.
type transport struct {
	*http.Transport
	roots *cache
	mu    sync.Mutex
}

// Transport lets t verify servers by the certificates of the system as Pool returns them. t must not be in
// use, nor be used other than through the result.
func Transport(t *http.Transport) http.RoundTripper {
	if t.TLSClientConfig == nil {
		// With a configuration, net/http does not choose HTTP/2 by itself.
		t.ForceAttemptHTTP2 = t.ForceAttemptHTTP2 || t.DialContext == nil && t.Protocols == nil
		t.TLSClientConfig = &tls.Config{}
	}
	return &transport{Transport: t, roots: system}
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.encrypts(r) {
		if err := t.complete(r.Context()); err != nil {
			if r.Body != nil {
				_ = r.Body.Close() // RoundTrip closes it in any case (http.RoundTripper)
			}
			return nil, err
		}
	}
	return t.Transport.RoundTrip(r)
}

// encrypts tells whether the request needs TLS, to the server or to a proxy.
func (t *transport) encrypts(r *http.Request) bool {
	if r.URL.Scheme == "https" {
		return true
	}
	if t.Proxy == nil {
		return false
	}
	proxy, err := t.Proxy(r)
	return err == nil && proxy != nil && proxy.Scheme == "https"
}

func (t *transport) complete(ctx context.Context) error {
	if t.completed() {
		return nil
	}
	pool, err := t.roots.get(ctx)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.TLSClientConfig.RootCAs == nil {
		t.TLSClientConfig.RootCAs = pool // no request has used TLS yet
	}
	return nil
}

func (t *transport) completed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.TLSClientConfig.RootCAs != nil
}
