package schema

import (
	"slices"
	"testing"
)

func TestDifference(t *testing.T) {
	all := []string{"supervisor", "adapters", "api", "templates", "artifacts"}
	for _, tc := range []struct {
		a, b string
		want []string
	}{
		{"", "", nil},
		{"", "[supervisor]\nstop_grace = '25s'", nil}, // the default value
		{"", "[programs.web]\ncommand = 'x'", nil},    // a section that is not compared
		{"", "[supervisor]\nstop_grace = '20s'", []string{"supervisor.stop_grace"}},
		{"[supervisor]\nlisten = '127.0.0.1:1'\n[adapters]\nbeads = 'off'", "[adapters]\nbeads = 'local-sqlite'",
			[]string{"adapters.beads", "supervisor.listen"}},
		{"", "[supervisor.log]\nlevel = 'debug'", []string{"supervisor.log"}},
		{"", "[[artifacts]]\nid = 'a'\nentry = '/x'", []string{"artifacts"}},
	} {
		manifest := func(text string) *Manifest {
			m, _, findings := Load("m.toml", []byte(text))
			if m == nil {
				t.Fatalf("%q: %v", text, findings)
			}
			return m
		}
		a, b := manifest(tc.a), manifest(tc.b)
		if got := Difference(a, b, all...); !slices.Equal(got, tc.want) {
			t.Errorf("%q, %q: %v", tc.a, tc.b, got)
		}
		if got := Difference(b, a, all...); !slices.Equal(got, tc.want) {
			t.Errorf("%q, %q: %v", tc.b, tc.a, got)
		}
	}
}
