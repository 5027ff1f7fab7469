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

// Principal is who makes a request.
type Principal struct {
	Role string // admin, agent, host, reader
	ID   string // what the role is held by: "management-key", a public key
}

// RoleAdmin may do everything.
const RoleAdmin = "admin"

// Key is a bearer key beside the management key, known by its digest alone.
type Key struct {
	Digest [sha256.Size]byte
	Holder Principal
}

// NewKey digests the key.
func NewKey(key string, holder Principal) Key {
	return Key{Digest: sha256.Sum256([]byte(key)), Holder: holder}
}

// Refusals of an Authenticator. Anything else it returns is answered 401 too.
var (
	ErrNoCredential  = errors.New("no credential was given")
	ErrBadCredential = errors.New("the credential is wrong")
	// ErrForbidden: known, but not entitled.
	ErrForbidden = errors.New("this principal may not do that")
	// ErrNoKeyYet: the key is made by a phase of bootstrap that has not run yet,
	// or the box has none.
	ErrNoKeyYet = errors.New("there is no management key: boot is still going on, or MANAGEMENT_API_KEY is not set")
	// ErrCannotTell: the credential may be right, and what knows it cannot be asked.
	ErrCannotTell = errors.New("the credential cannot be checked now")
)

// Authenticator finds out who makes a request. It must not read the body
// without putting it back, and must be bounded in time and memory.
type Authenticator interface {
	Authenticate(r *http.Request) (Principal, error)
}

type principalKey struct{}

// PrincipalFrom returns who made the request, as found by the server.
func PrincipalFrom(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(principalKey{}).(Principal)
	return p, ok
}

// Auth decides by mode. The management key may be set later than requests come
// in; all methods may be called from any goroutine.
type Auth struct {
	mode     AuthMode
	digest   atomic.Pointer[[sha256.Size]byte]
	nostr    Authenticator // nil: signed requests cannot be checked in this build
	failures *prometheus.CounterVec
	keys     atomic.Pointer[[]Key]
	tokens   atomic.Pointer[TokenOwner]
	tickets  atomic.Pointer[TicketOwner]
	sessions atomic.Pointer[SessionOwner]
}

// SetKeys sets the bearer keys beside the management key, in place of those set
// before.
func (a *Auth) SetKeys(keys []Key) { a.keys.Store(&keys) }

// SessionOwner tells whose console session a request without an Authorization
// header belongs to; the error says why it counts for nothing. It may be called
// from any goroutine.
type SessionOwner func(r *http.Request) (Principal, error)

// SetSessions lets such requests in.
func (a *Auth) SetSessions(owner SessionOwner) { a.sessions.Store(&owner) }

// Bearer tells who holds a bearer key, whatever the mode: the console's login
// form takes no signature.
func (a *Auth) Bearer(key string) (Principal, error) { return a.bearer(key) }

// TokenOwner tells who holds a bearer token that is none of the keys: a spawned agent, for
// instance. The error is ErrBadCredential for a token without an owner, and ErrCannotTell
// if that cannot be found out now. It must take the same time for every token it does not
// know, and may be called from any goroutine.
type TokenOwner func(token string) (Principal, error)

// SetTokens adds bearer tokens beside the management key.
func (a *Auth) SetTokens(owner TokenOwner) { a.tokens.Store(&owner) }

// TicketOwner tells whom a request without an Authorization header lets in: the
// WebSocket of a browser, which cannot send one, with a ticket in its query. It
// uses the ticket up, and may be called from any goroutine.
type TicketOwner func(r *http.Request) (Principal, bool)

// SetTickets lets such requests in.
func (a *Auth) SetTickets(owner TicketOwner) { a.tickets.Store(&owner) }

// NewAuth returns an Auth that has no key yet. nostr checks "Authorization:
// Nostr" and may be nil: such requests are then refused and hybrid takes bearer
// alone.
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

// Limitation says what the mode promises and this build cannot do; empty when
// it can do everything.
func (a *Auth) Limitation() string {
	switch {
	case a.nostr != nil || a.mode == AuthBearer:
		return ""
	case a.mode == AuthHybrid:
		return "signed requests (NIP-98) cannot be checked yet: the bearer key alone is accepted"
	}
	return "signed requests (NIP-98) cannot be checked yet: every request that needs a key is refused"
}

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
		return a.bearer(strings.TrimSpace(rest))
	case strings.EqualFold(scheme, "Nostr") && a.mode != AuthBearer && a.nostr != nil:
		p, err := a.nostr.Authenticate(r)
		if err != nil {
			return Principal{}, a.refuse("nip98", reasonOf(err), err)
		}
		return p, nil
	}
	return Principal{}, a.refuse("none", "scheme", ErrBadCredential)
}

// bearer compares digests, not keys: equal lengths, and so constant time.
func (a *Auth) bearer(token string) (Principal, error) {
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
	if want == nil {
		return Principal{}, a.refuse("bearer", "no_key_yet", ErrNoKeyYet)
	}
	return Principal{}, a.refuse("bearer", "wrong", ErrBadCredential)
}

func (a *Auth) refuse(mode, reason string, err error) error {
	a.failures.WithLabelValues(mode, reason).Inc()
	return &refusal{reason, err}
}

// refusal says why in the word that the metric counts by, too.
type refusal struct {
	reason string
	err    error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

func reasonOf(err error) string {
	var r *refusal
	if errors.As(err, &r) {
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

// isSigned tells whether the request shows a signature, which is dear to check.
func isSigned(r *http.Request) bool { return hasScheme(r, "Nostr") }

func hasScheme(r *http.Request, want string) bool {
	scheme, _, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.EqualFold(scheme, want)
}
