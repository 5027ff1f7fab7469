package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/ijson"
)

// Response is an answer that was read completely.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
	URL    *url.URL // after redirects
}

func readAll(r io.Reader, limit int64) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(body)) > limit {
		return nil, lied("answer is larger than %d bytes", limit)
	}
	return body, nil
}

// lied is UNAVAILABLE without a chance that a retry helps: the peer does not use the format.
func lied(format string, args ...any) *adapters.Error {
	return adapters.Unavailable(nil, "the peer's "+format, args...).Final()
}

// JSON sends in (nil = no body) and reads a JSON answer into out. If out is nil, or the status is
// 204 with an empty body, the body is ignored.
func (c *Client) JSON(ctx context.Context, r Request, in, out any) (*Response, error) {
	if in != nil {
		body, err := json.Marshal(in)
		if err != nil {
			return nil, adapters.Errorf(adapters.CodeValidation, "cannot be written as JSON").Wrap(err)
		}
		r.Body, r.ContentType = body, "application/json"
	}
	res, err := c.Do(ctx, r)
	if err != nil {
		return nil, err
	}
	if out == nil || res.Status == http.StatusNoContent {
		return res, nil
	}
	return res, decode(res, out)
}

// maxElements bounds each list of an answer. The longest list of a good answer is in the payload of an
// event. The memory for a list is up to 200 times as large as its text.
const maxElements = adapters.MaxEventPayload

// decode reads a JSON answer into out. If the content type or the shape of the JSON is different,
// the error is UNAVAILABLE: the peer is not the expected one.
func decode(res *Response, out any) error {
	mt, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if mt != "application/json" && !strings.HasSuffix(mt, "+json") {
		return lied("answer is %q, not JSON", mt)
	}
	if _, longest := ijson.Elements(res.Body); longest > maxElements {
		return lied("answer has a list of more than %d elements", maxElements)
	}
	if err := json.Unmarshal(res.Body, out); err != nil {
		return lied("answer cannot be read as JSON of the contract: %v", err)
	}
	return nil
}

// List reads a list in one of two forms that peers send: an array, or an envelope with items and
// next_cursor. The next cursor of an array comes from Link rel="next".
func List[T any](res *Response) (adapters.Page[T], error) {
	var page adapters.Page[T]
	// The first byte decides, so that the body is parsed once.
	if bytes.HasPrefix(bytes.TrimLeft(res.Body, " \t\r\n"), []byte("{")) {
		return page, decode(res, &page)
	}
	if err := decode(res, &page.Items); err != nil {
		return page, err
	}
	page.NextCursor = adapters.NullString(nextCursor(res.Header))
	return page, nil
}

// nextCursor is the cursor parameter of Link rel="next" (RFC 8288).
func nextCursor(h http.Header) string {
	for _, line := range h.Values("Link") {
		for link := range strings.SplitSeq(line, ",") {
			target, params, ok := strings.Cut(strings.TrimSpace(link), ">")
			if !ok || !strings.HasPrefix(target, "<") {
				continue
			}
			rel := strings.ReplaceAll(strings.ReplaceAll(params, " ", ""), `"`, "")
			if !strings.Contains(rel+";", ";rel=next;") {
				continue
			}
			if u, err := url.Parse(target[1:]); err == nil {
				return u.Query().Get("cursor")
			}
		}
	}
	return ""
}
