// Package rules owns the rules of the validator: one table with one row for each code. Each rule is
// a pure condition on a document and the given facts.
//
// It must never read the environment, the clock, the disk or the machine: the facts are arguments.
// It must never show the value of a credential.
package rules

import (
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/schema"
)

// Facts are the inputs of the rules besides the document.
type Facts struct {
	// Env looks up a variable. If Env is nil, no variable is set.
	Env func(name string) (string, bool)
	// Arch is the host architecture, named as in Go or in the kernel: amd64, arm64, aarch64.
	Arch string
	// Exists reports whether a path exists in the box. It is nil if that is unknown.
	Exists func(path string) bool
	// Profiles reads the profiles of the workspace. If Profiles is nil, there are none. Only a rule that
	// needs them calls it: programs can write them.
	Profiles func() []Profile
}

// Profile is the part of one /workspace/profiles/*/profile.toml that E010 needs.
type Profile struct {
	Dir          string // the profile's directory
	HeadlessOnly bool   // headless_only = true at the top level
}

// set reports whether the variable has at least one character.
func (f Facts) set(name string) bool { return f.value(name) != "" }

func (f Facts) value(name string) string {
	if f.Env == nil || name == "" {
		return ""
	}
	v, _ := f.Env(name)
	return v
}

// Rule is one row of the table. `agentctl config explain` prints it, the validator runs it, and
// docs/rules.md is generated from it.
type Rule struct {
	Code     string
	Severity schema.Severity
	// Doc says when the rule is broken, and then what to do.
	Doc string
	// Remedy says what to write instead.
	Remedy string
	// Check returns one finding for each violation. Run sets code, severity and file. Check is nil
	// if another stage reports the code: reading (E000), the schema (E016) or the resolved plan.
	Check func(*schema.Document, Facts) []schema.Finding
}

// All returns every rule in the order of evaluation.
func All() []Rule {
	return slices.Concat(readingRules(), adapterRules(), hardwareRules(), portRules(), credentialRules(),
		consultantRules(), relayRules(), privacyRules(), securityRules(), linkedDataRules(), boxRules(), consoleRules(), sandboxRules(), intentRules(), planRules())
}

// Run evaluates every rule on a document, even if the schema has findings. The findings are in the
// order of evaluation.
func Run(d *schema.Document, facts Facts) []schema.Finding {
	var out []schema.Finding
	for _, r := range All() {
		if r.Check == nil {
			continue
		}
		for _, f := range r.Check(d, facts) {
			f.Code, f.Severity, f.File = r.Code, r.Severity, d.Name
			out = append(out, f)
		}
	}
	return out
}

// Find returns the rule of a code.
func Find(code string) (Rule, bool) {
	for _, r := range All() {
		if r.Code == strings.ToUpper(code) {
			return r, true
		}
	}
	return Rule{}, false
}

// Errors reports whether one of the findings is an error.
func Errors(findings []schema.Finding) bool {
	return slices.ContainsFunc(findings, func(f schema.Finding) bool { return f.Severity == schema.Error })
}

func readingRules() []Rule {
	return []Rule{
		{Code: "E000", Severity: schema.Error,
			Doc:    "The file cannot be read, is not valid TOML 1.0, or is beyond the bounds of a manifest (16 MiB, 40,000 keys, 100,000 array elements, 100 levels). Or agentinit runs as root, and another user can write the file.",
			Remedy: "Correct the text at the line and column named. agentinit checks the rest when it can read the file. A file that another user can write: chown root and chmod go-w it, or mount it read-only."},
		{Code: "E016", Severity: schema.Error,
			Doc:    "A key is unknown, a required key is missing, or a value has a wrong type, is outside its list or range, or breaks its pattern. Every violated constraint is one finding.",
			Remedy: "`agentctl help manifest SECTION` shows the keys of a section and their types, `agentctl config schema` prints the JSON Schema."},
	}
}

// keysOf splits a dotted path of bare keys.
func keysOf(path string) []string { return strings.Split(path, ".") }

// at makes a finding about the value at a dotted path of bare keys, with its position.
func at(d *schema.Document, path, message, hint string) schema.Finding {
	return atKeys(d, keysOf(path), message, hint)
}

func atKeys(d *schema.Document, keys []string, message, hint string) schema.Finding {
	pos := d.ValuePos(keys...)
	return schema.Finding{Path: schema.Path(keys...), Line: pos.Line, Column: pos.Column, Message: message, Hint: hint}
}

// valued adds the value to the finding.
func valued(f schema.Finding, v any) schema.Finding {
	f.Value = schema.Describe(v)
	return f
}

// shown is like at, and adds the value. It is only for keys that never contain a secret.
func shown(d *schema.Document, path, message, hint string) schema.Finding {
	f := at(d, path, message, hint)
	if v, ok := d.Lookup(path); ok {
		f = valued(f, v)
	}
	return f
}

// one is the result of a rule that reports at most once.
func one(f schema.Finding) []schema.Finding { return []schema.Finding{f} }

// said describes the value at path, or says that it is not set.
func said(d *schema.Document, path string) string {
	v, ok := d.Lookup(path)
	if !ok {
		return "unset"
	}
	return schema.Describe(v)
}

func isNonEmptyList(d *schema.Document, path string) bool {
	l, ok := d.List(path)
	return ok && len(l) > 0
}

// clientLacks says what the box lacks to be a client with an external URL, which external implementations
// need, and what to do. Both are empty if it lacks neither.
func clientLacks(d *schema.Document) (lacks, hint string) {
	client, url := d.Is("federation.mode", "client"), d.NonEmpty("federation.external_url")
	switch {
	case client && url:
		return "", ""
	case client:
		return `with federation.mode = "client" needs federation.external_url`, "set it"
	case url:
		return `with federation.external_url needs federation.mode = "client" (is ` + said(d, "federation.mode") + ")", "set it"
	}
	return `needs federation.mode = "client" (is ` + said(d, "federation.mode") + ") and federation.external_url", "set both"
}
