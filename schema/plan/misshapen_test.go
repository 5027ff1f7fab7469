package plan_test

import (
	"slices"
	"testing"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/plan"
)

// A violation of the schema does not hide other mistakes, and is not reported a second time by the
// plan.
func TestMisshapenManifestsAreResolved(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"unknown needs beside unknown keys": {
			"[programs.a]\ncommand = 'x'\nneeds = ['b', 'nosuch']\nrestrat = 'always'\n[programs.b]\nneeds = ['a']\ncommand = 7",
			[]string{"E122", "E123"},
		},
		"three circles, two of them of the instances of sets": {
			"x = 1\n[programs.a]\ncommand = 'x'\nneeds = ['a']\n[programs.b]\ncommand = 'x'\nneeds = ['c']\ninstances = 3\n[programs.c]\ncommand = 'x'\nneeds = ['b']\ninstances = 3\n[programs.d]\ncommand = 'x'\nneeds = ['d']\ninstances = 2",
			[]string{"E122", "E122", "E122"},
		},
		"a wrong command is no empty one":     {"[programs.a]\ncommand = 7", nil},
		"a program that cannot be is needed":  {"[programs]\na = 1\n[programs.b]\ncommand = 'x'\nneeds = ['a']", nil},
		"a program without command is needed": {"x = 1\n[programs.a]\n[programs.b]\ncommand = 'x'\nneeds = ['a']", []string{"E125"}},
		"no number of instances":              {"[programs.a]\ncommand = 'x'\ninstances = 1000000000000", nil},
		"a gate of the wrong type": {
			"[desktop]\nenabled = 'yes'\n[programs.a]\ncommand = 'x'\nwhen = 'desktop.enabled'\n[programs.b]\ncommand = 'x'\nneeds = ['a', 'xvnc']\n[programs.xvnc]\npriority = 1",
			nil,
		},
		"a gate that is off, beside": {
			"x = 1\n[programs.a]\ncommand = 'x'\nenabled = false\n[programs.b]\ncommand = 'x'\nneeds = ['a']", []string{"E124"},
		},
		"needs of the wrong type":       {"[programs.a]\ncommand = 'x'\nneeds = [7]", nil},
		"required, and autostart wrong": {"[programs.a]\ncommand = 'x'\nrequired = true\nautostart = 'no'", nil},
		"missing variables":             {"x = 1\n[programs.a]\ncommand = '${NOPE}'\nuser = true", []string{"E120"}},
		"artifacts":                     {"artifacts = [1, 'x']\n[programs.a]\ncommand = '${E:-}'", []string{"E128"}},
	} {
		m, doc, violations := schema.Load("agentbox.toml", []byte(c.text))
		if len(violations) == 0 {
			t.Errorf("%s: the manifest fits the schema", name)
			continue
		}
		_, findings := plan.Resolve(m, doc, plan.Facts{})
		var codes []string
		for _, f := range findings {
			codes = append(codes, f.Code)
		}
		slices.Sort(codes)
		if !slices.Equal(codes, c.want) {
			t.Errorf("%s: %v, want %v\n%v", name, codes, c.want, findings)
		}
	}
}
