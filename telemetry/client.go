package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Limits of one export.
const (
	// ExportTimeout bounds one export with all its attempts.
	ExportTimeout = 5 * time.Second
	firstPause    = 250 * time.Millisecond // before the second attempt; doubled each time
	maxAnswer     = 64 << 10               // bytes of an answer's body, and of its headers
	maxMessage    = 256                    // bytes of a collector's own words that are passed on
)

// grpcPort is the port that OTLP over gRPC has by convention; every other one is
// taken for OTLP over HTTP (protobuf), as the SDK's environment variables do.
const grpcPort = "4317"

// protocol is what HTTP and gRPC do differently.
type protocol struct {
	header http.Header
	frame  func(message []byte) []byte
	// answer reads an answer whose HTTP status is 200 and returns the message.
	answer func(*http.Response) ([]byte, error)
}

// client is an otlptrace.Client: it carries spans to one collector. It is safe
// for concurrent use.
type client struct {
	target    string
	headers   http.Header
	protocol  protocol
	transport func(*line) http.RoundTripper
	// leaving is closed when there is no time for a second attempt.
	leaving chan struct{}
}

// newClient dials nothing. Errors do not quote the endpoint: it may hold a
// password.
func newClient(endpoint string, headers http.Header) (*client, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("no address such as http://collector:4318")
	}
	c := &client{headers: headers, protocol: overHTTP, leaving: make(chan struct{})}
	transport := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		MaxResponseHeaderBytes: maxAnswer,
		DisableKeepAlives:      true,
	}
	if u.Port() == grpcPort {
		c.protocol = overGRPC
		u.Path = grpcMethod
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetHTTP2(u.Scheme == "https")
		transport.Protocols.SetUnencryptedHTTP2(u.Scheme == "http")
		if u.Scheme == "http" {
			transport.Proxy = nil // a proxy forwards plain requests as HTTP/1 only
		}
	} else if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	c.target = u.String()
	// There are seconds between two exports, and a kept connection whose other end
	// has gone silently would fail them until TCP gives it up: every attempt has a
	// transport, and so a connection, of its own.
	c.transport = func(l *line) http.RoundTripper {
		t := transport.Clone()
		t.DialContext = l.dial
		return t
	}
	return c, nil
}

// Start does nothing: the first export dials.
func (c *client) Start(context.Context) error { return nil }

// Stop does nothing: no connection outlives its export.
func (c *client) Stop(context.Context) error { return nil }

// UploadTraces sends one batch, again while the collector asks for that and
// ExportTimeout allows it.
func (c *client) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	// ExportTraceServiceRequest has the one field 1, repeated ResourceSpans, and so
	// has TracesData: both are the same bytes. Its own Go type lives in a package
	// that imports gRPC.
	// https://github.com/open-telemetry/opentelemetry-proto/blob/v1.11.0/opentelemetry/proto/collector/trace/v1/trace_service.proto
	message, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return err
	}
	body := c.protocol.frame(message)
	ctx, cancel := context.WithTimeout(ctx, ExportTimeout)
	defer cancel()
	for pause := firstPause; ; pause *= 2 {
		err := c.send(ctx, body)
		if err == nil {
			return nil
		}
		again, after := retryable(err)
		if !again || !c.wait(ctx, max(after, pause+rand.N(pause))) {
			return err
		}
	}
}

// wait pauses before another attempt; false when there will be none.
func (c *client) wait(ctx context.Context, pause time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= pause {
		return false // spans queue meanwhile: giving up at once loses fewer
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-c.leaving:
	}
	return false
}

func (c *client) send(ctx context.Context, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.target, bytes.NewReader(body))
	if err != nil {
		return withoutURL(err)
	}
	for name, values := range c.headers {
		req.Header[name] = values
	}
	for name, values := range c.protocol.header {
		req.Header[name] = values
	}
	l := new(line)
	defer l.hangUp()
	resp, err := (&http.Client{
		Transport: c.transport(l),
		// A redirect could carry the headers, and their secrets, anywhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}).Do(req)
	if err != nil {
		return withoutURL(err)
	}
	defer resp.Body.Close() // only read
	if resp.StatusCode != http.StatusOK {
		return statusRefusal(resp)
	}
	answer, err := c.protocol.answer(resp)
	if err != nil {
		return err
	}
	// An answer that makes no sense is no failure: the status says that the spans
	// were taken.
	return partialSuccess(answer)
}

// readAnswer reads a body whole, within maxAnswer.
func readAnswer(resp *http.Response) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, withoutURL(err)
	}
	if len(body) > maxAnswer {
		return nil, &refusal{why: fmt.Sprintf("the answer is longer than %d bytes", maxAnswer)}
	}
	return body, nil
}

// withoutURL drops the URL, which may hold a password.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
