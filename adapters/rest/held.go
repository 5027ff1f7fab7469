package rest

import (
	"errors"
	"io"
	"sync/atomic"
)

// maxHeld is the default limit for the bytes of all request bodies in memory together. Each request
// has its own limit, but one caller can send hundreds of requests at once. maxHeld must not be less
// than maxImport, the largest body that is read whole.
const maxHeld = 64 << 20

// scarceHeld is the limit while the kernel has little memory to give: if it refuses memory to the Go
// runtime, the runtime ends the process.
const scarceHeld = 2 << 20

var errHeldBodies = errors.New("the box reads as many request bodies at once as it has memory for; ask again later")

// heldBodies counts the bytes of each request body, from its read until the request is answered.
type heldBodies struct {
	bytes  atomic.Int64
	most   int64
	scarce func() bool // nil: memory is never scarce
}

func (h *heldBodies) take(n int64) bool {
	held := h.bytes.Add(n)
	if held <= h.most && (held <= scarceHeld || h.scarce == nil || !h.scarce()) {
		return true
	}
	h.bytes.Add(-n)
	return false
}

func (h *heldBodies) release(n int64) { h.bytes.Add(-n) }

// heldReader counts the bytes that are read for a request.
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
