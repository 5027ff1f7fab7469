package program

import (
	"slices"
	"testing"
)

func TestProbesInWords(t *testing.T) {
	for _, c := range []struct {
		probe Probe
		want  string
		fd    int
	}{
		{Probe{Dialect: "http", Target: "http://x/"}, "HTTP http://x/", 0},
		{Probe{Dialect: "exec", Argv: []string{"pg_isready", "-q"}}, "the command pg_isready -q", 0},
		{Probe{Dialect: "log", Target: `up "now"`}, `a line of output that matches "up \"now\""`, 0},
		{Probe{Dialect: "fd", Target: "3"}, "a newline on descriptor 3", 3},
		{Probe{Dialect: "notify"}, "READY=1 on its notify socket", 0},
		{Probe{}, "", 0},
	} {
		if got := c.probe.String(); got != c.want || c.probe.Descriptor() != c.fd {
			t.Errorf("%+v is %q with descriptor %d", c.probe, got, c.probe.Descriptor())
		}
	}
}

func TestDialectTable(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range Dialects {
		if d.Name == "" || d.Doc == "" || d.Example == nil || d.Words == "" || seen[d.Name] {
			t.Errorf("an incomplete or repeated row: %+v", d)
		}
		seen[d.Name] = true
		if once := []DialectValue{FlagValue, DescriptorValue, PatternValue}; d.Health == slices.Contains(once, d.Value) {
			t.Errorf("%s is for health: %v, but takes a %v", d.Name, d.Health, d.Value)
		}
		if d.Check != nil && d.Check("") == nil {
			t.Errorf("%s takes an empty target", d.Name)
		}
		if text, ok := d.Example.(string); ok && d.Check != nil && d.Check(text) != nil {
			t.Errorf("%s refuses its own example: %v", d.Name, d.Check(text))
		}
	}
}
