package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// ApplyResult is what a new set of specifications does or did.
type ApplyResult struct {
	Changes []program.SpecChange `json:"changes"`
	// RolledBack says that the old specifications are in force again, because of
	// Reason.
	RolledBack bool   `json:"rolled_back,omitempty"`
	Reason     string `json:"reason,omitempty"`
}

// ErrApplying says that another Apply is under way.
var ErrApplying = errors.New("another apply is under way")

// Plan says what Apply would do, and does nothing. The errors are those of
// Apply.
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

// Apply makes specs the programs of the box: unchanged ones keep their process,
// changed ones take the change live or restart, new ones start, the others are
// stopped and forgotten. It waits until required programs that it restarted or
// added are RUNNING or completed, each for at most its start timeout; if one is
// not, the old specifications are put back. What was begun goes on when ctx
// ends.
//
// Errors are those of program.Waves (nothing has changed), ErrApplying, ErrDone,
// *Refused during a shutdown, and ctx's.
func (s *Supervisor) Apply(ctx context.Context, specs []program.Spec) (ApplyResult, error) {
	return s.ApplyWith(ctx, specs, Steps{})
}

// Steps are what an apply does besides the programs. They belong to what goes on
// when the caller is gone: left to the caller, the new programs would run beside
// old facts. They may block. Any may be nil.
type Steps struct {
	// Begin comes before the first change of a program. Its error refuses the apply.
	Begin func() error
	// Commit comes when the new specifications are in force for good.
	Commit func()
	// Undo comes when they are not, and before the old ones are put back.
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

// ApplyWith is Apply with more steps. Its errors are also those of Begin.
func (s *Supervisor) ApplyWith(ctx context.Context, specs []program.Spec, with Steps) (ApplyResult, error) {
	with.fill()
	if err := s.check(specs); err != nil {
		return ApplyResult{}, err
	}
	select {
	case s.applies <- struct{}{}:
	default:
		return ApplyResult{}, ErrApplying
	}
	type outcome struct {
		result ApplyResult
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		defer func() { <-s.applies }()
		r, err := s.apply(specs, with)
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
	_, err := program.Waves(specs)
	return err
}

// canRun tells whether everything is there that spec needs.
func (c *Config) canRun(spec *program.Spec) error {
	probes := len(spec.Readiness.Probes)+len(spec.Health.Probes) > 0 || spec.Health.Watchdog > 0
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
	if _, err := ParseSchedule(spec.Schedule, spec.Timezone); err != nil {
		return fmt.Errorf("program %s: %w", spec.Name, err)
	}
	return nil
}

func (s *Supervisor) specs(ctx context.Context) ([]program.Spec, error) {
	var specs []program.Spec
	if err := s.do(ctx, func() { specs = s.loop.specs() }); err != nil {
		return nil, err // the loop may be writing to specs
	}
	return specs, nil
}

func (l *loop) specs() []program.Spec {
	specs := make([]program.Spec, 0, len(l.order))
	for _, e := range l.order {
		if !e.removing {
			specs = append(specs, *e.m.Newest())
		}
	}
	return specs
}

func (s *Supervisor) apply(specs []program.Spec, with Steps) (ApplyResult, error) {
	if err := with.Begin(); err != nil {
		return ApplyResult{}, err
	}
	before, changes, awaited, err := s.install(specs)
	if err != nil {
		with.Undo()
		return ApplyResult{}, err
	}
	result := ApplyResult{Changes: changes}
	failure := s.awaitReturn(awaited)
	if failure == nil {
		with.Commit()
	}
	if failure == nil || errors.Is(failure, ErrDone) {
		return result, failure
	}
	with.Undo()
	if _, _, _, err := s.install(before); err != nil {
		return result, errors.Join(failure, err)
	}
	result.RolledBack, result.Reason = true, failure.Error()
	s.in.post(func() { s.loop.tell("ApplyRolledBack", "", map[string]any{"reason": result.Reason}) })
	return result, nil
}

// expectation is a required program that has to return.
type expectation struct {
	name  string
	run   uint64 // the last one before the change
	limit time.Duration
}

// install puts specs in force on the loop, all at once.
func (s *Supervisor) install(specs []program.Spec) (before []program.Spec, changes []program.SpecChange, awaited []expectation, err error) {
	doErr := s.do(context.Background(), func() {
		l := &s.loop
		if l.ending.phase != notEnding {
			err = &Refused{Verb: "apply", Reason: "the box is shutting down"}
			return
		}
		before = l.specs()
		changes = program.Diff(before, specs)
		awaited, err = l.install(specs, changes)
		l.settle()
		l.advance()
	})
	if doErr != nil {
		err = doErr
	}
	return before, changes, awaited, err
}

func (l *loop) install(specs []program.Spec, changes []program.SpecChange) ([]expectation, error) {
	waves, err := program.Waves(specs)
	if err != nil {
		return nil, err
	}
	byName := make(map[string]*program.Spec, len(specs))
	for i := range specs {
		byName[specs[i].Name] = &specs[i]
	}
	back := make(map[string]bool) // programs that come back while being removed
	for _, c := range changes {
		switch e := l.entries[c.Program]; {
		case c.Kind == program.Add && e == nil:
			l.entries[c.Program] = l.newEntry(byName[c.Program])
		case c.Kind == program.Add:
			e.removing, back[c.Program] = false, true
		case c.Kind == program.Remove:
			e.removing = true
		}
	}
	l.arrange(waves, specs)
	var awaited []expectation
	for _, c := range changes {
		e := l.entries[c.Program]
		spec := byName[c.Program]
		run := e.m.Run
		if l.change(e, c.Kind, spec, back[c.Program]) && spec.Required {
			awaited = append(awaited, expectation{c.Program, run, returnLimit(spec)})
		}
	}
	l.tell("ProgramsApplied", "", map[string]any{"changes": summary(changes)})
	return awaited, nil
}

// change carries out one change and tells whether the program is to run anew.
func (l *loop) change(e *entry, kind program.ChangeKind, spec *program.Spec, back bool) bool {
	switch {
	case kind == program.Remove:
		e.wanted, e.again = false, false
		l.step(e, program.Event{Kind: program.Stop})
		return false
	case kind == program.Live:
		e.m = e.m.WithSpec(spec)
		l.show(e)
		return false
	case kind == program.Restart, back:
		return l.replace(e, spec)
	case kind == program.Add:
		l.touch(e)
		return l.booting && spec.Autostart && spec.Type != program.Schedule
	}
	return false
}

// replace gives a program a specification that needs a new process.
func (l *loop) replace(e *entry, spec *program.Spec) bool {
	e.cron = nil
	l.agenda.set(&e.cronD, time.Time{})
	ran := e.active()
	if ran {
		l.step(e, program.Event{Kind: program.Stop})
	}
	if !e.m.Resting() && spec.Type != program.Schedule {
		l.step(e, program.Event{Kind: program.Start, Spec: spec})
		return true
	}
	tried := e.m.State != program.Stopped
	e.m = e.m.WithSpec(spec)
	l.show(e)
	l.touch(e)
	if spec.Type == program.Schedule {
		e.released = false
		return false
	}
	if ran || tried && spec.Autostart {
		l.want(e, true)
		return true
	}
	return e.wanted
}

// awaitReturn waits for required programs.
func (s *Supervisor) awaitReturn(awaited []expectation) error {
	begin := time.Now()
	for _, x := range awaited {
		ctx, cancel := context.WithDeadline(context.Background(), begin.Add(x.limit))
		st, err := s.Await(ctx, x.name, func(st Status) bool {
			// Until it runs anew it shows how its old run ended: FATAL there says
			// nothing of what has been applied.
			return st.Run > x.run && (st.State == program.Running || st.Completed || st.State == program.Fatal)
		})
		cancel()
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			return fmt.Errorf("required program %s did not return within %s: it is %s (%s)", x.name, x.limit, st.State, st.Reason)
		case err != nil:
			return err
		case st.State == program.Fatal:
			return fmt.Errorf("required program %s is FATAL: %s", x.name, st.Reason)
		}
	}
	return nil
}

// returnLimit is how long a required program may take to return: the stop of its
// old process and the start of the new one.
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
