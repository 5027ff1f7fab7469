package main

import (
	"strings"

	"github.com/dreamlab-ai/agentinit/bootstrap"
)

// redact has the values of the secrets that are known so far masked in everything that
// leaves the box as a log line: those of agentinit's own environment, and those that
// programs are given.
func (b *box) redact(l *bootstrap.Loaded) {
	var values []string
	seen := map[string]bool{} // most programs have most of their variables in common
	look := func(environment []string) {
		for _, kv := range environment {
			if seen[kv] {
				continue
			}
			seen[kv] = true
			if name, value, ok := strings.Cut(kv, "="); ok && value != "" && l.Manifest.IsSecret(name) {
				values = append(values, value)
			}
		}
	}
	look(b.environ)
	for _, spec := range l.Specs {
		look(spec.Env)
	}
	b.plane.Redact(values...)
}
