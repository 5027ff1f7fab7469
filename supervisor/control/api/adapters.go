package api

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
)

// AdaptersPrefix precedes the paths of the management API on the control socket, because the socket
// has its own events and status.
const AdaptersPrefix = "/adapters"

// AdapterRequest is one request to the slots of the box.
type AdapterRequest struct {
	Method string
	Path   string // as on the management listener, escaped: "/v1/beads/ab-1"
	Query  url.Values
	Header http.Header
	Body   io.Reader // nil = none
}

// Adapters sends r and returns the answer if it is a success. The caller closes its body. A refusal
// is an *Error with a code of the slots, such as NOT_FOUND.
func (c *Client) Adapters(ctx context.Context, r AdapterRequest) (*http.Response, error) {
	target, err := url.Parse("http://agentinit" + AdaptersPrefix + r.Path)
	if err != nil {
		return nil, fmt.Errorf("cannot ask for %q: %w", r.Path, err)
	}
	target.RawQuery = r.Query.Encode()
	req, err := http.NewRequestWithContext(ctx, r.Method, target.String(), r.Body)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, r.Header)
	resp, err := c.roundTrip(req)
	if err != nil {
		return nil, c.lost(ctx, err)
	}
	return Answered(resp)
}

// Answered returns a successful answer. For any other, it closes the answer and returns its *Error.
func Answered(resp *http.Response) (*http.Response, error) {
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, readError(resp)
}
