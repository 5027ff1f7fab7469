// Package catalog owns what each switch of the manifest leads to: programs,
// artifacts, ports, mounts, environment, security exceptions and the GPU
// dispatch, all as data in catalog.toml. What the program uses is generated from
// it (make generate): reading the text would be a tenth of a box's start.
//
// It must never look at the machine or the environment, and it decides nothing:
// the plan merges its programs, compose renders the rest.
package catalog

import (
	"strings"
	"sync"
)

// Catalogue is the whole table of facts. It is shared and must not be changed.
type Catalogue struct {
	Profile     Profiles          `toml:"profile"`
	Baseline    Baseline          `toml:"baseline"`
	Environment map[string]string `toml:"environment"` // of the image; templates
	Operator    map[string]string `toml:"operator"`    // taken from the operator's environment: name → fallback
	GPU         []GPU             `toml:"gpu"`
	Exceptions  []Exception       `toml:"exceptions"`
	Features    []Feature         `toml:"features"`
}

// Profiles tells manifests of an agentbox from those of a plain container.
type Profiles struct {
	Sections []string `toml:"sections"` // any of them present makes an agentbox
	// PlainEnvironment are the variables of Environment that the image of a
	// plain container has.
	PlainEnvironment []string `toml:"plain_environment"`
}

// Baseline is the hardened profile that exceptions add to.
type Baseline struct {
	User        string   `toml:"user"`
	ReadOnly    bool     `toml:"read_only"`
	CapDrop     []string `toml:"cap_drop"`
	SecurityOpt []string `toml:"security_opt"`
	Tmpfs       []string `toml:"tmpfs"`
	// PlainTmpfs are those of a box that is no agentbox: others belong to its image,
	// and /var/run is a link to /run in most.
	PlainTmpfs []string `toml:"plain_tmpfs"`
}

// GPU is one row of the dispatch table.
type GPU struct {
	Backend     string            `toml:"backend"`
	Exception   string            `toml:"exception"`   // the block that declares its privileges
	Environment map[string]string `toml:"environment"` // of the box
	Main        *Accelerator      `toml:"main"`        // what the box itself gets
	Sidecar     *Accelerator      `toml:"sidecar"`     // nil: no model server
	Packages    []string          `toml:"packages"`    // of nixpkgs, in the box's image
}

// Accelerator is what a container needs to reach a GPU.
type Accelerator struct {
	Image          string          `toml:"image"` // of a sidecar
	Devices        []string        `toml:"devices"`
	GroupAdd       []string        `toml:"group_add"`
	SecurityOpt    []string        `toml:"security_opt"`
	Runtime        string          `toml:"runtime"`
	DeviceRequests []DeviceRequest `toml:"device_requests"`
	Resource       string          `toml:"resource"` // Kubernetes extended resource
}

// DeviceRequest reserves devices; Count -1 is all.
type DeviceRequest struct {
	Driver       string     `toml:"driver" json:"driver"`
	Count        int        `toml:"count" json:"count"`
	Capabilities [][]string `toml:"capabilities" json:"capabilities"`
}

// Exception is one name of [security.exceptions].
type Exception struct {
	Name string   `toml:"name"`
	When []string `toml:"when"`
	// Sidecar: while this holds, the additions go to the model server instead of
	// the box.
	Sidecar []string `toml:"sidecar"`
}

// Feature is one gate and all that hangs on it.
type Feature struct {
	Name    string   `toml:"name"`
	Summary string   `toml:"summary"`
	When    []string `toml:"when"` // all must hold; none: always
	// Environment of the image while the feature is on; it wins over the
	// catalogue's own.
	Environment map[string]string `toml:"environment"`
	Operator    map[string]string `toml:"operator"`
	// Programs are tables in the manifest's own syntax, templates unresolved.
	Programs  map[string]map[string]any `toml:"programs"`
	Artifacts []Artifact                `toml:"artifacts"`
	Ports     []Port                    `toml:"ports"`
	Mounts    []Mount                   `toml:"mounts"`
	// Volumes are declared without being mounted: an exception mounts them.
	Volumes []string `toml:"volumes"`
	// Packages are attribute paths of nixpkgs that the programs need besides the
	// packages of the artifacts.
	Packages []string `toml:"packages"`
}

// Artifact is a probe of the runtime closure.
type Artifact struct {
	ID       string   `toml:"id"`
	Class    string   `toml:"class"` // A service, B tool, C skill server, D bundle
	Entry    string   `toml:"entry"`
	Assets   []string `toml:"assets"`
	Command  []string `toml:"command"`
	Timeout  string   `toml:"timeout"`  // a duration; empty is the default of [[artifacts]]
	Required *bool    `toml:"required"` // nil: yes
	// Packages are the attribute paths of nixpkgs that provide Entry; none: the
	// skills tree or an extension of the Nix build does.
	Packages []string `toml:"packages"`
}

// Port is one listening port of the box.
type Port struct {
	Name string   `toml:"name"`
	Port string   `toml:"port"` // template of a number
	When []string `toml:"when"`
	// Bind is the template of the listening address; behind a loopback address
	// a published port reaches nothing, so it is left out.
	Bind    string `toml:"bind"`
	Expose  bool   `toml:"expose"`  // in the image's exposed list
	Publish *bool  `toml:"publish"` // nil: yes
}

// Mount is a directory of the box that outlives it.
type Mount struct {
	Source   string `toml:"source"` // "./path" of the operator, or a volume's name
	Target   string `toml:"target"`
	ReadOnly bool   `toml:"read_only"`
}

// Load returns the catalogue, which is made on first use. Safe for concurrent use.
var Load = sync.OnceValue(generated)

// Backend returns the dispatch row of a gpu.backend; an unknown one is none.
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
