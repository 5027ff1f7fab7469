package control_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"context"
)

// ask sends one raw request.
func ask(tb testing.TB, socket, method, target, body string) (int, string) {
	tb.Helper()
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(tb.Context(), method, "http://x"+target, strings.NewReader(body))
	must(tb, err)
	resp, err := tr.RoundTrip(req)
	must(tb, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	must(tb, err)
	return resp.StatusCode, string(data)
}
