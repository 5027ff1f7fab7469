package forward

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/hostname"
	"github.com/dreamlab-ai/agentinit/internal/otlp"
	"github.com/dreamlab-ai/agentinit/internal/outbound"
	"github.com/dreamlab-ai/agentinit/internal/sysroots"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
)

// push posts batches over HTTP.
type push struct {
	protocol
	url     string
	headers http.Header
	client  *http.Client
	host    string
	tls     *tls.Config // of client
	roots   readRoots   // nil if tls needs none, or has them
}

type protocol struct {
	path        string // used if the URL has no path
	contentType string
	userAgent   string
	encode      func(host string, batch []logs.Line) ([]byte, error)
	accepted    func(body []byte) error // checks the body of an answer with a good status
}

// protocols are the kinds that use HTTP.
var protocols = map[string]protocol{
	"loki": {"/loki/api/v1/push", "application/json", "agentinit", lokiStreams, wholly},
	"otlp": {"/v1/logs", otlp.ContentType, otlp.UserAgent, otlpLogs, otlpAccepted},
	"http": {"/", "application/x-ndjson", "agentinit", jsonLines, wholly},
}

// maxAnswer bounds how many bytes of a good answer are read.
const maxAnswer = 64 << 10

func wholly([]byte) error { return nil }

func newPush(cfg Config) (*push, error) {
	p, ok := protocols[cfg.Kind]
	if !ok {
		return nil, fmt.Errorf("%q is not a known protocol: write syslog, loki, otlp or http", cfg.Kind)
	}
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%s needs an http:// or https:// url", cfg.Kind)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = p.path
	}
	roots, err := trusted(cfg.CAFile)
	if err != nil {
		return nil, err
	}
	headers := http.Header{"Content-Type": {p.contentType}, "User-Agent": {p.userAgent}}
	for name, value := range cfg.Headers {
		headers.Set(name, value)
	}
	if cfg.Token != "" {
		headers.Set("Authorization", "Bearer "+cfg.Token)
	}
	s := &push{
		protocol: p, url: u.String(), headers: headers, host: cfg.Host,
		tls: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}
	if u.Scheme == "https" && roots == nil {
		s.roots = sysroots.Pool
	}
	s.client = &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: s.tls, DialContext: hostname.Dial(&net.Dialer{}),
			MaxResponseHeaderBytes: 64 << 10, MaxIdleConnsPerHost: 1, IdleConnTimeout: 90 * time.Second, ForceAttemptHTTP2: true,
		},
		// A redirect is not followed: the token is for this collector alone.
		CheckRedirect: outbound.NoRedirect,
	}
	return s, nil
}

func (p *push) close() { p.client.CloseIdleConnections() }

func (p *push) send(ctx context.Context, batch []logs.Line) error {
	if p.roots != nil {
		roots, err := p.roots(ctx)
		if err != nil {
			return err
		}
		p.tls.RootCAs, p.roots = roots, nil // there was no connection yet that uses tls
	}
	body, err := p.encode(p.host, batch)
	if err != nil {
		return fmt.Errorf("%w: %v", errRefused, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%w: %v", errRefused, err)
	}
	req.Header = p.headers.Clone()
	req.Host = req.Header.Get("Host") // net/http does not send it as a header; "" means that of the URL
	resp, err := p.client.Do(req)
	if err != nil {
		return outbound.WithoutURL(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 == 2 {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer)) // the status alone decides; a read error does not matter
		return p.accepted(said)
	}
	said, _ := io.ReadAll(io.LimitReader(resp.Body, 512)) // for the error text; the status alone decides
	err = fmt.Errorf("%s: %s", resp.Status, strconv.QuoteToASCII(strings.TrimSpace(string(said))))
	switch code := resp.StatusCode; {
	case code == http.StatusTooManyRequests || code == http.StatusRequestTimeout || code >= 500:
		if after := outbound.RetryAfter(resp.Header); after > 0 {
			return &laterError{err, after}
		}
		return err
	case code == http.StatusRequestEntityTooLarge:
		return fmt.Errorf("%w: %w", errTooLarge, err)
	}
	return fmt.Errorf("%w: %w", errRefused, err)
}

// maxEntry is how much of a line one entry of Loki has; a longer line becomes several. Loki refuses
// entries of more than 256 KiB (limits_config.max_line_size).
const maxEntry = 250_000

// lokiStreams is the body of POST /loki/api/v1/push.
func lokiStreams(host string, batch []logs.Line) ([]byte, error) {
	type stream struct {
		Stream map[string]string `json:"stream"`
		Values [][2]string       `json:"values"`
	}
	var order []*stream
	byLabels := map[[2]string]*stream{}
	for _, l := range batch {
		key := [2]string{l.Program, l.Stream.String()}
		s := byLabels[key]
		if s == nil {
			s = &stream{Stream: map[string]string{"program": key[0], "stream": key[1], "host": host}}
			byLabels[key] = s
			order = append(order, s)
		}
		at := l.Time.UnixNano()
		for text := range pieces(valid(l.Text), maxEntry) {
			s.Values = append(s.Values, [2]string{strconv.FormatInt(at, 10), text})
			at++ // Loki drops an entry that has the time and the text of another
		}
	}
	return json.Marshal(map[string]any{"streams": order})
}

// jsonLines is one JSON object a line.
func jsonLines(host string, batch []logs.Line) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	for _, l := range batch {
		err := e.Encode(struct {
			Time    time.Time   `json:"time"`
			Host    string      `json:"host"`
			Program string      `json:"program"`
			Stream  logs.Stream `json:"stream"`
			PID     int         `json:"pid"`
			Run     uint64      `json:"run"`
			Seq     uint64      `json:"seq"`
			Text    string      `json:"msg"`
		}{l.Time, host, l.Program, l.Stream, l.PID, l.Run, l.Seq, valid(l.Text)})
		if err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// valid replaces what is not UTF-8, which JSON cannot carry.
func valid(text string) string { return strings.ToValidUTF8(text, "\ufffd") }
