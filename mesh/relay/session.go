package relay

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/dreamlab-ai/agentinit/internal/rate"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

// Limits of a session.
const (
	authWait        = 30 * time.Second
	pingEvery       = 60 * time.Second
	pingWait        = 10 * time.Second
	sendLimit       = 10 * time.Second
	receiveLimit    = 30 * time.Second // from the beginning of a message to its end
	messageOverhead = 4096
)

// session is one connection. One goroutine runs handle; other goroutines call live.
type session struct {
	relay   *Relay
	number  uint64 // increases with each new session
	evicted bool   // another session has its place; guarded by the relay's lock
	conn    *websocket.Conn
	ctx     context.Context // ends with the session
	stop    context.CancelFunc
	local   string // the local address of the connection
	out     *outbound
	ending  sync.Once
	tasks   sync.WaitGroup

	rate    rate.Bucket
	refused int

	mu        sync.Mutex
	key       string // public key that the client has proved with AUTH
	challenge Challenge
	over      bool // giveBack was called
	subs      map[string]*subscription
}

// Reasons to end a session.
var (
	errSlow   = errors.New("the client reads too slowly")
	errNoAuth = errors.New("no AUTH in time")
)

// run serves the connection until it ends.
func (s *session) run() {
	ctx := s.ctx
	defer s.giveBack()
	defer s.tasks.Wait()
	defer s.stop()
	s.tasks.Go(func() { s.send(ctx) })
	s.tasks.Go(func() { s.ping(ctx) })
	if s.relay.policy().authWanted() {
		timer := time.AfterFunc(authWait, func() {
			if s.provedKey() == "" {
				s.end(errNoAuth)
			}
		})
		defer timer.Stop()
	}
	s.issue()
	for {
		kind, raw, charge, err := s.receive(ctx)
		freeRaw := sync.OnceFunc(func() { s.relay.inbound.put(charge) })
		if err == nil && kind == websocket.MessageText {
			err = s.handle(ctx, raw, freeRaw)
		} else if err == nil {
			s.end(errors.New("binary messages are not of NIP-01"))
		}
		freeRaw()
		if err != nil {
			break
		}
	}
	_ = s.conn.CloseNow() // the client has disconnected, or the relay closes
}

// receive reads a message. charge is what it has taken of the relay's memory, also with an error.
func (s *session) receive(ctx context.Context) (kind websocket.MessageType, raw []byte, charge int, err error) {
	kind, r, err := s.conn.Reader(ctx)
	if err != nil {
		return kind, nil, 0, err
	}
	late := time.AfterFunc(receiveLimit, func() { s.end(errSlow) })
	defer late.Stop()
	policy := s.relay.policy()
	free := policy.own(s.provedKey())
	raw = make([]byte, 0, 512)
	for {
		if len(raw) == cap(raw) {
			// The limit of the connection ends the message below the largest size.
			size := max(min(4*cap(raw), policy.MaxEventBytes+messageOverhead+512), cap(raw)+512)
			if !free && size > smallMessage {
				if !s.relay.inbound.take(size - charge) {
					s.relay.inbound.put(charge)
					s.refuse(errBusy)
					return kind, nil, 0, errBusy
				}
				charge = size
			}
			raw = append(make([]byte, 0, size), raw...)
		}
		n, err := r.Read(raw[len(raw):cap(raw)])
		raw = raw[:len(raw)+n]
		if errors.Is(err, io.EOF) {
			return kind, raw, charge, nil
		}
		if err != nil {
			return kind, nil, charge, err
		}
	}
}

// giveBack returns the session's part of the relay's memory. All its goroutines have ended, but live
// may still be called.
func (s *session) giveBack() {
	s.out.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.subs {
		s.drop(id)
	}
	s.over = true
}

// isOwn tells whether the session has proved a key of the box or its operator.
func (s *session) isOwn() bool { return s.relay.policy().own(s.provedKey()) }

// refuse closes the connection because the relay has no room for its message. That may take seconds,
// because Close waits for the client. No call of end waits for it: live, which calls end, runs in the
// goroutine of another session.
func (s *session) refuse(why error) {
	first := false
	s.ending.Do(func() { first = true })
	if first {
		_ = s.conn.Close(websocket.StatusTryAgainLater, why.Error()) // the client may have disconnected
	}
}

// end closes the connection and sends the client the reason. Then Read returns.
func (s *session) end(why error) {
	s.ending.Do(func() {
		go func() {
			_ = s.conn.Close(websocket.StatusPolicyViolation, why.Error()) // the client may have disconnected
			s.stop()                                                       // handle may be waiting for memory
		}()
	})
}

func (s *session) send(ctx context.Context) {
	for {
		message, err := s.out.next(ctx)
		if err != nil {
			return
		}
		limited, cancel := context.WithTimeout(ctx, sendLimit)
		err = s.conn.Write(limited, websocket.MessageText, message)
		cancel()
		if err != nil {
			s.end(errSlow)
			return
		}
	}
}

func (s *session) ping(ctx context.Context) {
	for sleep.For(ctx, pingEvery) {
		limited, cancel := context.WithTimeout(ctx, pingWait)
		err := s.conn.Ping(limited)
		cancel()
		if err != nil {
			s.end(errSlow)
			return
		}
	}
}

// provedKey is the public key that the client has proved with AUTH, or "".
func (s *session) provedKey() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.key
}

// issue sends a new challenge.
func (s *session) issue() {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails: crypto/rand ends the process instead
	s.mu.Lock()
	s.challenge = Challenge{Text: hex.EncodeToString(raw[:]), Issued: time.Now()}
	text := s.challenge.Text
	s.mu.Unlock()
	s.say(nip01.VerbAuth, text)
}

// say sends a short answer. If the client does not read its answers, the connection is closed.
func (s *session) say(parts ...any) {
	if !s.out.offer(item{head: nip01.Message(parts...)}, s.isOwn()) {
		s.end(errSlow)
	}
}
