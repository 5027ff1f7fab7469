package rules

import "github.com/dreamlab-ai/agentinit/schema"

// consultants lists the provider and the toolchain that each of the five needs.
var consultants = []struct{ name, provider, toolchain string }{
	{"codex", "openai", "codex"},
	{"gemini", "gemini", "gemini_cli"},
	{"zai", "zai", "claude"},
	{"perplexity", "perplexity", ""},
	{"deepseek", "deepseek", ""},
}

func consultantRules() []Rule {
	return []Rule{
		{Code: "E035", Severity: schema.Error, Check: consultantWithoutProvider,
			Doc:    "A consultant is enabled, but its provider (codex: openai, gemini: gemini, zai: zai, perplexity: perplexity, deepseek: deepseek) is not.",
			Remedy: "Enable the provider, or disable the consultant."},
		{Code: "E037", Severity: schema.Error, Check: consultantWithoutToolchain,
			Doc:    "A consultant is enabled, but its toolchain (codex: codex, gemini: gemini_cli, zai: claude) is not.",
			Remedy: "Switch the toolchain on, or disable the consultant."},
		{Code: "E036", Severity: schema.Error, Check: consultantsWithoutSwitch,
			Doc:    "A consultant is enabled, but consultants.enabled is not.",
			Remedy: "Set consultants.enabled = true."},
		{Code: "W038", Severity: schema.Warning, Check: signalWithoutPlace,
			Doc:    "consultants.enabled and consultants.intelligence_signal are on, but neither AGENTBOX_INTELLIGENCE_DIR nor WORKSPACE is set: the signal is not written.",
			Remedy: "Set one of the two variables."},
	}
}

func consultantWithoutProvider(d *schema.Document, _ Facts) (out []schema.Finding) {
	for _, c := range consultants {
		key, needed := "consultants."+c.name+".enabled", "providers."+c.provider+".enabled"
		if d.On(key) && !d.On(needed) {
			out = append(out, shown(d, key, key+" = true needs "+needed+" = true", "enable the provider, or disable the consultant"))
		}
	}
	return out
}

func consultantWithoutToolchain(d *schema.Document, _ Facts) (out []schema.Finding) {
	for _, c := range consultants {
		key, needed := "consultants."+c.name+".enabled", "toolchains."+c.toolchain
		if c.toolchain != "" && d.On(key) && !d.On(needed) {
			out = append(out, shown(d, key, key+"=true needs "+needed+"=true", "switch the toolchain on, or disable the consultant"))
		}
	}
	return out
}

func consultantsWithoutSwitch(d *schema.Document, _ Facts) []schema.Finding {
	for _, c := range consultants {
		key := "consultants." + c.name + ".enabled"
		if d.On(key) && !d.On("consultants.enabled") {
			return one(shown(d, key, key+" = true needs the master switch consultants.enabled = true", "set consultants.enabled = true"))
		}
	}
	return nil
}

func signalWithoutPlace(d *schema.Document, f Facts) []schema.Finding {
	const key = "consultants.intelligence_signal"
	if !d.On("consultants.enabled") || !d.On(key) || f.set("AGENTBOX_INTELLIGENCE_DIR") || f.set("WORKSPACE") {
		return nil
	}
	return one(shown(d, key, key+" = true, but neither AGENTBOX_INTELLIGENCE_DIR nor WORKSPACE is set", "set one of the two variables"))
}
