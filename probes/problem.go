package probes

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

// Codes of the errors that a listener answers by itself. The table of errors in package adapters
// has them too, so that a client meets one set of codes everywhere; this package may not import it.
const (
	codeValidation       = "VALIDATION_ERROR"
	codeUnauthenticated  = "UNAUTHENTICATED"
	codePermissionDenied = "PERMISSION_DENIED"
	codeNotFound         = "NOT_FOUND"
	codeUnsupported      = "UNSUPPORTED"
	codeRateLimited      = "RATE_LIMITED"
	codeInternal         = "INTERNAL"
	codeUnavailable      = "UNAVAILABLE"
)

// problem writes an error as application/problem+json (RFC 9457), with the
// members that every error of the API has; pairs are further members.
func problem(w http.ResponseWriter, status int, code, detail string, pairs ...string) {
	doc := map[string]any{
		"type": "urn:agentbox:error:" + strings.ToLower(code), "title": http.StatusText(status), "status": status,
		"detail": detail, "message": detail, "code": code,
		"retryable": code == codeRateLimited || code == codeUnavailable,
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		doc[pairs[i]] = pairs[i+1]
	}
	body, err := json.Marshal(doc)
	if err != nil {
		body = nil // strings, numbers and booleans always marshal
	}
	noCache(w, "application/problem+json")
	w.WriteHeader(status)
	send(w, append(body, '\n'))
}

// retryProblem is a problem that says after how many seconds to try again.
func retryProblem(w http.ResponseWriter, status int, code string, after int, detail string) {
	w.Header().Set("Retry-After", strconv.Itoa(after))
	problem(w, status, code, detail)
}
