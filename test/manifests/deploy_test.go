package manifests_test

import (
	"path/filepath"
	"regexp"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
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
	result, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join("..", "..", "deploy", dir))
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

func find[T any](t *testing.T, objects []any) T {
	t.Helper()
	for _, o := range objects {
		if o, ok := o.(T); ok {
			return o
		}
	}
	var none T
	t.Fatalf("no %T among %T", none, objects)
	return none
}

func TestKustomizeBaseIsOneBox(t *testing.T) {
	objects, _ := kustomized(t, "base")
	set := find[*appsv1.StatefulSet](t, objects)
	checkPod(t, set, 25, 120)
	if *set.Spec.Replicas != 1 || set.Spec.Template.Spec.Containers[0].Image != "localhost/agentbox:dev" {
		t.Errorf("%d replicas of %s", *set.Spec.Replicas, set.Spec.Template.Spec.Containers[0].Image)
	}
}

// Every object of the fleet speaks of the very pods of the StatefulSet, and of ports
// that these have.
func TestKustomizeFleet(t *testing.T) {
	objects, monitors := kustomized(t, "fleet")
	set := find[*appsv1.StatefulSet](t, objects)
	checkPod(t, set, 25, 120)
	pod := labels.Set(set.Spec.Template.Labels)
	selects := func(what string, s *metav1.LabelSelector) {
		t.Helper()
		selector, err := metav1.LabelSelectorAsSelector(s)
		if err != nil || selector.Empty() || !selector.Matches(pod) {
			t.Errorf("%s selects %v, the pods are %v (%v)", what, selector, pod, err)
		}
	}
	selects("the budget", find[*policyv1.PodDisruptionBudget](t, objects).Spec.Selector)
	policy := find[*networkingv1.NetworkPolicy](t, objects)
	selects("the policy", &policy.Spec.PodSelector)
	spread := set.Spec.Template.Spec.TopologySpreadConstraints
	if *set.Spec.Replicas < 2 || len(spread) != 1 || monitors != 1 {
		t.Fatalf("%d replicas, spread %v, %d monitors", *set.Spec.Replicas, spread, monitors)
	}
	selects("the spread", spread[0].LabelSelector)
	ports := map[string]bool{}
	for _, p := range set.Spec.Template.Spec.Containers[0].Ports {
		ports[p.Name] = true
	}
	for _, rule := range policy.Spec.Ingress {
		for _, p := range rule.Ports {
			if !ports[p.Port.StrVal] {
				t.Errorf("the policy opens port %s, which the box does not have", p.Port.StrVal)
			}
		}
	}
}
