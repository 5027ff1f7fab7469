package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/plan"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// bootRig is a whole boot in a fresh directory, with a fake supervisor whose
// programs become RUNNING as soon as they are started.
type bootRig struct {
	*Boot
	bus    *event.Bus
	sup    *fakeSupervisor
	runner *fakeRunner
	events *event.Watcher
}

type eager struct{ *fakeSupervisor }

func (e eager) Start(ctx context.Context, specs []program.Spec) (<-chan struct{}, error) {
	started, err := e.fakeSupervisor.Start(ctx, specs)
	for i, s := range specs {
		e.become(s.Name, program.Running, true, event.Change{PID: 100 + i, Completed: s.Type == program.Oneshot})
	}
	close(e.started)
	return started, err
}

func newBootRig(t *testing.T, roots Roots, manifest string, change ...func(*Config)) *bootRig {
	t.Helper()
	write(t, roots.Manifest, manifest, 0o644)
	bus := event.NewBus(1024)
	sup := newFakeSupervisor(bus)
	cfg := Config{
		Bus: bus, Roots: roots, Environ: []string{"PATH=/usr/bin:/bin"}, Version: "1.0", System: "x86_64-linux",
		Started: time.Now(), BootID: "boot-1", Runner: &fakeRunner{}, Starter: eager{sup}, Programs: sup,
	}
	for _, f := range change {
		f(&cfg)
	}
	return &bootRig{Boot: New(cfg), bus: bus, sup: sup, runner: cfg.Runner.(*fakeRunner), events: bus.Watch(0)}
}

func (r *bootRig) boot(t *testing.T) error {
	t.Helper()
	if err := r.Load(t.Context()); err != nil {
		return err
	}
	if err := r.RemoveStaleSentinel(); err != nil {
		t.Fatal(err)
	}
	return r.Run(t.Context())
}

// names lists the events so far. Events of phases include the phase.
func (r *bootRig) names() (out []string) {
	w := r.bus.Watch(0)
	for {
		e, ok := w.TryNext()
		if !ok {
			return out
		}
		switch e.Name {
		case event.ProgramStateChanged:
		case EventPhaseStarted, EventPhaseCompleted:
			out = append(out, fmt.Sprintf("%s %v %v", e.Name, e.Fields["phase"], e.Fields["outcome"]))
		default:
			out = append(out, e.Name)
		}
	}
}

const plain = `
[programs.web]
command = ["/bin/sleep", "1"]
required = true
[programs.task]
command = "true"
type = "oneshot"
`

// agentboxManifest is the manifest of a minimal agentbox.
const agentboxManifest = `
[federation]
mode = "standalone"
[adapters]
memory = "embedded-ruvector"
[toolchains]
[programs.web]
command = ["/bin/sleep", "1"]
required = true
pass_environment = ["MANAGEMENT_API_KEY", "WORKSPACE"]
environment = { KEY = "${MANAGEMENT_API_KEY}" }
`

func TestPlainBootTouchesNothingButItsRuntimeDirectory(t *testing.T) {
	r := newBootRig(t, testRoots(t), plain)
	if err := r.boot(t); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"BootstrapStarted", "PhaseStarted 0 <nil>", "PhaseCompleted 0 ok",
		"PhaseStarted 0.5 <nil>", "PhaseCompleted 0.5 off", "PhaseStarted 1 <nil>", "PhaseCompleted 1 off",
		"PhaseStarted 2 <nil>", "PhaseCompleted 2 off", "PhaseStarted 3 <nil>", "PhaseCompleted 3 off",
		"PhaseStarted 4 <nil>", "PhaseCompleted 4 off", "PhaseStarted 5 <nil>", "RuntimeClosureValidated", "PhaseCompleted 5 ok",
		"PhaseStarted 6 <nil>", "PhaseCompleted 6 off", "PhaseStarted 7 <nil>", "PhaseCompleted 7 off",
		"PhaseStarted 8 <nil>", "PhaseCompleted 8 off", "PhaseStarted 9 <nil>", "PhaseCompleted 9 ok",
		"PhaseStarted 10 <nil>", "BootstrapSealStarted", "BootstrapCompleted", "PhaseCompleted 10 ok",
	}
	if got := r.names(); !slices.Equal(got, want) {
		t.Fatalf("got  %v\nwant %v", got, want)
	}
	if got := tree(t, r.cfg.Roots.Prefix); !slices.Equal(got, []string{"etc/agentbox.toml", "run/agentbox/bootstrap.done"}) {
		t.Fatalf("got %v", got)
	}
	if c := r.Closure(); !c.Valid || c.Sentinel == nil || !strings.HasPrefix(c.ManifestChecksum, "sha256:") || len(c.ManifestChecksum) != 71 {
		t.Fatalf("got %+v", c)
	}
}

// tree lists the files below dir.
func tree(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		out = append(out, rel)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

func TestAgentboxBootTwiceChangesNothing(t *testing.T) {
	roots := testRoots(t)
	write(t, filepath.Join(roots.Workspace, ".profile"), "alias ll='ls -l'", 0o640)
	if err := os.MkdirAll(roots.Image, 0o755); err != nil {
		t.Fatal(err)
	}
	var known []string
	keep := func(c *Config) { c.KeyKnown = func(s Secret) { known = append(known, s.Reveal()) } }
	snapshot := func() map[string]string {
		m := map[string]string{}
		for _, f := range tree(t, roots.Prefix) {
			if !strings.HasSuffix(f, "bootstrap.done") {
				m[f] = read(t, filepath.Join(roots.Prefix, f))
			}
		}
		return m
	}
	first := newBootRig(t, roots, agentboxManifest, keep)
	if err := first.boot(t); err != nil {
		t.Fatal(err)
	}
	before := snapshot()
	second := newBootRig(t, roots, agentboxManifest, keep)
	if err := second.boot(t); err != nil {
		t.Fatal(err)
	}
	after := snapshot()
	for name, text := range after {
		if before[name] != text {
			t.Errorf("the second boot changed %s", name)
		}
	}
	if len(before) != len(after) {
		t.Errorf("files %d, then %d", len(before), len(after))
	}
	for _, want := range []string{"workspace/README.md", "workspace/.tmux.conf", "workspace/.profile", "workspace/.bashrc", "workspace/profiles/default/mgmt-key", "etc/profile.d/agentbox-runtime.sh"} {
		if _, ok := after[want]; !ok {
			t.Errorf("no %s", want)
		}
	}
	if n := strings.Count(after["workspace/.profile"], sourcingMark); n != 1 || !strings.HasPrefix(after["workspace/.profile"], "alias ll='ls -l'\n") {
		t.Errorf(".profile: %q", after["workspace/.profile"])
	}
	if info, err := os.Stat(filepath.Join(roots.Workspace, ".profile")); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v %v", info, err)
	}
	// The program that needs the key has the real one, and no output contains it.
	key := strings.TrimSpace(after["workspace/profiles/default/mgmt-key"])
	if len(known) != 2 || known[0] != key || known[1] != key {
		t.Fatalf("known %d keys", len(known))
	}
	for _, sup := range []*fakeSupervisor{first.sup, second.sup} {
		if env := sup.specs[0].Env; !slices.Contains(env, "KEY="+key) || !slices.Contains(env, "WORKSPACE="+roots.Workspace) {
			t.Errorf("the environment of %s lacks the key or the workspace: %q", sup.specs[0].Name, env)
		}
	}
	for w := first.bus.Watch(0); ; {
		e, ok := w.TryNext()
		if !ok {
			break
		}
		if j, err := e.MarshalJSON(); err != nil || strings.Contains(string(j), key) {
			t.Fatalf("the key is in an event: %s %v", e.Name, err)
		}
	}
	if strings.Contains(after["etc/profile.d/agentbox-runtime.sh"], key) {
		t.Fatal("the key is in the hints")
	}
}

func TestTheHintsNameTheManifestFromEveryDirectory(t *testing.T) {
	roots := testRoots(t)
	r := newBootRig(t, roots, agentboxManifest, func(c *Config) { c.ManifestFile = filepath.Base(roots.Manifest) })
	t.Chdir(filepath.Dir(roots.Manifest))
	if err := r.boot(t); err != nil {
		t.Fatal(err)
	}
	want := "export AGENTBOX_CONFIG=" + escape.Shell(roots.Manifest) + "\n"
	if text := read(t, roots.EnvHints()); !strings.Contains(text, want) {
		t.Errorf("no %q in\n%s", want, text)
	}
}

func TestHintFileIsReadByAShell(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hints.sh")
	write(t, file, hintFile(map[string]string{"A": `it's "$HOME" & ` + "`x`\n2", "B_1": "plain/x", "bad-name": "x", "E": ""}), 0o644)
	out, err := exec.Command("sh", "-c", `. "$1"; printf '%s|%s|%s' "$A" "$B_1" "${E-unset}"`, "sh", file).Output()
	if err != nil || string(out) != `it's "$HOME" & `+"`x`\n2|plain/x|" {
		t.Fatalf("%q %v", out, err)
	}
}

func TestLoadFailures(t *testing.T) {
	for _, c := range []struct {
		name, manifest string
		change         func(*Config)
		want           []string
	}{
		{"not TOML", "[programs", nil, []string{"E000"}},
		{"all findings at once", "nonsense = 1\n[programs.a]\ncommand = 7\n[programs.b]\ncommand = \"x\"\nrestrat = 1\n", nil, []string{"nonsense", "command", "restrat"}},
		{"unknown account", "[programs.a]\ncommand = \"x\"\nuser = \"nobody-of-that-name\"\n[programs.b]\ncommand = \"x\"\ngroup = \"no-group\"\n", nil, []string{"E140", "nobody-of-that-name", "no-group"}},
		{"circle", "[programs.a]\ncommand = \"x\"\nneeds = [\"b\"]\n[programs.b]\ncommand = \"x\"\nneeds = [\"a\"]\n", nil, []string{"E122"}},
		{"refused by the box", plain, func(c *Config) {
			c.Resolved = func(*schema.Manifest, *plan.Plan) error { return errors.New("MANAGEMENT_API_AUTH_MODE is odd") }
		}, []string{"MANAGEMENT_API_AUTH_MODE"}},
		{"no file", plain, func(c *Config) { c.ManifestFile = "/does/not/exist.toml" }, []string{"E000", "no such file", "--manifest"}},
		{"a directory", plain, func(c *Config) { c.Environ = append(c.Environ, "AGENTBOX_CONFIG=/") }, []string{"E000", "not a regular file"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var changes []func(*Config)
			if c.change != nil {
				changes = append(changes, c.change)
			}
			r := newBootRig(t, testRoots(t), c.manifest, changes...)
			err := r.boot(t)
			if ExitCode(err) != ExitManifest {
				t.Fatalf("got %v", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in %v", want, err)
				}
			}
			if f, ok := errors.AsType[*Failure](err); !ok || f.Phase != "load" || r.sup.specs != nil {
				t.Errorf("phase %q, programs %v", f.Phase, r.sup.specs)
			}
			if r.bus.Counts()[EventFailed] != 1 {
				t.Error("not published")
			}
		})
	}
}

// Without groups, a program gets those that list its user, as su(1) and supervisord give them.
func TestSupplementaryGroups(t *testing.T) {
	roots := testRoots(t)
	write(t, roots.Path("/etc/passwd"), passwdText, 0o644)
	write(t, roots.Path("/etc/group"), groupText, 0o644)
	r := newBootRig(t, roots, `
[programs.all]
command = "x"
user = "dev"
[programs.none]
command = "x"
user = "dev"
groups = []
[programs.one]
command = "x"
user = "dev"
groups = ["audio"]
`)
	if err := r.boot(t); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"all": "[29 44]", "none": "[]", "one": "[29]"}
	for _, spec := range r.sup.specs {
		if got := fmt.Sprint(spec.Credential.Groups); got != want[spec.Name] {
			t.Errorf("%s has the groups %s, want %s", spec.Name, got, want[spec.Name])
		}
		delete(want, spec.Name)
	}
	if len(want) > 0 {
		t.Errorf("no program %v", want)
	}
}

// An incomplete write can leave an empty manifest. An apply of it must not stop all programs.
func TestApplyOfAnEmptyManifestIsRefused(t *testing.T) {
	const head = "[supervisor]\nlisten = \"off\"\n"
	for _, c := range []struct {
		name, before, after string
		main                []string
		refused             bool
	}{
		{"empty", plain, "", nil, true},
		{"comments", plain, "# nothing\n\n", nil, true},
		{"cut off", plain, head, nil, true},
		{"cut off, with a command", plain, head, []string{"/bin/sleep", "1"}, true},
		{"switched off", plain, "[programs.web]\ncommand = [\"/bin/sleep\"]\nenabled = false\n", nil, false},
		{"another program", plain, "[programs.other]\ncommand = [\"/bin/sleep\"]\n", nil, false},
		{"empty before", head, "", nil, false},
		{"only a command before", head, "", []string{"/bin/sleep", "1"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newBootRig(t, testRoots(t), c.before, func(cfg *Config) { cfg.Main = c.main })
			if err := r.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			write(t, r.cfg.Roots.Manifest, c.after, 0o644)
			_, err := r.Reread()
			if _, ok := errors.AsType[Findings](err); ok != c.refused || !c.refused && err != nil {
				t.Fatalf("got %v", err)
			}
			if c.refused && !strings.Contains(err.Error(), "cut off") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestFlagWinsOverEnvironmentOverDefault(t *testing.T) {
	b := New(Config{Bus: event.NewBus(4), Environ: []string{"AGENTBOX_CONFIG=/env"}, ManifestFile: "/flag", Roots: Roots{Manifest: "/default"}})
	if got := b.ManifestFile(); got != "/flag" {
		t.Errorf("got %s", got)
	}
	b.cfg.ManifestFile = ""
	if got := b.ManifestFile(); got != "/env" {
		t.Errorf("got %s", got)
	}
	b.env = nil
	if got := b.ManifestFile(); got != "/default" {
		t.Errorf("got %s", got)
	}
}

func TestMissingArtifactEndsTheBootAndIsNamed(t *testing.T) {
	manifest := plain + `
[[artifacts]]
id = "pod-server"
class = "A"
entry = "/opt/agentbox/pods/server"
required = true
[[artifacts]]
id = "extra"
class = "D"
entry = "/opt/agentbox/extra"
required = false
`
	r := newBootRig(t, testRoots(t), manifest)
	err := r.boot(t)
	if f, ok := errors.AsType[*Failure](err); !ok || f.Code != ExitArtifact || f.Capability != "pod-server" || f.Phase != "artifacts" {
		t.Fatalf("got %+v", err)
	}
	if !strings.HasSuffix(err.Error(), "the manifest asks for this by [[artifacts]] with required = true: add to the image what is missing, or change the manifest") {
		t.Errorf("the error does not say what to do: %v", err)
	}
	if r.sup.specs != nil {
		t.Fatal("programs were started all the same")
	}
	counts := r.bus.Counts()
	if counts[EventMissing] != 1 || counts[EventOptionalMissing] != 1 || counts[EventFailed] != 1 || counts[EventClosureValid] != 0 {
		t.Fatalf("got %v", counts)
	}
	if got := r.Artifacts(); len(got) != 2 || got[0].Outcome != ArtifactMissing || r.Closure().Valid {
		t.Fatalf("got %+v", got)
	}
	failing := []ArtifactResult{{ID: "tool", Required: true, Outcome: ArtifactFailed, Reason: "tool ended with status 3"}, r.Artifacts()[0]}
	if _, err := r.concludeArtifacts(failing, done()); err == nil || !strings.Contains(err.Error(), "repair what the reasons name, or change the manifest") {
		t.Errorf("with an artifact that does not run: %v", err)
	}
	write(t, r.cfg.Roots.Image+"/pods/server", "x", 0o755)
	again := newBootRig(t, r.cfg.Roots, manifest)
	if err := again.boot(t); err != nil {
		t.Fatalf("with the artifact: %v", err)
	}
}

// /health and /v1/meta have a list of artifacts in a box without one, too.
func TestNoArtifactsAreAList(t *testing.T) {
	if got := (&Boot{}).Artifacts(); got == nil {
		t.Error("the results are nil, in JSON null")
	}
}

// An image without agentctl, which runs the pod server: the error names the program, the keys and what to do.
func TestMissingProgramOfAFeatureNamesItsKeys(t *testing.T) {
	r := newBootRig(t, testRoots(t), plain+`
[sovereign_mesh]
enabled = true
[adapters]
pods = "local-solid-rs"
[security.exceptions.solid-pod-rs]
`)
	err := r.boot(t)
	if ExitCode(err) != ExitArtifact {
		t.Fatal(err)
	}
	for _, part := range []string{
		"agentctl is not in PATH", `sovereign_mesh.enabled and adapters.pods = "local-solid-rs": `, "add to the image what is missing, or change the manifest",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v\ndoes not say %q", err, part)
		}
	}
}

func TestImmutableRoot(t *testing.T) {
	for _, c := range []struct {
		manifest, strict string
		image            bool
		code             Code
		status           Status
	}{
		{agentboxManifest, "", true, ExitOK, StatusWarning},
		{agentboxManifest, "true", true, ExitImmutableRoot, ""},
		{agentboxManifest, "true", false, ExitOK, StatusOff},
		{agentboxManifest, "1", true, ExitImmutableRoot, ""},
		{agentboxManifest, "TRUE", true, ExitImmutableRoot, ""},
		{agentboxManifest, "0", true, ExitOK, StatusWarning},
		{agentboxManifest, "yes", true, ExitOK, StatusWarning},
		// In a plain container the phase runs only if it is requested. There the root stands for an
		// image without /opt/agentbox.
		{"", "", true, ExitOK, StatusOff},
		{"", "true", true, ExitImmutableRoot, ""},
		{"", "true", false, ExitImmutableRoot, ""},
	} {
		roots := testRoots(t)
		if c.image {
			if err := os.MkdirAll(roots.Image, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		r := newBootRig(t, roots, c.manifest, func(b *Config) { b.Environ = append(b.Environ, "AGENTBOX_STRICT_IMMUTABLE="+c.strict) })
		if err := r.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		o, err := immutableRoot(t.Context(), r.Boot)
		if ExitCode(err) != c.code || o.Status != c.status {
			t.Errorf("%q, strict %q, image %v: %+v %v", c.manifest, c.strict, c.image, o, err)
		}
		writable := c.code == ExitImmutableRoot || c.status == StatusWarning
		if told := slices.Contains(r.names(), EventRootWritable); told != writable {
			t.Errorf("%q, strict %q, image %v: told that the root is writable: %v", c.manifest, c.strict, c.image, told)
		}
		if warned := slices.Contains(r.names(), EventWarning); warned != (c.strict == "yes") {
			t.Errorf("strict %q: warned of the value: %v", c.strict, warned)
		}
		if !c.image {
			continue
		}
		if left := tree(t, roots.Image); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// The directory of a catalogue program belongs to the image and lies below the root. A directory
// that the manifest names is used unchanged.
func TestCatalogueDirectoriesLieBelowTheRoot(t *testing.T) {
	roots := testRoots(t)
	own := t.TempDir()
	r := newBootRig(t, roots, "[skills.media]\nimagemagick = true\ncomfyui_builtin = true\n[programs.comfyui-builtin]\ndirectory = \""+own+"\"\n")
	if err := r.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"imagemagick-mcp": roots.Path("/opt/agentbox/skills/imagemagick"), "comfyui-builtin": own}
	for _, s := range r.Current().Specs {
		if s.Directory != want[s.Name] {
			t.Errorf("%s runs in %q, want %q", s.Name, s.Directory, want[s.Name])
		}
	}
}

// A volume that belongs to another user, or a root that is read-only, is a mistake of the operator:
// the error says what to do.
func TestUnwritable(t *testing.T) {
	for errno, want := range map[syscall.Errno]string{
		syscall.EACCES: fmt.Sprintf("user %d cannot write there: permission denied; the directory must exist and belong to this user (chown, or fsGroup in Kubernetes)", os.Geteuid()),
		syscall.EROFS:  "read-only file system; mount a volume or a tmpfs there",
		syscall.ENOSPC: "open .agentinit-write-probe-1: no space left on device",
	} {
		if got := unwritable(&fs.PathError{Op: "open", Path: ".agentinit-write-probe-1", Err: errno}); got.Error() != want || !errors.Is(got, errno) {
			t.Errorf("got %v, want %s", got, want)
		}
	}
}

func TestDirectories(t *testing.T) {
	roots := testRoots(t)
	// If no feature needs the directory, the result is a warning. If a feature needs it, the boot
	// fails.
	write(t, filepath.Dir(roots.ProgramLogs), "a file in the way", 0o644)
	r := newBootRig(t, roots, agentboxManifest+"[desktop]\nenabled = true\n[security.exceptions.desktop]\n")
	if err := r.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	o, err := makeDirectories(t.Context(), r.Boot)
	if err != nil || o.Status != StatusWarning {
		t.Fatalf("%+v %v", o, err)
	}
	if info, err := os.Stat(roots.X11); err != nil || info.Mode()&(fs.ModeSticky|0o777) != fs.ModeSticky|0o777 {
		t.Fatalf("%v %v", info, err)
	}
	roots = testRoots(t)
	write(t, filepath.Dir(roots.Ruvector), "a file in the way", 0o644)
	r = newBootRig(t, roots, agentboxManifest)
	err = r.boot(t)
	if ExitCode(err) != ExitPrepare || !strings.Contains(err.Error(), `needed by adapters.memory = "embedded-ruvector"`) {
		t.Fatalf("got %v", err)
	}
}

type identityFunc func(Roots) error

func (f identityFunc) Prepare(_ context.Context, _ *schema.Manifest, r Roots) (string, error) {
	return strings.Repeat("ab", 32), f(r)
}

func TestIdentityPhase(t *testing.T) {
	mesh := agentboxManifest + "[sovereign_mesh]\nenabled = true\n"
	for _, c := range []struct {
		manifest string
		id       IdentityPreparer
		status   Status
		code     Code
	}{
		{agentboxManifest, nil, StatusOff, ExitOK},
		{mesh, nil, StatusWarning, ExitOK},
		{mesh, identityFunc(func(Roots) error { return nil }), StatusOK, ExitOK},
		{mesh, identityFunc(func(Roots) error { return errors.New("corrupt") }), "", ExitPrepare},
	} {
		r := newBootRig(t, testRoots(t), c.manifest, func(b *Config) { b.Identity = c.id })
		if err := r.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if o, err := identity(t.Context(), r.Boot); o.Status != c.status || ExitCode(err) != c.code {
			t.Errorf("%+v: %+v %v", c, o, err)
		}
	}
}

func TestClosures(t *testing.T) {
	r := newBootRig(t, testRoots(t), plain)
	if err := r.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := &plan.Program{Feature: "browser", Spec: &program.Spec{
		Name: "playwright-mcp", Directory: "/opt/agentbox/skills/x", Env: []string{"PATH=/usr/bin:/bin"},
		Argv: []string{"no-such-interpreter", "/opt/agentbox/skills/x/server.js", "/tmp/socket"},
	}}
	r.Current().Plan.Programs = append(r.Current().Plan.Programs, *p)
	_, err := closures(t.Context(), r.Boot)
	if f, ok := errors.AsType[*Failure](err); !ok || f.Code != ExitArtifact || f.Capability != "browser" {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"skills/x does not exist", "server.js does not exist", "no-such-interpreter is not in PATH"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "/tmp/socket") {
		t.Error("an argument that is no part of the closure was looked for")
	}
	write(t, r.cfg.Roots.Image+"/skills/x/server.js", "", 0o644)
	r.Current().Plan.Programs[len(r.Current().Plan.Programs)-1].Spec.Argv[0] = "sh"
	if o, err := closures(t.Context(), r.Boot); err != nil || o.Status != StatusOK {
		t.Fatalf("%+v %v", o, err)
	}
}

// A directory for data is on a volume, so the failure says which volume to mount.
func TestDirectoriesOnVolumes(t *testing.T) {
	const relay = "[sovereign_mesh]\nenabled = true\n[sovereign_mesh.relay]\nenabled = true\n"
	const needs = `the manifest asks for this by sovereign_mesh.relay.enabled and sovereign_mesh.relay.implementation = "nostr-rs-relay": `
	for name, c := range map[string]struct{ manifest, dir, want string }{
		"of the manifest": {relay + "[security.exceptions.nostr-relay]\nwritable_volumes = [\"relay-data:/var/lib/relay\"]\n", "/var/lib/relay",
			"/var/lib/relay does not exist: mount the volume relay-data there, which the files of agentctl generate do for [security.exceptions.nostr-relay]; " + needs + "mount what the reasons name, or change the manifest"},
		"none": {relay + "[security.exceptions.nostr-relay]\n", "/srv/relay",
			"/srv/relay does not exist: mount a volume there, with \"nostr-relay-data:/srv/relay\" in the writable_volumes of a block of [security.exceptions]; " + needs + "mount what the reasons name, or change the manifest"},
		"of the image": {relay + "[security.exceptions.nostr-relay]\n", "/opt/agentbox/relay", "add to the image what is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newBootRig(t, testRoots(t), agentboxManifest+c.manifest)
			if err := r.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			p := plan.Program{Feature: "nostr-relay", Spec: &program.Spec{Name: "nostr-relay", Directory: c.dir, Argv: []string{"/bin/sh"}}}
			if name == "of the image" {
				p.Feature = "browser"
			}
			r.Current().Plan.Programs = []plan.Program{p}
			_, err := closures(t.Context(), r.Boot)
			if ExitCode(err) != ExitArtifact || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestInterruptedBootStops(t *testing.T) {
	r := newBootRig(t, testRoots(t), plain)
	if err := r.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("SIGTERM"))
	if err := r.Run(ctx); ExitCode(err) != ExitOK || err == nil || r.sup.specs != nil {
		t.Fatalf("%v, programs %v", err, r.sup.specs)
	}
	last, _ := r.bus.Watch(r.bus.Seq() - 1).TryNext()
	if code, written := last.Fields["exit_code"]; last.Name != EventFailed || written {
		t.Errorf("%s says that the status is %v, which the cause of the interruption decides", last.Name, code)
	}
}

func TestExitCode(t *testing.T) {
	if ExitCode(nil) != ExitOK || ExitCode(errors.New("x")) != ExitInternal || ExitCode(fmt.Errorf("a: %w", fail(ExitArtifact, nil, "b"))) != ExitArtifact {
		t.Error("exit codes")
	}
}

// The relay's configuration exists before the relay starts, and it lists the keys that may write.
func TestConfigurationsAreWrittenBeforePrograms(t *testing.T) {
	roots := testRoots(t)
	operator := strings.Repeat("cd", 32)
	manifest := agentboxManifest + "[sovereign_mesh]\nenabled = true\n[sovereign_mesh.operator]\npubkey_hex = \"" + operator + "\"\n" +
		"[sovereign_mesh.relay]\nenabled = true\nimplementation = \"nostr-rs-relay\"\ningress_policy = \"allowlist\"\n" +
		"[security.exceptions.nostr-relay]\n"
	r := newBootRig(t, roots, manifest, func(c *Config) { c.Identity = identityFunc(func(Roots) error { return nil }) })
	if err := r.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if o, err := identity(t.Context(), r.Boot); err != nil || o.Status != StatusOK {
		t.Fatal(o, err)
	}
	if _, err := start(t.Context(), r.Boot); err != nil {
		t.Fatal(err)
	}
	text := read(t, filepath.Join(roots.Runtime, "nostr-relay.toml"))
	for _, key := range []string{operator, strings.Repeat("ab", 32)} {
		if !strings.Contains(text, key) {
			t.Errorf("the whitelist lacks %s:\n%s", key, text)
		}
	}
	if !strings.Contains(text, "data_directory = '"+roots.Prefix+"/var/lib/nostr-relay'") {
		t.Errorf("the database is outside %s:\n%s", roots.Prefix, text)
	}
	for _, s := range r.sup.specs {
		if s.Name == "nostr-relay" && !slices.Contains(s.Argv, filepath.Join(roots.Runtime, "nostr-relay.toml")) {
			t.Errorf("the relay is started as %q", s.Argv)
		}
	}
	in := filepath.Join(roots.Runtime, "nostr-relay.toml")
	for what, before := range map[string]string{"another": "older = true\n", "none": ""} {
		if err := os.Remove(in); err != nil {
			t.Fatal(err)
		}
		if before != "" {
			write(t, in, before, 0o640)
		}
		undo, err := r.WriteConfigurations(r.Current())
		if err != nil || read(t, in) != text {
			t.Fatalf("over %s: %v, %s", what, err, read(t, in))
		}
		err = undo()
		now, readErr := os.ReadFile(in)
		if err != nil || string(now) != before || (before == "") != errors.Is(readErr, fs.ErrNotExist) {
			t.Errorf("taken back to %s: %v, %q, %v", what, err, now, readErr)
		}
		if before == "" {
			write(t, in, text, 0o644)
		}
	}
	// A directory blocks the path of the file. The relay must not start with its own default
	// settings.
	if err := errors.Join(os.RemoveAll(in), os.MkdirAll(filepath.Join(in, "x"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if _, err := start(t.Context(), r.Boot); ExitCode(err) != ExitPrepare {
		t.Errorf("started without the file: %v", err)
	}
}

// agentctl inside a program uses the socket of its own box.
func TestProgramsAreToldOfAnotherSocket(t *testing.T) {
	for socket, want := range map[string]string{"": "PREFIX/run/agentbox/agentinit.sock", "@abstract": "@abstract", "/tmp/x.sock": "PREFIX/tmp/x.sock"} {
		roots := testRoots(t)
		manifest := plain
		if socket != "" {
			manifest = "[supervisor]\nsocket = \"" + socket + "\"\n" + plain
		}
		r := newBootRig(t, roots, manifest, func(c *Config) { c.Environ = append(c.Environ, "AGENTCTL_SOCKET=/of/another/box") })
		if err := r.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if env := r.Current().Specs[0].Env; !slices.Contains(env, "AGENTCTL_SOCKET="+strings.Replace(want, "PREFIX", roots.Prefix, 1)) {
			t.Errorf("%q: %q", socket, env)
		}
	}
}

// The summary names the first error, and the termination report all of them, each once.
func TestTheReasonNamesTheErrors(t *testing.T) {
	for manifest, want := range map[string]struct {
		summary string
		codes   []string
	}{
		"[programs.a]\ncommand = \"x\"\nrestrat = 1\n":              {"has 1 error: E016 ", []string{"E016"}},
		"[programs.a]\ncommand = \"x\"\nrestrat = 1\n[nosuch]\n":    {"has 2 errors, the first: E016 ", []string{"E016", "E016"}},
		"[programs.a]\ncommand = \"%(X)s\"\nneeds = [\"nosuch\"]\n": {"has 1 error: E123 ", []string{"E123"}}, // after a warning
		"[programs.a\n": {"has 1 error: E000 ", []string{"E000"}},
	} {
		err := newBootRig(t, testRoots(t), manifest).boot(t)
		f, ok := errors.AsType[*Failure](err)
		if !ok || !strings.Contains(f.Summary(), want.summary) {
			t.Errorf("no %q in the summary of %v", want.summary, err)
			continue
		}
		if codes := regexp.MustCompile(`\b[EW]\d{3}\b`).FindAllString(f.Error(), -1); !slices.Equal(codes, want.codes) {
			t.Errorf("%q names %q, want %q", f.Error(), codes, want.codes)
		}
	}
}

// Findings of one stage do not hide findings of the later stages.
func TestEveryFindingAtOnce(t *testing.T) {
	r := newBootRig(t, testRoots(t), `
[adapters]
beads = "external"
[programs.a]
command = ["x"]
needs = ["nosuch"]
restrat = "always"
user = "nobody-of-that-name"
`)
	err := r.Load(t.Context())
	if ExitCode(err) != ExitManifest {
		t.Fatalf("got %v", err)
	}
	for _, code := range []string{"E016", "E001", "E123", "E140"} {
		if findings, ok := errors.AsType[Findings](err); !ok || !slices.ContainsFunc(findings, func(f schema.Finding) bool { return f.Code == code }) {
			t.Errorf("no %s in %v", code, err)
		}
	}
}

type starterFunc func(context.Context) error

func (f starterFunc) Start(ctx context.Context, _ []program.Spec) (<-chan struct{}, error) {
	return nil, f(ctx)
}

// A stop request while the programs are handed over is not a failure of the boot. The same error
// without a stop request is a failure.
func TestStartInterrupted(t *testing.T) {
	for _, c := range []struct {
		stopped bool
		err     error
		code    Code
	}{
		{false, errors.New("broken"), ExitInternal},
		{true, errors.New("the box is stopping"), ExitOK},
		{false, &Failure{Code: ExitOK, Reason: "interrupted"}, ExitOK},
	} {
		ctx, stop := context.WithCancel(t.Context())
		r := newBootRig(t, testRoots(t), plain, func(cfg *Config) {
			cfg.Starter = starterFunc(func(context.Context) error {
				if c.stopped {
					stop()
				}
				return c.err
			})
		})
		if err := r.Load(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := start(ctx, r.Boot); err == nil || ExitCode(err) != c.code {
			t.Errorf("%+v: %v", c, err)
		}
		stop()
		r.Wait()
	}
}

// A box without a management key says so, so that the servers refuse a wrong key for good.
func TestABoxWithoutAKeySaysSo(t *testing.T) {
	var known []string
	r := newBootRig(t, testRoots(t), "[programs.a]\ncommand = \"a\"\n", func(c *Config) { c.KeyKnown = func(s Secret) { known = append(known, s.Reveal()) } })
	if err := r.boot(t); err != nil || len(known) != 1 || known[0] != "" {
		t.Errorf("%v, keys %q", err, known)
	}
}

// A reason is one line, also if several errors make it up.
func TestAReasonIsOneLine(t *testing.T) {
	f := fail(ExitPrepare, errors.Join(errors.New("cannot make /a"), errors.New("cannot make /b")), "cannot prepare a root directory")
	if got := f.Error(); got != "cannot prepare a root directory: cannot make /a; cannot make /b" {
		t.Errorf("the reason is %q", got)
	}
}
