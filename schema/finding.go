// Package schema owns the shape of the manifest: the embedded JSON Schema, the typed Manifest,
// strict loading with positions, and Finding, the common form of all errors and warnings about a
// manifest.
//
// It must never read the environment, look at the machine, or know the effects of a key. Those
// belong to the rules, the catalogue and the plan.
package schema

import (
	"cmp"
	"fmt"
	"strings"
)

// Severity is the severity of a finding. An error prevents the start, a warning does not.
type Severity string

// The severities.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
)

// Finding is one error or warning about a manifest.
type Finding struct {
	Code     string   `json:"code"` // stable code, for example E016 or W021
	Severity Severity `json:"severity"`
	File     string   `json:"file,omitempty"`
	// Path is the dotted key, for example programs.web.command. Keys are quoted where TOML requires
	// it.
	Path   string `json:"path,omitempty"`
	Line   int    `json:"line,omitempty"`   // from 1; 0: no position
	Column int    `json:"column,omitempty"` // from 1, in characters
	// Value is the value of the key, shortened. It is never a secret.
	Value   string `json:"value,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // what to write instead
}

// Error returns the finding in its common text form: CODE file:line:column: message (hint). It is
// always one line, even if names contain line breaks.
func (f Finding) Error() string {
	var b strings.Builder
	b.WriteString(f.Code + " ")
	if f.File != "" {
		b.WriteString(escape(f.File))
		if f.Line > 0 {
			fmt.Fprintf(&b, ":%d:%d", f.Line, f.Column)
		}
		b.WriteString(": ")
	}
	b.WriteString(escape(f.Message))
	if f.Hint != "" {
		b.WriteString(" (" + escape(f.Hint) + ")")
	}
	return b.String()
}

// Compare orders findings for reports: by file, line, column, code, path.
func Compare(a, b Finding) int {
	return cmp.Or(ComparePlaces(a, b), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Path, b.Path))
}

// ComparePlaces orders findings by file, line and column.
func ComparePlaces(a, b Finding) int {
	return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
}
