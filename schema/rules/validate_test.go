package rules

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/plan"
)

func planFacts() plan.Facts {
	return plan.Facts{Env: map[string]string{"PATH": "/bin"}, Version: "test", System: "x86_64-linux"}
}

func TestStagesReportTogether(t *testing.T) {
	r := Validate("agentbox.toml", []byte("x = 1\n[sovereign_mesh]\ntelegram_mirror = true\n[federation]\nmode='client'\n[adapters]\nbeads='local-sqlite'"), Facts{}, planFacts())
	codes := ""
	for _, f := range r.Findings {
		codes += f.Code + " "
	}
	if codes != "W012 W115 E016 E014 E014 E021 " {
		t.Errorf("findings %s", codes)
	}
	if r.Plan != nil {
		t.Error("a plan was made of a manifest that violates the schema")
	}
}

func TestParseFailureIsAlone(t *testing.T) {
	r := Validate("agentbox.toml", []byte("x = = 1\n[adapters]\nbeads='external'"), Facts{}, planFacts())
	if len(r.Findings) != 1 || r.Findings[0].Code != "E000" || r.Findings[0].Line != 1 || r.Document != nil {
		t.Errorf("%+v", r)
	}
}

func TestPlanFindingsAreAppended(t *testing.T) {
	r := Validate("agentbox.toml", []byte("[programs.a]\ncommand='x'\nneeds=['b']\n[programs.b]\ncommand='x'\nneeds=['a']"), Facts{}, planFacts())
	if len(r.Findings) != 1 || r.Findings[0].File != "agentbox.toml" || r.Findings[0].Severity != schema.Error {
		t.Errorf("%+v", r.Findings)
	}
}

// sampleFacts are facts with which the full sample is valid.
func sampleFacts() (Facts, plan.Facts) {
	env := map[string]string{"PATH": "/bin", "WORKSPACE": "/workspace"}
	for _, name := range []string{"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_GEMINI_API_KEY", "DEEPSEEK_API_KEY", "PERPLEXITY_API_KEY",
		"OPENROUTER_API_KEY", "CONTEXT7_API_KEY", "BRAVE_API_KEY", "GITHUB_TOKEN", "CTM_BOT_TOKEN", "CTM_TELEGRAM_CHAT_ID"} {
		env[name] = "value of " + name
	}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	pf := planFacts()
	pf.Env = env
	return Facts{Env: lookup, Arch: "amd64"}, pf
}

func sample(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile("../../examples/agentbox.toml")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The full sample enables every feature and is valid. Its warnings are known.
func TestFullSample(t *testing.T) {
	facts, pf := sampleFacts()
	r := Validate("agentbox.toml", sample(t), facts, pf)
	codes := []string{}
	for _, f := range r.Findings {
		codes = append(codes, f.Code)
	}
	if !slices.Equal(codes, []string{"W012", "W021"}) {
		t.Errorf("findings %v", r.Findings)
	}
	if r.Plan == nil || len(r.Plan.Programs) < 13 || len(r.Manifest.Security.Exceptions) != 8 {
		t.Error("the sample does not switch everything on")
	}
	if out, bad := schema.Format("agentbox.toml", sample(t)); bad != nil || !bytes.Equal(out, sample(t)) {
		t.Error("the sample is not in canonical layout")
	}
}

// Without the variables of its providers, the sample has an error for each of them, and no finding
// contains a value.
func TestFullSampleWithoutCredentials(t *testing.T) {
	_, pf := sampleFacts()
	r := Validate("agentbox.toml", sample(t), Facts{Arch: "amd64"}, pf)
	count := map[string]int{}
	for _, f := range r.Findings {
		count[f.Code]++
	}
	if count["E017"] != 9 || count["E014"] != 2 {
		t.Errorf("findings %v", count)
	}
}

func BenchmarkFullSample(b *testing.B) {
	facts, pf := sampleFacts()
	text := sample(b)
	for b.Loop() {
		Validate("agentbox.toml", text, facts, pf)
	}
}

func FuzzValidate(f *testing.F) {
	f.Add([]byte("[adapters]\nbeads = 'external'\n[security.exceptions.desktop]\n[programs.a]\ncommand = 'x'\nstop = ['TERM']\nready = [{log = '('}]\nschedule = '* * * * *'"))
	for _, c := range cases {
		f.Add([]byte(c.text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r := Validate("f\n", text, Facts{}, planFacts())
		for _, one := range r.Findings {
			if line := one.Error(); strings.ContainsAny(line, "\n\r\x00\x1b") || one.Code == "" || one.Severity == "" {
				t.Errorf("%q", line)
			}
		}
		if r.Document == nil && len(r.Findings) != 1 {
			t.Errorf("%d findings without a document", len(r.Findings))
		}
	})
}

func BenchmarkRules1000Programs(b *testing.B) {
	var text bytes.Buffer
	for i := range 1000 {
		fmt.Fprintf(&text, "[programs.p%d]\ncommand = [\"sleep\", \"1\"]\nrestart = \"always\"\n", i)
	}
	_, d, _ := schema.Load("a", text.Bytes())
	for b.Loop() {
		Run(d, Facts{})
	}
}

// The number of findings grows linearly with the document, not with its square.
func TestManyCollisions(t *testing.T) {
	var text bytes.Buffer
	for i := range 2000 {
		fmt.Fprintf(&text, "[programs.p%d]\ncommand = 'x'\nready = {tcp = ':8000'}\nlogs = {to = 'file', path = '/x'}\n", i)
	}
	_, d, _ := schema.Load("a", text.Bytes())
	if n := len(Run(d, Facts{})); n != 2*1999 {
		t.Errorf("%d findings", n)
	}
}
