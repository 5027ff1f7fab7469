// Package docs holds the reference documents that agentctl shows (agentctl help
// TOPIC) and that the man pages are made of. It holds texts and must import
// nothing of ours.
package docs

import _ "embed"

// Topic is one document of the reference.
type Topic struct {
	Name  string // as in agentctl help NAME
	Short string // one sentence
	Text  string // Markdown
}

//go:embed manifest.md
var manifest string

//go:embed rules.md
var rules string

//go:embed states.md
var states string

//go:embed reference/exit-statuses.md
var exitStatuses string

//go:embed reference/signals.md
var signals string

//go:embed reference/environment.md
var environment string

//go:embed reference/files.md
var files string

//go:embed reference/events.md
var events string

//go:embed reference/metrics.md
var metrics string

//go:embed reference/errors.md
var errorCodes string

//go:embed reference/api.md
var api string

// Topics are the documents in the order in which agentctl help lists them.
func Topics() []Topic {
	return []Topic{
		{"manifest", "Every section and key of the manifest, agentbox.toml", manifest},
		{"rules", "Every error and warning about a manifest, and what to do", rules},
		{"states", "The states of a program and what leads from one to another", states},
		{"exit-statuses", "Exit statuses of agentinit and agentctl", exitStatuses},
		{"signals", "What each signal to agentinit does", signals},
		{"environment", "Environment variables that are read and set", environment},
		{"files", "Files that agentinit reads and writes", files},
		{"event-names", "Every event: when it is published, and its fields", events},
		{"metric-names", "Every metric: type, unit, labels, meaning", metrics},
		{"error-codes", "Every code of an error document, with its HTTP status", errorCodes},
		{"api", "The HTTP API, with a first request", api},
	}
}
