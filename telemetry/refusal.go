package telemetry

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// refusal is a collector's no.
type refusal struct {
	why   string
	again bool          // the same batch may be sent again
	after time.Duration // not before this, when the collector says so
}

func (r *refusal) Error() string { return r.why }

// partial is a collector's yes to all but some spans of a batch, which are not to
// be sent again.
type partial struct {
	rejected int64
	why      string
}

func (p *partial) Error() string { return strings.TrimSpace("the collector rejected spans " + p.why) }

// retryable says whether a batch may be sent again after err, and how long not
// before. What never came to an answer may be.
func retryable(err error) (again bool, after time.Duration) {
	var p *partial
	var r *refusal
	switch {
	case errors.As(err, &p):
		return false, 0
	case errors.As(err, &r):
		return r.again, r.after
	}
	return true, 0
}

// statusRefusal judges an HTTP status other than 200. These four are the ones to
// try again (OTLP 1.11, "Failures" of OTLP/HTTP; a gRPC proxy answers the same
// ones in place of UNAVAILABLE).
func statusRefusal(resp *http.Response) error {
	r := &refusal{why: "the collector answered " + strconv.Itoa(resp.StatusCode)}
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		r.again, r.after = true, retryAfter(resp.Header.Get("Retry-After"), time.Now())
	}
	return r
}

// retryAfter reads seconds or an HTTP date (RFC 9110 section 10.2.3); 0 is
// anything else.
func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// clean makes a collector's words fit for the log: printable, one line, at most
// maxMessage bytes.
func clean(s string) string {
	var out strings.Builder
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsGraphic(r) {
			r = ' '
		}
		if out.Len()+utf8.RuneLen(r) > maxMessage {
			break
		}
		out.WriteRune(r)
	}
	return strings.TrimSpace(out.String())
}
