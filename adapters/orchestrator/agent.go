package orchestrator

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/internal/signame"
)

// shownCommand is how many bytes of an agent's command line are kept to be
// shown: a thousand ended agents may have had a megabyte each.
const shownCommand = 16 << 10

// agent is one agent from its start until it is forgotten.
type agent struct {
	id     string
	number uint64 // counts the manager's agents; for their order
	token  string // proves to the box's API which agent calls
	events *ring
	// settled is closed when the start has succeeded or failed. done is closed when the exit event
	// is in the ring, or when the start has failed.
	settled, done chan struct{}
	rest          [2][]byte // by stream: the beginning of a cut rune; owned by its reader

	mu      sync.Mutex
	view    adapters.Agent
	proc    Process // nil until started
	in      *input  // nil without an open standard input
	asked   time.Time
	timeout *time.Timer // nil without a limit

	shown int // bytes of the ended agent in a list, as JSON: labels and arguments are chosen by the caller

	gone time.Time // when it ended; owned by the manager's mu
}

func newAgent(spec adapters.AgentSpec) *agent {
	id := adapters.NewID()
	a := &agent{
		id: id, token: newToken(), events: newRing(id), settled: make(chan struct{}), done: make(chan struct{}),
		view: adapters.Agent{
			AgentID: id, Name: spec.Name, Command: shown(spec), Labels: maps.Clone(spec.Labels),
		},
	}
	if a.view.Labels == nil {
		a.view.Labels = map[string]string{}
	}
	return a
}

// shown is the command line, cut where it gets long.
func shown(spec adapters.AgentSpec) []string {
	room := shownCommand
	out := make([]string, 0, 1+len(spec.Args))
	for _, arg := range append([]string{spec.Command}, spec.Args...) {
		if len(arg) > room {
			cut := room
			for cut > 0 && !utf8.RuneStart(arg[cut]) {
				cut--
			}
			arg = arg[:cut] + "…"
		}
		room -= min(room, len(arg))
		out = append(out, arg)
		if room == 0 {
			break
		}
	}
	return out
}

// snapshot is the agent as the contract shows it. It is not changed afterwards.
func (a *agent) snapshot() adapters.Agent {
	a.mu.Lock()
	defer a.mu.Unlock()
	v := a.view
	v.Labels = maps.Clone(v.Labels)
	if a.proc != nil {
		v.RefusedCalls = a.proc.Refused()
	}
	return v
}

// started makes the agent known as running.
func (a *agent) started(p Process, spec adapters.AgentSpec) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.proc = p
	a.view.PID, a.view.StartedAt, a.view.Status = p.PID(), adapters.At(p.Started()), adapters.AgentRunning
	if w := p.Stdin(); w != nil {
		a.in = newInput(w, spec.Stdin, spec.StdinOpen)
		go a.in.feed()
	}
	if spec.TimeoutS > 0 {
		a.timeout = time.AfterFunc(time.Duration(spec.TimeoutS)*time.Second, func() { a.expire(spec.TimeoutS) })
	}
	a.events.append(adapters.AgentEventStarted, mustJSON(map[string]int{"pid": a.view.PID}))
	close(a.settled)
}

// printed takes what a stream's reader read. Output may come before started has
// been called; the first event is always "started".
func (a *agent) printed(s Stream, data []byte) {
	<-a.settled
	whole := append(a.rest[s], data...)
	cut := len(whole) - cutRune(whole)
	a.rest[s] = append([]byte(nil), whole[cut:]...)
	if cut > 0 {
		a.events.append(streamKind(s), append([]byte(nil), whole[:cut]...))
	}
}

func streamKind(s Stream) string {
	if s == Stderr {
		return adapters.AgentEventStderr
	}
	return adapters.AgentEventStdout
}

// cutRune is how many bytes at the end begin a rune that goes on elsewhere.
func cutRune(b []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if last := b[len(b)-i:]; utf8.RuneStart(last[0]) {
			if utf8.FullRune(last) {
				return 0
			}
			return i
		}
	}
	return 0
}

// ended records the end and publishes it as the last event.
func (a *agent) ended(e Ending) {
	<-a.settled
	for s, rest := range a.rest {
		if len(rest) > 0 {
			a.events.append(streamKind(Stream(s)), rest)
		}
	}
	a.mu.Lock()
	if a.timeout != nil {
		a.timeout.Stop()
	}
	if a.in != nil {
		a.in.close()
	}
	exit := struct {
		Code   *int                `json:"code"`
		Signal adapters.NullString `json:"signal"`
	}{}
	if e.Signal != 0 {
		exit.Signal = adapters.NullString("SIG" + signame.Of(e.Signal))
	} else {
		exit.Code = &e.Code
	}
	// What ends at once may be reaped before the start has been noted.
	if started := a.view.StartedAt.Time; e.Time.Before(started) {
		e.Time = started
	}
	a.view.ExitCode, a.view.Signal, a.view.EndedAt = exit.Code, exit.Signal, adapters.At(e.Time)
	switch {
	case !a.asked.IsZero() && !e.Time.Before(a.asked):
		a.view.Status = adapters.AgentTerminated
	case e.Signal == 0 && e.Code == 0:
		a.view.Status = adapters.AgentExited
	default:
		a.view.Status = adapters.AgentFailed
	}
	a.mu.Unlock()
	if e.Leaked > 0 {
		a.fault(adapters.CodeInternal, fmt.Sprintf("%d processes could not be killed", e.Leaked))
	}
	a.events.append(adapters.AgentEventExit, mustJSON(exit))
}

func (a *agent) fault(code adapters.Code, message string) {
	a.events.append(adapters.AgentEventError, mustJSON(map[string]string{"code": string(code), "message": message}))
}

// expire ends an agent that has used up its time. No request asked for that, so it
// has failed.
func (a *agent) expire(seconds int) {
	a.fault(adapters.CodeTimeout, fmt.Sprintf("still running after %d s", seconds))
	a.end(adapters.DefaultGrace)
}

// terminate asks the agent to end and returns when it has ended, or when ctx ends. Then the stop
// goes on without the caller.
func (a *agent) terminate(ctx context.Context, grace time.Duration) error {
	a.mu.Lock()
	if a.asked.IsZero() {
		a.asked = time.Now()
	}
	a.mu.Unlock()
	kill := a.end(grace)
	select {
	case <-a.done:
		kill.Stop()
		return nil
	case <-ctx.Done():
		return adapters.AsError(ctx.Err())
	}
}

// end sends TERM and, after grace, KILL. The timer is the KILL's.
func (a *agent) end(grace time.Duration) *time.Timer {
	a.mu.Lock()
	p := a.proc
	a.mu.Unlock()
	kill := func() {
		// What cannot be killed is counted by Ending.Leaked.
		_ = p.Kill()
	}
	if grace <= 0 {
		kill()
	} else {
		// If TERM is refused, nothing is lost: KILL follows. A stopped process must run to handle
		// TERM.
		_ = p.Signal(syscall.SIGTERM)
		_ = p.Signal(syscall.SIGCONT)
	}
	return time.AfterFunc(max(grace, 0), kill)
}
