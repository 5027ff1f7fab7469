package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The pods that we hand to Kubernetes run under podman kube play, which reads the
// same objects: the example that is written by hand, and what `agentctl generate
// kubernetes` makes. podman 4.3 knows neither StatefulSet nor subPath: the template
// becomes a pod, and the manifest is that of the image instead of the ConfigMap's.
func TestKubePlay(t *testing.T) {
	needsPodman(t)
	dir := t.TempDir()
	makeImage(t, dir, example(t, "minimal"), nil)
	image := "localhost/agentbox:runtime-" + system()
	// podman raises limits unless it is told which: not every machine lets it.
	conf := filepath.Join(dir, "containers.conf")
	if err := os.WriteFile(conf, []byte("[containers]\ndefault_ulimits = [\"nofile=4096:4096\", \"nproc=4096:4096\"]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CONTAINERS_CONF", conf)
	written, err := os.ReadFile(filepath.Join("..", "examples", "kubernetes", "pod.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	generated := output(t, binary(t, "agentctl"), "generate", "kubernetes", "--system", system(), "--image", image, example(t, "minimal"))
	for name, objects := range map[string][]byte{
		"written":   bytes.ReplaceAll(written, []byte("image: agentbox:dev"), []byte("image: "+image)),
		"generated": podOf(t, generated),
	} {
		t.Run(name, func(t *testing.T) { played(t, objects) })
	}
}

// podOf makes a pod of the StatefulSet and keeps the ConfigMaps.
func podOf(t *testing.T, objects []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := yaml.NewEncoder(&out)
	pods := 0
	for d := yaml.NewDecoder(bytes.NewReader(objects)); ; {
		var o map[string]any
		if d.Decode(&o) != nil {
			break
		}
		switch o["kind"] {
		case "StatefulSet":
			template := o["spec"].(map[string]any)["template"].(map[string]any)
			template["apiVersion"], template["kind"] = "v1", "Pod"
			template["metadata"].(map[string]any)["name"] = "agentbox"
			for _, c := range template["spec"].(map[string]any)["containers"].([]any) {
				c := c.(map[string]any)
				c["imagePullPolicy"] = "Never"
				c["volumeMounts"] = slices.DeleteFunc(c["volumeMounts"].([]any), func(m any) bool { return m.(map[string]any)["subPath"] != nil })
			}
			pods++
			o = template
		case "ConfigMap":
		default:
			continue
		}
		if err := w.Encode(o); err != nil {
			t.Fatal(err)
		}
	}
	if pods != 1 {
		t.Fatalf("%d StatefulSets in\n%s", pods, objects)
	}
	return out.Bytes()
}

// played runs the objects and holds the box against the pod's own words.
func played(t *testing.T, objects []byte) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pod.yaml")
	if err := os.WriteFile(file, objects, 0o644); err != nil {
		t.Fatal(err)
	}
	const c = "agentbox-agentbox"
	t.Cleanup(func() {
		if t.Failed() {
			logs, err := podman(t, "logs", c)
			t.Logf("logs (%v):\n%s", err, logs)
		}
		mustPodman(t, "pod", "rm", "-f", "-t", "0", "agentbox")
	})
	mustPodman(t, "kube", "play", file)
	mustPodman(t, "exec", c, "/bin/agentctl", "wait", "--for", "ready", "--timeout", "60s")
	if out := mustPodman(t, "exec", c, "/bin/agentctl", "version"); !strings.Contains(out, "pid 1") {
		t.Errorf("version: %s", out)
	}
	mustPodman(t, "exec", c, "/bin/agentctl", "wait", "journal", "--for", "running", "--timeout", "60s")
	profile := mustPodman(t, "inspect", "--format", "{{.HostConfig.ReadonlyRootfs}} {{.Config.User}} {{len .EffectiveCaps}} {{.HostConfig.SecurityOpt}}", c)
	if !strings.HasPrefix(profile, "true 1000") || !strings.Contains(profile, " 0 [no-new-privileges]") {
		t.Errorf("the pod's security context became %q", profile)
	}
	mustPodman(t, "stop", "-t", "30", c)
	if code := mustPodman(t, "inspect", "--format", "{{.State.ExitCode}}", c); code != "0" {
		t.Errorf("ended with %s", code)
	}
}
