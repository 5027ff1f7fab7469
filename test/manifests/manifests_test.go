// Package manifests_test holds what agentctl generates against the readers that
// matter: the reference implementation of the compose format and the strict
// decoder of Kubernetes. It is a module of its own, because their dependencies
// have no place in the product's.
package manifests_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

var agentctl string

// TestMain builds agentctl, or takes the one that AGENTCTL names.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		if agentctl = os.Getenv("AGENTCTL"); agentctl != "" {
			return m.Run()
		}
		dir, err := os.MkdirTemp("", "agentctl")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		agentctl = filepath.Join(dir, "agentctl")
		build := exec.Command("go", "build", "-o", agentctl, "./cmd/agentctl")
		build.Dir = filepath.Join("..", "..")
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// generate runs agentctl generate on a manifest.
func generate(t *testing.T, manifest string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(agentctl, append([]string{"generate"}, args...)...)
	cmd.Args = append(cmd.Args, "-")
	cmd.Stdin = strings.NewReader(manifest)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("agentctl %v: %v\n%s\n%s", args, err, stderr.String(), manifest)
	}
	return out
}

// features are one manifest for each thing that can be on alone, with what the
// rules want beside it.
func features() map[string]string {
	on := func(path string) string {
		table, key, _ := cutLast(path, ".")
		return "[" + table + "]\n" + key + " = true\n"
	}
	out := map[string]string{}
	for _, path := range []string{
		"skills.browser.qe_browser", "skills.browser.agent_browser", "skills.media.ffmpeg", "skills.media.imagemagick", "skills.media.comfyui_builtin",
		"skills.spatial_and_3d.blender", "skills.spatial_and_3d.qgis", "skills.data_science.pytorch", "skills.data_science.jupyter",
		"skills.docs.latex", "skills.docs.mermaid", "skills.docs.report_builder", "skills.ontology.enabled",
		"toolchains.claude", "toolchains.claude_code", "toolchains.ruflo", "toolchains.claude_flow", "toolchains.agentic_qe", "toolchains.nagual_qe",
		"toolchains.codebase_memory", "toolchains.rust", "toolchains.gemini_cli", "toolchains.codex",
		"integrations.comfyui_external.enabled", "consultants.enabled", "linked_data.enabled",
		"sovereign_mesh.enabled", "sovereign_mesh.nostr_bridge", "sovereign_mesh.publish_agent_events",
	} {
		out[path] = on(path)
	}
	maps.Copy(out, map[string]string{
		"playwright":      on("skills.browser.playwright") + "[security.exceptions.playwright]\ncap_add = [\"SYS_ADMIN\"]\n",
		"desktop":         on("desktop.enabled") + "[security.exceptions.desktop]\ntmpfs = [\"/tmp/.X11-unix\", \"/run/user/1000\"]\n",
		"code-server":     on("toolchains.code_server") + "[security.exceptions.code-server]\nwritable_volumes = [\"codeserver-config:/home/devuser/.local/share/code-server\"]\n",
		"telegram":        on("sovereign_mesh.telegram_mirror") + "[security.exceptions.telegram-mirror]\nwritable_volumes = [\"ctm-config:/home/devuser/.config/ctm\"]\n",
		"https-bridge":    "[sovereign_mesh]\nenabled = true\nhttps_bridge = true\n",
		"relay":           "[sovereign_mesh]\nenabled = true\n[sovereign_mesh.relay]\nenabled = true\nexpose = true\nbind = \"0.0.0.0\"\n[security.exceptions.nostr-relay]\nwritable_volumes = [\"nostr-relay-data:/var/lib/nostr-relay\"]\n",
		"pod":             "[adapters]\npods = \"local-solid-rs\"\n[sovereign_mesh]\nenabled = true\n[integrations.solid_pod_rs]\nbind = \"0.0.0.0\"\n[security.exceptions.solid-pod-rs]\nwritable_volumes = [\"solid-data:/var/lib/solid\"]\n",
		"privacy":         "[privacy_filter]\nenabled = true\nmode = \"local-cpu\"\n",
		"rocm":            "[gpu]\nbackend = \"ollama-rocm\"\n[security.exceptions.gpu-rocm]\ndevices = [\"/dev/kfd\", \"/dev/dri\"]\n",
		"ollama-cuda":     "[gpu]\nbackend = \"ollama-cuda\"\n[security.exceptions.gpu-cuda]\nruntime = \"nvidia\"\ndevice_requests = [{ driver = \"nvidia\", count = -1, capabilities = [[\"gpu\"]] }]\n",
		"local-cuda":      "[gpu]\nbackend = \"local-cuda\"\n[toolchains]\ncuda = true\n[security.exceptions.gpu-cuda]\nruntime = \"nvidia\"\n",
		"splatting":       "[gpu]\nbackend = \"local-cuda\"\n[skills.spatial_and_3d]\ngaussian_splatting = true\n[security.exceptions.gpu-cuda]\n[security.exceptions.gaussian-splatting]\ninherits = [\"gpu-cuda\"]\n",
		"network":         "[integrations.external_network]\nenabled = true\nnetwork = \"mesh\"\n",
		"provider":        "[providers.zai]\nenabled = true\nenv_var = \"ZAI_API_KEY\"\noptional_env_vars = [\"ZAI_URL\"]\n",
		"programs":        "[programs.web]\ncommand = [\"web\", \"${PORT:-80}\", \"${DSN}\"]\ninstances = 3\n",
		"no listeners":    "[supervisor]\nlisten = \"off\"\nmetrics_listen = \"off\"\n",
		"listeners":       "[supervisor]\nlisten = \"127.0.0.1:9190\"\nmetrics_listen = \":9191\"\nstop_grace = \"90s\"\n[bootstrap]\nseal_timeout = \"10m\"\n",
		"hostile":         "[core]\norchestration = \"a: b # ${X} $(Y) \\\"'{}[]\"\n[observability]\notlp_endpoint = \"yes\"\n",
		"seccomp profile": on("desktop.enabled") + "[security.exceptions.desktop]\nsecurity_opt_override = [\"seccomp=profiles/desktop.json\", \"apparmor=unconfined\"]\ngroup_add = [\"44\", \"video\"]\n",
		"apparmor":        on("desktop.enabled") + "[security.exceptions.desktop]\nsecurity_opt_override = [\"apparmor=box\", \"label=disable\"]\n",
		"volumes, ports":  "[supervisor]\nvolumes = [\"data:/a\", \"./data:/b\", \".:/c\", \"manifest:/d\", \"./日本:/e\", \"tmp:/tmp\"]\nwritable = [\"/a\", \"/日\"]\nports = [\"127.0.0.1:80:8080\", \"81:8080\", \"10.0.0.1:80:9000\"]\n",
		"nothing":         "",
	})
	return out
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	return s[:i], s[i+1:], i >= 0
}

// cases are all features on, all off, and each alone.
func cases(t *testing.T) map[string]string {
	t.Helper()
	out := features()
	for name, file := range map[string]string{
		"all on": "schema/plan/testdata/all.toml", "standalone": "schema/compose/testdata/standalone.toml",
		"minimal": "examples/minimal.toml", "webapp": "examples/webapp.toml", "agentbox": "examples/agentbox.toml",
		"mesh host": "examples/mesh/mesh-host.toml", "mesh box": "examples/mesh/box-a.toml",
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(file)))
		if errors.Is(err, os.ErrNotExist) && name == "agentbox" {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		out[name] = string(text)
	}
	off, err := allOff(out["all on"])
	if err != nil {
		t.Fatal(err)
	}
	out["all off"] = off
	return out
}

// allOff turns every switch of a manifest off and leaves its privileges out.
func allOff(text string) (string, error) {
	features, _, ok := strings.Cut(text, "[security]")
	if !ok {
		return "", errors.New("the manifest of all features has no [security]")
	}
	off := strings.ReplaceAll(features, "= true", "= false")
	off = strings.ReplaceAll(off, `"local-cuda"`, `"none"`)
	off = strings.ReplaceAll(off, `"local-linkedobjects"`, `"off"`)
	for _, class := range []string{"local-sqlite", "local-solid-rs", "embedded-ruvector", "local-jsonl", "local-process-manager"} {
		off = strings.ReplaceAll(off, `"`+class+`"`, `"off"`)
	}
	off = strings.ReplaceAll(off, `mode = "local-gpu"`, `mode = "off"`)
	off = strings.ReplaceAll(off, `bind = "0.0.0.0"`, `bind = "127.0.0.1"`)
	return off, nil
}

// project loads a compose file with the reference implementation: current
// schema, unknown keys refused, interpolation.
func project(t *testing.T, content []byte, env ...string) (*types.Project, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "docker-compose.yml")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	options, err := cli.NewProjectOptions([]string{file}, cli.WithName("x"), cli.WithEnv(env), cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	return options.LoadProject(t.Context())
}

func TestComposeFilesLoad(t *testing.T) {
	for name, manifest := range cases(t) {
		t.Run(name, func(t *testing.T) {
			p, err := project(t, generate(t, manifest, "compose"))
			if err != nil {
				t.Fatal(err)
			}
			box, err := p.GetService("agentbox")
			if err != nil {
				t.Fatal(err)
			}
			checkHardening(t, box)
			checkMounts(t, p, box)
		})
	}
}

// The compose file of the mesh has three boxes that share a network and no volume.
func TestComposeFileOfTheMesh(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "examples", "mesh", "docker-compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := project(t, text, "AGENTBOX_FEDERATION_TOKEN=shared")
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]string{} // volume or directory: its box
	for _, name := range []string{"mesh-host", "box-a", "box-b"} {
		box, err := p.GetService(name)
		if err != nil {
			t.Fatal(err)
		}
		checkHardening(t, box)
		checkMounts(t, p, box)
		if token := box.Environment["AGENTBOX_FEDERATION_TOKEN"]; token == nil || *token != "shared" || box.Hostname != name {
			t.Errorf("%s: token %v, hostname %s", name, token, box.Hostname)
		}
		if _, shared := box.Networks["agentbox"]; !shared {
			t.Errorf("%s is not in the network", name)
		}
		for _, v := range box.Volumes {
			if other := used[v.Source]; other != "" {
				t.Errorf("%s and %s share %s", other, name, v.Source)
			}
			used[v.Source] = name
		}
	}
}

// checkHardening reads the baseline back from what the reference reader made of
// the file.
func checkHardening(t *testing.T, s types.ServiceConfig) {
	t.Helper()
	if !s.ReadOnly || s.User != "1000:1000" || !slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Contains(s.SecurityOpt, "no-new-privileges:true") {
		t.Errorf("read_only %v, user %s, cap_drop %v, security_opt %v", s.ReadOnly, s.User, s.CapDrop, s.SecurityOpt)
	}
	// The image of an agentbox has it in /bin; a plain image wherever its PATH says.
	asks := func(tool string) bool { return slices.Equal(s.HealthCheck.Test, []string{"CMD", tool, "ready"}) }
	if s.HealthCheck == nil || !asks("/bin/agentctl") && !asks("agentctl") {
		t.Errorf("healthcheck %+v", s.HealthCheck)
	}
}

func checkMounts(t *testing.T, p *types.Project, s types.ServiceConfig) {
	t.Helper()
	targets := map[string]bool{}
	for _, v := range s.Volumes {
		if targets[v.Target] {
			t.Errorf("two mounts at %s", v.Target)
		}
		targets[v.Target] = true
		if _, declared := p.Volumes[v.Source]; v.Type == "volume" && !declared {
			t.Errorf("volume %s is not declared", v.Source)
		}
	}
}

// A typo in a generated file would not be noticed if the reader did not refuse
// unknown keys.
func TestTheComposeReaderRefusesUnknownKeys(t *testing.T) {
	good := generate(t, "", "compose")
	bad := bytes.Replace(good, []byte("read_only:"), []byte("read_onyl:"), 1)
	if _, err := project(t, bad); err == nil {
		t.Error("a misspelt key was accepted")
	}
}

func TestComposeInterpolation(t *testing.T) {
	content := generate(t, features()["provider"]+"[observability]\notlp_endpoint = \"${NOT_ME}\"\n", "compose", "--system", "aarch64-linux")
	p, err := project(t, content, "ZAI_API_KEY=k", "NOT_ME=me")
	if err != nil {
		t.Fatal(err)
	}
	box, err := p.GetService("agentbox")
	if err != nil {
		t.Fatal(err)
	}
	if box.Image != "agentbox:runtime-aarch64-linux" {
		t.Errorf("image %s", box.Image)
	}
	for name, want := range map[string]string{"ZAI_API_KEY": "k", "AGENTBOX_OTLP_ENDPOINT": "${NOT_ME}", "OPENAI_API_KEY": "ollama"} {
		if got := box.Environment[name]; got == nil || *got != want {
			t.Errorf("%s=%v, want %q", name, got, want)
		}
	}
	if _, set := box.Environment["ZAI_URL"]; set && box.Environment["ZAI_URL"] != nil {
		t.Errorf("ZAI_URL=%q although the operator has not set it", *box.Environment["ZAI_URL"])
	}
}

// decode reads every document with the strict decoder of Kubernetes.
func decode(content []byte) ([]any, error) {
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	var objects []any
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(doc, []byte("kind:")) {
			continue // the header
		}
		o, _, err := decoder.Decode(doc, nil, nil)
		if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
}

func TestKubernetesObjectsDecode(t *testing.T) {
	for name, manifest := range cases(t) {
		t.Run(name, func(t *testing.T) {
			objects, err := decode(generate(t, manifest, "kubernetes"))
			if err != nil {
				t.Fatal(err)
			}
			var set *appsv1.StatefulSet
			var service *corev1.Service
			for _, o := range objects {
				switch o := o.(type) {
				case *appsv1.StatefulSet:
					set = o
				case *corev1.Service:
					service = o
				case *corev1.ConfigMap:
					if text, ok := o.Data["agentbox.toml"]; ok && text != manifest {
						t.Errorf("the ConfigMap carries another manifest:\n%s", text)
					}
				}
			}
			if set == nil || service == nil {
				t.Fatalf("objects %T", objects)
			}
			checkPod(t, set, secondsOf(t, manifest, stopGrace, 25), secondsOf(t, manifest, sealTimeout, 120))
			checkService(t, service, set)
		})
	}
}

var (
	stopGrace   = regexp.MustCompile(`stop_grace = "([^"]+)"`)
	sealTimeout = regexp.MustCompile(`seal_timeout = "([^"]+)"`)
)

// secondsOf is what a manifest of these tests says, or the default.
func secondsOf(t *testing.T, manifest string, key *regexp.Regexp, otherwise int) int {
	t.Helper()
	m := key.FindStringSubmatch(manifest)
	if m == nil {
		return otherwise
	}
	d, err := time.ParseDuration(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return int(d.Seconds())
}

// checkPod looks at what a decoder cannot: references between the parts, names
// that an API server would refuse, and the budgets.
func checkPod(t *testing.T, set *appsv1.StatefulSet, grace, seal int) {
	t.Helper()
	pod := set.Spec.Template.Spec
	have := map[string]bool{}
	for _, v := range pod.Volumes {
		have[v.Name] = true
	}
	for _, c := range set.Spec.VolumeClaimTemplates {
		have[c.Name] = true
	}
	for name := range have {
		if bad := validation.IsDNS1123Label(name); len(bad) > 0 {
			t.Errorf("volume %q: %v", name, bad)
		}
	}
	for _, c := range pod.Containers {
		paths := map[string]bool{}
		for _, m := range c.VolumeMounts {
			if !have[m.Name] {
				t.Errorf("%s mounts %s, which is not declared", c.Name, m.Name)
			}
			if paths[m.MountPath] {
				t.Errorf("%s: two mounts at %s", c.Name, m.MountPath)
			}
			paths[m.MountPath] = true
		}
		for _, p := range c.Ports {
			if bad := validation.IsValidPortName(p.Name); len(bad) > 0 {
				t.Errorf("port %q: %v", p.Name, bad)
			}
		}
	}
	box := pod.Containers[0]
	s := box.SecurityContext
	if s == nil || !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || *s.RunAsUser != 1000 || fmt.Sprint(s.Capabilities.Drop) != "[ALL]" || s.SeccompProfile == nil {
		t.Errorf("security context %+v", s)
	}
	if box.StartupProbe == nil || box.ReadinessProbe == nil {
		t.Fatal("probes are missing")
	}
	if n := box.StartupProbe.FailureThreshold * box.StartupProbe.PeriodSeconds; int(n) <= seal {
		t.Errorf("the startup probe lasts %d s, the seal may take %d s", n, seal)
	}
	if int(*pod.TerminationGracePeriodSeconds) <= grace {
		t.Errorf("terminationGracePeriodSeconds %d, the box may take %d s", *pod.TerminationGracePeriodSeconds, grace)
	}
}

func checkService(t *testing.T, service *corev1.Service, set *appsv1.StatefulSet) {
	t.Helper()
	ports := map[string]bool{}
	for _, c := range set.Spec.Template.Spec.Containers {
		for _, p := range c.Ports {
			ports[p.Name] = true
		}
	}
	for _, p := range service.Spec.Ports {
		if !ports[p.TargetPort.StrVal] {
			t.Errorf("the service points at port %s, which no container has", p.TargetPort.StrVal)
		}
	}
	if fmt.Sprint(service.Spec.Selector) != fmt.Sprint(set.Spec.Template.Labels) || fmt.Sprint(set.Spec.Selector.MatchLabels) != fmt.Sprint(set.Spec.Template.Labels) {
		t.Error("selectors and labels differ")
	}
}

func TestTheKubernetesReaderRefusesUnknownKeys(t *testing.T) {
	good := generate(t, "", "kubernetes")
	bad := bytes.Replace(good, []byte("securityContext:"), []byte("securityContxt:"), 1)
	if _, err := decode(bad); err == nil {
		t.Error("a misspelt key was accepted")
	}
}

func TestExamplePod(t *testing.T) {
	content, err := os.ReadFile(filepath.Join("..", "..", "examples", "kubernetes", "pod.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decode(content)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			continue
		}
		c := pod.Spec.Containers[0]
		for name, probe := range map[string]*corev1.Probe{"/livez": c.LivenessProbe, "/ready": c.ReadinessProbe, "/ready ": c.StartupProbe} {
			if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != strings.TrimSpace(name) {
				t.Errorf("probe of %s: %+v", name, probe)
			}
		}
		if c.StartupProbe.FailureThreshold*c.StartupProbe.PeriodSeconds <= 120 {
			t.Error("the startup probe gives up before the seal does")
		}
		return
	}
	t.Error("no pod")
}
