// Package plan resolves a manifest: it merges the feature catalogue, the
// [programs] tables and the defaults into complete program specifications, in
// the order in which they start, and says everything that is wrong with them at
// once.
//
// It computes. The environment, the contents of env_files and the accounts of
// the machine come in as Facts; it must never read them itself, look at a
// clock, or start anything.
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

// Facts are what the plan must know besides the manifest.
type Facts struct {
	// Env is agentinit's own environment: what ${X} reads and programs inherit.
	Env map[string]string
	// InBox tells that the plan is made in the box that will run it. What this
	// machine lacks is an error then, and a warning otherwise.
	InBox bool
	// ReadFile returns the content of an env_file, at most MaxEnvFile bytes and
	// one more. Nil: env_files are not read.
	ReadFile func(path string) ([]byte, error)
	// ReadFileFor is ReadFile for a reader that also checks who owns the file; user
	// is the program's, "" for agentinit's own. Where it is set, ReadFile is not
	// called.
	ReadFileFor func(path, user string) ([]byte, error)
	// Lacks tells whether this machine lacks a user, a group or a directory. Nil:
	// it is not asked.
	Lacks func(what Thing, name string) bool
	// Account tells home and login name of a `user`, by name or number. Nil, or
	// ok false, leaves HOME, USER and LOGNAME as inherited.
	Account func(user string) (home, login string, ok bool)
	// Main is the argv of the essential program "main" of the command line; it
	// is taken literally.
	Main []string
	// Version of agentinit and System (x86_64-linux) fill the catalogue's
	// templates.
	Version, System string
}

// Thing is what a program names and a machine may lack.
type Thing string

// The things of a machine.
const (
	User      Thing = "user"
	Group     Thing = "group"
	Directory Thing = "directory"
)

// Plan is the resolved box. It is immutable.
type Plan struct {
	Profile  string    `json:"profile"`  // agentbox or none
	Features []string  `json:"features"` // of the catalogue, that are on
	Programs []Program `json:"programs"` // in the order of their start
	// Disabled are the programs that are named and not part of the plan.
	Disabled  []Disabled `json:"disabled,omitempty"`
	Artifacts []Artifact `json:"artifacts,omitempty"`

	// Asked are the variables that program tables of the manifest name in ${X},
	// sorted.
	Asked []string `json:"asked,omitempty"`

	Waves   [][]string      `json:"waves"` // names; a wave starts when the barrier lets it
	Barrier program.Barrier `json:"barrier"`
	// StopPath is the chain of programs whose declared stops take longest, and
	// StopTime how long that is; StopBudget is what [supervisor].stop_grace
	// leaves for it.
	StopPath   []string      `json:"stop_path"`
	StopTime   time.Duration `json:"stop_time"`
	StopBudget time.Duration `json:"stop_budget"`
	// SealTimeout is how long the required programs may take: [bootstrap].seal_timeout,
	// or, where that is not written, what fits them.
	SealTimeout time.Duration `json:"seal_timeout"`
}

// Program is one instance of a program, with what the machine has still to say.
type Program struct {
	// Spec is complete but for Credential.
	Spec program.Spec `json:"spec"`
	// User, Group and Groups are names or numbers, as written; empty inherits.
	User   string   `json:"user,omitempty"`
	Group  string   `json:"group,omitempty"`
	Groups []string `json:"groups,omitempty"`

	// Origin says where the program comes from: "manifest", "catalogue" (feature
	// as is), "catalogue+manifest" (overridden key by key), "command line".
	Origin  string `json:"origin"`
	Feature string `json:"feature,omitempty"`
	// ImageDirectory tells that Spec.Directory is the catalogue's: a path of the
	// image, which lies below the root that agentinit is given.
	ImageDirectory bool `json:"-"`

	Overlap  string `json:"overlap,omitempty"`  // of a schedule: skip, queue, kill
	Timezone string `json:"timezone,omitempty"` // of a schedule; empty is the box's own

	// Ports, Volumes and Writable are what the program asks of the container around
	// the box.
	Ports    []schema.Port   `json:"ports,omitempty"`
	Volumes  []schema.Volume `json:"volumes,omitempty"`
	Writable []string        `json:"writable,omitempty"`

	// Variables are the names in Spec.Env; Withheld the secrets of the box's
	// environment that the program does not inherit.
	Variables []string `json:"variables"`
	Withheld  []string `json:"withheld,omitempty"`

	shown *Program // with ${NAME} in place of secrets; nil: it names none
}

// Shown is the program as it may be printed: where a text of its table names a
// secret, the name stands instead of the value.
func (p *Program) Shown() Program {
	if p.shown == nil {
		return *p
	}
	out := *p.shown
	out.Spec.Needs = p.Spec.Needs
	return out
}

// MarshalJSON writes what Shown returns.
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
	// Features are the gates that want it; none: the manifest's [[artifacts]].
	Features []string `json:"features,omitempty"`
}

// Specs returns the specifications in the order of the start. Credentials are
// as in the plan: not filled in.
func (p *Plan) Specs() []program.Spec {
	specs := make([]program.Spec, len(p.Programs))
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

// Profile resolves [bootstrap].profile: "auto" is an agentbox when the document
// has any section that only an agentbox has.
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

// Resolve makes the plan. The manifest and the document are those of
// schema.Load. The findings come sorted by position and are those beyond the
// schema's: a manifest that violates the schema is resolved as far as it can be
// read, and what only follows from a violation is not reported again. With a
// finding of severity error, of either kind, nothing may be started from the plan.
func Resolve(m *schema.Manifest, doc *schema.Document, facts Facts) (*Plan, []schema.Finding) {
	c := catalog.Load()
	r := &resolver{m: m, doc: doc, facts: facts, cat: c, view: View(m, doc, facts)}
	r.shaped = len(doc.Violations()) == 0
	r.plan = &Plan{Profile: r.view.Profile, Barrier: program.Barrier(m.Supervisor.Barrier)}
	for _, f := range c.Active(r.view) {
		r.plan.Features = append(r.plan.Features, f.Name)
	}
	r.programs()
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

	// shaped tells that the document fits the schema. When it does not, a gate
	// may seem off, or a wait seem long, that is only written wrongly.
	shaped bool
	// faulty are programs that are not part of the plan because of what has been
	// reported of them; a program that needs one is no further mistake.
	faulty map[string]bool

	instances map[string][]string // program → names of its instances
	total     int                 // of instances, see maxPrograms
	edges     int                 // of instances that need one another, see maxNeeds
	searched  int                 // similar names, see maxSearches
	missing   []missing
	asked     map[string]bool
	declared  map[string][]string    // instance → the key of the manifest that states its stop
	inherited map[string]inheritance // by pass_environment
	secrets   []program.Secret       // that any program names
	findings  []schema.Finding
}

func (r *resolver) report(code string, f schema.Finding, keys ...string) {
	f.Code, f.Severity = code, severityOf(code)
	f.File, f.Path = r.doc.Name, schema.Path(keys...)
	at := r.doc.KeyPos(keys...)
	f.Line, f.Column = at.Line, at.Column
	r.findings = append(r.findings, f)
}
