package rest

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// The limit applies to all bodies together. The bytes of a request are free after its answer.
func TestHeldBodies(t *testing.T) {
	s := &Server{held: heldBodies{most: 100}}
	read := func(n int) (*request, error) {
		q := &request{s: s}
		_, err := io.ReadAll(&heldReader{strings.NewReader(strings.Repeat("x", n)), q})
		return q, err
	}
	first, err := read(60)
	if err != nil || first.held != 60 {
		t.Fatalf("%d bytes are held, %v", first.held, err)
	}
	second, err := read(41)
	if !errors.Is(err, errHeldBodies) || second.held != 0 {
		t.Errorf("%d bytes are held beside the others, %v", second.held, err)
	}
	var refused *adapters.Error
	if !errors.As(bodyError(err, 1000), &refused) || refused.Code != adapters.CodeUnavailable || refused.HTTPStatus() != http.StatusServiceUnavailable {
		t.Errorf("answered %v", refused)
	}
	if q, err := read(40); err != nil || q.held != 40 {
		t.Errorf("%d bytes are held, %v", q.held, err)
	}
	s.held.release(first.held)
	if q, err := read(60); err != nil || q.held != 60 {
		t.Errorf("after a release %d bytes are held, %v", q.held, err)
	}
}

// While memory is scarce, small bodies are still read.
func TestHeldBodiesWhileMemoryIsScarce(t *testing.T) {
	var scarce bool
	h := heldBodies{most: maxHeld, scarce: func() bool { return scarce }}
	if !h.take(scarceHeld + 1) {
		t.Error("a large body was refused while there was memory")
	}
	h.release(scarceHeld + 1)
	scarce = true
	if h.take(scarceHeld + 1) {
		t.Error("a large body was read while memory was scarce")
	}
	if !h.take(scarceHeld) {
		t.Error("a small body was refused")
	}
}
