package console

import (
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"sync"
	"time"
)

const (
	cookieName = "agentbox_session"
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
}

// open makes a session and returns its cookie.
func (s *sessions) open(h Holder, now time.Time, secure bool) *http.Cookie {
	token := rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		s.held = make(map[[sha256.Size]byte]session)
	}
	for len(s.held) >= maxSessions {
		s.dropOldest()
	}
	s.held[sha256.Sum256([]byte(token))] = session{h, now}
	return cookie(token, int(sessionLife/time.Second), secure)
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

// of finds the session of a request.
func (s *sessions) of(r *http.Request, now time.Time) (Holder, bool) {
	digest, ok := digestOf(r)
	if !ok {
		return Holder{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	held, ok := s.held[digest]
	if ok && now.Sub(held.opened) >= sessionLife {
		delete(s.held, digest)
		ok = false
	}
	return held.holder, ok
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
