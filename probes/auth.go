package probes

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// AuthMode says which credentials the management listener takes.
type AuthMode string

// The modes of MANAGEMENT_API_AUTH_MODE.
const (
	AuthBearer AuthMode = "bearer"
	AuthNIP98  AuthMode = "nip98"
	AuthHybrid AuthMode = "hybrid" // either; the default
)

// ParseAuthMode reads the mode; empty is hybrid.
func ParseAuthMode(s string) (AuthMode, error) {
	switch m := AuthMode(s); m {
	case "":
		return AuthHybrid, nil
	case AuthBearer, AuthNIP98, AuthHybrid:
		return m, nil
	}
	return "", fmt.Errorf("MANAGEMENT_API_AUTH_MODE is %q; write bearer, nip98 or hybrid", s)
}

// Principal is the caller of a request.
type Principal struct {
	Role string // admin, agent, host, reader
	ID   string // what the role is held by: "management-key", a public key
}

const (
	// RoleAdmin may do everything.
	RoleAdmin = "admin"
	// RoleAgent is the role of a spawned agent. An agent may be hostile.
	RoleAgent = "agent"
)

// Key is a bearer key in addition to the management key. Only its digest is kept.
type Key struct {
	Digest [sha256.Size]byte
	Holder Principal
}

// NewKey digests the key.
func NewKey(key string, holder Principal) Key {
	return Key{Digest: sha256.Sum256([]byte(key)), Holder: holder}
}

// Refusals of an Authenticator. For any other error, too, the answer is 401.
var (
	ErrNoCredential  = errors.New("no credential was given; the header Authorization must hold one, such as Bearer KEY")
	ErrBadCredential = errors.New("the credential is wrong")
	// ErrForbidden: the caller is known, but may not do this.
	ErrForbidden = errors.New("this principal may not do that")
	// ErrNoKeyYet: the phase of the boot that makes the management key has not run yet.
	ErrNoKeyYet = errors.New("there is no management key yet: the boot is still going on")
	// ErrNoKey: the credential is none that the box knows, and no management key will come.
	ErrNoKey = fmt.Errorf("%w; this box has no management key, because MANAGEMENT_API_KEY is not set", ErrBadCredential)
	// ErrCannotTell: the credential may be right, but the place that knows it does not answer.
	ErrCannotTell = errors.New("the credential cannot be checked now")
)

// Authenticator finds out who makes a request. If it reads the body, it must put the body back. Its
// time and memory must be bounded.
type Authenticator interface {
	Authenticate(r *http.Request) (Principal, error)
}

type principalKey struct{}

// PrincipalFrom returns the caller of a request that the server has authenticated.
func PrincipalFrom(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(principalKey{}).(Principal)
	return p, ok
}

// Auth checks the credentials that its mode accepts. Requests may come before the management key is
// set. All methods may be called from any goroutine.
type Auth struct {
	mode     AuthMode
	digest   atomic.Pointer[[sha256.Size]byte]
	keyless  atomic.Bool   // no management key will come
	nostr    Authenticator // nil: signed requests are refused
	failures *prometheus.CounterVec
	keys     atomic.Pointer[[]Key]
	tokens   atomic.Pointer[TokenOwner]
	tickets  atomic.Pointer[TicketOwner]
	sessions atomic.Pointer[SessionOwner]
}

// SetKeys replaces the bearer keys that are accepted in addition to the management key.
func (a *Auth) SetKeys(keys []Key) { a.keys.Store(&keys) }

// SessionOwner returns the owner of the console session of a request that has no Authorization
// header. The error says why there is no valid session. It may be called from any goroutine.
type SessionOwner func(r *http.Request) (Principal, error)

// SetSessions accepts requests with a console session.
func (a *Auth) SetSessions(owner SessionOwner) { a.sessions.Store(&owner) }

// TokenOwner returns the holder of a bearer token that is none of the keys, for example a spawned
// agent. The error is ErrBadCredential for a token without a holder, and ErrCannotTell if the
// holder cannot be found out now. It must take the same time for every unknown token, and may be
// called from any goroutine.
type TokenOwner func(token string) (Principal, error)

// SetTokens accepts bearer tokens in addition to the keys.
func (a *Auth) SetTokens(owner TokenOwner) { a.tokens.Store(&owner) }

// TicketOwner returns the holder of the ticket in the query of a request: a browser can send no
// Authorization header for a WebSocket. A ticket is valid once. It may be called from any
// goroutine.
type TicketOwner func(r *http.Request) (Principal, bool)

// SetTickets accepts requests with a ticket.
func (a *Auth) SetTickets(owner TicketOwner) { a.tickets.Store(&owner) }

// NewAuth returns an Auth without a key. nostr checks "Authorization: Nostr". If it is nil, such
// requests are refused, and the mode hybrid accepts only bearer keys.
func NewAuth(mode AuthMode, nostr Authenticator, reg prometheus.Registerer) (*Auth, error) {
	a := &Auth{mode: mode, nostr: nostr, failures: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "agentbox_auth_failures_total",
		Help: "Requests refused because of their credential, by kind of credential and reason.",
	}, []string{"mode", "reason"})}
	if err := reg.Register(a.failures); err != nil {
		return nil, fmt.Errorf("cannot register the authentication metrics: %w", err)
	}
	return a, nil
}

// SetKey sets the management key; only its digest is kept.
func (a *Auth) SetKey(key string) {
	sum := sha256.Sum256([]byte(key))
	a.digest.Store(&sum)
}

// SetNoKey says that no management key will come: a wrong credential then is refused for good.
func (a *Auth) SetNoKey() { a.keyless.Store(true) }

// Authenticate implements Authenticator.
func (a *Auth) Authenticate(r *http.Request) (Principal, error) {
	headers := r.Header.Values("Authorization")
	if len(headers) == 0 {
		if owner := a.tickets.Load(); owner != nil {
			if p, ok := (*owner)(r); ok {
				return p, nil
			}
		}
		if owner := a.sessions.Load(); owner != nil {
			p, err := (*owner)(r)
			if err == nil {
				return p, nil
			}
			return Principal{}, a.refuse("session", "refused", err)
		}
		return Principal{}, a.refuse("none", "missing", ErrNoCredential)
	}
	if len(headers) > 1 {
		return Principal{}, a.refuse("none", "several", ErrBadCredential)
	}
	scheme, rest, _ := strings.Cut(headers[0], " ")
	switch {
	case strings.EqualFold(scheme, "Bearer") && a.mode != AuthNIP98:
		return a.Bearer(strings.TrimSpace(rest))
	case strings.EqualFold(scheme, "Nostr") && a.mode != AuthBearer && a.nostr != nil:
		p, err := a.nostr.Authenticate(r)
		if err != nil {
			return Principal{}, a.refuse("nip98", reasonOf(err), err)
		}
		return p, nil
	}
	return Principal{}, a.refuse("none", "scheme", ErrBadCredential)
}

// Bearer returns the holder of a bearer key or token, in every mode: the login form of the console
// cannot take a signature. It compares digests and not keys: they have equal lengths, so the comparison
// takes constant time.
func (a *Auth) Bearer(token string) (Principal, error) {
	got := sha256.Sum256([]byte(token))
	if keys := a.keys.Load(); keys != nil {
		for _, k := range *keys {
			if subtle.ConstantTimeCompare(got[:], k.Digest[:]) == 1 {
				return k.Holder, nil
			}
		}
	}
	want := a.digest.Load()
	if want != nil && subtle.ConstantTimeCompare(got[:], want[:]) == 1 {
		return Principal{Role: RoleAdmin, ID: "management-key"}, nil
	}
	if owner := a.tokens.Load(); owner != nil {
		p, err := (*owner)(token)
		switch {
		case err == nil:
			return p, nil
		case errors.Is(err, ErrCannotTell):
			return Principal{}, a.refuse("bearer", "unknown_now", err)
		}
	}
	switch {
	case want == nil && a.keyless.Load():
		return Principal{}, a.refuse("bearer", "no_key", ErrNoKey)
	case want == nil:
		return Principal{}, a.refuse("bearer", "no_key_yet", ErrNoKeyYet)
	}
	return Principal{}, a.refuse("bearer", "wrong", ErrBadCredential)
}

func (a *Auth) refuse(mode, reason string, err error) error {
	a.failures.WithLabelValues(mode, reason).Inc()
	return &refusal{reason, err}
}

// refusal has the word for the reason that is also the label of the metric.
type refusal struct {
	reason string
	err    error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

func reasonOf(err error) string {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.reason
	}
	return "wrong"
}

// challenge is the value of WWW-Authenticate for the mode. Hybrid offers no scheme
// that it cannot verify.
func (a *Auth) challenge() []string {
	switch {
	case a.mode == AuthNIP98:
		return []string{"Nostr"}
	case a.mode == AuthBearer || a.nostr == nil:
		return []string{"Bearer"}
	}
	return []string{"Bearer", "Nostr"}
}

func withPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// hasBearer tells whether the request shows a bearer key, right or wrong.
func hasBearer(r *http.Request) bool { return hasScheme(r, "Bearer") }

// isSigned tells whether the request shows a signature, which is expensive to check.
func isSigned(r *http.Request) bool { return hasScheme(r, "Nostr") }

func hasScheme(r *http.Request, want string) bool {
	scheme, _, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.EqualFold(scheme, want)
}
