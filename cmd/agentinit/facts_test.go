package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// An apply reports new warnings. A warning of the boot that only has another line number is not
// new.
func TestWarningsAreToldOnce(t *testing.T) {
	old := schema.Finding{Code: "W120", Path: "programs.a", Line: 3, Message: "long"}
	moved, fresh := old, old
	moved.Line, fresh.Message = 9, "longer"
	got := newFindings([]schema.Finding{moved, fresh}, []schema.Finding{old})
	if len(got) != 1 || got[0] != fresh {
		t.Errorf("told %v, want %v alone", got, fresh)
	}
}

// Every changed field that an apply names is a key that exists in the manifest.
func TestChangedFieldsAreManifestKeys(t *testing.T) {
	unknown := func(key string) bool {
		_, _, findings := schema.Load("agentbox.toml", []byte("[programs.web]\n"+key+" = 0\n"))
		for _, f := range findings {
			if strings.Contains(f.Message, "unknown key") {
				return true
			}
		}
		return false
	}
	if !unknown("no_such_key") {
		t.Fatal("the manifest accepts every key")
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[program.Spec]()) {
		switch field.Name {
		case "Group", "Instance", "Secrets":
			continue // Group and Instance identify an instance; another field reports secrets
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" {
			name = strings.ToLower(field.Name)
		}
		if key := manifestKeys([]string{name})[0]; unknown(key) {
			t.Errorf("a change of Spec.%s is told as %q, which is no key of a program", field.Name, key)
		}
	}
}
