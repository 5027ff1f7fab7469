// Package rules owns the validator's rules: one table, one row for each code,
// each a pure condition over a document and the facts it is given.
//
// It must never read the environment, the clock, the disk or the machine: the
// facts come in as arguments. It must never show the value of a credential.
package rules

import (
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/schema"
)

// Facts is what rules may know besides the document.
type Facts struct {
	// Env looks a variable up; nil means that none is set.
	Env func(name string) (string, bool)
	// Arch is the host architecture in Go's or the kernel's words: amd64,
	// arm64, aarch64.
	Arch string
	// Exists tells whether a path exists in the box; nil where that cannot be known.
	Exists func(path string) bool
	// Profiles are the profiles of the workspace that could be read.
	Profiles []Profile
}

// Profile is what E010 wants to know of one /workspace/profiles/*/profile.toml.
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

// Rule is one row: what `agentctl config explain` prints, what the validator
// runs, and what docs/rules.md is made from.
type Rule struct {
	Code     string
	Severity schema.Severity
	// Doc says when the rule is broken, and then what to do.
	Doc string
	// Remedy says what to write instead.
	Remedy string
	// Check returns one finding for each breach; code, severity and file are
	// filled in by Run. It is nil for what other stages report: reading (E000),
	// the schema (E016) and the resolved plan.
	Check func(*schema.Document, Facts) []schema.Finding
}

// All returns every rule in the order of evaluation.
func All() []Rule {
	return slices.Concat(readingRules(), adapterRules(), hardwareRules(), portRules(), credentialRules(),
		consultantRules(), relayRules(), privacyRules(), securityRules(), linkedDataRules(), boxRules(), consoleRules(), sandboxRules(), intentRules(), planRules())
}

// Run evaluates every rule on a document, whatever the schema found. The
// findings come in the order of evaluation.
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

// Errors reports whether one of the findings blocks.
func Errors(findings []schema.Finding) bool {
	return slices.ContainsFunc(findings, func(f schema.Finding) bool { return f.Severity == schema.Error })
}

func readingRules() []Rule {
	return []Rule{
		{Code: "E000", Severity: schema.Error,
			Doc:    "The file cannot be read, is not valid TOML 1.0, or is beyond the bounds of a manifest (16 MiB, 40,000 keys, 100,000 array elements, 100 levels). Or agentinit runs as root, and another user can write the file.",
			Remedy: "Correct the text at the line and column named. Nothing else is checked until it can be read. A file that another user can write: chown root and chmod go-w it, or mount it read-only."},
		{Code: "E016", Severity: schema.Error,
			Doc:    "A key is unknown, a required key is missing, or a value has a wrong type, is outside its list or range, or breaks its pattern. Every violated constraint is one finding.",
			Remedy: "See docs/manifest.md, or `agentctl config schema` for the JSON Schema."},
	}
}

// keysOf splits a dotted path of bare keys.
func keysOf(path string) []string { return strings.Split(path, ".") }

// at makes a finding about the value at a dotted path of bare keys. What stands
// there is shown with it, unless the key is absent.
func at(d *schema.Document, path, message, hint string) schema.Finding {
	return atKeys(d, keysOf(path), message, hint)
}

func atKeys(d *schema.Document, keys []string, message, hint string) schema.Finding {
	pos := d.ValuePos(keys...)
	return schema.Finding{Path: schema.Path(keys...), Line: pos.Line, Column: pos.Column, Message: message, Hint: hint}
}

// valued adds the value that stands at the finding's key.
func valued(f schema.Finding, v any) schema.Finding {
	f.Value = schema.Describe(v)
	return f
}

// shown is at with the value, for keys that never hold a secret.
func shown(d *schema.Document, path, message, hint string) schema.Finding {
	f := at(d, path, message, hint)
	if v, ok := d.Lookup(path); ok {
		f = valued(f, v)
	}
	return f
}

// one is the result of a rule that reports at most once.
func one(f schema.Finding) []schema.Finding { return []schema.Finding{f} }

// said describes the value at path, or says that it is unset.
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

// clientWithURL is the condition under which something external can be reached.
func clientWithURL(d *schema.Document) bool {
	return d.Is("federation.mode", "client") && d.NonEmpty("federation.external_url")
}
