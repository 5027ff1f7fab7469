package control

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

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
