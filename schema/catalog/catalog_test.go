package catalog

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/schema"
)

func viewOf(t *testing.T, text string) View {
	t.Helper()
	m, _, findings := schema.Load("agentbox.toml", []byte(text))
	if len(findings) > 0 {
		t.Fatalf("%q does not load: %v", text, findings)
	}
	return View{Manifest: m, Profile: "agentbox", Version: "1.2.3", System: "x86_64-linux"}
}

// Every path, template and class in the catalogue is valid.
func TestCatalogueIsSound(t *testing.T) {
	c := Load()
	v := viewOf(t, "")
	conditions := func(where string, list []string) {
		for _, p := range Keys(list) {
			if _, ok := v.Lookup(p); !ok {
				t.Errorf("%s: the manifest has no %s", where, p)
			}
		}
	}
	texts := func(where string, list ...string) {
		for _, s := range list {
			if _, err := v.Fill(s); err != nil {
				t.Errorf("%s: %v", where, err)
			}
		}
	}
	texts("environment", slices.Collect(maps.Values(c.Environment))...)
	names := map[string]bool{}
	classes := map[string]Artifact{}
	for _, f := range c.Features {
		if names[f.Name] || f.Summary == "" {
			t.Errorf("feature %s: twice, or without a summary", f.Name)
		}
		names[f.Name] = true
		conditions(f.Name, f.When)
		texts(f.Name, slices.Collect(maps.Values(f.Environment))...)
		for _, p := range f.Ports {
			conditions(f.Name, p.When)
			texts(f.Name, p.Port, p.Bind)
		}
		for _, m := range f.Mounts {
			texts(f.Name, m.Target)
			if filled, _ := v.Fill(m.Target); !strings.HasPrefix(filled, "/") {
				t.Errorf("%s: mount at %q", f.Name, filled)
			}
		}
		for _, a := range f.Artifacts {
			texts(f.Name, a.Entry)
			if !strings.Contains("ABCD", a.Class) || len(a.Class) != 1 || a.ID == "" || a.Entry == "" {
				t.Errorf("%s: artifact %+v", f.Name, a)
			}
			if _, err := schema.ParseDuration(a.Timeout); a.Timeout != "" && err != nil {
				t.Errorf("%s: %v", a.ID, err)
			}
			if other, twice := classes[a.ID]; twice && other.Entry != a.Entry {
				t.Errorf("artifact %s means two things", a.ID)
			}
			classes[a.ID] = a
		}
	}
	for _, e := range c.Exceptions {
		conditions(e.Name, e.When)
		conditions(e.Name, e.Sidecar)
	}
	for _, g := range c.GPU {
		if g.Exception != "" && !slices.ContainsFunc(c.Exceptions, func(e Exception) bool { return e.Name == g.Exception }) {
			t.Errorf("gpu %s names the exception %s", g.Backend, g.Exception)
		}
	}
}

// The programs are tables in the manifest's own syntax. Once its templates are filled, each decodes
// without a finding.
func TestCatalogueProgramsDecode(t *testing.T) {
	v := viewOf(t, "")
	var fill func(any) any
	fill = func(x any) any {
		switch x := x.(type) {
		case string:
			s, err := v.FillEscaped(x)
			if err != nil {
				t.Error(err)
			}
			return s
		case []any:
			out := make([]any, len(x))
			for i := range x {
				out[i] = fill(x[i])
			}
			return out
		case map[string]any:
			out := map[string]any{}
			for k, e := range x {
				out[k] = fill(e)
			}
			return out
		}
		return x
	}
	seen := map[string]bool{}
	for _, f := range Load().Features {
		for name, table := range f.Programs {
			if seen[name] {
				t.Errorf("program %s in two features", name)
			}
			seen[name] = true
			p, findings := schema.DecodeProgram(fill(table).(map[string]any))
			for _, finding := range findings {
				t.Errorf("%s: %v", name, finding)
			}
			if p.Priority == 999 {
				t.Errorf("%s has no priority", name)
			}
		}
	}
	// The programs that exist, and the tasks of agentinit itself, as specified.
	want := []string{
		"blender-mcp", "comfyui-builtin", "https-bridge", "i3wm", "imagemagick-mcp", "jupyter-lab", "nostr-relay", "opf-router",
		"playwright-mcp", "qgis-mcp", "solid-pod", "xvnc",
	}
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
		t.Errorf("programs %v, want %v", got, want)
	}
}

// A template with an unknown key must fail. Otherwise the test above could not detect one.
func TestUnknownTemplateFails(t *testing.T) {
	v := viewOf(t, "")
	for _, text := range []string{"{gpu.bakend}", "{gpu.backend|loud}", "{@unknown}"} {
		if s, err := v.Fill(text); err == nil {
			t.Errorf("%s filled to %q", text, s)
		}
	}
}

func TestNothingIsInstalledAtBootAndNoEmptyToken(t *testing.T) {
	bad := regexp.MustCompile(`\bpip\b|npm|apt|token=|/etc/agentbox/`)
	for _, f := range Load().Features {
		for name, table := range f.Programs {
			argv, _ := table["command"].([]any)
			for _, word := range argv {
				if bad.MatchString(word.(string)) {
					t.Errorf("%s: %v", name, argv)
				}
			}
		}
	}
}

func TestHolds(t *testing.T) {
	v := viewOf(t, "[desktop]\nenabled = true\n[gpu]\nbackend = 'ollama-cuda'\n[providers.x]\nenabled = true\nenv_var = 'X'")
	for condition, want := range map[string]bool{
		"desktop.enabled": true, "!desktop.enabled": false, "toolchains.rust": false, "!toolchains.rust": true,
		"gpu.backend": false, "gpu.backend = ollama-cuda": true, "gpu.backend = none | ollama-cuda": true,
		"gpu.backend = none": false, "gpu.backend != none": true, "gpu.backend != none | ollama-cuda": false,
		"no.such": false, "!no.such": true, "no.such = ": false, "@profile = agentbox": true, "providers.x.enabled": true,
		"sovereign_mesh.relay.implementation = nostr-rs-relay": true, // a default value counts too
	} {
		if got := v.Holds([]string{condition}); got != want {
			t.Errorf("%s: %v, want %v", condition, got, want)
		}
	}
	if v.Holds([]string{"desktop.enabled", "toolchains.rust"}) {
		t.Error("two conditions hold although one does not")
	}
	if !v.Holds(nil) {
		t.Error("no condition does not hold")
	}
}

func TestFill(t *testing.T) {
	v := viewOf(t, `
[supervisor]
listen = "127.0.0.1:9190"
[integrations.solid_pod_rs]
bind = "::"
storage_root = "/a$b"
[sovereign_mesh.relay]
allowed_kinds = [1, 7]
`)
	for text, want := range map[string]string{
		"": "", "x": "x", "{desktop.enabled}": "false", "{observability.metrics_port}!": "9091!",
		"{supervisor.listen|port}": "9190", "{supervisor.listen|host}": "127.0.0.1",
		"{integrations.solid_pod_rs.bind|dial}:{integrations.solid_pod_rs.port}": "[::1]:8484",
		"{sovereign_mesh.relay.allowed_kinds}":                                   "1,7",
		"${desktop}":                                                             "${desktop}", "${A:-{supervisor.listen|port}}": "${A:-9190}", "{@version}": "1.2.3",
		"{integrations.solid_pod_rs.storage_root}": "/a$b",
	} {
		if got, err := v.Fill(text); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
	if got, _ := v.FillEscaped("{integrations.solid_pod_rs.storage_root}${X}"); got != "/a$$b${X}" {
		t.Errorf("escaped: %q", got)
	}
}

func TestAddresses(t *testing.T) {
	for addr, want := range map[string][2]string{
		"0.0.0.0:9090": {"0.0.0.0", "9090"}, ":80": {"", "80"}, "[::1]:80": {"::1", "80"}, "9090": {"", "9090"}, "off": {}, "": {},
	} {
		if host, port := SplitAddress(addr); host != want[0] || port != want[1] {
			t.Errorf("%q: %q %q", addr, host, port)
		}
	}
	for host, want := range map[string]bool{"127.0.0.1": true, "127.8.9.1": true, "::1": true, "[::1]": true, "localhost": true, "0.0.0.0": false, "": false, "::": false, "10.0.0.1": false} {
		if Loopback(host) != want {
			t.Errorf("Loopback(%q) is not %v", host, want)
		}
	}
	for host, want := range map[string]string{"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]", "fe80::1": "[fe80::1]", "10.0.0.1": "10.0.0.1", "pod": "pod"} {
		if got := Dialable(host); got != want {
			t.Errorf("Dialable(%q) = %q, want %q", host, got, want)
		}
	}
}

func TestUnknownKeysAreRefused(t *testing.T) {
	if _, err := parse([]byte("[[features]]\nname = 'x'\nwehn = ['y']")); err == nil {
		t.Error("a misspelt key was read")
	}
}

// The names of paths that the image has.
func TestPathsOfTheImage(t *testing.T) {
	found := map[string]bool{}
	for _, f := range Load().Features {
		for _, a := range f.Artifacts {
			for _, path := range append([]string{a.Entry}, a.Assets...) {
				found[path] = true
			}
			if strings.HasPrefix(a.Entry, "/bin/") || len(a.Command) > 0 && strings.Contains(a.Command[0], "/") {
				t.Errorf("%s: a tool is found on PATH, so it has a bare name, not %s %v", a.ID, a.Entry, a.Command)
			}
		}
	}
	for _, want := range []string{
		"/opt/agentbox/scripts/qgis_mcp_standalone.py", "/opt/agentbox/skills/blender/tools/blender-mcp-proxy.js", "aqe", "rustc",
	} {
		if !found[want] {
			t.Errorf("no artifact has %s", want)
		}
	}
}
