package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// Time limits of one request. They replace the deadlines of the listener, because a handler may
// take longer than those allow.
const (
	bodyLimit     = 10 * time.Second // to receive a JSON body
	transferLimit = 2 * time.Minute  // to receive or send a large body
	answerLimit   = 30 * time.Second // to send an answer
)

// request is one request in a handler. A handler that has sent an answer must return nil.
type request struct {
	*http.Request
	s       *Server
	w       http.ResponseWriter
	rc      *http.ResponseController
	who     Principal
	row     route
	report  *adapters.Report
	begun   bool          // the answer has begun
	held    int64         // bytes of the body that count in heldBodies
	answers *largeAnswers // count the answer; nil = it is not large
	unsent  int64         // bytes of the answer that count in answers
}

// param returns a parameter of the path, percent-decoded once.
func (q *request) param(name string) string {
	v, _ := url.PathUnescape(chi.URLParam(q.Request, name)) // in url.URL.EscapedPath no escape is broken
	return v
}

// readDeadline and writeDeadline replace the deadlines of the listener; 0 removes them. The errors
// are ignored: a ResponseWriter in tests has no deadlines.
func (q *request) readDeadline(d time.Duration)  { _ = q.rc.SetReadDeadline(after(d)) }
func (q *request) writeDeadline(d time.Duration) { _ = q.rc.SetWriteDeadline(after(d)) }

// after returns the time d from now, the zero time for 0.
func after(d time.Duration) time.Time {
	if d == 0 {
		return time.Time{}
	}
	return time.Now().Add(d)
}

// body reads the whole body, within bodyLimit and the size limit of the row. Afterwards it removes
// the read deadline: if the deadline passed, net/http would cancel the request's context as if the
// caller had disconnected.
func (q *request) body() ([]byte, error) {
	limit := q.row.bodyLimit()
	q.readDeadline(bodyLimit)
	return q.whole(limit)
}

// whole reads the body, within limit and within the limit of all bodies together (heldBodies).
func (q *request) whole(limit int64) ([]byte, error) {
	raw, err := io.ReadAll(&heldReader{http.MaxBytesReader(q.w, q.Body, limit), q})
	if err != nil {
		return nil, bodyError(err, limit)
	}
	q.readDeadline(0)
	return raw, nil
}

func bodyError(err error, limit int64) error {
	if errors.Is(err, errHeldBodies) {
		return err
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return adapters.TooLarge("body", limit, -1)
	}
	return adapters.Errorf(adapters.CodeValidation, "the body cannot be read to its end").Wrap(err)
}

// list returns a header that is a list. A client or a proxy may send it in several lines (RFC 9110, 5.3).
func (q *request) list(name string) string {
	return strings.TrimSpace(strings.Join(q.Header.Values(name), ", "))
}

// mediaType returns the content type of the request without parameters, "" if there is none.
func (q *request) mediaType() (string, error) {
	v := q.Header.Get("Content-Type")
	if v == "" {
		return "", nil
	}
	mt, _, err := mime.ParseMediaType(v)
	if err != nil {
		return "", adapters.Invalid("Content-Type", "is not a media type")
	}
	return mt, nil
}

// json reads a JSON body into out. It ignores unknown members and refuses wrong types. A missing
// body counts as {} if the members are all optional; otherwise it is refused.
func (q *request) json(out any) error {
	mt, err := q.mediaType()
	if err != nil {
		return err
	}
	if mt != "" && mt != jsonType && !strings.HasSuffix(mt, "+json") {
		return adapters.Errorf(adapters.CodeUnsupported, "the body must be %s, not %s", jsonType, adapters.Cut(mt, 100))
	}
	raw, err := q.body()
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return q.withoutBody()
	}
	return q.unmarshal(raw, out)
}

// fromJSON makes a row's handler of one that takes the JSON body.
func fromJSON[T any](handle func(*request, T) error) func(*request) error {
	return func(q *request) error {
		var in T
		if err := q.json(&in); err != nil {
			return err
		}
		return handle(q, in)
	}
}

// Decoding a list of short values can take 50 times the memory of its text. So only maxDecoding bodies
// above smallBody are decoded at a time, in the whole server.
const (
	maxDecoding = 4
	smallBody   = 16 << 10 // bytes
)

// unmarshal reads the JSON object of a body into out.
func (q *request) unmarshal(raw []byte, out any) error {
	if len(raw) > smallBody {
		if err := q.s.decoding.enter(q.Context()); err != nil {
			return err
		}
		defer q.s.decoding.leave()
	}
	return unmarshal(raw, out)
}

// withoutBody checks a request that has no body. If its JSON has required members, the error names them.
func (q *request) withoutBody() error {
	names := requiredMembers(q.row.Body)
	if len(names) == 0 {
		return nil
	}
	return adapters.Invalid(names[0], "is required: send a JSON object with %s", strings.Join(names, ", "))
}

// unmarshal reads one JSON object into out.
func unmarshal(raw []byte, out any) error {
	if err := adapters.CheckUnicode("body", raw); err != nil {
		return err
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return adapters.Undecodable("body", err)
	}
	return nil
}

// page reads limit and cursor from the query.
func (q *request) page() (adapters.PageOpt, error) {
	v := q.URL.Query()
	opt := adapters.PageOpt{Cursor: v.Get("cursor")}
	n, err := intParam(v, "limit")
	if err != nil {
		return opt, err
	}
	if v.Has("limit") && (n < 1 || n > adapters.MaxPageLimit) {
		return opt, adapters.Invalid("limit", "must be 1-%d", adapters.MaxPageLimit).With("limit", adapters.MaxPageLimit)
	}
	opt.Limit = n
	return opt, opt.Check()
}

// intParam reads an integer from the query, 0 if it is absent.
func intParam(v url.Values, name string) (int, error) {
	if !v.Has(name) {
		return 0, nil
	}
	n, err := strconv.Atoi(v.Get(name))
	if err != nil {
		return 0, adapters.Invalid(name, "must be an integer")
	}
	return n, nil
}

func boolParam(v url.Values, name string) (bool, error) {
	if !v.Has(name) || v.Get(name) == "" {
		return v.Has(name), nil
	}
	b, err := strconv.ParseBool(v.Get(name))
	if err != nil {
		return false, adapters.Invalid(name, "must be true or false")
	}
	return b, nil
}

// begin sets the headers that every answer has, and the deadline for sending the answer.
func (q *request) begin(contentType string) http.Header {
	q.begun = true
	q.writeDeadline(answerLimit)
	h := q.w.Header()
	if contentType != "" {
		h.Set("Content-Type", contentType)
	}
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if q.report.Replayed {
		h.Set(headerReplayed, "true")
	}
	return h
}

// reply answers with a JSON document.
func (q *request) reply(status int, v any) error { return q.replyAs(jsonType, status, v) }

// result answers with a JSON document, or returns err.
func (q *request) result(status int, v any, err error) error {
	if err != nil {
		return err
	}
	return q.reply(status, v)
}

// replyAs answers with a JSON document of another media type.
func (q *request) replyAs(mediaType string, status int, v any) error {
	body, err := q.encode(v)
	if err != nil {
		return err
	}
	h := q.begin(mediaType)
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	q.w.WriteHeader(status)
	// The status is already sent: the caller cannot be told of an error of the connection.
	_, _ = q.w.Write(append(body, '\n'))
	return nil
}

// done answers 204, or returns err.
func (q *request) done(err error) error {
	if err != nil {
		return err
	}
	q.begin("")
	q.w.WriteHeader(http.StatusNoContent)
	return nil
}

// next adds Link rel="next" (RFC 8288) if there is another page.
func (q *request) next(cursor adapters.NullString) {
	if cursor == "" {
		return
	}
	v := q.URL.Query()
	v.Set("cursor", string(cursor))
	u := url.URL{Path: q.URL.Path, RawPath: q.URL.RawPath, RawQuery: v.Encode()}
	q.w.Header().Set("Link", "<"+u.String()+`>; rel="next"`)
}

// list answers with one page of a list, or returns err.
func list[T any](q *request, page adapters.Page[T], err error) error {
	q.next(page.NextCursor)
	return q.result(http.StatusOK, page, err)
}

// whole answers with a list that has no further pages, or returns err.
func whole[T any](q *request, items []T, err error) error {
	return q.result(http.StatusOK, adapters.Page[T]{Items: items}, err)
}

// part answers with a page of a list that the slot gives as a whole; without a limit, that is the rest of the
// list. The cursor is the key of the last item before the page.
func part[T any](q *request, items []T, key func(T) string) error {
	opt, err := q.page()
	if err != nil {
		return err
	}
	if opt.Cursor != "" {
		at := slices.IndexFunc(items, func(item T) bool { return key(item) == opt.Cursor })
		if at < 0 {
			return adapters.Invalid("cursor", "names an entry that is no longer listed; begin again without it")
		}
		items = items[at+1:]
	}
	page := adapters.Page[T]{Items: items}
	if opt.Limit > 0 && opt.Limit < len(items) {
		page.Items, page.NextCursor = items[:opt.Limit], adapters.NullString(key(items[opt.Limit-1]))
	}
	return list(q, page, nil)
}

// transfer reads a large body, with more time than body.
func (q *request) transfer() ([]byte, error) {
	limit := q.row.bodyLimit()
	q.readDeadline(transferLimit)
	return q.whole(limit)
}
