package control

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// recentEvents is how many events an explanation ends with.
const recentEvents = 10

func getWhy(s *Server, r *http.Request) (any, error) {
	snap := s.cfg.Supervisor.Snapshot()
	p, err := resolveOne(r.URL.Query().Get("name"), snap.Programs)
	if err != nil {
		return nil, err
	}
	why := explain(p, snap)
	why.Recent, err = s.recent(p.Name)
	return why, err
}

func (s *Server) recent(name string) ([]api.Event, error) {
	last := s.cfg.Events.Seq()
	var out []api.Event
	for w := s.cfg.Events.Watch(0); ; {
		e, ok := w.TryNext()
		if !ok || e.Seq > last {
			return out, nil
		}
		if e.Program != name {
			continue
		}
		wire, err := toEvent(e)
		if err != nil {
			return nil, err
		}
		if len(out) == recentEvents {
			out = append(out[:0], out[1:]...)
		}
		out = append(out, wire)
	}
}

// explain says why a program is in the state it is in.
func explain(p supervisor.Status, snap supervisor.Snapshot) api.Why {
	why := api.Why{
		Program: toProgram(p), Time: snap.Time,
		Summary: summary(p, snap.Time), Next: next(p, snap.Time),
	}
	for _, other := range snap.Programs {
		if other.Spec != nil && slices.ContainsFunc(other.Spec.Needs, func(n program.Need) bool { return n.Program == p.Name }) {
			why.Dependents = append(why.Dependents, other.Name)
		}
	}
	if p.Spec != nil {
		for _, n := range p.Spec.Needs {
			why.Needs = append(why.Needs, explainNeed(n, snap.Programs))
		}
	}
	return why
}

func explainNeed(n program.Need, programs []supervisor.Status) api.WhyNeed {
	out := api.WhyNeed{Program: n.Program, Condition: string(n.Condition)}
	for _, p := range programs {
		if p.Name == n.Program {
			out.State, out.Reason, out.Met = p.State.String(), p.Reason, met(n.Condition, p)
		}
	}
	return out
}

func met(c program.Condition, p supervisor.Status) bool {
	switch c {
	case program.NeedStarted:
		return p.PID != 0 || p.Completed
	case program.NeedCompleted:
		return p.Completed
	}
	return p.State == program.Running && p.Ready || p.Completed
}

func summary(p supervisor.Status, now time.Time) string {
	text := fmt.Sprintf("%s has been %s for %s", p.Name, p.State, api.Duration(now.Sub(p.Since)))
	switch {
	case p.State == program.Running && !p.Ready:
		return text + ", but is not ready" + awaited(p)
	case p.State == program.Running && !p.Healthy:
		return text + ", but is not healthy" + because(p)
	case p.State == program.Running:
		return text + " and is ready"
	case p.Completed:
		return text + ": it completed"
	}
	return text + ": " + reasonOf(p)
}

// awaited says what a program that is not ready has declared.
func awaited(p supervisor.Status) string {
	if p.Reason != "" {
		return ": " + p.Reason
	}
	if p.Spec == nil || len(p.Spec.Readiness.Probes) == 0 {
		return ""
	}
	parts := make([]string, len(p.Spec.Readiness.Probes))
	for i, probe := range p.Spec.Readiness.Probes {
		parts[i] = probeText(probe)
	}
	joint := " and "
	if p.Spec.Readiness.Any {
		joint = " or "
	}
	return ": it declares readiness by " + strings.Join(parts, joint)
}

func probeText(p program.Probe) string {
	switch {
	case p.Notify:
		return "READY=1 on its notify socket"
	case p.FD != 0:
		return fmt.Sprintf("a newline on descriptor %d", p.FD)
	case p.HTTP != "":
		return "HTTP " + p.HTTP
	case p.TCP != "":
		return "TCP " + p.TCP
	case p.Unix != "":
		return "the socket " + p.Unix
	case p.GRPC != "":
		return "gRPC health of " + p.GRPC
	case len(p.Exec) > 0:
		return "the command " + strings.Join(p.Exec, " ")
	case p.Log != "":
		return fmt.Sprintf("a line of output that matches %q", p.Log)
	}
	return "the file " + p.File
}

// next says what happens without a further request.
func next(p supervisor.Status, now time.Time) string {
	in := ""
	if p.Deadline != nil {
		in = " in " + api.Duration(max(0, p.Deadline.Sub(now)))
	}
	switch p.State {
	case program.Backoff:
		return "it is started again" + in
	case program.Starting:
		if in != "" {
			return "unless it is RUNNING by itself, the supervisor decides about this start" + in
		}
	case program.Stopping:
		if in != "" {
			return "the next step of its stop ladder comes" + in
		}
	case program.Fatal:
		return "nothing: it stays FATAL until somebody starts it"
	case program.Exited, program.Stopped:
		if p.Spec != nil && p.Spec.Type == program.Schedule && in != "" {
			return "its schedule starts it" + in
		}
		if in != "" {
			return "the supervisor acts" + in
		}
		if !p.Completed {
			return "nothing: it stays so until somebody starts it, or what it waits for comes about"
		}
	}
	return ""
}
