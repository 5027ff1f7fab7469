package federation

import (
	"context"
	"sync"
	"time"
)

// Host answers the requests of a session. *Client implements it.
type Host interface {
	Register(ctx context.Context, call uint64, r Registration) Event
	Heartbeat(ctx context.Context, call uint64, b Beat, token string) Event
	Deregister(ctx context.Context, call uint64, f Farewell, token string) Event
}

// Box is what the session needs of the box. Its methods may be
// called from any goroutine.
type Box interface {
	// Registration describes the box; the session adds the nonce.
	Registration() Registration
	// Beat is the state of the box; the session adds its id and the number of the heartbeat.
	Beat() Beat
	// Connect connects the slots that use the host to the endpoints. It returns when each is
	// connected or degraded. Running calls end on the old endpoint.
	Connect(ctx context.Context, e Endpoints)
	// Degrade takes those slots out of service.
	Degrade(ctx context.Context, reason string)
	// Show is called with each new session whose state or reason has changed; it must not block.
	Show(s Session)
	// Tell publishes an event; it must not block.
	Tell(name, reason string, s Session)
	// Fatal ends the box if it is still booting.
	Fatal(reason string)
	// Counted counts a heartbeat in the metrics by its outcome: ok, failed, gone.
	Counted(outcome string)
}

// Runner runs a session. The goroutine of Run owns the Session.
type Runner struct {
	host   Host
	box    Box
	events chan Event
	work   sync.WaitGroup

	wishes chan struct{} // a token: wanted is set

	mu         sync.Mutex
	session    Session // a copy for readers
	wanted     *wish
	registered chan struct{}
	done       chan struct{}
}

// NewRunner makes a Runner. Run starts it.
func NewRunner(host Host, box Box, seed uint64) *Runner {
	return &Runner{
		host: host, box: box, events: make(chan Event, 16), wishes: make(chan struct{}, 1), session: New(seed, time.Now()),
		registered: make(chan struct{}), done: make(chan struct{}),
	}
}

// Session is the session as it is now.
func (r *Runner) Session() Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.session
}

// Registered returns a channel that is closed when the session is first active or refused. The boot
// waits for it.
func (r *Runner) Registered() <-chan struct{} { return r.registered }

// Reload makes the Runner try a refused session again.
func (r *Runner) Reload() { r.post(Reloaded{}) }

// Shutdown deregisters the box and returns when that is done, after
// DeregisterLimit at the latest, or when ctx ends.
func (r *Runner) Shutdown(ctx context.Context) {
	r.post(Shutdown{})
	select {
	case <-r.done:
	case <-ctx.Done():
	}
}

func (r *Runner) post(e Event) {
	select {
	case r.events <- e:
	case <-r.done:
	}
}

// clockCheck is how often the clock is compared with the monotonic clock. A difference shows that
// the machine was suspended or the clock was set (clock_gettime(2): CLOCK_MONOTONIC stands still
// during a suspend).
const clockCheck = 5 * time.Second

// clockJump is how far the two may drift apart in between.
const clockJump = 2 * time.Second

// Run runs the session until it is closed or ctx ends. When it returns, no request is running.
func (r *Runner) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer close(r.done)
	defer r.work.Wait()
	defer cancel()
	r.work.Go(func() { r.slots(ctx) })
	s := r.apply(ctx, r.Session(), Start{}, time.Now())
	timer := time.NewTimer(0)
	defer timer.Stop()
	check := time.NewTicker(clockCheck)
	defer check.Stop()
	last := time.Now()
	for s.State != Closed {
		timer.Reset(untilNext(s))
		var e Event
		select {
		case <-ctx.Done():
			return
		case e = <-r.events:
		case <-timer.C:
			e = Tick{}
		case <-check.C:
			now := time.Now()
			jumped := now.Round(0).Sub(last.Round(0)) - now.Sub(last) // wall clock against monotonic
			last = now
			if jumped < clockJump && jumped > -clockJump {
				continue
			}
			e = Resumed{}
		}
		s = r.apply(ctx, s, e, time.Now())
	}
}

// untilNext is how long until the session wants a Tick.
func untilNext(s Session) time.Duration {
	if s.Next.IsZero() {
		return time.Hour
	}
	return max(time.Until(s.Next), 0)
}

// apply gives an event to Step and carries out the actions, each in a separate goroutine, except
// those that only publish an event.
func (r *Runner) apply(ctx context.Context, s Session, e Event, now time.Time) Session {
	next, actions := Step(s, e, now)
	r.mu.Lock()
	r.session = next
	r.mu.Unlock()
	if next.State != s.State || next.Reason != s.Reason {
		r.box.Show(next)
	}
	for _, a := range actions {
		r.act(ctx, next, a)
	}
	if next.State == Active || next.State == Refused || next.State == Closed {
		r.open()
	}
	return next
}

// open closes registered once.
func (r *Runner) open() {
	select {
	case <-r.registered:
	default:
		close(r.registered)
	}
}

func (r *Runner) act(ctx context.Context, s Session, a Action) {
	switch a := a.(type) {
	case Register:
		r.request(ctx, RegisterLimit, func(ctx context.Context) Event {
			return r.host.Register(ctx, a.Call, r.box.Registration())
		})
	case Heartbeat:
		r.request(ctx, HeartbeatLimit, func(ctx context.Context) Event {
			b := r.box.Beat()
			b.SessionID, b.Seq = s.ID, a.Seq
			e := r.host.Heartbeat(ctx, a.Call, b, s.Token)
			r.box.Counted(outcome(e))
			return e
		})
	case Deregister:
		id, token := s.ID, s.Token
		r.request(ctx, DeregisterLimit, func(ctx context.Context) Event {
			return r.host.Deregister(ctx, a.Call, Farewell{id, a.Reason}, token)
		})
	case Connect:
		r.wish(wish{connect: &a.Endpoints})
	case Degrade:
		r.wish(wish{degrade: a.Reason})
	case Tell:
		r.box.Tell(a.Name, a.Reason, s)
	case Fatal:
		r.box.Fatal(a.Reason)
	}
}

func outcome(e Event) string {
	switch e.(type) {
	case Beaten:
		return "ok"
	case Gone:
		return "gone"
	}
	return "failed"
}

// request makes one request and hands its answer to Run, which may have ended.
func (r *Runner) request(ctx context.Context, limit time.Duration, f func(context.Context) Event) {
	r.work.Go(func() {
		limited, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		answer := f(limited)
		select {
		case r.events <- answer:
		case <-ctx.Done():
		}
	})
}

// wish is the wanted state of the slots that use the host.
type wish struct {
	connect *Endpoints
	degrade string
}

// wish sets the wanted state. It replaces a wish that slots has not begun to carry out.
func (r *Runner) wish(w wish) {
	r.mu.Lock()
	r.wanted = &w
	r.mu.Unlock()
	select {
	case r.wishes <- struct{}{}:
	default: // there is a token already
	}
}

// slots carries wishes out, one at a time and in order.
func (r *Runner) slots(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wishes:
		}
		r.mu.Lock()
		w := r.wanted
		r.wanted = nil
		r.mu.Unlock()
		switch {
		case w == nil:
		case w.connect == nil:
			r.box.Degrade(ctx, w.degrade)
		default:
			r.box.Connect(ctx, *w.connect)
			select {
			case r.events <- Settled{}:
			case <-ctx.Done():
			}
		}
	}
}
