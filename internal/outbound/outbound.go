// Package outbound owns what HTTP requests of agentinit to other servers have in common: they follow
// no redirect (but for the reads of adapters/wire, which has limits of its own), their errors do not
// show the URL, and they wait as long as the server asks.
package outbound

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// NoRedirect is the CheckRedirect of a client for which a redirect is an answer. A followed redirect
// could send a request's credentials and its body to any server.
func NoRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// WithoutURL removes the URL from an error of an http.Client, because the URL may hold a password.
func WithoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// RetryAfter reads both forms of Retry-After, seconds and a date (RFC 9110, section 10.2.3). It
// returns 0 if the header is missing, cannot be read or names a time in the past. The caller limits
// the result. A date counts from the Date of the answer, if there is one, because the clocks of the
// two sides may differ.
func RetryAfter(answer http.Header) time.Duration {
	value := answer.Get("Retry-After")
	// For a number that is too large, ParseUint returns the largest one.
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(answer.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return max(at.Sub(now), 0)
}
