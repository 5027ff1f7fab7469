package picture

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/plan"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

var update = flag.Bool("update", false, "write the golden files anew")

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(ms float64) *time.Time {
	t := epoch.Add(time.Duration(ms * float64(time.Millisecond)))
	return &t
}

func boot() api.Boot {
	return api.Boot{
		ID: "b1", StartedAt: epoch, SealedAt: at(1500), Outcome: "sealed",
		Phases: []api.BootPhase{
			{Number: 0, Name: "load", StartedAt: epoch, DurationMS: 3.25, Outcome: "ok"},
			{Number: 0.5, Name: "immutable-root", StartedAt: *at(3), DurationMS: 0.1, Outcome: "warning", Detail: "/opt/agentbox is writable"},
			{Number: 9, Name: "start", StartedAt: *at(20), DurationMS: 1480, Outcome: "ok"},
		},
		Programs: []api.BootProgram{
			{Name: "web", Required: true, Needs: []string{"db"}, StartedAt: at(901), RunningAt: at(950), ReadyAt: at(1500)},
			{Name: "db", StartedAt: at(21), RunningAt: at(400), ReadyAt: at(900)},
			{Name: "late", StartedAt: at(21)},
			{Name: "never"},
		},
		CriticalChain: []string{"db", "web"},
	}
}

// webapp is the graph of examples/webapp.toml.
func webapp(t *testing.T) Graph {
	t.Helper()
	name := filepath.Join("..", "..", "..", "examples", "webapp.toml")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	m, doc, findings := schema.Load(name, text)
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	p, findings := plan.Resolve(m, doc, plan.Facts{})
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	return NewGraph(p)
}

func graph() Graph {
	spec := func(name string, kind program.Type, needs ...program.Need) plan.Program {
		return plan.Program{Spec: &program.Spec{Name: name, Type: kind, Autostart: name != "shell", Required: name == "web", Needs: needs}}
	}
	ready := func(name string) program.Need { return program.Need{Program: name, Condition: program.NeedReady} }
	return NewGraph(&plan.Plan{
		Waves: [][]string{{"db", "migrate", "web"}, {"worker:0", "shell"}},
		Programs: []plan.Program{
			spec("db", program.Service), spec("migrate", program.Oneshot, ready("db")),
			spec("web", program.Service, ready("db"), program.Need{Program: "migrate", Condition: program.NeedCompleted}, ready("gone")),
			spec("worker:0", program.Service, ready("web")), spec("shell", program.Service),
		},
	})
}

func TestGolden(t *testing.T) {
	trace, err := Trace(boot())
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]string{
		"../../../../docs/img/boot.svg": Waterfall(boot()), "boot.json": string(trace),
		"../../../../docs/img/plan.svg": webapp(t).SVG(),
		"graph.svg":                     graph().SVG(), "graph.dot": graph().DOT(), "graph.mmd": graph().Mermaid(),
	} {
		file := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs; if that is meant: go test ./cmd/agentctl/picture -update\n%s", name, got)
		}
	}
}

// hostile are texts that contain markup, end a string or reorder a line.
var hostile = []string{
	`<script>alert(1)</script>`, `"/><svg onload=alert(1)>`, "]]>&lt;&#x3c;", "a\"];\n evil -> n0 [label=\"", `back\`, `"] --> n9["x`,
	"end\nn0-->n1", "\x1b[2J\x00\x07", "\xff\xfe", "\u202egnp.exe", "```\n%%{init: {}}%%", strings.Repeat("w", 10000), "数据库服务器数据库服务器数据库服务器数据库", "",
}

// elements reads an SVG strictly and returns the names of its elements.
func elements(t *testing.T, svg string) map[string]int {
	t.Helper()
	names := map[string]int{}
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatalf("not XML: %v\n%s", err, svg)
		}
		if e, ok := token.(xml.StartElement); ok {
			names[e.Name.Local]++
			for _, a := range e.Attr {
				if strings.HasPrefix(a.Name.Local, "on") || strings.Contains(a.Value, "script") {
					t.Errorf("attribute %s=%q", a.Name.Local, a.Value)
				}
			}
		}
	}
}

func TestHostileText(t *testing.T) {
	for _, text := range hostile {
		b := boot()
		b.Outcome, b.ID = text, text
		for i := range b.Phases {
			b.Phases[i].Name, b.Phases[i].Detail, b.Phases[i].Outcome = text, text, text
		}
		for i := range b.Programs {
			b.Programs[i].Name = text
		}
		b.CriticalChain = []string{text}
		g := graph()
		for i := range g.nodes {
			g.nodes[i].name, g.nodes[i].note = text, text
		}
		for i := range g.edges {
			g.edges[i].label = text
		}
		for _, svg := range []string{Waterfall(b), g.SVG()} {
			for name := range elements(t, svg) {
				if !strings.Contains(" svg title style text rect line path ", " "+name+" ") {
					t.Errorf("%q made an element %s", text, name)
				}
			}
		}
		trace, err := Trace(b)
		if err != nil || !json.Valid(trace) {
			t.Errorf("%q: the trace is not JSON: %v", text, err)
		}
		for what, out := range map[string]string{"DOT": g.DOT(), "Mermaid": g.Mermaid()} {
			lines := strings.Count(graph().DOT(), "\n")
			if what == "Mermaid" {
				lines = strings.Count(graph().Mermaid(), "\n")
			}
			if strings.Count(out, "\n") != lines {
				t.Errorf("%s: %q begins a new line:\n%s", what, text, out)
			}
			if strings.ContainsAny(out, "\x00\x07\x1b\u202e") {
				t.Errorf("%s: %q keeps control characters", what, text)
			}
		}
		for line := range strings.Lines(g.DOT()) {
			if unescaped := strings.NewReplacer(`\\`, "", `\"`, "").Replace(line); strings.Count(unescaped, `"`)%2 != 0 {
				t.Errorf("DOT: %q ends a string early: %s", text, line)
			}
		}
		for line := range strings.Lines(g.Mermaid()) {
			if n := strings.Count(line, `"`); n != 0 && n != 2 {
				t.Errorf("Mermaid: %q ends a string early: %s", text, line)
			}
		}
	}
}

// A boot or plan of any shape can be drawn: empty, with times that run backwards, with a cycle,
// with 2000 programs.
func TestAnyShape(t *testing.T) {
	back := boot()
	back.SealedAt = at(-5000)
	for i := range back.Programs {
		back.Programs[i].StartedAt, back.Programs[i].RunningAt, back.Programs[i].ReadyAt = at(900), at(-1), at(-100)
	}
	back.Phases[0].DurationMS = -7
	for _, b := range []api.Boot{{}, back} {
		svg := Waterfall(b)
		elements(t, svg)
		if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") || strings.Contains(svg, `width="-`) {
			t.Errorf("a measure is not a number:\n%s", svg)
		}
		if _, err := Trace(b); err != nil {
			t.Error(err)
		}
	}
	cycle := Graph{nodes: []node{{name: "a", wave: 1}, {name: "b", wave: 1}}, edges: []edge{{0, 1, ""}, {1, 0, ""}, {0, 0, ""}}, waves: 1}
	elements(t, cycle.SVG())
	elements(t, NewGraph(&plan.Plan{}).SVG())
	var big Graph
	for n := range 2000 {
		big.nodes = append(big.nodes, node{name: "p", wave: 1})
		if n > 0 {
			big.edges = append(big.edges, edge{from: n - 1, to: n})
		}
	}
	big.waves = 1
	elements(t, big.SVG())
}

func TestCompare(t *testing.T) {
	before, now := boot(), boot()
	now.SealedAt = at(1600)
	now.Phases[0].DurationMS = 4
	now.Programs[0].ReadyAt = at(1600) // web: 100 ms longer
	now.Programs[1].Name = "cache"     // db is removed, cache is new
	var got bytes.Buffer
	for _, s := range Compare(now, before) {
		change, both := s.Change()
		got.WriteString(strings.TrimSpace(s.Kind + " " + s.Name))
		switch {
		case both:
			got.WriteString(" " + Milliseconds(change))
		case s.BeforeMS == nil:
			got.WriteString(" new")
		default:
			got.WriteString(" gone")
		}
		got.WriteString("\n")
	}
	want := "boot 100ms\nprogram web 100ms\nphase 0 load 0.8ms\nphase 0.5 immutable-root 0.0ms\nphase 9 start 0.0ms\nprogram cache new\nprogram db gone\n"
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}
