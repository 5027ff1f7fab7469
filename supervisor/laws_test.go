package supervisor

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// laws is a kernel that watches what a supervisor asks of it. They hold whatever programs and
// operators do: one live run of a program at most, no start before its needs hold, no KILL
// before the ladder allows it, each run started once and its end told once.
type laws struct {
	*kernel
	sup   *Supervisor
	specs map[string]program.Spec // by name
	grace time.Duration

	mu       sync.Mutex
	broken   []string
	runs     map[string]*watched     // the latest run of each
	unmet    []start                 // needs did not hold
	exits    map[string]program.Exit // of the latest run that ended
	passed   chan Notice
	shutting time.Time
	lie      func(Notice) bool // hands on something else, or says that the notice may pass
}

type watched struct {
	run              uint64
	answered, ladder time.Time // when it began, and got its first signal
}

type start struct {
	name string
	run  uint64
	need string
}

func (l *laws) breach(format string, args ...any) {
	l.broken = append(l.broken, fmt.Sprintf(format, args...))
}

// Start implements Processes.
func (l *laws) Start(spec *program.Spec, run uint64) (int, error) {
	l.mu.Lock()
	w := l.runs[spec.Name]
	if w == nil {
		w = &watched{}
		l.runs[spec.Name] = w
	}
	if w.run > 0 && w.answered.IsZero() || l.alive(spec.Name) {
		l.breach("two live runs of %s", spec.Name)
		l.mu.Unlock()
		return 0, fmt.Errorf("there is one already")
	}
	if run != w.run+1 {
		l.breach("run %d of %s follows run %d", run, spec.Name, w.run)
	}
	*w = watched{run: run}
	for _, need := range l.specs[spec.Name].Needs {
		st, _ := l.sup.Status(need.Program)
		// What is lost in this very instant was not lost when the start was decided.
		if !need.Condition.Met(&st) && !st.Since.Equal(time.Now()) {
			l.unmet = append(l.unmet, start{spec.Name, run, fmt.Sprintf("%s to be %s, it is %v", need.Program, need.Condition, st.State)})
		}
	}
	l.mu.Unlock()
	pid, err := l.kernel.Start(spec, run)
	l.mu.Lock()
	defer l.mu.Unlock()
	w.answered = time.Now()
	return pid, err
}

// alive tells whether processes of a program are there.
func (l *laws) alive(name string) bool {
	l.kernel.mu.Lock()
	defer l.kernel.mu.Unlock()
	return l.live[name] != nil
}

// Signal implements Processes.
func (l *laws) Signal(name string, run uint64, signal string, scope program.KillScope, asked time.Time) error {
	l.mu.Lock()
	if w := l.runs[name]; w != nil && w.run == run && w.ladder.IsZero() {
		w.ladder = time.Now()
	}
	l.mu.Unlock()
	return l.kernel.Signal(name, run, signal, scope, asked)
}

// Kill implements Processes.
func (l *laws) Kill(name string, run uint64) error {
	l.kernel.mu.Lock()
	p := l.live[name]
	leader := p != nil && p.run == run && !p.over
	l.kernel.mu.Unlock()
	l.mu.Lock()
	if w := l.runs[name]; leader && w.run == run {
		var declared time.Duration
		for _, rung := range l.specs[name].Stop {
			declared += rung.Wait
		}
		now, last := time.Now(), l.shutting.Add(l.grace-program.KillReserve(l.grace))
		switch {
		case now.Equal(w.answered): // the start was given up before it answered
		case !w.ladder.IsZero() && now.Sub(w.ladder) >= declared:
		case !l.shutting.IsZero() && (!w.ladder.IsZero() || !now.Before(last)):
			// A shutdown scales the waits to its budget.
		default:
			l.breach("KILL of %s %v after its first signal; the ladder has %v", name, now.Sub(w.ladder), declared)
		}
	}
	l.mu.Unlock()
	return l.kernel.Kill(name, run)
}

// judge looks at the whole life of a box.
func (l *laws) judge(r Result, events []event.Event) []string {
	// What goes on does not wait for its needs again: a restart, by policy or by request.
	rested := map[string]bool{}
	for _, e := range events {
		if e.Change.To == "STARTING" && slices.Contains([]string{"STOPPED", "EXITED", "FATAL"}, e.Change.From) {
			rested[fmt.Sprint(e.Program, e.Run)] = true
		}
	}
	for _, s := range l.unmet {
		if rested[fmt.Sprint(s.name, s.run)] {
			l.breach("run %d of %s waits for %s", s.run, s.name, s.need)
		}
	}
	if r.Took > l.grace {
		l.breach("the shutdown took %v of %v", r.Took, l.grace)
	}
	for _, st := range r.Programs {
		if l.alive(st.Name) && !slices.Contains(r.Leftover, st.Name) {
			l.breach("%s outlived the shutdown, which does not say so", st.Name)
		}
		w := l.runs[st.Name]
		if w != nil && st.Run != w.run {
			l.breach("%s says that it had %d runs, and had %d", st.Name, st.Run, w.run)
		}
		if told, ok := l.exits[st.Name]; ok != (st.LastExit != nil) || ok && told != *st.LastExit {
			l.breach("%s ended last with %v (%v), its status has %v", st.Name, told, ok, st.LastExit)
		}
	}
	return l.broken
}

// Notices implements Processes.
func (l *laws) Notices() <-chan Notice { return l.passed }

// pass hands on what the kernel tells, until done is closed.
func (l *laws) pass(done <-chan struct{}) {
	for {
		select {
		case n := <-l.notices:
			l.mu.Lock()
			if n.Exit != nil {
				l.exits[n.Program] = *n.Exit
			}
			l.mu.Unlock()
			if l.lie != nil && !l.lie(n) {
				continue
			}
			l.passed <- n
		case <-done:
			return
		}
	}
}

// life is one box: its programs, how they behave, and what happens to them.
type life struct {
	specs  []program.Spec
	habits map[string]habit
	ready  map[string]time.Duration
	grace  time.Duration
	acts   []act
}

// act is what happens after a pause: a request, or the end of a process.
type act struct {
	after time.Duration
	verb  string
	name  string
}

var lifeVerbs = []string{"start", "stop", "restart", "crash", "crash", "pass"}

// randomLife follows from the seed.
func randomLife(seed uint64) life {
	r := rand.New(rand.NewPCG(seed, 0))
	seconds := func(most int) time.Duration { return time.Duration(r.IntN(most*10+1)) * 100 * time.Millisecond }
	l := life{habits: map[string]habit{}, ready: map[string]time.Duration{}, grace: 5*time.Second + seconds(60)}
	for i := range 2 + r.IntN(5) {
		name := string(rune('a' + i))
		s := spec(name)
		s.Restart = []program.RestartPolicy{program.RestartAlways, program.RestartOnFailure, program.RestartNever}[r.IntN(3)]
		s.Autostart, s.RunningAfter = r.IntN(4) > 0, seconds(1)
		s.StartTimeout = time.Second + seconds(10)
		s.Backoff.Initial = time.Duration(r.IntN(2)) * 500 * time.Millisecond
		s.Stop = nil
		for _, signal := range []string{"INT", "TERM"}[r.IntN(2):] {
			s.Stop = append(s.Stop, program.StopStep{Signal: signal, Wait: 100*time.Millisecond + seconds(5)})
		}
		h := habit{
			slow: time.Duration(r.IntN(2)) * seconds(1), dies: seconds(3), deaf: r.IntN(4) == 0,
			leftover: time.Duration(r.IntN(2)) * seconds(1), code: r.IntN(2),
		}
		if r.IntN(3) == 0 {
			h.lives = seconds(20)
		}
		if r.IntN(3) == 0 {
			oneshot(&s)
			s.StartTimeout = 0
			h.lives = 100*time.Millisecond + seconds(5)
		} else if r.IntN(3) == 0 {
			notify(&s)
			if r.IntN(4) > 0 {
				l.ready[name] = seconds(5)
			}
		}
		if r.IntN(8) == 0 {
			h.fail = fmt.Errorf("no such file")
		}
		for j := range i {
			if r.IntN(3) > 0 {
				continue
			}
			conditions := []program.Condition{program.NeedStarted, program.NeedReady}
			if l.specs[j].Type == program.Oneshot {
				conditions = []program.Condition{program.NeedCompleted}
			}
			s.Needs = append(s.Needs, program.Need{Program: l.specs[j].Name, Condition: conditions[r.IntN(len(conditions))]})
		}
		l.specs, l.habits[name] = append(l.specs, s), h
	}
	for range r.IntN(40) {
		l.acts = append(l.acts, act{seconds(4), lifeVerbs[r.IntN(len(lifeVerbs))], l.specs[r.IntN(len(l.specs))].Name})
	}
	return l
}

// spoil makes a supervisor break a law: it alters what it is told.
type spoil struct {
	specs  func([]program.Spec)
	grace  time.Duration // added
	notice func(*laws, Notice) bool
}

// lived lets a life happen, and returns what was wrong with it.
func lived(t *testing.T, f life, s spoil) (wrong []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		k.habits = f.habits
		l := &laws{
			kernel: k, specs: map[string]program.Spec{}, grace: f.grace, runs: map[string]*watched{},
			exits: map[string]program.Exit{}, passed: make(chan Notice, 4096),
		}
		if s.notice != nil {
			l.lie = func(n Notice) bool { return s.notice(l, n) }
		}
		specs := slices.Clone(f.specs)
		for _, spec := range f.specs {
			l.specs[spec.Name] = spec
		}
		if s.specs != nil {
			s.specs(specs)
		}
		bus := event.NewBus(10000)
		sup, err := New(Config{
			Processes: l, Prober: &prober{after: f.ready, reports: map[string]func(Report){}}, Hooks: &hookRunner{},
			Bus: bus, StopGrace: f.grace + s.grace,
		}, specs)
		if err != nil {
			t.Fatal(err)
		}
		l.sup = sup
		result, done := make(chan Result, 1), make(chan struct{})
		go l.pass(done)
		go func() { result <- sup.Run(context.Background()) }()
		sup.Boot()
		for _, a := range f.acts {
			time.Sleep(a.after)
			synctest.Wait()
			l.do(a)
		}
		synctest.Wait()
		l.mu.Lock()
		l.shutting = time.Now()
		l.mu.Unlock()
		sup.Shutdown("the end of a life")
		r := <-result
		synctest.Wait()
		close(done)
		b := box{bus: bus}
		wrong = l.judge(r, b.events(event.ProgramStateChanged))
	})
	return wrong
}

func (l *laws) do(a act) {
	ctx := context.Background()
	// A refusal is as good an answer as any.
	switch a.verb {
	case "start":
		_ = l.sup.Start(ctx, a.name)
	case "stop":
		_ = l.sup.Stop(ctx, a.name)
	case "restart":
		_ = l.sup.Restart(ctx, a.name)
	case "crash":
		l.kernel.mu.Lock()
		defer l.kernel.mu.Unlock()
		if p := l.live[a.name]; p != nil {
			l.end(p, 0, program.Exit{Code: 3})
		}
	}
}

// lives is how many are looked at; -laws.seed looks at one.
const lives = 300

var lawsSeed = flag.Uint64("laws.seed", 0, "look at the life of this seed alone")

// TestLaws lets random lives happen and checks what must always hold.
func TestLaws(t *testing.T) {
	first, n := uint64(time.Now().UnixNano()), lives
	if *lawsSeed != 0 {
		first, n = *lawsSeed, 1
	}
	for seed := first; seed < first+uint64(n); seed++ {
		if wrong := lived(t, randomLife(seed), spoil{}); len(wrong) > 0 {
			t.Fatalf("-laws.seed=%d: %q", seed, wrong)
		}
	}
}

// The twins: a supervisor that breaks a law is found out.
func TestLawsFindABreach(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil spoil
		says  string
	}{
		"needs are not known": {spoil{specs: func(specs []program.Spec) {
			for i := range specs {
				specs[i].Needs = nil
			}
		}}, "waits for"},
		"the ladder is shorter": {spoil{specs: func(specs []program.Spec) {
			for i := range specs {
				specs[i].Stop = []program.StopStep{{Signal: "TERM", Wait: time.Millisecond}}
			}
		}}, "KILL of"},
		"the budget is larger": {spoil{grace: time.Hour}, "the shutdown took"},
		"a tree is empty before it is": {spoil{notice: func(l *laws, n Notice) bool {
			if n.Exit != nil {
				l.passed <- n
				l.passed <- Notice{Program: n.Program, Run: n.Run}
			}
			return false
		}}, "two live runs"},
		"an end is told twice, the second time as another": {spoil{notice: func(l *laws, n Notice) bool {
			if n.Exit != nil {
				l.passed <- Notice{Program: n.Program, Run: n.Run, Exit: &program.Exit{Code: 77}}
				return false
			}
			return true
		}}, "ended last with"},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(lives) {
				for _, wrong := range lived(t, randomLife(seed), tc.spoil) {
					if strings.Contains(wrong, tc.says) {
						return
					}
				}
			}
			t.Errorf("%d lives, and none of them is wrong", lives)
		})
	}
}
