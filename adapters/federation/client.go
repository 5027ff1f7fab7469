package federation

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/internal/hostname"
	"github.com/dreamlab-ai/agentinit/internal/outbound"
	"github.com/dreamlab-ai/agentinit/internal/sysroots"
)

// maxAnswer bounds the answer of a host, and maxReason what is kept of a text in it, in bytes.
const (
	maxAnswer = 1 << 20
	maxReason = 300
)

// Authorizer adds credentials to a request. body is the body that will be sent.
type Authorizer interface {
	Authorize(r *http.Request, body []byte) error
}

// ClientConfig of a Client.
type ClientConfig struct {
	// BaseURL is federation.external_url.
	BaseURL string
	// Auth adds the credentials of a registration; nil means none.
	Auth      Authorizer
	UserAgent string
	// Transport is for tests; with nil, the client makes its own.
	Transport http.RoundTripper
}

// Client sends the requests of a session to one host. Its methods may be called from
// any goroutine; each makes one request and returns when its context ends at the latest.
type Client struct {
	cfg  ClientConfig
	base string
	http *http.Client
}

// NewClient makes a Client. It does not connect.
func NewClient(cfg ClientConfig) (*Client, error) {
	u, err := url.Parse(cfg.BaseURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, &adapters.ConfigError{Key: "federation.external_url", Message: "must be an http or https URL without credentials, query and fragment"}
	}
	if cfg.Transport == nil {
		d := &net.Dialer{Timeout: 3 * time.Second, KeepAlive: 30 * time.Second}
		cfg.Transport = sysroots.Transport(&http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: hostname.Dial(d), TLSHandshakeTimeout: 3 * time.Second,
			MaxIdleConnsPerHost: 2, IdleConnTimeout: 60 * time.Second, MaxResponseHeaderBytes: 64 << 10,
		})
	}
	return &Client{cfg: cfg, base: strings.TrimSuffix(cfg.BaseURL, "/"), http: &http.Client{
		Transport: cfg.Transport,
		// A redirect is not followed, because the credentials are only for this host.
		CheckRedirect: outbound.NoRedirect,
	}}, nil
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Register makes a session. The result is a Registered or a Failed, with the
// number of the call.
func (c *Client) Register(ctx context.Context, call uint64, r Registration) Event {
	var nonce [16]byte
	rand.Read(nonce[:]) // never fails: it ends the program rather than return an error
	r.Nonce = hex.EncodeToString(nonce[:])
	a, err := c.post(ctx, RegisterPath, r, c.cfg.Auth)
	if err != nil {
		return unusable(call, err)
	}
	if a.status != http.StatusOK && a.status != http.StatusCreated {
		return a.failed(call)
	}
	var grant Grant
	if err := a.decode(&grant); err != nil {
		return unusable(call, err)
	}
	return granted(call, grant, r)
}

// unusable is the event for a missing or invalid answer. The text may come from the host.
func unusable(call uint64, err error) Failed {
	return Failed{Call: call, Reason: escape.Line(err.Error(), maxReason)}
}

// granted checks a grant.
func granted(call uint64, g Grant, r Registration) Event {
	switch {
	case adapters.CheckID("session_id", g.SessionID) != nil:
		return Failed{Call: call, Reason: "the host's answer has no valid session_id"}
	case g.Nonce != r.Nonce:
		return Failed{Call: call, Reason: "the host's answer has another nonce"}
	}
	err := checkToken("the session", g.Token)
	if err == nil {
		err = g.Endpoints.check()
	}
	if err != nil {
		return unusable(call, fmt.Errorf("the host's answer cannot be used: %w", err))
	}
	for slot, limits := range g.ContractRanges {
		have, ok := r.Adapters[slot]
		if !ok || have.Impl != string(adapters.ClassExternal) || have.ContractVersion == "" {
			continue // a slot of the box's own does not speak to the host
		}
		if _, err := adapters.ParseVersion(strings.TrimPrefix(limits, "^")); err != nil {
			return unusable(call, fmt.Errorf("the host's answer cannot be used: the contract of %s: %w", slot, err))
		}
		if err := checkRange(adapters.Slot(slot), limits, have.ContractVersion); err != nil {
			return Failed{Call: call, Kind: Mismatch, Reason: escape.Line(err.Error(), maxReason)}
		}
	}
	return Registered{
		Call: call, ID: g.SessionID, Token: g.Token, Endpoints: g.Endpoints,
		Interval: time.Duration(g.HeartbeatIntervalS) * time.Second,
	}
}

// unknownSession is what an answer 401 to the token of a session means. A host keeps nothing of a
// session whose box has registered again, so it cannot say more itself.
const unknownSession = "the host does not know this session any more: it has forgotten it, or a copy of this box has registered"

// Heartbeat sends the state of the box to the host. The result is a Beaten, a Failed or a Gone.
// token is the token of the session; if it is "", the request has the credentials of the box.
func (c *Client) Heartbeat(ctx context.Context, call uint64, b Beat, token string) Event {
	a, err := c.post(ctx, HeartbeatPath, b, c.auth(token))
	if err != nil {
		return unusable(call, err)
	}
	switch a.status {
	case http.StatusOK:
	case http.StatusGone, http.StatusNotFound:
		return a.gone(call)
	case http.StatusUnauthorized:
		if token != "" {
			return Gone{Call: call, Reason: unknownSession, RetryAfter: a.retryAfter}
		}
		return a.failed(call)
	default:
		return a.failed(call)
	}
	var answer BeatAnswer
	if err := a.decode(&answer); err != nil {
		return unusable(call, err)
	}
	if answer.Endpoints != nil {
		if err := answer.Endpoints.check(); err != nil {
			return unusable(call, fmt.Errorf("the host's answer cannot be used: %w", err))
		}
	}
	return Beaten{Call: call, NextIn: time.Duration(answer.NextInS) * time.Second, Endpoints: answer.Endpoints}
}

// Deregister tells the host that the session ends. The answer of the host does not matter.
func (c *Client) Deregister(ctx context.Context, call uint64, f Farewell, token string) Event {
	// The session ends whatever the result of this request is.
	_, _ = c.post(ctx, DeregisterPath, f, c.auth(token))
	return Deregistered{Call: call}
}

// bearer is the token of the session.
type bearer string

func (b bearer) Authorize(r *http.Request, _ []byte) error {
	r.Header.Set("Authorization", "Bearer "+string(b))
	return nil
}

func (c *Client) auth(token string) Authorizer {
	if token == "" {
		return c.cfg.Auth
	}
	return bearer(token)
}

// answer is the answer of a host.
type answer struct {
	status     int
	retryAfter time.Duration
	body       []byte
}

func (c *Client) post(ctx context.Context, path string, in any, auth Authorizer) (*answer, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if c.cfg.UserAgent != "" {
		req.Header.Set("User-Agent", c.cfg.UserAgent)
	}
	if auth != nil {
		if err := auth.Authorize(req, body); err != nil {
			return nil, err
		}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, network(ctx, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, network(ctx, err)
	}
	if len(raw) > maxAnswer {
		return nil, errors.New("the host's answer is larger than 1 MiB")
	}
	return &answer{resp.StatusCode, retryAfter(outbound.RetryAfter(resp.Header)), raw}, nil
}

// network is the error of a request without the URL, which the status shows.
func network(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("the host did not answer in time")
	}
	return fmt.Errorf("the host cannot be reached: %w", outbound.WithoutURL(err))
}

func (a *answer) decode(into any) error {
	d := json.NewDecoder(bytes.NewReader(a.body))
	if err := d.Decode(into); err != nil {
		return errors.New("the host's answer is not valid JSON of the protocol")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("the host's answer has data after its JSON document")
	}
	return nil
}

// problem is the body of an error answer; fields that cannot be read stay empty.
type problem struct {
	Code    adapters.Code `json:"code"`
	Message string        `json:"message"`
	Detail  string        `json:"detail"`
	Error   string        `json:"error"`
}

func (a *answer) problem() problem {
	var p problem
	_ = json.Unmarshal(a.body, &p) // a host may answer errors in any form
	return p
}

// howToRegister is for a box whose host answers 401: that answer speaks of headers, which an operator
// of the box does not set.
const howToRegister = "give the box the host's AGENTBOX_FEDERATION_TOKEN, or list its key in federation.allowed_pubkeys of the host"

// failed turns an error answer into the event for the session.
func (a *answer) failed(call uint64) Event {
	p := a.problem()
	reason := fmt.Sprintf("the host answered %d %s", a.status, http.StatusText(a.status))
	for _, text := range []string{p.Message, p.Detail, p.Error} {
		if text != "" {
			reason += ": " + escape.Line(text, maxReason)
			break
		}
	}
	if a.status == http.StatusUnauthorized {
		reason += "; " + howToRegister
	}
	f := Failed{Call: call, Reason: reason, RetryAfter: a.retryAfter}
	switch {
	case a.status == http.StatusConflict && (p.Code == adapters.CodeContractMismatch || p.Code == ""):
		f.Kind = Mismatch
	case a.status == http.StatusBadRequest, a.status == http.StatusUnauthorized, a.status == http.StatusForbidden:
		f.Kind = Rejected
	case a.status == http.StatusNotFound, a.status == http.StatusMethodNotAllowed, a.status == http.StatusNotImplemented:
		f.Kind = NoHost
	}
	return f
}

func (a *answer) gone(call uint64) Event {
	var e Eviction
	_ = json.Unmarshal(a.body, &e) // the status alone decides
	g := Gone{Call: call, Reason: escape.Line(e.Reason, maxReason), Permanent: e.Permanent, RetryAfter: a.retryAfter}
	if e.RetryAfterS > 0 {
		g.RetryAfter = time.Duration(min(e.RetryAfterS, int(maxRetryAfter/time.Second))) * time.Second
	}
	if g.Reason == "" {
		g.Reason = fmt.Sprintf("the host answered %d %s", a.status, http.StatusText(a.status))
	}
	return g
}
