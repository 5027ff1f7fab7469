package control

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
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
		&supervisor.Refused{Verb: "apply", Ending: true}:                       api.CodeShuttingDown,
		supervisor.ErrDone:      api.CodeShuttingDown,
		errors.New("it failed"): api.CodeInternal,
	} {
		if got := asProblem(fmt.Errorf("wrapped: %w", err)); got.Code != code {
			t.Errorf("%v has the code %s and not %s", err, got.Code, code)
		}
	}
	for ending, code := range map[bool]api.Code{false: api.CodeConflict, true: api.CodeShuttingDown} {
		if got := refusal(&supervisor.Refused{Program: "p", Ending: ending}, supervisor.Status{Name: "p"}); got.Code != code {
			t.Errorf("of a program, Ending %t: the code %s and not %s", ending, got.Code, code)
		}
	}
}

// A time without connections is two events, however long it lasts. Many such times are few events, and
// each that is told of has an end.
func TestAJamIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := event.NewBus(64)
		s := New(Config{Events: bus})
		for range 36000 {
			s.accepted(syscall.ENFILE)
			time.Sleep(100 * time.Millisecond)
		}
		s.accepted(nil)
		s.accepted(nil)
		if n := bus.Seq(); n != 2 {
			t.Errorf("one jam is %d events", n)
		}
		for range 600 {
			s.accepted(syscall.ENFILE)
			s.accepted(nil)
			time.Sleep(100 * time.Millisecond)
		}
		if n := bus.Seq() - 2; n > 2*16 || n%2 != 0 {
			t.Errorf("600 jams in a minute are %d events", n)
		}
	})
}
