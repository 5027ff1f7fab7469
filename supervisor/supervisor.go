package supervisor

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Config is what a Supervisor works with. Processes and Bus are required.
type Config struct {
	Processes Processes
	Prober    Prober     // nil: no program declares readiness or health
	Hooks     HookRunner // nil: no program declares hooks
	Bus       *event.Bus

	// Barrier is what a wave waits for in the one before; "" is ready.
	Barrier program.Barrier
	// StopGrace bounds a whole shutdown, drain included; 0 is program.DefaultStopGrace.
	StopGrace time.Duration
	// Drain is how long a shutdown holds before it stops the first program.
	Drain time.Duration
	// ExitWhenAllExited shuts down once nothing is left to run.
	ExitWhenAllExited bool
	// Seed decides the jitter of all back-offs.
	Seed uint64
}

// Supervisor runs the programs. Its methods may be called from any goroutine,
// before, during and after Run.
type Supervisor struct {
	cfg  Config
	in   *inbox
	done chan struct{} // closed when Run is about to return

	order   atomic.Pointer[[]*entry] // in start order, for Snapshot
	index   atomic.Pointer[map[string]*entry]
	phase   atomic.Pointer[Phase]
	started chan struct{} // closed when every wave has been started and settled
	result  atomic.Pointer[Result]
	applies chan struct{} // a token: one apply at a time

	loop loop
}

// New returns a supervisor of specs that has started nothing. The error is one
// of program.Waves, or says which schedule cannot be read.
func New(cfg Config, specs []program.Spec) (*Supervisor, error) {
	if cfg.Processes == nil || cfg.Bus == nil {
		return nil, errors.New("supervisor: Processes and Bus are required")
	}
	if cfg.Barrier == "" {
		cfg.Barrier = program.BarrierReady
	}
	cfg.StopGrace = cmp.Or(cfg.StopGrace, program.DefaultStopGrace)
	s := &Supervisor{
		cfg: cfg, in: newInbox(), done: make(chan struct{}), started: make(chan struct{}),
		applies: make(chan struct{}, 1),
	}
	s.setPhase(Idle)
	s.loop.init(s)
	if err := s.check(specs); err != nil {
		return nil, err
	}
	if err := s.loop.adopt(specs); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Supervisor) setPhase(p Phase) { s.phase.Store(&p) }

// Snapshot returns the state of all programs. It waits for nothing.
func (s *Supervisor) Snapshot() Snapshot {
	snap := Snapshot{Seq: s.cfg.Bus.Seq(), Time: time.Now(), Phase: *s.phase.Load()}
	order := *s.order.Load()
	snap.Programs = make([]Status, len(order))
	for i, e := range order {
		snap.Programs[i] = *e.status.Load()
	}
	return snap
}

// Status returns one program. It waits for nothing.
func (s *Supervisor) Status(name string) (Status, bool) {
	e, ok := (*s.index.Load())[name]
	if !ok {
		return Status{}, false
	}
	return *e.status.Load(), true
}

// All implements program.Reader.
func (s *Supervisor) All() (seq uint64, programs []Status) {
	snap := s.Snapshot()
	return snap.Seq, snap.Programs
}

// Phase returns what the supervisor as a whole is doing.
func (s *Supervisor) Phase() Phase { return *s.phase.Load() }

// Ping returns once the loop has answered. Its error is ctx's, or ErrDone.
func (s *Supervisor) Ping(ctx context.Context) error { return s.do(ctx, func() {}) }

// Boot starts the programs with autostart, wave by wave. It returns at once;
// Started tells when the last wave is settled.
func (s *Supervisor) Boot() { s.in.post(s.loop.boot) }

// Started is closed when Boot has started every wave and each program of the
// last has passed the barrier or given up.
func (s *Supervisor) Started() <-chan struct{} { return s.started }

// Done is closed when the supervisor has ended; Result then says how.
func (s *Supervisor) Done() <-chan struct{} { return s.done }

// Result returns how the supervisor ended; ok is false before Done.
func (s *Supervisor) Result() (result Result, ok bool) {
	r := s.result.Load()
	if r == nil {
		return Result{}, false
	}
	return *r, true
}

// Start asks for a run of each program; what it needs is started first. It
// returns when the loop has taken or refused the requests: the joined errors are
// *Refused and *UnknownProgram, or one of ctx or ErrDone. Use Await for the
// outcome.
func (s *Supervisor) Start(ctx context.Context, names ...string) error {
	return s.each(ctx, names, s.loop.requestStart)
}

// StartAll is Start in the order of the boot: wave by wave.
func (s *Supervisor) StartAll(ctx context.Context, names ...string) error {
	return s.each(ctx, names, s.loop.requestStartAll)
}

// RunNow asks for a run of each program now, whatever a schedule says. It returns
// like Start.
func (s *Supervisor) RunNow(ctx context.Context, names ...string) error {
	return s.each(ctx, names, s.loop.requestRun)
}

// Stop asks for the end of each program, in the reverse order of their start:
// those that wait for their turn have Status.Halting. A schedule is paused. It
// returns like Start.
func (s *Supervisor) Stop(ctx context.Context, names ...string) error {
	return s.each(ctx, names, s.loop.requestStop)
}

// Restart stops each program that runs and starts it again. It returns like
// Start.
func (s *Supervisor) Restart(ctx context.Context, names ...string) error {
	return s.each(ctx, names, s.loop.requestRestart)
}

// RestartAll is Restart in the order of the box: all of the programs stop as with
// Stop, then they start as with StartAll.
func (s *Supervisor) RestartAll(ctx context.Context, names ...string) error {
	return s.each(ctx, names, s.loop.requestRestartAll)
}

// Signal sends a signal (a name, with or without "SIG", or a number) to the
// leader of each program and returns when it has been sent. Errors are those of
// Start, and what the kernel says.
func (s *Supervisor) Signal(ctx context.Context, signal string, names ...string) error {
	sent := make(chan error, len(names))
	err := s.each(ctx, names, func(e *entry) error { return s.loop.requestSignal(e, signal, sent) })
	errs := []error{err}
	for range len(names) - len(flatten(err)) {
		select {
		case err := <-sent:
			errs = append(errs, err)
		case <-ctx.Done():
			return errors.Join(append(errs, context.Cause(ctx))...)
		case <-s.done:
			return errors.Join(append(errs, ErrDone)...)
		}
	}
	return errors.Join(errs...)
}

// Shutdown asks for an orderly stop of the box and returns at once. The second
// call skips the rest of the grace, the third kills.
func (s *Supervisor) Shutdown(reason string) {
	s.in.post(func() { s.loop.requestShutdown(Cause{Kind: CauseRequested, Detail: reason}) })
}

// Await waits until the program's status satisfies until, and returns it. The
// error is ctx's, ErrDone, or *UnknownProgram when the program is not there or no
// longer.
func (s *Supervisor) Await(ctx context.Context, name string, until func(Status) bool) (Status, error) {
	watch := s.cfg.Bus.Watch(s.cfg.Bus.Seq())
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-s.done:
			cancel(ErrDone)
		case <-ctx.Done():
		}
	}()
	for {
		st, ok := s.Status(name)
		if !ok {
			return st, &UnknownProgram{Program: name}
		}
		if until(st) {
			return st, nil
		}
		if _, err := watch.Next(ctx); err != nil {
			return st, err
		}
	}
}

// each runs one request for every name on the loop.
func (s *Supervisor) each(ctx context.Context, names []string, request func(*entry) error) error {
	var errs []error
	err := s.do(ctx, func() {
		for _, name := range names {
			e, ok := s.loop.entries[name]
			if !ok {
				errs = append(errs, &UnknownProgram{Program: name})
				continue
			}
			if err := request(e); err != nil {
				errs = append(errs, err)
			}
		}
		// All requests first: what is asked for together has one order.
		s.loop.settle()
		s.loop.advance()
		s.loop.settle()
	})
	if err != nil {
		return err
	}
	return errors.Join(errs...)
}

// do runs f on the loop and waits for it.
func (s *Supervisor) do(ctx context.Context, f func()) error {
	ran := make(chan struct{})
	s.in.post(func() {
		defer close(ran)
		f()
	})
	select {
	case <-ran:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.done:
		return ErrDone
	}
}

// flatten takes joined errors apart.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}
