package compose

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/schema/catalog"
	"github.com/dreamlab-ai/agentinit/schema/hardening"
)

// File is one generated file.
type File struct {
	Name    string
	Content []byte
}

// Quadlet writes podman systemd units (podman-systemd.unit(5)): the box, its network and, if there
// is one, the model server.
func (b *Box) Quadlet() ([]File, error) {
	box := b.quadletBox()
	files := []File{
		{"agentbox.container", []byte(b.header() + box.String())},
		{"agentbox.network", []byte(b.header() + "\n[Network]\nNetworkName=agentbox\n")},
	}
	if b.Sidecar == nil {
		return files, box.err
	}
	sidecar := b.quadletSidecar()
	files = append(files, File{"agentbox-ollama.container", []byte(b.header() + sidecar.String())})
	return files, cmp.Or(box.err, sidecar.err)
}

// unit collects the lines of a unit file.
type unit struct {
	strings.Builder
	err error // the first value that no unit can have
}

func (u *unit) section(name string) { fmt.Fprintf(u, "\n[%s]\n", name) }

// set writes a key whose value systemd does not split. Specifiers are escaped. A line break becomes
// a blank, because no key can contain one.
func (u *unit) set(key string, values ...string) {
	for _, v := range values {
		u.line(key, strings.ReplaceAll(v, "%", "%%"))
	}
}

// line writes a key whose specifiers are escaped, or meant as such. Podman makes a part of ExecStart of
// it without escaping, and systemd replaces variables there, so a dollar sign is written twice.
func (u *unit) line(key, value string) {
	if strings.HasSuffix(value, `\`) {
		u.err = cmp.Or(u.err, fmt.Errorf("%s=%s cannot be written into a unit: a backslash at the end of a line joins it with the next one (systemd.syntax(7)); use a value without it", key, value))
	}
	fmt.Fprintf(u, "%s=%s\n", key, strings.NewReplacer("\n", " ", "\r", " ", "$", "$$").Replace(value))
}

// words writes a key whose value systemd splits into words. Each value becomes one word.
func (u *unit) words(key string, values ...string) {
	for _, v := range values {
		v = strings.NewReplacer("\\", `\\`, `"`, `\"`, "%", "%%", "$", "$$", "\n", `\n`, "\r", `\r`).Replace(v)
		fmt.Fprintf(u, "%s=\"%s\"\n", key, v)
	}
}

func (b *Box) quadletBox() *unit {
	u := &unit{}
	u.section("Unit")
	u.set("Description", "agentbox")
	if b.Sidecar != nil {
		u.set("Wants", "agentbox-ollama.service")
		u.set("After", "agentbox-ollama.service")
	}
	u.section("Container")
	u.set("ContainerName", "agentbox")
	u.set("HostName", "agentbox")
	u.set("Image", cmp.Or(b.Input.Image, b.localTag()))
	b.quadletProfile(u, b.Security.Effective)
	b.quadletEnvironment(u)
	for _, p := range b.Ports {
		if p.Published {
			u.set("PublishPort", p.publish())
		}
	}
	u.set("Network", "agentbox.network")
	if b.Network != "" {
		u.set("Network", b.Network)
	}
	u.set("PodmanArgs", "--add-host=host.docker.internal:host-gateway")
	for _, m := range b.Mounts {
		source := unitPath(m.Source)
		if m.Named() {
			source = volumePrefix + strings.ReplaceAll(m.Source, "%", "%%")
		}
		text := source + ":" + strings.ReplaceAll(m.Target, "%", "%%")
		if m.ReadOnly {
			text += ":ro"
		}
		u.line("Volume", text)
	}
	u.set("HealthCmd", b.agentctl()+" ready")
	u.set("HealthInterval", "30s")
	u.set("HealthTimeout", "10s")
	u.set("HealthRetries", "5")
	u.set("HealthStartPeriod", seconds(b.SealTimeout))
	u.set("PodmanArgs", "--stop-timeout="+strings.TrimSuffix(seconds(b.StopTimeout), "s"))
	u.section("Service")
	u.WriteString("EnvironmentFile=-%E/agentbox/agentbox.env\n")
	u.set("Restart", "always")
	u.set("TimeoutStopSec", seconds(b.StopTimeout+beyondGrace))
	u.section("Install")
	u.set("WantedBy", "default.target")
	return u
}

// unitPath is a path of the machine in the form of a unit.
func unitPath(file string) string {
	text := strings.ReplaceAll(file, "%", "%%")
	switch relative, inHome := strings.CutPrefix(text, "~/"); {
	case inHome || text == "~":
		// systemd and podman do not know "~", only shells and compose do.
		return strings.TrimSuffix("%h/"+strings.TrimPrefix(relative, "~"), "/")
	case text == "." || strings.HasPrefix(text, "./"):
		// A unit has no directory of its own, so the operator's configuration directory is used.
		return path.Join("%E/agentbox", text)
	}
	return text
}

// quadletProfile writes a hardened profile as podman options.
func (b *Box) quadletProfile(u *unit, p hardening.Profile) {
	if uid, gid, ok := strings.Cut(p.User, ":"); p.User != "" {
		u.set("User", uid)
		if ok {
			u.set("Group", gid)
		}
	}
	if p.ReadOnly {
		u.set("ReadOnly", "true")
		// The tmpfs mounts below are those of the profile. Without this option, podman adds its
		// own.
		u.set("ReadOnlyTmpfs", "false")
	}
	drop := slices.Clone(p.CapDrop)
	for i := range drop {
		drop[i] = strings.ToLower(drop[i])
	}
	u.set("DropCapability", drop...)
	u.set("AddCapability", p.CapAdd...)
	for _, o := range engineOptions(p.SecurityOpt) {
		key, value := catalog.SecurityOption(o)
		switch key {
		case "no-new-privileges":
			u.set("NoNewPrivileges", fmt.Sprint(hardening.Permissiveness(o) == 0))
		case "seccomp":
			if hardening.Permissiveness(o) == 1 && !path.IsAbs(value) && !strings.HasPrefix(value, "~/") {
				value = "./" + value
			}
			u.line("SeccompProfile", unitPath(value))
		default:
			u.set("PodmanArgs", "--security-opt="+o)
		}
	}
	if p.PidsLimit > 0 {
		u.set("PodmanArgs", fmt.Sprintf("--pids-limit=%d", p.PidsLimit)) // the key PidsLimit came with podman 4.7
	}
	u.set("Tmpfs", p.Tmpfs...)
	u.set("AddDevice", p.Devices...)
	for _, g := range p.GroupAdd {
		u.set("PodmanArgs", "--group-add="+g)
	}
	if p.Runtime == "nvidia" || len(p.DeviceRequests) > 0 {
		// Podman passes GPUs through the Container Device Interface.
		u.set("AddDevice", "nvidia.com/gpu=all")
	} else if p.Runtime != "" {
		u.set("PodmanArgs", "--runtime="+p.Runtime)
	}
}

func (b *Box) quadletEnvironment(u *unit) {
	values := maps.Clone(b.Fixed)
	maps.Copy(values, b.accelerator())
	for _, v := range b.Operator {
		if v.Fallback != "" {
			values[v.Name] = v.Fallback
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		u.words("Environment", name+"="+values[name])
	}
	// A variable without a value makes podman pass the value from the service's EnvironmentFile. As
	// the last entry, it takes precedence over the fallbacks above.
	for _, v := range b.Operator {
		u.set("PodmanArgs", "--env="+v.Name)
	}
}

func (b *Box) quadletSidecar() *unit {
	u := &unit{}
	u.section("Unit")
	u.set("Description", "model server of the agentbox")
	u.section("Container")
	u.set("ContainerName", "agentbox-ollama")
	u.set("Image", b.Sidecar.Image)
	b.quadletProfile(u, *b.Security.Sidecar)
	u.set("PublishPort", fmt.Sprintf("%d:%d", sidecarPort, sidecarPort))
	u.set("Network", "agentbox.network")
	u.set("PodmanArgs", "--network-alias=ollama")
	u.set("Volume", volumePrefix+"ollama:/root/.ollama")
	u.section("Service")
	u.set("Restart", "always")
	u.section("Install")
	u.set("WantedBy", "default.target")
	return u
}
