package supervisord

import (
	"errors"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// fault is a failed call in the form that supervisord gives it.
type fault struct {
	code int
	text string
}

func (f *fault) Error() string { return f.text }

// The faults of supervisord's interface that occur here, with its numbers.
const (
	unknownMethod        = 1
	incorrectParameters  = 2
	badArguments         = 3
	signatureUnsupported = 4
	shutdownState        = 6
	badName              = 10
	badSignal            = 11
	failed               = 30
	abnormalTermination  = 40
	spawnError           = 50
	alreadyStarted       = 60
	notRunning           = 70
	success              = 80
)

func newFault(code int, about string) *fault {
	text := faultName(code)
	if about != "" {
		text += ": " + escape.Text(about)
	}
	return &fault{code, text}
}

func faultName(code int) string {
	switch code {
	case unknownMethod:
		return "UNKNOWN_METHOD"
	case incorrectParameters:
		return "INCORRECT_PARAMETERS"
	case badArguments:
		return "BAD_ARGUMENTS"
	case signatureUnsupported:
		return "SIGNATURE_UNSUPPORTED"
	case shutdownState:
		return "SHUTDOWN_STATE"
	case badName:
		return "BAD_NAME"
	case badSignal:
		return "BAD_SIGNAL"
	case abnormalTermination:
		return "ABNORMAL_TERMINATION"
	case spawnError:
		return "SPAWN_ERROR"
	case alreadyStarted:
		return "ALREADY_STARTED"
	case notRunning:
		return "NOT_RUNNING"
	}
	return "FAILED"
}

// asFault is the one place that turns an error into a fault.
func asFault(err error) *fault {
	if f, ok := errors.AsType[*fault](err); ok {
		return f
	}
	if api.CodeOf(err) == api.CodeShuttingDown {
		return newFault(shutdownState, "")
	}
	return newFault(failed, err.Error())
}
