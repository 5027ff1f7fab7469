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

	// Barrier is what the next wave waits for in a wave; "" is ready.
	Barrier program.Barrier
	// StopGrace bounds a whole shutdown, drain included; 0 is program.DefaultStopGrace.
	StopGrace time.Duration
	// Drain is how long a shutdown holds before it stops the first program.
	Drain time.Duration
	// ExitWhenAllExited starts a shutdown when no program is left to run.
	ExitWhenAllExited bool
	// Seed determines the jitter of all back-offs.
	Seed uint64
}

// Supervisor runs the programs. Its methods may be called from any goroutine, before, during and
// after Run.
type Supervisor struct {
	cfg  Config
	in   *inbox
	done chan struct{} // closed when Run is about to return

	order   atomic.Pointer[[]*entry] // in start order, for Snapshot
	index   atomic.Pointer[map[string]*entry]
	phase   atomic.Pointer[Phase]
	awaited atomic.Pointer[entry] // see Snapshot.Awaited
	started chan struct{}         // closed when every wave was started and is settled
	ending  chan struct{}         // closed when a shutdown begins
	result  atomic.Pointer[Result]
	applies chan struct{} // a token: one apply at a time

	loop loop
}

// New returns a supervisor of specs that has started no program. The error is one of program.Waves,
// or names the schedule that cannot be parsed.
func New(cfg Config, specs []program.Spec) (*Supervisor, error) {
	if cfg.Processes == nil || cfg.Bus == nil {
		return nil, errors.New("supervisor: Processes and Bus are required")
	}
	cfg.Barrier = cmp.Or(cfg.Barrier, program.BarrierReady)
	cfg.StopGrace = cmp.Or(cfg.StopGrace, program.DefaultStopGrace)
	s := &Supervisor{
		cfg: cfg, in: newInbox(), done: make(chan struct{}), started: make(chan struct{}),
		ending: make(chan struct{}), applies: make(chan struct{}, 1),
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

// Snapshot returns the state of all programs. It never waits.
func (s *Supervisor) Snapshot() Snapshot {
	snap := Snapshot{Seq: s.cfg.Bus.Seq(), Time: time.Now(), Phase: *s.phase.Load()}
	if e := s.awaited.Load(); e != nil {
		snap.Awaited = e.status.Load().Name
	}
	order := *s.order.Load()
	snap.Programs = make([]Status, len(order))
	for i, e := range order {
		snap.Programs[i] = *e.status.Load()
	}
	return snap
}

// Status returns one program. It never waits.
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

// Ping returns when the loop has answered. Its error is ctx's, or ErrDone.
func (s *Supervisor) Ping(ctx context.Context) error { return s.do(ctx, func() {}) }

// Boot starts the programs with autostart, wave by wave. It returns at once; Started tells when the
// last wave is settled.
func (s *Supervisor) Boot() { s.in.post(s.loop.boot) }

// Started is closed when Boot has started every wave and each program of the last wave has passed
// the barrier or given up.
func (s *Supervisor) Started() <-chan struct{} { return s.started }

// Ending is closed as soon as a shutdown begins, whatever its cause, or the supervisor fails. A reader of
// events that is behind may miss the event about it.
func (s *Supervisor) Ending() <-chan struct{} { return s.ending }

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

// Start requests a run of each program; the programs that it needs start first. It returns when the
// loop has taken or refused the requests. The joined errors are *Refused and *UnknownProgram, or
// one of ctx or ErrDone. Use Await for the outcome.
func (s *Supervisor) Start(ctx context.Context, names ...string) error {
	return s.each(ctx, names, s.loop.requestStart)
}

// StartAll is Start in the order of the boot: wave by wave.
func (s *Supervisor) StartAll(ctx context.Context, names ...string) error {
	return s.each(ctx, names, s.loop.requestStartAll)
}

// RunNow requests a run of each program now, even for a schedule. It returns like Start.
func (s *Supervisor) RunNow(ctx context.Context, names ...string) error {
	return s.each(ctx, names, s.loop.requestRun)
}

// Stop requests the end of each program, in the reverse order of their start. Programs that wait
// for their turn have Status.Halting. A schedule is paused. It returns like Start.
func (s *Supervisor) Stop(ctx context.Context, names ...string) error {
	return s.each(ctx, names, s.loop.requestStop)
}

// Restart stops each program that runs and starts it again. It returns like
// Start.
func (s *Supervisor) Restart(ctx context.Context, names ...string) error {
	return s.each(ctx, names, s.loop.requestRestart)
}

// RestartAll is Restart in the order of the box: all the programs stop as with Stop, then they
// start as with StartAll.
func (s *Supervisor) RestartAll(ctx context.Context, names ...string) error {
	return s.each(ctx, names, s.loop.requestRestartAll)
}

// Signal sends a signal (a name, with or without "SIG", or a number) to the leader of each program.
// It returns when the signal was sent. Its errors are those of Start, and those of the kernel.
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

// Shutdown requests an orderly stop of the box and returns at once. The second call skips the rest
// of the grace; the third kills.
func (s *Supervisor) Shutdown(reason string) {
	s.in.post(func() { s.loop.requestShutdown(Cause{Kind: CauseRequested, Detail: reason}) })
}

// Fail begins the shutdown because the box cannot go on, and returns at once. code is the box's exit
// status.
func (s *Supervisor) Fail(reason string, code int) {
	s.in.post(func() { s.loop.shutDown(Cause{Kind: CauseFailed, Detail: reason, Code: code}) })
}

// Await waits until the function until accepts the program's status, and returns that status. The
// error is ctx's, ErrDone, or *UnknownProgram if the program does not exist or was removed.
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
			// The reason why a program is not ready yet can change without an event.
			if now, ok := s.Status(name); ok {
				st = now
			}
			return st, err
		}
	}
}

// each runs one request for each name on the loop.
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
		// All requests first, because requests made together share one order.
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

// flatten splits joined errors.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}
