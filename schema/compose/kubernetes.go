package compose

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/schema/catalog"
	"github.com/dreamlab-ai/agentinit/schema/hardening"
)

// Kubernetes is the settings for a cluster that are not in the manifest.
type Kubernetes struct {
	Name       string // name of the objects; empty: agentbox
	Namespace  string // empty: the namespace to which the objects are applied
	Storage    string // size of each volume claim; empty: 10Gi
	PodMonitor bool   // a PodMonitor of the Prometheus operator
	// Text is the manifest in the ConfigMap.
	Text []byte
}

// Kubernetes writes a ConfigMap, a Service, a StatefulSet and, if requested, a PodMonitor. If a
// cluster cannot provide something that the manifest requires, a note says so. The header contains
// the notes too.
func (b *Box) Kubernetes(k Kubernetes) ([]byte, []string) {
	w := &cluster{Box: b, k: k, names: map[string]string{"": manifestVolume}}
	w.k.Name = cmp.Or(w.k.Name, "agentbox")
	w.k.Storage = cmp.Or(w.k.Storage, "10Gi")
	docs := []mapping{w.configMap()}
	if env := w.fallbacks(); len(env) > 0 {
		docs = append(docs, w.object("v1", "ConfigMap", w.k.Name+"-env", pair{"data", env}))
	}
	docs = append(docs, w.service(), w.statefulSet())
	if k.PodMonitor {
		docs = append(docs, w.podMonitor())
	}
	out := b.header()
	for _, note := range w.notes {
		out += "# Note: " + oneLine(note) + "\n"
	}
	for _, d := range docs {
		out += "---\n" + yaml(d)
	}
	return []byte(out), w.notes
}

type cluster struct {
	*Box
	k     Kubernetes
	notes []string
	names map[string]string // what a volume of the pod holds → its name
}

func (w *cluster) labels() mapping {
	return mapping{{"app.kubernetes.io/name", "agentbox"}, {"app.kubernetes.io/instance", w.k.Name}}
}

func (w *cluster) object(api, kind, name string, rest ...pair) mapping {
	meta := mapping{{"name", name}}
	meta.add("namespace", w.k.Namespace)
	meta.add("labels", w.labels())
	return append(mapping{{"apiVersion", api}, {"kind", kind}, {"metadata", meta}}, rest...)
}

func (w *cluster) configMap() mapping {
	return w.object("v1", "ConfigMap", w.k.Name, pair{"data", mapping{{"agentbox.toml", text(w.k.Text)}}})
}

// fallbacks are values that the operator's Secret overrides. They contain the address of the model
// server. In a pod it is a sidecar on loopback; elsewhere it is on the host.
func (w *cluster) fallbacks() mapping {
	var data mapping
	for _, v := range w.Operator {
		value := v.Fallback
		if w.Sidecar != nil {
			value = strings.ReplaceAll(value, "//host.docker.internal:", "//127.0.0.1:")
		}
		data.add(v.Name, value)
	}
	return data
}

// environments are passed to the container as a whole. A later one takes precedence.
func (w *cluster) environments() []any {
	var list []any
	if len(w.fallbacks()) > 0 {
		list = append(list, mapping{{"configMapRef", mapping{{"name", w.k.Name + "-env"}}}})
	}
	// The operator creates the Secret with the credentials.
	return append(list, mapping{{"secretRef", mapping{{"name", w.k.Name + "-secrets"}, {"optional", true}}}})
}

func (w *cluster) service() mapping {
	var ports []any
	places, names := map[string]Port{}, map[string]bool{}
	for _, p := range w.published() {
		if p.Address != "" {
			w.notes = append(w.notes, fmt.Sprintf("a Service has no address of a host: port %d, published at %s elsewhere, is open to the cluster", p.outside(), p.Address))
		}
		// A Service has one address, so its ports cannot differ in the address alone.
		place := Port{Number: p.outside(), Protocol: p.Protocol}.place()
		if first, taken := places[place]; taken {
			if first.Number != p.Number {
				w.notes = append(w.notes, fmt.Sprintf("port %d of the Service leads to port %d of the box, so its port %d is left out", p.outside(), first.Number, p.Number))
			}
			continue
		}
		places[place] = p
		name := p.Name
		if names[name] {
			name += "-" + strconv.Itoa(p.outside())
		}
		names[name] = true
		port := mapping{{"name", name}, {"port", p.outside()}, {"targetPort", p.Name}}
		port.add("protocol", kubernetesProtocol(p))
		ports = append(ports, port)
	}
	spec := mapping{{"selector", w.labels()}}
	if len(ports) == 0 {
		spec = append(spec, pair{"clusterIP", "None"})
	}
	spec.add("ports", ports)
	return w.object("v1", "Service", w.k.Name, pair{"spec", spec})
}

// kubernetesProtocol is empty for TCP, the default.
func kubernetesProtocol(p Port) string {
	if p.Protocol == "udp" {
		return "UDP"
	}
	return ""
}

func (w *cluster) published() []Port {
	return slices.DeleteFunc(slices.Clone(w.Ports), func(p Port) bool { return !p.Published })
}

// digestShown is how many bytes of the manifest's digest are in the annotation. podman kube play
// 4.3 refuses a value of more than 63 characters, and the whole digest has 64.
const digestShown = 16

func (w *cluster) statefulSet() mapping {
	sum := sha256.Sum256(w.k.Text)
	containers := []any{w.container()}
	if w.Sidecar != nil {
		containers = append(containers, w.sidecar())
	}
	pod := mapping{
		{"automountServiceAccountToken", false},
		// Service links would add variables such as AGENTBOX_PORT=tcp://…, which conflict with our
		// own names.
		{"enableServiceLinks", false},
		{"terminationGracePeriodSeconds", int(w.StopTimeout / time.Second)},
	}
	if runtime := w.Security.Effective.Runtime; runtime != "" {
		pod.add("runtimeClassName", runtime)
	} else if w.Sidecar != nil {
		pod.add("runtimeClassName", w.Security.Sidecar.Runtime)
	}
	for _, o := range beyondPods(w.Security.Effective.SecurityOpt) {
		w.notes = append(w.notes, "a pod has no field for the security option "+o+"; it is left out")
	}
	for _, o := range w.Security.Effective.SecurityOpt {
		if hardening.OptionKey(o) == "seccomp" && hardening.Permissiveness(o) == 1 {
			w.notes = append(w.notes, "a pod takes its seccomp profile from the node: copy the file to "+localProfile(o)+" in the kubelet's seccomp directory (/var/lib/kubelet/seccomp) of each node")
		}
	}
	pod.add("securityContext", w.podSecurity())
	pod.add("containers", containers)
	pod.add("volumes", w.volumes())
	spec := mapping{
		{"replicas", 1},
		{"serviceName", w.k.Name},
		{"selector", mapping{{"matchLabels", w.labels()}}},
		{"template", mapping{
			// A changed annotation makes Kubernetes replace the pods when the manifest changes: a
			// ConfigMap file mounted by subPath is never updated in a running pod.
			{"metadata", mapping{{"labels", w.labels()}, {"annotations", mapping{{"agentbox/manifest-sha256", hex.EncodeToString(sum[:digestShown])}}}}},
			{"spec", pod},
		}},
	}
	spec.add("volumeClaimTemplates", w.claims())
	return w.object("apps/v1", "StatefulSet", w.k.Name, pair{"spec", spec})
}

// podSecurity is the security context of the whole pod.
func (w *cluster) podSecurity() mapping {
	p := w.Security.Effective
	var m mapping
	uid, gid, _ := strings.Cut(p.User, ":")
	if n, err := strconv.Atoi(gid); err == nil {
		m = append(m, pair{"fsGroup", n})
	}
	var groups []any
	all := p.GroupAdd
	if w.Sidecar != nil {
		all = hardening.Union(all, w.Security.Sidecar.GroupAdd)
	}
	for _, g := range all {
		n, err := strconv.Atoi(g)
		if err != nil {
			w.notes = append(w.notes, "a cluster knows groups by number only: "+g+" is left out")
			continue
		}
		groups = append(groups, n)
	}
	m.add("supplementalGroups", groups)
	if _, err := strconv.Atoi(uid); err != nil {
		w.notes = append(w.notes, "a cluster knows users by number only: "+p.User+" is left out")
	}
	return m
}

// security is the hardened profile as the security context of a container.
func security(p hardening.Profile) mapping {
	var m mapping
	uid, gid, _ := strings.Cut(p.User, ":")
	if n, err := strconv.Atoi(uid); err == nil {
		m = append(m, pair{"runAsUser", n}, pair{"runAsNonRoot", n != 0})
	}
	if n, err := strconv.Atoi(gid); err == nil {
		m = append(m, pair{"runAsGroup", n})
	}
	noNew := slices.ContainsFunc(p.SecurityOpt, func(o string) bool {
		return hardening.OptionKey(o) == "no-new-privileges" && hardening.Permissiveness(o) == 0
	})
	m = append(m, pair{"allowPrivilegeEscalation", !noNew})
	m.add("readOnlyRootFilesystem", p.ReadOnly)
	var caps mapping
	caps.add("drop", p.CapDrop)
	caps.add("add", p.CapAdd)
	m.add("capabilities", caps)
	seccomp := mapping{{"type", "RuntimeDefault"}}
	for _, o := range p.SecurityOpt {
		switch hardening.OptionKey(o) {
		case "apparmor":
			m.add("appArmorProfile", confinement(o))
		case "seccomp":
			seccomp = confinement(o)
		}
	}
	return append(m, pair{"seccompProfile", seccomp})
}

// localProfile is the name of a profile of the operator. That of seccomp is a path below the kubelet's
// seccomp directory: the API server refuses an absolute path, and one that has "..".
func localProfile(option string) string {
	key, value := catalog.SecurityOption(option)
	if key == "seccomp" {
		return strings.TrimPrefix(path.Join("/", value), "/")
	}
	return value
}

// confinement writes a seccomp or AppArmor profile.
func confinement(option string) mapping {
	switch hardening.Permissiveness(option) {
	case 2:
		return mapping{{"type", "Unconfined"}}
	case 1:
		return mapping{{"type", "Localhost"}, {"localhostProfile", localProfile(option)}}
	}
	return mapping{{"type", "RuntimeDefault"}}
}

// beyondPods returns the security options for which a pod has no field.
func beyondPods(options []string) (out []string) {
	for _, o := range options {
		if !slices.Contains([]string{"no-new-privileges", "seccomp", "apparmor"}, hardening.OptionKey(o)) {
			out = append(out, o)
		}
	}
	return out
}

func (w *cluster) container() mapping {
	c := mapping{
		{"name", "agentbox"},
		{"image", cmp.Or(w.Input.Image, w.localTag())},
		{"securityContext", security(w.Security.Effective)},
		{"envFrom", w.environments()},
		{"env", w.env()},
	}
	var ports []any
	names := map[string]bool{}
	for _, p := range w.published() {
		if names[p.Name] {
			continue // published at several places
		}
		names[p.Name] = true
		port := mapping{{"name", p.Name}, {"containerPort", p.Number}}
		port.add("protocol", kubernetesProtocol(p))
		ports = append(ports, port)
	}
	c.add("ports", ports)
	if w.Resource != "" {
		// A pod cannot request "all" devices, only a number.
		c.add("resources", mapping{{"limits", mapping{{w.Resource, "1"}}}})
	}
	c = append(c, w.probes()...)
	c.add("volumeMounts", w.volumeMounts())
	return c
}

// env sets the variables that override the image's environment. Each "$" is doubled: the kubelet
// expands "$(NAME)" and turns every "$$" into "$".
func (w *cluster) env() []any {
	var list []any
	values := maps.Clone(w.Fixed)
	maps.Copy(values, w.accelerator())
	for _, name := range slices.Sorted(maps.Keys(values)) {
		list = append(list, mapping{{"name", name}, {"value", strings.ReplaceAll(values[name], "$", "$$")}})
	}
	return list
}

// startupPeriod is the period of the startup probe in seconds.
const startupPeriod = 5

// probes use the management listener or, if it cannot be reached from outside, agentctl inside the
// box. The startup probe lasts longer than the seal timeout. Otherwise the kubelet would kill a box
// that is still booting.
func (w *cluster) probes() mapping {
	failures := int(w.SealTimeout/(startupPeriod*time.Second)) + 3
	ready := mapping{{"exec", mapping{{"command", []string{w.agentctl(), "ready"}}}}}
	var probes mapping
	if w.Management != 0 {
		ready = mapping{{"httpGet", mapping{{"path", "/ready"}, {"port", "management"}}}}
		probes = append(probes, pair{"livenessProbe", mapping{
			{"httpGet", mapping{{"path", "/livez"}, {"port", "management"}}},
			{"periodSeconds", 10}, {"timeoutSeconds", 5}, {"failureThreshold", 3},
		}})
	}
	probes = append(probes, pair{"readinessProbe", append(slices.Clone(ready), pair{"periodSeconds", 5}, pair{"timeoutSeconds", 5})})
	if w.Manifest.Adapters.Orchestrator == "stdio-bridge" {
		// Such a box is ready only when its host has attached, perhaps a day later. The kubelet
		// must not kill it before. /livez answers from the start.
		w.notes = append(w.notes, "no startup probe: the box is not ready before its host has joined by `kubectl exec -i … agentctl bridge`")
		return probes
	}
	return append(probes,
		pair{"startupProbe", append(slices.Clone(ready), pair{"periodSeconds", startupPeriod}, pair{"timeoutSeconds", 5}, pair{"failureThreshold", failures})},
	)
}

var notLabel = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`[^a-z0-9]+`)
})

// label turns a path into a name: every run of other characters than letters and digits becomes a
// dash.
func label(prefix, s string) string {
	return strings.Trim(prefix+strings.Trim(notLabel().ReplaceAllString(strings.ToLower(s), "-"), "-"), "-")
}

// manifestVolume is the name of the volume with the manifest.
const manifestVolume = "manifest"

// volumeName is the name in the pod of the volume that holds what. Names must be unique: with one
// name, two volumes would be one claim with the files of both. If the label is too long, empty or
// the name of another volume, a digest of what the volume holds makes the name unique.
func (w *cluster) volumeName(what, label string) string {
	name, ok := w.names[what]
	if !ok {
		name = label
		if name == "" || len(name) > 63 || slices.Contains(slices.Collect(maps.Values(w.names)), name) {
			sum := sha256.Sum256([]byte(what))
			name = strings.Trim(name[:min(len(name), 50)]+"-"+hex.EncodeToString(sum[:6]), "-")
		}
		w.names[what] = name
	}
	return name
}

// claimName is the volume claim of a source. Named volumes and paths of the operator both become
// claims.
func (w *cluster) claimName(source string) string {
	return w.volumeName(source, label("", source))
}

func (w *cluster) tmpfsName(path string) string {
	return w.volumeName("tmpfs:"+path, label("tmpfs-", path))
}

func (w *cluster) claimed() []Mount {
	return slices.DeleteFunc(slices.Clone(w.Mounts), func(m Mount) bool { return m.Target == "/etc/agentbox.toml" })
}

func (w *cluster) volumeMounts() []any {
	list := []any{mapping{{"name", manifestVolume}, {"mountPath", "/etc/agentbox.toml"}, {"subPath", "agentbox.toml"}, {"readOnly", true}}}
	for _, m := range w.claimed() {
		v := mapping{{"name", w.claimName(m.Source)}, {"mountPath", m.Target}}
		v.add("readOnly", m.ReadOnly)
		list = append(list, v)
	}
	for _, t := range w.Security.Effective.Tmpfs {
		at := hardening.TmpfsPath(t)
		list = append(list, mapping{{"name", w.tmpfsName(at)}, {"mountPath", at}})
	}
	return list
}

var sizeOption = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:^|,)size=([0-9]+)([kKmMgG]?)`)
})

func (w *cluster) volumes() []any {
	list := []any{mapping{{"name", manifestVolume}, {"configMap", mapping{{"name", w.k.Name}}}}}
	for _, t := range w.Security.Effective.Tmpfs {
		_, options, _ := strings.Cut(t, ":")
		dir := mapping{{"medium", "Memory"}}
		if m := sizeOption().FindStringSubmatch(options); m != nil {
			size := m[1]
			if m[2] != "" {
				size += strings.ToUpper(m[2])[:1] + "i"
			}
			dir.add("sizeLimit", size)
		}
		list = append(list, mapping{{"name", w.tmpfsName(hardening.TmpfsPath(t))}, {"emptyDir", dir}})
	}
	return list
}

func (w *cluster) claims() []any {
	var list []any
	seen := map[string]bool{}
	claim := func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		list = append(list, mapping{
			{"metadata", mapping{{"name", name}}},
			{"spec", mapping{
				{"accessModes", []string{"ReadWriteOnce"}},
				{"resources", mapping{{"requests", mapping{{"storage", w.k.Storage}}}}},
			}},
		})
	}
	var local []string
	for _, m := range w.claimed() {
		claim(w.claimName(m.Source))
		if m.Declared && !m.Named() {
			local = append(local, m.Source+" (at "+m.Target+")")
		}
	}
	if len(local) > 0 {
		w.notes = append(w.notes, "a cluster does not have the files of this machine: each of these becomes a claim that is an empty directory: "+
			strings.Join(local, ", ")+"; copy the files into the claim, or mount a ConfigMap or Secret instead")
	}
	if w.Sidecar != nil {
		claim(w.claimName("ollama"))
	}
	return list
}

func (w *cluster) sidecar() mapping {
	p := *w.Security.Sidecar
	c := mapping{
		{"name", "ollama"},
		{"image", w.Sidecar.Image},
		{"securityContext", security(p)},
		{"ports", []any{mapping{{"name", "ollama"}, {"containerPort", sidecarPort}}}},
	}
	if w.Resource == "" {
		c.add("resources", mapping{{"limits", mapping{{w.Sidecar.Resource, "1"}}}})
	} else {
		w.notes = append(w.notes, "the GPU belongs to the box; the model server beside it works without one")
	}
	return append(c, pair{"volumeMounts", []any{mapping{{"name", w.claimName("ollama")}, {"mountPath", "/root/.ollama"}}}})
}

func (w *cluster) podMonitor() mapping {
	if !slices.ContainsFunc(w.published(), func(p Port) bool { return p.Name == "metrics" }) {
		w.notes = append(w.notes, "the metrics listener cannot be reached from outside the box, so Prometheus cannot read it through the PodMonitor")
	}
	return w.object("monitoring.coreos.com/v1", "PodMonitor", w.k.Name, pair{"spec", mapping{
		{"selector", mapping{{"matchLabels", w.labels()}}},
		{"podMetricsEndpoints", []any{mapping{{"port", "metrics"}, {"path", "/metrics"}}}},
	}})
}
