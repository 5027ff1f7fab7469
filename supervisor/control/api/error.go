package api

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"syscall"
)

// Code names a kind of failure; codes are stable.
type Code string

// The codes of a failed request.
const (
	CodeBadRequest     Code = "bad_request"            // the request is malformed
	CodeUnknownProgram Code = "unknown_program"        // no program has that name
	CodeAmbiguous      Code = "ambiguous_name"         // a prefix fits several programs
	CodeForbidden      Code = "forbidden"              // the peer may not do this
	CodeConflict       Code = "conflict"               // not possible in the present state
	CodeInvalid        Code = "invalid"                // the manifest is invalid; the findings say where
	CodeTimeout        Code = "timeout"                // the condition did not hold in time
	CodeFailed         Code = "failed"                 // it was tried and failed
	CodeShuttingDown   Code = "shutting_down"          // no program is started any more
	CodeUnsupported    Code = "unsupported"            // this agentinit does not offer it
	CodeNotFound       Code = "not_found"              // no such route
	CodeMethod         Code = "method_not_allowed"     // the route has no such method
	CodeTooLarge       Code = "too_large"              // the request is larger than agentinit takes
	CodeMediaType      Code = "unsupported_media_type" // the body is not JSON
	CodeBusy           Code = "busy"                   // too many connections at once
	CodeInternal       Code = "internal"               // a fault of agentinit
)

// codeStatus is the one place that maps a code to an HTTP status.
var codeStatus = map[Code]int{
	CodeBadRequest:     http.StatusBadRequest,
	CodeUnknownProgram: http.StatusNotFound,
	CodeAmbiguous:      http.StatusBadRequest,
	CodeForbidden:      http.StatusForbidden,
	CodeConflict:       http.StatusConflict,
	CodeInvalid:        http.StatusUnprocessableEntity,
	CodeTimeout:        http.StatusGatewayTimeout,
	CodeFailed:         http.StatusBadGateway,
	CodeShuttingDown:   http.StatusServiceUnavailable,
	CodeUnsupported:    http.StatusNotImplemented,
	CodeNotFound:       http.StatusNotFound,
	CodeMethod:         http.StatusMethodNotAllowed,
	CodeTooLarge:       http.StatusRequestEntityTooLarge,
	CodeMediaType:      http.StatusUnsupportedMediaType,
	CodeBusy:           http.StatusServiceUnavailable,
	CodeInternal:       http.StatusInternalServerError,
}

// HTTPStatus is the HTTP status of an answer with this code.
func (c Code) HTTPStatus() int {
	if s, ok := codeStatus[c]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// Error is a refused or failed request. On the wire it is a problem document
// (RFC 9457) with the extra members code, hint, program, state, candidates and
// findings.
type Error struct {
	Title   string `json:"title"`
	Status  int    `json:"status"`
	Message string `json:"detail"`
	Code    Code   `json:"code"`
	Hint    string `json:"hint,omitempty"`
	// Program and State are the program that the error is about, and its state at that time.
	Program string `json:"program,omitempty"`
	State   string `json:"state,omitempty"`
	// Candidates are names that the user may have meant.
	Candidates []string  `json:"candidates,omitempty"`
	Findings   []Finding `json:"findings,omitempty"`
}

// Errorf returns an Error of a kind with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	status := code.HTTPStatus()
	return &Error{Title: http.StatusText(status), Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}

// NotStarted is the answer to a request about programs before the phase of the boot that starts them: until
// then their names are not known.
func NotStarted(b Boot) *Error {
	where := ""
	for _, p := range b.Phases {
		if p.Outcome == PhaseUnderWay {
			where = fmt.Sprintf(": the box is in phase %v of its boot, %s", p.Number, p.Name)
		}
	}
	e := Errorf(CodeConflict, "no program has been started yet%s", where)
	e.Hint = "agentctl wait waits until the box is ready; agentctl boot shows the phases"
	return e
}

// Error returns the message, and the hint in parentheses.
func (e *Error) Error() string {
	if e.Hint == "" {
		return e.Message
	}
	return e.Message + " (" + e.Hint + ")"
}

// UnreachableError says that no server answers on the socket.
type UnreachableError struct {
	Socket string
	Err    error
}

func (e *UnreachableError) Error() string {
	hint := ""
	switch {
	case errors.Is(e.Err, fs.ErrPermission):
		hint = " (run agentctl as root, or as the user of agentinit)"
	case errors.Is(e.Err, fs.ErrNotExist), errors.Is(e.Err, syscall.ECONNREFUSED):
		hint = " (is agentinit running? --socket or $AGENTCTL_SOCKET names another socket)"
	}
	cause := e.Err
	if dial, ok := errors.AsType[*net.OpError](cause); ok && dial.Addr != nil && dial.Addr.String() == e.Socket {
		cause = dial.Err // without the socket, which is named already
	}
	return fmt.Sprintf("cannot reach agentinit at %s: %v%s", e.Socket, cause, hint)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// CodeOf returns the code of the Error in err's chain, or "" if there is none.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}
