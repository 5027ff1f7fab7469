// Package hardening owns the security profile of a box: the hardened baseline, and the merge of the
// manifest's exceptions into that baseline.
//
// It is a pure function of the manifest. It must never write a description of a container:
// schema/compose does that, and PID 1 does not link schema/compose.
package hardening

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/capability"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
)

// Profile is the security settings of a container: the hardening and the exceptions from it.
type Profile struct {
	User            string                  `json:"user,omitempty"`
	ReadOnly        bool                    `json:"read_only,omitempty"`
	CapDrop         []string                `json:"cap_drop,omitempty"`
	CapAdd          []string                `json:"cap_add,omitempty"`
	SecurityOpt     []string                `json:"security_opt,omitempty"`
	PidsLimit       int                     `json:"pids_limit,omitempty"` // processes and threads at once; 0: no limit
	Tmpfs           []string                `json:"tmpfs,omitempty"`
	WritableVolumes []string                `json:"writable_volumes,omitempty"`
	Devices         []string                `json:"devices,omitempty"`
	GroupAdd        []string                `json:"group_add,omitempty"`
	Runtime         string                  `json:"runtime,omitempty"`
	DeviceRequests  []catalog.DeviceRequest `json:"device_requests,omitempty"`
}

// Exception is one exception that is in force.
type Exception struct {
	Feature string `json:"feature"`
	Reason  string `json:"reason,omitempty"`
	// Target is "box", or "sidecar" if the additions are for the model server.
	Target string  `json:"target"`
	Delta  Profile `json:"delta"` // what it adds, including inherited blocks
}

// Conflict is an option for which two exceptions have different values.
type Conflict struct {
	Option     string   `json:"option"`
	Exceptions []string `json:"exceptions"`
	Values     []string `json:"values"`
	Winner     string   `json:"winner"`
}

// Applied is the content of the event SecurityProfileApplied.
type Applied struct {
	Baseline   Profile     `json:"baseline"`
	Exceptions []Exception `json:"exceptions_applied"`
	Effective  Profile     `json:"effective"`
	// Sidecar is the profile of the model server; nil if there is none.
	Sidecar   *Profile   `json:"sidecar,omitempty"`
	Conflicts []Conflict `json:"conflicts,omitempty"`
}

// Harden merges the exceptions whose feature is on into the baseline. A block whose feature is off
// adds no privilege (E020 reports it). A feature without its block runs with the baseline only
// (E021).
func Harden(v catalog.View) Applied {
	c := catalog.Load()
	m := &merge{view: v, catalogue: c, gpu: c.Backend(v.Manifest.GPU.Backend), options: map[string][]wish{}}
	return m.applied()
}

type merge struct {
	view      catalog.View
	catalogue *catalog.Catalogue
	gpu       catalog.GPU
	options   map[string][]wish // values for the box, by option key
}

// wish is the value of an option that one exception sets.
type wish struct{ exception, value string }

func (m *merge) applied() Applied {
	b := m.catalogue.Baseline
	base := Profile{User: b.User, ReadOnly: b.ReadOnly, CapDrop: b.CapDrop, SecurityOpt: b.SecurityOpt, PidsLimit: b.PidsLimit, Tmpfs: b.Tmpfs}
	if m.view.Profile == "none" {
		base.Tmpfs = b.PlainTmpfs
	}
	out := Applied{Baseline: base, Exceptions: []Exception{}, Effective: base}
	if s := m.gpu.Sidecar; s != nil {
		out.Sidecar = &Profile{
			CapDrop: b.CapDrop, SecurityOpt: replaceOptions(b.SecurityOpt, s.SecurityOpt), Devices: s.Devices,
			GroupAdd: s.GroupAdd, Runtime: s.Runtime, DeviceRequests: s.DeviceRequests,
		}
	}
	for _, e := range m.catalogue.Exceptions {
		block, declared := m.view.Manifest.Security.Exceptions[e.Name]
		if !declared || !m.view.Holds(e.When) {
			continue
		}
		x := Exception{Feature: e.Name, Reason: block.Reason, Target: "box", Delta: m.delta(e.Name, nil)}
		if len(e.Sidecar) > 0 && m.view.Holds(e.Sidecar) {
			x.Target = "sidecar"
			*out.Sidecar = union(*out.Sidecar, x.Delta)
			out.Sidecar.SecurityOpt = replaceOptions(out.Sidecar.SecurityOpt, x.Delta.SecurityOpt)
		} else {
			m.wishes(e.Name, x.Delta)
			out.Effective = union(out.Effective, x.Delta)
		}
		out.Exceptions = append(out.Exceptions, x)
	}
	m.settle(&out)
	return out
}

// delta is what a block adds. The blocks that it inherits are added first.
func (m *merge) delta(name string, seen []string) Profile {
	block, declared := m.view.Manifest.Security.Exceptions[name]
	if !declared || slices.Contains(seen, name) {
		return Profile{}
	}
	var d Profile
	for _, inherited := range block.Inherits {
		in := m.delta(inherited, append(slices.Clone(seen), name))
		d = union(d, in)
		d.SecurityOpt = replaceOptions(d.SecurityOpt, in.SecurityOpt)
	}
	if main := m.gpu.Main; main != nil && m.gpu.Exception == name {
		d = union(d, Profile{
			Devices: main.Devices, GroupAdd: main.GroupAdd, Runtime: main.Runtime, DeviceRequests: main.DeviceRequests,
		})
	}
	own := Profile{
		CapAdd: Capabilities(block.CapAdd), Tmpfs: block.Tmpfs, WritableVolumes: block.WritableVolumes, Devices: block.Devices,
		GroupAdd: block.GroupAdd, Runtime: cmp.Or(block.RuntimeOverride, block.Runtime), DeviceRequests: requests(block.DeviceRequests),
	}
	d = union(d, own)
	d.SecurityOpt = replaceOptions(d.SecurityOpt, block.SecurityOptOverride)
	return d
}

// Capabilities writes each capability of Linux in its usual form, such as SYS_ADMIN. Kubernetes knows no
// name that begins with CAP_, and two forms of one name would be a repeat.
func Capabilities(names []string) []string {
	out := slices.Clone(names)
	for i, name := range out {
		if n, ok := capability.Number(name); ok {
			out[i] = capability.Name(n)
		}
	}
	return out
}

func requests(in []schema.DeviceRequest) []catalog.DeviceRequest {
	var out []catalog.DeviceRequest
	for _, r := range in {
		out = append(out, catalog.DeviceRequest(r))
	}
	return out
}

// union adds the lists of b to those of a, without repeats. A runtime of b replaces that of a.
// Security options are merged elsewhere.
func union(a, b Profile) Profile {
	a.CapAdd = Union(a.CapAdd, b.CapAdd)
	a.Tmpfs = uniteTmpfs(a.Tmpfs, b.Tmpfs)
	a.WritableVolumes = Union(a.WritableVolumes, b.WritableVolumes)
	a.Devices = Union(a.Devices, b.Devices)
	a.GroupAdd = Union(a.GroupAdd, b.GroupAdd)
	a.Runtime = cmp.Or(b.Runtime, a.Runtime)
	a.DeviceRequests = uniteRequests(a.DeviceRequests, b.DeviceRequests)
	return a
}

// Union returns a, followed by the elements of b that a does not have.
func Union(a, b []string) []string {
	out := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// TmpfsPath is the mount point of a tmpfs such as "/tmp:mode=1777,size=64M".
func TmpfsPath(tmpfs string) string {
	at, _, _ := strings.Cut(tmpfs, ":")
	return path.Clean(at)
}

// uniteTmpfs is Union by mount point, because engines refuse two mounts at one. Options of b
// replace those of a.
func uniteTmpfs(a, b []string) []string {
	out := slices.Clone(a)
	for _, t := range b {
		i := slices.IndexFunc(out, func(have string) bool { return TmpfsPath(have) == TmpfsPath(t) })
		if i < 0 {
			out = append(out, t)
		} else if strings.Contains(t, ":") {
			out[i] = t
		}
	}
	return out
}

// uniteRequests merges the requests for the same devices into one with all their capabilities.
func uniteRequests(a, b []catalog.DeviceRequest) []catalog.DeviceRequest {
	out := slices.Clone(a)
	for _, r := range b {
		i := slices.IndexFunc(out, func(o catalog.DeviceRequest) bool { return o.Driver == r.Driver && o.Count == r.Count })
		if i < 0 {
			out = append(out, r)
			continue
		}
		var all []string
		for _, set := range slices.Concat(out[i].Capabilities, r.Capabilities) {
			all = Union(all, set)
		}
		out[i].Capabilities = [][]string{all}
	}
	return out
}

// OptionKey is the key of a security option.
func OptionKey(option string) string {
	key, _ := catalog.SecurityOption(option)
	return key
}

// replaceOptions replaces the options of base that have the same key as one of over. It keeps the
// other options and adds new ones.
func replaceOptions(base, over []string) []string {
	out := slices.Clone(base)
	for _, o := range over {
		i := slices.IndexFunc(out, func(have string) bool { return OptionKey(have) == OptionKey(o) })
		if i < 0 {
			out = append(out, o)
		} else {
			out[i] = o
		}
	}
	return out
}

func (m *merge) wishes(exception string, d Profile) {
	for _, o := range d.SecurityOpt {
		m.options[OptionKey(o)] = append(m.options[OptionKey(o)], wish{exception, o})
	}
	if d.Runtime != "" {
		m.options["runtime"] = append(m.options["runtime"], wish{exception, d.Runtime})
	}
}

// settle resolves conflicts between exceptions: the most permissive value of a security option is
// used.
func (m *merge) settle(out *Applied) {
	for _, key := range slices.Sorted(maps.Keys(m.options)) {
		wishes := m.options[key]
		winner := wishes[0].value
		conflict := Conflict{Option: key}
		for _, w := range wishes {
			if Permissiveness(w.value) > Permissiveness(winner) || key == "runtime" {
				winner = w.value
			}
			conflict.Exceptions = append(conflict.Exceptions, w.exception)
			conflict.Values = Union(conflict.Values, []string{w.value})
		}
		if key != "runtime" {
			out.Effective.SecurityOpt = replaceOptions(out.Effective.SecurityOpt, []string{winner})
		}
		if len(conflict.Values) > 1 {
			conflict.Winner = winner
			out.Conflicts = append(out.Conflicts, conflict)
		}
	}
}

// Permissiveness ranks the value of a security option: 2 switches the protection off, 1 is a
// profile of the operator, 0 is the engine's default.
func Permissiveness(option string) int {
	switch _, value := catalog.SecurityOption(option); value {
	case "unconfined", "disable", "false":
		return 2
	case "default", "true", "":
		return 0
	}
	return 1
}
