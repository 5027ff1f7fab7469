package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/adapters/orchestrator"
	"github.com/dreamlab-ai/agentinit/internal/lateclose"
	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
)

// agentsLog is the name under which the log plane keeps the output of all agents; the run number
// tells the agents apart. All agents share one name: names are labels of metrics, and the number of
// agents over time has no limit.
const agentsLog = "agents"

// agentDrain bounds the wait for the end of a dead agent's output. By then, only a process that
// could not be killed or was not found can still hold the pipe.
const agentDrain = 2 * time.Second

// agentRead is how much of an agent's output is read at once.
const agentRead = 32 << 10

// agents starts the orchestrator's agents as children of the one owner of
// processes.
type agents struct {
	owner  *proc.Owner
	plane  *logs.Plane  // nil: output goes only to the orchestrator
	tracer trace.Tracer // nil: no spans
	// confinements holds the confinement of each template, and under "" that of agents without a
	// template. It is set before the first start. skipped reports the parts of a sandbox that were
	// left out.
	confinements map[string]confinement
	skipped      func(template string, what error)
	refusals     *supervisor.AgentRefusals // nil: they are counted for each agent alone

	runs atomic.Uint64 // number of runs in the log plane so far
}

var _ orchestrator.Spawner = (*agents)(nil)

// agentProcess is one agent's process tree, as an orchestrator.Process.
type agentProcess struct {
	owner   *proc.Owner
	proc    proc.Process
	notices chan proc.Exit // Exited and Emptied: the reaper never waits
	refused atomic.Uint64
}

func (p *agentProcess) PID() int           { return p.proc.PID }
func (p *agentProcess) Started() time.Time { return p.proc.Started }

func (p *agentProcess) Stdin() io.WriteCloser {
	if p.proc.Stdin == nil {
		return nil
	}
	return p.proc.Stdin
}

func (p *agentProcess) Refused() uint64 { return p.refused.Load() }

func (p *agentProcess) Signal(sig syscall.Signal) error {
	return unlessGone(p.owner.Signal(p.proc.ID, sig, proc.ScopeTree))
}

func (p *agentProcess) Kill() error { return unlessGone(p.owner.Kill(p.proc.ID)) }

func unlessGone(err error) error {
	if errors.Is(err, proc.ErrNoProcess) {
		return nil
	}
	return err
}

func (a *agents) Spawn(ctx context.Context, c orchestrator.Command) (orchestrator.Process, error) {
	cmd := proc.Command{
		Path: c.Path, Args: c.Args, Env: c.Env, Dir: c.Dir, StdinPipe: c.StdinPipe,
		Scope: proc.ScopeTree,
	}
	run := a.runs.Add(1)
	skipped, err := a.confinement(c.Template).dress(&cmd, run, c.Limits)
	if err != nil {
		return nil, err
	}
	if skipped != nil && a.skipped != nil {
		a.skipped(c.Template, skipped)
	}
	out, err := a.newOutput(c.Output, run)
	if err != nil {
		return nil, err
	}
	cmd.Files = []*os.File{nil, out.write[0], out.write[1]}
	p := &agentProcess{owner: a.owner, notices: make(chan proc.Exit, 2)}
	cmd.Refused = func(x proc.Refusal) {
		p.refused.Add(1)
		if a.refusals != nil {
			a.refusals.Add(c.Agent, c.Template, x)
		}
	}
	// Past the stream of the programs' notices: an agent's end must not wait until
	// a program's start has been answered and it is known that it is not the program's.
	p.proc, err = a.owner.StartTo(cmd, func(e proc.Exit) { p.notices <- e })
	if err != nil {
		out.abandon()
		return nil, err
	}
	out.begin(p.proc.PID)
	traced := a.trace(ctx, c.Agent, p)
	go func() {
		end := p.wait(out)
		traced(end)
		c.Ended(end)
	}()
	return p, nil
}

// addLimits adds the limits that the agent's caller requested. The manifest's limits stay the upper
// bound.
func addLimits(cmd *proc.Command, l adapters.AgentLimits) {
	if cmd.Rlimits == nil {
		cmd.Rlimits = map[string]proc.Rlimit{}
	}
	for name, n := range map[string]int64{
		"as": l.MemoryBytes, "nproc": l.Processes, "nofile": l.OpenFiles, "cpu": l.CPUSeconds, "fsize": l.FileBytes,
	} {
		if n <= 0 {
			continue
		}
		limit := uint64(n)
		if bound, ok := cmd.Rlimits[name]; ok {
			limit = min(limit, bound.Hard)
		}
		cmd.Rlimits[name] = proc.Rlimit{Soft: limit, Hard: limit}
	}
}

// wait returns when no process of the agent is left and its output was handed over. Processes that
// the agent leaves running are killed.
func (p *agentProcess) wait(out *agentOutput) orchestrator.Ending {
	end := orchestrator.Ending{Signal: syscall.SIGKILL, Time: time.Now()}
	for e := range p.notices {
		if e.Kind == proc.Emptied {
			end.Leaked = e.Leaked
			break
		}
		end.Code, end.Signal, end.Time = e.Code(), e.Signal(), e.Time
		// Emptied counts the processes that cannot be killed, so the error is not needed.
		_ = p.Kill()
	}
	out.finish()
	return end
}

// agentOutput carries an agent's output to the orchestrator and, like a program's output, to the
// log plane.
type agentOutput struct {
	deliver func(orchestrator.Stream, []byte)
	read    [2]*os.File
	write   [2]*os.File // the agent's ends, until begin is called
	capture *logs.Capture
	copies  [2]*os.File // output written here is captured; nil without a log plane
	readers sync.WaitGroup
}

func (a *agents) newOutput(deliver func(orchestrator.Stream, []byte), run uint64) (*agentOutput, error) {
	o := &agentOutput{deliver: deliver}
	for s := range o.read {
		var err error
		if o.read[s], o.write[s], err = os.Pipe(); err != nil {
			o.abandon()
			return nil, fmt.Errorf("cannot make the pipe for output: %w", err)
		}
	}
	if a.plane == nil {
		return o, nil
	}
	if err := o.tee(a.plane, run); err != nil {
		o.abandon()
		return nil, err
	}
	return o, nil
}

// tee opens the capture that the copies go to. The capture closes the ends that it made itself, so
// tee keeps duplicates.
func (o *agentOutput) tee(plane *logs.Plane, run uint64) error {
	var err error
	if o.capture, err = plane.Open(logs.Options{Program: agentsLog, Run: run, To: logs.ToConsole}); err != nil {
		return err
	}
	for s, f := range []*os.File{o.capture.Stdout, o.capture.Stderr} {
		if o.copies[s], err = proc.Duplicate(f); err != nil {
			return err
		}
	}
	return nil
}

// abandon gives up the output of an agent that could not be started.
func (o *agentOutput) abandon() {
	if o.capture != nil {
		o.capture.Abandon()
	}
	for _, files := range [][2]*os.File{o.read, o.write, o.copies} {
		closePipes(files)
	}
}

func closePipes(files [2]*os.File) {
	for _, f := range files {
		if f != nil {
			_ = lateclose.Pipe{File: f}.Close()
		}
	}
}

// begin reads until the agent's ends are closed everywhere, or until finish is called.
func (o *agentOutput) begin(pid int) {
	closePipes(o.write)
	if o.capture != nil {
		o.capture.Started(pid)
	}
	for s := range o.read {
		o.readers.Go(func() { o.pump(orchestrator.Stream(s)) })
	}
}

func (o *agentOutput) pump(s orchestrator.Stream) {
	buf := make([]byte, agentRead)
	tee := o.copies[s]
	for {
		n, err := lateclose.Pipe{File: o.read[s]}.Read(buf)
		if n > 0 {
			o.deliver(s, buf[:n])
			if tee != nil {
				if _, err := tee.Write(buf[:n]); err != nil {
					tee = nil // the plane was closed: the box is ending
				}
			}
		}
		if err != nil {
			return // the end of the pipe, or the deadline set by finish
		}
	}
}

// finish reads what the ended processes have written, and closes everything.
func (o *agentOutput) finish() {
	for _, f := range o.read {
		// Without a deadline, finish would wait for a pipe that another process holds. A pipe
		// always accepts a deadline.
		_ = f.SetReadDeadline(time.Now().Add(agentDrain))
	}
	o.readers.Wait()
	closePipes(o.read)
	closePipes(o.copies)
}
