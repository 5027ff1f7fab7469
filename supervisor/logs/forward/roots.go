package forward

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
)

// systemRoots are the certificates of the system. crypto/tls would read their files in the middle of the
// first handshake, which then waits with no end if a program has put a FIFO among them, or if their file
// system is dead: the forwarder would never end, and so agentinit would not. They are read in a goroutine
// of their own, one at a time. Only the forwarder's goroutine calls get.
type systemRoots struct {
	read    func() (*x509.CertPool, error) // x509.SystemCertPool, except in tests
	reading chan readRoots                 // nil if no reading is under way
}

type readRoots struct {
	pool *x509.CertPool
	err  error
}

// get returns the certificates, or an error when ctx ends. A reading that is under way goes on.
func (r *systemRoots) get(ctx context.Context) (*x509.CertPool, error) {
	if r.reading == nil {
		reading := make(chan readRoots, 1)
		r.reading = reading
		go func() {
			pool, err := r.read()
			reading <- readRoots{pool, err}
		}()
	}
	select {
	case got := <-r.reading:
		r.reading = nil
		if got.err != nil {
			return nil, fmt.Errorf("cannot read the certificates of the system: %w", got.err)
		}
		return got.pool, nil
	case <-ctx.Done():
		return nil, errors.New("cannot read the certificates of the system: a file does not answer")
	}
}
