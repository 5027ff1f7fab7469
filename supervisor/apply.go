package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// ApplyResult is what a new set of specifications does or did.
type ApplyResult struct {
	Changes []program.SpecChange `json:"changes"`
	// Troubles says, by name, which instance of a set did not become ready again, and which
	// instances therefore keep running unchanged.
	Troubles map[string]string `json:"troubles,omitempty"`
	// RolledBack says that the old specifications are in force again. Reason says why.
	RolledBack bool   `json:"rolled_back,omitempty"`
	Reason     string `json:"reason,omitempty"`
}

// Plan says what Apply would do, without doing it. Its errors are those of Apply.
func (s *Supervisor) Plan(ctx context.Context, specs []program.Spec) (ApplyResult, error) {
	if err := s.check(specs); err != nil {
		return ApplyResult{}, err
	}
	before, err := s.specs(ctx)
	if err != nil {
		return ApplyResult{}, err
	}
	return ApplyResult{Changes: program.Diff(before, specs)}, nil
}

// Apply makes specs the programs of the box. Unchanged programs keep their process. Changed ones
// take the change live or restart. New ones start. All others are stopped and forgotten. Apply
// waits until the required programs that it restarted or added are RUNNING or completed, each for
// at most its start timeout. If one of them is not, the old specifications are put back. If ctx
// ends, the work that was begun goes on.
//
// If several instances of a set must restart, they do so one after the other, each when the one
// before is ready again. If one does not become ready, the others keep running unchanged.
//
// Only one apply runs at a time; a second waits. The errors are those of program.Waves (the
// programs are unchanged then), ErrDone, *Refused during a shutdown, and ctx's.
func (s *Supervisor) Apply(ctx context.Context, specs []program.Spec) (ApplyResult, error) {
	return s.ApplyWith(ctx, func() ([]program.Spec, Steps, error) { return specs, Steps{}, nil })
}

// Steps are the parts of an apply that are not about programs. ApplyWith calls them even if its ctx
// has ended meanwhile: otherwise the new programs would run with old facts. They may block. Each
// may be nil.
type Steps struct {
	// Begin is called before the first change of a program. Its error refuses the apply.
	Begin func() error
	// Commit is called when the new specifications are in force for good.
	Commit func()
	// Undo is called if they are not, before the old ones are put back.
	Undo func()
}

func (x *Steps) fill() {
	if x.Begin == nil {
		x.Begin = func() error { return nil }
	}
	if x.Commit == nil {
		x.Commit = func() {}
	}
	if x.Undo == nil {
		x.Undo = func() {}
	}
}

// ApplyWith is Apply of the specifications that read returns. It calls read when it is this apply's
// turn: of several applies, the last one reads last and so wins. Its errors are also those of read
// and of Begin.
func (s *Supervisor) ApplyWith(ctx context.Context, read func() ([]program.Spec, Steps, error)) (ApplyResult, error) {
	select {
	case s.applies <- struct{}{}:
	case <-ctx.Done():
		return ApplyResult{}, context.Cause(ctx)
	case <-s.done:
		return ApplyResult{}, ErrDone
	}
	type outcome struct {
		result ApplyResult
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		defer func() { <-s.applies }()
		specs, with, err := read()
		if err == nil {
			err = s.check(specs)
		}
		var r ApplyResult
		if err == nil {
			with.fill()
			r, err = s.apply(specs, with)
		}
		done <- outcome{r, err}
	}()
	select {
	case o := <-done:
		return o.result, o.err
	case <-ctx.Done():
		return ApplyResult{}, context.Cause(ctx)
	}
}

func (s *Supervisor) check(specs []program.Spec) error {
	for i := range specs {
		if err := s.cfg.canRun(&specs[i]); err != nil {
			return err
		}
	}
	_, err := program.Waves(program.Pointers(specs))
	return err
}

// canRun returns an error if something is missing that spec needs.
func (c *Config) canRun(spec *program.Spec) error {
	probes := len(spec.Readiness.Probes) > 0 || spec.Health.On()
	if probes && c.Prober == nil {
		return fmt.Errorf("program %s declares probes, which this supervisor cannot run", spec.Name)
	}
	hooks := spec.Hooks != program.Hooks{} || spec.StopCommand != nil
	if hooks && c.Hooks == nil {
		return fmt.Errorf("program %s declares hooks, which this supervisor cannot run", spec.Name)
	}
	if spec.Type != program.Schedule {
		return nil
	}
	if _, err := program.ParseSchedule(spec.Schedule, spec.Timezone); err != nil {
		return fmt.Errorf("program %s: schedule %q: %w", spec.Name, spec.Schedule, err)
	}
	return nil
}

func (s *Supervisor) specs(ctx context.Context) ([]program.Spec, error) {
	var specs []program.Spec
	if err := s.do(ctx, func() { specs = s.loop.specs() }); err != nil {
		return nil, err // specs may not be read any more: the loop may be writing to them
	}
	return specs, nil
}

func (l *loop) specs() []program.Spec {
	specs := make([]program.Spec, 0, len(l.order))
	for _, e := range l.order {
		if !e.removing {
			spec := *e.m.Newest()
			spec.Name = e.name
			specs = append(specs, spec)
		}
	}
	return specs
}

func (s *Supervisor) apply(specs []program.Spec, with Steps) (ApplyResult, error) {
	if err := with.Begin(); err != nil {
		return ApplyResult{}, err
	}
	in, err := s.install(specs)
	if err != nil {
		with.Undo()
		return ApplyResult{}, err
	}
	result := ApplyResult{Changes: in.changes}
	failure := s.awaitReturns(in.awaited)
	if failure == nil {
		result.Troubles, failure = s.rollAll(in.rolls)
	}
	if failure == nil {
		with.Commit()
	}
	if failure == nil || errors.Is(failure, ErrDone) {
		return result, failure
	}
	with.Undo()
	if _, err := s.install(in.before); err != nil {
		return result, errors.Join(failure, err)
	}
	result.RolledBack, result.Reason, result.Troubles = true, failure.Error(), nil
	s.in.post(func() { s.loop.tell(event.ApplyRolledBack, "", map[string]any{"reason": result.Reason}) })
	return result, nil
}

// expectation is a required program that must become ready again.
type expectation struct {
	name  string
	run   uint64 // the last one before the change
	limit time.Duration
}

// installed says what an install has done and what is left to do.
type installed struct {
	before  []program.Spec
	changes []program.SpecChange
	awaited []expectation
	rolls   map[string]*roll // by group
}

// install puts specs in force on the loop, all at once.
func (s *Supervisor) install(specs []program.Spec) (in installed, err error) {
	doErr := s.do(context.Background(), func() {
		l := &s.loop
		if l.ending.phase != notEnding {
			err = &Refused{Verb: "apply", Reason: shuttingDown, Ending: true}
			return
		}
		in.before = l.specs()
		in.changes = program.Diff(in.before, specs)
		err = l.install(specs, &in)
		l.settle()
		l.advance()
	})
	if doErr != nil {
		err = doErr
	}
	return in, err
}

func (l *loop) install(specs []program.Spec, in *installed) error {
	waves, err := program.Waves(program.Pointers(specs))
	if err != nil {
		return err
	}
	byName := make(map[string]*program.Spec, len(specs))
	for i := range specs {
		byName[specs[i].Name] = &specs[i]
	}
	back := l.renew(in.changes, byName)
	l.arrange(waves, specs)
	// This comes before the first program stops. So a reader that reads the box because of this
	// event finds the new requirements.
	l.tell(event.ProgramsApplied, "", map[string]any{"changes": summary(in.changes)})
	in.rolls = l.rolls(in.changes, byName)
	for _, c := range in.changes {
		e := l.entries[c.Program]
		spec := byName[c.Program]
		if r := in.rolls[e.spec().Group]; r != nil && r.later(c.Program) {
			l.hold(e, spec)
			continue
		}
		run := e.m.Run
		if l.change(e, c.Kind, spec, back[c.Program]) && spec.Required {
			in.awaited = append(in.awaited, expectation{c.Program, run, returnLimit(spec)})
		}
	}
	return nil
}

// renew makes, renames and marks the entries, and stops none. It returns the programs that are
// added again while they are being removed.
func (l *loop) renew(changes []program.SpecChange, byName map[string]*program.Spec) (back map[string]bool) {
	back = make(map[string]bool)
	for _, c := range changes {
		switch {
		case c.Was != "":
			l.rename(c.Was, c.Program)
		case c.Kind == program.Add && l.entries[c.Program] == nil:
			// The program may be under removal with its former name.
			lane := laneOf(byName[c.Program])
			if i := slices.IndexFunc(l.order, func(e *entry) bool { return e.removing && e.lane == lane }); i >= 0 {
				l.rename(l.order[i].name, c.Program)
			}
		}
	}
	for _, c := range changes {
		e, spec := l.entries[c.Program], byName[c.Program]
		switch {
		case c.Kind == program.Add && e == nil:
			e = l.newEntry(spec)
			l.entries[c.Program] = e
		case c.Kind == program.Add:
			e.removing, back[c.Program] = false, true
		case c.Kind == program.Remove:
			e.removing = true
		}
		e.required = spec != nil && spec.Required
		if e.status.Load() != nil {
			e.status.Store(e.makeStatus())
		}
	}
	return back
}

// rename gives an instance another name: "web" becomes "web:0" if it is no longer the only one. Its
// process, run and output stay.
func (l *loop) rename(was, name string) {
	e := l.entries[was]
	delete(l.entries, was)
	l.former[was], l.entries[name], e.name = e, e, name
	// A new slice, because statuses share the old one.
	e.former = slices.DeleteFunc(append(slices.Clone(e.former), was), func(former string) bool { return former == name })
	l.crew.submit(e.lane, job{do: func() { l.sup.cfg.Processes.Rename(was, name) }})
	l.tell(event.ProgramRenamed, name, map[string]any{"was": was})
}

// change carries out one change and tells whether the program must restart.
func (l *loop) change(e *entry, kind program.ChangeKind, spec *program.Spec, back bool) bool {
	if e.scheduled() && !e.released && spec != nil && spec.Autostart && !e.spec().Autostart {
		e.paused = false // only autostart = false has paused it
	}
	switch {
	case kind == program.Remove:
		e.wanted, e.blocked, e.restarts, e.again, e.revive, e.halt = false, false, "", false, false, haltNone
		l.noMoreRuns(e) // what a run needs may be forgotten before the present run has ended
		l.step(e, program.Event{Kind: program.Stop})
		return false
	case kind == program.Live:
		e.m = e.m.WithSpec(spec)
		l.show(e)
		if e.wanted {
			l.tryStart(e) // it may need something else now
		}
		return false
	case back:
		return l.replace(e, spec)
	case kind == program.Restart:
		return !l.keepsStopping(e, spec) && l.replace(e, spec)
	case kind == program.Add:
		l.touch(e)
		return l.booting && spec.Autostart && spec.Type != program.Schedule
	}
	return false
}

// keepsStopping tells whether e goes on to stop by request. Then spec is that of the next run, which only
// a request starts, as if the stop were done.
func (l *loop) keepsStopping(e *entry, spec *program.Spec) bool {
	if e.scheduled() || spec.Type == program.Schedule || !e.stopsByRequest() {
		return false
	}
	e.m = e.m.WithNext(spec)
	l.show(e)
	return true
}

// replace gives a program a specification that needs a new process.
func (l *loop) replace(e *entry, spec *program.Spec) bool {
	l.noMoreRuns(e)
	tried := e.m.State != program.Stopped
	if e.scheduled() {
		tried = e.released && !e.paused // it was in force, also before its first run
	}
	switch is, was := spec.Type == program.Schedule, e.scheduled(); {
	case is && !was:
		e.paused = !spec.Autostart
		l.unwant(e, "")
	case was && !is:
		e.again = false
	}
	ran := e.active()
	if ran {
		l.step(e, program.Event{Kind: program.Stop})
	}
	if !e.m.Resting() && spec.Type != program.Schedule {
		l.step(e, program.Event{Kind: program.Start, Spec: spec})
		return true
	}
	e.m = e.m.WithSpec(spec)
	l.show(e)
	l.touch(e)
	if spec.Type == program.Schedule {
		e.released = !spec.Autostart && !e.paused
		if e.released {
			l.timetable(e)
		}
		return false
	}
	if ran || tried && spec.Autostart {
		l.want(e, true)
		return true
	}
	return e.wanted
}

// awaitReturns waits for the required programs.
func (s *Supervisor) awaitReturns(awaited []expectation) error {
	begin := time.Now()
	for _, x := range awaited {
		switch err := s.awaitReturn(begin, x); {
		case errors.Is(err, ErrDone):
			return err
		case err != nil:
			return fmt.Errorf("required %w", err)
		}
	}
	return nil
}

// awaitReturn waits until a program is RUNNING, and ready if it declares a readiness, or has
// completed. It waits at most the program's limit, from begin on, and no longer if a request has
// stopped the program meanwhile: other applies wait for this one.
func (s *Supervisor) awaitReturn(begin time.Time, x expectation) error {
	ctx, cancel := context.WithDeadline(context.Background(), begin.Add(x.limit))
	defer cancel()
	st, err := s.Await(ctx, x.name, func(st Status) bool {
		// Before the new run, the status shows the end of the old run: a FATAL there is not
		// one of the new specification.
		switch st.State {
		case program.Running, program.Exited, program.Fatal:
			return st.Run > x.run
		case program.Stopped:
			return !st.Queued && !st.Blocked && s.staysStopped(ctx, x.name)
		}
		return false
	})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("program %s did not return within %s: it is %s (%s)", x.name, x.limit, st.Shown(), st.Reason)
	case err != nil:
		return err
	case st.State != program.Running && !st.Completed:
		return fmt.Errorf("program %s is %s: %s", x.name, st.Shown(), st.Reason)
	}
	return nil
}

// staysStopped tells whether only a request will start the program. The loop is asked, because a
// restart shows STOPPED for a moment, and because a wave that was not released yet starts later.
func (s *Supervisor) staysStopped(ctx context.Context, name string) (stays bool) {
	answer := make(chan bool, 1)
	err := s.do(ctx, func() {
		e := s.loop.entries[name]
		answer <- e != nil && e.m.State == program.Stopped && !e.wanted && !e.queued() && (e.released || !e.spec().Autostart)
	})
	return err == nil && <-answer
}

// returnLimit is how long a required program may take until it is ready again: the stop of its old
// process and the start of the new one.
func returnLimit(spec *program.Spec) time.Duration {
	start := spec.StartTimeout
	if start <= 0 {
		start = time.Minute
	}
	return start + program.StopTime(spec)
}

func summary(changes []program.SpecChange) map[string]int {
	n := make(map[string]int)
	for _, c := range changes {
		n[string(c.Kind)]++
	}
	return n
}
