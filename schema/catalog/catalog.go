// Package catalog owns the effects of each switch of the manifest: programs, artifacts, ports,
// mounts, environment, security exceptions and the GPU dispatch. All of this is data in
// catalog.toml. The Go code is generated from that file (make generate), because parsing it would
// take a tenth of a box's start.
//
// It must never look at the machine or the environment, and it makes no decisions: schema/plan
// merges its programs, and schema/compose renders the rest.
package catalog

import (
	"strings"
	"sync"
)

// Catalogue is the whole catalogue. It is shared and must not be changed.
type Catalogue struct {
	Profile     Profiles          `toml:"profile"`
	Baseline    Baseline          `toml:"baseline"`
	Environment map[string]string `toml:"environment"` // variables of the image, as templates
	Operator    map[string]string `toml:"operator"`    // variables from the operator's environment: name → fallback
	GPU         []GPU             `toml:"gpu"`
	Exceptions  []Exception       `toml:"exceptions"`
	Features    []Feature         `toml:"features"`
}

// Profiles distinguishes manifests of an agentbox from those of a plain container.
type Profiles struct {
	Sections []string `toml:"sections"` // a manifest with any of these sections is an agentbox
	// PlainEnvironment names the variables of Environment that the image of a plain container has.
	PlainEnvironment []string `toml:"plain_environment"`
}

// Baseline is the hardened profile to which exceptions add.
type Baseline struct {
	User        string   `toml:"user"`
	ReadOnly    bool     `toml:"read_only"`
	CapDrop     []string `toml:"cap_drop"`
	SecurityOpt []string `toml:"security_opt"`
	PidsLimit   int      `toml:"pids_limit"` // processes and threads at once
	Tmpfs       []string `toml:"tmpfs"`
	// PlainTmpfs is the tmpfs list of a plain container. The others belong to the agentbox image.
	// /var/run is a link to /run in most images.
	PlainTmpfs []string `toml:"plain_tmpfs"`
}

// GPU is one row of the dispatch table.
type GPU struct {
	Backend     string            `toml:"backend"`
	Exception   string            `toml:"exception"`   // the exception that declares its privileges
	Environment map[string]string `toml:"environment"` // variables of the box
	Main        *Accelerator      `toml:"main"`        // what the box itself needs
	Sidecar     *Accelerator      `toml:"sidecar"`     // nil: no model server
	Packages    []string          `toml:"packages"`    // packages of nixpkgs in the box's image
}

// Accelerator is what a container needs to reach a GPU.
type Accelerator struct {
	Image          string          `toml:"image"` // image of the sidecar
	Devices        []string        `toml:"devices"`
	GroupAdd       []string        `toml:"group_add"`
	SecurityOpt    []string        `toml:"security_opt"`
	Runtime        string          `toml:"runtime"`
	DeviceRequests []DeviceRequest `toml:"device_requests"`
	Resource       string          `toml:"resource"` // Kubernetes extended resource
}

// DeviceRequest reserves devices. Count -1 means all devices.
type DeviceRequest struct {
	Driver       string     `toml:"driver" json:"driver"`
	Count        int        `toml:"count" json:"count"`
	Capabilities [][]string `toml:"capabilities" json:"capabilities"`
}

// Exception is one name of [security.exceptions].
type Exception struct {
	Name string   `toml:"name"`
	When []string `toml:"when"`
	// Sidecar lists conditions. While they hold, the additions apply to the model server instead of
	// the box.
	Sidecar []string `toml:"sidecar"`
}

// Feature is one switch of the manifest with all its effects.
type Feature struct {
	Name    string   `toml:"name"`
	Summary string   `toml:"summary"`
	When    []string `toml:"when"` // all conditions must hold; empty: always on
	// Environment is variables of the image while the feature is on. They take precedence over the
	// catalogue's Environment.
	Environment map[string]string `toml:"environment"`
	Operator    map[string]string `toml:"operator"`
	// Programs are tables in the manifest's own syntax. Their templates are not filled yet.
	Programs  map[string]map[string]any `toml:"programs"`
	Artifacts []Artifact                `toml:"artifacts"`
	Ports     []Port                    `toml:"ports"`
	Mounts    []Mount                   `toml:"mounts"`
	// Volumes are declared but not mounted. An exception mounts them.
	Volumes []string `toml:"volumes"`
	// Packages are attribute paths of nixpkgs that the programs need in addition to the packages of
	// the artifacts.
	Packages []string `toml:"packages"`
}

// Artifact is a probe of the runtime closure.
type Artifact struct {
	ID       string   `toml:"id"`
	Class    string   `toml:"class"` // A service, B tool, C skill server, D bundle
	Entry    string   `toml:"entry"`
	Assets   []string `toml:"assets"`
	Command  []string `toml:"command"`
	Timeout  string   `toml:"timeout"`  // a duration; empty: the default of [[artifacts]]
	Required *bool    `toml:"required"` // nil: required
	// Packages are the attribute paths of nixpkgs that provide Entry. If there are none, the skills
	// tree or an extension of the Nix build provides it.
	Packages []string `toml:"packages"`
}

// Port is one listening port of the box.
type Port struct {
	Name string   `toml:"name"`
	Port string   `toml:"port"` // template of the port number
	When []string `toml:"when"`
	// Bind is the template of the listening address. A port on a loopback address cannot be reached
	// through a published port, so it is not published.
	Bind    string `toml:"bind"`
	Expose  bool   `toml:"expose"`  // in the image's list of exposed ports
	Publish *bool  `toml:"publish"` // nil: published
}

// Mount is a directory of the box that survives the container.
type Mount struct {
	Source   string `toml:"source"` // "./path" relative to the operator's directory, or the name of a volume
	Target   string `toml:"target"`
	ReadOnly bool   `toml:"read_only"`
}

// Load returns the catalogue. It is built at the first call. Load is safe for concurrent use.
var Load = sync.OnceValue(generated)

// Backend returns the dispatch row of a gpu.backend. For an unknown backend the row is empty.
func (c *Catalogue) Backend(name string) GPU {
	for _, g := range c.GPU {
		if g.Backend == name {
			return g
		}
	}
	return GPU{Backend: "none"}
}

// Active returns the features that are on, in the order of the file.
func (c *Catalogue) Active(v View) []Feature {
	var on []Feature
	for _, f := range c.Features {
		if v.Holds(f.When) {
			on = append(on, f)
		}
	}
	return on
}

// SecurityOption splits an option of a container, "seccomp=unconfined" or
// "no-new-privileges:true", at its first "=" or ":".
func SecurityOption(option string) (key, value string) {
	if i := strings.IndexAny(option, "=:"); i >= 0 {
		return option[:i], option[i+1:]
	}
	return option, ""
}
