package wire

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/hostname"
	"github.com/dreamlab-ai/agentinit/internal/outbound"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
	"github.com/dreamlab-ai/agentinit/internal/sysroots"
)

// Limits for one request and its answer.
const (
	dialLimit    = 3 * time.Second
	readLimit    = 5 * time.Second  // one attempt of a read
	writeLimit   = 10 * time.Second // one attempt of a write
	maxAnswer    = 16 << 20         // bytes
	maxErrorBody = 64 << 10         // bytes of an error answer
	maxRetries   = 2
	retryFirst   = 100 * time.Millisecond
	maxRedirects = 5
)

// MaxRetryWait is the longest Retry-After that the client waits.
const MaxRetryWait = 30 * time.Second

// Authorizer adds credentials to a request. body is the body that will be sent, for schemes that
// sign it. For a streamed body it is nil while ContentLength is not 0; a scheme that signs bodies
// must refuse that. Authorize is called for every attempt, but never after a redirect.
type Authorizer interface {
	Authorize(r *http.Request, body []byte) error
}

// Bearer authorises with a token. The function is called at every attempt, because the token may
// change. An empty token adds no header.
type Bearer func() string

// Authorize sets the Authorization header.
func (b Bearer) Authorize(r *http.Request, _ []byte) error {
	if token := b(); token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return nil
}

// TokenOf is a slot's token from the environment: the variable that the manifest names ("" if
// none), otherwise AGENTBOX_<SLOT>_TOKEN, otherwise AGENTBOX_FEDERATION_TOKEN.
func TokenOf(slot adapters.Slot, variable string, getenv func(string) string) Bearer {
	return func() string {
		for _, name := range []string{variable, "AGENTBOX_" + strings.ToUpper(string(slot)) + "_TOKEN", "AGENTBOX_FEDERATION_TOKEN"} {
			if token := getenv(name); token != "" {
				return token
			}
		}
		return ""
	}
}

// Config of a Client.
type Config struct {
	Slot    adapters.Slot
	BaseURL string // http or https; a path prefix is kept
	// Key is the manifest key that contains BaseURL, for error messages.
	Key       string
	Auth      Authorizer // nil = anonymous
	UserAgent string     // "" = agentinit
	// Transport is for tests; with nil, the client makes its own.
	Transport http.RoundTripper
}

// Client talks to one peer on behalf of one slot. It is safe for concurrent
// use. Close it to end idle connections.
type Client struct {
	cfg     Config
	base    *url.URL
	major   int
	http    *http.Client
	breaker breaker
}

// New checks the configuration and makes a client. It performs no I/O. A bad
// or missing URL is an *adapters.ConfigError.
func New(cfg Config) (*Client, error) {
	base, err := parseBase(cfg)
	if err != nil {
		return nil, err
	}
	contract, ok := adapters.ContractOf(cfg.Slot)
	if !ok {
		return nil, &adapters.ConfigError{Key: cfg.Key, Message: fmt.Sprintf("no slot %q", cfg.Slot)}
	}
	v, err := adapters.ParseVersion(contract.Version)
	if err != nil {
		return nil, err
	}
	if cfg.Transport == nil {
		cfg.Transport = Transport()
	}
	cfg.UserAgent = cmp.Or(cfg.UserAgent, "agentinit")
	return &Client{
		cfg: cfg, base: base, major: v.Major,
		http: &http.Client{Transport: cfg.Transport, CheckRedirect: checkRedirect},
	}, nil
}

func parseBase(cfg Config) (*url.URL, error) {
	if cfg.BaseURL == "" {
		return nil, adapters.Missing(cfg.Key, fmt.Sprintf("the %s adapter is external", cfg.Slot))
	}
	u, err := url.Parse(cfg.BaseURL)
	if err != nil {
		// The text may hold a password, so the error does not repeat it.
		return nil, &adapters.ConfigError{Key: cfg.Key, Message: "is not a URL"}
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, &adapters.ConfigError{Key: cfg.Key, Message: "must be an http or https URL"}
	case u.Host == "":
		return nil, &adapters.ConfigError{Key: cfg.Key, Message: "names no host"}
	case u.User != nil:
		return nil, &adapters.ConfigError{Key: cfg.Key, Message: "must not hold credentials; use token_env"}
	case u.RawQuery != "" || u.Fragment != "":
		return nil, &adapters.ConfigError{Key: cfg.Key, Message: "must not have a query or fragment"}
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	u.RawPath = strings.TrimSuffix(u.RawPath, "/")
	return u, nil
}

// Transport makes a transport with limits for all that a peer can delay or lengthen, except for the
// time and the body of an answer.
func Transport() http.RoundTripper { return transport("") }

// LocalTransport is Transport for a server of this box that listens on host. Another program may have had its port before. So each
// request has a connection of its own, made after the request was signed, and one to "localhost" goes to that host alone, not to
// another address of the loopback interface.
func LocalTransport(host string) http.RoundTripper { return transport(host) }

// transport makes a Transport if there is no listener, otherwise a LocalTransport.
func transport(listener string) http.RoundTripper {
	dial := hostname.Dial(&net.Dialer{Timeout: dialLimit, KeepAlive: 30 * time.Second})
	return sysroots.Transport(&http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if name, port, err := net.SplitHostPort(address); err == nil && listener != "" && hostname.Local(name) {
				address = net.JoinHostPort(listener, port)
			}
			return dial(ctx, network, address)
		},
		DisableKeepAlives:      listener != "",
		TLSHandshakeTimeout:    dialLimit,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        60 * time.Second,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		ForceAttemptHTTP2:      true,
	})
}

// checkRedirect lets reads follow a redirect; to another origin they go without credentials and
// metadata. A write must stay on its origin, and no request goes from https to http.
func checkRedirect(r *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return errors.New("too many redirects")
	}
	first := via[0]
	if first.URL.Scheme == "https" && r.URL.Scheme != "https" {
		return errors.New("redirected from https to http")
	}
	if r.Method != first.Method {
		// 301 to 303 would turn a write into a read, and the answer of the read would look like
		// that of the write.
		return errors.New("a write was redirected to a read")
	}
	if r.URL.Scheme == first.URL.Scheme && r.URL.Host == first.URL.Host {
		return nil
	}
	if first.Method != http.MethodGet && first.Method != http.MethodHead {
		return errors.New("a write was redirected to another origin")
	}
	for name := range r.Header {
		if name == "Authorization" || name == "Cookie" || name == "Idempotency-Key" || strings.HasPrefix(name, "Agentbox-") {
			delete(r.Header, name)
		}
	}
	return nil
}

// Base is the URL the client was made for.
func (c *Client) Base() *url.URL {
	u := *c.base
	return &u
}

// Close ends idle connections. Requests under way continue.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Request is one request. Path is appended to the base and must already be escaped (url.PathEscape
// for each segment).
type Request struct {
	Method      string
	Path        string
	Query       url.Values
	Header      http.Header // further headers
	Body        []byte
	ContentType string // of Body
	Accept      string // "" = application/json
	// Keyed sends an idempotency key, the caller's or a new one, so that even a write may be
	// retried.
	Keyed bool
	// Upload is a body that is streamed instead of Body. It is read once, so the call is retried only if the peer
	// wants another signature before it wants the body. UploadSize is its length in bytes, < 0 if unknown.
	Upload     io.Reader
	UploadSize int64
	unread     *bool // of Upload: the latest attempt has not begun to read it
	// Keep names headers of an error answer that become fields of the error: header to field.
	Keep map[string]string
	// Probe asks whether the peer is there. The breaker neither refuses it nor counts it: a peer that answers it may fail all calls.
	Probe bool
	// Expect are the statuses that mean success; nil = any 2xx.
	Expect []int
}

// Do sends r and reads the answer. A read or a keyed call is retried at most twice if the error may
// be temporary, all within ctx. The error is always an *adapters.Error.
func (c *Client) Do(ctx context.Context, r Request) (*Response, error) {
	key := c.key(ctx, r)
	if r.Upload != nil {
		r.unread = new(bool)
	}
	return retrying(ctx, r, func() (*Response, error) { return c.attempt(ctx, r, key) })
}

// retrying makes one attempt, and up to maxRetries more if r may be repeated and the error may be
// temporary. A request that was not accepted has had no effect and may be repeated.
func retrying[T any](ctx context.Context, r Request, attempt func() (T, error)) (T, error) {
	for try := 0; ; try++ {
		res, err := attempt()
		if err == nil {
			return res, nil
		}
		last := adapters.AsError(err)
		if try == maxRetries || !last.Retryable || errors.Is(last, errLeftAlone) || !r.repeatable(last.Code) || !Pause(ctx, retryDelay(try, last)) {
			return res, last
		}
	}
}

func (r Request) repeatable(after adapters.Code) bool {
	if r.Upload != nil {
		return after == adapters.CodeUnauthenticated && r.unread != nil && *r.unread
	}
	return r.read() || r.Keyed || after == adapters.CodeUnauthenticated
}

func (c *Client) key(ctx context.Context, r Request) string {
	if !r.Keyed {
		return ""
	}
	if k := adapters.MetaFrom(ctx).IdempotencyKey; k != "" {
		return k
	}
	return adapters.NewID()
}

func (r Request) read() bool {
	return r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
}

// retryDelay is 100 ms, doubled with each try, plus up to as much again of jitter. If the peer
// names a delay, that is used.
func retryDelay(try int, e *adapters.Error) time.Duration {
	if d := e.RetryAfter(); d > 0 {
		return d
	}
	d := retryFirst << try
	return d + rand.N(d)
}

// Pause waits d and returns true. If ctx would end first or d is longer than MaxRetryWait, it
// returns false at once.
func Pause(ctx context.Context, d time.Duration) bool {
	if d > MaxRetryWait {
		return false
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= d {
		return false
	}
	return sleep.For(ctx, d)
}

func (c *Client) attempt(ctx context.Context, r Request, key string) (*Response, error) {
	if r.Probe {
		return c.exchange(ctx, r, key)
	}
	trial, err := c.breaker.enter(c.cfg.Slot)
	if err != nil {
		return nil, err
	}
	res, err := c.exchange(ctx, r, key)
	c.breaker.leave(ctx, trial, err)
	return res, err
}

func (c *Client) exchange(ctx context.Context, r Request, key string) (*Response, error) {
	limit := writeLimit
	switch {
	case r.Upload != nil:
		limit = uploadLimit
	case r.read():
		limit = readLimit
	}
	one, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if r.Upload != nil {
		u := newUpload(r.Upload, r.UploadSize, cancel)
		defer func() { *r.unread = u.stop() }()
		r.Upload = u
	}
	res, err := c.send(one, r, key)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := readAll(res.Body, maxAnswer)
	if err != nil {
		return nil, transportError(one, err)
	}
	return &Response{Status: res.StatusCode, Header: res.Header, Body: body, URL: res.Request.URL}, nil
}

// send makes the request and returns a successful answer whose body is not read yet.
func (c *Client) send(ctx context.Context, r Request, key string) (*http.Response, error) {
	req, err := c.request(ctx, r, key)
	if err != nil {
		return nil, err
	}
	res, err := c.http.Do(req)
	if err != nil {
		if u, ok := r.Upload.(*upload); ok && u.failure() != nil {
			return nil, u.failure()
		}
		return nil, transportError(ctx, err)
	}
	if expected(r.Expect, res.StatusCode) {
		return res, nil
	}
	defer res.Body.Close()
	// If the error body breaks off, the status is still known.
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
	e := adapters.FromProblem(res.StatusCode, res.Header, body)
	if e.Code == adapters.CodeUnauthenticated { // otherwise the caller takes it for a word about its own credential
		e.Message = c.base.Scheme + "://" + c.base.Host + " does not accept the credential of this box: " + e.Message
	}
	for name, field := range r.Keep {
		if v := res.Header.Get(name); v != "" {
			e = e.With(field, v)
		}
	}
	return nil, e
}

func expected(want []int, status int) bool {
	if want == nil {
		return status >= 200 && status < 300
	}
	return slices.Contains(want, status)
}

func (c *Client) request(ctx context.Context, r Request, key string) (*http.Request, error) {
	u := c.base.String() + r.Path
	if len(r.Query) > 0 {
		u += "?" + r.Query.Encode()
	}
	var body io.Reader
	switch {
	case r.Upload != nil:
		body = r.Upload
	case r.Body != nil:
		body = bytes.NewReader(r.Body)
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, u, body)
	if err != nil {
		return nil, adapters.Invalid("path", "cannot be sent")
	}
	if r.Upload != nil {
		req.ContentLength = r.UploadSize
		// So a peer that refuses can answer before the body is sent.
		req.Header.Set("Expect", "100-continue")
	}
	if err := c.headers(ctx, req, r, key); err != nil {
		return nil, err
	}
	if c.cfg.Auth != nil {
		if err := c.cfg.Auth.Authorize(req, r.Body); err != nil {
			return nil, adapters.Errorf(adapters.CodeUnauthenticated, "cannot sign the request").Wrap(err)
		}
	}
	return req, nil
}

func (c *Client) headers(ctx context.Context, req *http.Request, r Request, key string) error {
	m := adapters.MetaFrom(ctx)
	h := req.Header
	maps.Copy(h, r.Header)
	for _, p := range [][2]string{
		{"Accept", cmp.Or(r.Accept, "application/json, "+adapters.ProblemType)}, {"Content-Type", r.ContentType}, {"User-Agent", c.cfg.UserAgent}, {"Traceparent", m.TraceParent},
		{"Agentbox-Contract", fmt.Sprintf("%s/%d", c.cfg.Slot, c.major)}, {"Agentbox-Session", m.SessionID},
		{"Agentbox-Execution", m.ExecutionID}, {"Agentbox-Actor", m.Actor}, {"Idempotency-Key", key},
	} {
		if p[1] == "" {
			continue
		}
		if strings.ContainsFunc(p[1], func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return adapters.Invalid(p[0], "contains a control character")
		}
		h.Set(p[0], p[1])
	}
	return nil
}

// transportError describes a request that got no complete answer.
func transportError(ctx context.Context, err error) error {
	if coded, ok := errors.AsType[*adapters.Error](err); ok {
		return coded
	}
	if cause := ctx.Err(); cause != nil {
		return adapters.AsError(cause)
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return adapters.Errorf(adapters.CodeTimeout, "the peer did not answer in time").Wrap(err)
	}
	return adapters.Unavailable(outbound.WithoutURL(err), "cannot reach the peer")
}

// Stream sends r and returns the answer with its body unread. The read limit applies to the head,
// and only ctx bounds the body. The caller closes the body. The call is not retried.
func (c *Client) Stream(ctx context.Context, r Request) (*http.Response, error) {
	trial, err := c.breaker.enter(c.cfg.Slot)
	if err != nil {
		return nil, err
	}
	res, err := c.openStream(ctx, r)
	c.breaker.leave(ctx, trial, err)
	return res, err
}

// Open is Stream, with the retries of Do.
func (c *Client) Open(ctx context.Context, r Request) (*http.Response, error) {
	return retrying(ctx, r, func() (*http.Response, error) { return c.Stream(ctx, r) })
}

func (c *Client) openStream(ctx context.Context, r Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	head := time.AfterFunc(readLimit, func() { cancel(context.DeadlineExceeded) })
	res, err := c.send(ctx, r, c.key(ctx, r))
	if !head.Stop() && err == nil {
		res.Body.Close()
		err = context.DeadlineExceeded
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && adapters.CodeOf(err) == adapters.CodeTimeout {
			err = cause
		}
		cancel(nil)
		return nil, adapters.AsError(err)
	}
	res.Body = adapters.CancelOnClose(res.Body, cancel)
	return res, nil
}
