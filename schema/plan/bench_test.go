package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/plan"
)

// Planning must not be a large part of the start of a box with a thousand programs.
func BenchmarkResolve1000(b *testing.B) {
	var text strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&text, "[programs.p%d]\ncommand = [\"/bin/sleep\", \"${N:-1000}\"]\n", i)
	}
	data := []byte(text.String())
	env := map[string]string{}
	for i := range 30 {
		env[fmt.Sprintf("VAR_%d", i)] = strings.Repeat("x", 40)
	}
	m, doc, findings := schema.Load("p.toml", data)
	if len(findings) > 0 {
		b.Fatal(findings)
	}
	b.ReportAllocs()
	for b.Loop() {
		plan.Resolve(m, doc, plan.Facts{Env: env})
	}
}
