package bootstrap

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"

	"github.com/dreamlab-ai/agentinit/schema"
)

// defaultRuntime is the only directory that every box writes to.
const defaultRuntime = "/run/agentbox"

// Roots is where the box keeps its own files and where it finds those of the image. Every path is
// absolute and includes the prefix.
type Roots struct {
	// Prefix is put before every path. It is empty in a container. With a prefix, the whole
	// bootstrap can run without privileges below any directory.
	Prefix string

	Workspace     string // WORKSPACE, /workspace
	Projects      string // SHARED_PROJECTS_ROOT, /projects
	Ruvector      string // RUVECTOR_DATA_DIR, /var/lib/ruvector
	SolidPods     string // SOLID_POD_ROOT, /var/lib/solid
	Identities    string // AGENTBOX_IDENTITIES_DIR, /var/lib/agentbox/identities
	Consultations string // AGENTBOX_CONSULTATIONS_DIR, /var/lib/agentbox/consultations
	ProgramLogs   string // /var/log/supervisor
	VarRun        string // /var/run
	Screenshots   string // /tmp/screenshots
	X11           string // /tmp/.X11-unix
	Runtime       string // AGENTBOX_RUNTIME_DIR, /run/agentbox
	ProfileD      string // /etc/profile.d
	Image         string // /opt/agentbox: read-only, never written
	Manifest      string // /etc/agentbox.toml
}

// NewRoots resolves the roots: the value in the environment or, if there is none, the default, each
// below prefix. A relative prefix is made absolute.
func NewRoots(prefix string, getenv func(string) string) (Roots, error) {
	if prefix != "" {
		abs, err := filepath.Abs(prefix)
		if err != nil {
			return Roots{}, fail(ExitUsage, err, "cannot resolve the root %q", prefix)
		}
		prefix = abs
	}
	if prefix == "/" {
		prefix = ""
	}
	r := Roots{Prefix: prefix}
	at := func(variable, path string) string {
		if variable != "" {
			path = cmp.Or(getenv(variable), path)
		}
		return r.Path(path)
	}
	r.Workspace = at("WORKSPACE", "/workspace")
	r.Projects = at("SHARED_PROJECTS_ROOT", "/projects")
	r.Ruvector = at("RUVECTOR_DATA_DIR", "/var/lib/ruvector")
	r.SolidPods = at("SOLID_POD_ROOT", "/var/lib/solid")
	r.Identities = at("AGENTBOX_IDENTITIES_DIR", "/var/lib/agentbox/identities")
	r.Consultations = at("AGENTBOX_CONSULTATIONS_DIR", "/var/lib/agentbox/consultations")
	r.ProgramLogs = at("", "/var/log/supervisor")
	r.VarRun = at("", "/var/run")
	r.Screenshots = at("", "/tmp/screenshots")
	r.X11 = at("", "/tmp/.X11-unix")
	r.Runtime = at("AGENTBOX_RUNTIME_DIR", defaultRuntime)
	r.ProfileD = at("", "/etc/profile.d")
	r.Image = at("", "/opt/agentbox")
	r.Manifest = at("", "/etc/agentbox.toml")
	return r, nil
}

// WithManifest returns the roots with the values of the manifest. A value in the environment takes
// precedence.
func (r Roots) WithManifest(m *schema.Manifest, getenv func(string) string) Roots {
	if root := m.Integrations.SolidPodRS.StorageRoot; getenv("SOLID_POD_ROOT") == "" && root != "" {
		r.SolidPods = r.Path(root)
	}
	if dir := m.Consultants.LogDir; getenv("AGENTBOX_CONSULTATIONS_DIR") == "" && dir != "" {
		r.Consultations = r.Path(dir)
	}
	return r
}

// Path puts the prefix before an absolute path of the box. If the path is below the prefix already,
// Path does not change it. Examples are ${WORKSPACE} in a manifest, and paths in the environment of
// a nested agentinit.
func (r Roots) Path(path string) string {
	clean := filepath.Clean(path)
	if r.Prefix == "" || below(clean, r.Prefix) {
		return clean
	}
	// In the root of a file system, ".." is the root itself, so no ".." leads outside.
	return filepath.Join(r.Prefix, filepath.Clean("/"+path))
}

// Output is the path of a program's log file. Devices stay unchanged, because they stand for
// agentinit's own output.
func (r Roots) Output(path string) string {
	device := below(path, "/dev") && !below(path, "/dev/shm")
	if path == "" || device || below(path, "/proc") {
		return path
	}
	return r.Path(path)
}

// Beads is the database file of the local beads adapter.
func (r Roots) Beads(m *schema.Manifest) string {
	return r.Path(cmp.Or(m.Slots.Beads.Path, filepath.Join(r.Workspace, "beads.db")))
}

// Memory is the directory of the embedded memory.
func (r Roots) Memory(m *schema.Manifest) string {
	return r.Path(cmp.Or(m.Slots.Memory.Dir, r.Ruvector))
}

// Events is the directory of the event journal, and of the spool if the journal is external.
func (r Roots) Events() string { return filepath.Join(r.Workspace, "events") }

// TerminationLog is the file for the reason of the end, if it exists: AGENTBOX_TERMINATION_LOG or,
// if that is not set, the kubelet's file.
func (r Roots) TerminationLog(getenv func(string) string) string {
	return r.Path(cmp.Or(getenv("AGENTBOX_TERMINATION_LOG"), "/dev/termination-log"))
}

// Sentinel is the file that shows that bootstrap has completed.
func (r Roots) Sentinel() string { return filepath.Join(r.Runtime, "bootstrap.done") }

// ManagementKey is the file of the generated management key.
func (r Roots) ManagementKey() string {
	return filepath.Join(r.Workspace, "profiles", "default", "mgmt-key")
}

// NextManagementKey is the file of the new management key during a rotation.
func (r Roots) NextManagementKey() string { return r.ManagementKey() + ".next" }

// PreviousManagementKey is the file of the management key before the last rotation.
func (r Roots) PreviousManagementKey() string { return r.ManagementKey() + ".previous" }

// EnvHints is the file that sets the resolved variables in login shells.
func (r Roots) EnvHints() string { return filepath.Join(r.ProfileD, "agentbox-runtime.sh") }

// configuration is the path of a file that the catalogue puts in /run/agentbox.
func (r Roots) configuration(name string) string {
	if rel, ok := strings.CutPrefix(name, defaultRuntime+"/"); ok {
		return filepath.Join(r.Runtime, rel)
	}
	return r.Path(name)
}

// Socket is the control socket that the manifest names: a path, or an abstract name that begins
// with "@".
func (r Roots) Socket(m *schema.Manifest) string {
	if strings.HasPrefix(m.Supervisor.Socket, "@") {
		return m.Supervisor.Socket
	}
	return r.Path(m.Supervisor.Socket)
}

// Environment is the variables with which programs find the roots.
func (r Roots) Environment() map[string]string {
	return map[string]string{
		"WORKSPACE":            r.Workspace,
		"SHARED_PROJECTS_ROOT": r.Projects,
		"RUVECTOR_DATA_DIR":    r.Ruvector,
		"SOLID_POD_ROOT":       r.SolidPods,
		"AGENTBOX_RUNTIME_DIR": r.Runtime,
	}
}

// Database is a file of the box's /etc. If there is a prefix and no such file below it, Database is
// the file of the machine.
func (r Roots) Database(name string) string {
	if r.Prefix != "" {
		own := r.Path("/etc/" + name)
		if _, err := os.Stat(own); err == nil {
			return own
		}
	}
	return "/etc/" + name
}
