// Package schema owns the shape of the manifest: the embedded JSON Schema, the
// typed Manifest, strict loading with positions, and Finding, the one form in
// which anything about a manifest is complained of.
//
// It must never read the environment, look at the machine, or know what a key
// leads to; rules, catalogue and plan do that.
package schema

import (
	"cmp"
	"fmt"
	"strings"
)

// Severity of a finding: an error blocks, a warning advises.
type Severity string

// The severities.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
)

// Finding is one complaint about a manifest.
type Finding struct {
	Code     string   `json:"code"` // E016, W021: stable
	Severity Severity `json:"severity"`
	File     string   `json:"file,omitempty"`
	// Path is the dotted key, quoted where TOML would quote it: programs.web.command.
	Path   string `json:"path,omitempty"`
	Line   int    `json:"line,omitempty"`   // from 1; 0 = nowhere in particular
	Column int    `json:"column,omitempty"` // from 1, in bytes
	// Value is what stands there, shortened; never a secret's.
	Value   string `json:"value,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // what to write instead
}

// Error returns the finding as everything prints it: CODE file:line:column: message
// (hint), on one line whatever the names in it are.
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

// Compare orders findings for people: by file, line, column, code, path.
func Compare(a, b Finding) int {
	return cmp.Or(
		cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
		cmp.Compare(a.Code, b.Code), cmp.Compare(a.Path, b.Path),
	)
}
