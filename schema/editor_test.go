package schema

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/xeipuuv/gojsonschema"
)

// TestEveryKeyHelpsTheEditor walks the JSON Schema. Each key must have a description for the
// editor's completion. Each default and example must be valid.
func TestEveryKeyHelpsTheEditor(t *testing.T) {
	var root map[string]any
	if err := json.Unmarshal(JSONSchema(), &root); err != nil {
		t.Fatal(err)
	}
	keys, checked := 0, 0
	var walk func(path string, node map[string]any)
	walk = func(path string, node map[string]any) {
		samples, _ := node["examples"].([]any)
		if v, ok := node["default"]; ok {
			samples = append(samples, v)
		}
		if len(samples) > 0 {
			s, err := gojsonschema.NewSchema(gojsonschema.NewGoLoader(node))
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			for _, v := range samples {
				checked++
				if r, err := s.Validate(gojsonschema.NewGoLoader(v)); err != nil || !r.Valid() {
					t.Errorf("%s: the default or example %v is not valid: %v %v", path, v, err, r.Errors())
				}
			}
		}
		properties, _ := node["properties"].(map[string]any)
		for name, v := range properties {
			child := v.(map[string]any)
			keys++
			if text, _ := child["description"].(string); text == "" {
				t.Errorf("%s.%s has no description", path, name)
			}
			walk(path+"."+name, child)
		}
		for _, key := range []string{"additionalProperties", "items"} {
			if child, ok := node[key].(map[string]any); ok {
				walk(path+"[]", child)
			}
		}
	}
	walk("", root)
	if keys < 500 || checked < 300 {
		t.Errorf("only %d keys and %d values were looked at", keys, checked)
	}
}

// TestExamplesForEditors validates the examples with the JSON Schema itself, like an editor that
// reads the first line of a manifest.
func TestExamplesForEditors(t *testing.T) {
	files, err := filepath.Glob("../examples/*.toml")
	if err != nil || len(files) < 3 {
		t.Fatal("no examples", err)
	}
	mesh, err := filepath.Glob("../examples/mesh/*.toml")
	if err != nil || len(mesh) < 3 {
		t.Fatal("no mesh", err)
	}
	s := compiled(t)
	for _, file := range append(files, mesh...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		root, err := filepath.Rel(filepath.Dir(file), "..")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(text), "#:schema "+root+"/schema/agentbox.toml.schema.json\n") {
			t.Errorf("%s does not name the schema in its first line", file)
		}
		_, d, findings := Load(file, text)
		if len(findings) > 0 {
			t.Fatalf("%s: %v", file, findings)
		}
		if n := libraryCount(t, s, d); n != 0 {
			t.Errorf("%s breaks the JSON Schema %d times", file, n)
		}
		if out, bad := Format(file, text); bad != nil || string(out) != string(text) {
			t.Errorf("%s is not in canonical layout", file)
		}
	}
}

// TestEffectiveHidesCredentials puts credentials into the keys where users put them, with a right
// and a wrong type.
func TestEffectiveHidesCredentials(t *testing.T) {
	_, d, _ := load(t, `
[integrations.ruvector_external]
conninfo = ["hunter2"]
[federation]
external_url = "https://hunter2@mesh.example.org/x?a=1&token=hunter2"
[observability]
otlp_endpoint = { url = "x", password = "hunter2" }
[programs.a]
command = ["psql", "host=db password=hunter2", "--header=Authorization: Bearer hunter2-hunter2"]
[programs.a.environment]
DB_PASSWORD = ["hunter2"]
DB_PW = 7
PG_DSN = "host=db password='x' hunter2"
AUTH = "Bearer hunter2"
OPTIONS = "host=db password=hunter2"
[programs.b]
environment = { API_KEY = "hunter2" }
[providers.p]
enabled = true
env_var = "sk-hunter2"
optional_env_vars = ["hunter2 "]
`)
	shown := map[string]string{}
	for _, s := range Effective(d, nil, nil) {
		shown[s.Path] = TOML(s.Value)
		if strings.Contains(shown[s.Path], "hunter2") {
			t.Errorf("%s = %s", s.Path, shown[s.Path])
		}
	}
	for path, want := range map[string]string{
		"federation.external_url":         `"https://[redacted]@mesh.example.org/x?a=1&token=[redacted]"`,
		"programs.a.environment.OPTIONS":  `"host=db password=[redacted]"`,
		"providers.p.optional_env_vars":   `["[redacted]"]`,
		"programs.a.environment.DB_PW":    `"[redacted]"`,
		"programs.b.environment.API_KEY":  `"[redacted]"`,
		"integrations.solid_pod_rs.bind":  `"127.0.0.1"`,
		"sovereign_mesh.relay.data_dir":   `"/var/lib/nostr-relay"`,
		"consultants.intelligence_signal": "false",
	} {
		if shown[path] != want {
			t.Errorf("%s = %s, want %s", path, shown[path], want)
		}
	}
}

// TestEffectiveTypesTheEnvironment: a number from the environment stays a number.
func TestEffectiveTypesTheEnvironment(t *testing.T) {
	_, d, _ := load(t, "")
	for text, want := range map[string]any{"9292": int64(9292), "junk": "junk"} {
		env := func(name string) (string, bool) { return text, name == "AGENTBOX_METRICS_PORT" }
		for _, s := range Effective(d, env, nil) {
			if s.Path == "observability.metrics_port" && (s.Value != want || s.Source != "env") {
				t.Errorf("%+v, want %v", s, want)
			}
		}
	}
}
