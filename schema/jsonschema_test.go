package schema

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"github.com/xeipuuv/gojsonschema"
)

var update = flag.Bool("update", false, "rewrite generated files")

// golden compares generated content with the file in the repository.
func golden(t *testing.T, path string, want []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s is not current; run: go test ./schema ./schema/rules -run Current -update", path)
	}
}

func TestSchemaFileIsCurrent(t *testing.T) {
	golden(t, "agentbox.toml.schema.json", JSONSchema())
}

func compiled(t testing.TB) *gojsonschema.Schema {
	t.Helper()
	loader := gojsonschema.NewSchemaLoader()
	loader.Draft = gojsonschema.Draft7
	loader.AutoDetect = false
	loader.Validate = true // validate the schema against the meta-schema
	s, err := loader.Compile(gojsonschema.NewBytesLoader(JSONSchema()))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// libraryCount is how many violations an independent JSON Schema library finds.
func libraryCount(t testing.TB, s *gojsonschema.Schema, d *Document) int {
	t.Helper()
	r, err := s.Validate(gojsonschema.NewGoLoader(d.raw))
	if err != nil {
		t.Fatal(err)
	}
	return len(r.Errors())
}

var countCases = []struct {
	name, text string
	want       int
	// lenient is how many violations the library does not report. It accepts 9090.0 as an integer,
	// skips the list of values after a wrong type, and does not check forms. It reports a bad name
	// twice.
	lenient int
}{
	{"empty", ``, 0, 0},
	{"unknown at the top", `x = 1`, 1, 0},
	{"two unknown in one table", "[core]\na = 1\nb = 2", 2, 0},
	{"several depths", "x = 1\n[core]\na = 1\n[skills.media]\nb = 2", 3, 0},
	{"nothing below an unknown key", "[x]\na = 1\n[x.y]\nb = {c = 1}", 1, 0},
	{"free provider names", "[providers.\"any thing\"]\nenabled = false\nenv_var = 'X'", 0, 0},
	{"empty provider misses two", "[providers.x]", 2, 0},
	{"wrong type", "[core]\norchestration = 1", 1, 0},
	{"wrong type at a list of values", "[gpu]\nbackend = 1", 2, 1},
	{"outside the list", "[gpu]\nbackend = 'weird'", 1, 0},
	{"case matters", "[gpu]\nbackend = 'None'", 1, 0},
	{"out of range", "[observability]\nmetrics_port = 0", 1, 0},
	{"range not looked at with a wrong type", "[observability]\nmetrics_port = '0'", 1, 0},
	{"float at an integer key", "[observability]\nmetrics_port = 9090.5", 1, 0},
	{"integral float", "[observability]\nmetrics_port = 9090.0", 1, 1},
	{"integral float out of range", "[observability]\nmetrics_port = 0.0", 2, 1},
	{"fraction out of range", "[observability]\nmetrics_port = 0.5", 2, 1},
	{"broken pattern", "[desktop]\nresolution = 'big'", 1, 0},
	{"pattern not looked at with a wrong type", "[desktop]\nresolution = 3", 1, 0},
	{"bad items", "[sovereign_mesh.relay]\nallowed_kinds = [1, -1, 'x', -2]", 3, 0},
	{"bad items of a list of values", "[privacy_filter.entities]\nenabled = ['secret', 'x', 3]", 3, 1},
	{"array of tables for a table", "[[core]]\norchestration = 3\n[[core]]\nx = 1", 1, 0},
	{"table for a string", "[core.orchestration]\nx = 1", 1, 0},
	{"string for a table", "core = 'x'", 1, 0},
	{"large integers", "[integrations.solid_pod_rs]\nquota_default_bytes = 107374182400", 0, 0},
	{"exception keys", "[security.exceptions.desktop]\ntmpfs = ['/x']\ndevices = ['/y']", 1, 0},
	{"exception of another name", "[security.exceptions.browser]", 1, 0},
	{"privilege keys", "[security]\naudit_acknowledged = true\nenforce = true\n[security.exceptions.gpu-rocm]\nsecurity_opt_override = ['seccomp=unconfined']\ngroup_add = ['video']\nreason = 'x'\nruntime_override = 'x'", 0, 0},
	{"device requests", "[[security.exceptions.gpu-cuda.device_requests]]\ndriver = 'nvidia'\ncount = -1\ncapabilities = [['gpu']]\nx = 1", 1, 0},
	{"home is no key of perplexity", "[consultants.perplexity]\nhome = '/x'", 1, 0},
	{"timeout range", "[consultants.codex]\ntimeout_ms = 999\n[consultants.zai]\ntimeout_ms = 600001", 2, 0},
	{"privacy_handoff", "[linked_data.privacy_handoff]\norder = 'before'", 1, 0},
	{"operator", "[sovereign_mesh.operator]\npubkey_hex = 'x'\nrelay_urls = ['wss://x']", 0, 0},
	{"retired keys", "[integrations.ragflow]\nenabled = true\n[sovereign_mesh]\njss_rust_backend = true\n[skills.media]\ncomfyui_external = true", 3, 0},
	{"retired value", "[adapters]\npods = 'local-jss'", 1, 0},
	{"contexts", "[linked_data.contexts]\na = 'x'\nb = 3", 1, 0},
	{"wrong type at a list, older section", "[gpu]\nbackend = true", 2, 1},
	{"wrong type at a list, our section", "[programs.web]\ncommand = 'x'\nstdin = true", 1, 0},
	{"probe without a scheme", "[programs.web]\ncommand = 'x'\nready = {http = 'localhost:8080/health'}\nhealth = {tcp = '80'}", 2, 2},
	{"probe with a variable", "[programs.web]\ncommand = 'x'\nready = {http = '${URL}', tcp = ':80', grpc = '[::1]:1/a.B'}", 0, 0},
	{"what a container has", "[supervisor]\nimage = 'x:1'\nports = [80, '80:8080', '127.0.0.1:80:8080', '[::1]:80:8080', '53/udp']\nvolumes = ['data:/data', './x:/etc/x:ro']\nwritable = ['/var/cache']\n[programs.a]\ncommand = 'a'\nports = ['1:2/tcp']", 0, 0},
	{"what no container has", "[programs.a]\ncommand = 'a'\nports = [0, '0:1', 'http', '1:2:3', '80/sctp', 70000]\nvolumes = ['data', 'data:rel', 'a:/b:rx', '${X}:/a', 'a:/b/../c']\nwritable = ['rel', '/', '/a/', '/a:b']", 15, 13},
	{"program keys", "[programs.web]\ncomand = 'x'\npriority = -1\nrestart = 'sometimes'\ninstances = 'two'", 4, 0},
	{"program names", "[programs.Web]\ncommand = 'x'", 1, -1},
	{"durations", "[programs.web]\nstart_seconds = 'soon'\nstart_timeout = -1\nstop_timeout = 2.5", 2, 0},
	{"a duration beyond all bounds", "[programs.web]\nstart_seconds = '99999999h'", 1, 1},
	{"polymorphic keys", "[programs.web]\ncommand = []\nready = [{x = 1}, {http = 3}]\nstop_command = {timeout = 1}", 4, 0},
	{"an artifact without id", "[[artifacts]]\nclass = 'E'", 2, 0},
	{"unbalanced quotes", "[programs.web]\ncommand = \"a 'b\"", 1, 1},
	{"defaults hold no defaults", "[supervisor.defaults]\nrestart = 'always'\nx = 1", 1, 0},
	{"compat", "[adapters_compat]\nbeads = 'v1'\npods = '1'", 1, 0},
	{"slots", "[slots.memory.embedder]\nkind = 'other'\n[slots.beads]\nfsync = '1s'\n[slots.other]\n", 3, 0},
	{"ports", "[supervisor]\nlisten = '127.0.0.1:0'\nmetrics_listen = '[::1]:65535'", 0, 0},
	{"no ports", "[supervisor]\nlisten = '127.0.0.1:65536'\nmetrics_listen = ':99999'", 2, 0},
	{"a grace", "[supervisor]\nstop_grace = '1ms'\ndrain = 0", 0, 0},
	{"no grace in words", "[supervisor]\nstop_grace = '0s'", 1, 1},
	{"no grace in numbers", "[supervisor]\nstop_grace = 0", 1, 1},
	{"no time for an artifact", "artifacts = [{id = 'a', entry = '/a', timeout = 0}]", 1, 1},
	{"no time for the seal", "[bootstrap]\nseal_timeout = 0", 1, 1},
	{"no grace as a float", "[supervisor]\nstop_grace = 0.0", 1, 1},
	{"permission bits", "[supervisor]\nsocket_mode = '660'\ndefaults = { umask = 0o22 }\n[programs.a]\numask = 7\n[programs.b]\numask = '022'\n[programs.c]\numask = 0o0_22", 0, 0},
	{"decimal permission bits", "[supervisor]\nsocket_mode = 660\ndefaults = { umask =   22 }\n[programs.a]\numask = 0x12\n[programs.b]\numask = 1_8", 4, 4},
	{"impossible permission bits", "[programs.a]\numask = 9999\n[programs.b]\numask = 0o10000\n[programs.c]\numask = -1", 3, 0},
	{"no port at all", "[supervisor]\nlisten = '127.0.0.1'\nmetrics_listen = '::1:80'", 2, 0},
}

// TestNoNumbersAtIntegers is apart from countCases: JSON knows neither infinity nor NaN.
func TestNoNumbersAtIntegers(t *testing.T) {
	for text, want := range map[string]int{
		"[sovereign_mesh.relay]\nretention_days = inf":                  1, // not out of range
		"[sovereign_mesh.relay]\nretention_days = -inf":                 2,
		"[sovereign_mesh.relay]\nretention_days = nan":                  2,
		"[observability]\nmetrics_port = inf":                           2,
		"[[security.exceptions.gpu-cuda.device_requests]]\ncount = nan": 1, // there is no range
	} {
		if _, _, findings := load(t, text); len(findings) != want {
			t.Errorf("%s: %d findings, want %d: %v", text, len(findings), want, findings)
		}
	}
}

func TestCountsOfE016(t *testing.T) {
	s := compiled(t)
	for _, c := range countCases {
		_, d, findings := load(t, c.text)
		if d == nil || len(findings) != c.want {
			t.Errorf("%s: %d findings, want %d: %v", c.name, len(findings), c.want, findings)
			continue
		}
		if n := libraryCount(t, s, d); n != c.want-c.lenient {
			t.Errorf("%s: the library counts %d, want %d", c.name, n, c.want-c.lenient)
		}
		for _, f := range findings {
			if f.Code != "E016" || f.Line == 0 || f.Column == 0 || f.Path == "" {
				t.Errorf("%s: incomplete finding %+v", c.name, f)
			}
		}
	}
}

func TestDatesAreNeverValid(t *testing.T) {
	for _, v := range []string{"1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "1979-05-27 07:32:00"} {
		for _, key := range []string{"[core]\norchestration = ", "[desktop]\nenabled = ", "[programs.x]\nstart_seconds = "} {
			if _, _, findings := load(t, key+v); len(findings) != 1 {
				t.Errorf("%s%s: %v", key, v, findings)
			}
		}
	}
}
