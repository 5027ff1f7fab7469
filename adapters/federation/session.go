package federation

import (
	"slices"
	"time"
)

// State is the state of a session.
type State string

// The states of a session.
const (
	Idle          State = "idle"
	Registering   State = "registering"
	Connecting    State = "connecting"
	Active        State = "active"
	Suspect       State = "suspect"
	Lost          State = "lost"
	Evicted       State = "evicted"
	Quarantined   State = "quarantined"
	Refused       State = "refused"
	Deregistering State = "deregistering"
	Closed        State = "closed"
)

// States lists them all, for metrics.
func States() []State {
	return []State{Idle, Registering, Connecting, Active, Suspect, Lost, Evicted, Quarantined, Refused, Deregistering, Closed}
}

// Times of a session.
const (
	RegisterLimit   = 10 * time.Second // of one attempt
	HeartbeatLimit  = 10 * time.Second // of one heartbeat
	DeregisterLimit = 3 * time.Second

	DefaultInterval = 30 * time.Second
	MinInterval     = 5 * time.Second
	MaxInterval     = 300 * time.Second

	backoffFirst   = time.Second
	backoffMax     = time.Minute
	suspectFirst   = 5 * time.Second // then 10 s
	lostAfter      = 3               // heartbeats missed in a row
	refusedPause   = 5 * time.Minute
	evictedPause   = 5 * time.Second
	evictedSpread  = 5 * time.Second
	quarantine     = 10 * time.Minute
	evictionWindow = 10 * time.Minute
	maxEvictions   = 5 // within the window
	// maxRetryAfter limits the pause that a host can ask for, so that a wrong header does not
	// silence the box for ever.
	maxRetryAfter = 10 * time.Minute
)

// Session is the state of the session. It is a value, and only Step changes it.
type Session struct {
	State  State
	Since  time.Time // when State began
	Reason string    // why, in words; "" if there is no reason to give

	ID        string // of the session, "" without one
	Token     string // of the session, "" without one
	Endpoints Endpoints
	Interval  time.Duration // between heartbeats

	Next    time.Time // when Tick is wanted; zero: never
	Seq     uint64    // of the last heartbeat
	Call    uint64    // number of the request in flight, 0 when none is
	Calls   uint64    // numbers given out so far
	Attempt int       // failed registers in a row
	Missed  int       // heartbeats in a row

	LastHeartbeat time.Time   // when the host last answered one
	Recent        []time.Time // evictions within the window
	Evictions     int         // since the start
	Terminal      bool        // refused, and not to be tried again
	NoHost        bool        // the server that was asked last is no host of boxes
	WasActive     bool        // once, since the start
	degraded      bool        // the slots have been told that the host is unreachable
	random        uint64      // state of the jitter
}

// New returns a session that has not begun. The seed makes the jitter of each box
// different: many boxes that start at once must not register at the same moment.
func New(seed uint64, now time.Time) Session {
	return Session{State: Idle, Since: now, Interval: DefaultInterval, random: seed}
}

// Event is something that has happened.
type Event interface{ event() }

// The events.
type (
	// Start begins the session.
	Start struct{}
	// Tick: the time Next has come.
	Tick struct{}
	// Resumed: the clock has jumped, or the box was suspended.
	Resumed struct{}
	// Reloaded: the configuration was applied again.
	Reloaded struct{}
	// Shutdown: the box is about to end.
	Shutdown struct{}

	// Registered answers Register.
	Registered struct {
		Call      uint64
		ID, Token string
		Interval  time.Duration // 0 = the default
		Endpoints Endpoints
	}
	// Beaten answers Heartbeat.
	Beaten struct {
		Call      uint64
		NextIn    time.Duration // 0 = the session's interval
		Endpoints *Endpoints    // nil = as before
	}
	// Failed answers Register or Heartbeat: there was no answer, or an unusable one.
	Failed struct {
		Call       uint64
		Kind       Failure
		Reason     string
		RetryAfter time.Duration
	}
	// Gone answers Heartbeat: the host does not know the session any more.
	Gone struct {
		Call       uint64
		Reason     string
		Permanent  bool
		RetryAfter time.Duration
	}
	// Deregistered is the answer to Deregister, with any status of the host.
	Deregistered struct{ Call uint64 }
	// Settled answers Connect: every slot has its endpoint or is degraded.
	Settled struct{}
)

func (Start) event()        {}
func (Tick) event()         {}
func (Resumed) event()      {}
func (Reloaded) event()     {}
func (Shutdown) event()     {}
func (Registered) event()   {}
func (Beaten) event()       {}
func (Failed) event()       {}
func (Gone) event()         {}
func (Deregistered) event() {}
func (Settled) event()      {}

// Failure is how a request failed.
type Failure int

// The kinds of failure.
const (
	// Unreached: time-out, 408, 429, 5xx, network error, unusable answer. The session
	// tries again.
	Unreached Failure = iota
	// Rejected: 400, 401, 403. An operator must change the configuration.
	Rejected
	// NoHost: 404, 405, 501. The server does not have the path, so it is not a host of boxes. It
	// may still serve slots.
	NoHost
	// Mismatch: 409 CONTRACT_MISMATCH. Trying again does not help.
	Mismatch
)

// Action is something to be done.
type Action interface{ action() }

// The actions.
type (
	// Register, Heartbeat and Deregister are requests; each is answered by one
	// event with the same number.
	Register   struct{ Call uint64 }
	Heartbeat  struct{ Call, Seq uint64 }
	Deregister struct {
		Call   uint64
		Reason string
	}
	// Connect: give the slots these endpoints and the session's token; answered
	// by Settled.
	Connect struct{ Endpoints Endpoints }
	// Degrade: the slots behind the host are out of service.
	Degrade struct{ Reason string }
	// Tell publishes an event.
	Tell struct{ Name, Reason string }
	// Fatal: the box must end, if it is still booting.
	Fatal struct{ Reason string }
)

func (Register) action()   {}
func (Heartbeat) action()  {}
func (Deregister) action() {}
func (Connect) action()    {}
func (Degrade) action()    {}
func (Tell) action()       {}
func (Fatal) action()      {}

// Names of what Tell publishes.
const (
	NoticeRegistered = "FederationRegistered"
	NoticeSuspect    = "FederationSuspect"
	NoticeLost       = "FederationLost"
	NoticeEvicted    = "FederationEvicted"
	NoticeRecovered  = "FederationRecovered"
	NoticeRefused    = "FederationRefused"
	NoticeClosed     = "FederationClosed"
)

// Step is the whole behaviour: it returns the next session and the actions to carry
// out, and has no other effect. Answers to a request that
// is not the one in flight are ignored: they belong to a request that has timed out.
func Step(s Session, e Event, now time.Time) (Session, []Action) {
	m := machine{Session: s, now: now}
	m.Recent = slices.Clone(s.Recent)
	m.step(e)
	return m.Session, m.actions
}

// machine is one step under way.
type machine struct {
	Session
	now     time.Time
	actions []Action
}

func (m *machine) do(a ...Action) { m.actions = append(m.actions, a...) }

func (m *machine) enter(s State, reason string) {
	if m.State != s {
		m.Since = m.now
	}
	m.State, m.Reason = s, reason
}

// call numbers a request.
func (m *machine) call() uint64 {
	m.Calls++
	m.Call = m.Calls
	return m.Call
}

// answered takes the answer to the request in flight.
func (m *machine) answered(call uint64) bool {
	if call == 0 || call != m.Call {
		return false
	}
	m.Call = 0
	return true
}

func (m *machine) step(e Event) {
	if m.State == Closed {
		return
	}
	switch e := e.(type) {
	case Shutdown:
		m.shutdown()
	case Deregistered:
		if m.State == Deregistering && m.answered(e.Call) {
			m.close()
		}
	case Start:
		if m.State == Idle {
			m.register()
		}
	case Tick:
		if !m.Next.IsZero() && !m.now.Before(m.Next) {
			m.tick()
		}
	case Resumed:
		m.resumed()
	case Reloaded:
		if m.State == Refused && !m.Terminal || m.State == Quarantined {
			m.register()
		}
	case Registered:
		if m.State == Registering && m.answered(e.Call) {
			m.registered(e)
		}
	case Settled:
		if m.State == Connecting {
			m.settled()
		}
	case Beaten:
		if m.beating() && m.answered(e.Call) {
			m.beaten(e)
		}
	case Failed:
		m.failed(e)
	case Gone:
		if m.beating() && m.answered(e.Call) {
			m.gone(e)
		}
	}
}

// beating: heartbeats are sent in this state.
func (m *machine) beating() bool {
	return m.State == Active || m.State == Suspect || m.State == Lost
}

func (m *machine) tick() {
	m.Next = time.Time{}
	switch m.State {
	case Registering, Refused, Evicted, Quarantined:
		m.register()
	case Active, Suspect, Lost:
		m.beat()
	case Deregistering:
		m.close()
	}
}

// resumed sends a heartbeat, or tries again, at once: the planned time may have passed
// while the box was suspended, and the host may have ended the session.
func (m *machine) resumed() {
	switch {
	case m.Call != 0:
	case m.beating():
		m.beat()
	case m.State == Registering:
		m.register()
	}
}

func (m *machine) register() {
	if m.State != Registering {
		m.Attempt = 0
	}
	m.Next = time.Time{}
	m.enter(Registering, m.Reason)
	m.do(Register{m.call()})
}

func (m *machine) registered(e Registered) {
	m.ID, m.Token, m.Endpoints, m.NoHost = e.ID, e.Token, e.Endpoints, false
	m.Interval = interval(e.Interval)
	m.Seq, m.Missed, m.Attempt = 0, 0, 0
	m.enter(Connecting, "")
	m.do(Connect{e.Endpoints})
}

// interval limits the heartbeat interval that a host asks for; 0 is the default.
func interval(d time.Duration) time.Duration {
	if d == 0 {
		return DefaultInterval
	}
	return min(max(d, MinInterval), MaxInterval)
}

func (m *machine) settled() {
	m.enter(Active, "")
	m.LastHeartbeat = m.now // the host has just answered
	m.WasActive, m.degraded = true, false
	m.Next = m.now.Add(m.jitter(m.Interval, 10))
	m.do(Tell{NoticeRegistered, ""})
}

func (m *machine) beat() {
	if m.Call != 0 {
		return // one in flight
	}
	m.Next = time.Time{}
	m.Seq++
	m.do(Heartbeat{m.call(), m.Seq})
}

func (m *machine) beaten(e Beaten) {
	before := m.State
	m.Missed, m.LastHeartbeat = 0, m.now
	next := m.Interval
	if e.NextIn > 0 {
		next = interval(e.NextIn)
	}
	m.Next = m.now.Add(m.jitter(next, 10))
	m.enter(Active, "")
	moved := e.Endpoints != nil && !e.Endpoints.same(m.Endpoints)
	if moved {
		m.Endpoints = *e.Endpoints
	}
	if moved || m.degraded {
		m.degraded = false
		m.do(Connect{m.Endpoints})
	}
	if before != Active {
		m.do(Tell{NoticeRecovered, ""})
	}
}

func (m *machine) failed(e Failed) {
	switch {
	case m.State == Registering && m.answered(e.Call):
		m.notRegistered(e)
	case m.beating() && m.answered(e.Call):
		m.missed(e)
	}
}

func (m *machine) notRegistered(e Failed) {
	if e.Kind != Unreached {
		m.NoHost = e.Kind == NoHost
	}
	switch e.Kind {
	case Mismatch:
		m.Terminal = true
		m.enter(Refused, e.Reason)
		m.do(Tell{NoticeRefused, e.Reason})
		if !m.WasActive {
			m.do(Fatal{e.Reason})
		}
	case Rejected, NoHost:
		m.enter(Refused, e.Reason)
		m.Next = m.now.Add(max(m.jitter(refusedPause, 10), retryAfter(e.RetryAfter)))
		m.do(Tell{NoticeRefused, e.Reason})
	default:
		m.enter(Registering, e.Reason)
		m.Next = m.now.Add(m.backoff(m.Attempt, backoffMax, e.RetryAfter))
		m.Attempt++
	}
}

// backoff is 1 s, doubled with each failure up to limit, ±20 %. If the host asked for a longer
// pause, backoff is that pause plus up to a fifth of it, or plus up to a second if that is more. A
// host gives whole seconds, so many boxes get the same pause.
func (m *machine) backoff(failures int, limit, asked time.Duration) time.Duration {
	d := m.jitter(min(backoffFirst<<min(failures, 10), limit), 20)
	if asked = retryAfter(asked); asked > 0 {
		d = max(d, asked+m.upTo(max(asked/5, time.Second)))
	}
	return d
}

func retryAfter(d time.Duration) time.Duration { return min(max(d, 0), maxRetryAfter) }

func (m *machine) missed(e Failed) {
	m.Missed++
	if m.Missed < lostAfter {
		if m.State == Active {
			m.do(Tell{NoticeSuspect, e.Reason})
		}
		m.enter(Suspect, e.Reason)
		m.Next = m.now.Add(max(suspectFirst<<(m.Missed-1), retryAfter(e.RetryAfter)))
		return
	}
	if m.State != Lost {
		m.do(Tell{NoticeLost, e.Reason})
		m.degrade("the host is lost: " + e.Reason)
	}
	m.enter(Lost, e.Reason)
	// The pauses begin at 16 s and are at most as long as the heartbeat interval. The host
	// can serve all its boxes once in an interval, so all are back within one.
	m.Next = m.now.Add(m.backoff(m.Missed+1, min(m.Interval, backoffMax), e.RetryAfter))
}

func (m *machine) degrade(reason string) {
	m.degraded = true
	m.do(Degrade{reason})
}

func (m *machine) gone(e Gone) {
	m.ID, m.Token = "", ""
	m.Evictions++
	m.Recent = append(m.Recent, m.now)
	m.Recent = slices.DeleteFunc(m.Recent, func(t time.Time) bool { return m.now.Sub(t) > evictionWindow })
	m.do(Tell{NoticeEvicted, e.Reason})
	m.degrade("the host has evicted this box: " + e.Reason)
	if e.Permanent || len(m.Recent) >= maxEvictions {
		m.Recent = nil
		m.enter(Quarantined, e.Reason)
		m.Next = m.now.Add(max(quarantine, retryAfter(e.RetryAfter)))
		return
	}
	m.enter(Evicted, e.Reason)
	m.Next = m.now.Add(max(evictedPause, retryAfter(e.RetryAfter)) + m.upTo(evictedSpread))
}

func (m *machine) shutdown() {
	if m.State == Deregistering {
		return
	}
	if m.ID == "" {
		m.close()
		return
	}
	m.enter(Deregistering, "")
	m.Next = m.now.Add(DeregisterLimit)
	m.do(Deregister{m.call(), "shutdown"})
}

func (m *machine) close() {
	m.ID, m.Token, m.Call, m.Next = "", "", 0, time.Time{}
	m.enter(Closed, "")
	m.do(Tell{NoticeClosed, ""})
}

// jitter returns d, changed at random by up to so many per cent.
func (m *machine) jitter(d time.Duration, percent int64) time.Duration {
	span := d * time.Duration(percent) / 100
	return d - span + m.upTo(2*span)
}

// upTo returns a random duration between 0 and d, which must not be negative. SplitMix64 (Steele, Lea,
// Flood 2014): the state is one number, so that a Session stays a value and a run can be repeated.
func (m *machine) upTo(d time.Duration) time.Duration {
	m.random += 0x9e3779b97f4a7c15
	z := m.random
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	return time.Duration(z % uint64(d+1))
}
