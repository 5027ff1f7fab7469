package solid

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/problem"
)

// fault is an answer that is no success. Its text is one sentence without secrets.
type fault struct {
	status int // 0 = that of the code
	code   adapters.Code
	text   string
	cause  error // for the log of the server
	retry  int   // seconds; 0 = no Retry-After
	again  bool  // the client may try again at once
}

var (
	// ErrSignAgain is an error of Config.Identify: the signature could be one that was used before the server began.
	ErrSignAgain = errors.New("the request was signed before this server began: sign it again")
	// ErrTooManySigned is an error of an Identity: the signature is good, and the server can remember no more of them now.
	ErrTooManySigned = errors.New("too many signed requests: try again later")
)

// roomAfter is how many seconds later a request is to be tried again for which ErrTooManySigned is the reason.
const roomAfter = 15

func (f *fault) Error() string {
	if f.cause != nil {
		return f.text + ": " + f.cause.Error()
	}
	return f.text
}

func faulty(code adapters.Code, format string, args ...any) *fault {
	return &fault{code: code, text: fmt.Sprintf(format, args...)}
}

// badSignature is the answer to an error of Config.Identify or of an Identity.
func badSignature(err error) *fault {
	f := faulty(adapters.CodeUnauthenticated, "%s", err)
	f.again = errors.Is(err, ErrSignAgain)
	if errors.Is(err, ErrTooManySigned) {
		f.code, f.retry = adapters.CodeRateLimited, roomAfter
	}
	return f
}

// with sets the status, where the code has another one.
func (f *fault) with(status int) *fault {
	f.status = status
	return f
}

// broken is a failure of the server itself. The cause goes to its log, not to the client.
func broken(what string, err error) *fault {
	f := &fault{code: adapters.CodeInternal, text: what, cause: err}
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM): // these pass
		f.code, f.retry = adapters.CodeUnavailable, 1
	case errors.Is(err, unix.EROFS):
		f.text += ": the file system of the pods is read-only"
	}
	return f
}

func (q *request) fail(err error) {
	f, ok := errors.AsType[*fault](err)
	if !ok {
		f = broken("the server failed", err)
	}
	status := f.status
	if status == 0 {
		status = f.code.Row().HTTP
	}
	if status >= 500 && q.s.worthLogging(f) {
		q.s.log.Error("cannot answer", "method", q.r.Method, "path", q.r.URL.EscapedPath(), "status", status, "error", f.Error())
	}
	h := q.w.Header()
	if status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Nostr") // NIP-98
	}
	retryable := f.retry > 0 || f.again
	if f.retry > 0 {
		h.Set("Retry-After", strconv.Itoa(f.retry))
	}
	doc, err := problem.Document(map[string]any{}, f.code, status, f.text, retryable)
	if err != nil {
		q.w.WriteHeader(status)
		return
	}
	problem.Write(q.w, status, doc)
}

// worthLogging tells whether a fault is one of the server itself, and the first of its kind in a minute: clients must not fill the log.
func (s *Server) worthLogging(f *fault) bool {
	if f.cause == nil || errors.Is(f.cause, context.Canceled) { // a limit, or the client has left
		return false
	}
	_, ok := s.troubles.Take(f.text, time.Now())
	return ok
}

// unread says why a body could not be read.
func unread(err error) *fault {
	tooLarge, isTooLarge := errors.AsType[*http.MaxBytesError](err)
	f, ok := errors.AsType[*fault](err)
	switch {
	case ok: // of metered
		return f
	case isTooLarge:
		return overLimit("the body", tooLarge.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return faulty(adapters.CodeValidation, "the body has not arrived in time").with(http.StatusRequestTimeout)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return faulty(adapters.CodeValidation, "the body is shorter than its Content-Length")
	}
	return faulty(adapters.CodeValidation, "the body cannot be read: %s", strings.ToValidUTF8(err.Error(), "?"))
}

func overLimit(what string, limit int64) *fault {
	return faulty(adapters.CodePayloadTooLarge, "%s has more than %d bytes, the limit", what, limit)
}
