package supervisor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// loop holds what only the goroutine of Run uses.
type loop struct {
	sup     *Supervisor
	entries map[string]*entry
	former  map[string]*entry // names of entries before a rename
	order   []*entry
	waves   [][]*entry
	agenda  agenda
	crew    crew
	dirty   []*entry
	seed    uint64
	now     func() time.Time // for deadlines: a change of the wall clock does not affect it
	clock   func() time.Time // the wall clock, for schedules

	booting  bool
	bootedAt time.Time
	halts    bool     // whether a program may have a halt
	look     uint64   // number of the present walk along the needs
	open     []*entry // entries of the released waves that are not settled yet
	barrier  item     // when one of them gives up
	firstBad *entry   // the first that ended in an unexpected way
	badCode  int

	ending   ending
	finished bool
}

func (l *loop) init(s *Supervisor) {
	l.sup = s
	l.seed = s.cfg.Seed
	// A time of time.Now holds both readings; what computes with it uses the monotonic one.
	l.now, l.clock = time.Now, time.Now
	l.entries, l.former = make(map[string]*entry), make(map[string]*entry)
	l.crew.signalSoon = func(r []SignalRequest) []bool { return s.cfg.Processes.SignalSoon(r) }
	l.barrier.fire = l.advanceBoot
	l.ending.init(l)
}

// Run is the loop. It returns when the box was shut down; the end of ctx requests a shutdown. It
// must be called once.
func (s *Supervisor) Run(ctx context.Context) (result Result) {
	l := &s.loop
	defer func() {
		if p := recover(); p != nil {
			result = l.emergency(p, debug.Stack())
		}
		s.result.Store(&result)
		s.setPhase(Done)
		close(s.done)
	}()
	stop := make(chan struct{})
	defer close(stop)
	go l.forward(stop)
	defer context.AfterFunc(ctx, func() { s.Shutdown(context.Cause(ctx).Error()) })()
	l.run()
	return l.finish()
}

// forward hands the notices of ended processes to the loop.
func (l *loop) forward(stop <-chan struct{}) {
	for {
		select {
		case n := <-l.sup.cfg.Processes.Notices():
			l.sup.in.post(func() { l.noticed(n) })
		case <-stop:
			return
		}
	}
}

func (l *loop) run() {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	var batch []func()
	for !l.finished {
		batch = l.sup.in.take(batch)
		for _, f := range batch {
			f()
			l.settle()
		}
		for it := l.agenda.due(l.now()); it != nil; it = l.agenda.due(l.now()) {
			it.fire()
			l.settle()
		}
		if l.finished {
			return
		}
		if at, ok := l.agenda.next(); ok {
			timer.Reset(at.Sub(l.now()))
		} else {
			timer.Stop()
		}
		select {
		case <-l.sup.in.wake:
		case <-timer.C:
		}
	}
}

// settle considers every changed program until no program changes any more. A change of one program
// may start or stop others. The list avoids a recursion as deep as the chain of needs.
func (l *loop) settle() {
	for len(l.dirty) > 0 {
		changed := l.dirty
		l.dirty = nil
		for _, e := range changed {
			e.dirty = false
			l.consider(e)
		}
		l.advance()
	}
}

// consider applies a change of e to all other programs.
func (l *loop) consider(e *entry) {
	for _, d := range e.dependents {
		if d.wanted {
			l.tryStart(d)
		}
	}
	if l.ending.phase == notEnding && e.again && e.gone() {
		e.again = false
		l.want(e, false)
	}
	l.ending.consider(e)
	if e.removing && e.gone() {
		l.remove(e)
	}
}

// advance does the work that is not about a single program.
func (l *loop) advance() {
	l.advanceBoot()
	l.ending.advance()
	l.advanceHalt()
	l.checkAllExited()
}

func (l *loop) touch(e *entry) {
	if !e.dirty {
		e.dirty = true
		l.dirty = append(l.dirty, e)
	}
}

// step gives one event to a program and carries out the resulting actions.
func (l *loop) step(e *entry, ev program.Event) {
	now := l.now()
	before := e.m
	ev.Unmet = l.unmet(e) != nil
	var actions []program.Action
	e.m, actions = before.Step(now, ev)
	if why, on := e.m.Stopping(); on {
		l.sup.cfg.Processes.Stopping(e.name, e.m.Run, why)
	}
	for _, a := range actions {
		l.act(e, a)
	}
	l.agenda.set(&e.due, e.m.Deadline)
	if e.m.Run != before.Run {
		e.text, e.unready = "", ""
		if e.firstStart.IsZero() {
			e.firstStart = now
		}
	}
	if e.m.PID == 0 && !e.m.Forking() {
		e.text = "" // the process that reported it has ended
	}
	if e.active() {
		e.waiting, e.wanted, e.blocked, e.restarts = "", false, false, ""
	}
	if e.scheduled() && e.m.Resting() && !before.Resting() && !e.wanted {
		e.outcome = e.m.Reason
	}
	l.verdict(e, before, ev)
	l.show(e)
	l.touch(e)
}

// verdict decides whether the end of a program ends the box.
func (l *loop) verdict(e *entry, before program.Machine, ev program.Event) {
	unasked := before.State == program.Starting || before.State == program.Running
	exited := ev.Kind == program.Ended && ev.Run == before.Run && before.PID != 0 && unasked
	fatal := e.m.State == program.Fatal && before.State != program.Fatal
	if e.m.Resting() && !before.Resting() && e.m.State != program.Stopped && !e.m.Succeeded() && l.firstBad == nil {
		l.firstBad, l.badCode = e, max(e.m.Code, 1)
	}
	spec := e.spec()
	switch {
	case exited && spec.Essential:
		l.shutDown(Cause{Kind: CauseEssential, Program: e.name, Code: ev.Exit.Status(), Detail: ev.Exit.String()})
	case fatal && spec.Essential:
		l.shutDown(Cause{Kind: CauseEssential, Program: e.name, Code: max(e.m.Code, 1), Detail: e.m.Reason})
	case fatal && spec.OnFatal == program.FatalShutdown:
		l.shutDown(Cause{Kind: CauseFatal, Program: e.name, Code: max(e.m.Code, 1), Detail: e.m.Reason})
	}
}

// act carries out one action. Work that may block goes to the crew or to a goroutine, which reports
// back.
func (l *loop) act(e *entry, a program.Action) {
	// The name is read now: a rename may change e.name while the job waits.
	procs, spec, name := l.sup.cfg.Processes, e.spec(), e.name
	switch a.Kind {
	case program.Spawn:
		e.early = nil
		l.crew.submit(e.lane, job{do: func() { l.spawn(e, spec, a.Run) }})
	case program.Signal:
		r := &SignalRequest{Program: name, Run: a.Run, Signal: a.Signal, Scope: spec.Kill, Asked: time.Now()}
		l.crew.submit(e.lane, job{do: func() { l.failedToSend(name, a.String(), procs.Signal(*r)) }, signal: r})
	case program.KillAll:
		l.crew.submit(e.lane, job{do: func() { l.failedToSend(name, a.String(), procs.Kill(name, a.Run)) }})
	case program.RunHook:
		l.runHook(e, a)
	case program.CancelHook:
		if cancel := e.hooks[a.Hook]; cancel != nil {
			cancel()
		}
	case program.StartReadiness:
		e.unwatch = append(e.unwatch, l.sup.cfg.Prober.Ready(spec, a.Run, l.reporter(e, a.Run)))
	case program.StartHealth:
		e.unwatch = append(e.unwatch, l.sup.cfg.Prober.Health(spec, a.Run, l.reporter(e, a.Run)))
	case program.StopProbes:
		e.dropWatches()
	case program.ShutDown:
		l.shutDown(Cause{Kind: CauseUnhealthy, Program: e.name, Code: 1, Detail: a.Reason})
	case program.AwaitNeeds:
		l.awaitNeeds(e, a.Reason)
	}
}

// spawn runs outside the loop.
func (l *loop) spawn(e *entry, spec *program.Spec, run uint64) {
	pid, err := l.sup.cfg.Processes.Start(spec, run)
	ev := program.Event{Kind: program.Began, Run: run, PID: pid}
	if err != nil {
		ev = program.Event{Kind: program.Failed, Run: run, Reason: spec.Hide(err.Error()), Status: shellStatus(err), Starved: proc.Starved(err)}
	}
	l.sup.in.post(func() {
		l.step(e, ev)
		for _, ended := range e.early {
			l.step(e, ended)
		}
		e.early = nil
	})
}

func shellStatus(err error) int {
	if e, ok := err.(interface{ ShellStatus() int }); ok {
		return e.ShellStatus()
	}
	return 126
}

// failedToSend runs outside the loop.
func (l *loop) failedToSend(name, what string, err error) {
	if err == nil {
		return
	}
	l.sup.cfg.Bus.Publish(event.Event{
		Level: event.Warn, Stage: stage, Name: event.SignalFailed, Program: name,
		Fields: map[string]any{"action": what, "error": err.Error()},
	})
}

func (l *loop) runHook(e *entry, a program.Action) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), a.Timeout,
		fmt.Errorf("killed: it did not end within its timeout of %s", a.Timeout.Round(time.Millisecond)))
	if e.hooks == nil {
		e.hooks = make(map[program.HookKind]context.CancelFunc)
	}
	e.hooks[a.Hook] = cancel
	spec, name := e.spec(), e.name
	go func() {
		defer cancel()
		err := l.sup.cfg.Hooks.Run(ctx, spec, a.Run, a.Hook)
		ev := program.Event{Kind: program.HookDone, Run: a.Run, Hook: a.Hook}
		if err != nil {
			ev.Reason, ev.Starved = spec.Hide(err.Error()), proc.Starved(err)
			l.sup.cfg.Bus.Publish(event.Event{
				Level: event.Warn, Stage: stage, Name: event.HookFailed, Program: name, Run: a.Run,
				Fields: map[string]any{"hook": string(a.Hook), "error": ev.Reason},
			})
		}
		l.sup.in.post(func() { l.step(e, ev) })
	}()
}

// reporter turns the results of a probe into events of the run.
func (l *loop) reporter(e *entry, run uint64) func(Report) {
	return func(r Report) {
		l.sup.in.post(func() {
			switch r.Kind {
			case ReportReady:
				l.step(e, program.Event{Kind: program.Ready, Run: run})
			case ReportHealthy:
				l.step(e, program.Event{Kind: program.Healthy, Run: run})
			case ReportUnhealthy:
				l.step(e, program.Event{Kind: program.Unhealthy, Run: run, Reason: r.Reason})
			case ReportExtend:
				l.step(e, program.Event{Kind: program.Extend, Run: run, Extend: r.Extend})
			case ReportMain:
				l.step(e, program.Event{Kind: program.Moved, Run: run, PID: r.PID})
			case ReportWithdrawn:
				l.step(e, program.Event{Kind: program.Withdrawn, Run: run, Reason: r.Reason})
			case ReportText:
				if e.m.Run == run && (e.m.PID != 0 || e.m.Forking()) {
					e.text = r.Text
					l.show(e)
				}
			case ReportWaiting:
				if e.m.Run == run {
					e.unready = r.Reason
					l.show(e)
				}
			}
		})
	}
}

// noticed takes the end of a leader or of a run. If the notice comes before the result of the
// start, it waits for that result.
func (l *loop) noticed(n Notice) {
	e := cmp.Or(l.entries[n.Program], l.former[n.Program])
	if e == nil {
		return
	}
	ev := program.Event{Kind: program.Emptied, Run: n.Run}
	if n.Exit != nil {
		ev.Kind, ev.Exit = program.Ended, *n.Exit
	}
	if e.m.Forking() && n.Run == e.m.Run {
		e.early = append(e.early, ev)
		return
	}
	l.step(e, ev)
}

// emergency ends the box after a bug in the loop. It kills everything, and the report says where
// the bug happened.
func (l *loop) emergency(p any, stack []byte) Result {
	detail := fmt.Sprintf("internal error in the supervisor: %v", p)
	if l.ending.phase == notEnding {
		close(l.sup.ending)
	}
	l.sup.cfg.Bus.Publish(event.Event{
		Level: event.Error, Stage: stage, Name: event.SupervisorPanicked,
		Fields: map[string]any{"error": detail, "stack": string(stack)},
	})
	for _, e := range l.order {
		run, name := e.m.Run, e.name
		if e.m.Live() {
			l.crew.submit(e.lane, job{do: func() { l.failedToSend(name, "Kill", l.sup.cfg.Processes.Kill(name, run)) }})
		}
	}
	return Result{Cause: Cause{Kind: CauseInternal, Code: 1, Detail: detail}, Code: 1, Programs: l.sup.Snapshot().Programs}
}

// adopt makes specs the programs of the box and computes their order. Other programs stay until
// they are gone.
func (l *loop) adopt(specs []program.Spec) error {
	waves, err := program.Waves(program.Pointers(specs))
	if err != nil {
		return err
	}
	for i := range specs {
		spec := &specs[i]
		if l.entries[spec.Name] == nil {
			l.entries[spec.Name] = l.newEntry(spec)
		}
	}
	l.arrange(waves, specs)
	return nil
}

func (l *loop) newEntry(spec *program.Spec) *entry {
	l.seed++
	e := &entry{
		name: spec.Name, lane: laneOf(spec), required: spec.Required,
		m: program.NewMachine(spec, l.seed*0x9e3779b97f4a7c15, l.now()),
	}
	e.due.fire = func() { l.step(e, program.Event{Kind: program.Tick, Reason: e.unready}) }
	e.cronD.fire = func() { l.lookAtClock(e) }
	switch {
	case spec.Autostart:
	case spec.Type == program.Schedule:
		e.paused = true
	default:
		e.waiting = "not started: autostart is off"
	}
	return e
}

// laneOf is a name for an instance that a rename does not change.
func laneOf(spec *program.Spec) string {
	if spec.Group == "" {
		return spec.Name
	}
	return spec.Group + ":" + strconv.Itoa(spec.Instance)
}

// arrange puts the entries into waves, links the dependents and publishes the order.
func (l *loop) arrange(waves [][]string, specs []program.Spec) {
	l.waves, l.order = make([][]*entry, len(waves)), nil
	in := make(map[*entry]bool, len(specs))
	for n, wave := range waves {
		for _, name := range wave {
			e := l.entries[name]
			e.wave, e.dependents = n, nil
			in[e] = true
			l.waves[n] = append(l.waves[n], e)
			l.order = append(l.order, e)
		}
	}
	for i := range specs {
		for _, need := range specs[i].Needs {
			needed := l.entries[need.Program]
			needed.dependents = append(needed.dependents, l.entries[specs[i].Name])
		}
	}
	for _, e := range l.entries {
		if !in[e] {
			e.dependents = nil
			l.order = append(l.order, e)
		}
		if e.status.Load() == nil {
			e.status.Store(e.makeStatus())
		}
	}
	l.publishOrder()
}

func (l *loop) publishOrder() {
	order, index := slices.Clone(l.order), maps.Clone(l.entries)
	l.sup.index.Store(&index)
	l.sup.order.Store(&order)
}
