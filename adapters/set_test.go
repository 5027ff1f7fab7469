package adapters

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fake is an adapter of any slot whose life the test steers. The slot's
// methods are those of a slot that is off, which is enough for the frame.
type fake struct {
	impl       string
	version    string
	connect    func(context.Context) error
	health     func(context.Context) Health
	disconnect func(context.Context) error
}

func (f *fake) Impl() string            { return f.impl }
func (f *fake) Class() Class            { return ClassLocal }
func (f *fake) Enabled() bool           { return true }
func (f *fake) ContractVersion() string { return f.version }

func (f *fake) Connect(ctx context.Context) error {
	if f.connect == nil {
		return nil
	}
	return f.connect(ctx)
}

func (f *fake) Health(ctx context.Context) Health {
	if f.health == nil {
		return Healthy()
	}
	return f.health(ctx)
}

func (f *fake) Disconnect(ctx context.Context) error {
	if f.disconnect == nil {
		return nil
	}
	return f.disconnect(ctx)
}

// fakeBeads answers Show, so that a test sees which adapter took a call.
type fakeBeads struct {
	*fake
	Beads
	show func(context.Context) (Bead, error)
}

func (f fakeBeads) Slot() Slot                           { return SlotBeads }
func (f fakeBeads) Impl() string                         { return f.fake.Impl() }
func (f fakeBeads) Class() Class                         { return f.fake.Class() }
func (f fakeBeads) Enabled() bool                        { return true }
func (f fakeBeads) ContractVersion() string              { return f.version }
func (f fakeBeads) Capabilities() []string               { return []string{CapGraph} }
func (f fakeBeads) Connect(ctx context.Context) error    { return f.fake.Connect(ctx) }
func (f fakeBeads) Health(ctx context.Context) Health    { return f.fake.Health(ctx) }
func (f fakeBeads) Disconnect(ctx context.Context) error { return f.fake.Disconnect(ctx) }
func (f fakeBeads) Show(ctx context.Context, _ string) (Bead, error) {
	if f.show == nil {
		return Bead{Title: f.impl}, nil
	}
	return f.show(ctx)
}

type fakeOrchestrator struct {
	*fake
	Orchestrator
}

func (f fakeOrchestrator) Slot() Slot                           { return SlotOrchestrator }
func (f fakeOrchestrator) Impl() string                         { return f.fake.Impl() }
func (f fakeOrchestrator) Class() Class                         { return f.fake.Class() }
func (f fakeOrchestrator) Enabled() bool                        { return true }
func (f fakeOrchestrator) ContractVersion() string              { return f.version }
func (f fakeOrchestrator) Capabilities() []string               { return []string{} }
func (f fakeOrchestrator) Connect(ctx context.Context) error    { return f.fake.Connect(ctx) }
func (f fakeOrchestrator) Health(ctx context.Context) Health    { return f.fake.Health(ctx) }
func (f fakeOrchestrator) Disconnect(ctx context.Context) error { return f.fake.Disconnect(ctx) }

func beadsFake(f *fake) fakeBeads {
	f.version = "1.1"
	f.impl = cmp.Or(f.impl, "local-sqlite")
	return fakeBeads{fake: f, Beads: WrapBeads(nil, nil)}
}

func orchestratorFake(f *fake) fakeOrchestrator {
	f.version, f.impl = "1.1", "local-process-manager"
	return fakeOrchestrator{fake: f, Orchestrator: WrapOrchestrator(nil, nil)}
}

type notices struct {
	mu  sync.Mutex
	got []Notice
}

func (n *notices) Publish(x Notice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.got = append(n.got, x)
}

func (n *notices) names() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var s []string
	for _, x := range n.got {
		s = append(s, string(x.Slot)+":"+strings.TrimPrefix(x.Name, "Adapter"))
	}
	return strings.Join(s, " ")
}

func resolved(t *testing.T, as ...Adapter) *Resolved {
	t.Helper()
	cfg, table := Config{Slots: map[Slot]string{}}, Table{}
	for _, a := range as {
		cfg.Slots[a.Slot()] = a.Impl()
		table[a.Slot()] = map[string]Constructor{a.Impl(): func() (Adapter, error) { return a, nil }}
	}
	r, err := Resolve(cfg, table)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func statusOf(s *Set, slot Slot) SlotStatus {
	for _, st := range s.Status() {
		if st.Slot == slot {
			return st
		}
	}
	panic("no such slot")
}

func TestResolveNamesEveryMistake(t *testing.T) {
	cfg := Config{
		Slots: map[Slot]string{SlotBeads: "mysql", SlotPods: "external", SlotMemory: "old", "cache": "redis", SlotEvents: "wrong"},
		Lines: map[Slot]int{SlotBeads: 12},
	}
	old := beadsFake(&fake{})
	old.version = "0.9"
	_, err := Resolve(cfg, Table{
		SlotBeads:  {"local-sqlite": func() (Adapter, error) { return off{SlotBeads}, nil }},
		SlotPods:   {"external": func() (Adapter, error) { return nil, Missing("federation.external_url", "pods is external") }},
		SlotMemory: {"old": func() (Adapter, error) { return off{SlotPods}, nil }},
		SlotEvents: {"wrong": func() (Adapter, error) { return old, nil }},
	})
	if err == nil {
		t.Fatal("resolved")
	}
	for _, want := range []string{
		`adapters.beads (line 12): "mysql" is not one of local-sqlite, off`, "federation.external_url: is required",
		`adapters.memory: "old" does not implement the slot`, "adapters.cache: there is no such slot", "adapters.events",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
}

func TestResolveRefusesAnOlderContract(t *testing.T) {
	a := beadsFake(&fake{})
	a.version = "0.9"
	_, err := Resolve(Config{Slots: map[Slot]string{SlotBeads: "x"}},
		Table{SlotBeads: {"x": func() (Adapter, error) { return a, nil }}})
	if !errors.Is(err, ErrContractMismatch) {
		t.Fatalf("got %v", err)
	}
}

func TestAllOffIsLegalAndReady(t *testing.T) {
	r, err := Resolve(Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := NewSet(r, Options{})
	if err := s.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer s.Disconnect(context.Background())
	for _, st := range s.Status() {
		if st.State != StateOff || !st.Ready() {
			t.Errorf("%+v", st)
		}
	}
	if _, err := s.Beads().Show(t.Context(), "ab-1"); !errors.Is(err, ErrDisabled) || AsError(err).Method != "show" {
		t.Errorf("beads: %v", err)
	}
	if rec, err := s.Events().Dispatch(t.Context(), Event{Kind: "x"}); err != nil || rec.Kind != "x" {
		t.Errorf("dispatch: %+v %v", rec, err)
	}
	if _, err := s.Events().Subscribe(t.Context(), EventFilter{}, From{}); !errors.Is(err, ErrDisabled) {
		t.Errorf("subscribe: %v", err)
	}
	if s.Beads().Enabled() {
		t.Error("off is enabled")
	}
}

func TestConnectEndsInTimeWhateverTheAdaptersDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		beads := beadsFake(&fake{connect: func(context.Context) error { <-hang; return nil }})
		orch := orchestratorFake(&fake{connect: func(context.Context) error { panic("constructor bug") }})
		s := NewSet(resolved(t, beads, orch), Options{})
		begin := time.Now()
		err := s.Connect(t.Context())
		if took := time.Since(begin); took > 11*time.Second {
			t.Errorf("took %v", took)
		}
		if fatal, ok := errors.AsType[*FatalError](err); !ok || fatal.Exit != ExitUnavailable || fatal.Slot != SlotOrchestrator {
			t.Errorf("want exit 69 for the orchestrator, got %v", err)
		}
		if st := statusOf(s, SlotBeads); st.State != StateDegraded || st.Ready() {
			t.Errorf("beads: %+v", st)
		}
		close(hang)
		if err := s.Disconnect(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func TestMismatchIsFatalForEverySlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		beads := beadsFake(&fake{connect: func(context.Context) error { return CheckVersion(SlotBeads, "1.0", "2.0", false) }})
		s := NewSet(resolved(t, beads), Options{})
		err := s.Connect(t.Context())
		if fatal, ok := errors.AsType[*FatalError](err); !ok || fatal.Exit != ExitSoftware {
			t.Fatalf("want exit 70, got %v", err)
		}
		_ = s.Disconnect(context.Background())
	})
}

func TestDegradedSlotRetriesAndIsSwappedIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var times []time.Time
		var up atomic.Bool
		beads := beadsFake(&fake{connect: func(context.Context) error {
			mu.Lock()
			times = append(times, time.Now())
			mu.Unlock()
			if !up.Load() {
				return Unavailable(nil, "no route")
			}
			return nil
		}})
		n := &notices{}
		s := NewSet(resolved(t, beads), Options{Publisher: n})
		if err := s.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err := s.Beads().Show(t.Context(), "ab-1")
		if e := AsError(err); e.Code != CodeDisabled || !e.Retryable || e.HTTPStatus() != 503 || e.RetryAfter() == 0 {
			t.Errorf("degraded answers %+v", e)
		}
		if s.Beads().Enabled() || s.Beads().Impl() != "off" {
			t.Error("a degraded slot offers itself")
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		mu.Lock()
		attempts := slices.Clone(times)
		mu.Unlock()
		for i := 2; i < len(attempts); i++ {
			gap, before := attempts[i].Sub(attempts[i-1]), attempts[i-1].Sub(attempts[i-2])
			if gap > 67*time.Second || (before < 25*time.Second && gap < before) {
				t.Errorf("attempt %d came after %v, the one before after %v", i, gap, before)
			}
		}
		if len(attempts) < 14 || len(attempts) > 18 {
			t.Errorf("%d attempts in ten minutes", len(attempts))
		}
		up.Store(true)
		time.Sleep(70 * time.Second)
		synctest.Wait()
		if b, err := s.Beads().Show(t.Context(), "ab-1"); err != nil || b.Title != "local-sqlite" {
			t.Errorf("after recovery: %+v %v", b, err)
		}
		if st := statusOf(s, SlotBeads); st.State != StateHealthy || st.Reconnects != 1 || !st.Ready() {
			t.Errorf("%+v", st)
		}
		if got := n.names(); got != "beads:Degraded beads:Recovered" {
			t.Errorf("notices: %s", got)
		}
		if err := s.Disconnect(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func TestALateConnectIsTakenAndNeverDoubled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		beads := beadsFake(&fake{connect: func(context.Context) error {
			calls.Add(1)
			time.Sleep(25 * time.Second)
			return nil
		}})
		s := NewSet(resolved(t, beads), Options{})
		if err := s.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if st := statusOf(s, SlotBeads); st.State != StateHealthy {
			t.Errorf("%+v", st)
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("%d connects", n)
		}
		_ = s.Disconnect(context.Background())
	})
}

func TestHealthNeedsThreeMissesAndOneGoodAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answer atomic.Pointer[func() Health]
		say := func(f func() Health) { answer.Store(&f) }
		say(Healthy)
		beads := beadsFake(&fake{health: func(context.Context) Health { return (*answer.Load())() }})
		n := &notices{}
		s := NewSet(resolved(t, beads), Options{Publisher: n})
		if err := s.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		state := func() State { synctest.Wait(); return statusOf(s, SlotBeads).State }
		time.Sleep(time.Second)
		say(func() Health { return Unhealthy(errors.New("x")) })
		time.Sleep(20 * time.Second)
		if got := state(); got != StateHealthy {
			t.Errorf("two bad answers: %s", got)
		}
		hang := make(chan struct{})
		say(func() Health { <-hang; return Healthy() })
		time.Sleep(13 * time.Second) // a third one that hangs counts as bad
		if got := state(); got != StateUnhealthy {
			t.Errorf("three bad answers: %s", got)
		}
		if _, err := s.Beads().Show(t.Context(), "ab-1"); err != nil {
			t.Errorf("an unhealthy adapter is still called: %v", err)
		}
		say(Healthy)
		close(hang)
		time.Sleep(11 * time.Second)
		if got := state(); got != StateHealthy {
			t.Errorf("one good answer: %s", got)
		}
		if got := n.names(); got != "beads:Connected beads:Degraded beads:Recovered" {
			t.Errorf("notices: %s", got)
		}
		_ = s.Disconnect(context.Background())
	})
}

// A failed call asks for a health check, at most one a second, and only if the failure may be the
// adapter's: not every caller has to wait ten seconds to learn that a server is gone.
func TestAFailedCallAsksForACheck(t *testing.T) {
	expired := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	with := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	for _, c := range []struct {
		name   string
		call   func(context.Context) error
		checks int32 // after 2.5 s with a call every 100 ms
		want   State
	}{
		{"unavailable", with(Errorf(CodeUnavailable, "gone")), 3, StateUnhealthy},
		{"internal", with(errors.New("broken")), 3, StateUnhealthy},
		{"timeout", with(Errorf(CodeTimeout, "slow")), 3, StateUnhealthy},
		{"deadline", expired, 3, StateUnhealthy},
		{"caller's mistake", with(Errorf(CodeNotFound, "no bead")), 0, StateHealthy},
		{"none", with(nil), 0, StateHealthy},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var checks atomic.Int32
				s := NewSet(resolved(t, beadsFake(&fake{health: func(context.Context) Health {
					checks.Add(1)
					return Unhealthy(errors.New("gone"))
				}})), Options{})
				if err := s.Connect(t.Context()); err != nil {
					t.Fatal(err)
				}
				for begin := time.Now(); time.Since(begin) < 2500*time.Millisecond; time.Sleep(50 * time.Millisecond) {
					ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
					_ = exec(ctx, s.Beads().(beadsPort).port, Call{}, func(ctx context.Context, _ Beads) error { return c.call(ctx) })
					cancel()
				}
				synctest.Wait()
				if n, st := checks.Load(), statusOf(s, SlotBeads).State; n != c.checks || st != c.want {
					t.Errorf("%d checks, %s; want %d, %s", n, st, c.checks, c.want)
				}
				_ = s.Disconnect(context.Background())
			})
		})
	}
	t.Run("the caller went away", func(t *testing.T) {
		p := newPort(SlotBeads, nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		p.note(ctx, false, Errorf(CodeUnavailable, "gone"))
		if len(p.doubts) != 0 {
			t.Error("a check was asked for")
		}
	})
}

// A peer that has another contract since a restart is found out by the first call that it refuses. No further call goes to it until it
// has the right contract again.
func TestAMismatchAtRunTimeDegradesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wrong := CheckVersion(SlotBeads, "1.1", "2.0", false)
		n := &notices{}
		var connected, same atomic.Bool
		same.Store(true)
		s := NewSet(resolved(t, beadsFake(&fake{
			connect: func(context.Context) error {
				if !connected.Load() && !same.Load() {
					return wrong
				}
				connected.Store(true)
				return nil
			},
			health:     func(context.Context) Health { return Unhealthy(wrong) },
			disconnect: func(context.Context) error { connected.Store(false); return nil },
		})), Options{Publisher: n})
		if err := s.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		port := s.Beads().(beadsPort).port
		same.Store(false)
		err := exec(t.Context(), port, Call{}, func(context.Context, Beads) error { return wrong })
		synctest.Wait()
		if st := statusOf(s, SlotBeads); !errors.Is(err, ErrContractMismatch) || st.State != StateDegraded || st.LastError != wrong.Error() || st.Ready() {
			t.Errorf("%v, %+v", err, st)
		}
		time.Sleep(5 * retryFirst)
		err = exec(t.Context(), port, Call{}, func(context.Context, Beads) error { t.Error("the peer is called"); return nil })
		if e := AsError(err); e == nil || e.Code != CodeDisabled || !e.Retryable || s.Beads().Enabled() {
			t.Errorf("%+v", e)
		}
		if got := n.names(); got != "beads:Connected beads:Degraded" {
			t.Errorf("notices: %s", got)
		}
		same.Store(true)
		time.Sleep(5 * retryFirst)
		if st := statusOf(s, SlotBeads); st.State != StateHealthy || !s.Beads().Enabled() {
			t.Errorf("when the contract is the same again: %+v", st)
		}
		_ = s.Disconnect(context.Background())
	})
}

// A call that the adapter cannot carry out shows as the slot's last error, because the health of an
// adapter need not show a full disk: its reads go on.
func TestAFailedCallIsTheLastError(t *testing.T) {
	s := NewSet(resolved(t, beadsFake(&fake{})), Options{})
	if err := s.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer s.Disconnect(t.Context())
	full, missing := Errorf(CodeUnavailable, "the disk is full"), Errorf(CodeNotFound, "no bead")
	for _, c := range []struct {
		write bool
		err   error
		want  string
	}{
		{true, missing, ""}, {true, full, full.Message}, {false, nil, full.Message}, {true, missing, full.Message}, {true, nil, ""},
		{false, full, full.Message}, {false, nil, ""},
	} {
		err := exec(t.Context(), s.Beads().(beadsPort).port, Call{Write: c.write}, func(context.Context, Beads) error { return c.err })
		st := statusOf(s, SlotBeads)
		if (err == nil) != (c.err == nil) || st.State != StateHealthy || st.LastError != c.want || st.LastErrorAt.IsZero() != (c.want == "") {
			t.Errorf("%+v: %v, %+v", c, err, st)
		}
	}
}

// aware is an adapter that hears of changes of its health.
type aware struct {
	fakeBeads
	changed chan struct{}
}

func (a aware) HealthChanged() <-chan struct{} { return a.changed }

// A self-aware adapter is never healthy before it says so, and what it says
// shows at once. Time stands still here: no look at an interval comes in.
func TestSelfAwareHealthShowsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var here atomic.Bool
		beads := aware{beadsFake(&fake{health: func(context.Context) Health {
			if here.Load() {
				return Healthy()
			}
			return Health{State: StateDegraded, Message: "nobody is here"}
		}}), make(chan struct{}, 1)}
		n := &notices{}
		s := NewSet(resolved(t, beads), Options{Publisher: n})
		begin := time.Now()
		if err := s.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		if st := statusOf(s, SlotBeads); st.State != StateDegraded || st.LastError != "nobody is here" || st.Ready() {
			t.Errorf("connected, and nobody is here: %+v", st)
		}
		for _, want := range []State{StateHealthy, StateDegraded, StateHealthy} {
			here.Store(want == StateHealthy)
			beads.changed <- struct{}{}
			synctest.Wait()
			st := statusOf(s, SlotBeads)
			if st.State != want || st.Ready() != here.Load() {
				t.Errorf("want %s: %+v", want, st)
			}
			if (st.LastError == "") != here.Load() || st.LastErrorAt.IsZero() != here.Load() {
				t.Errorf("%s, and the last error is %q of %v", want, st.LastError, st.LastErrorAt)
			}
		}
		if got := n.names(); got != "beads:Connected beads:Recovered beads:Degraded beads:Recovered" {
			t.Errorf("notices: %s", got)
		}
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("it took %v", waited)
		}
		if err := s.Degrade(t.Context(), SlotBeads, errors.New("held")); err != nil {
			t.Fatal(err)
		}
		beads.changed <- struct{}{}
		synctest.Wait()
		if st := statusOf(s, SlotBeads); st.State != StateDegraded || st.LastError != "held" {
			t.Errorf("taken out of service, it came back by itself: %+v", st)
		}
		if err := s.Restore(t.Context(), SlotBeads); err != nil || statusOf(s, SlotBeads).State != StateHealthy {
			t.Errorf("restored: %v, %+v", err, statusOf(s, SlotBeads))
		}
		if err := s.Disconnect(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func TestReplaceLetsRunningCallsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, gone := make(chan struct{}), make(chan time.Time, 1)
		old := beadsFake(&fake{impl: "local-sqlite", disconnect: func(context.Context) error { gone <- time.Now(); return nil }})
		old.show = func(context.Context) (Bead, error) { <-release; return Bead{Title: "old"}, nil }
		s := NewSet(resolved(t, old), Options{})
		if err := s.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		running := make(chan Bead)
		go func() {
			b, _ := s.Beads().Show(context.Background(), "ab-1")
			running <- b
		}()
		synctest.Wait()
		if err := s.Replace(t.Context(), SlotBeads, beadsFake(&fake{impl: "external"})); err != nil {
			t.Fatal(err)
		}
		if b, err := s.Beads().Show(t.Context(), "ab-1"); err != nil || b.Title != "external" {
			t.Errorf("new calls: %+v %v", b, err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(gone) != 0 {
			t.Error("the old adapter was disconnected under a running call")
		}
		close(release)
		if b := <-running; b.Title != "old" {
			t.Errorf("the running call ended on %q", b.Title)
		}
		synctest.Wait()
		if len(gone) != 1 {
			t.Error("the old adapter was kept")
		}
		_ = s.Disconnect(context.Background())
	})
}

// An adapter that still connects when it is replaced is disconnected after that,
// not before: it would stay connected for ever.
func TestReplaceWaitsForAPendingConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var order []string
		old := beadsFake(&fake{impl: "local-sqlite",
			connect:    func(context.Context) error { <-release; order = append(order, "connected"); return nil },
			disconnect: func(context.Context) error { order = append(order, "disconnected"); return nil },
		})
		s := NewSet(resolved(t, old), Options{})
		if err := s.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Replace(t.Context(), SlotBeads, beadsFake(&fake{impl: "external"})); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		close(release)
		synctest.Wait()
		if !slices.Equal(order, []string{"connected", "disconnected"}) {
			t.Errorf("got %v", order)
		}
		_ = s.Disconnect(context.Background())
	})
}

// A call that was about to begin on a replaced adapter begins on its successor.
func TestACallEntersTheActivePlug(t *testing.T) {
	p := newPort(SlotBeads, nil)
	p.plug(beadsFake(&fake{impl: "local-sqlite"}), nil)
	const calls = 1000
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range calls {
			before := p.active.Load()
			p.plug(beadsFake(&fake{impl: "external"}), nil)
			before.calls.wait(context.Background())
			before.adapter = nil // a call on it after the wait would fail
		}
	}()
	for range calls {
		cur := p.enter()
		if cur.adapter == nil {
			t.Fatal("a call is under way on an adapter that was drained")
		}
		cur.calls.done()
	}
	<-done
}

func TestDegradeHoldsUntilRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSet(resolved(t, beadsFake(&fake{})), Options{})
		if err := s.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Degrade(t.Context(), SlotBeads, errors.New("host lost")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if _, err := s.Beads().Show(t.Context(), "ab-1"); !errors.Is(err, ErrDisabled) {
			t.Errorf("held: %v", err)
		}
		if err := s.Restore(t.Context(), SlotBeads); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Beads().Show(t.Context(), "ab-1"); err != nil {
			t.Errorf("restored: %v", err)
		}
		_ = s.Disconnect(context.Background())
	})
}

func TestDisconnectIsReverseBoundedAndFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		order := make(chan Slot, 2)
		beads := beadsFake(&fake{disconnect: func(context.Context) error { order <- SlotBeads; return nil }})
		orch := orchestratorFake(&fake{disconnect: func(ctx context.Context) error {
			order <- SlotOrchestrator
			time.Sleep(time.Minute) // ignores ctx
			return nil
		}})
		s := NewSet(resolved(t, beads, orch), Options{})
		if err := s.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if err := s.Disconnect(context.Background()); !errors.Is(err, ErrTimeout) {
			t.Errorf("the hanging slot is not reported: %v", err)
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
		if first, second := <-order, <-order; first != SlotOrchestrator || second != SlotBeads {
			t.Errorf("order %v, %v", first, second)
		}
		if _, err := s.Beads().Show(t.Context(), "ab-1"); !errors.Is(err, ErrUnavailable) {
			t.Errorf("after disconnect: %v", err)
		}
		if err := s.Disconnect(context.Background()); err != nil {
			t.Errorf("again: %v", err)
		}
		time.Sleep(time.Minute)
	})
}

func TestLimitsAreCheckedBeforeTheAdapter(t *testing.T) {
	called := false
	b := beadsFake(&fake{})
	b.show = func(context.Context) (Bead, error) { called = true; return Bead{}, nil }
	w := WrapBeads(b, nil)
	if _, err := w.Show(t.Context(), "not an id"); !errors.Is(err, ErrValidation) {
		t.Errorf("got %v", err)
	}
	ctx := WithMeta(t.Context(), Meta{IdempotencyKey: "a b"})
	if _, err := w.Show(ctx, "ab-1"); !errors.Is(err, ErrValidation) {
		t.Errorf("got %v", err)
	}
	if called {
		t.Error("the adapter saw bad input")
	}
}

func TestCallsCarrySlotAndMethod(t *testing.T) {
	for _, slot := range Slots() {
		var got []string
		mw := func(next Handler) Handler {
			return func(ctx context.Context, c Call) error {
				got = append(got, string(c.Slot)+"."+c.Method)
				return next(ctx, c)
			}
		}
		callAll(t, slot, mw)
		c, _ := ContractOf(slot)
		if len(got) != len(c.Methods) {
			t.Errorf("%s: %d calls of %d methods: %v", slot, len(got), len(c.Methods), got)
		}
		for i, m := range c.Methods {
			if i < len(got) && got[i] != string(slot)+"."+m {
				t.Errorf("%s: call %d is %s, want %s", slot, i, got[i], m)
			}
		}
	}
}

// callAll calls every method of the slot once, in the order of its contract,
// and expects that the guard of a slot that is off refuses it.
func callAll(t *testing.T, slot Slot, mw Middleware) {
	t.Helper()
	ctx := t.Context()
	check := func(err error) {
		t.Helper()
		if !errors.Is(err, ErrDisabled) {
			t.Errorf("%s: %v", slot, err)
		}
	}
	one := func(_ any, err error) { t.Helper(); check(err) }
	mw = Chain(mw, Guarded)
	switch slot {
	case SlotBeads:
		w := WrapBeads(nil, mw)
		one(w.CreateEpic(ctx, NewBead{}))
		one(w.CreateChild(ctx, NewBead{}))
		one(w.Claim(ctx, "", ""))
		one(w.Close(ctx, "", ""))
		one(w.GetReady(ctx, ReadyFilter{}))
		one(w.Show(ctx, ""))
		one(w.List(ctx, BeadFilter{}))
		one(w.Update(ctx, "", BeadChange{}))
		one(w.Release(ctx, "", ""))
		one(w.Reopen(ctx, ""))
		one(w.AddDep(ctx, Dep{}))
		check(w.RemoveDep(ctx, Dep{}))
		one(w.Comment(ctx, "", ""))
		check(w.Export(ctx, nil))
		one(w.Import(ctx, nil, ImportOpt{}))
	case SlotPods:
		w := WrapPods(nil, mw)
		one(w.Write(ctx, "", Body{}, Cond{}))
		one(w.Read(ctx, "", ReadOpt{}))
		one(w.Patch(ctx, "", PodPatch{}, Cond{}))
		one(w.Del(ctx, "", Cond{}))
		one(w.List(ctx, "", PageOpt{}))
		one(w.Head(ctx, "", ReadOpt{}))
		one(w.CreateContainer(ctx, ""))
		one(w.Subscribe(ctx, ""))
	case SlotMemory:
		w := WrapMemory(nil, mw)
		one(w.Store(ctx, "", "", "", StoreOpt{}))
		_, _, err := w.Retrieve(ctx, "", "")
		check(err)
		one(w.Search(ctx, "", SearchOpt{}))
		one(w.Del(ctx, "", ""))
		one(w.List(ctx, "", PageOpt{}))
		one(w.Namespaces(ctx))
	case SlotEvents:
		w := WrapEvents(nil, mw)
		if _, err := w.Dispatch(ctx, Event{}); err != nil {
			t.Errorf("dispatch: %v", err)
		}
		one(w.Subscribe(ctx, EventFilter{}, From{}))
		check(w.Unsubscribe(ctx, ""))
		one(w.History(ctx, EventFilter{}, PageOpt{}))
	case SlotOrchestrator:
		w := WrapOrchestrator(nil, mw)
		one(w.SpawnAgent(ctx, AgentSpec{}))
		one(w.StreamEvents(ctx, "", 0))
		one(w.ListAgents(ctx, AgentFilter{}))
		one(w.TerminateAgent(ctx, "", 0))
		one(w.GetAgent(ctx, ""))
		check(w.SendInput(ctx, "", nil, false))
	}
}
