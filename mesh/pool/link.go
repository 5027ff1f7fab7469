package pool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
)

// link is one relay. One goroutine dials, reads and waits before it dials again.
type link struct {
	pool       *Pool
	url        string
	shown      string // url without user and query
	publishes  bool
	subscribes bool
	leave      context.CancelFunc // disconnects a guest; nil if the relay is the pool's own

	mu      sync.Mutex
	status  Status
	conn    Conn          // nil if not connected
	loginID string        // id of the AUTH event that was sent
	answer  chan struct{} // closed when the relay has answered AUTH or the connection has ended
	blocked bool          // the link waits for the reader of a subscription
	waiting map[string]chan nip01.FromRelay

	pages    map[string]*page // by the id of their request
	caughtUp bool             // this connection has read the stored events
	wasUp    time.Time        // when a connection that had read them ended; zero if there was none
}

func (l *link) run(ctx context.Context) {
	for try := 1; ; try++ {
		lasted, err := l.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if lasted >= steadyAfter {
			try = 1
		}
		wait := backoff(try, rand.Float64())
		l.change(func(s *Status) {
			s.State, s.Error, s.LoggedIn, s.Retries = Waiting, escape.Line(err.Error(), maxReason), false, try
		})
		if !sleep.For(ctx, wait) {
			return
		}
	}
}

// once makes one connection and serves it to its end.
func (l *link) once(ctx context.Context) (lasted time.Duration, err error) {
	l.change(func(s *Status) { s.State = Connecting })
	dialling, cancel := context.WithTimeout(ctx, dialLimit)
	began := time.Now()
	conn, err := l.pool.cfg.Dial(dialling, l.url)
	cancel()
	if err != nil {
		return 0, err
	}
	connected := time.Now()
	live, end := context.WithCancelCause(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer end(nil)
	l.mu.Lock()
	l.conn, l.answer = conn, make(chan struct{})
	l.mu.Unlock()
	defer l.hangUp(conn)
	took := connected.Sub(began)
	l.change(func(s *Status) {
		s.State, s.Error, s.Connect, s.LatencyMS, s.Retries = Connected, "", took, float64(took.Microseconds())/1000, 0
	})
	tasks.Go(func() { l.ping(live, end, conn) })
	if l.pool.cfg.Document != nil {
		tasks.Go(func() { l.introduce(live) })
	}
	for _, s := range l.pool.subscriptions() {
		l.request(s)
	}
	err = l.read(live, conn)
	if cause := context.Cause(live); cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return time.Since(connected), err
}

// hangUp closes the connection and wakes every caller that waits for an answer.
func (l *link) hangUp(conn Conn) {
	_ = conn.Close() // an error does not matter: the connection ends
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.caughtUp && l.loginID == "" { // before the answer to a login, a relay may hide events
		l.wasUp = time.Now()
	}
	l.conn, l.loginID = nil, ""
	l.caughtUp = false
	clear(l.pages)
	l.settle()
	for id, c := range l.waiting {
		close(c)
		delete(l.waiting, id)
	}
}

// settle wakes the goroutines that wait for the login. The caller holds the lock.
func (l *link) settle() {
	if l.answer != nil {
		close(l.answer)
		l.answer = nil
	}
}

func (l *link) ping(ctx context.Context, end context.CancelCauseFunc, conn Conn) {
	for sleep.For(ctx, pingEvery) {
		limited, cancel := context.WithTimeout(ctx, sendLimit)
		err := conn.Ping(limited)
		cancel()
		if l.behind() {
			continue // this side does not read, so the relay is not at fault
		}
		if err != nil {
			end(errors.New("the relay does not answer a ping"))
			_ = conn.Close()
			return
		}
	}
}

// read handles messages until the connection ends or the relay has sent badLimit invalid messages.
func (l *link) read(ctx context.Context, conn Conn) error {
	bad := 0
	pause := time.Second / eventsPerSecond
	if l.guest() {
		pause = time.Second / guestPerSecond
	}
	rate := time.Now().Add(-time.Second) // allows a burst of one second
	for {
		raw, err := conn.Read(ctx)
		if err != nil {
			return err
		}
		// If a relay sends too fast, read at the limited rate. The other messages wait at the relay.
		rate = later(rate, time.Now().Add(-time.Second)).Add(pause)
		if ahead := time.Until(rate); ahead > 0 && !sleep.For(ctx, ahead) {
			return ctx.Err()
		}
		m, err := nip01.ParseFromRelay(raw)
		if err == nil {
			err = l.message(ctx, m)
		}
		if err != nil {
			l.change(func(s *Status) { s.Refused++ })
			if bad++; bad >= badLimit {
				return fmt.Errorf("the relay is not honest: %w", err)
			}
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// message handles one message. An error means that the relay has broken the protocol.
func (l *link) message(ctx context.Context, m nip01.FromRelay) error {
	switch m.Verb {
	case nip01.VerbAuth:
		l.login(ctx, m.Text)
	case nip01.VerbOK:
		l.answered(m)
	case nip01.VerbEOSE:
		l.turnPages(m.Subscription)
	case nip01.VerbClosed:
		if strings.HasPrefix(m.Text, "auth-required:") {
			break // it is asked again after the login
		}
		l.refusedPages(m.Subscription)
		if s := l.pool.subscription(m.Subscription); s != nil {
			l.change(func(st *Status) { st.Error = "refused a subscription: " + escape.Line(m.Text, maxReason) })
		}
	case nip01.VerbEvent:
		return l.event(ctx, m)
	}
	return nil
}

func (l *link) event(ctx context.Context, m nip01.FromRelay) error {
	s, filters := l.asked(m.Subscription)
	if s == nil {
		return nil // the subscription has just been closed
	}
	subject := nip01.NewSubject(m.Event)
	if !nip01.MatchesAny(filters, subject) {
		return errors.New("an event that was not asked for")
	}
	if err := nip01.Verify(m.Event); err != nil {
		return err
	}
	l.count(m.Subscription, subject)
	l.change(func(st *Status) { st.Events++; st.LastEvent = time.Now() })
	// Remember only the ids of verified events: a forged copy must not hide the real event.
	if !l.pool.seen.add(s.id + m.Event.ID) {
		return nil
	}
	l.setBehind(true)
	defer l.setBehind(false)
	if s.offer(ctx, Event{m.Event, l.shown}) {
		s.end(ErrBehind)
	}
	return nil
}

func (l *link) setBehind(is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blocked = is
}

func (l *link) behind() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.blocked
}

// login answers the relay's challenge (NIP-42).
func (l *link) login(ctx context.Context, challenge string) {
	if l.pool.cfg.Signer == nil {
		return
	}
	e := &nostr.Event{Kind: nip01.KindAuth, CreatedAt: nostr.Now(), Tags: nostr.Tags{{"relay", l.url}, {"challenge", challenge}}}
	if err := l.pool.cfg.Signer.Sign(e); err != nil {
		l.change(func(s *Status) { s.Error = "cannot log in: " + err.Error() })
		return
	}
	l.mu.Lock()
	l.loginID = e.ID
	l.mu.Unlock()
	l.send(ctx, nip01.Message(nip01.VerbAuth, e))
}

// answered passes OK to the goroutine that waits for it. After a login, subscriptions that were
// refused without one are sent again.
func (l *link) answered(m nip01.FromRelay) {
	l.mu.Lock()
	login := m.ID == l.loginID
	if login {
		l.loginID = "" // handle only the first answer, because it sends all subscriptions again
	}
	c, ok := l.waiting[m.ID]
	delete(l.waiting, m.ID)
	l.mu.Unlock()
	if ok {
		c <- m // does not block: the channel has a buffer for its only answer
	}
	if !login {
		return
	}
	l.change(func(s *Status) {
		s.LoggedIn = m.Accepted
		if !m.Accepted {
			s.Error = "refused the login: " + escape.Line(m.Text, maxReason)
		}
	})
	l.mu.Lock()
	l.settle()
	l.caughtUp = l.caughtUp && !m.Accepted // before, the relay may have hidden events
	l.mu.Unlock()
	if m.Accepted {
		for _, s := range l.pool.subscriptions() {
			l.request(s)
		}
	}
}

func (l *link) guest() bool { return l.leave != nil }

// unanswered returns how many events wait for an answer.
func (l *link) unanswered() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

func (l *link) connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil
}

// publish sends an event and waits for OK. An event that is refused because a login is needed is
// sent again after the login.
func (l *link) publish(ctx context.Context, e *nostr.Event) Result {
	l.mu.Lock()
	login, most := l.answer, l.status.Document.MaxMessage
	l.mu.Unlock()
	if size := len(nip01.Message(nip01.VerbEvent, e)); most > 0 && size > most {
		return Result{URL: l.shown, Guest: l.guest(), Reason: fmt.Sprintf("payload-too-large: the message has %d bytes, the relay takes %d", size, most)}
	}
	m, err := l.ask(ctx, e)
	if err == nil && !m.Accepted && strings.HasPrefix(m.Text, "auth-required:") && login != nil && l.pool.cfg.Signer != nil {
		select {
		case <-login:
		case <-ctx.Done():
		}
		if l.snapshot().LoggedIn {
			m, err = l.ask(ctx, e)
		}
	}
	switch {
	case err != nil:
		return Result{URL: l.shown, Guest: l.guest(), Reason: err.Error()}
	case m.Accepted:
		l.change(func(s *Status) { s.Published++ })
	}
	return Result{URL: l.shown, Guest: l.guest(), Accepted: m.Accepted, Reason: escape.Line(m.Text, maxReason), Answered: true}
}

func (l *link) ask(ctx context.Context, e *nostr.Event) (nip01.FromRelay, error) {
	c := make(chan nip01.FromRelay, 1)
	l.mu.Lock()
	_, twice := l.waiting[e.ID]
	gone := l.conn == nil
	if !twice && !gone {
		l.waiting[e.ID] = c
	}
	l.mu.Unlock()
	switch {
	case gone:
		return nip01.FromRelay{}, errors.New("the connection ended")
	case twice:
		return nip01.FromRelay{}, errors.New("the event is being published already")
	}
	l.send(ctx, nip01.Message(nip01.VerbEvent, e))
	select {
	case m, ok := <-c:
		if !ok {
			return m, errors.New("the connection ended before an answer")
		}
		return m, nil
	case <-ctx.Done():
		l.mu.Lock()
		if l.waiting[e.ID] == c {
			delete(l.waiting, e.ID)
		}
		l.mu.Unlock()
		return nip01.FromRelay{}, errors.New("no answer in time")
	}
}

// introduce asks the relay for its description. The pool also uses a relay without one.
func (l *link) introduce(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	if d, err := l.pool.cfg.Document(limited, l.url); err == nil {
		l.change(func(s *Status) { s.Document = d })
	}
}

func (l *link) request(s *Subscription) {
	if !l.subscribes {
		return
	}
	l.mu.Lock()
	l.openHistory(s)
	l.mu.Unlock()
	parts := []any{nip01.VerbReq, s.id}
	for _, f := range s.filters {
		parts = append(parts, f)
	}
	l.send(l.pool.ctx, nip01.Message(parts...))
}

func (l *link) unsubscribe(s *Subscription) {
	if !l.subscribes {
		return
	}
	for _, id := range append(l.closeHistory(s), s.id) {
		l.send(l.pool.ctx, nip01.Message(nip01.VerbClose, id))
	}
}

// send writes a message if there is a connection. If the relay does not read, the connection is
// closed.
func (l *link) send(ctx context.Context, message []byte) {
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if conn == nil {
		return
	}
	limited, cancel := context.WithTimeout(ctx, sendLimit)
	defer cancel()
	if err := conn.Write(limited, message); err != nil {
		_ = conn.Close() // the reader reports the reason and dials again
	}
}

func (l *link) snapshot() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

// change changes the status, and calls Notice if the state is different.
func (l *link) change(f func(*Status)) {
	l.mu.Lock()
	before := l.status.State
	f(&l.status)
	if l.status.State != before || l.status.Since.IsZero() {
		l.status.Since = time.Now()
	}
	now := l.status
	l.mu.Unlock()
	if now.State != before && l.pool.cfg.Notice != nil {
		l.pool.cfg.Notice(now)
	}
}
