package rules

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/dreamlab-ai/agentinit/schema/plan"
)

// multiplicityCase is one manifest and its exact findings.
type multiplicityCase struct {
	Name     string            `toml:"name"`
	Manifest string            `toml:"manifest"`
	Env      map[string]string `toml:"env"`
	Only     string            `toml:"only"` // compare only this code
	Want     string            `toml:"want"` // for example "E016*2 W039", sorted
}

// TestMultiplicity compares the whole validator, schema and rules together, with a table that was
// written from the text of the rules. Codes from 100 on concern sections that the older manifest
// does not have. For the older sections, they must never be errors.
func TestMultiplicity(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "multiplicity.toml"))
	if err != nil {
		t.Fatal(err)
	}
	var table struct {
		Cases []multiplicityCase `toml:"cases"`
	}
	if err := toml.Unmarshal(text, &table); err != nil {
		t.Fatal(err)
	}
	if len(table.Cases) < 200 {
		t.Fatalf("only %d cases were read", len(table.Cases))
	}
	own := regexp.MustCompile(`^[EW]1\d\d$`)
	for _, c := range table.Cases {
		t.Run(c.Name, func(t *testing.T) {
			facts := Facts{Env: func(name string) (string, bool) { v, ok := c.Env[name]; return v, ok }, Arch: "amd64"}
			count := map[string]int{}
			for _, f := range Validate("x.toml", []byte(c.Manifest), facts, plan.Facts{Env: c.Env}).Findings {
				switch {
				case own.MatchString(f.Code) && f.Code[0] == 'E':
					t.Errorf("%s (%s) is an error about a section that is not ours", f.Code, f.Message)
				case !own.MatchString(f.Code) && (c.Only == "" || c.Only == f.Code):
					count[f.Code]++
				}
			}
			var got []string
			for code, n := range count {
				if n > 1 {
					code = fmt.Sprintf("%s*%d", code, n)
				}
				got = append(got, code)
			}
			slices.Sort(got)
			if s := strings.Join(got, " "); s != c.Want {
				t.Errorf("got %q, want %q of\n%s", s, c.Want, c.Manifest)
			}
		})
	}
}
