package probes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEvaluate(t *testing.T) {
	ok := Requirement{ID: "a", Kind: KindProgram, Met: true}
	bad := Requirement{ID: "b", Kind: KindProgram, Reason: "STARTING"}
	for _, c := range []struct {
		name   string
		in     []Requirement
		ready  bool
		reason string
	}{
		{"nothing is required", nil, true, ""},
		{"all met", []Requirement{ok}, true, ""},
		{"one missing", []Requirement{ok, bad}, false, "1 requirement not met: b (STARTING)"},
		{"two missing", []Requirement{bad, {ID: "c"}}, false, "2 requirements not met: b (STARTING), c"},
		{"many missing", []Requirement{{ID: "1"}, {ID: "2"}, {ID: "3"}, {ID: "4"}, {ID: "5"}, {ID: "6"}, {ID: "7"}}, false,
			"7 requirements not met: 1, 2, 3, 4, 5 and 2 more"},
	} {
		got := evaluate(c.in)
		if got.Ready != c.ready || got.Reason != c.reason {
			t.Errorf("%s: got %v %q", c.name, got.Ready, got.Reason)
		}
		if got.Missing == nil {
			t.Errorf("%s: missing is nil and would be written as null", c.name)
		}
	}
}

// journal reads the events published since the last take.
type journal struct{ w *event.Watcher }

func newJournal(b *event.Bus) *journal { return &journal{b.Watch(b.Seq())} }

func (j *journal) take() (out []event.Event) {
	for {
		e, ok := j.w.TryNext()
		if !ok {
			return out
		}
		out = append(out, e)
	}
}

func TestTransitionsAreSetOncePublishedOnce(t *testing.T) {
	bus := event.NewBus(64)
	r := NewReadiness(bus, Requirement{ID: "program:web", Kind: KindProgram, Reason: "STOPPED"})
	j := newJournal(bus)
	r.Set(Requirement{ID: SentinelID, Kind: KindSentinel, Met: true})
	if r.Verdict().Ready || len(j.take()) != 0 {
		t.Fatal("ready, or an event, while web is missing")
	}
	r.Set(Requirement{ID: "program:web", Kind: KindProgram, Met: true, Reason: "stale words"})
	events := j.take()
	if !r.Verdict().Ready || len(events) != 1 || events[0].Name != EventReady || events[0].Fields["requirement"] != "program:web" {
		t.Fatalf("ready=%v events=%+v", r.Verdict().Ready, events)
	}
	first := r.Verdict()
	if first.Requirements[0].ID != SentinelID || first.Requirements[1].Reason != "" || first.Since.IsZero() {
		t.Fatalf("got %+v", first)
	}
	r.Set(Requirement{ID: "program:web", Kind: KindProgram, Met: true})
	if len(j.take()) != 0 {
		t.Fatal("the same state was published again")
	}
	r.Set(Requirement{ID: "program:web", Kind: KindProgram, Reason: "FATAL: gave up"})
	events = j.take()
	if len(events) != 1 || events[0].Name != EventUnready || events[0].Level != event.Warn || events[0].Fields["reason"] != "FATAL: gave up" {
		t.Fatalf("got %+v", events)
	}
	if v := r.Verdict(); v.Since != first.Since {
		t.Fatal("since moved although the box has not become ready again")
	}
	r.Remove("program:web")
	if !r.Verdict().Ready {
		t.Fatal("a requirement that is gone is still missed")
	}
}

func TestShutdownIsUnreadyForGood(t *testing.T) {
	bus := event.NewBus(16)
	r := NewReadiness(bus)
	r.Set(Requirement{ID: SentinelID, Kind: KindSentinel, Met: true})
	r.Shutdown()
	r.Set(Requirement{ID: "program:x", Kind: KindProgram, Met: true})
	if v := r.Verdict(); v.Ready || v.Reason != reasonShutdown {
		t.Fatalf("got %+v", v)
	}
}

// box is a fake of the supervisor's side: it changes states and publishes them.
type box struct {
	mu    sync.Mutex
	bus   *event.Bus
	state map[string]program.Status
	order []string
	reads int
}

func newBox(bus *event.Bus, programs ...program.Status) *box {
	b := &box{bus: bus, state: make(map[string]program.Status)}
	for _, p := range programs {
		b.add(p)
	}
	return b
}

func (b *box) add(p program.Status) {
	b.state[p.Name] = p
	b.order = append(b.order, p.Name)
}

func (b *box) All() (uint64, []program.Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reads++
	var out []program.Status
	for _, n := range b.order {
		if p, ok := b.state[n]; ok {
			out = append(out, p)
		}
	}
	return b.bus.Seq(), out
}

func (b *box) Status(name string) (program.Status, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, ok := b.state[name]
	return p, ok
}

func (b *box) set(name string, state program.State, ready bool, reason string) {
	b.mu.Lock()
	p := b.state[name]
	from := p.State
	p.Name, p.State, p.Ready, p.Reason = name, state, ready, reason
	if _, known := b.state[name]; !known {
		b.order = append(b.order, name)
	}
	b.state[name] = p
	b.mu.Unlock()
	b.bus.Publish(event.Event{Name: event.ProgramStateChanged, Program: name,
		Change: &event.Change{From: from.String(), To: state.String(), Ready: ready, Reason: reason}})
}

// TestSentinelNamesPrograms: in a box without required programs, the report still tells what the boot can
// be waiting for.
func TestSentinelNamesPrograms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := event.NewBus(64)
		b := newBox(bus,
			program.Status{Name: "required", State: program.Starting, Required: true}, program.Status{Name: "late", State: program.Stopped, Queued: true},
			program.Status{Name: "a", State: program.Starting}, program.Status{Name: "up", State: program.Running, Ready: true},
			program.Status{Name: "b", State: program.Backoff}, program.Status{Name: "nightly", State: program.Starting, Schedule: &program.ScheduleStatus{}})
		r := NewReadiness(bus)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { r.Follow(ctx, b); close(done) }()
		synctest.Wait()
		reason := func() string { return r.Verdict().Missing[0].Reason }
		if got := reason(); !strings.HasPrefix(got, "the boot has not completed; not up yet: a, b; agentctl boot ") {
			t.Error(got)
		}
		b.mu.Lock()
		for _, name := range []string{"c", "d", "e"} {
			b.add(program.Status{Name: name, State: program.Running})
		}
		b.mu.Unlock()
		if got := reason(); !strings.HasPrefix(got, "the boot has not completed; not up yet: a, b, c and 2 more; agentctl boot ") {
			t.Error(got)
		}
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			b.set(name, program.Running, true, "")
		}
		goesOn := reason()
		if !strings.HasPrefix(goesOn, "the boot has not completed; agentctl boot ") {
			t.Error(goesOn)
		}
		// A reason that was set says why the seal was given up, whatever its words.
		b.set("a", program.Starting, false, "")
		for _, why := range []string{"not sealed within 2m0s", goesOn} {
			r.Set(Requirement{ID: SentinelID, Kind: KindSentinel, Reason: why})
			if got := reason(); got != why {
				t.Error(got)
			}
		}
		cancel()
		<-done
	})
}

func TestProgramsAreFollowedByEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := event.NewBus(64)
		b := newBox(bus, program.Status{Name: "web", State: program.Starting, Required: true}, program.Status{Name: "side", State: program.Stopped})
		r := NewReadiness(bus)
		r.Set(Requirement{ID: SentinelID, Kind: KindSentinel, Met: true})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { r.Follow(ctx, b); close(done) }()
		synctest.Wait()
		if v := r.Verdict(); v.Ready || v.Missing[0].ID != "program:web" || v.Missing[0].Reason != "STARTING" {
			t.Fatalf("got %+v", v)
		}
		b.set("web", program.Running, false, "")
		synctest.Wait()
		if v := r.Verdict(); v.Missing[0].Reason != "RUNNING but not ready" {
			t.Fatalf("got %+v", v)
		}
		// What a program waits for changes without an event.
		b.mu.Lock()
		web := b.state["web"]
		web.Reason = "tcp 127.0.0.1:80: connection refused"
		b.state["web"] = web
		b.mu.Unlock()
		if v := r.Verdict(); v.Missing[0].Reason != "RUNNING but not ready: tcp 127.0.0.1:80: connection refused" {
			t.Fatalf("got %+v", v)
		}
		begin := time.Now()
		b.set("web", program.Running, true, "")
		synctest.Wait()
		if !r.Verdict().Ready || time.Since(begin) != 0 {
			t.Fatalf("not ready at once: %+v", r.Verdict())
		}
		b.set("side", program.Fatal, false, "")
		synctest.Wait()
		if !r.Verdict().Ready || b.reads != 1 {
			t.Fatalf("an optional program matters, or the programs were read %d times", b.reads)
		}
		// A program that joins, and one that leaves with an apply.
		b.mu.Lock()
		b.add(program.Status{Name: "late", State: program.Stopped, Required: true})
		delete(b.state, "web")
		b.mu.Unlock()
		bus.Publish(event.Event{Name: event.ProgramsApplied})
		synctest.Wait()
		if v := r.Verdict(); v.Ready || len(v.Requirements) != 2 || v.Missing[0].ID != "program:late" {
			t.Fatalf("got %+v", v)
		}
		// One that is being removed is required no longer, and what its end looks like
		// must not be missed either.
		b.mu.Lock()
		late := b.state["late"]
		late.Required = false
		b.state["late"] = late
		b.mu.Unlock()
		bus.Publish(event.Event{Name: event.ProgramsApplied})
		b.set("late", program.Stopping, false, "")
		bus.Publish(event.Event{Name: event.ProgramRemoved, Program: "late"})
		synctest.Wait()
		if v := r.Verdict(); !v.Ready {
			t.Fatalf("got %+v", v)
		}
		cancel()
		<-done
	})
}

func TestLaggedReaderReadsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := event.NewBus(4)
		b := newBox(bus, program.Status{Name: "web", State: program.Starting, Required: true})
		f := follower{r: NewReadiness(bus), read: b}
		f.readAll()
		bus.Publish(event.Event{Name: "seen"})
		e, _ := f.watch.TryNext()
		f.take(e)
		b.set("web", program.Running, true, "")
		for range 20 {
			bus.Publish(event.Event{Name: "noise"})
		}
		e, _ = f.watch.TryNext()
		if e.Name != event.Lagged {
			t.Fatalf("the reader should be behind, got %+v", e)
		}
		f.take(e)
		for _, q := range f.r.Verdict().Requirements {
			if q.ID == "program:web" && !q.Met {
				t.Fatal("the change that was lost is still missed")
			}
		}
	})
}

func TestProgramMet(t *testing.T) {
	for _, c := range []struct {
		p    program.Status
		met  bool
		want string
	}{
		{program.Status{State: program.Running, Ready: true}, true, ""},
		{program.Status{State: program.Running}, false, "RUNNING but not ready"},
		{program.Status{State: program.Exited, Completed: true}, true, ""},
		{program.Status{State: program.Exited, Reason: "exit 1"}, false, "EXITED: exit 1"},
		{program.Status{State: program.Exited, Reason: "exit 1", Schedule: &program.ScheduleStatus{}}, true, ""},
		{program.Status{State: program.Stopped, Schedule: &program.ScheduleStatus{}}, true, ""},
		{program.Status{State: program.Fatal, Schedule: &program.ScheduleStatus{}}, false, "FATAL"},
		{program.Status{State: program.Backoff, Reason: "exit 3, again in 2s"}, false, "BACKOFF: exit 3, again in 2s"},
	} {
		if met, why := met(c.p); met != c.met || why != c.want {
			t.Errorf("%+v: got %v %q", c.p, met, why)
		}
	}
}

func TestHungMountDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var asked atomic.Int32
		check := func(path string) error {
			if path == "/hung" {
				asked.Add(1)
				<-release
			}
			return nil
		}
		r := NewReadiness(event.NewBus(64))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { r.FollowMounts(ctx, []string{"/fine", "/hung"}, check); close(done) }()
		synctest.Wait()
		met := func(id string) Requirement {
			for _, q := range r.Verdict().Requirements {
				if q.ID == id {
					return q
				}
			}
			t.Fatalf("no requirement %s", id)
			return Requirement{}
		}
		if !met("mount:/fine").Met {
			t.Fatal("the good mount waits for the bad one")
		}
		time.Sleep(21 * time.Second)
		if q := met("mount:/hung"); q.Met || !strings.HasPrefix(q.Reason, "no answer for") {
			t.Fatalf("got %+v", q)
		}
		if n := asked.Load(); n != 1 {
			t.Fatalf("%d looks are stuck instead of one", n)
		}
		close(release)
		time.Sleep(checkCycle)
		if !met("mount:/hung").Met {
			t.Fatal("the mount answers again and is still missed")
		}
		cancel()
		<-done
	})
}

// A directory that bootstrap made since the last look must not cost a cycle.
func TestSealLooksAtMountsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var there atomic.Bool
		check := func(string) error {
			if there.Load() {
				return nil
			}
			return errors.New("does not exist")
		}
		r := NewReadiness(event.NewBus(64))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { r.FollowMounts(ctx, []string{"/workspace"}, check); close(done) }()
		synctest.Wait()
		there.Store(true)
		begin := time.Now()
		r.Set(Requirement{ID: SentinelID, Kind: KindSentinel, Met: true})
		synctest.Wait()
		if !r.Verdict().Ready || time.Since(begin) != 0 {
			t.Fatalf("got %+v", r.Verdict())
		}
		there.Store(false)
		time.Sleep(checkCycle)
		synctest.Wait()
		if r.Verdict().Ready {
			t.Fatal("the mount is gone and was looked at")
		}
		// Made later, it is seen long before the next cycle.
		there.Store(true)
		time.Sleep(time.Second)
		synctest.Wait()
		if !r.Verdict().Ready {
			t.Fatalf("it has been there for a second: %+v", r.Verdict())
		}
		cancel()
		<-done
	})
}

func TestCheckMount(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir: "", file: "is not a directory", filepath.Join(dir, "none"): "does not exist",
		"/proc": "not writable",
	} {
		err := CheckMount(path)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			if path == "/proc" && os.Geteuid() == 0 {
				continue // root may write where nobody can
			}
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
}

func TestOneRelayIsEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		var calls atomic.Int32
		dial := func(ctx context.Context, url string) error {
			calls.Add(1)
			if url == "wss://good" && up.Load() {
				return nil
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}
		r := NewReadiness(event.NewBus(64))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { r.FollowRelays(ctx, []string{"wss://bad", "wss://good"}, dial); close(done) }()
		time.Sleep(relayTimeout + time.Millisecond)
		state := func() Requirement { return r.Verdict().Requirements[1] }
		// The address may have a token, so only dial names it.
		if q := state(); q.Met || !strings.Contains(q.Reason, "no relay answered within 3s") || strings.Contains(q.Reason, "wss://") {
			t.Fatalf("got %+v", q)
		}
		up.Store(true)
		time.Sleep(checkCycle)
		if q := state(); !q.Met {
			t.Fatalf("got %+v", q)
		}
		before := calls.Load()
		time.Sleep(2 * checkCycle)
		if n := calls.Load() - before; n != 2 {
			t.Fatalf("%d connects in two cycles: the relay that answers should be asked alone", n)
		}
		cancel()
		<-done
	})
}

func TestNoRelayConfigured(t *testing.T) {
	r := NewReadiness(event.NewBus(8))
	r.FollowRelays(t.Context(), nil, nil)
	if q := r.Verdict().Requirements[1]; q.Met || q.ID != relayID {
		t.Fatalf("got %+v", q)
	}
}

type pingFunc func(context.Context) error

func (f pingFunc) Ping(ctx context.Context) error { return f(ctx) }

func TestLiveness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pings atomic.Int32
		l := NewLiveness(pingFunc(func(context.Context) error { pings.Add(1); return nil }), time.Now())
		var wg sync.WaitGroup
		for range 500 {
			wg.Go(func() {
				if err := l.check(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := pings.Load(); n != 1 {
			t.Fatalf("500 requests made %d pings", n)
		}
		time.Sleep(pingFresh + time.Millisecond)
		if err := l.check(t.Context()); err != nil || pings.Load() != 2 {
			t.Fatalf("%v after %d pings", err, pings.Load())
		}
	})
}

func TestStuckLoopIsNotLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		l := NewLiveness(pingFunc(func(context.Context) error { <-stuck; return errors.New("late") }), time.Now())
		begin := time.Now()
		if err := l.check(t.Context()); !errors.Is(err, ErrStuck) || time.Since(begin) != pingTimeout {
			t.Fatalf("%v after %v", err, time.Since(begin))
		}
		close(stuck)
		synctest.Wait()
		time.Sleep(time.Second)
		if err := l.check(t.Context()); !errors.Is(err, ErrStuck) {
			t.Fatalf("a ping that failed counts as alive: %v", err)
		}
	})
}

func TestConcurrentChangesKeepTheCount(t *testing.T) {
	r := NewReadiness(event.NewBus(64))
	r.Set(Requirement{ID: SentinelID, Kind: KindSentinel, Met: true})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 200 {
				r.Set(Requirement{ID: fmt.Sprint("program:", i), Kind: KindProgram, Met: n%2 == 1})
				r.Verdict()
			}
		})
	}
	wg.Wait()
	if v := r.Verdict(); !v.Ready {
		t.Fatalf("every requirement ended as met, got %+v", v)
	}
}
