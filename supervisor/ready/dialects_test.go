package ready

import (
	"testing"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Every dialect of the table has a maker, and no other dialect has one.
func TestEveryDialectHasAMaker(t *testing.T) {
	for _, d := range program.Dialects {
		if makers[d.Name] == nil {
			t.Errorf("nothing asks %s", d.Name)
		}
	}
	if len(makers) != len(program.Dialects) {
		t.Errorf("%d makers for %d dialects", len(makers), len(program.Dialects))
	}
}
