package console

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"sync"
	"time"
)

const (
	cookieName = "agentbox_session"
	// keyHeader has the key of the session. The browser sends the cookie also to servers on other
	// ports of the same host (RFC 6265, 8.5), thus to programs of the box. The key is in storage that
	// belongs to the origin, which includes the port, and so only pages of the console send it.
	keyHeader = "Agentbox-Console"
	// sessionLife is how long a session holds after its login.
	sessionLife = 12 * time.Hour
	// maxSessions bounds the memory: with one more login the oldest session ends.
	maxSessions = 64
)

// sessions are kept by the digest of their token, so that what is in memory opens
// nothing. They end with the box.
type sessions struct {
	mu   sync.Mutex
	held map[[sha256.Size]byte]session
}

type session struct {
	holder Holder
	opened time.Time
	key    [sha256.Size]byte // the digest of the key
}

// open makes a session and returns its cookie and its key.
func (s *sessions) open(h Holder, now time.Time, secure bool) (*http.Cookie, string) {
	token, key := rand.Text(), rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		s.held = make(map[[sha256.Size]byte]session)
	}
	for len(s.held) >= maxSessions {
		s.dropOldest()
	}
	s.held[sha256.Sum256([]byte(token))] = session{h, now, sha256.Sum256([]byte(key))}
	return cookie(token, int(sessionLife/time.Second), secure), key
}

func (s *sessions) dropOldest() {
	var oldest [sha256.Size]byte
	var at time.Time
	for digest, held := range s.held {
		if at.IsZero() || held.opened.Before(at) {
			oldest, at = digest, held.opened
		}
	}
	delete(s.held, oldest)
}

// hasKey tells whether a request shows the key of the session.
func (s session) hasKey(r *http.Request) bool {
	shown := sha256.Sum256([]byte(r.Header.Get(keyHeader)))
	return subtle.ConstantTimeCompare(shown[:], s.key[:]) == 1
}

// of finds the session of a request by its cookie.
func (s *sessions) of(r *http.Request, now time.Time) (session, bool) {
	digest, ok := digestOf(r)
	if !ok {
		return session{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	held, ok := s.held[digest]
	if ok && now.Sub(held.opened) >= sessionLife {
		delete(s.held, digest)
		ok = false
	}
	return held, ok
}

// close ends the session of a request and returns the cookie that clears its own.
func (s *sessions) close(r *http.Request) *http.Cookie {
	if digest, ok := digestOf(r); ok {
		s.mu.Lock()
		delete(s.held, digest)
		s.mu.Unlock()
	}
	return cookie("", -1, isSecure(r))
}

func digestOf(r *http.Request) (digest [sha256.Size]byte, ok bool) {
	c, err := r.Cookie(cookieName)
	if err != nil || c.Value == "" {
		return digest, false
	}
	return sha256.Sum256([]byte(c.Value)), true
}

// cookie is out of reach of scripts and of requests from other sites (RFC 6265bis).
func cookie(value string, maxAge int, secure bool) *http.Cookie {
	return &http.Cookie{
		Name: cookieName, Value: value, Path: "/", MaxAge: maxAge, Secure: secure, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	}
}
