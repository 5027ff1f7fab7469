package compose_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/compose"
)

var update = flag.Bool("update", false, "write the golden files")

func load(t *testing.T, text string) *compose.Box {
	t.Helper()
	box, findings := loadAny(t, text)
	for _, f := range findings {
		if f.Severity == schema.Error {
			t.Errorf("finding: %v", f)
		}
	}
	return box
}

func loadAny(t *testing.T, text string) (*compose.Box, []schema.Finding) {
	t.Helper()
	m, doc, findings := schema.Load("agentbox.toml", []byte(text))
	if len(findings) > 0 {
		t.Fatalf("%q does not load: %v", text, findings)
	}
	box, findings, err := compose.New(compose.Input{
		Manifest: m, Document: doc, Command: "agentctl generate x agentbox.toml", Version: "1.2.3", System: "x86_64-linux",
	})
	if err != nil {
		t.Fatal(err)
	}
	return box, findings
}

// render generates one box in every format.
func render(t *testing.T, box *compose.Box, text []byte) map[string][]byte {
	t.Helper()
	env, err := box.Env()
	if err != nil {
		t.Fatal(err)
	}
	image, err := box.Image()
	if err != nil {
		t.Fatal(err)
	}
	cluster, _ := box.Kubernetes(compose.Kubernetes{Text: text, PodMonitor: true})
	out := map[string][]byte{"docker-compose.yml": box.Compose(), "agentbox.yaml": cluster, "agentbox.env": env, "image.json": image}
	for _, f := range quadlet(t, box) {
		out[f.Name] = f.Content
	}
	return out
}

// manifests are the golden cases.
func manifests(t *testing.T) map[string]string {
	t.Helper()
	all, err := os.ReadFile("../plan/testdata/all.toml")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{"all": string(all)}
	files, err := filepath.Glob("testdata/*.toml")
	if err != nil || len(files) == 0 {
		t.Fatal("no manifests in testdata", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimSuffix(filepath.Base(file), ".toml")] = string(text)
	}
	return out
}

func TestGolden(t *testing.T) {
	for name, text := range manifests(t) {
		t.Run(name, func(t *testing.T) {
			files := render(t, load(t, text), []byte(text))
			again := render(t, load(t, text), []byte(text))
			dir := filepath.Join("testdata", name)
			if *update {
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for file, content := range files {
				if !bytes.Equal(content, again[file]) {
					t.Errorf("%s differs between two runs", file)
				}
				golden := filepath.Join(dir, file)
				if *update {
					if err := os.WriteFile(golden, content, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(golden)
				if err != nil {
					t.Error(err)
				}
				if !bytes.Equal(content, want) {
					t.Errorf("%s changed; -update and git diff show how", golden)
				}
			}
			have, err := os.ReadDir(dir)
			if err != nil || len(have) != len(files) {
				t.Errorf("%s has %d files, %d are generated: %v", dir, len(have), len(files), err)
			}
		})
	}
}

// decode reads YAML with an independent parser.
func decode(t *testing.T, text []byte) []map[string]any {
	t.Helper()
	var docs []map[string]any
	d := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var doc map[string]any
		if err := d.Decode(&doc); err != nil {
			break
		}
		docs = append(docs, doc)
	}
	if len(docs) == 0 {
		t.Fatalf("no document in\n%s", text)
	}
	return docs
}

// at returns the value at the given keys of a decoded document.
func at(t *testing.T, v any, keys ...any) any {
	t.Helper()
	for _, k := range keys {
		switch k := k.(type) {
		case string:
			m, ok := v.(map[string]any)
			if !ok {
				t.Fatalf("%v: not a mapping before %v", keys, k)
			}
			v = m[k]
		case int:
			l, ok := v.([]any)
			if !ok || k >= len(l) {
				t.Fatalf("%v: no element %d", keys, k)
			}
			v = l[k]
		}
	}
	return v
}

func service(t *testing.T, box *compose.Box, name string) map[string]any {
	t.Helper()
	s, ok := at(t, decode(t, box.Compose())[0], "services", name).(map[string]any)
	if !ok {
		t.Fatalf("no service %s", name)
	}
	return s
}

func statefulSet(t *testing.T, box *compose.Box) map[string]any {
	t.Helper()
	out, _ := box.Kubernetes(compose.Kubernetes{Text: []byte("x\n")})
	for _, d := range decode(t, out) {
		if d["kind"] == "StatefulSet" {
			return at(t, d, "spec", "template", "spec").(map[string]any)
		}
	}
	t.Fatal("no StatefulSet")
	return nil
}

// The environment, the published ports, the exposed ports and the pod agree with [observability].
func TestObservabilityChain(t *testing.T) {
	box := load(t, "[core]\n[observability]\nmetrics_port = 9191\notlp_endpoint = 'http://otel:4318'\nlog_level = 'warn'\n[supervisor]\nlisten = ':9990'\nlog.level = 'debug'")
	want := map[string]string{
		"AGENTBOX_METRICS_PORT": "9191", "AGENTBOX_OTLP_ENDPOINT": "http://otel:4318", "AGENTBOX_LOG_LEVEL": "debug", "MANAGEMENT_API_PORT": "9990",
	}
	s := service(t, box, "agentbox")
	c := at(t, statefulSet(t, box), "containers", 0)
	for name, value := range want {
		if got := box.Environment[name]; got != value {
			t.Errorf("image environment: %s=%q, want %q", name, got, value)
		}
		if got := at(t, s, "environment", name); got != value {
			t.Errorf("compose environment: %s=%v, want %q", name, got, value)
		}
		entry := map[string]any{"name": name, "value": value}
		if !slices.ContainsFunc(at(t, c, "env").([]any), func(e any) bool { return fmt.Sprint(e) == fmt.Sprint(entry) }) {
			t.Errorf("pod environment lacks %v", entry)
		}
	}
	ports := fmt.Sprint(s["ports"])
	if !strings.Contains(ports, "9191:9191") || !strings.Contains(ports, "9990:9990") || strings.Contains(ports, "9091") || strings.Contains(ports, "9090") {
		t.Errorf("compose ports %s", ports)
	}
	image, err := box.Image()
	if err != nil {
		t.Fatal(err)
	}
	var config struct{ ExposedPorts map[string]any }
	if err := json.Unmarshal(image, &config); err != nil {
		t.Fatal(err)
	}
	for _, port := range []string{"9191/tcp", "9990/tcp"} {
		if _, ok := config.ExposedPorts[port]; !ok {
			t.Errorf("the image does not expose %s: %v", port, config.ExposedPorts)
		}
	}
	if !strings.Contains(fmt.Sprint(at(t, c, "ports")), "9191") {
		t.Errorf("pod ports %v", at(t, c, "ports"))
	}
}

func TestBudgetsFit(t *testing.T) {
	box := load(t, "[supervisor]\nstop_grace = '41.2s'\n[bootstrap]\nseal_timeout = '301s'")
	if got := service(t, box, "agentbox")["stop_grace_period"]; got != "47s" {
		t.Errorf("stop_grace_period %v, want more than 41.2s", got)
	}
	if got := at(t, service(t, box, "agentbox"), "healthcheck", "start_period"); got != "301s" {
		t.Errorf("start_period %v: the seal may take 301 s", got)
	}
	if unit := string(quadlet(t, box)[0].Content); !strings.Contains(unit, "HealthStartPeriod=301s\n") {
		t.Errorf("the start period of the unit is not that of the seal:\n%s", unit)
	}
	pod := statefulSet(t, box)
	if got := pod["terminationGracePeriodSeconds"]; got != 47 {
		t.Errorf("terminationGracePeriodSeconds %v", got)
	}
	startup := at(t, pod, "containers", 0, "startupProbe")
	if n := at(t, startup, "periodSeconds").(int) * at(t, startup, "failureThreshold").(int); n <= 301 {
		t.Errorf("the startup probe lasts %d s, the seal may take 301 s", n)
	}
}

// A box that waits for its host is not ready. The kubelet must not kill it for that.
func TestWaitingForAHostIsNoFailedStart(t *testing.T) {
	for orchestrator, want := range map[string]bool{"stdio-bridge": false, "local-process-manager": true} {
		probes := at(t, statefulSet(t, load(t, "[adapters]\norchestrator = '"+orchestrator+"'")), "containers", 0).(map[string]any)
		if _, is := probes["startupProbe"]; is != want || probes["readinessProbe"] == nil || probes["livenessProbe"] == nil {
			t.Errorf("%s: %v", orchestrator, probes)
		}
	}
}

// If clients outside cannot reach a listener, it is neither published nor probed.
func TestLoopbackListeners(t *testing.T) {
	for name, c := range map[string]struct{ text, absent string }{
		"management": {"[core]\n[supervisor]\nlisten = '127.0.0.1:9090'", "9090"},
		"off":        {"[core]\n[supervisor]\nlisten = 'off'", "9090"},
		"metrics":    {"[core]\n[supervisor]\nmetrics_listen = '[::1]:9091'", "9091"},
		"pod":        {"[adapters]\npods = 'local-solid-rs'\n[sovereign_mesh]\nenabled = true\n[security.exceptions.solid-pod-rs]", "8484"},
		"relay":      {"[sovereign_mesh.relay]\nenabled = true\nexpose = true\n[security.exceptions.nostr-relay]", "7777"},
	} {
		t.Run(name, func(t *testing.T) {
			box := load(t, c.text)
			if ports := fmt.Sprint(service(t, box, "agentbox")["ports"]); strings.Contains(ports, c.absent) {
				t.Errorf("published: %s", ports)
			}
			image, err := box.Image()
			if err != nil || strings.Contains(string(image), `"`+c.absent+"/tcp") {
				t.Errorf("exposed: %s %v", image, err)
			}
			if c.absent != "9090" {
				return
			}
			container := at(t, statefulSet(t, box), "containers", 0).(map[string]any)
			if fmt.Sprint(at(t, container, "readinessProbe", "exec", "command")) != "[/bin/agentctl ready]" || container["livenessProbe"] != nil {
				t.Errorf("probes %v %v", container["readinessProbe"], container["livenessProbe"])
			}
		})
	}
}

func TestPublishedPorts(t *testing.T) {
	for text, want := range map[string]string{
		"":       "[9090:9090 9091:9091]",
		"[core]": "[9090:9090 9091:9091 9700:9700]",
		"[desktop]\nenabled = true\n[security.exceptions.desktop]":            "[9090:9090 9091:9091 9700:9700]",
		"[skills.data_science]\njupyter = true":                               "[9090:9090 9091:9091 9700:9700 8888:8888]",
		"[toolchains]\ncode_server = true\n[security.exceptions.code-server]": "[9090:9090 9091:9091 9700:9700 8080:8080]",
		"[skills.media]\ncomfyui_builtin = true":                              "[9090:9090 9091:9091 9700:9700]",
		"[privacy_filter]\nenabled = true\nmode = 'local-cpu'":                "[9090:9090 9091:9091 9700:9700]",
		"[sovereign_mesh]\nenabled=true\n[adapters]\npods='local-solid-rs'\n[integrations.solid_pod_rs]\nbind='0.0.0.0'\nport=8585\n[security.exceptions.solid-pod-rs]": "[9090:9090 9091:9091 9700:9700 8585:8585]",
		"[sovereign_mesh]\nenabled=true\n[sovereign_mesh.relay]\nenabled=true\nexpose=true\nbind='0.0.0.0'\nport=7800\n[security.exceptions.nostr-relay]":               "[9090:9090 9091:9091 9700:9700 7800:7800]",
	} {
		if got := fmt.Sprint(service(t, load(t, text), "agentbox")["ports"]); got != want {
			t.Errorf("%s\nports %s, want %s", text, got, want)
		}
	}
}

func TestGPUDispatch(t *testing.T) {
	block := map[string]string{
		"none": "", "ollama-rocm": "[security.exceptions.gpu-rocm]\ndevices = ['/dev/kfd', '/dev/dri']",
		"ollama-cuda": "[security.exceptions.gpu-cuda]\nruntime = 'nvidia'", "local-cuda": "[security.exceptions.gpu-cuda]\nruntime = 'nvidia'",
	}
	for backend, exception := range block {
		t.Run(backend, func(t *testing.T) {
			box := load(t, "[gpu]\nbackend = '"+backend+"'\n"+exception)
			services := at(t, decode(t, box.Compose())[0], "services").(map[string]any)
			sidecar, on := services["ollama"].(map[string]any)
			main := services["agentbox"].(map[string]any)
			if on != (backend != "none") {
				t.Fatalf("sidecar: %v", on)
			}
			if box.Environment["GPU_BACKEND"] != backend {
				t.Errorf("GPU_BACKEND=%s", box.Environment["GPU_BACKEND"])
			}
			_, cuda := box.Environment["CUDA_VISIBLE_DEVICES"]
			if local := backend == "local-cuda"; cuda != local || (main["runtime"] == "nvidia") != local || (main["deploy"] != nil) != local {
				t.Errorf("the box: runtime %v, deploy %v, CUDA environment %v", main["runtime"], main["deploy"], cuda)
			}
			if main["devices"] != nil || main["cap_add"] != nil {
				t.Errorf("the box got devices %v", main["devices"])
			}
			switch backend {
			case "ollama-rocm":
				if fmt.Sprint(sidecar["devices"]) != "[/dev/kfd:/dev/kfd /dev/dri:/dev/dri]" || fmt.Sprint(sidecar["group_add"]) != "[video 988]" ||
					!strings.Contains(fmt.Sprint(sidecar["security_opt"]), "seccomp=unconfined") || sidecar["runtime"] != nil {
					t.Errorf("sidecar %v", sidecar)
				}
			case "ollama-cuda", "local-cuda":
				request := at(t, sidecar, "deploy", "resources", "reservations", "devices", 0)
				want := map[string]string{"ollama-cuda": "[gpu]", "local-cuda": "[gpu compute utility]"}[backend]
				if sidecar["runtime"] != "nvidia" || at(t, request, "driver") != "nvidia" || at(t, request, "count") != "all" || fmt.Sprint(at(t, request, "capabilities")) != want {
					t.Errorf("sidecar %v", sidecar)
				}
			}
		})
	}
}

// A privilege needs its exception: without the block, the box has only the baseline.
func TestNoBlockNoPrivilege(t *testing.T) {
	box := load(t, "[gpu]\nbackend = 'local-cuda'\n[skills.browser]\nplaywright = true")
	s := service(t, box, "agentbox")
	if s["runtime"] != nil || s["deploy"] != nil || s["cap_add"] != nil {
		t.Errorf("the box has runtime %v, deploy %v, cap_add %v", s["runtime"], s["deploy"], s["cap_add"])
	}
}

func TestOperatorVariables(t *testing.T) {
	s := service(t, load(t, `
[providers.zai]
enabled = true
env_var = "ZAI_API_KEY"
optional_env_vars = ["ZAI_URL", "not a name"]
[providers.off]
enabled = false
env_var = "OFF_KEY"
[providers.openai]
enabled = true
env_var = "OPENAI_API_KEY"
[slots.beads]
token_env = "BEADS_PASS"
[programs.web]
command = ["web", "${DATABASE:?}", "${HOME}", "${PORT}"]
environment = { PORT = "8${SUFFIX:-0}", SAME = "${SAME:?set it}", PATH = "/opt/bin:${PATH}" }
pass_environment = ["LC_*", "PATH", "TERM", "USER", "WEB_TOKEN"]
[supervisor.log.forward.loki]
type = "loki"
url = "https://loki.example.org"
token_env = "LOKI"
[api.keys.oncall]
role = "viewer"
env = "ONCALL"
`), "agentbox")
	env := s["environment"].(map[string]any)
	for name, want := range map[string]any{
		"ZAI_API_KEY": "${ZAI_API_KEY:-}", "OPENAI_API_KEY": "${OPENAI_API_KEY:-}", "OPENAI_BASE_URL": "${OPENAI_BASE_URL:-http://host.docker.internal:11434/v1}",
		"MANAGEMENT_API_KEY": "${MANAGEMENT_API_KEY:-}", "OLLAMA_MODEL": "${OLLAMA_MODEL:-qwen2.5:32b-instruct}",
		"ZAI_URL": nil, "BEADS_PASS": nil, "DATABASE": nil, "SUFFIX": nil,
		"SAME": nil, "USER": nil, "WEB_TOKEN": nil, "LOKI": nil, "ONCALL": nil,
	} {
		if got, ok := env[name]; !ok || got != want {
			t.Errorf("%s: %v (%v), want %v", name, got, ok, want)
		}
	}
	for _, name := range []string{"OFF_KEY", "not a name", "HOME", "PORT", "INSTANCE", "PATH", "TERM", "LC_*"} {
		if _, ok := env[name]; ok {
			t.Errorf("%s is passed on", name)
		}
	}
}

// No value of a manifest can break out of its place in the file or be interpolated.
func TestHostileValues(t *testing.T) {
	nasty := "a: b # ${HOME} $(X) $$y $$(Z) \"'`\\n{x}\t%i"
	text := fmt.Sprintf("[core]\norchestration = %q\n[observability]\notlp_endpoint = %q\n[toolchains]\ncode_server = true\n[security.exceptions.code-server]\nwritable_volumes = ['data:/y {Z}%%i']", nasty, nasty)
	box := load(t, text)
	s := service(t, box, "agentbox")
	if got := at(t, s, "environment", "AGENTBOX_OTLP_ENDPOINT"); got != strings.ReplaceAll(nasty, "$", "$$") {
		t.Errorf("compose: %q", got)
	}
	if got := fmt.Sprint(s["volumes"]); !strings.Contains(got, "data:/y {Z}%i") {
		t.Errorf("volumes %s", got)
	}
	found := false
	for _, e := range at(t, statefulSet(t, box), "containers", 0, "env").([]any) {
		if at(t, e, "name") == "AGENTBOX_OTLP_ENDPOINT" {
			found = at(t, e, "value") == strings.ReplaceAll(nasty, "$", "$$")
		}
	}
	if !found {
		t.Error("the pod's environment does not carry the value")
	}
	env, err := box.Env()
	if err != nil || !strings.Contains(string(env), "\nAGENTBOX_OTLP_ENDPOINT="+nasty+"\n") {
		t.Errorf("env %v", err)
	}
	// systemd replaces variables in the command that podman makes of the unit.
	unit := string(quadlet(t, box)[0].Content)
	for _, want := range []string{
		`Environment="AGENTBOX_OTLP_ENDPOINT=` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%", "$", "$$").Replace(nasty) + `"`,
		"Volume=agentbox-data:/y {Z}%%i",
	} {
		if !strings.Contains(unit, "\n"+want+"\n") {
			t.Errorf("no line %s in\n%s", want, unit)
		}
	}
	lines := load(t, "[core]\norchestration = \"a\\nEVIL=1\"")
	if _, err := lines.Env(); err == nil {
		t.Error("a value with a line break made a second line of the environment file")
	}
}

func TestSeccompDefaultNeverReachesAnEngine(t *testing.T) {
	for name, text := range manifests(t) {
		for file, content := range render(t, load(t, text), []byte("x\n")) {
			if strings.Contains(string(content), "seccomp=default") || strings.Contains(string(content), "mode=755") {
				t.Errorf("%s/%s says seccomp=default or mode=755", name, file)
			}
		}
	}
}

func TestGenerationDoesNotAskForTheBoxesEnvironment(t *testing.T) {
	_, findings := loadAny(t, "[programs.a]\ncommand = ['a', '${NONE}']\nenv_file = '/none'")
	if len(findings) != 0 {
		t.Errorf("findings %v", findings)
	}
	_, findings = loadAny(t, "[programs.a]\ncommand = ['a']\nneeds = ['b']")
	if len(findings) != 1 || findings[0].Code != "E123" {
		t.Errorf("findings %v, want the mistake in needs", findings)
	}
}

// A setting for which a pod has a field is written. The others are reported in a note.
func TestPodConfinement(t *testing.T) {
	box := load(t, "[desktop]\nenabled = true\n[security.exceptions.desktop]\nsecurity_opt_override = ['apparmor=box', 'seccomp=box.json', 'label=disable']\n")
	spec := at(t, statefulSet(t, box), "containers", 0, "securityContext")
	for field, want := range map[string]string{"appArmorProfile": "box", "seccompProfile": "box.json"} {
		if at(t, spec, field, "type") != "Localhost" || at(t, spec, field, "localhostProfile") != want {
			t.Errorf("%s is %v", field, at(t, spec, field))
		}
	}
	if _, notes := box.Kubernetes(compose.Kubernetes{}); len(notes) != 2 || !strings.Contains(notes[0], "label=disable") || !strings.Contains(notes[1], "copy the file to box.json ") {
		t.Errorf("the notes are %q", notes)
	}
}

// A file with a seccomp profile is where each engine reads it. The API server takes a path below the
// kubelet's directory only, and a unit has no directory of its own.
func TestSeccompProfileOfTheOperator(t *testing.T) {
	for value, want := range map[string]struct{ pod, unit string }{
		"box.json":       {"box.json", "%E/agentbox/box.json"},
		"./p/100%.json":  {"p/100%.json", "%E/agentbox/p/100%%.json"},
		"~/box.json":     {"~/box.json", "%h/box.json"},
		"/etc/box.json":  {"etc/box.json", "/etc/box.json"},
		"/etc/../b.json": {"b.json", "/etc/../b.json"},
		"unconfined":     {"", "unconfined"},
	} {
		box := load(t, "[desktop]\nenabled = true\n[security.exceptions.desktop]\nsecurity_opt_override = ['seccomp="+value+"']\n")
		if unit := string(quadlet(t, box)[0].Content); !strings.Contains(unit, "\nSeccompProfile="+want.unit+"\n") {
			t.Errorf("%s: the unit has no SeccompProfile=%s:\n%s", value, want.unit, unit)
		}
		profile := at(t, statefulSet(t, box), "containers", 0, "securityContext", "seccompProfile").(map[string]any)
		if got, _ := profile["localhostProfile"].(string); got != want.pod {
			t.Errorf("%s: the pod has %v, want %q", value, profile, want.pod)
		}
	}
}

// Compose maps a device node to the same path in the box, and takes the name of a CDI device as it is.
func TestDevicesOfCompose(t *testing.T) {
	box := load(t, "[gpu]\nbackend = 'ollama-rocm'\n[security.exceptions.gpu-rocm]\ndevices = ['amd.com/gpu=all', '/dev/x', '/dev/y:/dev/z:r']\n")
	got := fmt.Sprint(service(t, box, "ollama")["devices"])
	if want := "[/dev/kfd:/dev/kfd /dev/dri:/dev/dri amd.com/gpu=all /dev/x:/dev/x /dev/y:/dev/z:r]"; got != want {
		t.Errorf("devices %s, want %s", got, want)
	}
}

// Each volume of a pod has a name of its own that Kubernetes accepts, whatever its source is called.
// Two volumes with one name would be one claim.
func TestVolumesOfAPodHaveNamesOfTheirOwn(t *testing.T) {
	box := load(t, `[supervisor]
volumes = ["data:/a", "./data:/b", "Data:/c", "a.b:/d", "a-b:/e", ".:/f", "/:/g", "./日本:/h", "manifest:/i", "tmpfs-run:/j", "ollama:/k", "tmp:/tmp", "./`+strings.Repeat("x", 80)+`:/l", "data:/again"]
writable = ["/日", "/本", "/a", "/var/cache/x"]
`)
	text, _ := box.Kubernetes(compose.Kubernetes{Text: []byte("x\n")})
	set := decode(t, text)[2]
	pod := at(t, set, "spec", "template", "spec")
	names, paths := map[string]string{}, map[string]bool{}
	valid := regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	for _, m := range at(t, pod, "containers", 0, "volumeMounts").([]any) {
		name, path := at(t, m, "name").(string), at(t, m, "mountPath").(string)
		if paths[path] {
			t.Errorf("two mounts at %s", path)
		}
		paths[path] = true
		if other, ok := names[name]; ok && path != "/again" || !valid.MatchString(name) {
			t.Errorf("%s has the volume %q, as %q", path, name, other)
		}
		names[name] = path
	}
	if len(paths) != 19 || names["data"] != "/again" || names["tmp"] != "/tmp" {
		t.Errorf("got %v", names)
	}
	declared := map[string]bool{}
	for _, v := range at(t, pod, "volumes").([]any) {
		declared[at(t, v, "name").(string)] = true
	}
	for _, c := range at(t, set, "spec", "volumeClaimTemplates").([]any) {
		name := at(t, c, "metadata", "name").(string)
		if declared[name] {
			t.Errorf("%q is declared twice", name)
		}
		declared[name] = true
	}
	for name := range names {
		if !declared[name] {
			t.Errorf("%q is mounted and not declared", name)
		}
	}
	// In a compose file too, each path is mounted once.
	for _, text := range at(t, service(t, box, "agentbox"), "tmpfs").([]any) {
		if path, _, _ := strings.Cut(text.(string), ":"); path == "/tmp" || path == "/a" {
			t.Errorf("a volume and a tmpfs at %s", path)
		}
	}
}

// A podman unit names the directories of the operator in systemd's words, and no "%" of a path is
// one of them.
func TestQuadletSources(t *testing.T) {
	box := load(t, `[supervisor]
volumes = ["~/x:/a", "~:/b", ".:/c", "./100%n:/d", "/srv/50%data:/e", "data:/f:ro", "../y:/g"]
[adapters]
pods = "local-solid-rs"
[security.exceptions.solid-pod-rs]
writable_volumes = ["solid-data:/h"]
group_add = ["a\nPodmanArgs=--privileged"]`)
	unit := string(quadlet(t, box)[0].Content)
	if !strings.Contains(unit, "\nPodmanArgs=--group-add=a PodmanArgs=--privileged\n") {
		t.Errorf("a line break in a group has made a second line of\n%s", unit)
	}
	for _, want := range []string{
		"%h/x:/a", "%h:/b", "%E/agentbox:/c", "%E/agentbox/100%%n:/d", "/srv/50%%data:/e", "agentbox-data:/f:ro", "../y:/g",
		"agentbox-solid-data:/h", "%E/agentbox/agentbox.toml:/etc/agentbox.toml:ro",
	} {
		if !strings.Contains(unit, "\nVolume="+want+"\n") {
			t.Errorf("no volume %s in\n%s", want, unit)
		}
	}
}

func quadlet(t *testing.T, box *compose.Box) []compose.File {
	t.Helper()
	files, err := box.Quadlet()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A backslash at the end of a line would join it with the next one.
func TestQuadletRefusesAContinuation(t *testing.T) {
	for _, text := range []string{
		"[supervisor]\nvolumes = ['data:/x\\']\n",
		"[adapters]\npods = 'local-solid-rs'\n[security.exceptions.solid-pod-rs]\ngroup_add = ['a\\']\n",
	} {
		box, _ := loadAny(t, text)
		if _, err := box.Quadlet(); err == nil || !strings.Contains(err.Error(), "backslash") {
			t.Errorf("%s: %v", text, err)
		}
	}
	box, _ := loadAny(t, "[supervisor]\nvolumes = ['data:/x\\:ro', './a\\b:/y']\nwritable = ['/z\\']\n")
	quadlet(t, box)
}

// A claim has no files of the machine that the description was made on. A note says so of what the
// manifest itself mounts.
func TestFilesOfTheHostAreNotInAClaim(t *testing.T) {
	box, _ := loadAny(t, "[supervisor]\nvolumes = ['./nginx.conf:/etc/nginx.conf:ro', 'data:/data', '/srv/www:/www']\n")
	_, notes := box.Kubernetes(compose.Kubernetes{Text: []byte("x\n")})
	all := strings.Join(notes, "\n")
	if !strings.Contains(all, "becomes a claim that is an empty directory: ./nginx.conf (at /etc/nginx.conf), /srv/www (at /www); copy") {
		t.Errorf("the notes are %q", notes)
	}
	box, _ = loadAny(t, "[supervisor]\nvolumes = ['data:/data']\n")
	if _, notes := box.Kubernetes(compose.Kubernetes{Text: []byte("x\n")}); len(notes) > 0 {
		t.Errorf("without files of the host, the notes are %q", notes)
	}
}

// What a tmpfs covers is missing when the box starts, and without an env_file it does not start.
func TestEnvFilesInATmpfs(t *testing.T) {
	box, _ := loadAny(t, `[supervisor]
volumes = ["./mounted.env:/run/mounted.env:ro", "conf:/tmp/conf"]
[programs.web]
command = "sleep 1"
writable = ["/var/cache/web"]
env_file = ["/run/secrets/a.env", "/run/mounted.env", "/tmp/conf/b.env", "-/run/optional.env", "/etc/c.env", "/var/cache/web//d.env"]
`)
	want := []string{
		`/run is an empty tmpfs when the box starts: without the env_file /run/secrets/a.env of web the box does not start; mount the file as a secret, or add volumes = ["./a.env:/run/secrets/a.env:ro"] to the program`,
		`/var/cache/web is an empty tmpfs when the box starts: without the env_file /var/cache/web//d.env of web the box does not start; mount the file as a secret, or add volumes = ["./d.env:/var/cache/web/d.env:ro"] to the program`,
	}
	if !slices.Equal(box.Notes, want) {
		t.Errorf("the notes are %q", box.Notes)
	}
}

// A port may be published at several places of the host. A Service has one address, and therefore
// each of its ports once.
func TestAPortAtSeveralPlaces(t *testing.T) {
	box, _ := loadAny(t, `[supervisor]
ports = ["127.0.0.1:80:8080", "81:8080", "[::1]:80:8080", "10.0.0.1:80:9000", "81:9001", "81:53/udp", "19090:9090"]`)
	if got, want := fmt.Sprint(service(t, box, "agentbox")["ports"]),
		"[9090:9090 9091:9091 127.0.0.1:80:8080 81:8080 [::1]:80:8080 10.0.0.1:80:9000 81:53/udp]"; got != want {
		t.Errorf("compose publishes %s, want %s", got, want)
	}
	text, notes := box.Kubernetes(compose.Kubernetes{Text: []byte("x\n")})
	docs := decode(t, text)
	var got []string
	for _, p := range at(t, docs[1], "spec", "ports").([]any) {
		got = append(got, fmt.Sprint(at(t, p, "name"), " ", at(t, p, "port"), ">", at(t, p, "targetPort")))
	}
	want := []string{"management 9090>management", "metrics 9091>metrics", "tcp-8080 80>tcp-8080", "tcp-8080-81 81>tcp-8080", "udp-53 81>udp-53"}
	if !slices.Equal(got, want) {
		t.Errorf("the Service has %q, want %q", got, want)
	}
	names := map[string]bool{}
	for _, p := range at(t, docs[2], "spec", "template", "spec", "containers", 0, "ports").([]any) {
		name := at(t, p, "name").(string)
		if names[name] {
			t.Errorf("the container has %s twice", name)
		}
		names[name] = true
	}
	all := strings.Join(notes, "\n")
	for _, part := range []string{"port 80, published at 127.0.0.1 elsewhere, is open to the cluster", "port 80 of the Service leads to port 8080 of the box, so its port 9000 is left out"} {
		if !strings.Contains(all, part) {
			t.Errorf("no note %q in\n%s", part, all)
		}
	}
}

// agentinit can hand on only the capabilities that the container has.
func TestCapabilitiesOfSandboxes(t *testing.T) {
	box, _ := loadAny(t, `
[programs.nginx]
command = "nginx"
user = "root"
sandbox = { preset = "web" }
[programs.ping]
command = "ping"
user = "nobody"
instances = 2
sandbox = { capabilities = ["cap_net_raw"] }
[programs.off]
command = "off"
sandbox = { mode = "off", capabilities = ["SYS_PTRACE"] }
`)
	if got := strings.Join(box.Security.Effective.CapAdd, " "); got != "KILL SETGID SETUID NET_BIND_SERVICE CHOWN DAC_OVERRIDE NET_RAW" || len(box.Notes) > 0 {
		t.Errorf("the box has %s, and the notes %q", got, box.Notes)
	}
	box, _ = loadAny(t, "[programs.web]\ncommand = 'web'\ninstances = 2\nsandbox = { capabilities = ['NET_BIND_SERVICE'] }\n[programs.app]\ncommand = 'app'\nsandbox = { preset = 'python' }\n")
	want := []string{`the box runs as user 1000:1000, without the capabilities NET_BIND_SERVICE that the sandbox of web keeps; leave them out of sandbox.capabilities, or write user = "root" for the program: the box then runs as root and has them`}
	if len(box.Security.Effective.CapAdd) > 0 || !slices.Equal(box.Notes, want) {
		t.Errorf("the box has %q, and the notes %q", box.Security.Effective.CapAdd, box.Notes)
	}
}

// Agents, too, can have another user than the box only if it runs as root.
func TestUserOfAgents(t *testing.T) {
	const local = "[bootstrap]\nprofile = 'none'\n[adapters]\norchestrator = 'local-process-manager'\n"
	for text, want := range map[string]string{
		local: "1000:1000",
		local + "[supervisor.agents]\nuser = '1001'\n":                        "0:0",
		local + "[templates.coder]\ncommand = ['coder']\nuser = '1001'\n":     "0:0",
		"[bootstrap]\nprofile = 'none'\n[supervisor.agents]\nuser = '1001'\n": "1000:1000", // no agents here
	} {
		if box, _ := loadAny(t, text); box.Security.Effective.User != want {
			t.Errorf("%s\nruns as %s, want %s", text, box.Security.Effective.User, want)
		}
	}
}
