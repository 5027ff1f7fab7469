package rules

import (
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
	if codes != "W012 E016 E014 E014 E021 " {
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
