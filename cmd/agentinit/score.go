package main

import (
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/proc"
)

// EventOOMScoreRestored: a program raised agentinit's oom_score_adj. The event has an error if the
// score could not be restored.
const EventOOMScoreRestored = "OOMScoreRestored"

func (b *box) scoreRaised(s proc.ScoreRaised) {
	fields := map[string]any{"was": s.Was, "now": s.Now, "count": s.Count}
	if s.Err != nil {
		fields["error"] = s.Err.Error()
	}
	b.publish(event.Warn, EventOOMScoreRestored, fields)
}
