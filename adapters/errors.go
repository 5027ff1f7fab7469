package adapters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/problem"
)

// Code identifies an error for programs. It is stable across versions.
type Code = problem.Code

// All codes that an adapter, the middleware or the API can return.
const (
	CodeValidation          = problem.Validation
	CodeUnauthenticated     = problem.Unauthenticated
	CodePermissionDenied    = problem.PermissionDenied
	CodeNotFound            = problem.NotFound
	CodeAlreadyClaimed      = problem.AlreadyClaimed
	CodeNotClaimable        = problem.NotClaimable
	CodeDependencyCycle     = problem.DependencyCycle
	CodeConflict            = problem.Conflict
	CodeContractMismatch    = problem.ContractMismatch
	CodeSessionEvicted      = problem.SessionEvicted
	CodePreconditionFailed  = problem.PreconditionFailed
	CodePayloadTooLarge     = problem.PayloadTooLarge
	CodeUnsupported         = problem.Unsupported
	CodeIdempotencyMismatch = problem.IdempotencyMismatch
	CodeSpawn               = problem.Spawn
	CodeRateLimited         = problem.RateLimited
	CodeInternal            = problem.Internal
	CodeDisabled            = problem.Disabled
	CodeEmbedding           = problem.Embedding
	CodeUnavailable         = problem.Unavailable
	CodePrivacyRejected     = problem.PrivacyRejected
	CodeTimeout             = problem.Timeout
)

// Codes is the whole table. Error.HTTPStatus adjusts three codes: VALIDATION_ERROR is 416 if it is about a
// Range beyond the end, UNSUPPORTED is 501 if it is about a method or capability and 406 if it is about the
// header Accept, and ADAPTER_DISABLED is 503 and retryable if the slot is degraded.
func Codes() []problem.Row { return problem.Codes() }

// Error is the only type of error that leaves a slot. It is immutable: With, Wrap, At and Final
// return changed copies.
type Error struct {
	Code      Code
	Message   string // for people, one sentence, no secrets
	Slot      Slot
	Method    string
	Retryable bool
	// Fields are the extra members of the problem document, such as "field",
	// "limit", "resource", "id". Values marshal to JSON.
	Fields map[string]any

	cause error
}

// Targets for errors.Is: each matches every Error with its code, even a wrapped one.
var (
	ErrValidation          = &Error{Code: CodeValidation}
	ErrUnauthenticated     = &Error{Code: CodeUnauthenticated}
	ErrPermissionDenied    = &Error{Code: CodePermissionDenied}
	ErrNotFound            = &Error{Code: CodeNotFound}
	ErrAlreadyClaimed      = &Error{Code: CodeAlreadyClaimed}
	ErrConflict            = &Error{Code: CodeConflict}
	ErrContractMismatch    = &Error{Code: CodeContractMismatch}
	ErrPreconditionFailed  = &Error{Code: CodePreconditionFailed}
	ErrPayloadTooLarge     = &Error{Code: CodePayloadTooLarge}
	ErrUnsupported         = &Error{Code: CodeUnsupported}
	ErrIdempotencyMismatch = &Error{Code: CodeIdempotencyMismatch}
	ErrSpawn               = &Error{Code: CodeSpawn}
	ErrRateLimited         = &Error{Code: CodeRateLimited}
	ErrInternal            = &Error{Code: CodeInternal}
	ErrDisabled            = &Error{Code: CodeDisabled}
	ErrEmbedding           = &Error{Code: CodeEmbedding}
	ErrUnavailable         = &Error{Code: CodeUnavailable}
	ErrPrivacyRejected     = &Error{Code: CodePrivacyRejected}
	ErrTimeout             = &Error{Code: CodeTimeout}
)

// Errorf makes an error of the given code. A %w operand becomes its cause.
func Errorf(code Code, format string, args ...any) *Error {
	wrapped := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: wrapped.Error(), Retryable: code.Row().Retryable, cause: errors.Unwrap(wrapped)}
}

// Error says what happened, where and with which code.
func (e *Error) Error() string {
	where := string(e.Slot)
	if e.Method != "" {
		where += "." + e.Method
	}
	if where != "" {
		where += ": "
	}
	if e.Message == "" {
		return where + string(e.Code)
	}
	return where + e.Message + " (" + string(e.Code) + ")"
}

// Unwrap returns the cause, if any.
func (e *Error) Unwrap() error { return e.cause }

// Is makes errors.Is(err, ErrNotFound) compare codes. A target with a message is compared by
// identity instead.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Message == "" && t.Slot == "" && t.Code == e.Code
}

// With returns a copy with further fields, given as name, value pairs.
func (e *Error) With(pairs ...any) *Error {
	c := *e
	c.Fields = maps.Clone(e.Fields)
	if c.Fields == nil {
		c.Fields = make(map[string]any, len(pairs)/2)
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		c.Fields[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return &c
}

// Wrap returns a copy with the cause err. errors.Is and the log see the cause; the caller over the
// wire does not.
func (e *Error) Wrap(err error) *Error {
	c := *e
	c.cause = err
	return &c
}

// At returns a copy that names slot and method, unless they are named already.
func (e *Error) At(slot Slot, method string) *Error {
	if e.Slot != "" && e.Method != "" {
		return e
	}
	c := *e
	c.Slot = cmp.Or(c.Slot, slot)
	c.Method = cmp.Or(c.Method, method)
	return &c
}

// Final returns a copy that says that a repeated call cannot succeed.
func (e *Error) Final() *Error {
	c := *e
	c.Retryable = false
	return &c
}

// RetryAfter is how long the caller should wait, 0 if unknown.
func (e *Error) RetryAfter() time.Duration {
	switch s := e.Fields[fieldRetryAfter].(type) {
	case int:
		return time.Duration(s) * time.Second
	case float64:
		return time.Duration(s * float64(time.Second))
	}
	return 0
}

// WithRetryAfter returns a copy that tells the caller when to try again,
// rounded up to whole seconds.
func (e *Error) WithRetryAfter(d time.Duration) *Error {
	return e.With(fieldRetryAfter, int((d+time.Second-1)/time.Second))
}

const fieldRetryAfter = "retry_after_s"

// HTTPStatus is the HTTP status of the answer.
func (e *Error) HTTPStatus() int {
	switch e.Code {
	case CodeValidation:
		if e.Fields[fieldContentRange] != nil {
			return http.StatusRequestedRangeNotSatisfiable
		}
	case CodeUnsupported:
		if e.Fields["capability"] != nil || e.Fields["method"] != nil {
			return http.StatusNotImplemented
		}
		if e.Fields[fieldNotAcceptable] != nil {
			return http.StatusNotAcceptable
		}
	case CodeDisabled:
		if degraded, _ := e.Fields["degraded"].(bool); degraded {
			return http.StatusServiceUnavailable
		}
	}
	return e.Code.Row().HTTP
}

// CodeOf returns the code of err, INTERNAL if err has none, "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return AsError(err).Code
}

// AsError returns err as an *Error, nil for nil. An expired deadline becomes ADAPTER_TIMEOUT. So
// does a cancelled call, because its caller no longer waits. Any other error without a code becomes
// INTERNAL with err as its cause.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return Errorf(CodeTimeout, "the deadline passed").Wrap(err)
	case errors.Is(err, context.Canceled):
		return Errorf(CodeTimeout, "the caller gave up").Wrap(err)
	}
	return Errorf(CodeInternal, "internal error").Wrap(err)
}

// Invalid is VALIDATION_ERROR about one input field.
func Invalid(field, format string, args ...any) *Error {
	return Errorf(CodeValidation, "%s: %s", field, fmt.Sprintf(format, args...)).With("field", field)
}

// OverLimit is VALIDATION_ERROR about a field above its limit.
func OverLimit(field string, limit int64) *Error {
	return Invalid(field, "more than %d", limit).With("limit", limit)
}

// TooLarge is PAYLOAD_TOO_LARGE: a body or quota of limit bytes is exceeded by
// used bytes; used < 0 means unknown.
func TooLarge(what string, limit, used int64) *Error {
	e := Errorf(CodePayloadTooLarge, "%s is larger than %d bytes", what, limit).With("limit", limit)
	if used >= 0 {
		e = e.With("used", used)
	}
	return e
}

// NotFound is NOT_FOUND of a resource such as "bead" by its id.
func NotFound(resource, id string) *Error {
	return Errorf(CodeNotFound, "no %s %q", resource, id).With("resource", resource, "id", id)
}

// Unsupported is UNSUPPORTED about a method or optional capability.
func Unsupported(capability, format string, args ...any) *Error {
	return Errorf(CodeUnsupported, format, args...).With("capability", capability)
}

// Unavailable is UNAVAILABLE: the backend cannot be reached or has failed.
func Unavailable(cause error, format string, args ...any) *Error {
	e := Errorf(CodeUnavailable, format, args...)
	if cause != nil {
		e.Message += ": " + cause.Error()
		e.cause = cause
	}
	return e
}

// Closed is what every method of an adapter answers after Disconnect, and
// before its first Connect.
func Closed(slot Slot) *Error {
	return Errorf(CodeUnavailable, "the %s adapter is not connected", slot).With("slot", slot)
}

// disabled is ADAPTER_DISABLED: the manifest turns the slot off, or the slot is degraded and may
// come back.
func disabled(slot Slot, degraded bool) *Error {
	if !degraded {
		return Errorf(CodeDisabled, "the %s slot is off; adapters.%s in the manifest switches it on at the next boot", slot, slot).With("slot", slot, "degraded", false)
	}
	e := Errorf(CodeDisabled, "the %s slot is degraded: its adapter could not connect; agentctl adapters shows why", slot).
		With("slot", slot, "degraded", true).WithRetryAfter(degradedRetryAfter)
	e.Retryable = true
	return e
}

// degradedRetryAfter is how long callers of a degraded slot should wait. Reconnects are up to a
// minute apart, but the slot may recover at any moment.
const degradedRetryAfter = 5 * time.Second
