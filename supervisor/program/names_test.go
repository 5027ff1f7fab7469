package program

import "testing"

func TestNamed(t *testing.T) {
	for _, c := range []struct {
		glob, name string
		want       bool
	}{
		{"web", "web", true},
		{"web", "web:1", true},
		{"web:1", "web:1", true},
		{"web:1", "web:2", false},
		{"web:*", "web:2", true},
		{"w*", "worker:0", true},
		{"*", "web", true},
		{"we", "web", false},
		{"", "web", false},
		{"w[eb", "web", false},
		{"web[", "web:1", false},
	} {
		if got := Named(c.glob, c.name); got != c.want {
			t.Errorf("%q means %q: %v", c.glob, c.name, got)
		}
	}
}
