package solid_test

import (
	"encoding/json"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/internal/foreign"
)

// The steps of Inrupt's client have the same results here as with the Community Solid Server.
func TestSolidClient(t *testing.T) {
	node, module, err := foreign.SolidClient()
	foreign.SkipOrFail(t, err)
	reference, err := foreign.Solid(t.Context(), nil)
	foreign.SkipOrFail(t, err)
	t.Cleanup(reference.Stop)
	run := func(base, authorization string) (results map[string]any) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), node, "../../rest/testdata/solid-client.cjs", module, base, authorization).Output()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := json.Unmarshal(out, &results); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return results
	}
	want, got := run(reference.Address+"/direct/", ""), run(serveTo(t, everyone, nil).base+"/direct/", "")
	if len(want) < 12 {
		t.Errorf("only %d steps", len(want))
	}
	for step := range want {
		if text, ok := want[step].(string); ok && strings.HasPrefix(text, "failed") {
			t.Errorf("%s: the reference server: %s", step, text)
		}
		if !reflect.DeepEqual(got[step], want[step]) {
			t.Errorf("%s\n here      %v\n reference %v", step, got[step], want[step])
		}
	}
}
