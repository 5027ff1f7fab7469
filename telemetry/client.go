package telemetry

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dreamlab-ai/agentinit/internal/outbound"
	"github.com/dreamlab-ai/agentinit/internal/sysroots"
)

// Limits of one export.
const (
	// ExportTimeout bounds one export with all its attempts.
	ExportTimeout = 5 * time.Second
	firstPause    = 250 * time.Millisecond // before the second attempt; doubled each time
	maxAnswer     = 64 << 10               // bytes of an answer's body, and of its headers
	maxMessage    = 256                    // bytes of the collector's own error text that are kept
)

// grpcPort is the conventional port of OTLP over gRPC. An endpoint with any other port gets OTLP
// over HTTP (protobuf), as with the environment variables of the SDK.
const grpcPort = "4317"

// protocol holds the differences between OTLP over HTTP and OTLP over gRPC.
type protocol struct {
	header http.Header
	frame  func(message []byte) []byte
	// answer reads an answer whose HTTP status is 200 and returns the message.
	answer func(*http.Response) ([]byte, error)
}

// client is an otlptrace.Client: it sends spans to one collector. It is safe for concurrent use.
type client struct {
	target    string
	headers   http.Header
	protocol  protocol
	tls       *tls.Config // of transport
	transport func(*line) http.RoundTripper
	// leaving is closed at shutdown: from then on no export is retried.
	leaving chan struct{}
}

// newClient opens no connection. Its errors do not quote the endpoint, which may contain a
// password.
func newClient(endpoint string, headers http.Header) (*client, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("the address of the collector is no http or https URL; write it as in http://collector:4318")
	}
	c := &client{headers: headers, protocol: overHTTP, tls: &tls.Config{}, leaving: make(chan struct{})}
	transport := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		MaxResponseHeaderBytes: maxAnswer,
		DisableKeepAlives:      true,
		TLSClientConfig:        c.tls,
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
	// Two exports are seconds apart. If the other end of a kept connection has disappeared
	// silently, every export on that connection fails until TCP gives up. Each attempt therefore
	// has its own transport, and so its own connection.
	c.transport = func(l *line) http.RoundTripper {
		t := transport.Clone()
		t.DialContext = l.dial
		return sysroots.Transport(t)
	}
	return c, nil
}

// Start does nothing: the first export opens the connection.
func (c *client) Start(context.Context) error { return nil }

// Stop does nothing: no connection outlives its export.
func (c *client) Stop(context.Context) error { return nil }

// UploadTraces sends one batch. It retries while the collector permits a retry and ExportTimeout is
// not over.
func (c *client) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	// ExportTraceServiceRequest has only field 1, repeated ResourceSpans. TracesData has the same
	// field, so both have the same encoding. The Go type of ExportTraceServiceRequest is in a
	// package that imports gRPC.
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

// wait pauses before the next attempt. It returns false if there is no next attempt.
func (c *client) wait(ctx context.Context, pause time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= pause {
		return false // new spans queue up during a pause, so an early end loses fewer of them
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
		return outbound.WithoutURL(err)
	}
	maps.Copy(req.Header, c.headers)
	maps.Copy(req.Header, c.protocol.header)
	l := new(line)
	defer l.hangUp()
	resp, err := (&http.Client{
		Transport: c.transport(l),
		// A redirect could send the headers, and the secrets in them, to any server.
		CheckRedirect: outbound.NoRedirect,
	}).Do(req)
	if err != nil {
		return outbound.WithoutURL(err)
	}
	defer resp.Body.Close() // the body was only read, so an error of Close does not matter
	if resp.StatusCode != http.StatusOK {
		return statusRefusal(resp)
	}
	answer, err := c.protocol.answer(resp)
	if err != nil {
		return err
	}
	// An answer that cannot be parsed is not a failure: the status already says that the collector
	// took the spans.
	return partialSuccess(answer)
}

// readAnswer reads the whole body, at most maxAnswer bytes.
func readAnswer(resp *http.Response) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, outbound.WithoutURL(err)
	}
	if len(body) > maxAnswer {
		return nil, &refusal{why: fmt.Sprintf("the answer is longer than %d bytes", maxAnswer)}
	}
	return body, nil
}
