package supervisor

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

func TestMain(m *testing.M) {
	switch program := os.Getenv("SUPERVISOR_TEST_PROGRAM"); program {
	case "":
	case "notify":
		notifyAndWait()
	default:
		nameAnother(program)
	}
	goleak.VerifyTestMain(m)
}

// notifyAndWait is the program of TestRealNotify: the test binary itself.
func notifyAndWait() {
	conn, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
	if err == nil {
		_, err = conn.Write([]byte("STATUS=all set with passw0rd-passw0\nREADY=1"))
	}
	if err == nil {
		_, err = conn.Read(make([]byte, 1)) // no answer comes
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// kernel is a Processes without real processes; habits tells how each program behaves.
type kernel struct {
	mu      sync.Mutex
	habits  map[string]habit
	live    map[string]*fakeProc
	notices chan Notice
	log     []string // the requests, in order: "start a", "TERM a", "KILL a"
	nextPID int
	starts  map[string]int
	begin   time.Time
}

// habit is how a program behaves.
type habit struct {
	slow     time.Duration // duration of the exec
	fail     error         // exec fails
	hang     chan struct{} // exec returns when this is closed
	lives    time.Duration // the program ends by itself after this time; 0: it does not end
	code     int           // exit status of that end
	good     int           // from the run after this one, the program does not end by itself
	hasty    bool          // the program ends before Start returns
	deaf     bool          // the program survives all signals except KILL
	dies     time.Duration // time from the signal to the end
	leftover time.Duration // time from the end of the leader until the tree is empty
	sticky   time.Duration // time until the program is forgotten
}

type fakeProc struct {
	name   string
	run    uint64
	ending bool // was asked to end
	over   bool
	emptyD time.Duration
}

func newKernel() *kernel {
	return &kernel{
		habits: map[string]habit{}, live: map[string]*fakeProc{}, starts: map[string]int{},
		notices: make(chan Notice, 4096), nextPID: 100, begin: time.Now(),
	}
}

func (k *kernel) note(format string, args ...any) {
	k.log = append(k.log, fmt.Sprintf(format, args...))
}

func (k *kernel) Start(spec *program.Spec, run uint64) (int, error) {
	k.mu.Lock()
	h := k.habits[spec.Name]
	k.note("start %s", spec.Name)
	k.mu.Unlock()
	if h.slow > 0 {
		time.Sleep(h.slow)
	}
	if h.hang != nil {
		<-h.hang
	}
	if h.fail != nil {
		return 0, h.fail
	}
	if h.hasty {
		k.notices <- Notice{Program: spec.Name, Run: run, Exit: &program.Exit{Code: h.code}}
		k.notices <- Notice{Program: spec.Name, Run: run}
		time.Sleep(time.Millisecond) // meanwhile the loop gets the notices
		return 1, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.live[spec.Name] != nil {
		panic("two live runs of " + spec.Name)
	}
	k.nextPID++
	k.starts[spec.Name]++
	p := &fakeProc{name: spec.Name, run: run, emptyD: h.leftover}
	k.live[spec.Name] = p
	if h.lives > 0 && (h.good == 0 || k.starts[spec.Name] <= h.good) {
		k.end(p, h.lives, program.Exit{Code: h.code})
	}
	return k.nextPID, nil
}

// later runs f after a while. In a synctest bubble, a timer without delay runs at once on the
// goroutine that creates it. Two such timers at once crash the race detector's runtime (Go 1.26).
func later(after time.Duration, f func()) {
	if after <= 0 {
		go f()
		return
	}
	time.AfterFunc(after, f)
}

// end ends a process after a while. The caller holds mu.
func (k *kernel) end(p *fakeProc, after time.Duration, exit program.Exit) {
	later(after, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if p.over {
			return
		}
		p.over = true
		k.notices <- Notice{Program: p.name, Run: p.run, Exit: &exit}
		later(p.emptyD, func() {
			k.mu.Lock()
			delete(k.live, p.name)
			name := p.name
			k.mu.Unlock()
			k.notices <- Notice{Program: name, Run: p.run}
		})
	})
}

func (k *kernel) SignalSoon(requests []SignalRequest) []bool { return everySecond(requests, k.Signal) }

// everySecond signals as SignalSoon does, and leaves every second request to Signal.
func everySecond(requests []SignalRequest, signal func(SignalRequest) error) []bool {
	sent := make([]bool, len(requests))
	for i, r := range requests {
		sent[i] = i%2 == 0 && signal(r) == nil
	}
	return sent
}

func (k *kernel) Signal(r SignalRequest) error {
	name, run, signal := r.Program, r.Run, r.Signal
	k.mu.Lock()
	defer k.mu.Unlock()
	k.note("%s %s", signal, name)
	p, h := k.live[name], k.habits[name]
	if p == nil || p.run != run {
		return fmt.Errorf("no such process")
	}
	if !h.deaf && !p.ending && signal != "HUP" {
		p.ending = true
		k.end(p, h.dies, program.Exit{Code: -1, Signal: signal, SignalNumber: 15})
	}
	return nil
}

func (k *kernel) Kill(name string, run uint64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.note("KILL %s", name)
	if p := k.live[name]; p != nil && p.run == run {
		k.end(p, 0, program.Exit{Code: -1, Signal: "KILL", SignalNumber: 9})
	}
	return nil
}

func (k *kernel) Stopping(string, uint64, string) {}

func (k *kernel) Forget(name string) {
	k.mu.Lock()
	h := k.habits[name]
	k.mu.Unlock()
	time.Sleep(h.sticky)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.note("forget %s", name)
}

func (k *kernel) Rename(was, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.note("rename %s %s", was, name)
	if p := k.live[was]; p != nil {
		delete(k.live, was)
		k.live[name] = p
		p.name = name
	}
}

func (k *kernel) Notices() <-chan Notice { return k.notices }

// said returns the requests for the programs, in order.
func (k *kernel) said() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return strings.Join(k.log, ", ")
}

func (k *kernel) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.log = nil
}

// crash ends a process with an exit code, without anyone having asked agentinit to stop it.
func (k *kernel) crash(name string, code int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.end(k.live[name], 0, program.Exit{Code: code})
}

// prober makes programs ready after a time and lets tests report.
type prober struct {
	mu      sync.Mutex
	after   map[string]time.Duration // time from start to ready; absent: never
	reports map[string]func(Report)
	stopped []string
}

func (p *prober) Ready(spec *program.Spec, _ uint64, report func(Report)) func() {
	return p.watch(spec.Name, report, true)
}

func (p *prober) Health(spec *program.Spec, _ uint64, report func(Report)) func() {
	return p.watch(spec.Name, report, false)
}

func (p *prober) watch(name string, report func(Report), ready bool) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reports[name] = report
	var timer *time.Timer
	if d, ok := p.after[name]; ok && ready {
		timer = time.AfterFunc(d, func() { report(Report{Kind: ReportReady}) })
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stopped = append(p.stopped, name)
		if timer != nil {
			timer.Stop()
		}
	}
}

func (p *prober) report(name string, r Report) {
	p.mu.Lock()
	f := p.reports[name]
	p.mu.Unlock()
	f(r)
}

// hookRunner records the hooks. The hook that hang names hangs until it is cancelled.
type hookRunner struct {
	mu   sync.Mutex
	ran  []string
	hang string
}

func (h *hookRunner) Run(ctx context.Context, spec *program.Spec, _ uint64, kind program.HookKind) error {
	h.mu.Lock()
	name := string(kind) + " " + spec.Name
	h.ran = append(h.ran, name)
	hang := h.hang == name
	h.mu.Unlock()
	if hang {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return nil
}

// box is a supervisor with fakes.
type box struct {
	t      *testing.T
	k      *kernel
	p      *prober
	h      *hookRunner
	bus    *event.Bus
	sup    *Supervisor
	began  time.Time
	result chan Result
}

// inBox runs a test in a bubble of fake time and shuts the box down at the end.
func inBox(t *testing.T, f func(*box)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &box{
			t: t, k: newKernel(), h: &hookRunner{}, bus: event.NewBus(10000),
			p:     &prober{after: map[string]time.Duration{}, reports: map[string]func(Report){}},
			began: time.Now(), result: make(chan Result, 1),
		}
		f(b)
		if b.sup != nil {
			for range 3 {
				b.sup.Shutdown("end of the test")
			}
			<-b.sup.Done()
		}
	})
}

// run starts a box with specs; it does not boot the box.
func (b *box) run(cfg Config, specs ...program.Spec) {
	b.t.Helper()
	cfg.Processes, cfg.Prober, cfg.Hooks, cfg.Bus = b.k, b.p, b.h, b.bus
	sup, err := New(cfg, specs)
	if err != nil {
		b.t.Fatal(err)
	}
	b.sup = sup
	go func() { b.result <- sup.Run(context.Background()) }()
}

func (b *box) boot(cfg Config, specs ...program.Spec) {
	b.t.Helper()
	b.run(cfg, specs...)
	b.sup.Boot()
	synctest.Wait()
}

// must ends the test if a request was refused that the test is not about.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pass lets the time pass and waits until all goroutines are idle.
func (b *box) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (b *box) status(name string) Status {
	b.t.Helper()
	st, ok := b.sup.Status(name)
	if !ok {
		b.t.Fatalf("no program %s", name)
	}
	return st
}

// is checks the state and a part of its reason.
func (b *box) is(name string, want program.State, reason string) {
	b.t.Helper()
	if st := b.status(name); st.State != want || !strings.Contains(st.Reason, reason) {
		b.t.Errorf("after %v, %s is %v (%s), want %v (…%s…)", time.Since(b.began), name, st.State, st.Reason, want, reason)
	}
}

func (b *box) asked(want string) {
	b.t.Helper()
	if got := b.k.said(); got != want {
		b.t.Errorf("asked\n\t%s\nwant\n\t%s", got, want)
	}
	b.k.forget()
}

// askedTogether is asked for requests that may come in any order.
func (b *box) askedTogether(want ...string) {
	b.t.Helper()
	got := strings.Split(b.k.said(), ", ")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		b.t.Errorf("asked %q, want %q", got, want)
	}
	b.k.forget()
}

// events returns the published events with that name.
func (b *box) events(name string) []event.Event {
	var found []event.Event
	w := b.bus.Watch(0)
	for {
		e, ok := w.TryNext()
		if !ok {
			return found
		}
		if e.Name == name {
			found = append(found, e)
		}
	}
}

// transitions returns the states that a program went through.
func (b *box) transitions(name string) string {
	var states []string
	for _, e := range b.events(event.ProgramStateChanged) {
		if e.Program == name && (len(states) == 0 || states[len(states)-1] != e.Change.To) {
			states = append(states, e.Change.To)
		}
	}
	return strings.Join(states, " ")
}

// spec is a service with the defaults of the manifest, changed by each f.
func spec(name string, f ...func(*program.Spec)) program.Spec {
	s := program.Spec{
		Name: name, Group: name, Type: program.Service, Argv: []string{name}, Priority: 999, Autostart: true,
		Restart: program.RestartOnFailure, ExitCodes: []int{0}, RunningAfter: time.Second, StartTimeout: time.Minute,
		StartRetries: -1, Kill: program.KillTree, OnFatal: program.FatalIgnore,
		Backoff:      program.BackoffPolicy{Initial: 500 * time.Millisecond, Factor: 2, Max: 30 * time.Second, Jitter: 0.1, ResetAfter: 30 * time.Second},
		RestartLimit: program.RestartLimit{Count: 10, Window: 5 * time.Minute},
		Stop:         []program.StopStep{{Signal: "TERM", Wait: 10 * time.Second}, {Signal: "KILL"}},
	}
	for _, change := range f {
		change(&s)
	}
	return s
}

func priority(n int) func(*program.Spec) { return func(s *program.Spec) { s.Priority = n } }

func needs(edges ...string) func(*program.Spec) {
	return func(s *program.Spec) {
		for _, e := range edges {
			name, cond, ok := strings.Cut(e, ":")
			if !ok {
				cond = string(program.NeedReady)
			}
			s.Needs = append(s.Needs, program.Need{Program: name, Condition: program.Condition(cond)})
		}
	}
}

func notify(s *program.Spec) { s.Readiness.Probes = []program.Probe{{Dialect: "notify"}} }
func oneshot(s *program.Spec) {
	s.Type, s.StartTimeout = program.Oneshot, 0
}
func manual(s *program.Spec) { s.Autostart = false }
