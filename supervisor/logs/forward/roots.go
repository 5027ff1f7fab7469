package forward

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/dreamlab-ai/agentinit/internal/slowcall"
	"github.com/dreamlab-ai/agentinit/internal/sysroots"
)

// systemRoots are the certificates of the system. crypto/tls would read their files in the middle of the
// first handshake, which then waits with no end if their file system is dead: the forwarder would never end,
// and so agentinit would not. Only the forwarder's goroutine
// uses them.
type systemRoots = slowcall.Call[*x509.CertPool]

func newSystemRoots() *systemRoots { return slowcall.New(sysroots.Read) }

// readRoots returns the certificates of the system, or an error when ctx ends.
func readRoots(ctx context.Context, roots *systemRoots) (*x509.CertPool, error) {
	pool, err := roots.Wait(ctx)
	switch {
	case err != nil && errors.Is(err, ctx.Err()):
		return nil, errors.New("cannot read the certificates of the system: a file does not answer")
	case err != nil:
		return nil, fmt.Errorf("cannot read the certificates of the system: %w", err)
	}
	return pool, nil
}
