package control

import (
	"encoding/json"
	"unicode/utf8"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

func toStatus(snap supervisor.Snapshot, programs []supervisor.Status) api.Status {
	return api.Status{Seq: snap.Seq, Time: snap.Time, Phase: string(snap.Phase), Programs: toPrograms(programs)}
}

func toPrograms(programs []supervisor.Status) []api.Program {
	out := make([]api.Program, len(programs))
	for i, p := range programs {
		out[i] = toProgram(p)
	}
	return out
}

func toProgram(p supervisor.Status) api.Program {
	out := api.Program{
		Name: p.Name, Group: p.Group, State: p.State.String(), Shown: shown(p), Blocked: p.Blocked,
		Ready: p.Ready, Healthy: p.Healthy, Completed: p.Completed, Required: p.Required,
		Reason: p.Reason, Text: p.Text, PID: p.PID, Run: p.Run, Restarts: p.Restarts,
		Since: p.Since, StartedAt: p.StartedAt, RunningAt: p.RunningAt, EndedAt: p.EndedAt, Deadline: p.Deadline,
	}
	if p.Spec != nil {
		out.Type = string(p.Spec.Type)
	}
	if s := p.Schedule; s != nil {
		out.Schedule = &api.Schedule{Paused: s.Paused, NextRun: s.NextRun, LastRun: s.LastRun, LastResult: s.LastResult}
	}
	if e := p.LastExit; e != nil {
		out.LastExit = new(toExit(*e))
	}
	return out
}

func toExit(e program.Exit) api.Exit {
	return api.Exit{Code: e.Code, Signal: e.Signal, Core: e.Core, Cause: e.Cause}
}

// shown is the word for people, if it differs from the state's name.
func shown(p supervisor.Status) string {
	if word := p.Shown(); word != p.State.String() {
		return word
	}
	return ""
}

// toEvent uses the event's JSON, so that the wire has one form of it.
func toEvent(e event.Event) (api.Event, error) {
	var out api.Event
	data, err := e.MarshalJSON() // json.Marshal would escape <, > and &
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	return out, err
}

func toLogLine(l logs.Line, boot string) api.LogLine {
	out := api.LogLine{
		Seq: l.Seq, Time: l.Time, Program: l.Program, Stream: l.Stream.String(), PID: l.PID, Run: l.Run,
		Truncated: l.Truncated, Dropped: l.Dropped,
	}
	if l.Seq > 0 {
		out.Cursor = cursor{boot, l.Seq, l.Time}.String()
	}
	if utf8.ValidString(l.Text) {
		out.Text = l.Text
	} else {
		out.Data = []byte(l.Text)
	}
	return out
}
