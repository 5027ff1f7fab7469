package main

import (
	"cmp"
	"strings"

	"github.com/dreamlab-ai/agentinit/schema"
)

// spoken is the MAJOR version of the slots' contracts that this agentctl's commands (bead, mem,
// pod, event, agent) use.
const spoken = "v1"

// slotHealth is one slot in /health.
type slotHealth struct {
	Slot   string `json:"slot"`
	Impl   string `json:"impl"` // the implementation that serves now
	Status string `json:"status"`
	Reason string `json:"reason"`
}

// slotLinks follows each slot from the manifest to the configured implementation, to the one that
// serves now, and to the version of its contract.
func slotLinks(m *schema.Manifest, meta boxMeta, health boxHealth) []link {
	const name = "adapters"
	serving := map[string]string{}
	for _, s := range health.Adapters {
		serving[s.Slot] = s.Impl
		if s.Status != "healthy" && s.Status != "off" {
			serving[s.Slot] += " (" + joinedBy(s.Status, ": ", s.Reason) + ")"
		}
	}
	var out []link
	for _, s := range []struct{ slot, declared, compat string }{
		{"beads", m.Adapters.Beads, m.AdaptersCompat.Beads}, {"pods", m.Adapters.Pods, m.AdaptersCompat.Pods},
		{"memory", m.Adapters.Memory, m.AdaptersCompat.Memory}, {"events", m.Adapters.Events, m.AdaptersCompat.Events},
		{"orchestrator", m.Adapters.Orchestrator, m.AdaptersCompat.Orchestrator},
	} {
		const unsaid = "(not stated)"
		wanted := cmp.Or(meta.Impls[s.slot], unsaid)
		out = append(out,
			compared(name, s.slot, cmp.Or(s.declared, "off"), wanted, "the box was started with other adapters: restart it with this manifest"),
			compared(name, s.slot+" serving", wanted, cmp.Or(serving[s.slot], unsaid), "see agentctl adapters, and the box's log"))
		if wanted == "off" || wanted == unsaid {
			continue
		}
		out = append(out, compared(name, s.slot+" contract", cmp.Or(s.compat, spoken), majorOf(meta.Contracts[s.slot], unsaid),
			"the box and agentctl are of different releases, or adapters_compat names another contract: use those that belong together"))
	}
	return out
}

// majorOf is "v1" for "1.4".
func majorOf(version, unsaid string) string {
	if major, _, ok := strings.Cut(version, "."); ok {
		return "v" + major
	}
	return unsaid
}
