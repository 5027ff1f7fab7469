package rest

import (
	"crypto/rand"
	"crypto/sha256"
	"sync"
	"time"

	"net/http"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// ticketLife is how long a ticket may be used.
const ticketLife = 30 * time.Second

// maxTickets bounds the tickets that have not been used yet.
const maxTickets = 4096

// Ticket opens one WebSocket, as its query parameter "ticket": a browser
// cannot put a header on one.
type Ticket struct {
	Ticket    string        `json:"ticket"`
	ExpiresAt adapters.Time `json:"expires_at"`
}

// tickets are kept by digest: what can be read here opens nothing.
type tickets struct {
	mu    sync.Mutex
	known map[[sha256.Size]byte]ticket
}

type ticket struct {
	who Principal
	end time.Time
}

func (t *tickets) issue(who Principal, now time.Time) (Ticket, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil {
		t.known = make(map[[sha256.Size]byte]ticket)
	}
	for k, old := range t.known {
		if !now.Before(old.end) {
			delete(t.known, k)
		}
	}
	if len(t.known) >= maxTickets {
		return Ticket{}, adapters.Errorf(adapters.CodeRateLimited, "too many tickets are unused").WithRetryAfter(ticketLife)
	}
	secret := rand.Text()
	end := now.Add(ticketLife)
	t.known[sha256.Sum256([]byte(secret))] = ticket{who, end}
	return Ticket{Ticket: secret, ExpiresAt: adapters.At(end)}, nil
}

// redeem returns whose the ticket is, and ends it.
func (t *tickets) redeem(secret string, now time.Time) (Principal, bool) {
	key := sha256.Sum256([]byte(secret))
	t.mu.Lock()
	defer t.mu.Unlock()
	found, ok := t.known[key]
	delete(t.known, key)
	return found.who, ok && now.Before(found.end)
}

func newTicket(q *request) error {
	t, err := q.s.tickets.issue(q.who, time.Now())
	if err != nil {
		return err
	}
	return q.reply(http.StatusCreated, t)
}

// Redeem says whose ticket opens r, for the authentication in front of this
// server: only a WebSocket may come with one, in its query, and the ticket is
// used up. It is false for every other request.
func (s *Server) Redeem(r *http.Request) (Principal, bool) {
	secret := r.URL.Query().Get("ticket")
	if secret == "" || r.Method != http.MethodGet || !(&request{Request: r}).isWebSocket() {
		return Principal{}, false
	}
	return s.tickets.redeem(secret, time.Now())
}
