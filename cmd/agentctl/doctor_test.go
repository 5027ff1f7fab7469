package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/adapters"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
)

const doctorManifest = `[observability]
metrics_port = 9191
otlp_endpoint = "http://otel:secret@collector:4318"
[adapters]
beads = "local-sqlite"
events = "local-jsonl"
[adapters_compat]
events = "v1"
`

// doctorFiles holds the answers of a box of doctorManifest and its description files. All of them
// agree.
type doctorFiles struct{ manifest, compose, image, meta, health, level string }

func agreed(t *testing.T) doctorFiles {
	t.Helper()
	sum := sha256.Sum256([]byte(doctorManifest))
	f := doctorFiles{
		manifest: doctorManifest,
		meta: `{"manifest_checksum": "sha256:` + hex.EncodeToString(sum[:]) + `", "federation_mode": "standalone",
			"observability": {"metrics_endpoint": "http://127.0.0.1:9191/metrics", "otlp_endpoint": "http://collector:4318"},
			"adapter_impls": {"beads": "local-sqlite", "pods": "off", "memory": "off", "events": "local-jsonl", "orchestrator": "off"},
			"adapter_contract_versions": {"beads": "1.1", "pods": "1.1", "memory": "1.1", "events": "1.0", "orchestrator": "1.1"}}`,
		health: `{"listeners": [{"name": "management", "address": "[::]:9090", "bound": true},
			{"name": "metrics", "address": "[::]:9191", "bound": true}], "contract_drift": [], "adapters": [
			{"slot": "beads", "impl": "local-sqlite", "status": "healthy"}, {"slot": "pods", "impl": "off", "status": "off"},
			{"slot": "memory", "impl": "off", "status": "off"}, {"slot": "events", "impl": "local-jsonl", "status": "healthy"},
			{"slot": "orchestrator", "impl": "off", "status": "off"}]}`,
		level: "info",
	}
	f.compose = generated(t, "compose")
	f.image = generated(t, "image")
	return f
}

func generated(t *testing.T, format string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"generate", format, "-"}, noEnv, strings.NewReader(doctorManifest), &stdout, &stderr); code != 0 {
		t.Fatalf("generate %s: %d %s", format, code, stderr.String())
	}
	return stdout.String()
}

func noEnv(string) (string, bool) { return "", false }

// diagnose runs doctor against a box with the answers of f.
func diagnose(t *testing.T, f doctorFiles, env func(string) (string, bool), args ...string) (code int, links []link, stderr string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"agentbox.toml": f.manifest, "docker-compose.yml": f.compose, "image.json": f.image} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b := controltest.New()
	b.ProbeJSON = map[string]string{"/v1/meta": f.meta, "/health": f.health}
	if err := b.SetLevel(f.level); err != nil {
		t.Fatal(err)
	}
	socket := controltest.Serve(t, b.Own())
	var stdout, errors bytes.Buffer
	all := append([]string{"--json", "--socket", socket, "doctor", "--image", filepath.Join(dir, "image.json")}, args...)
	code = run(t.Context(), append(all, filepath.Join(dir, "agentbox.toml")), env, strings.NewReader(""), &stdout, &errors)
	var out struct {
		Drifted int    `json:"drifted"`
		Links   []link `json:"links"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &out); err != nil {
		t.Fatalf("%v: %s%s", err, stdout.String(), errors.String())
	}
	if out.Drifted != drifted(out.Links) {
		t.Errorf("drifted is %d of %v", out.Drifted, out.Links)
	}
	return code, out.Links, errors.String()
}

// differing lists the links that drift, as "LINK WHAT".
func differing(links []link) (out []string) {
	for _, l := range links {
		if l.State == linkDrift {
			out = append(out, l.Link+" "+l.What)
		}
	}
	return out
}

func TestDoctorFindsNothingWhereAllAgree(t *testing.T) {
	code, links, stderr := diagnose(t, agreed(t), noEnv)
	if code != exitOK || differing(links) != nil || stderr != "" {
		t.Errorf("status %d, %v, %q", code, differing(links), stderr)
	}
	for _, want := range []string{
		"compose AGENTBOX_METRICS_PORT", "compose AGENTBOX_OTLP_ENDPOINT", "compose AGENTBOX_LOG_LEVEL", "compose MANAGEMENT_API_PORT",
		"compose port 9191", "compose port 9090", "image port 9191", "image port 9090", "bound metrics", "bound management",
		"manifest manifest_checksum", "meta metrics_endpoint", "meta otlp_endpoint", "meta federation_mode",
		"log-level AGENTBOX_LOG_LEVEL", "contract drift detector",
		"adapters beads", "adapters beads serving", "adapters beads contract", "adapters events contract", "adapters orchestrator",
	} {
		found := false
		for _, l := range links {
			found = found || l.Link+" "+l.What == want && l.State == linkOK
		}
		if !found {
			t.Errorf("the link %s has not been compared", want)
		}
	}
}

// A compose file that is too large is not compared, and its beginning is not taken for the whole.
func TestDoctorReadsNoHalfFile(t *testing.T) {
	f := agreed(t)
	f.compose = strings.Repeat("# a comment\n", maxSmallFile/10) + f.compose
	code, links, _ := diagnose(t, f, noEnv)
	if code != exitOK || links[0].State != linkSkipped || !strings.Contains(links[0].Hint, "larger than") {
		t.Errorf("status %d, %+v", code, links[0])
	}
}

// TestDoctorSeesEachLink breaks one link at a time.
func TestDoctorSeesEachLink(t *testing.T) {
	swap := func(text *string, old, new string) {
		if !strings.Contains(*text, old) {
			t.Fatalf("there is no %q in %s", old, *text)
		}
		*text = strings.Replace(*text, old, new, 1)
	}
	for name, c := range map[string]struct {
		change func(*doctorFiles)
		want   []string
	}{
		"the manifest, a comment alone": {func(f *doctorFiles) { f.manifest += "# changed\n" }, []string{"manifest manifest_checksum"}},
		"the environment in compose": {func(f *doctorFiles) {
			swap(&f.compose, `AGENTBOX_METRICS_PORT: "9191"`, `AGENTBOX_METRICS_PORT: "9091"`)
		},
			[]string{"compose AGENTBOX_METRICS_PORT"}},
		"a variable taken out of compose": {func(f *doctorFiles) { swap(&f.compose, "AGENTBOX_LOG_LEVEL: info", "OTHER: info") },
			[]string{"compose AGENTBOX_LOG_LEVEL"}},
		"a port taken out of compose": {func(f *doctorFiles) { swap(&f.compose, `- "9191:9191"`, `- "9191:9091"`) },
			[]string{"compose port 9091", "compose port 9191"}},
		"compose is no compose file":   {func(f *doctorFiles) { f.compose = "services: [" }, []string{"compose FILE"}},
		"compose has no such service":  {func(f *doctorFiles) { f.compose = "services: {web: {}}" }, []string{"compose FILE"}},
		"a port of nobody in compose":  {func(f *doctorFiles) { swap(&f.compose, `- "9191:9191"`, "- \"9191:9191\"\n      - \"80:many\"") }, []string{"compose port 80:many"}},
		"the image's exposed ports":    {func(f *doctorFiles) { swap(&f.image, `"9191/tcp"`, `"9091/tcp"`) }, []string{"image port 9091", "image port 9191"}},
		"an image that cannot be read": {func(f *doctorFiles) { f.image = "no JSON" }, []string{"image IMAGE"}},
		"the bound port": {func(f *doctorFiles) { swap(&f.health, ":9191", ":9091"); swap(&f.meta, ":9191", ":9091") },
			[]string{"bound metrics"}},
		"a port that is not bound": {func(f *doctorFiles) {
			swap(&f.health, `:9191", "bound": true`, `:9191", "bound": false, "reason": "address already in use"`)
			swap(&f.meta, "http://127.0.0.1:9191/metrics", "")
		}, []string{"bound metrics"}},
		"a listener that is off":        {func(f *doctorFiles) { swap(&f.health, `"management"`, `"other"`) }, []string{"bound management"}},
		"/v1/meta and the bound port":   {func(f *doctorFiles) { swap(&f.meta, ":9191", ":9092") }, []string{"meta metrics_endpoint"}},
		"/v1/meta and the trace sink":   {func(f *doctorFiles) { swap(&f.meta, "collector", "elsewhere") }, []string{"meta otlp_endpoint"}},
		"/v1/meta and the federation":   {func(f *doctorFiles) { swap(&f.meta, "standalone", "client") }, []string{"meta federation_mode"}},
		"a log level changed meanwhile": {func(f *doctorFiles) { f.level = "debug" }, []string{"log-level AGENTBOX_LOG_LEVEL"}},
		"the manifest's adapter":        {func(f *doctorFiles) { swap(&f.meta, `"pods": "off"`, `"pods": "external"`) }, []string{"adapters pods", "adapters pods serving"}},
		"a slot that is degraded": {func(f *doctorFiles) {
			swap(&f.health, `"local-sqlite", "status": "healthy"`, `"off", "status": "degraded", "reason": "the disk is full"`)
		}, []string{"adapters beads serving"}},
		"a slot that is unhealthy": {func(f *doctorFiles) {
			swap(&f.health, `"local-sqlite", "status": "healthy"`, `"local-sqlite", "status": "unhealthy"`)
		},
			[]string{"adapters beads serving"}},
		"a slot that is not served": {func(f *doctorFiles) { swap(&f.health, `"slot": "events"`, `"slot": "others"`) }, []string{"adapters events serving"}},
		"a slot that /v1/meta does not name": {func(f *doctorFiles) { swap(&f.meta, `"memory": "off", `, "") },
			[]string{"adapters memory", "adapters memory serving"}},
		"another contract":     {func(f *doctorFiles) { swap(&f.meta, `"beads": "1.1"`, `"beads": "2.0"`) }, []string{"adapters beads contract"}},
		"another old contract": {func(f *doctorFiles) { swap(&f.meta, `"events": "1.0"`, `"events": "2.0"`) }, []string{"adapters events contract"}},
		"what the drift detector found": {func(f *doctorFiles) {
			swap(&f.health, `"contract_drift": []`, `"contract_drift": [
				{"surface": "capabilities", "drift_kind": "not_dropped", "expected": "none", "actual": "SYS_ADMIN", "severity": "fatal"},
				{"surface": "environment:AGENTBOX_METRICS_PORT", "drift_kind": "different", "expected": "9191", "actual": "9091", "severity": "warning"}]`)
		}, []string{"contract capabilities", "contract environment:AGENTBOX_METRICS_PORT"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := agreed(t)
			c.change(&f)
			code, links, _ := diagnose(t, f, noEnv)
			got := differing(links)
			for i := range got { // replaces the temporary directory
				link, what, _ := strings.Cut(got[i], " ")
				if strings.HasSuffix(what, "docker-compose.yml") {
					got[i] = link + " FILE"
				}
				if strings.HasSuffix(what, "image.json") {
					got[i] = link + " IMAGE"
				}
			}
			if code != exitFailure || !reflect.DeepEqual(got, c.want) {
				t.Errorf("status %d, differing %v, want %v", code, got, c.want)
			}
			for _, l := range links {
				if l.State == linkDrift && l.Hint == "" {
					t.Errorf("%s %s has no hint", l.Link, l.What)
				}
			}
		})
	}
}

// A listener without its port is told apart from one on another port.
func TestDoctorOfAPortThatIsTaken(t *testing.T) {
	f := agreed(t)
	f.health = strings.Replace(f.health, `:9191", "bound": true`, `:9191", "bound": false, "reason": "address already in use"`, 1)
	_, links, _ := diagnose(t, f, noEnv)
	for _, l := range links {
		if l.Link == "bound" && l.What == "metrics" && l.Hint != "mend what ACTUAL names, such as another process on this port; agentinit tries again every few seconds" {
			t.Errorf("%+v", l)
		}
	}
}

// TestDoctorHidesPasswords: doctor hides passwords in both values of the trace sink.
func TestDoctorHidesPasswords(t *testing.T) {
	_, links, _ := diagnose(t, agreed(t), noEnv)
	for _, l := range links {
		if l.Link == "meta" && strings.Contains(l.Expected+l.Actual, "secret") {
			t.Errorf("%+v shows the password", l)
		}
	}
}

// TestSpokenContract: the client commands use the major contract version of the slots.
func TestSpokenContract(t *testing.T) {
	for _, c := range adapters.Contracts() {
		if got := majorOf(c.Version, ""); got != spoken {
			t.Errorf("slot %s has contract %s, this program speaks %s", c.Slot, got, spoken)
		}
	}
}

func TestReadCompose(t *testing.T) {
	lookup := func(name string) (string, bool) { return map[string]string{"P": "7"}[name], name == "P" }
	for name, c := range map[string]struct {
		ports, environment string
		want               described
	}{
		"short forms": {`["1:2", "127.0.0.1:3:4/tcp", 5, "6-7:8-9", "[::1]:1:10"]`, `{}`, described{Ports: []int{2, 4, 5, 8, 9, 10}}},
		"long form":   {`[{target: 80, published: "8080"}]`, `{}`, described{Ports: []int{80}}},
		"variables":   {`["${P}:${Q:-81}", "82:${P:-1}"]`, `{A: "${P}", B: "$$x", C: "${Q-z}", D: "$P"}`, described{Ports: []int{7, 81}, Environment: map[string]string{"A": "7", "B": "$x", "C": "z", "D": "7"}}},
		"no number":   {`["web", "1:99999", "1:9-3"]`, `{}`, described{Unread: []string{"web", "1:99999", "1:9-3"}}},
		"list":        {`[]`, `["A=1", "B"]`, described{Environment: map[string]string{"A": "1"}}},
		"no value":    {`[]`, `{A: , B: 2}`, described{Environment: map[string]string{"B": "2"}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readCompose([]byte("services: {agentbox: {ports: "+c.ports+", environment: "+c.environment+"}}"), lookup)
			if err != nil {
				t.Fatal(err)
			}
			if c.want.Environment == nil {
				c.want.Environment = map[string]string{}
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
	for _, text := range []string{"services: {agentbox: {ports: {a: 1}}}", "services: {agentbox: {environment: 7}}", "services: {agentbox: {ports: [{target: [1]}]}}", "\t"} {
		if got, err := readCompose([]byte(text), lookup); err == nil {
			t.Errorf("%q gave %+v", text, got)
		}
	}
}

func TestReadImage(t *testing.T) {
	for _, text := range []string{
		`{"ExposedPorts": {"80/tcp": {}, "53/udp": {}, "81": {}}}`,
		`{"architecture": "amd64", "config": {"ExposedPorts": {"81/tcp": {}, "80/tcp": {}}}}`,
		`[{"Id": "x", "Config": {"ExposedPorts": {"81/tcp": {}, "80/tcp": {}}}}]`,
	} {
		if got, err := readImage([]byte(text)); err != nil || !reflect.DeepEqual(got, []int{80, 81}) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{`{"ExposedPorts": {"web": {}}}`, `[]`, `7`, ``} {
		if got, err := readImage([]byte(text)); err == nil {
			t.Errorf("%q gave %v", text, got)
		}
	}
}
