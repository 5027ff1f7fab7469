package control

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// recentEvents is how many events an explanation shows at its end.
const recentEvents = 10

func getWhy(s *Server, r *http.Request) (any, error) {
	snap := s.cfg.Supervisor.Snapshot()
	p, err := resolveOne(r.URL.Query().Get("name"), snap.Programs)
	if err != nil {
		return nil, err
	}
	why := explain(p, snap, s.manifestFile())
	if troubled(p) {
		why.Output = s.lastOutput(r.Context(), p)
	}
	why.Program.LogTrouble = s.logTroubles()[p.Name]
	why.LogTrouble = why.Program.LogTrouble
	why.Refused = s.refusals(p.Name)
	why.Program.Refused = s.refusedCalls(p.Name)
	why.Recent, err = s.recent(p.Name)
	return why, err
}

// manifestFile is the path of the manifest, or "" if it is not known.
func (s *Server) manifestFile() string {
	return s.cfg.Boot.Boot().Manifest
}

func (s *Server) recent(name string) ([]api.Event, error) {
	var out []api.Event
	err := heldEvents(s.cfg.Events.Watch(0), s.cfg.Events.Seq(), func(e event.Event) error {
		if e.Program != name {
			return nil
		}
		wire, err := toEvent(e)
		if err != nil {
			return err
		}
		if len(out) == recentEvents {
			out = append(out[:0], out[1:]...)
		}
		out = append(out, wire)
		return nil
	})
	return out, err
}

// explain says why a program is in the state it is in.
func explain(p supervisor.Status, snap supervisor.Snapshot, manifest string) api.Why {
	why := api.Why{
		Program: toProgram(p), Time: snap.Time,
		Summary: summary(p, snap.Time), Next: next(p, snap.Time), Ending: ending(p), Ready: p.Spec.ReadyBy(), Do: advice(p, snap.Programs, manifest),
	}
	for _, other := range snap.Programs {
		if other.Spec != nil && slices.ContainsFunc(other.Spec.Needs, func(n program.Need) bool { return n.Program == p.Name }) {
			why.Dependents = append(why.Dependents, other.Name)
		}
	}
	why.Needs = explainNeeds(p, snap.Programs, map[string]bool{p.Name: true})
	if first := snap.Awaited; first != "" && p.Queued && p.Schedule == nil && !slices.ContainsFunc(why.Needs, func(n api.WhyNeed) bool { return !n.Met }) {
		why.Next = "agentinit starts it when " + first + " is ready, has given up or exceeds its start_timeout"
		why.Do = append([]string{"agentctl why " + first}, why.Do...)
	}
	return why
}

// explainNeeds explains what p needs, and what an unmet need waits for itself. told holds the
// programs that are already explained.
func explainNeeds(p supervisor.Status, programs []supervisor.Status, told map[string]bool) []api.WhyNeed {
	if p.Spec == nil {
		return nil
	}
	var out []api.WhyNeed
	for _, n := range p.Spec.Needs {
		need := api.WhyNeed{Program: n.Program, Condition: string(n.Condition)}
		for _, other := range programs {
			if other.Name != n.Program {
				continue
			}
			need.State, need.Reason, need.Met = other.Shown(), other.Reason, n.Condition.Met(&other)
			if !need.Met && !told[other.Name] {
				told[other.Name] = true
				need.Needs = unmet(explainNeeds(other, programs, told))
			}
		}
		out = append(out, need)
	}
	return out
}

func unmet(needs []api.WhyNeed) []api.WhyNeed {
	return slices.DeleteFunc(needs, func(n api.WhyNeed) bool { return n.Met })
}

func summary(p supervisor.Status, now time.Time) string {
	text := fmt.Sprintf("%s has been %s for %s", p.Name, p.Shown(), api.Duration(now.Sub(p.Since)))
	switch {
	case p.State == program.Running && !p.Ready:
		return text + ", but is not ready" + awaited(p)
	case p.State == program.Running && !p.Healthy:
		p.Reason = strings.TrimPrefix(p.Reason, "unhealthy: ")
		return text + ", but is not healthy" + because(p)
	case p.State == program.Running:
		return text + " and is ready"
	}
	return text + ": " + reasonOf(p)
}

// awaited says which declared readiness a program has not reached.
func awaited(p supervisor.Status) string {
	if p.Reason != "" {
		return ": " + p.Reason
	}
	if text := p.Spec.ReadyBy(); text != "" {
		return ": it declares readiness by " + text
	}
	return ""
}

// next says what happens without a further request.
func next(p supervisor.Status, now time.Time) string {
	in := ""
	if p.Deadline != nil {
		in = " in " + api.Duration(max(0, p.Deadline.Sub(now)))
	}
	switch p.State {
	case program.Backoff:
		return "agentinit starts it again" + in
	case program.Starting:
		goal := "it is RUNNING"
		switch {
		case p.EndedAt != nil: // a deadline is only that of the next KILL for the run before
			return "agentinit starts it when all processes of its last run are gone"
		case p.Hook == program.PreStart:
			goal = "its pre_start hook has ended"
		case p.Spec != nil && (p.Spec.Type == program.Oneshot || p.Spec.Type == program.Schedule):
			goal = "it has completed"
		}
		if in != "" {
			return "within" + strings.TrimPrefix(in, " in") + " " + goal + ", or this start has failed"
		}
	case program.Stopping:
		if in != "" {
			return "agentinit takes the next step of its stop, such as KILL," + in + " at the latest" // the end of a hook, a command or a step of the ladder
		}
	}
	if p.Schedule != nil {
		return nextRun(p, now)
	}
	switch {
	case p.State == program.Fatal:
		return "it stays FATAL until a start is asked for"
	case p.Blocked:
		return "what it needs does not start by itself; a start of this program starts that, too"
	case p.Completed:
		return ""
	case p.Queued:
		return "agentinit starts it when its turn comes and what it needs holds"
	case p.State == program.Exited && p.Spec != nil && p.Spec.Type == program.Service && p.Spec.Kill != program.KillProcess:
		return "it starts when a start is asked for; any process that it left in the background has been killed"
	case p.State == program.Exited, p.State == program.Stopped:
		return "it starts when a start is asked for"
	}
	return ""
}

// nextRun says when a schedule runs next.
func nextRun(p supervisor.Status, now time.Time) string {
	s := p.Schedule
	switch {
	case s.Paused:
		return "its schedule is paused; `start` resumes it, `run` starts a run now"
	case s.NextRun == nil:
		return ""
	}
	text := fmt.Sprintf("its schedule starts a run in %s, at %s", api.Duration(max(0, s.NextRun.Sub(now))), s.NextRun.Format(time.RFC3339))
	if p.Spec == nil || p.State == program.Exited || p.State == program.Stopped || p.State == program.Fatal {
		return text
	}
	switch p.Spec.Overlap {
	case program.OverlapQueue:
		return text + ", or when this run has ended, if that is later"
	case program.OverlapKill:
		return text + ", and first stops this run if it still goes on"
	}
	return text + ", if this run has ended by then"
}
