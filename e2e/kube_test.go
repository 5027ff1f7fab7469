package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// podman kube play reads Kubernetes objects. The test runs our hand-written example pod with it,
// and the output of `agentctl generate kubernetes`.
func TestKubePlay(t *testing.T) {
	needsPodman(t)
	dir := t.TempDir()
	makeImage(t, dir, example(t, "minimal"), nil)
	image := "localhost/agentbox:runtime-" + system()
	fewerLimits(t)
	written, err := os.ReadFile(filepath.Join("..", "examples", "kubernetes", "pod.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	generated := output(t, binary(t, "agentctl"), "generate", "kubernetes", "--system", system(), "--image", image, example(t, "minimal"))
	for name, objects := range map[string][]byte{
		"written":   bytes.ReplaceAll(written, []byte("image: agentbox:dev"), []byte("image: "+image)),
		"generated": podOf(t, generated, "agentbox", image),
	} {
		t.Run(name, func(t *testing.T) { played(t, objects) })
	}
}

// fewerLimits sets the limits that podman gives a pod. podman would raise the limits, which some
// machines do not permit.
func fewerLimits(t *testing.T) {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "containers.conf")
	if err := os.WriteFile(conf, []byte("[containers]\ndefault_ulimits = [\"nofile=4096:4096\", \"nproc=4096:4096\"]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CONTAINERS_CONF", conf)
}

// podOf makes a pod of the StatefulSet and keeps the ConfigMaps. podman 4.3 supports neither
// StatefulSet nor subPath. Therefore the manifest gets its own directory, and the claims become
// volumes in memory.
func podOf(t *testing.T, objects []byte, name, image string) []byte {
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
			spec := o["spec"].(map[string]any)
			template := spec["template"].(map[string]any)
			template["apiVersion"], template["kind"] = "v1", "Pod"
			template["metadata"].(map[string]any)["name"] = name
			pod := template["spec"].(map[string]any)
			for _, c := range pod["containers"].([]any) {
				c := c.(map[string]any)
				c["image"], c["imagePullPolicy"] = image, "Never"
				// podman would bind the ports on the host too. The probes use these ports and need
				// curl.
				for _, key := range []string{"ports", "startupProbe", "readinessProbe", "livenessProbe"} {
					delete(c, key)
				}
				for _, m := range c["volumeMounts"].([]any) {
					m := m.(map[string]any)
					m["name"] = name + "-" + m["name"].(string)
					if m["subPath"] != nil {
						c["env"] = append(c["env"].([]any), map[string]any{"name": "AGENTBOX_CONFIG", "value": "/manifest/" + m["subPath"].(string)})
						m["mountPath"] = "/manifest"
						delete(m, "subPath")
					}
				}
			}
			claims, _ := spec["volumeClaimTemplates"].([]any)
			for _, c := range claims {
				pod["volumes"] = append(pod["volumes"].([]any), map[string]any{
					"name": c.(map[string]any)["metadata"].(map[string]any)["name"], "emptyDir": map[string]any{"medium": "Memory"},
				})
			}
			for _, v := range pod["volumes"].([]any) { // all pods of podman share volumes by name
				v := v.(map[string]any)
				v["name"] = name + "-" + v["name"].(string)
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

// played runs the objects with podman and checks that the box is ready and has the pod's security
// context.
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
	mustPodman(t, "exec", c, "/bin/agentctl", "wait", "--for", "ready", "--timeout", patience.String())
	if out := mustPodman(t, "exec", c, "/bin/agentctl", "version"); !strings.Contains(out, "pid 1") {
		t.Errorf("version: %s", out)
	}
	mustPodman(t, "exec", c, "/bin/agentctl", "wait", "journal", "--for", "running", "--timeout", patience.String())
	profile := mustPodman(t, "inspect", "--format", "{{.HostConfig.ReadonlyRootfs}} {{.Config.User}} {{len .EffectiveCaps}} {{.HostConfig.SecurityOpt}}", c)
	if !strings.HasPrefix(profile, "true 1000") || !strings.Contains(profile, " 0 [no-new-privileges]") {
		t.Errorf("the pod's security context became %q", profile)
	}
	mustPodman(t, "stop", "-t", "30", c)
	if code := mustPodman(t, "inspect", "--format", "{{.State.ExitCode}}", c); code != "0" {
		t.Errorf("ended with %s", code)
	}
}

// The host and two boxes of deploy/fleet find each other by the names of their objects. podman 4.3
// does not read the token from a Secret, so the token is in the environment.
func TestFleet(t *testing.T) {
	needsPodman(t)
	fewerLimits(t)
	makeImage(t, t.TempDir(), example(t, "minimal"), nil)
	mustPodman(t, "network", "create", "fleet")
	t.Cleanup(func() { mustPodman(t, "network", "rm", "-f", "fleet") })
	pod := func(file, name string) (container string) {
		t.Helper()
		objects, err := os.ReadFile(filepath.Join("..", "deploy", "fleet", file))
		if err != nil {
			t.Fatal(err)
		}
		env := []byte("          env:\n")
		objects = bytes.Replace(objects, env, append(env, "            - name: AGENTBOX_FEDERATION_TOKEN\n              value: "+meshToken+"\n"...), 1)
		path := filepath.Join(t.TempDir(), "pod.yaml")
		if err := os.WriteFile(path, podOf(t, objects, name, "localhost/agentbox:runtime-"+system()), 0o600); err != nil {
			t.Fatal(err)
		}
		container = name + "-agentbox"
		t.Cleanup(func() {
			if t.Failed() {
				logs, err := podman(t, "logs", container)
				t.Logf("logs of %s (%v):\n%s", name, err, logs)
			}
			mustPodman(t, "kube", "down", path)
		})
		mustPodman(t, "kube", "play", "--network", "fleet", path)
		return container
	}
	host := pod("host.yaml", "mesh-host")
	mustPodman(t, "exec", host, "/bin/agentctl", "wait", "--for", "ready", "--timeout", patience.String())
	boxes := []string{pod("box.yaml", "agentbox-0"), pod("box.yaml", "agentbox-1")}
	waitFor(t, "the host knows both boxes", func() bool {
		out, err := podman(t, "exec", host, "/bin/agentctl", "federation", "status")
		return err == nil && strings.Contains(out, "2 active, 0 silent, 0 evicted")
	})
	for _, c := range boxes {
		mustPodman(t, "exec", c, "/bin/agentctl", "wait", "--for", "ready", "--timeout", patience.String())
	}
}
