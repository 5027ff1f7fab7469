package rules

import (
	"cmp"
	"slices"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/plan"
)

// Result is the result of all stages for one manifest.
type Result struct {
	Manifest *schema.Manifest // nil with E000
	Document *schema.Document // nil with E000
	Plan     *plan.Plan       // nil if the schema is violated
	// Findings are all warnings, then all errors, each in the order of the text.
	Findings []schema.Finding
}

// Validate runs every stage on the text of a manifest, even if an earlier stage has findings, so
// that all mistakes are reported at once.
func Validate(name string, data []byte, facts Facts, planFacts plan.Facts) Result {
	m, d, findings := schema.Load(name, data)
	r := Result{Manifest: m, Document: d}
	if d != nil {
		p, more := plan.Resolve(m, d, planFacts)
		if len(findings) == 0 {
			r.Plan = p
		}
		findings = slices.Concat(findings, Run(d, facts), more)
	}
	r.Findings = InOrder(findings)
	return r
}

// InOrder orders findings for a report: first warnings, then errors, each by their place. Findings
// about one place stay in the order of evaluation: schema, rules, plan.
func InOrder(findings []schema.Finding) []schema.Finding {
	slices.SortStableFunc(findings, func(a, b schema.Finding) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), schema.ComparePlaces(a, b))
	})
	return findings
}

func rank(f schema.Finding) int {
	if f.Severity == schema.Warning {
		return 0
	}
	return 1
}

// planRules documents the findings of the resolved plan.
func planRules() []Rule {
	rows := make([]Rule, len(plan.Codes))
	for i, c := range plan.Codes {
		rows[i] = Rule{Code: c.Code, Severity: c.Severity, Doc: c.Doc}
	}
	return rows
}

// Retired are codes without a rule, and the reason. Such a code never gets a new meaning.
func Retired() map[string]string {
	return map[string]string{
		"E009": "Reserved; its idea is E017.",
		"E011": "Retired: unknown skills are E016.",
		"E012": "Renamed W012.",
		"E015": "Retired with the key it was about.",
		"E031": "Renamed W031.",
		"E032": "Reserved; its case is E021 for solid-pod-rs.",
		"E034": "Reserved.",
		"W034": "Reserved; it was about a pod server since removed.",
		"E038": "Renamed W038.",
		"E047": "Never an error: W047.",
		"E053": "Never an error: W053.",
		"W027": "Older documents mean W030.",
	}
}
