package main

import (
	"net/url"
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
			name, value, ok := strings.Cut(kv, "=")
			if ok && value != "" && l.Manifest.IsSecret(name) {
				values = append(values, value)
			}
			if password := passwordOf(value); password != "" {
				values = append(values, password)
			}
		}
	}
	look(b.environ)
	for _, spec := range l.Specs {
		look(spec.Env)
	}
	b.plane.Redact(values...)
}

// passwordOf returns the password in an address such as DATABASE_URL. One that equals
// the user name, as in the examples of most databases, is a word that occurs anyway.
func passwordOf(value string) string {
	if !strings.Contains(value, "://") || !strings.Contains(value, "@") {
		return ""
	}
	u, err := url.Parse(value)
	if err != nil || u.User == nil {
		return ""
	}
	if password, ok := u.User.Password(); ok && password != u.User.Username() {
		return password
	}
	return ""
}
