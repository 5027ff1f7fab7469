package compose

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
	"github.com/dreamlab-ai/agentinit/schema/hardening"
	"github.com/dreamlab-ai/agentinit/schema/plan"
)

// Input is the input of the generators.
type Input struct {
	Manifest *schema.Manifest
	Document *schema.Document
	// Command is the command line that generates the description again. The header shows it.
	Command string
	Version string // version of agentinit, for the image's environment
	System  string // x86_64-linux, aarch64-linux
	Image   string // image reference; empty: the manifest's or else the local tag
	// File is the name of the manifest beside the compose file; empty: agentbox.toml.
	File string
	// Name is the name of the box if a compose file has several boxes; empty: agentbox.
	Name string
}

// Box is the content of a generated description, in no particular format. All generators share it,
// so that only one place interprets the manifest.
type Box struct {
	Input
	Profile  string // agentbox or none
	Security hardening.Applied
	Ports    []Port
	Mounts   []Mount
	Volumes  []string // names to declare, sorted
	// Environment is that of the image. Fixed is the part that a description repeats, because the
	// manifest may differ from the image's manifest. Operator is the part that comes from the
	// operator's environment.
	Environment map[string]string
	Fixed       map[string]string
	Operator    []Variable
	Sidecar     *Sidecar
	Network     string // an existing network to join; empty: none
	StopTimeout time.Duration
	SealTimeout time.Duration
	// Management is the port of the probes as seen from outside the box. It is 0 if the probes can
	// only be reached inside the box.
	Management int
	Metrics    int
	Resource   string // Kubernetes extended resource for the GPU of the box itself
	// Notes say what the box cannot do as it is described.
	Notes []string
}

// Port is a listening port.
type Port struct {
	Name      string
	Number    int // inside the box
	Published bool
	Exposed   bool // in the image's list of exposed ports
	// Host is where the port is published, in the syntax of container engines. If it is empty, the
	// port is published under the same number on all addresses of the host.
	Host     string
	Address  string // address of the host that Host names; empty: all
	Outside  int    // port on the host; 0: the same number
	Protocol string // empty: tcp
}

// outside returns the port on the host, or of a Service.
func (p Port) outside() int { return cmp.Or(p.Outside, p.Number) }

func (p Port) protocol() string { return cmp.Or(p.Protocol, "tcp") }

// place identifies where on the host the port is published. Two ports of one place exclude each
// other.
func (p Port) place() string {
	return fmt.Sprintf("%s %d/%s", p.Address, p.outside(), p.protocol())
}

// publish returns the port in the syntax of container engines.
func (p Port) publish() string {
	if p.Host != "" {
		return p.Host
	}
	return fmt.Sprintf("%d:%d", p.Number, p.Number)
}

// Mount is a mount of the box. Source is a path relative to the operator's directory
// ("./workspace") or the name of a volume.
type Mount struct {
	Source, Target string
	ReadOnly       bool
	// Declared is for the manifest's own volumes. A box does without the files of the others.
	Declared bool
}

// Named reports whether the source is a volume and not a path.
func (m Mount) Named() bool {
	return !strings.HasPrefix(m.Source, ".") && !strings.HasPrefix(m.Source, "/") && !strings.HasPrefix(m.Source, "~")
}

// Variable is a variable from the operator's environment.
type Variable struct {
	Name     string
	Fallback string
	// If the operator has not set an optional variable, it stays unset in the box. Other variables
	// get their fallback.
	Optional bool
}

// Sidecar is the model server.
type Sidecar struct {
	Image    string
	Resource string
}

// Constants of the descriptions that have no key in the manifest.
const (
	defaultName  = "agentbox"
	volumePrefix = defaultName + "-" // prefix of volume names outside the description
	sidecarPort  = 11434
	// beyondGrace is how much longer than the box's own shutdown the engine waits before it kills,
	// so that the box sends its own KILL first.
	beyondGrace = 5 * time.Second
)

// New reads the manifest for the generators. Findings of severity error stop a generation, except
// E120: the variables of the box may be missing on the machine that generates the description.
func New(in Input) (*Box, []schema.Finding, error) {
	resolved, findings := plan.Resolve(in.Manifest, in.Document, plan.Facts{Version: in.Version, System: in.System})
	findings = slices.DeleteFunc(findings, func(f schema.Finding) bool { return f.Code == "E120" })
	b := &builder{
		view: catalog.View{Manifest: in.Manifest, Profile: resolved.Profile, Version: in.Version, System: in.System},
		cat:  catalog.Load(), findings: findings,
		box: &Box{Input: in, Profile: resolved.Profile},
	}
	b.box.Security = hardening.Harden(b.view)
	b.box.Input.Image = cmp.Or(in.Image, in.Manifest.Supervisor.Image)
	if err := b.build(resolved); err != nil {
		return nil, nil, err
	}
	slices.SortStableFunc(b.findings, schema.Compare)
	return b.box, b.findings, nil
}

type builder struct {
	view     catalog.View
	cat      *catalog.Catalogue
	box      *Box
	findings []schema.Finding
}

func (b *builder) build(resolved *plan.Plan) error {
	features := b.cat.Active(b.view)
	if err := b.ports(features); err != nil {
		return err
	}
	if err := b.mounts(features); err != nil {
		return err
	}
	if err := b.environment(features); err != nil {
		return err
	}
	b.declared(resolved)
	b.logFiles(resolved)
	b.envFiles(resolved)
	b.operator(features, resolved)
	m := b.view.Manifest
	gpu := b.cat.Backend(m.GPU.Backend)
	if s := gpu.Sidecar; s != nil {
		b.box.Sidecar = &Sidecar{Image: s.Image, Resource: s.Resource}
	}
	if gpu.Main != nil && len(b.box.Security.Effective.DeviceRequests) > 0 {
		b.box.Resource = gpu.Main.Resource
	}
	if n := m.Integrations.ExternalNetwork; n.Enabled {
		b.box.Network = n.Network
	}
	b.box.StopTimeout = wholeSeconds(m.Supervisor.StopGrace.Std()) + beyondGrace
	b.box.SealTimeout = resolved.SealTimeout
	return nil
}

// wholeSeconds rounds up, because engines only accept seconds.
func wholeSeconds(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}

func (b *builder) ports(features []catalog.Feature) error {
	for _, f := range features {
		for _, p := range f.Ports {
			if !b.view.Holds(p.When) {
				continue
			}
			text, err := b.view.Fill(p.Port)
			if err != nil {
				return err
			}
			number, err := strconv.Atoi(text)
			if err != nil {
				return fmt.Errorf("the port of %s is %q, which is not a number", p.Name, text)
			}
			bind, err := b.view.Fill(p.Bind)
			if err != nil {
				return err
			}
			local := p.Bind != "" && catalog.Loopback(bind)
			port := Port{Name: p.Name, Number: number, Published: (p.Publish == nil || *p.Publish) && !local, Exposed: p.Expose && !local}
			if f.Name == "management" || f.Name == "agentbox" {
				port.Exposed = !local
			}
			b.add(port)
		}
	}
	return nil
}

func (b *builder) add(p Port) {
	switch p.Name {
	case "management":
		if p.Published {
			b.box.Management = p.Number
		}
	case "metrics":
		host, port := catalog.SplitAddress(b.view.Manifest.Supervisor.MetricsListen)
		if n, err := strconv.Atoi(port); err == nil {
			p.Number = n
		}
		if catalog.Loopback(host) {
			p.Published, p.Exposed = false, false
		}
		b.box.Metrics = p.Number
	}
	// Validation reports two listeners with one port, and two ports at one place of the host. The
	// description contains the first of them. One declared port may be published at several places.
	if !slices.ContainsFunc(b.box.Ports, func(q Port) bool {
		same := q.Number == p.Number && q.protocol() == p.protocol()
		return same && (q.Host == "" || p.Host == "") || q.Published && p.Published && q.place() == p.place()
	}) {
		b.box.Ports = append(b.box.Ports, p)
	}
}

func (b *builder) mounts(features []catalog.Feature) error {
	volumes := map[string]bool{}
	for _, f := range features {
		for _, v := range f.Volumes {
			volumes[v] = true
		}
		for _, m := range f.Mounts {
			target, err := b.view.Fill(m.Target)
			if err != nil {
				return err
			}
			b.mount(Mount{Source: m.Source, Target: target, ReadOnly: m.ReadOnly})
		}
	}
	for _, text := range b.box.Security.Effective.WritableVolumes {
		v, err := schema.ParseVolume(text)
		if err != nil {
			return fmt.Errorf("writable_volumes has %q; write %w", text, err)
		}
		b.mount(Mount{Source: v.Source, Target: v.Target, ReadOnly: v.ReadOnly, Declared: true})
	}
	b.box.Volumes = slices.Collect(maps.Keys(volumes))
	b.declareVolumes()
	return nil
}

// declareVolumes declares the volumes that the mounts use.
func (b *builder) declareVolumes() {
	for _, m := range b.box.Mounts {
		if m.Named() && !slices.Contains(b.box.Volumes, m.Source) {
			b.box.Volumes = append(b.box.Volumes, m.Source)
		}
	}
	slices.Sort(b.box.Volumes)
}

// declared adds the ports, volumes and writable directories that the box and its programs declare.
func (b *builder) declared(resolved *plan.Plan) {
	s := b.view.Manifest.Supervisor
	ports, volumes, writable := s.Ports, s.Volumes, s.Writable
	for i := range resolved.Programs {
		p := &resolved.Programs[i]
		ports, volumes, writable = slices.Concat(ports, p.Ports), slices.Concat(volumes, p.Volumes), slices.Concat(writable, p.Writable)
	}
	for _, p := range ports {
		b.add(Port{
			Name: fmt.Sprintf("%s-%d", p.Protocol, p.Box), Number: p.Box, Published: true, Exposed: true,
			Host: p.String(), Address: p.Address, Outside: p.Host, Protocol: p.Protocol,
		})
	}
	for _, v := range volumes {
		b.mount(Mount{Source: v.Source, Target: v.Target, ReadOnly: v.ReadOnly, Declared: true})
	}
	b.declareVolumes()
	for _, dir := range writable {
		b.box.Security.Effective.Tmpfs = withTmpfs(b.box.Security.Effective.Tmpfs, dir)
	}
	// Engines refuse two mounts at one path. A volume is written for this box, and takes precedence
	// over a tmpfs.
	b.box.Security.Effective.Tmpfs = slices.DeleteFunc(slices.Clone(b.box.Security.Effective.Tmpfs), func(t string) bool {
		return slices.ContainsFunc(b.box.Mounts, func(m Mount) bool { return m.Target == hardening.TmpfsPath(t) })
	})
	if b.box.Profile == "none" && b.namesUser(resolved) {
		// Only root can start a process as another user. Without these capabilities, even root
		// cannot change to that user or send it signals.
		b.box.Security.Effective.User = "0:0"
		b.box.Security.Effective.CapAdd = hardening.Union(b.box.Security.Effective.CapAdd, []string{"KILL", "SETGID", "SETUID"})
	}
	b.kept(resolved)
}

// namesUser tells whether a program or an agent has a user or groups that agentinit must set.
func (b *builder) namesUser(resolved *plan.Plan) bool {
	m := b.view.Manifest
	agents := m.Adapters.Orchestrator == "local-process-manager" && (m.Supervisor.Agents.User != "" ||
		slices.ContainsFunc(slices.Collect(maps.Values(m.Templates)), func(t schema.Template) bool { return t.User != "" }))
	return agents || slices.ContainsFunc(resolved.Programs, func(p plan.Program) bool {
		return p.User != "" || p.Group != "" || len(p.Groups) > 0
	})
}

// kept adds the capabilities that the sandboxes of programs keep to a box that runs as root: agentinit can
// hand on only what it has. Engines give other users none of them, which is noted.
func (b *builder) kept(resolved *plan.Plan) {
	security := &b.box.Security.Effective
	for i := range resolved.Programs {
		p := &resolved.Programs[i]
		sandbox := p.Spec.Sandbox
		if sandbox == nil || sandbox.Mode == "off" || p.Spec.Instance > 0 {
			continue
		}
		names := hardening.Capabilities(sandbox.Capabilities)
		if uid, _, _ := strings.Cut(security.User, ":"); uid == "0" {
			security.CapAdd = hardening.Union(security.CapAdd, names)
			continue
		}
		names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(security.CapAdd, name) })
		if len(names) == 0 {
			continue
		}
		do := "leave them out of sandbox.capabilities"
		if b.box.Profile == "none" {
			do += ", or write user = \"root\" for the program: the box then runs as root and has them"
		}
		b.box.Notes = append(b.box.Notes, fmt.Sprintf("the box runs as user %s, without the capabilities %s that the sandbox of %s keeps; %s",
			security.User, strings.Join(names, ", "), p.Spec.Group, do))
	}
}

// logFiles notes each directory of log files that the read-only root of the box keeps from being written.
// Validation cannot know this: without a description, the root may be writable.
func (b *builder) logFiles(resolved *plan.Plan) {
	if !b.box.Security.Effective.ReadOnly {
		return
	}
	var noted []string
	for i := range resolved.Programs {
		p := &resolved.Programs[i]
		for _, file := range []string{p.Spec.Logs.Path, p.Spec.Logs.StderrPath} {
			dir := path.Dir(file)
			if file == "" || b.writable(dir) || slices.Contains(noted, dir) {
				continue
			}
			noted = append(noted, dir)
			do := fmt.Sprintf("add volumes = [\"NAME:%s\"] or writable = [\"%s\"] to the program", dir, dir)
			// The working directory is not known here. A variable without a value on this machine is empty.
			if !path.IsAbs(file) || dir == "/" {
				do = "write a path whose directory can be mounted, such as /var/log/web/current"
			}
			b.box.Notes = append(b.box.Notes, fmt.Sprintf("the root of the box is read-only: %s cannot write %s; %s", p.Spec.Name, file, do))
		}
	}
}

// envFiles notes each env_file in a tmpfs, which is empty when the box starts. Validation cannot know
// this: without a description, the directory may be part of the machine.
func (b *builder) envFiles(resolved *plan.Plan) {
	var noted []string
	for i := range resolved.Programs {
		p := &resolved.Programs[i]
		for _, file := range p.EnvFiles { // those that begin with "-" may be missing
			m, dir := b.below(file)
			if m != nil || dir == "" || slices.Contains(noted, file) {
				continue
			}
			noted = append(noted, file)
			b.box.Notes = append(b.box.Notes, fmt.Sprintf("%s is an empty tmpfs when the box starts: without the env_file %s of %s the box does not start; mount the file as a secret, or add volumes = [\"./%s:%s:ro\"] to the program",
				dir, file, p.Spec.Name, path.Base(file), path.Clean(file)))
		}
	}
}

// writable tells whether a tmpfs or a mount makes a directory writable.
func (b *builder) writable(dir string) bool {
	m, tmpfs := b.below(dir)
	return m != nil && !m.ReadOnly || tmpfs != ""
}

// below returns the innermost mount or the path of the innermost tmpfs that has a path; neither for a
// path in the root of the box.
func (b *builder) below(name string) (m *Mount, tmpfs string) {
	for dir := path.Clean(name); dir != "/" && dir != "."; dir = path.Dir(dir) {
		if i := slices.IndexFunc(b.box.Mounts, func(m Mount) bool { return m.Target == dir }); i >= 0 {
			return &b.box.Mounts[i], ""
		}
		if slices.ContainsFunc(b.box.Security.Effective.Tmpfs, func(t string) bool { return hardening.TmpfsPath(t) == dir }) {
			return nil, dir
		}
	}
	return nil, ""
}

// withTmpfs adds a tmpfs unless the list has one at this path, because engines refuse two.
func withTmpfs(have []string, dir string) []string {
	if slices.ContainsFunc(have, func(t string) bool { return hardening.TmpfsPath(t) == dir }) {
		return have
	}
	return append(slices.Clone(have), dir+":mode=1777,size=64M")
}

// mount adds a mount. An existing mount at the same target is replaced: engines refuse two, and an
// exception takes precedence over the catalogue.
func (b *builder) mount(m Mount) {
	for i, have := range b.box.Mounts {
		if have.Target == m.Target {
			b.box.Mounts[i] = m
			return
		}
	}
	b.box.Mounts = append(b.box.Mounts, m)
}

// repeated are the variables of the image that a description sets again. The image was made from
// another manifest, and its environment would take precedence over this manifest.
var repeated = []string{"AGENTBOX_METRICS_PORT", "AGENTBOX_OTLP_ENDPOINT", "AGENTBOX_LOG_LEVEL", "MANAGEMENT_API_PORT"}

func (b *builder) environment(features []catalog.Feature) error {
	env := map[string]string{}
	sources := []map[string]string{b.cat.Environment}
	for _, f := range features {
		sources = append(sources, f.Environment)
	}
	sources = append(sources, b.cat.Backend(b.view.Manifest.GPU.Backend).Environment)
	for _, source := range sources {
		for name, template := range source {
			value, err := b.view.Fill(template)
			if err != nil {
				return err
			}
			env[name] = value
		}
	}
	env["AGENTBOX_LOG_LEVEL"] = b.view.Manifest.LogLevel()
	if b.view.Manifest.Supervisor.Listen == "off" {
		delete(env, "MANAGEMENT_API_PORT")
	}
	if b.box.Metrics != 0 {
		env["AGENTBOX_METRICS_PORT"] = strconv.Itoa(b.box.Metrics)
	}
	if b.box.Profile == "none" {
		maps.DeleteFunc(env, func(name, _ string) bool { return !slices.Contains(b.cat.Profile.PlainEnvironment, name) })
	}
	b.box.Environment = env
	b.box.Fixed = map[string]string{}
	for _, name := range repeated {
		if v, ok := env[name]; ok {
			b.box.Fixed[name] = v
		}
	}
	return nil
}

// ofTheContainer are variables that a container has of its own, from the image, the engine or the
// terminal. Those of the operator describe another machine, so they are not passed on. A container does
// not set USER, LOGNAME, SHELL and TMPDIR, so a manifest that asks for them gets those of the operator.
var ofTheContainer = []string{"PATH", "HOME", "HOSTNAME", "PWD", "TERM"}

// operator collects the variables from the operator's environment: the fixed list with its
// fallbacks, the variables of features, of every enabled provider and of agentinit's own
// credentials, and those that the manifest's own programs ask for.
func (b *builder) operator(features []catalog.Feature, resolved *plan.Plan) {
	vars := map[string]Variable{}
	if b.box.Profile == "agentbox" {
		for name, fallback := range b.cat.Operator {
			vars[name] = Variable{Name: name, Fallback: fallback}
		}
	}
	for _, f := range features {
		for name, fallback := range f.Operator {
			vars[name] = Variable{Name: name, Fallback: fallback, Optional: fallback == ""}
		}
	}
	m := b.view.Manifest
	need := func(name string) {
		if _, known := vars[name]; !known && schema.VariableName(name) {
			vars[name] = Variable{Name: name, Optional: true}
		}
	}
	for _, p := range m.Providers {
		if !p.Enabled {
			continue
		}
		// This is a credential of the operator. A fallback would hide that it is missing.
		if schema.VariableName(p.EnvVar) {
			vars[p.EnvVar] = Variable{Name: p.EnvVar}
		}
		for _, name := range p.OptionalEnvVars {
			need(name)
		}
	}
	for _, name := range m.OwnCredentials() {
		need(name)
	}
	for _, name := range resolved.Asked {
		if _, fixed := b.box.Environment[name]; !fixed && !slices.Contains(ofTheContainer, name) {
			need(name)
		}
	}
	if mode := m.Federation.Mode; mode == "host" || mode == "client" {
		need("AGENTBOX_FEDERATION_TOKEN")
		if mode == "host" {
			need("AGENTBOX_FEDERATION_REGISTRY")
		}
	}
	need("MANAGEMENT_API_KEY")
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		b.box.Operator = append(b.box.Operator, vars[name])
	}
}

// header says how a file was made, so that it can be made again. It contains no version of
// agentinit, so that a description only changes when the manifest or its meaning changes.
func (b *Box) header() string {
	return "# Made from the manifest by\n#   " + oneLine(b.Command) + "\n# Do not edit: change the manifest and make it again; --check tells whether it is current.\n"
}

// oneLine turns a text into one line, so that it cannot end its comment.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || unprintable(r) {
			return ' '
		}
		return r
	}, s)
}
