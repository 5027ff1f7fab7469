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

// passwordOf returns the password in an address such as DATABASE_URL. A password that equals the
// user name, as in the examples of most databases, is not returned, because that word occurs
// anyway.
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
