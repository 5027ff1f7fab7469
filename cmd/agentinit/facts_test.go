package main

import (
	"testing"

	"github.com/dreamlab-ai/agentinit/schema"
)

// An apply tells what is new: a warning of the boot that has only moved is not.
func TestWarningsAreToldOnce(t *testing.T) {
	old := schema.Finding{Code: "W120", Path: "programs.a", Line: 3, Message: "long"}
	moved, fresh := old, old
	moved.Line, fresh.Message = 9, "longer"
	got := newFindings([]schema.Finding{moved, fresh}, []schema.Finding{old})
	if len(got) != 1 || got[0] != fresh {
		t.Errorf("told %v, want %v alone", got, fresh)
	}
}
