package agentinit_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/internal/manual/manpage"
	"github.com/dreamlab-ai/agentinit/internal/problem"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// The tests of this file keep docs/reference true: what it says of metrics, events
// and variables is compared with the source text.

// metric is one metric as the code declares it.
type metric struct {
	name, kind, help string
	labels           []string
}

var metricName = regexp.MustCompile(`^(agentinit|agentbox|opf)_[a-z0-9_]+$`)

// metricsInCode finds every declaration of a metric: the options of client_golang,
// and calls that take a name and a help text.
func metricsInCode(t *testing.T) map[string]metric {
	t.Helper()
	_, all := sources(t)
	found := map[string]metric{}
	for _, s := range all {
		if s.test || strings.HasPrefix(s.pkg, "bench") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			var m metric
			rest := call.Args[1:]
			if options, ok := call.Args[0].(*ast.CompositeLit); ok {
				m.name, m.help = literal(field(options, "Name")), literal(field(options, "Help"))
				if labels, ok := field(options, "ConstLabels").(*ast.CompositeLit); ok {
					for _, e := range labels.Elts {
						m.labels = append(m.labels, literal(e.(*ast.KeyValueExpr).Key))
					}
				}
			} else if m.name = literal(call.Args[0]); len(rest) > 0 {
				m.help = literal(rest[0])
				rest = rest[1:]
			}
			if !metricName.MatchString(m.name) || m.help == "" {
				return true
			}
			for _, arg := range rest {
				if list, ok := arg.(*ast.CompositeLit); ok {
					for _, e := range list.Elts {
						m.labels = append(m.labels, literal(e))
					}
				} else if label := literal(arg); label != "" {
					m.labels = append(m.labels, label)
				}
			}
			m.kind = kindOf(callee(call), m.name)
			found[m.name] = m
			return true
		})
	}
	return found
}

// kindOf is the metric's type: of the constructor, otherwise of the name, as
// Prometheus' naming rules have it.
func kindOf(constructor, name string) string {
	switch {
	case strings.Contains(constructor, "Histogram"):
		return "histogram"
	case strings.Contains(constructor, "Counter"), strings.HasSuffix(name, "_total"):
		return "counter"
	}
	return "gauge"
}

// unit is that of the name's suffix.
func unit(m metric) string {
	name := strings.TrimSuffix(m.name, "_total")
	switch {
	case strings.HasSuffix(name, "_time_seconds"), strings.HasSuffix(name, "_timestamp_seconds"):
		return "seconds since 1970"
	case strings.HasSuffix(name, "_seconds"):
		return "seconds"
	case strings.HasSuffix(name, "_bytes"):
		return "bytes"
	}
	return "–"
}

func literal(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	s, _ := strconv.Unquote(lit.Value)
	return s
}

func field(c *ast.CompositeLit, name string) ast.Expr {
	for _, e := range c.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := kv.Key.(*ast.Ident); ok && key.Name == name {
				return kv.Value
			}
		}
	}
	return nil
}

func callee(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// docs/reference/metrics.md lists every metric of the code.
func TestMetricsReference(t *testing.T) {
	metrics := metricsInCode(t)
	if len(metrics) < 40 {
		t.Fatalf("only %d metrics were found", len(metrics))
	}
	var b strings.Builder
	b.WriteString(`# Metrics

<!-- Made from the source text; do not edit. make generate -->

` + "`GET /metrics`" + ` answers in Prometheus' text format: on the management port (9090), on the metrics port (9091) and on the control
socket; ` + "`agentctl metrics`" + ` prints the same. It needs no key. A metric is absent while its part is off: those of a slot without that
slot, those of the relay without the relay. The metrics of the Go runtime (` + "`go_…`" + `) and of agentinit's own process
(` + "`process_…`" + `) are those of Prometheus' Go client.

[examples/observability](../../examples/observability/README.md) has a Grafana dashboard and alert rules.

| metric | type | unit | labels | meaning |
|---|---|---|---|---|
`)
	for _, m := range sortedBy(metrics, func(m metric) string { return m.name }) {
		labels := "–"
		if len(m.labels) > 0 {
			labels = "`" + strings.Join(m.labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.name, m.kind, unit(m), labels, m.help)
	}
	manpage.Check(t, filepath.Join("docs", "reference", "metrics.md"), []byte(b.String()))
}

// docs/reference/errors.md lists every code of an error document.
func TestErrorsReference(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Error codes

<!-- Made from the source text; do not edit. make generate -->

Every error of the [HTTP API](api.md) and of the control socket is a problem document (RFC 9457, ` + "`application/problem+json`" + `). Its
` + "`status`" + ` is that of the answer, its ` + "`detail`" + ` says in words what is wrong and what helps. Its ` + "`code`" + ` is for programs: it keeps its meaning
in later versions. A caller must take a code that it does not know for the kind of its status.

## Adapters and the listener

In upper case: the codes of the adapter slots, over HTTP and on the control socket, and those of the HTTP listener itself, such as a
missing key, on every path. ` + "`retryable`" + ` says whether the same request may succeed later. The table has the usual value; that in the answer
counts. If the header ` + "`Retry-After`" + ` is there, wait at least so many seconds.

| code | status | retryable | meaning |
|---|---|---|---|
`)
	for _, r := range problem.Codes() {
		fmt.Fprintf(&b, "| `%s` | %d | %t | %s |\n", r.Code, r.HTTP, r.Retryable, r.Title)
	}
	b.WriteString(`
## Programs and the box

In lower case: the codes of ` + "`/v1/programs`, `/v1/logs` and `/v1/box/…`" + `, and of the same routes on the control socket. Further members, where
they apply: ` + "`hint`" + `, what to do; ` + "`program` and `state`" + `; ` + "`candidates`" + `, names that may have been meant; ` + "`findings`" + `, the findings about
the manifest.

| code | status | meaning |
|---|---|---|
`)
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("supervisor", "control", "api", "error.go"), nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(v.Names[0].Name, "Code") {
			return true
		}
		meaning := strings.TrimSpace(v.Comment.Text())
		if meaning == "" {
			t.Errorf("%s has no comment", v.Names[0].Name)
		}
		code := api.Code(literal(v.Values[0]))
		fmt.Fprintf(&b, "| `%s` | %d | %s |\n", code, code.HTTPStatus(), meaning)
		found++
		return true
	})
	if found < 16 {
		t.Fatalf("only %d codes were found", found)
	}
	manpage.Check(t, filepath.Join("docs", "reference", "errors.md"), []byte(b.String()))
}

func sortedBy[V any](m map[string]V, key func(V) string) []V {
	out := make([]V, 0, len(m))
	for _, v := range m {
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b V) int { return cmp.Compare(key(a), key(b)) })
	return out
}

// eventName is a word that is an event's name wherever it stands in the packages
// that publish events.
var eventName = regexp.MustCompile(`^([A-Z][a-z]+([A-Z][A-Za-z]*)+|OOM[A-Za-z]+|Lagged|Degraded|Terminated|Status)$`)

// publishers are the packages and files whose words are looked at.
var publishers = []string{
	"supervisor", "supervisor/event", "supervisor/control", "supervisor/ready", "bootstrap", "probes", "cmd/agentinit", "adapters/backup",
	"mesh/announce", "mesh/mailbox", "adapters/set.go", "adapters/events/carrier.go", "adapters/federation/session.go",
}

// otherWords look like events and are none: lines of proc_pid_status(5), fields,
// subjects of derived identities, names in an OpenAPI document.
var otherWords = []string{"CapBnd", "CapEff", "NoNewPrivs", "SolidPod", "NostrRelay", "GiB", "KiB", "MiB", "CapInh", "CapPrm", "SigBlk", "SigIgn"}

// constants are the constants of a file that are written as one literal.
func constants(f *ast.File) map[string]string {
	all := map[string]string{}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, spec := range g.Specs {
			v := spec.(*ast.ValueSpec)
			for i, value := range v.Values {
				if text := literal(value); text != "" {
					all[v.Names[i].Name] = text
				}
			}
		}
	}
	return all
}

// eventsInCode are the names of the events, each with the fields that stand beside
// the name where it is published.
func eventsInCode(t *testing.T) map[string][]string {
	t.Helper()
	_, all := sources(t)
	names, events := map[string][]string{}, map[string]string{}
	watched := func(s source) bool {
		return !s.test && (slices.Contains(publishers, s.pkg) || slices.Contains(publishers, s.pkg+"/"+filepath.Base(s.name)))
	}
	for _, s := range all {
		if !watched(s) {
			continue
		}
		for name, value := range constants(s.file) {
			if eventName.MatchString(value) {
				events[path.Base(s.pkg)+"."+name] = value
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if ok && eventName.MatchString(literal(lit)) && !slices.Contains(otherWords, literal(lit)) {
				names[literal(lit)] = nil
			}
			return true
		})
	}
	for _, s := range all {
		if !watched(s) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			var parts []ast.Expr
			switch n := n.(type) {
			case *ast.CallExpr:
				parts = n.Args
			case *ast.CompositeLit:
				parts = []ast.Expr{field(n, "Name"), field(n, "Fields")}
			}
			name, keys := "", []string(nil)
			for _, part := range parts {
				name = cmp.Or(name, eventNamed(part, path.Base(s.pkg), events))
				keys = append(keys, mapKeys(part)...)
			}
			if _, known := names[name]; known {
				names[name] = append(names[name], keys...)
			}
			return true
		})
	}
	return names
}

// eventNamed is the name that an expression of a package stands for, "" for none.
func eventNamed(e ast.Expr, pkg string, constants map[string]string) string {
	switch e := e.(type) {
	case *ast.Ident:
		return constants[pkg+"."+e.Name]
	case *ast.SelectorExpr:
		if from, ok := e.X.(*ast.Ident); ok {
			return constants[from.Name+"."+e.Sel.Name]
		}
	case *ast.BasicLit:
		if text := literal(e); eventName.MatchString(text) {
			return text
		}
	}
	return ""
}

// mapKeys are the keys of a map that is written out.
func mapKeys(e ast.Expr) (keys []string) {
	c, ok := e.(*ast.CompositeLit)
	if !ok {
		return nil
	}
	if _, ok := c.Type.(*ast.MapType); !ok {
		return nil
	}
	for _, elt := range c.Elts {
		if kv, ok := elt.(*ast.KeyValueExpr); ok && literal(kv.Key) != "" {
			keys = append(keys, literal(kv.Key))
		}
	}
	return keys
}

var eventRow = regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\| ([^|]+) \\| ([^|]+) \\| ([^|]+) \\|$")

// docs/reference/events.md names every event of the code, and no other, with at
// least the fields that stand beside it.
func TestEventsReference(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("docs", "reference", "events.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for _, m := range eventRow.FindAllStringSubmatch(string(text), -1) {
		rows[m[1]] = m[4]
	}
	events := eventsInCode(t)
	if len(events) < 60 {
		t.Fatalf("only %d events were found", len(events))
	}
	for name, fields := range events {
		row, ok := rows[name]
		if !ok {
			t.Errorf("docs/reference/events.md does not say what %s is (fields %q)", name, fields)
			continue
		}
		for _, f := range fields {
			if !strings.Contains(row, "`"+f+"`") {
				t.Errorf("docs/reference/events.md: %s has the field %s too", name, f)
			}
		}
		delete(rows, name)
	}
	for name := range rows {
		t.Errorf("docs/reference/events.md: no code publishes %s", name)
	}
}

var (
	expression = regexp.MustCompile(`(?m)^\s*(?:expr: |- series: '|"(?:expr|query)": ")(.*)$`)
	word       = regexp.MustCompile(`\b(?:agentinit|agentbox|opf)_[a-z0-9_]+`)
	selector   = regexp.MustCompile(`\b((?:agentinit|agentbox|opf)_[a-z0-9_]+)\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
	target     = regexp.MustCompile(`\{\{ ?(?:\$labels\.)?([a-z_]+) ?\}\}`)
)

// The dashboard and the alert rules ask for metrics and labels that exist.
func TestObservabilityExamples(t *testing.T) {
	metrics := metricsInCode(t)
	for _, file := range []string{"alerts.yml", "alerts_test.yml", "dashboard.json"} {
		raw, err := os.ReadFile(filepath.Join("examples", "observability", file))
		if err != nil {
			t.Fatal(err)
		}
		text := string(raw)
		expressions := expression.FindAllStringSubmatch(text, -1)
		if len(expressions) < 3 {
			t.Fatalf("%s: only %d expressions were found", file, len(expressions))
		}
		known := map[string]bool{"instance": true, "severity": true, "le": true, "version": true}
		for _, e := range expressions {
			for _, name := range word.FindAllString(e[1], -1) {
				m, ok := metrics[base(name, metrics)]
				if !ok {
					t.Errorf("%s: there is no metric %s", file, name)
				}
				for _, label := range m.labels {
					known[label] = true
				}
			}
			for _, s := range selector.FindAllStringSubmatch(e[1], -1) {
				labels := append([]string{"instance", "le"}, metrics[base(s[1], metrics)].labels...)
				for _, used := range matcher.FindAllStringSubmatch(s[2], -1) {
					if !slices.Contains(labels, used[1]) {
						t.Errorf("%s: %s has no label %s", file, s[1], used[1])
					}
				}
			}
		}
		for _, label := range target.FindAllStringSubmatch(text, -1) {
			if !known[label[1]] {
				t.Errorf("%s: no metric of it has the label %s", file, label[1])
			}
		}
	}
}

// base is the metric that a series belongs to: of a histogram there are three.
func base(series string, metrics map[string]metric) string {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if name, ok := strings.CutSuffix(series, suffix); ok && metrics[name].kind == "histogram" {
			return name
		}
	}
	return series
}

var variableName = regexp.MustCompile(`^[A-Z][A-Z0-9]*(_[A-Z0-9]+)*$`)

// docs/reference/environment.md names every variable that the binaries read by a
// name written out.
func TestEnvironmentReference(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("docs", "reference", "environment.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, all := sources(t)
	found := map[string]bool{}
	for _, s := range all {
		if s.test || !strings.HasPrefix(s.pkg, "cmd/") && s.pkg != "bootstrap" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 || !slices.Contains([]string{"getenv", "Getenv", "lookupEnv", "LookupEnv", "at"}, callee(call)) {
				return true
			}
			if name := literal(call.Args[0]); variableName.MatchString(name) {
				found[name] = true
			}
			return true
		})
	}
	if len(found) < 25 {
		t.Fatalf("only %d variables were found", len(found))
	}
	for name := range found {
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("docs/reference/environment.md does not say what %s is for", name)
		}
	}
}
