package rules

import (
	"fmt"
	"maps"
	"slices"

	"github.com/dreamlab-ai/agentinit/schema"
)

func intentRules() []Rule {
	return []Rule{
		{Code: "E170", Severity: schema.Error, Check: intentsWithoutInput,
			Doc:    `A template has intents, but not stdin = "pipe": its command could not read the message.`,
			Remedy: `Write stdin = "pipe".`},
		{Code: "E171", Severity: schema.Error, Check: intentsOfTwo,
			Doc:    "Two templates have the same kind among their intents: agentinit could not tell which to start.",
			Remedy: "Give each kind to one template."},
		{Code: "W170", Severity: schema.Warning, Check: intentsUnheard,
			Doc:    "A template has intents, but the box takes none: sovereign_mesh.enabled or sovereign_mesh.relay.pod_bridge is off, or adapters.orchestrator is off.",
			Remedy: "Switch them on, or remove intents."},
	}
}

// intents maps the name of each template with intents to their kinds.
func intents(d *schema.Document) map[string][]any {
	out := map[string][]any{}
	for _, name := range d.Keys("templates") {
		if v, _ := d.At("templates", name, "intents"); v != nil {
			if kinds, ok := v.([]any); ok && len(kinds) > 0 {
				out[name] = kinds
			}
		}
	}
	return out
}

func intentsWithoutInput(d *schema.Document, _ Facts) (out []schema.Finding) {
	for _, name := range slices.Sorted(maps.Keys(intents(d))) {
		if stdin, _ := d.At("templates", name, "stdin"); stdin != "pipe" {
			at := []string{"templates", name, "intents"}
			out = append(out, atKeys(d, at, schema.Path(at...)+` needs stdin = "pipe": the message comes on standard input`, `write stdin = "pipe"`))
		}
	}
	return out
}

func intentsOfTwo(d *schema.Document, _ Facts) (out []schema.Finding) {
	all, owner := intents(d), map[any]string{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, kind := range all[name] {
			first, taken := owner[kind]
			if !taken {
				owner[kind] = name
				continue
			}
			at := []string{"templates", name, "intents"}
			if first != name {
				out = append(out, atKeys(d, at, schema.Path(at...)+fmt.Sprintf(" has kind %v, as templates.%s has", kind, first), "give each kind to one template"))
			}
		}
	}
	return out
}

func intentsUnheard(d *schema.Document, _ Facts) (out []schema.Finding) {
	why := ""
	bridge, _ := d.Lookup(relay + ".pod_bridge")
	switch {
	case !d.On("sovereign_mesh.enabled"):
		why = "sovereign_mesh.enabled is not on"
	case bridge == false:
		why = relay + ".pod_bridge is off"
	case d.Or("adapters.orchestrator", "off") == "off":
		why = "adapters.orchestrator is off"
	default:
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(intents(d))) {
		at := []string{"templates", name, "intents"}
		out = append(out, atKeys(d, at, schema.Path(at...)+" has no effect: "+why, "switch it on, or remove intents"))
	}
	return out
}
