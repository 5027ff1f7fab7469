// Package compose owns the descriptions that are generated from a manifest: compose files,
// Kubernetes objects, the image's environment, podman units.
//
// Each of them is a pure function of its input: the same input gives the same bytes. The package
// must never read files, the environment or a clock.
package compose

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/schema/catalog"
	"github.com/dreamlab-ai/agentinit/schema/hardening"
)

// Compose writes a compose file (the Compose Specification). It has no top-level name, because
// older tools refuse that key.
func (b *Box) Compose() []byte { return Compose(b) }

// Compose writes one compose file with several boxes. Each box is a service with its own name. If
// several boxes need the same host port, network or model server, the file contains it once, for
// the first of these boxes.
func Compose(boxes ...*Box) []byte {
	var services, networks, volumes mapping
	ports := map[string]bool{}
	for _, b := range boxes {
		services = append(services, pair{b.name(), b.composeBox(ports)})
		if b.Sidecar != nil {
			services = services.once("ollama", func() any { return b.composeSidecar() })
		}
		for _, n := range b.composeNetworks() {
			networks = networks.once(n.key, func() any { return n.value })
		}
		volumes = append(volumes, b.composeVolumes()...)
	}
	doc := mapping{{"services", services}}
	doc.add("networks", networks)
	doc.add("volumes", volumes)
	return []byte(boxes[0].header() + "\n" + yaml(doc))
}

// once adds a pair unless the mapping has the key.
func (m mapping) once(key string, value func() any) mapping {
	if slices.ContainsFunc(m, func(p pair) bool { return p.key == key }) {
		return m
	}
	return append(m, pair{key, value()})
}

func (b *Box) name() string { return cmp.Or(b.Input.Name, defaultName) }

// volume is the name of a box's volume in the compose file, which several boxes may share.
func (b *Box) volume(v string) string {
	if b.Input.Name == "" {
		return v
	}
	return b.Input.Name + "-" + v
}

// source is the source of a mount. A box with a name has a directory of that name for its files,
// apart from the manifest.
func (b *Box) source(m Mount) string {
	relative, isRelative := strings.CutPrefix(m.Source, "./")
	switch {
	case m.Source == "./agentbox.toml" && b.Input.File != "":
		return "./" + b.Input.File
	case b.Input.Name == "":
		return m.Source
	case m.Named():
		return b.volume(m.Source)
	case isRelative:
		return "./" + b.Input.Name + "/" + relative
	}
	return m.Source
}

// composeBox is the service. published is the set of places on the host that are in use. composeBox adds
// the ports of this box to it.
func (b *Box) composeBox(published map[string]bool) mapping {
	p := b.Security.Effective
	s := mapping{
		{"image", b.composeImage()},
		{"hostname", b.name()},
		{"restart", "unless-stopped"},
		{"stop_grace_period", seconds(b.StopTimeout)},
	}
	if b.Sidecar != nil {
		s.add("depends_on", []string{"ollama"})
	}
	s = append(s, composeHardening(p)...)
	s.add("environment", b.composeEnvironment())
	s.add("extra_hosts", []string{"host.docker.internal:host-gateway"})
	var ports []string
	for _, port := range b.Ports {
		if place := port.place(); port.Published && !published[place] {
			published[place] = true
			ports = append(ports, port.publish())
		}
	}
	s.add("ports", ports)
	s.add("networks", b.networks())
	var mounts []string
	for _, m := range b.Mounts {
		text := b.source(m) + ":" + m.Target
		if m.ReadOnly {
			text += ":ro"
		}
		mounts = append(mounts, literal(text))
	}
	s.add("volumes", mounts)
	s.add("tmpfs", literals(p.Tmpfs))
	return append(s, pair{"healthcheck", mapping{
		{"test", []string{"CMD", b.agentctl(), "ready"}},
		{"interval", "30s"}, {"timeout", "10s"}, {"retries", 5}, {"start_period", seconds(b.SealTimeout)},
	}})
}

// composeImage is the image of the service. If it is the local tag, a variable of the operator's
// environment can replace it.
func (b *Box) composeImage() string {
	if b.Input.Image != "" {
		return literal(b.Input.Image)
	}
	return "${AGENTBOX_IMAGE_REF:-" + b.localTag() + "}"
}

func (b *Box) localTag() string { return "agentbox:runtime-" + b.System }

// agentctl is the path of agentctl for the health check. The image of an agentbox has it in /bin,
// other images have it somewhere on PATH.
func (b *Box) agentctl() string {
	if b.Profile == "agentbox" {
		return "/bin/agentctl"
	}
	return "agentctl"
}

// composeHardening writes the part of a profile that engines support. "seccomp=default" is a word
// of the profile that engines would read as a file name. Leaving it out gives the engine's default.
func composeHardening(p hardening.Profile) mapping {
	var s mapping
	s.add("user", p.User)
	s.add("read_only", p.ReadOnly)
	s.add("cap_drop", p.CapDrop)
	s.add("cap_add", literals(p.CapAdd))
	s.add("security_opt", literals(engineOptions(p.SecurityOpt)))
	s.add("pids_limit", p.PidsLimit)
	s.add("group_add", literals(p.GroupAdd))
	s.add("runtime", literal(p.Runtime))
	s.add("devices", literals(devices(p.Devices)))
	if len(p.DeviceRequests) > 0 {
		var list []any
		for _, r := range p.DeviceRequests {
			list = append(list, composeRequest(r))
		}
		s = append(s, pair{"deploy", mapping{{"resources", mapping{{"reservations", mapping{{"devices", list}}}}}}})
	}
	return s
}

// engineOptions removes the options that only repeat the engine's default.
func engineOptions(options []string) []string {
	return slices.DeleteFunc(slices.Clone(options), func(o string) bool {
		return strings.HasPrefix(o, "seccomp") && hardening.Permissiveness(o) == 0
	})
}

// devices maps each device node to the same path inside the box. The name of a device of the Container
// Device Interface, such as vendor.com/gpu=all, stays as it is.
func devices(nodes []string) []string {
	var out []string
	for _, d := range nodes {
		if strings.HasPrefix(d, "/") && !strings.Contains(d, ":") {
			d += ":" + d
		}
		out = append(out, d)
	}
	return out
}

func composeRequest(r catalog.DeviceRequest) mapping {
	var caps []string
	for _, set := range r.Capabilities {
		caps = hardening.Union(caps, set)
	}
	if len(caps) == 0 {
		caps = []string{"gpu"} // compose refuses a request without capabilities
	}
	var m mapping
	m.add("driver", literal(r.Driver))
	switch {
	case r.Count < 0:
		m.add("count", "all")
	case r.Count > 0:
		m.add("count", r.Count)
	}
	m.add("capabilities", literals(caps))
	return m
}

// literal prevents compose from interpolating text of the manifest.
func literal(s string) string { return strings.ReplaceAll(s, "$", "$$") }

func literals(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = literal(s)
	}
	return out
}

func (b *Box) composeEnvironment() mapping {
	values := map[string]any{}
	for _, v := range b.Operator {
		values[v.Name] = "${" + v.Name + ":-" + v.Fallback + "}"
		if v.Optional {
			// If a variable has no value in the file, compose passes the operator's value. If the
			// operator has not set it, the variable stays unset.
			values[v.Name] = nil
		}
	}
	for name, v := range b.Fixed {
		values[name] = literal(v)
	}
	// All other variables only repeat the image. These must be set because the container runtime
	// reads them here.
	for name, v := range b.accelerator() {
		values[name] = literal(v)
	}
	var m mapping
	for _, name := range slices.Sorted(maps.Keys(values)) {
		m = append(m, pair{name, values[name]})
	}
	return m
}

// accelerator is the environment of the GPU dispatch. The container runtime reads it from the
// description as well as from the image.
func (b *Box) accelerator() map[string]string {
	out := map[string]string{}
	for _, name := range []string{"CUDA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"} {
		if v, ok := b.Environment[name]; ok {
			out[name] = v
		}
	}
	return out
}

func (b *Box) networks() []string {
	list := []string{"agentbox"}
	if b.Network != "" {
		list = append(list, "external")
	}
	return list
}

func (b *Box) composeNetworks() mapping {
	nets := mapping{{"agentbox", mapping{}}}
	if b.Network != "" {
		nets = append(nets, pair{"external", mapping{{"external", true}, {"name", literal(b.Network)}}})
	}
	return nets
}

func (b *Box) composeVolumes() mapping {
	var m mapping
	for _, v := range b.Volumes {
		m = append(m, pair{b.volume(v), mapping{{"name", b.name() + "-" + v}}})
	}
	return m
}

func (b *Box) composeSidecar() mapping {
	s := mapping{
		{"image", "${OLLAMA_IMAGE_REF:-" + b.Sidecar.Image + "}"},
		{"restart", "unless-stopped"},
	}
	s = append(s, composeHardening(*b.Security.Sidecar)...)
	port := strconv.Itoa(sidecarPort)
	s.add("ports", []string{port + ":" + port})
	s.add("networks", []string{"agentbox"})
	s.add("volumes", []string{b.volume("ollama") + ":/root/.ollama"})
	return append(s, pair{"healthcheck", mapping{
		{"test", []string{"CMD", "ollama", "list"}}, {"interval", "30s"}, {"timeout", "10s"}, {"retries", 5}, {"start_period", "60s"},
	}})
}

// seconds writes a duration in the form that compose and systemd read.
func seconds(d time.Duration) string { return strconv.Itoa(int(wholeSeconds(d)/time.Second)) + "s" }
