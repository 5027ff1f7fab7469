package rest

import (
	"crypto/rand"
	"crypto/sha256"
	"sync"
	"time"

	"net/http"

	"github.com/dreamlab-ai/agentinit/adapters"
)

// ticketLife is how long a ticket is valid.
const ticketLife = 30 * time.Second

// maxTickets limits the unused tickets. Guests together have at most maxGuestTickets, so that they
// cannot keep out the operator.
const (
	maxTickets      = 4096
	maxGuestTickets = 3072
)

// Ticket is a credential for one WebSocket, in the query parameter "ticket": a browser cannot set
// headers for a WebSocket.
type Ticket struct {
	Ticket    string        `json:"ticket"`
	ExpiresAt adapters.Time `json:"expires_at"`
}

// tickets stores only digests of tickets: a digest cannot open a WebSocket.
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
	guests := 0
	for k, old := range t.known {
		switch {
		case !now.Before(old.end):
			delete(t.known, k)
		case old.who.guest():
			guests++
		}
	}
	if len(t.known) >= maxTickets || who.guest() && guests >= maxGuestTickets {
		return Ticket{}, adapters.Errorf(adapters.CodeRateLimited, "too many tickets are unused").WithRetryAfter(ticketLife)
	}
	secret := rand.Text()
	end := now.Add(ticketLife)
	t.known[sha256.Sum256([]byte(secret))] = ticket{who, end}
	return Ticket{Ticket: secret, ExpiresAt: adapters.At(end)}, nil
}

// redeem returns the owner of a ticket and deletes the ticket.
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
	return q.result(http.StatusCreated, t, err)
}

// Redeem returns the owner of the ticket in the query of r and deletes the ticket. The authentication
// in front of this server calls it. It returns false if r does not open a WebSocket, or if its
// ticket is not valid.
func (s *Server) Redeem(r *http.Request) (Principal, bool) {
	secret := r.URL.Query().Get("ticket")
	if secret == "" || r.Method != http.MethodGet || !(&request{Request: r}).isWebSocket() {
		return Principal{}, false
	}
	return s.tickets.redeem(secret, time.Now())
}
