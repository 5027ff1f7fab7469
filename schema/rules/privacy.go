package rules

import (
	"strings"

	"github.com/dreamlab-ai/agentinit/schema"
)

func privacyRules() []Rule {
	return []Rule{
		{Code: "E022", Severity: schema.Error, Check: filterWithoutMode,
			Doc:    `privacy_filter.enabled is on, but privacy_filter.mode is unset or "off".`,
			Remedy: `Set mode to "local-gpu" or "local-cpu".`},
		{Code: "E023", Severity: schema.Error, Check: filterWithoutGPU,
			Doc:    `privacy_filter.mode is "local-gpu", but gpu.backend is absent or "none".`,
			Remedy: `Set a GPU backend, or mode = "local-cpu".`},
		{Code: "E024", Severity: schema.Error, Check: q4OffCPU,
			Doc:    `privacy_filter.dtype is "q4", but the mode is not "local-cpu".`,
			Remedy: `Set mode = "local-cpu", or another dtype.`},
		{Code: "W041", Severity: schema.Warning, Check: policyWithoutFilter,
			Doc:    "Some entry of [privacy_filter.policy] is not off, but privacy_filter.enabled is not on: agentinit does not redact.",
			Remedy: "Enable the filter, or set the policies to off."},
	}
}

func filterMode(d *schema.Document) string { return d.Or("privacy_filter.mode", "off") }

func filterWithoutMode(d *schema.Document, _ Facts) []schema.Finding {
	if !d.On("privacy_filter.enabled") || filterMode(d) != "off" {
		return nil
	}
	state := "unset"
	if d.Is("privacy_filter.mode", "off") {
		state = `"off"`
	}
	return one(shown(d, "privacy_filter.mode", "privacy_filter.enabled = true, but privacy_filter.mode is "+state+`; "local-gpu" and "local-cpu" work`, "set one of the two, or disable the filter"))
}

func filterWithoutGPU(d *schema.Document, _ Facts) []schema.Finding {
	backend, written := d.String("gpu.backend")
	if !d.On("privacy_filter.enabled") || filterMode(d) != "local-gpu" || written && backend != "none" {
		return nil
	}
	return one(shown(d, "privacy_filter.mode", `privacy_filter.mode = "local-gpu" needs a gpu.backend, and it is `+said(d, "gpu.backend"), `set a GPU backend, or mode = "local-cpu"`))
}

func q4OffCPU(d *schema.Document, _ Facts) []schema.Finding {
	if !d.On("privacy_filter.enabled") || !d.Is("privacy_filter.dtype", "q4") || filterMode(d) == "local-cpu" {
		return nil
	}
	return one(shown(d, "privacy_filter.dtype", `privacy_filter.dtype = "q4" needs privacy_filter.mode = "local-cpu", and it is `+said(d, "privacy_filter.mode"), `set mode = "local-cpu", or another dtype`))
}

func policyWithoutFilter(d *schema.Document, _ Facts) []schema.Finding {
	if d.On("privacy_filter.enabled") {
		return nil
	}
	var slots []string
	for _, slot := range d.Keys("privacy_filter", "policy") {
		v, _ := d.At("privacy_filter", "policy", slot)
		if policy, ok := v.(string); ok && policy != "off" {
			slots = append(slots, schema.Path("privacy_filter", "policy", slot)+" = "+schema.Quote(policy))
		}
	}
	if slots == nil {
		return nil
	}
	return one(at(d, "privacy_filter.policy", "the privacy filter is not enabled, so these policies have no effect: "+strings.Join(slots, ", "), "enable the filter, or set them to off"))
}
