// Package plan owns the resolution of a manifest. It merges the feature catalogue, the [programs]
// tables and the defaults into complete program specifications, in start order. It reports all
// mistakes at once.
//
// It only computes. The environment, the contents of env_files and the accounts of the machine come
// in as Facts. The package must never read them itself, read a clock, or start a process.
package plan

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Facts are the inputs of the plan besides the manifest.
type Facts struct {
	// Env is agentinit's own environment. Programs inherit it, and ${X} reads it.
	Env map[string]string
	// InBox is true if the plan is made inside the box that will run it. If this machine lacks
	// something, that is then an error, otherwise a warning.
	InBox bool
	// ReadFile returns the content of an env_file, at most MaxEnvFile+1 bytes. If it is nil,
	// env_files are not read.
	ReadFile func(path string) ([]byte, error)
	// ReadFileFor is like ReadFile, for a reader that also checks the owner of the file. user is
	// the program's user, or "" for agentinit's own. If ReadFileFor is set, ReadFile is not called.
	ReadFileFor func(path, user string) ([]byte, error)
	// Lacks reports whether this machine lacks a user, a group, a directory or a file. If it is nil, this
	// is not checked.
	Lacks func(what Thing, name string) bool
	// Account returns the home directory and the login name of a `user`, given by name or number.
	// If it is nil or ok is false, HOME, USER and LOGNAME are inherited.
	Account func(user string) (home, login string, ok bool)
	// Main is the argv of the essential program "main" from the command line. Its words are not
	// expanded.
	Main []string
	// Version of agentinit and System (x86_64-linux) are values for the catalogue's templates.
	Version, System string
}

// Thing is a kind of object that a program names and that a machine may lack.
type Thing string

// The kinds of such objects.
const (
	User      Thing = "user"
	Group     Thing = "group"
	Directory Thing = "directory"
	File      Thing = "file"
)

// Plan is the resolved box. It is immutable.
type Plan struct {
	Profile  string    `json:"profile"`  // agentbox or none
	Features []string  `json:"features"` // features of the catalogue that are on
	Programs []Program `json:"programs"` // in start order
	// Disabled are programs that the manifest names, but that are not part of the plan.
	Disabled  []Disabled `json:"disabled,omitempty"`
	Artifacts []Artifact `json:"artifacts,omitempty"`

	// Asked are the variables of agentinit's environment that program tables of the manifest use as
	// ${X} or name in pass_environment, sorted.
	Asked []string `json:"asked,omitempty"`

	Waves   [][]string      `json:"waves"` // names of the programs of each wave; the barrier decides when the next wave starts
	Barrier program.Barrier `json:"barrier"`
	// StopPath is the chain of programs whose stops take longest. StopTime is the duration of that
	// chain. StopBudget is the part of [supervisor].stop_grace that is available for stops.
	StopPath   []string      `json:"stop_path"`
	StopTime   time.Duration `json:"stop_time"`
	StopBudget time.Duration `json:"stop_budget"`
	// SealTimeout is the time limit for the required programs: [bootstrap].seal_timeout or, if that
	// is not written, a time that is enough for these programs.
	SealTimeout time.Duration `json:"seal_timeout"`
}

// Program is one instance of a program. The user and group numbers of the machine are still
// missing.
type Program struct {
	// Spec is complete except for Credential. It is never nil.
	Spec *program.Spec `json:"spec"`
	// User, Group and Groups are names or numbers as written. Empty means agentinit's own.
	User   string   `json:"user,omitempty"`
	Group  string   `json:"group,omitempty"`
	Groups []string `json:"groups,omitempty"`

	// Origin says where the program comes from: "manifest", "catalogue" (a feature, unchanged),
	// "catalogue+manifest" (a feature with changed keys), "command line".
	Origin  string `json:"origin"`
	Feature string `json:"feature,omitempty"`
	// ImageDirectory is true if Spec.Directory comes from the catalogue. Then it is a path of the
	// image and lies below agentinit's root.
	ImageDirectory bool `json:"-"`

	// Ports, Volumes and Writable are settings of the container around the box that the program
	// declares. The container must have the EnvFiles.
	Ports    []schema.Port   `json:"ports,omitempty"`
	Volumes  []schema.Volume `json:"volumes,omitempty"`
	Writable []string        `json:"writable,omitempty"`
	EnvFiles []string        `json:"-"`

	// Variables are the names in Spec.Env. Withheld are the secrets of agentinit's environment that
	// the program does not inherit.
	Variables []string `json:"variables"`
	Withheld  []string `json:"withheld,omitempty"`

	shown *Program // with ${NAME} in place of secrets; nil: the program names no secret
}

// Shown is the program in a form that may be printed: each secret is replaced by its name.
func (p *Program) Shown() Program {
	if p.shown == nil {
		return *p
	}
	out, spec := *p.shown, *p.shown.Spec
	spec.Needs = p.Spec.Needs
	out.Spec = &spec
	return out
}

// MarshalJSON writes the result of Shown.
func (p Program) MarshalJSON() ([]byte, error) {
	type plain Program
	return json.Marshal(plain(p.Shown()))
}

// Disabled is a program that is not started, and why.
type Disabled struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Artifact is one probe of the runtime closure.
type Artifact struct {
	ID       string        `json:"id"`
	Class    string        `json:"class"` // A service, B tool, C skill server, D bundle
	Entry    string        `json:"entry"` // path; globs allowed
	Assets   []string      `json:"assets,omitempty"`
	Command  []string      `json:"command,omitempty"` // must exit 0 within Timeout
	Timeout  time.Duration `json:"timeout"`
	Required bool          `json:"required"`
	// Features are the features that need it. If there are none, it comes from the manifest's
	// [[artifacts]].
	Features []string `json:"features,omitempty"`
}

// Specs returns the specifications in start order, without credentials.
func (p *Plan) Specs() []*program.Spec {
	specs := make([]*program.Spec, len(p.Programs))
	for i := range p.Programs {
		specs[i] = p.Programs[i].Spec
	}
	return specs
}

// Required returns the names of the programs that the seal waits for.
func (p *Plan) Required() []string {
	var names []string
	for i := range p.Programs {
		if p.Programs[i].Spec.Required {
			names = append(names, p.Programs[i].Spec.Name)
		}
	}
	return names
}

// Profile resolves [bootstrap].profile. With "auto", the box is an agentbox if the document has a
// section that only an agentbox has.
func Profile(m *schema.Manifest, doc *schema.Document) string {
	if m.Bootstrap.Profile == "agentbox" || m.Bootstrap.Profile == "none" {
		return m.Bootstrap.Profile
	}
	if slices.ContainsFunc(catalog.Load().Profile.Sections, doc.Has) {
		return "agentbox"
	}
	return "none"
}

// View is the catalogue's view of a manifest.
func View(m *schema.Manifest, doc *schema.Document, facts Facts) catalog.View {
	return catalog.View{Manifest: m, Profile: Profile(m, doc), Version: facts.Version, System: facts.System}
}

// Resolve makes the plan. The manifest and the document are those of schema.Load. The findings are
// sorted by position and do not repeat those of the schema. A manifest that violates the schema is
// resolved as far as possible. A mistake that only results from a violation is not reported. If
// either stage has a finding of severity error, no program may be started from the plan.
func Resolve(m *schema.Manifest, doc *schema.Document, facts Facts) (*Plan, []schema.Finding) {
	c := catalog.Load()
	r := &resolver{m: m, doc: doc, facts: facts, cat: c, view: View(m, doc, facts)}
	r.shaped = len(doc.Violations()) == 0
	r.plan = &Plan{Profile: r.view.Profile, Barrier: program.Barrier(m.Supervisor.Barrier)}
	for _, f := range c.Active(r.view) {
		r.plan.Features = append(r.plan.Features, f.Name)
	}
	r.programs()
	r.collectors()
	r.artifacts()
	r.plan.Asked = slices.Sorted(maps.Keys(r.asked))
	r.missingVariables()
	r.order()
	r.machine()
	r.seal()
	for i := range r.findings {
		f := &r.findings[i]
		for _, text := range []*string{&f.Value, &f.Message, &f.Hint} {
			*text = program.HideAll(r.secrets, *text)
		}
	}
	slices.SortStableFunc(r.findings, schema.Compare)
	return r.plan, r.findings
}

// resolver is one run of Resolve.
type resolver struct {
	m     *schema.Manifest
	doc   *schema.Document
	facts Facts
	cat   *catalog.Catalogue
	view  catalog.View
	plan  *Plan

	// shaped is true if the document matches the schema. If it does not, a gate may seem off, or a
	// wait may seem long, only because of a mistake.
	shaped bool
	// faulty are programs with a reported mistake that are not part of the plan. A need for one of
	// them is not reported as another mistake.
	faulty map[string]bool

	instances map[string][]string // program → names of its instances
	total     int                 // number of instances, see maxPrograms
	edges     int                 // number of needs between instances, see maxNeeds
	searched  int                 // number of searches for similar names, see maxSearches
	missing   []missing
	asked     map[string]bool
	declared  map[string][]string    // instance → the manifest's key that sets its stop
	inherited map[string]inheritance // by pass_environment
	secrets   []program.Secret       // secrets that any program names
	findings  []schema.Finding
	decoded   schema.Program // of the instance at hand: reflection would take memory for each one
}

func (r *resolver) report(code string, f schema.Finding, keys ...string) {
	f.Code, f.Severity = code, severityOf(code)
	f.File, f.Path = r.doc.Name, schema.Path(keys...)
	at := r.doc.KeyPos(keys...)
	f.Line, f.Column = at.Line, at.Column
	r.findings = append(r.findings, f)
}
