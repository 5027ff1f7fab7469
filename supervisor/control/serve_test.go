package control

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// If an error has a code and no status, the answer has the status of the code.
func TestFailGoesByTheCode(t *testing.T) {
	w := httptest.NewRecorder()
	new(Server).fail(w, &api.Error{Code: api.CodeInvalid, Message: "m", Findings: []api.Finding{{Code: "E016"}}})
	if w.Code != 422 || !strings.Contains(w.Body.String(), `"status":422`) || !strings.Contains(w.Body.String(), "E016") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A message is one line, also if several errors make it up.
func TestSeveralErrorsAreOneLine(t *testing.T) {
	if got := asProblem(errors.Join(errors.New("cannot write a"), errors.New("cannot restore b"))).Message; got != "cannot write a; cannot restore b" {
		t.Errorf("the message is %q", got)
	}
}

// A request that comes while the box boots or ends, or that still waits for its turn then, meets no fault of
// agentinit.
func TestRefusalsOfTheBoxAreNoFaults(t *testing.T) {
	for err, code := range map[error]api.Code{
		&supervisor.Refused{Verb: "apply", Reason: "the box is still booting"}: api.CodeConflict,
		supervisor.ErrDone:      api.CodeShuttingDown,
		errors.New("it failed"): api.CodeInternal,
	} {
		if got := asProblem(fmt.Errorf("wrapped: %w", err)); got.Code != code {
			t.Errorf("%v has the code %s and not %s", err, got.Code, code)
		}
	}
}
