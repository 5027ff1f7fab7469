package manifests_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// monitor is a PodMonitor, whose kind is none of Kubernetes' own.
var monitor = regexp.MustCompile(`(?ms)^apiVersion: monitoring\.coreos\.com/v1\nkind: PodMonitor\n.*?(^---\n|\z)`)

// kustomized builds a directory of deploy/ and reads each object with the strict
// decoder of Kubernetes.
func kustomized(t *testing.T, dir string) (objects []any, monitors int) {
	t.Helper()
	return built(t, filesys.MakeFsOnDisk(), filepath.Join("..", "..", "deploy", dir))
}

func built(t *testing.T, files filesys.FileSystem, dir string) (objects []any, monitors int) {
	t.Helper()
	result, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := result.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	monitors = len(monitor.FindAll(text, -1))
	objects, err = decode(monitor.ReplaceAll(text, nil))
	if err != nil {
		t.Fatal(err)
	}
	return objects, monitors
}

// named is the object of a kind and a name.
func named[T metav1.Object](t *testing.T, objects []any, name string) T {
	t.Helper()
	for _, o := range objects {
		if o, ok := o.(T); ok && o.GetName() == name {
			return o
		}
	}
	var none T
	t.Fatalf("no %T %s among %T", none, name, objects)
	return none
}

func TestKustomizeBaseIsOneBox(t *testing.T) {
	objects, _ := kustomized(t, "base")
	set := named[*appsv1.StatefulSet](t, objects, "agentbox")
	checkPod(t, set, 25, 120)
	if *set.Spec.Replicas != 1 || set.Spec.Template.Spec.Containers[0].Image != "localhost/agentbox:dev" {
		t.Errorf("%d replicas of %s", *set.Spec.Replicas, set.Spec.Template.Spec.Containers[0].Image)
	}
}

// Every object of the fleet speaks of the very pods of the StatefulSets, and of ports
// that these have.
func TestKustomizeFleet(t *testing.T) {
	objects, monitors := kustomized(t, "fleet")
	boxes, host := named[*appsv1.StatefulSet](t, objects, "agentbox"), named[*appsv1.StatefulSet](t, objects, "mesh-host")
	for _, set := range []*appsv1.StatefulSet{boxes, host} {
		checkPod(t, set, 25, 120)
		checkService(t, named[*corev1.Service](t, objects, set.Name), set)
		if image := set.Spec.Template.Spec.Containers[0].Image; image != "localhost/agentbox:dev" {
			t.Errorf("%s runs %s", set.Name, image)
		}
	}
	selects := func(what string, s *metav1.LabelSelector, set *appsv1.StatefulSet, want bool) {
		t.Helper()
		selector, err := metav1.LabelSelectorAsSelector(s)
		if err != nil || selector.Empty() || selector.Matches(labels.Set(set.Spec.Template.Labels)) != want {
			t.Errorf("%s selects %v, the pods of %s are %v (%v)", what, selector, set.Name, set.Spec.Template.Labels, err)
		}
	}
	budget := named[*policyv1.PodDisruptionBudget](t, objects, "agentbox").Spec.Selector
	selects("the budget", budget, boxes, true)
	selects("the budget", budget, host, false)
	policy := named[*networkingv1.NetworkPolicy](t, objects, "agentbox")
	selects("the policy", &policy.Spec.PodSelector, boxes, true)
	selects("the policy", &policy.Spec.PodSelector, host, true)
	spread := boxes.Spec.Template.Spec.TopologySpreadConstraints
	if *boxes.Spec.Replicas < 2 || *host.Spec.Replicas != 1 || len(spread) != 1 || monitors != 1 {
		t.Fatalf("%d boxes, %d hosts, spread %v, %d monitors", *boxes.Spec.Replicas, *host.Spec.Replicas, spread, monitors)
	}
	selects("the spread", spread[0].LabelSelector, boxes, true)
	for _, rule := range policy.Spec.Ingress {
		for _, p := range rule.Ports {
			if !slices.ContainsFunc(boxes.Spec.Template.Spec.Containers[0].Ports, func(c corev1.ContainerPort) bool { return c.Name == p.Port.StrVal }) {
				t.Errorf("the policy opens port %s, which the box does not have", p.Port.StrVal)
			}
		}
	}
}

// The boxes of the fleet register with its host: its mode, by the name and the port of
// its Service.
func TestTheFleetsBoxesFindItsHost(t *testing.T) {
	objects, _ := kustomized(t, "fleet")
	manifest := func(name string) string { return named[*corev1.ConfigMap](t, objects, name).Data["agentbox.toml"] }
	if !strings.Contains(manifest("mesh-host"), "\nmode = \"host\"\n") || !strings.Contains(manifest("agentbox"), "\nmode = \"client\"\n") {
		t.Error("the host is no host, or a box is no client")
	}
	service := named[*corev1.Service](t, objects, "mesh-host")
	for _, p := range service.Spec.Ports {
		if p.Name == "management" {
			address := fmt.Sprintf("\"http://%s:%d\"", service.Name, p.Port)
			if !strings.Contains(manifest("agentbox"), "\nexternal_url = "+address+"\n") || !strings.Contains(manifest("mesh-host"), "\npublic_urls = ["+address+"]\n") {
				t.Errorf("the host is at %s, which its manifest or that of the boxes does not say", address)
			}
			return
		}
	}
	t.Errorf("the Service has the ports %v", service.Spec.Ports)
}

// kubectl apply -k examples/mesh runs the host and both boxes, once secrets.env is there: each reads
// the shared token from a Secret that is made of it, and the boxes find the host by its Service.
func TestKustomizeMesh(t *testing.T) {
	dir := filepath.Join("..", "..", "examples", "mesh")
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(paths) < 4 {
		t.Fatal(paths, err)
	}
	mesh := func(secrets string) filesys.FileSystem {
		files := filesys.MakeFsInMemory()
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err == nil {
				err = files.WriteFile(filepath.Join("mesh", filepath.Base(path)), text)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if secrets == "" {
			return files
		}
		if err := files.WriteFile("mesh/secrets.env", []byte(secrets)); err != nil {
			t.Fatal(err)
		}
		return files
	}
	objects, _ := built(t, mesh("AGENTBOX_FEDERATION_TOKEN=first\n"), "mesh")
	others, _ := built(t, mesh("AGENTBOX_FEDERATION_TOKEN=second\n"), "mesh")
	host := named[*corev1.ConfigMap](t, objects, "mesh-host").Data["agentbox.toml"]
	if !strings.Contains(host, "\nmode = \"host\"\n") {
		t.Errorf("the host is none:\n%s", host)
	}
	for _, name := range []string{"mesh-host", "box-a", "box-b"} {
		set := named[*appsv1.StatefulSet](t, objects, name)
		checkPod(t, set, 25, 120)
		checkService(t, named[*corev1.Service](t, objects, name), set)
		if image := set.Spec.Template.Spec.Containers[0].Image; image != "localhost/agentbox:dev" {
			t.Errorf("%s runs %s", name, image)
		}
		secret := secretOf(t, set)
		if token := string(named[*corev1.Secret](t, objects, secret).Data["AGENTBOX_FEDERATION_TOKEN"]); token != "first" {
			t.Errorf("%s reads the token %q from %s", name, token, secret)
		}
		if secretOf(t, named[*appsv1.StatefulSet](t, others, name)) == secret {
			t.Errorf("another token does not restart %s", name)
		}
		manifest := named[*corev1.ConfigMap](t, objects, name).Data["agentbox.toml"]
		if name != "mesh-host" && !strings.Contains(manifest, "\nexternal_url = \"http://mesh-host:9090\"\n") {
			t.Errorf("%s does not know its host:\n%s", name, manifest)
		}
	}
	if n := len(objects); n != 3*5 {
		t.Errorf("%d objects; each box has a StatefulSet, a Service, two ConfigMaps and a Secret", n)
	}
	if _, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(mesh(""), "mesh"); err == nil || !strings.Contains(err.Error(), "secrets.env") {
		t.Errorf("without a secret: %v", err)
	}
}

// secretOf is the Secret that the box of a set reads.
func secretOf(t *testing.T, set *appsv1.StatefulSet) string {
	t.Helper()
	for _, from := range set.Spec.Template.Spec.Containers[0].EnvFrom {
		if from.SecretRef != nil {
			return from.SecretRef.Name
		}
	}
	t.Fatalf("%s reads no Secret", set.Name)
	return ""
}
