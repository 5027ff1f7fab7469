package program

import (
	"bytes"
	"encoding/json"
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
		{Probe{Dialect: "http", Target: "http://me:hush@x/a?b=c d"}, "HTTP http://me:xxxxx@x/a?…", 0},
		{Probe{Dialect: "http", Target: "http://x/a?token=hush"}, "HTTP http://x/a?…", 0},
		{Probe{Dialect: "http", Target: "http://x/a?${TOKEN}?b#c"}, "HTTP http://x/a?…", 0},
		{Probe{Dialect: "file", Target: "/run/a?b"}, "the file /run/a?b", 0},
		{Probe{Dialect: "http", Target: "http://me:${PW}@x/"}, "HTTP http://me:${PW}@x/", 0},
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

// Who may read a program's specification may not read the password of its probe.
func TestProbeAsJSONHasNoPassword(t *testing.T) {
	spec := Spec{Readiness: Readiness{Probes: []Probe{{Dialect: "http", Target: "http://me:hush@x/"}}}}
	text, err := json.Marshal(spec)
	if err != nil || !bytes.Contains(text, []byte(`"target":"http://me:xxxxx@x/"`)) || bytes.Contains(text, []byte("hush")) {
		t.Errorf("%s: %v", text, err)
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

func TestTargetsOfProbes(t *testing.T) {
	for _, c := range []struct {
		dialect   string
		good, bad []string
	}{
		{"http", []string{"http://x", "https://[::1]:65535/a", "http://x:1/"}, []string{"x:80", "ftp://x", "http://", "http://x:0/", "http://x:65536/", "http://x:99999999999999999999/"}},
		{"tcp", []string{":80", "x:http", "[::1]:65535"}, []string{"80", "x:", "x:0", "x:65536", "x:-1", "x:99999999999999999999"}},
		{"grpc", []string{"x:1/service"}, []string{"x/service", "x:0/service", "x:70000"}},
	} {
		d, _ := Probe{Dialect: c.dialect}.DialectOf()
		for _, target := range c.good {
			if err := d.Check(target); err != nil {
				t.Errorf("%s %q: %v", c.dialect, target, err)
			}
		}
		for _, target := range c.bad {
			if d.Check(target) == nil {
				t.Errorf("%s takes %q", c.dialect, target)
			}
		}
	}
}
