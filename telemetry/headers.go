package telemetry

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// reserved are the headers that the protocols set themselves.
var reserved = []string{"Content-Type", "Content-Length", "Content-Encoding", "Host", "Te", "Connection", "Transfer-Encoding"}

// parseHeaders reads OTEL_EXPORTER_OTLP_HEADERS: name=value pairs separated by commas, with
// percent-encoded values (OpenTelemetry Protocol Exporter, "Specifying headers via environment
// variables"). An unusable pair is left out. The error names only the position of the pair, because
// its text may be secret.
func parseHeaders(list string) (http.Header, error) {
	headers := http.Header{}
	var bad []error
	for i, pair := range strings.Split(list, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, raw, found := strings.Cut(pair, "=")
		name = http.CanonicalHeaderKey(strings.TrimSpace(name))
		value, err := url.PathUnescape(strings.TrimSpace(raw))
		if !found || err != nil || !isToken(name) || !isPrintable(value) || slices.Contains(reserved, name) {
			bad = append(bad, fmt.Errorf("header %d of OTEL_EXPORTER_OTLP_HEADERS is not used: it is no name=value that may be sent", i+1))
			continue
		}
		headers.Set(name, value)
	}
	return headers, errors.Join(bad...)
}

// isToken reports whether s may be a header's name (RFC 9110 section 5.6.2).
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

// isPrintable reports whether s may be sent as a header's value.
func isPrintable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}
