package main

import (
	"net/url"
	"strings"

	"github.com/dreamlab-ai/agentinit/bootstrap"
)

// redact masks the known secrets in every log line that leaves the box: those in agentinit's own
// environment, and those that programs are given.
func (b *box) redact(l *bootstrap.Loaded) {
	var values []string
	seen := map[string]bool{} // most programs have mostly the same variables
	look := func(environment []string) {
		for _, kv := range environment {
			if seen[kv] {
				continue
			}
			seen[kv] = true
			name, value, ok := strings.Cut(kv, "=")
			if ok && value != "" && l.Manifest.IsSecret(name) {
				values = append(values, value)
			}
			values = append(values, passwordsOf(value)...)
		}
	}
	look(b.environ)
	for _, spec := range l.Specs {
		look(spec.Env)
	}
	b.plane.Redact(values...)
}

// passwordsOf returns the password in an address such as DATABASE_URL, as it is written there and without
// its escapes. Drivers accept addresses that net/url refuses, so it is found without net/url. A
// password that equals the user name, as in the examples of most databases, is not returned, because
// that word occurs anyway.
func passwordsOf(value string) []string {
	_, rest, _ := strings.Cut(value, "://")
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		rest = rest[:end]
	}
	user, password, ok := strings.Cut(rest[:max(strings.LastIndexByte(rest, '@'), 0)], ":")
	if !ok || password == user {
		return nil
	}
	if unescaped, err := url.PathUnescape(password); err == nil && unescaped != password {
		return []string{password, unescaped}
	}
	return []string{password}
}
