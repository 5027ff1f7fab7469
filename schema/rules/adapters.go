package rules

import (
	"strings"

	"github.com/dreamlab-ai/agentinit/schema"
)

func adapterRules() []Rule {
	return []Rule{
		{Code: "E001", Severity: schema.Error, Check: externalWithoutMesh,
			Doc:    `A slot of [adapters] is "external", but federation.mode is not "client" or federation.external_url is empty.`,
			Remedy: `Set federation.mode = "client" and federation.external_url, or give the slot a local class.`},
		{Code: "E002", Severity: schema.Error, Check: pgWithoutConninfo,
			Doc:    `adapters.memory is "external-pg", but integrations.ruvector_external.conninfo is absent, empty or blank.`,
			Remedy: "Write the PostgreSQL connection string there."},
		{Code: "E003", Severity: schema.Error, Check: bridgeOverHTTP,
			Doc:    `adapters.orchestrator is "stdio-bridge" while integrations.external_orchestrator is enabled with protocol = "http".`,
			Remedy: `Use protocol = "stdio", or another orchestrator.`},
		{Code: "E004", Severity: schema.Error, Check: allOffNotStandalone,
			Doc:    `Every key of [adapters] is "off", but federation.mode is not written as "standalone".`,
			Remedy: `Write federation.mode = "standalone".`},
		{Code: "E005", Severity: schema.Error, Check: eventsWithoutSink,
			Doc:    `adapters.events is "external", but [integrations.external_events] has none of url, relay_urls and mcp_endpoint.`,
			Remedy: "Give one of the three."},
		{Code: "W012", Severity: schema.Warning, Check: localInClientMode,
			Doc:    `federation.mode is "client", but some slots have a local class: their state stays in this box.`,
			Remedy: `Use "external" where the mesh should hold the state.`},
		{Code: "E033", Severity: schema.Error, Check: dpopWithoutOIDC,
			Doc:    `adapters.pods is "local-solid-rs" and integrations.solid_pod_rs.enable_dpop_cache is on without enable_oidc.`,
			Remedy: "Switch enable_oidc on, or enable_dpop_cache off."},
	}
}

func externalWithoutMesh(d *schema.Document, _ Facts) (out []schema.Finding) {
	lacks, hint := clientLacks(d)
	if lacks == "" {
		return nil
	}
	for _, slot := range d.Keys("adapters") {
		v, _ := d.At("adapters", slot)
		if v != "external" {
			continue
		}
		f := atKeys(d, []string{"adapters", slot}, schema.Path("adapters", slot)+` = "external" `+lacks, hint+", or give the slot a local class")
		out = append(out, valued(f, v))
	}
	return out
}

func pgWithoutConninfo(d *schema.Document, _ Facts) []schema.Finding {
	const key = "integrations.ruvector_external.conninfo"
	conninfo, _ := d.String(key)
	if !d.Is("adapters.memory", "external-pg") || strings.TrimSpace(conninfo) != "" {
		return nil
	}
	return one(shown(d, "adapters.memory", `adapters.memory = "external-pg" needs `+key, "write the PostgreSQL connection string there"))
}

func bridgeOverHTTP(d *schema.Document, _ Facts) []schema.Finding {
	const o = "integrations.external_orchestrator"
	if !d.Is("adapters.orchestrator", "stdio-bridge") || !d.On(o+".enabled") || !d.Is(o+".protocol", "http") {
		return nil
	}
	return one(shown(d, o+".protocol", `adapters.orchestrator = "stdio-bridge" cannot work with `+o+`.protocol = "http"`, `use protocol = "stdio"`))
}

func allOffNotStandalone(d *schema.Document, _ Facts) []schema.Finding {
	slots := d.Keys("adapters")
	if len(slots) == 0 || d.Is("federation.mode", "standalone") {
		return nil
	}
	for _, slot := range slots {
		if v, _ := d.At("adapters", slot); v != "off" {
			return nil
		}
	}
	f := at(d, "adapters", `every slot of [adapters] is "off", which needs federation.mode = "standalone" (is `+said(d, "federation.mode")+")",
		`write federation.mode = "standalone"`)
	return one(f)
}

func eventsWithoutSink(d *schema.Document, _ Facts) []schema.Finding {
	const e = "integrations.external_events"
	if !d.Is("adapters.events", "external") || d.NonEmpty(e+".url") || isNonEmptyList(d, e+".relay_urls") || d.NonEmpty(e+".mcp_endpoint") {
		return nil
	}
	return one(shown(d, "adapters.events", `adapters.events = "external" needs one of url, relay_urls, mcp_endpoint in [`+e+"]", "give one of the three"))
}

func localInClientMode(d *schema.Document, _ Facts) []schema.Finding {
	if !d.Is("federation.mode", "client") {
		return nil
	}
	var local []string
	for _, slot := range d.Keys("adapters") {
		v, _ := d.At("adapters", slot)
		if class, ok := v.(string); ok && strings.HasPrefix(class, "local-") {
			local = append(local, schema.Path("adapters", slot)+" = "+schema.Quote(class))
		}
	}
	if local == nil {
		return nil
	}
	return one(shown(d, "federation.mode", `federation.mode = "client", but these slots stay local: `+strings.Join(local, ", "), `use "external" where the mesh should hold the state`))
}

func dpopWithoutOIDC(d *schema.Document, _ Facts) []schema.Finding {
	const s = "integrations.solid_pod_rs"
	if !d.Is("adapters.pods", "local-solid-rs") || !d.On(s+".enable_dpop_cache") || d.On(s+".enable_oidc") {
		return nil
	}
	return one(shown(d, s+".enable_dpop_cache", s+".enable_dpop_cache = true needs "+s+".enable_oidc = true", "switch enable_oidc on, or enable_dpop_cache off"))
}
