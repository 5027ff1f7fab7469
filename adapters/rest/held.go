package rest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync/atomic"

	"github.com/dreamlab-ai/agentinit/adapters"
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
		return 0, adapters.Errorf(adapters.CodeUnavailable, "%w", errHeldBodies)
	}
	h.q.held += int64(n)
	return n, err
}

// Limits for large answers: those of the rows with large set. A page of texts has many megabytes, and
// JSON makes up to six bytes of each of theirs.
const (
	maxEncoding = 2        // answers that are encoded at once
	maxUnsent   = 32 << 20 // bytes of answers that are not sent yet
)

// gate bounds how many requests do something at once.
type gate chan struct{}

// enter waits for a place. A caller that has got one gives it back with leave.
func (g gate) enter(ctx context.Context) error {
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g gate) leave() { <-g }

// largeAnswers limits the memory of large answers.
type largeAnswers struct {
	encoding gate
	unsent   atomic.Int64
}

func newLargeAnswers() *largeAnswers {
	return &largeAnswers{encoding: make(gate, maxEncoding)}
}

// take counts the bytes of an answer until they are released. One answer alone may have any size.
func (l *largeAnswers) take(n int64) bool {
	if unsent := l.unsent.Add(n); unsent > n && unsent > maxUnsent {
		l.unsent.Add(-n)
		return false
	}
	return true
}

func (l *largeAnswers) release(n int64) { l.unsent.Add(-n) }

// encode makes the JSON of an answer.
func (q *request) encode(v any) ([]byte, error) {
	if !q.row.large {
		return encode(v)
	}
	// Guests have limits of their own: if they read no answers, the operator still gets some.
	answers := q.s.answers
	if q.who.guest() {
		answers = q.s.answersOfGuests
	}
	body, err := answers.encode(q.Context(), v)
	if err != nil {
		return nil, err
	}
	if !answers.take(int64(len(body))) {
		return nil, adapters.Unavailable(nil, "callers have not read as many large answers as the box has memory for; ask again later, or for a smaller page")
	}
	q.unsent, q.answers = int64(len(body)), answers
	return body, nil
}

func (l *largeAnswers) encode(ctx context.Context, v any) ([]byte, error) {
	if err := l.encoding.enter(ctx); err != nil {
		return nil, err
	}
	defer l.encoding.leave()
	return encode(v)
}

func encode(v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, adapters.Errorf(adapters.CodeInternal, "the answer cannot be written as JSON").Wrap(err)
	}
	return body, nil
}
