package adapters

import (
	"cmp"
	"encoding/json"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/internal/outbound"
	"github.com/dreamlab-ai/agentinit/internal/problem"
)

// ProblemType is the media type of an error body (RFC 9457).
const ProblemType = problem.Type

// resourceStatus is the name on the wire of an error's field "status", such as the status of a
// bead. RFC 9457 uses the name status for the HTTP status.
const resourceStatus = "resource_status"

// Problem returns the HTTP status and the RFC 9457 body for err. The body has type, title, status,
// detail, code, message, retryable, slot, method and the error's fields. It does not show the cause. An
// INTERNAL error shows only its error id, which is also in the log.
func Problem(err error) (status int, body []byte) {
	e := AsError(err)
	status = e.HTTPStatus()
	detail := e.Message
	if row := e.Code.Row(); row.Code == CodeInternal {
		detail = row.Title
	}
	more := maps.Clone(e.Fields)
	if more == nil {
		more = make(map[string]any, 10)
	}
	if s, ok := more["status"]; ok {
		more[resourceStatus] = s // "status" is RFC 9457's
	}
	if e.Slot != "" {
		more["slot"] = e.Slot
	}
	if e.Method != "" {
		more["method"] = e.Method
	}
	body, failed := problem.Document(more, e.Code, status, detail, e.Retryable)
	if failed != nil {
		// A field that cannot be marshalled is a defect of agentinit. The error itself must still
		// arrive.
		bare := *e
		bare.Fields = nil
		return Problem(&bare)
	}
	return status, body
}

// WriteProblem answers a request with the result of Problem. It sets Retry-After if err names a
// delay, is RATE_LIMITED, or is about a degraded slot.
func WriteProblem(w http.ResponseWriter, err error) {
	e := AsError(err)
	status, body := Problem(e)
	h := w.Header()
	if size, _ := e.Fields[fieldContentRange].(string); status == http.StatusRequestedRangeNotSatisfiable && size != "" {
		h.Set("Content-Range", size)
	}
	if d := e.RetryAfter(); d > 0 {
		h.Set("Retry-After", strconv.Itoa(int((d+time.Second-1)/time.Second)))
	} else if e.Code == CodeRateLimited {
		h.Set("Retry-After", "1")
	}
	problem.Write(w, status, body)
}

// maxRetryAfter is the longest delay that is taken from a peer.
const maxRetryAfter = time.Hour

// Bounds of what is kept of a peer's error.
const (
	maxForeignDetail  = 512 // bytes of a text
	maxForeignMembers = 16  // further members
	maxForeignList    = 100 // elements of a list, such as the beads of a cycle
)

// problemMembers are the members that Problem writes itself, and the delay, which the header Retry-After
// says too. FromProblem does not keep them as fields.
var problemMembers = map[string]bool{
	"type": true, "title": true, "status": true, "detail": true, "message": true,
	"code": true, "retryable": true, "method": true, "slot": true, fieldRetryAfter: true,
}

// FromProblem turns the error answer of a peer into an Error. If the body has a code of the table,
// that is the code; otherwise it follows from the status.
func FromProblem(status int, header http.Header, body []byte) *Error {
	e := fromBody(status, header, body)
	if e == nil {
		code, method := foreignCode(status)
		e = Errorf(code, "the peer answered %d %s", status, http.StatusText(status)).With("peer_status", status)
		if method {
			e = e.With("method", "unknown")
		}
		if text := plainDetail(header, body); text != "" {
			e.Message += ": " + text
		}
	}
	if status == http.StatusRequestedRangeNotSatisfiable && e.Code == CodeValidation {
		e = e.With(fieldContentRange, unsatisfied(header.Get("Content-Range")))
	}
	if status == http.StatusNotAcceptable && e.Code == CodeUnsupported {
		e = e.With(fieldNotAcceptable, true)
	}
	if d := outbound.RetryAfter(header); d > 0 {
		e = e.WithRetryAfter(min(d, maxRetryAfter))
	}
	return e
}

// fieldContentRange is the field of an error about a Range of which a resource has no byte. It has the value
// of the header Content-Range (RFC 9110, 15.5.17), or "" if the peer has not sent one.
const fieldContentRange = "content_range"

// fieldNotAcceptable is the field of an error about the header Accept: the peer has the resource in none of
// the media types that the request accepts. So the error stays a 406 when it is passed on.
const fieldNotAcceptable = "not_acceptable"

// unsatisfied returns the Content-Range of a peer if it says how long the resource is, otherwise "".
func unsatisfied(contentRange string) string {
	size, ok := strings.CutPrefix(contentRange, "bytes */")
	if _, err := strconv.ParseUint(size, 10, 63); !ok || err != nil {
		return ""
	}
	return contentRange
}

func fromBody(status int, header http.Header, body []byte) *Error {
	mt, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
	if mt != ProblemType && mt != "application/json" {
		return nil
	}
	var m map[string]any
	if json.Unmarshal(body, &m) != nil {
		return nil
	}
	name, _ := m["code"].(string)
	code := Code(name)
	if !code.Known() {
		return nil
	}
	e := Errorf(code, "%s", cmp.Or(firstText(m, "detail", "message", "title"), "the peer gave no reason"))
	if r, ok := m["retryable"].(bool); ok {
		e.Retryable = r
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		v, ok := foreignValue(m[k], true)
		if !ok || problemMembers[k] || k == fieldContentRange || k == fieldNotAcceptable || CheckID("name", k) != nil || len(e.Fields) == maxForeignMembers {
			continue
		}
		if k == resourceStatus {
			k = "status"
		}
		e = e.With(k, v)
	}
	if code == CodeUnsupported && status == http.StatusNotImplemented && e.Fields["capability"] == nil {
		e = e.With("capability", "unknown") // so that it stays a 501 when passed on
	}
	return e
}

// foreignValue is a value of a peer's error with its texts as lines, or false for a value of a kind that
// no error of ours has.
func foreignValue(v any, list bool) (any, bool) {
	switch v := v.(type) {
	case nil, bool, float64:
		return v, true
	case string:
		return escape.Line(v, maxForeignDetail), true
	case []any:
		kept := make([]any, 0, min(len(v), maxForeignList))
		for _, element := range v[:cap(kept)] {
			element, ok := foreignValue(element, false)
			if !ok {
				return nil, false
			}
			kept = append(kept, element)
		}
		return kept, list
	}
	return nil, false
}

// firstText is the first text among some members of a peer's error, as one line.
func firstText(m map[string]any, keys ...string) string {
	for _, k := range keys {
		if s, _ := m[k].(string); s != "" {
			return escape.Line(s, maxForeignDetail)
		}
	}
	return ""
}

func plainDetail(header http.Header, body []byte) string {
	mt, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
	if strings.HasSuffix(mt, "json") {
		var m map[string]any
		if json.Unmarshal(body, &m) != nil {
			return ""
		}
		return firstText(m, "detail", "message", "error", "title")
	}
	if mt != "text/plain" {
		return ""
	}
	return escape.Line(string(body), maxForeignDetail)
}

// Cut returns the first n bytes of a text that is longer, with a mark.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// foreignCode maps the status of an answer without a code. The second result
// says that UNSUPPORTED is about the method, not a media type.
func foreignCode(status int) (Code, bool) {
	switch status {
	case 400, 422:
		return CodeValidation, false
	case 401:
		return CodeUnauthenticated, false
	case 403:
		return CodePermissionDenied, false
	case 404, 410:
		return CodeNotFound, false
	case 405, 501:
		return CodeUnsupported, true
	case 406, 415:
		return CodeUnsupported, false
	case 408, 504:
		return CodeTimeout, false
	case 409:
		return CodeConflict, false
	case 412:
		return CodePreconditionFailed, false
	case 413, 507:
		return CodePayloadTooLarge, false
	case 429:
		return CodeRateLimited, false
	}
	if status >= 400 && status < 500 {
		return CodeValidation, false
	}
	// 5xx, and statuses for which agentinit's clients do not ask: the peer cannot be used.
	return CodeUnavailable, false
}
