package rest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

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
	if refused, ok := errors.AsType[*adapters.Error](bodyError(err, 1000)); !ok || refused.Code != adapters.CodeUnavailable || refused.HTTPStatus() != http.StatusServiceUnavailable {
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

// Large answers that are not sent yet have a limit, and those to agents and boxes one of their own. One
// answer alone may have any size.
func TestLargeAnswers(t *testing.T) {
	s := &Server{answers: newLargeAnswers(), answersOfGuests: newLargeAnswers()}
	answer := func(role string, n int, large bool) (*request, error) {
		q := &request{Request: httptest.NewRequest("GET", "/", nil), s: s, who: Principal{Role: role}, row: route{large: large}}
		_, err := q.encode(strings.Repeat("x", n-2))
		return q, err
	}
	first, err := answer(RoleAgent, maxUnsent+1, true)
	if err != nil || first.unsent != maxUnsent+1 {
		t.Fatalf("%d bytes alone, %v", first.unsent, err)
	}
	for _, role := range []string{RoleAgent, RoleBox} {
		if q, err := answer(role, 2, true); !errors.Is(err, adapters.ErrUnavailable) || q.answers != nil {
			t.Errorf("%s beyond the limit: %v", role, err)
		}
	}
	if _, err := answer(RoleAgent, maxUnsent, false); err != nil {
		t.Errorf("the answer of a row without large answers: %v", err)
	}
	for range 2 {
		if _, err := answer(RoleAdmin, maxUnsent/2, true); err != nil {
			t.Errorf("the operator's answer: %v", err)
		}
	}
	if _, err := answer(RoleAdmin, 2, true); !errors.Is(err, adapters.ErrUnavailable) {
		t.Errorf("the operator beyond the limit: %v", err)
	}
	first.answers.release(first.unsent)
	if _, err := answer(RoleAgent, maxUnsent, true); err != nil {
		t.Errorf("after a release: %v", err)
	}
}

// slow is a body whose decoding ends when the test says so. It counts how many are being decoded.
type slow struct {
	now *atomic.Int64
	end <-chan struct{}
}

func (s slow) UnmarshalJSON([]byte) error {
	s.now.Add(1)
	<-s.end
	return nil
}

// Few large bodies are decoded at once, and any number of small ones. A caller that has disconnected
// does not wait.
func TestDecoding(t *testing.T) {
	for size, want := range map[int]int64{smallBody: 3 * maxDecoding, smallBody + 1: maxDecoding} {
		synctest.Test(t, func(t *testing.T) {
			s := &Server{decoding: make(chan struct{}, maxDecoding)}
			body := []byte("{" + strings.Repeat(" ", size-2) + "}")
			end := make(chan struct{})
			out := &slow{new(atomic.Int64), end}
			var all sync.WaitGroup
			for range 3 * maxDecoding {
				all.Go(func() {
					q := &request{Request: httptest.NewRequest("POST", "/", nil), s: s}
					if err := q.unmarshal(body, out); err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
			if n := out.now.Load(); n != want {
				t.Errorf("%d bodies of %d bytes are decoded at once, want %d", n, size, want)
			}
			if size > smallBody {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				gone := &request{Request: httptest.NewRequestWithContext(ctx, "POST", "/", nil), s: s}
				if err := gone.unmarshal(body, out); !errors.Is(err, context.Canceled) {
					t.Errorf("a caller that has disconnected: %v", err)
				}
			}
			close(end)
			all.Wait()
			if n := out.now.Load(); n != 3*maxDecoding {
				t.Errorf("%d bodies were decoded in the end", n)
			}
		})
	}
}
