package supervisor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/highfd"
	"github.com/dreamlab-ai/agentinit/internal/lateclose"
	"github.com/dreamlab-ai/agentinit/internal/signame"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
	"github.com/dreamlab-ai/agentinit/supervisor/ready"
)

var (
	_ Processes  = (*System)(nil)
	_ Prober     = (*System)(nil)
	_ HookRunner = (*System)(nil)
)

// SystemConfig is what a System works with. Owner, Logs and Bus are required.
type SystemConfig struct {
	Owner *proc.Owner
	Logs  *logs.Plane
	Bus   *event.Bus
	// NotifyDir is the directory for the sd_notify socket if abstract sockets cannot be used; ""
	// means that there is none.
	NotifyDir string
}

// System is the implementation behind the loop: real processes, their output in the log plane,
// probes and hooks. It reads the owner's stream of exits. No other code may start processes whose
// exits go to that stream: see proc.Owner.StartTo. All methods may be called from any goroutine.
type System struct {
	cfg      SystemConfig
	notifier *ready.Notifier
	watcher  *ready.Watcher
	notices  chan Notice
	stop     chan struct{}
	stopped  sync.WaitGroup
	draining sync.WaitGroup // crash records that wait for their last lines
	unheard  event.Throttle // refused notifications
	unasked  event.Throttle // health checks that could not be made

	mu        sync.Mutex
	runs      map[runKey]*systemRun
	byID      map[uint64]*systemRun
	starting  map[*systemRun]time.Time // starts whose id is not known yet, with the time of their start
	answered  chan struct{}            // closed when a start has returned; nil if no goroutine waits for that
	parked    []proc.Exit              // notices that may belong to one of these starts
	strangers map[uint64]bool          // processes that belong to no start
	crashes   map[string]*Crash
	refusals  tallies
	oom       *oomWatch
	waiting   []Notice                 // notices that wait for room in the channel
	spent     map[string]time.Duration // CPU time of ended runs
	held      map[string]int           // by program: how many ended runs have pipes that a process holds
}

type runKey struct {
	name string
	run  uint64
}

// systemRun is one run from its exec until none of its processes is left.
type systemRun struct {
	key     runKey // with the program's present name; System.mu
	born    runKey // with the program's name when the run began: probes and notices use that name
	renamed bool   // System.runs has the run under its former names too; System.mu
	spec    *program.Spec
	proc    proc.Process
	capture *logs.Capture
	readyFD *os.File // read end of an fd probe's pipe, until a watch takes it
	// watched is closed when the watch has closed readyFD; nil if no watch has taken it.
	watched chan struct{}
	report  func(Report)
	untold  map[ReportKind]Report // see tell; System.mu
	// forgotten says that the program was removed before this run ended. System.mu guards it.
	forgotten bool
	// asked says that the end of the run was requested. System.mu guards it.
	asked bool
	// stopWhy is why agentinit began to stop the run, unless that was requested. System.mu guards it.
	stopWhy string
	following
}

// NewSystem begins to read the owner's exits. If the notification socket cannot be made, it
// publishes an event and returns no error, because everything else works without that socket.
func NewSystem(cfg SystemConfig) *System {
	s := &System{
		cfg: cfg, notices: make(chan Notice, 256), stop: make(chan struct{}),
		runs: make(map[runKey]*systemRun), byID: make(map[uint64]*systemRun),
		starting: make(map[*systemRun]time.Time), strangers: make(map[uint64]bool),
		crashes: make(map[string]*Crash), refusals: tallies{}, oom: newOOMWatch("/"), spent: make(map[string]time.Duration),
		held: make(map[string]int),
	}
	var err error
	s.notifier, err = ready.Listen(ready.NotifierConfig{
		Resolve: s.resolve, Dir: cfg.NotifyDir, Deliver: s.heard, Refuse: s.refused,
	})
	if err != nil {
		s.notifier = nil
		s.warn(event.NotifySocketUnavailable, "", map[string]any{"error": err.Error()})
	}
	s.watcher = ready.New(ready.Config{Notifier: s.notifier, Logs: cfg.Logs, Exec: s.execProbe, Unasked: s.notAsked})
	s.stopped.Go(s.readExits)
	return s
}

// Close closes the notification socket and stops reading exits. Processes keep running.
func (s *System) Close() error {
	s.mu.Lock() // so that send cannot start move while Close waits for it
	close(s.stop)
	s.mu.Unlock()
	s.stopped.Wait()
	s.draining.Wait()
	s.oom.close()
	if s.notifier == nil {
		return nil
	}
	return s.notifier.Close()
}

func (s *System) warn(name, about string, fields map[string]any) {
	s.cfg.Bus.Publish(event.Event{Level: event.Warn, Stage: stage, Name: name, Program: about, Fields: fields})
}

// Notices implements Processes.
func (s *System) Notices() <-chan Notice { return s.notices }

// Start implements Processes.
func (s *System) Start(spec *program.Spec, run uint64) (int, error) {
	key := runKey{spec.Name, run}
	r := &systemRun{key: key, born: key, spec: spec}
	s.mu.Lock()
	held := s.held[spec.Name]
	s.mu.Unlock()
	if held += s.cfg.Logs.Held(spec.Name); held >= mostHeld {
		return 0, fmt.Errorf("%d pipes of earlier runs cannot be closed, because processes hold them (splice(2))", held)
	}
	cmd, err := command(spec)
	if err != nil {
		return 0, err
	}
	skipped, err := Confine(&cmd, spec.Sandbox)
	if err != nil {
		return 0, err
	}
	if skipped != nil {
		s.warn(event.SandboxNotApplied, spec.Name, map[string]any{"reason": skipped.Error()})
	}
	cmd.Refused = s.tally(r)
	r.notifies = s.notifier != nil && wantsNotify(spec)
	childEnds, err := s.equip(r, &cmd)
	defer closeAll(childEnds)
	if err != nil {
		s.drop(r)
		return 0, err
	}
	s.mu.Lock()
	s.starting[r] = time.Now()
	s.mu.Unlock()
	r.proc, err = s.cfg.Owner.Start(cmd)
	if err == nil && spec.TTY {
		// The capture of a terminal needs the terminal's master, which exists only now. If the
		// capture fails, the program still runs; an event reports that its output is lost.
		var lost error
		if r.capture, lost = s.cfg.Logs.Open(logOptions(spec, run, r.proc.TTY)); lost != nil {
			s.warn(event.LogCaptureFailed, spec.Name, map[string]any{"error": lost.Error()})
		}
	}
	if err == nil && r.capture != nil {
		r.capture.Started(r.proc.PID)
	}
	s.register(r, err == nil)
	if err != nil {
		s.drop(r)
		return 0, err
	}
	return r.proc.PID, nil
}

// equip gives the command its descriptors. It returns the child's ends, which agentinit closes once
// the program runs.
func (s *System) equip(r *systemRun, cmd *proc.Command) (childEnds []*os.File, err error) {
	spec := r.spec
	cmd.Files = make([]*os.File, 3)
	if spec.Stdin == program.StdinInherit {
		cmd.Files[0] = os.Stdin
	}
	if !spec.TTY {
		if r.capture, err = s.cfg.Logs.Open(logOptions(spec, r.born.run, nil)); err != nil {
			return nil, err
		}
		cmd.Files[1], cmd.Files[2] = r.capture.Stdout, r.capture.Stderr
	}
	if r.notifies {
		cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+s.notifier.Address())
		if d := spec.Health.Watchdog; d > 0 {
			cmd.Env = append(cmd.Env, fmt.Sprintf("WATCHDOG_USEC=%d", d.Microseconds()))
		}
	}
	for _, p := range spec.Readiness.Probes {
		fd := p.Descriptor()
		if fd < 3 {
			continue
		}
		var w *os.File
		if r.readyFD, w, err = os.Pipe(); err != nil {
			return nil, fmt.Errorf("cannot make the readiness pipe: %w", err)
		}
		r.readyFD = highfd.File(r.readyFD)
		for len(cmd.Files) <= fd {
			cmd.Files = append(cmd.Files, nil)
		}
		cmd.Files[fd] = w
		return []*os.File{w}, nil
	}
	return nil, nil
}

func logOptions(spec *program.Spec, run uint64, pty *os.File) logs.Options {
	l := spec.Logs
	return logs.Options{
		Program: spec.Name, Run: run, To: logs.To(l.To), PTY: pty, Path: l.Path, StderrPath: l.StderrPath,
		MaxBytes: l.MaxBytes, Every: l.Every, At: l.At, Backups: l.Backups, MaxAge: l.MaxAge,
		Compress: logs.Compression(l.Compress), TotalBytes: l.TotalBytes,
		Rate:    logs.Rate{Lines: l.RateLines, Bytes: l.RateBytes, Interval: l.RateInterval},
		MaxLine: l.MaxLine, FlushAfter: l.FlushAfter,
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = lateclose.Pipe{File: f}.Close() // closing a terminal loses no data either
	}
}

// mostHeld is how many pipes of a program a process may hold when it starts again. Each occupies a thread of
// agentinit.
const mostHeld = 4

// drop closes what a run holds in addition to its process. It does not wait for that, because a process can
// hold a pipe of the program: see lateclose.Masked.
func (s *System) drop(r *systemRun) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(r)
}

// dropLocked is drop for a caller that holds mu.
func (s *System) dropLocked(r *systemRun) {
	if r.capture != nil && (r.spec.Kill != program.KillProcess || r.proc.ID == 0) {
		r.capture.Abandon()
	}
	files := slices.DeleteFunc([]*os.File{r.readyFD, r.proc.Stdin, r.proc.TTY, r.proc.Slave}, func(f *os.File) bool { return f == nil })
	if len(files) == 0 && r.watched == nil {
		return
	}
	s.held[r.born.name]++
	go func() {
		closeAll(files)
		if r.watched != nil {
			<-r.watched
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[r.born.name]--; s.held[r.born.name] == 0 {
			delete(s.held, r.born.name)
		}
	}()
}

// register makes a started run known and delivers the notices that came before.
func (s *System) register(r *systemRun, started bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.starting, r)
	if s.answered != nil {
		close(s.answered)
		s.answered = nil
	}
	if started {
		r.main = r.proc.PID
		s.runs[r.key], s.byID[r.proc.ID] = r, r
	}
	parked := s.parked
	s.parked = nil
	for _, e := range parked {
		s.route(e)
	}
}

var scopes = map[program.KillScope]proc.Scope{
	program.KillTree: proc.ScopeTree, program.KillGroup: proc.ScopeGroup, program.KillProcess: proc.ScopeProcess,
}

// SignalSoon implements Processes. Signal says what is wrong with a request.
func (s *System) SignalSoon(requests []SignalRequest) []bool {
	known := make([]proc.SignalRequest, len(requests)) // without an ID, the Owner sends none
	for i, r := range requests {
		known[i], _, _ = s.request(r)
	}
	return s.cfg.Owner.SignalSoon(known)
}

// Signal implements Processes. It is no error if no process is left in the tree or group.
func (s *System) Signal(r SignalRequest) error {
	req, known, err := s.request(r)
	if err != nil || !known {
		return err
	}
	err = s.cfg.Owner.SignalAsked(req)
	if r.Scope != program.KillProcess && errors.Is(err, proc.ErrNoProcess) {
		return nil
	}
	return err
}

// request is r as the Owner takes it. known is false for a run that is not known.
func (s *System) request(r SignalRequest) (req proc.SignalRequest, known bool, err error) {
	sig, err := signame.Parse(r.Signal)
	if err != nil {
		return proc.SignalRequest{}, false, err
	}
	id, known := s.id(r.Program, r.Run)
	return proc.SignalRequest{ID: id, Signal: sig, Scope: scopes[r.Scope], Asked: r.Asked}, known, nil
}

// Kill implements Processes.
func (s *System) Kill(name string, run uint64) error {
	id, ok := s.id(name, run)
	if !ok {
		return nil
	}
	if err := s.cfg.Owner.Kill(id); !errors.Is(err, proc.ErrNoProcess) {
		return err
	}
	return nil
}

func (s *System) id(name string, run uint64) (uint64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.runs[runKey{name, run}]
	if r == nil {
		return 0, false
	}
	return r.proc.ID, true
}

// Stopping implements Processes. A run that is not known yet was not sent a signal either.
func (s *System) Stopping(name string, run uint64, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[runKey{name, run}]; r != nil {
		r.asked, r.stopWhy = r.asked || why == "", why
	}
}

// Rename implements Processes. Output keeps the name that the program had at the time: see
// Status.Names.
func (s *System) Rename(was, name string) {
	s.mu.Lock()
	for key, r := range maps.Clone(s.runs) {
		if r.key.name == was {
			r.key.name, r.renamed = name, true
			s.runs[runKey{name, key.run}] = r
		}
	}
	if c, ok := s.crashes[was]; ok {
		c.Program = name
		s.crashes[name] = c
		delete(s.crashes, was)
	}
	s.refusals.rename(was, name)
	s.spent[name] += s.spent[was]
	delete(s.spent, was)
	s.mu.Unlock()
}

// Forget implements Processes: it removes the program's output, crash record and CPU time. Runs
// that still exist belong to the removed program, because a program of the same name starts only
// after Forget.
func (s *System) Forget(name string) {
	s.mu.Lock()
	delete(s.crashes, name)
	delete(s.spent, name)
	delete(s.refusals, name)
	names := []string{name}
	for key, r := range s.runs {
		if key.name == name {
			r.forgotten = true
			names = append(names, r.born.name)
		}
	}
	s.mu.Unlock()
	s.cfg.Logs.Remove(name)
	if s.notifier != nil {
		for _, name := range names {
			s.notifier.Forget(name)
		}
	}
}

// Usage returns what the program's processes of this run use now; Members is 0 if there are none.
// CPU covers all runs. For since see proc.Owner.Usage.
func (s *System) Usage(name string, run uint64, since time.Time) proc.Usage {
	// Read under one lock: a run that ends meanwhile may be missed for a moment, but is never
	// counted twice.
	s.mu.Lock()
	spent, r := s.spent[name], s.runs[runKey{name, run}]
	s.oom.look(time.Now())
	s.mu.Unlock()
	var u proc.Usage
	if r != nil {
		if now, err := s.cfg.Owner.Usage(r.proc.ID, since); err == nil {
			u = now
		}
	}
	u.CPU += spent
	return u
}

// Bounds are the limits of processes and memory of the program's run; a run that has ended has none.
func (s *System) Bounds(name string, run uint64) []proc.Bound {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[runKey{name, run}]; r != nil {
		return r.proc.Bounds
	}
	return nil
}

// Processes lists the living processes of a run, the leader first. For since see proc.Owner.Usage.
func (s *System) Processes(name string, run uint64, since time.Time) []proc.Member {
	s.mu.Lock()
	r := s.runs[runKey{name, run}]
	s.mu.Unlock()
	if r == nil {
		return nil
	}
	list, err := s.cfg.Owner.Tree(r.proc.ID, since)
	if err != nil {
		return nil // the run has ended meanwhile
	}
	return list
}
