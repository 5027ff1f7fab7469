package federation

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// script drives a session with a fake clock and returns its actions.
type script struct {
	t   *testing.T
	s   Session
	now time.Time
}

func newScript(t *testing.T) *script { return &script{t, New(1, t0), t0} }

// send sends an event and returns the actions as text.
func (c *script) send(e Event) string {
	c.t.Helper()
	var actions []Action
	c.s, actions = Step(c.s, e, c.now)
	out := ""
	for _, a := range actions {
		switch a := a.(type) {
		case Tell:
			out += a.Name + " "
		default:
			out += fmt.Sprintf("%T ", a)[len("federation."):]
		}
	}
	return out
}

// due goes to the time of the next tick and sends the tick; its delay must be in the range.
func (c *script) due(from, to time.Duration) string {
	c.t.Helper()
	if c.s.Next.IsZero() {
		c.t.Fatalf("%s: nothing is planned", c.s.State)
	}
	if d := c.s.Next.Sub(c.now); d < from || d > to {
		c.t.Errorf("%s: the next step is in %v, want %v to %v", c.s.State, d, from, to)
	}
	c.now = c.s.Next
	return c.send(Tick{})
}

func (c *script) want(got, actions string, state State) {
	c.t.Helper()
	if got != actions || c.s.State != state {
		c.t.Errorf("did %q in state %s, want %q in %s", got, c.s.State, actions, state)
	}
}

// active brings a session into the state active.
func (c *script) active() *script {
	c.t.Helper()
	c.send(Start{})
	c.send(Registered{Call: c.s.Call, ID: "s1", Token: "t1"})
	c.want(c.send(Settled{}), "FederationRegistered ", Active)
	return c
}

const sec = time.Second

// Every row of the state table, with its times.
func TestRows(t *testing.T) {
	t.Run("register", func(t *testing.T) {
		c := newScript(t)
		c.want(c.send(Tick{}), "", Idle)
		c.want(c.send(Start{}), "Register ", Registering)
		c.want(c.send(Start{}), "", Registering)
		c.want(c.send(Registered{Call: c.s.Call, ID: "s", Token: "t", Interval: 20 * sec}), "Connect ", Connecting)
		c.want(c.send(Settled{}), "FederationRegistered ", Active)
		c.want(c.send(Tick{}), "", Active) // too early
		c.want(c.due(18*sec, 22*sec), "Heartbeat ", Active)
	})
	t.Run("register again with backoff", func(t *testing.T) {
		c := newScript(t)
		c.send(Start{})
		for _, seconds := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60} {
			c.want(c.send(Failed{Call: c.s.Call, Reason: "down"}), "", Registering)
			c.want(c.due(seconds*sec*8/10, seconds*sec*12/10), "Register ", Registering)
		}
		c.send(Failed{Call: c.s.Call, RetryAfter: 100 * sec})
		c.want(c.due(100*sec, 120*sec), "Register ", Registering)
		c.send(Failed{Call: c.s.Call, RetryAfter: time.Hour * 1000})
		c.want(c.due(maxRetryAfter, maxRetryAfter*12/10), "Register ", Registering)
	})
	t.Run("mismatch", func(t *testing.T) {
		c := newScript(t)
		c.send(Start{})
		c.want(c.send(Failed{Call: c.s.Call, Kind: Mismatch, Reason: "2.0 and 1.1"}), "FederationRefused Fatal ", Refused)
		c.want(c.send(Reloaded{}), "", Refused)
		if !c.s.Next.IsZero() || c.s.Reason != "2.0 and 1.1" {
			t.Errorf("%+v", c.s)
		}
	})
	t.Run("mismatch later", func(t *testing.T) {
		c := newScript(t).active()
		c.due(0, time.Minute)
		c.send(Gone{Call: c.s.Call})
		c.due(0, time.Minute)
		c.want(c.send(Failed{Call: c.s.Call, Kind: Mismatch}), "FederationRefused ", Refused)
	})
	t.Run("rejected", func(t *testing.T) {
		c := newScript(t)
		c.send(Start{})
		c.want(c.send(Failed{Call: c.s.Call, Kind: Rejected}), "FederationRefused ", Refused)
		c.want(c.due(270*sec, 330*sec), "Register ", Registering)
		c.send(Failed{Call: c.s.Call, Kind: Rejected})
		c.want(c.send(Reloaded{}), "Register ", Registering)
	})
	t.Run("no host", func(t *testing.T) {
		c := newScript(t)
		c.send(Start{})
		c.want(c.send(Failed{Call: c.s.Call, Kind: NoHost}), "FederationRefused ", Refused)
		for _, one := range []struct {
			answer Failure
			noHost bool
		}{{Unreached, true}, {Rejected, false}, {NoHost, true}, {NoHost, true}} {
			c.due(0, 330*sec)
			if c.send(Failed{Call: c.s.Call, Kind: one.answer}); c.s.NoHost != one.noHost {
				t.Errorf("after failure %d: no host is %v", one.answer, c.s.NoHost)
			}
		}
		c.want(c.due(270*sec, 330*sec), "Register ", Registering)
		if c.send(Registered{Call: c.s.Call, ID: "s"}); c.s.NoHost {
			t.Error("a host that has registered the box counts as none")
		}
	})
	t.Run("suspect, lost and back", func(t *testing.T) {
		c := newScript(t).active()
		c.want(c.due(27*sec, 33*sec), "Heartbeat ", Active)
		c.want(c.send(Failed{Call: c.s.Call}), "FederationSuspect ", Suspect)
		c.want(c.due(5*sec, 5*sec), "Heartbeat ", Suspect)
		c.want(c.send(Failed{Call: c.s.Call}), "", Suspect)
		c.want(c.due(10*sec, 10*sec), "Heartbeat ", Suspect)
		c.want(c.send(Failed{Call: c.s.Call}), "FederationLost Degrade ", Lost)
		for range 5 {
			c.want(c.due(12*sec, 36*sec), "Heartbeat ", Lost)
			c.want(c.send(Failed{Call: c.s.Call}), "", Lost)
		}
		if c.s.ID != "s1" || c.s.Token != "t1" {
			t.Error("a lost host takes the session with it")
		}
		c.want(c.due(24*sec, 36*sec), "Heartbeat ", Lost)
		c.want(c.send(Beaten{Call: c.s.Call}), "Connect FederationRecovered ", Active)
		c.want(c.due(27*sec, 33*sec), "Heartbeat ", Active)
	})
	t.Run("suspect and back", func(t *testing.T) {
		c := newScript(t).active()
		c.due(0, time.Minute)
		c.send(Failed{Call: c.s.Call})
		c.due(0, time.Minute)
		c.want(c.send(Beaten{Call: c.s.Call}), "FederationRecovered ", Active)
		if c.s.Missed != 0 || !c.s.LastHeartbeat.Equal(c.now) {
			t.Errorf("%+v", c.s)
		}
	})
	t.Run("evicted", func(t *testing.T) {
		c := newScript(t).active()
		c.due(0, time.Minute)
		c.want(c.send(Gone{Call: c.s.Call, Reason: "maintenance"}), "FederationEvicted Degrade ", Evicted)
		if c.s.Token != "" || c.s.ID != "" || c.s.Evictions != 1 || c.s.Reason != "maintenance" {
			t.Errorf("%+v", c.s)
		}
		c.want(c.due(5*sec, 10*sec), "Register ", Registering)
	})
	t.Run("evicted permanently", func(t *testing.T) {
		c := newScript(t).active()
		c.due(0, time.Minute)
		c.want(c.send(Gone{Call: c.s.Call, Permanent: true}), "FederationEvicted Degrade ", Quarantined)
		c.want(c.due(quarantine, quarantine), "Register ", Registering)
	})
	t.Run("evicted five times", func(t *testing.T) {
		c := newScript(t).active()
		for i := 1; i <= maxEvictions; i++ {
			c.due(0, time.Minute)
			c.send(Gone{Call: c.s.Call})
			if i == maxEvictions {
				break
			}
			c.due(0, time.Minute)
			c.send(Registered{Call: c.s.Call, ID: "s"})
			c.want(c.send(Settled{}), "FederationRegistered ", Active)
		}
		c.want("", "", Quarantined)
	})
	t.Run("evictions that are long ago do not count", func(t *testing.T) {
		c := newScript(t).active()
		for range 3 * maxEvictions {
			c.now = c.now.Add(4 * time.Minute)
			c.send(Tick{})
			c.send(Gone{Call: c.s.Call})
			c.due(0, time.Minute)
			c.send(Registered{Call: c.s.Call, ID: "s"})
			c.want(c.send(Settled{}), "FederationRegistered ", Active)
		}
	})
	t.Run("shutdown", func(t *testing.T) {
		for name, answer := range map[string]func(c *script) string{
			"answered": func(c *script) string { return c.send(Deregistered{c.s.Call}) },
			"not":      func(c *script) string { return c.due(3*sec, 3*sec) },
		} {
			c := newScript(t).active()
			c.want(c.send(Shutdown{}), "Deregister ", Deregistering)
			c.want(c.send(Shutdown{}), "", Deregistering)
			c.want(answer(c), "FederationClosed ", Closed)
			if c.send(Start{})+c.send(Tick{})+c.send(Shutdown{})+c.send(Reloaded{}) != "" {
				t.Errorf("%s: a closed session acts", name)
			}
		}
		c := newScript(t)
		c.send(Start{})
		c.want(c.send(Shutdown{}), "FederationClosed ", Closed)
	})
	t.Run("resumed", func(t *testing.T) {
		c := newScript(t).active()
		c.want(c.send(Resumed{}), "Heartbeat ", Active)
		c.want(c.send(Resumed{}), "", Active) // a heartbeat is in flight
	})
	t.Run("moved", func(t *testing.T) {
		c := newScript(t).active()
		c.due(0, time.Minute)
		moved := Endpoints{Beads: Endpoint{URL: "http://b"}}
		c.want(c.send(Beaten{Call: c.s.Call, Endpoints: &moved, NextIn: time.Hour}), "Connect ", Active)
		c.want(c.due(270*sec, 330*sec), "Heartbeat ", Active)
		c.want(c.send(Beaten{Call: c.s.Call, Endpoints: &moved}), "", Active)
		c.due(0, time.Minute)
		moved.Events.RelayURLs = []string{"wss://r"}
		c.want(c.send(Beaten{Call: c.s.Call, Endpoints: &moved}), "Connect ", Active)
		c.due(0, time.Minute)
		again := moved
		again.Events.RelayURLs = []string{"wss://r"}
		c.want(c.send(Beaten{Call: c.s.Call, Endpoints: &again}), "", Active)
	})
	t.Run("late answers", func(t *testing.T) {
		c := newScript(t).active()
		c.due(0, time.Minute)
		old := c.s.Call
		c.send(Failed{Call: old})
		c.due(0, time.Minute)
		c.want(c.send(Gone{Call: old})+c.send(Beaten{Call: old})+c.send(Registered{Call: old, ID: "x"})+c.send(Deregistered{old}), "", Suspect)
	})
}

// After every event in every state, the session goes on: a tick is planned, a request is in flight,
// slots are being connected, or the session has ended.
func TestEveryEventInEveryState(t *testing.T) {
	events := func(call uint64) []Event {
		return []Event{
			Start{}, Tick{}, Resumed{}, Reloaded{}, Shutdown{}, Settled{}, Registered{Call: call, ID: "s"}, Beaten{Call: call},
			Failed{Call: call}, Failed{Call: call, Kind: Rejected}, Failed{Call: call, Kind: NoHost}, Failed{Call: call, Kind: Mismatch}, Gone{Call: call}, Gone{Call: call, Permanent: true}, Deregistered{call},
			Registered{ID: "s"}, Beaten{Call: 99}, Gone{Call: 99}, Failed{Call: 99},
		}
	}
	seen := map[State]bool{}
	type node struct {
		s   Session
		now time.Time
	}
	work, known := []node{{New(1, t0), t0}}, map[string]bool{}
	for len(work) > 0 {
		n := work[0]
		work = work[1:]
		seen[n.s.State] = true
		for _, e := range events(n.s.Call) {
			now := n.now
			if _, tick := e.(Tick); tick && !n.s.Next.IsZero() {
				now = n.s.Next
			}
			next, _ := Step(n.s, e, now)
			waiting := next.State == Idle || next.State == Closed || next.State == Connecting || next.Terminal
			if !waiting && next.Next.IsZero() && next.Call == 0 {
				t.Fatalf("%s on %T leads to %s, where nothing will happen", n.s.State, e, next.State)
			}
			if key := fmt.Sprint(next.State, next.Call != 0, min(next.Missed, 4), min(next.Attempt, 3), len(next.Recent), next.Terminal, next.WasActive, next.degraded, next.Next.IsZero()); !known[key] {
				known[key] = true
				work = append(work, node{next, now})
			}
		}
	}
	for _, s := range States() {
		if !seen[s] {
			t.Errorf("no way leads to %s", s)
		}
	}
}

func TestJitterIsSpreadAndRepeatable(t *testing.T) {
	seen := map[time.Time]bool{}
	for seed := range uint64(1000) {
		s, _ := Step(New(seed, t0), Start{}, t0)
		a, _ := Step(s, Failed{Call: s.Call}, t0)
		b, _ := Step(s, Failed{Call: s.Call}, t0)
		if a.Next != b.Next {
			t.Fatal("the same step twice differs")
		}
		seen[a.Next] = true
	}
	if len(seen) < 990 {
		t.Errorf("1000 boxes knock at %d times", len(seen))
	}
}

// The simulation has one box, one host that fails at random, and a clock that jumps from event to
// event. When the faults end, the session must recover.
func TestSimulation(t *testing.T) {
	first := *seed
	if first == 0 {
		first = rand.Uint64()
	}
	for i := range uint64(*simulations) {
		if fault := newWorld(first + i).run(); fault != "" {
			again := newWorld(first + i)
			again.told = true
			again.run()
			t.Fatalf("%s\n%sthe same again: -run TestSimulation -simulations 1 -seed %d", fault, again.history, first+i)
		}
	}
}

// Flags to run many simulations, or to repeat one.
var (
	simulations = flag.Int("simulations", 1000, "simulated hours of a session")
	seed        = flag.Uint64("seed", 0, "seed of the first simulation; 0 is a random one")
)

// world is one simulated run.
type world struct {
	r       *rand.Rand
	s       Session
	now     time.Time
	pending []arrival
	history string
	told    bool // the history has been written

	sessions  map[string]bool // sessions of the host
	latest    string          // the latest session that the host gave
	down      bool            // packets are lost
	connected bool            // the slots are connected to the host
	healthy   bool            // no more faults
	inFlight  int
	fault     string
}

// arrival is an event that will reach the box.
type arrival struct {
	at time.Time
	e  Event
}

func newWorld(seed uint64) *world {
	return &world{r: rand.New(rand.NewPCG(seed, 1)), s: New(seed, t0), now: t0, sessions: map[string]bool{}}
}

func (w *world) chance(percent int) bool { return w.r.IntN(100) < percent }

func (w *world) note(format string, args ...any) {
	if w.told {
		w.history += w.now.Format("15:04:05.000 ") + fmt.Sprintf(format, args...) + "\n"
	}
}

// run simulates an hour with faults and then a time without.
func (w *world) run() string {
	w.step(Start{})
	calm := t0.Add(time.Hour)
	// A quarantine and the pause after a refusal may have begun just before calm, and the host may
	// have requested its longest pause.
	end := calm.Add(quarantine + 2*maxRetryAfter)
	for w.now.Before(end) && w.fault == "" {
		next := end
		if !w.s.Next.IsZero() && w.s.Next.Before(next) {
			next = w.s.Next
		}
		i := -1
		for j, a := range w.pending {
			if a.at.Before(next) {
				next, i = a.at, j
			}
		}
		if !w.healthy && !next.Before(calm) {
			w.healthy, w.down = true, false
		}
		w.now = later(w.now, next)
		if i >= 0 {
			a := w.pending[i]
			w.pending = slices.Delete(w.pending, i, i+1)
			if c, ok := a.e.(counted); ok {
				w.inFlight--
				a.e = c.Event
			}
			w.step(a.e)
			continue
		}
		if w.now.Equal(end) {
			break
		}
		w.step(Tick{})
		w.happen()
	}
	if w.fault == "" && !w.s.Terminal && (w.s.State != Active || !w.connected) {
		w.fault = fmt.Sprintf("after half an hour without faults: %s, slots connected %v", w.s.State, w.connected)
	}
	return w.fault
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// happen makes random faults.
func (w *world) happen() {
	if w.healthy {
		return
	}
	switch {
	case w.chance(10):
		w.down = !w.down
		w.note("host down: %v", w.down)
	case w.chance(5):
		w.sessions = map[string]bool{}
		w.note("host forgets all sessions")
	case w.chance(5):
		w.step(Resumed{})
	case w.chance(3):
		w.step(Reloaded{})
	}
}

func (w *world) step(e Event) {
	before := w.s
	var actions []Action
	w.s, actions = Step(w.s, e, w.now)
	if w.told {
		w.note("%T %+v: %s → %s %v", e, e, before.State, w.s.State, actions)
	}
	for _, a := range actions {
		w.act(a)
	}
	if (w.s.State == Lost || w.s.State == Evicted || w.s.State == Quarantined) && w.connected {
		w.fault = "the slots are still on a host that is gone"
	}
	if w.inFlight > 1 {
		w.fault = "two requests at once"
	}
}

// act plays the box and the host: it returns the result of an action, and when.
func (w *world) act(a Action) {
	switch a := a.(type) {
	case Register:
		w.inFlight++
		w.answer(RegisterLimit, w.register(a))
	case Heartbeat:
		w.inFlight++
		if w.s.ID != w.latest {
			w.fault = "a heartbeat of a session that is over"
		}
		w.answer(HeartbeatLimit, w.heartbeat(a))
	case Connect:
		w.connected = true
		if w.s.State == Connecting {
			w.pending = append(w.pending, arrival{w.now.Add(time.Duration(w.r.IntN(11_000)) * time.Millisecond), Settled{}})
		}
	case Degrade:
		w.connected = false
	case Fatal:
		w.fault = "a mismatch where there was none"
	}
}

func (w *world) register(a Register) Event {
	switch {
	case w.down:
		return nil
	case w.healthy || w.chance(60):
		w.latest = fmt.Sprintf("s%d", a.Call)
		w.sessions = map[string]bool{w.latest: true}
		if !w.healthy && w.chance(10) {
			return nil // the host was killed between the write and the answer
		}
		return Registered{Call: a.Call, ID: w.latest}
	case w.chance(30):
		return Failed{Call: a.Call, Kind: Rejected}
	}
	return Failed{Call: a.Call, RetryAfter: time.Duration(w.r.IntN(100)) * sec}
}

func (w *world) heartbeat(a Heartbeat) Event {
	switch {
	case w.down || !w.healthy && w.chance(10):
		return nil
	case !w.sessions[w.s.ID]:
		return Gone{Call: a.Call, Permanent: !w.healthy && w.chance(5)}
	case w.healthy || w.chance(80):
		return Beaten{Call: a.Call}
	case w.chance(50):
		delete(w.sessions, w.s.ID)
		return Gone{Call: a.Call, RetryAfter: time.Duration(w.r.IntN(60)) * sec}
	}
	return Failed{Call: a.Call}
}

// answer delivers the event after a random time. Without an event, the time limit passes.
func (w *world) answer(limit time.Duration, e Event) {
	after := time.Duration(w.r.Int64N(int64(limit)))
	if e == nil {
		after, e = limit, Failed{Call: w.s.Call, Reason: "time-out"}
	}
	w.pending = append(w.pending, arrival{w.now.Add(after), counted{e, w}})
}

// counted marks a request as finished when its answer arrives.
type counted struct {
	Event
	w *world
}
