package rest

import (
	"errors"
	"io"
	"sync/atomic"
)

// maxHeld is how many bytes of request bodies the box holds in its memory at once, by default. Each
// request has a limit of its own, but a caller with a token may have hundreds of requests under
// way. One body of the largest size that is read whole (maxImport) fits.
const maxHeld = 64 << 20

var errHeldBodies = errors.New("the box reads as many request bodies at once as it has memory for; ask again later")

// heldBodies counts the bytes of bodies from when they are read until their request is answered.
type heldBodies struct {
	bytes atomic.Int64
	most  int64
}

func (h *heldBodies) take(n int64) bool {
	if h.bytes.Add(n) <= h.most {
		return true
	}
	h.bytes.Add(-n)
	return false
}

func (h *heldBodies) release(n int64) { h.bytes.Add(-n) }

// heldReader counts what is read for a request.
type heldReader struct {
	r io.Reader
	q *request
}

func (h *heldReader) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	if n > 0 && !h.q.s.held.take(int64(n)) {
		return 0, errHeldBodies
	}
	h.q.held += int64(n)
	return n, err
}
