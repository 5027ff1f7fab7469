package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// promtool checks the alert rules and the configuration, runs the unit tests of the rules, and
// parses every expression of the dashboard.
func TestObservabilityExamples(t *testing.T) {
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("needs promtool")
	}
	dir := filepath.Join("..", "examples", "observability")
	rules := filepath.Join(t.TempDir(), "dashboard.yml")
	if err := os.WriteFile(rules, dashboardRules(t, filepath.Join(dir, "dashboard.json")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"check", "rules", filepath.Join(dir, "alerts.yml")},
		{"test", "rules", filepath.Join(dir, "alerts_test.yml")},
		{"check", "config", filepath.Join(dir, "prometheus.yml")},
		{"check", "rules", rules},
	} {
		if out, err := exec.Command("promtool", args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// dashboardRules makes a recording rule of each expression and replaces Grafana's variables with
// values.
func dashboardRules(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*", "$program", ".*")
	var b strings.Builder
	b.WriteString("groups:\n- name: dashboard\n  rules:\n")
	n := 0
	for _, p := range dashboard.Panels {
		for _, q := range p.Targets {
			expr, err := json.Marshal(variables.Replace(q.Expr))
			if err != nil {
				t.Fatal(err)
			}
			n++
			fmt.Fprintf(&b, "  - {record: \"panel:%d\", expr: %s}\n", n, expr)
		}
	}
	if n < 15 {
		t.Fatalf("%s: only %d expressions", file, n)
	}
	return []byte(b.String())
}
