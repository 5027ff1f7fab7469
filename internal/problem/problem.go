// Package problem owns the error documents of the HTTP API (RFC 9457): their codes, and the members
// that every document has. Clients meet one set of codes, whichever package refuses a request. Only the
// rows of the control API have codes of their own (package api of supervisor/control).
package problem

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Type is the media type of an error document.
const Type = "application/problem+json"

// urn + code in lower case is the "type" member.
const urn = "urn:agentbox:error:"

// Code identifies an error for programs. It is stable across versions.
type Code string

// All codes that an adapter, the middleware or the API can return.
const (
	Validation          Code = "VALIDATION_ERROR"
	Unauthenticated     Code = "UNAUTHENTICATED"
	PermissionDenied    Code = "PERMISSION_DENIED"
	NotFound            Code = "NOT_FOUND"
	AlreadyClaimed      Code = "ALREADY_CLAIMED"
	NotClaimable        Code = "NOT_CLAIMABLE"
	DependencyCycle     Code = "DEPENDENCY_CYCLE"
	Conflict            Code = "CONFLICT"
	ContractMismatch    Code = "CONTRACT_MISMATCH"
	SessionEvicted      Code = "SESSION_EVICTED"
	PreconditionFailed  Code = "PRECONDITION_FAILED"
	PayloadTooLarge     Code = "PAYLOAD_TOO_LARGE"
	Unsupported         Code = "UNSUPPORTED"
	IdempotencyMismatch Code = "IDEMPOTENCY_MISMATCH"
	Spawn               Code = "SPAWN_ERROR"
	RateLimited         Code = "RATE_LIMITED"
	Internal            Code = "INTERNAL"
	Disabled            Code = "ADAPTER_DISABLED"
	Embedding           Code = "EMBEDDING_ERROR"
	Unavailable         Code = "UNAVAILABLE"
	PrivacyRejected     Code = "PRIVACY_REJECTED"
	Timeout             Code = "ADAPTER_TIMEOUT"
)

// Row is one line of the table of codes.
type Row struct {
	Code      Code
	HTTP      int  // the HTTP status of its answer
	Retryable bool // whether the same call may succeed later
	Title     string
}

var rows = [...]Row{
	{Validation, http.StatusBadRequest, false, "bad input"},
	{Unauthenticated, http.StatusUnauthorized, false, "no or bad credentials"},
	{PermissionDenied, http.StatusForbidden, false, "not allowed"},
	{NotFound, http.StatusNotFound, false, "not found"},
	{AlreadyClaimed, http.StatusConflict, false, "held by another actor"},
	{NotClaimable, http.StatusConflict, false, "closed or deferred"},
	{DependencyCycle, http.StatusConflict, false, "dependencies would form a cycle"},
	{Conflict, http.StatusConflict, true, "lost a race, or key in use"},
	{ContractMismatch, http.StatusConflict, false, "contract versions do not match"},
	{SessionEvicted, http.StatusGone, false, "the host ended the session"},
	{PreconditionFailed, http.StatusPreconditionFailed, false, "stale version or ETag"},
	{PayloadTooLarge, http.StatusRequestEntityTooLarge, false, "body or quota exceeded"},
	{Unsupported, http.StatusUnsupportedMediaType, false, "not supported here"},
	{IdempotencyMismatch, http.StatusUnprocessableEntity, false, "key used for another request"},
	{Spawn, http.StatusUnprocessableEntity, false, "cannot start the agent"},
	{RateLimited, http.StatusTooManyRequests, true, "too many calls"},
	{Internal, http.StatusInternalServerError, false, "internal error"},
	{Disabled, http.StatusNotImplemented, false, "slot is off"},
	{Embedding, http.StatusBadGateway, true, "embedder failed"},
	{Unavailable, http.StatusServiceUnavailable, true, "not available now"},
	{PrivacyRejected, http.StatusServiceUnavailable, true, "strict privacy and no redactor"},
	{Timeout, http.StatusGatewayTimeout, true, "deadline passed"},
}

// Codes is the whole table.
func Codes() []Row { return slices.Clone(rows[:]) }

// Row returns the table's row for c. An unknown code gets the row of INTERNAL.
func (c Code) Row() Row {
	i := c.index()
	if i < 0 {
		i = Internal.index()
	}
	return rows[i]
}

// Known tells whether the table has c.
func (c Code) Known() bool { return c.index() >= 0 }

func (c Code) index() int {
	return slices.IndexFunc(rows[:], func(r Row) bool { return r.Code == c })
}

// Document makes doc, which holds the further members, an error document: it sets type, title,
// status, detail, message (= detail; older peers read it), code and retryable. It returns an error if
// a further member cannot be written as JSON.
func Document(doc map[string]any, code Code, status int, detail string, retryable bool) ([]byte, error) {
	row := code.Row()
	doc["type"] = urn + strings.ToLower(string(row.Code))
	doc["title"] = row.Title
	doc["status"] = status
	doc["detail"] = detail
	doc["message"] = detail
	doc["code"] = row.Code
	doc["retryable"] = retryable
	body, err := json.Marshal(doc)
	return append(body, '\n'), err
}

// Write answers with a document.
func Write(w http.ResponseWriter, status int, document []byte) {
	h := w.Header()
	h.Set("Content-Type", Type)
	h.Set("Content-Length", strconv.Itoa(len(document)))
	w.WriteHeader(status)
	// The status is sent already: an error of the connection cannot be answered.
	_, _ = w.Write(document)
}
