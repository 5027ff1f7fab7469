package telemetry

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/outbound"
)

// refusal is an answer in which the collector refuses a batch.
type refusal struct {
	why   string
	again bool          // the same batch may be sent again
	after time.Duration // the minimum delay before the retry, if the collector names one
}

func (r *refusal) Error() string { return r.why }

// partial is an answer in which the collector takes a batch except for some spans. The rejected
// spans must not be sent again.
type partial struct {
	rejected int64
	why      string
}

func (p *partial) Error() string { return strings.TrimSpace("the collector rejected spans " + p.why) }

// retryable reports whether a batch may be sent again after err, and after what minimum delay. If
// there was no answer at all, the batch may be sent again.
func retryable(err error) (again bool, after time.Duration) {
	if _, ok := errors.AsType[*partial](err); ok {
		return false, 0
	}
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.again, r.after
	}
	return true, 0
}

// statusRefusal classifies an HTTP status other than 200. The four statuses below allow a retry
// (OTLP 1.11, "Failures" of OTLP/HTTP). A gRPC proxy sends the same four in place of UNAVAILABLE.
func statusRefusal(resp *http.Response) error {
	r := &refusal{why: "the collector answered " + strconv.Itoa(resp.StatusCode)}
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		r.again, r.after = true, outbound.RetryAfter(resp.Header)
	}
	return r
}
