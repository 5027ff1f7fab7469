package e2e

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// An image of each kind of example boots, seals and answers in the profile that `agentctl generate
// compose` writes for it. The image has agentinit and busybox, or a stand-in for software that test
// machines do not have.
func TestImagesOfTheExamplesBootAsGenerated(t *testing.T) {
	needsPodman(t)
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skipf("needs busybox: %v", err)
	}
	shell := []string{"-add", busybox + ":/bin/busybox"}
	for _, applet := range []string{"sh", "mkdir", "sleep", "test", "echo"} {
		shell = append(shell, "-link", "busybox:/bin/"+applet)
	}
	for _, kind := range []struct {
		example string
		more    []string // further arguments of the image tool
		program string   // runs once the box is sealed
		ready   bool     // the box needs no service outside itself
	}{
		{"minimal", nil, "journal", true},
		{"webapp", shell, "web", true},
		// Its slots use services that a box without a network cannot reach, and the box reports
		// that.
		{"agentbox", append(shell, standIns(t, "agentbox")...), "solid-pod", false},
	} {
		t.Run(kind.example, func(t *testing.T) {
			c, health := composed(t, kind.example, kind.more)
			waitFor(t, "the seal", func() bool { return strings.Contains(mustPodman(t, "logs", c), "BootstrapCompleted") })
			mustPodman(t, "exec", c, "/bin/agentctl", "wait", kind.program, "--for", "running", "--timeout", patience.String())
			out, err := podman(t, append([]string{"exec", c}, health...)...)
			if (err == nil) != kind.ready {
				t.Errorf("the health check of the compose file says: %v %s", err, out)
			}
			if out := mustPodman(t, "exec", c, "/bin/agentctl", "version"); !strings.Contains(out, "pid 1") {
				t.Errorf("version: %s", out)
			}
			mustPodman(t, "stop", c) // with the stop timeout of the compose file
			if code := mustPodman(t, "inspect", "--format", "{{.State.ExitCode}}", c); code != "0" {
				t.Errorf("ended with %s:\n%s", code, mustPodman(t, "logs", c))
			}
		})
	}
}

// example is the path of an example manifest.
func example(t testing.TB, name string) string {
	t.Helper()
	p, err := filepath.Abs(filepath.Join("..", "examples", name+".toml"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// output runs one of our tools and returns its standard output.
func output(t testing.TB, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(name, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	cmd.Env = append(os.Environ(), credentials()...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, stderr.String())
	}
	return out
}

// credentials are the variables that examples/agentbox.toml requires from its operator.
func credentials() []string {
	var out []string
	for _, name := range []string{
		"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_GEMINI_API_KEY", "DEEPSEEK_API_KEY", "PERPLEXITY_API_KEY", "OPENROUTER_API_KEY",
		"CONTEXT7_API_KEY", "BRAVE_API_KEY", "GITHUB_TOKEN", "CTM_BOT_TOKEN", "CTM_TELEGRAM_CHAT_ID", "MESH_TOKEN",
	} {
		out = append(out, name+"=present")
	}
	return out
}

func system() string {
	return map[string]string{"amd64": "x86_64-linux", "arm64": "aarch64-linux"}[runtime.GOARCH]
}

// standIns are arguments of the image tool that add one file for each artifact and each program of
// an example.
func standIns(t testing.TB, name string) []string {
	t.Helper()
	script, err := filepath.Abs(filepath.Join("testdata", "standin.sh"))
	if err != nil {
		t.Fatal(err)
	}
	var plan struct {
		Artifacts []struct {
			Entry  string   `json:"entry"`
			Assets []string `json:"assets"`
		} `json:"artifacts"`
		Programs []struct {
			Spec struct {
				Argv []string `json:"argv"`
			} `json:"spec"`
		} `json:"programs"`
	}
	if err := json.Unmarshal(output(t, binary(t, "agentctl"), "plan", "--json", example(t, name)), &plan); err != nil {
		t.Fatal(err)
	}
	places := map[string]bool{"/bin/agentbox-indexer": true}
	for _, a := range plan.Artifacts {
		for _, p := range append(a.Assets, a.Entry) {
			if !strings.HasPrefix(p, "/") { // looked up in PATH
				p = "/bin/" + p
			}
			places[strings.ReplaceAll(p, "*", "-1")] = true
		}
	}
	for _, p := range plan.Programs {
		if !strings.HasPrefix(p.Spec.Argv[0], "/") {
			places["/bin/"+p.Spec.Argv[0]] = true
		}
	}
	delete(places, "/bin/agentctl")            // the image has it
	delete(places, "/bin/solid-pod-rs-server") // agentctl is the pod server
	args := []string{"-add", binary(t, "testprog") + ":/bin/testprog", "-add", script + ":/opt/standin"}
	for p := range places {
		// A directory exists through the files in it. /workspace is a mount of the box.
		below := slices.ContainsFunc(slices.Collect(maps.Keys(places)), func(q string) bool { return strings.HasPrefix(q, p+"/") })
		if !below && !strings.HasPrefix(p, "/workspace/") {
			args = append(args, "-link", "/opt/standin:"+p)
		}
	}
	return args
}

// service holds the fields of a compose file that the test applies. An unknown key fails the test,
// because the test would not try that part of the profile.
type service struct {
	Image           string             `yaml:"image"`
	Hostname        string             `yaml:"hostname"`
	Restart         string             `yaml:"restart"`
	StopGracePeriod string             `yaml:"stop_grace_period"`
	User            string             `yaml:"user"`
	ReadOnly        bool               `yaml:"read_only"`
	CapDrop         []string           `yaml:"cap_drop"`
	CapAdd          []string           `yaml:"cap_add"`
	SecurityOpt     []string           `yaml:"security_opt"`
	PidsLimit       int                `yaml:"pids_limit"`
	Environment     map[string]*string `yaml:"environment"`
	Volumes         []string           `yaml:"volumes"`
	Tmpfs           []string           `yaml:"tmpfs"`

	// A test machine does not have these: a GPU, other containers, a network.
	Runtime     any      `yaml:"runtime"`
	Deploy      any      `yaml:"deploy"`
	DependsOn   any      `yaml:"depends_on"`
	ExtraHosts  any      `yaml:"extra_hosts"`
	Ports       []string `yaml:"ports"`
	Networks    []string `yaml:"networks"`
	Healthcheck struct {
		Test        []string `yaml:"test"`
		Interval    string   `yaml:"interval"`
		Timeout     string   `yaml:"timeout"`
		Retries     int      `yaml:"retries"`
		StartPeriod string   `yaml:"start_period"`
	} `yaml:"healthcheck"`
}

// composed builds the image of an example and starts it as its compose file says. It returns the
// container's id and the command of the health check.
func composed(t *testing.T, name string, more []string) (id string, health []string) {
	t.Helper()
	dir := t.TempDir()
	makeImage(t, dir, example(t, name), more)
	text := output(t, binary(t, "agentctl"), "generate", "compose", "--system", system(), example(t, name))
	var file struct {
		Services map[string]yaml.Node `yaml:"services"`
		Networks any                  `yaml:"networks"`
		Volumes  any                  `yaml:"volumes"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	node := file.Services["agentbox"]
	raw, err := yaml.Marshal(&node)
	if err != nil {
		t.Fatal(err)
	}
	var s service
	d := yaml.NewDecoder(strings.NewReader(string(raw)))
	d.KnownFields(true)
	if err := d.Decode(&s); err != nil {
		t.Fatalf("a part of the compose file that this test does not try: %v", err)
	}
	if len(s.Healthcheck.Test) < 2 || s.Healthcheck.Test[0] != "CMD" {
		t.Fatalf("health check %v", s.Healthcheck.Test)
	}
	manifest, err := os.ReadFile(example(t, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".toml"), manifest, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// In the agentbox example, one program raises its descriptor limit to 8192.
	id = mustPodman(t, append(slices.Concat([]string{"run", "-d", "--network", "none"}, limits, []string{"--ulimit", "nofile=4096:8192"}, s.flags(t, dir)), s.image())...)
	id = id[strings.LastIndex(id, "\n")+1:]
	t.Cleanup(func() {
		if t.Failed() {
			logs, err := podman(t, "logs", id)
			t.Logf("logs (%v):\n%s", err, logs)
		}
		mustPodman(t, "rm", "-f", "-v", "-t", "0", id)
		for _, v := range s.Volumes {
			if name, _, _ := strings.Cut(v, ":"); !strings.HasPrefix(name, ".") {
				mustPodman(t, "volume", "rm", "-f", name)
			}
		}
	})
	return id, s.Healthcheck.Test[1:]
}

// image is the image reference if the operator has set none.
func (s *service) image() string { return "localhost/" + interpolated(s.Image) }

// interpolated replaces ${NAME:-fallback} as compose does, with the credentials as variables.
func interpolated(text string) string {
	return os.Expand(strings.ReplaceAll(text, "$$", "$"), func(expr string) string {
		name, fallback, _ := strings.Cut(expr, ":-")
		for _, c := range credentials() {
			if n, v, _ := strings.Cut(c, "="); n == name {
				return v
			}
		}
		return fallback
	})
}

// flags returns the options of podman run that match the compose file.
func (s *service) flags(t *testing.T, dir string) []string {
	t.Helper()
	flags := []string{"--user", s.User, "--hostname", s.Hostname, "--stop-timeout", strings.TrimSuffix(s.StopGracePeriod, "s"),
		"--pids-limit", strconv.Itoa(s.PidsLimit)}
	if s.ReadOnly {
		flags = append(flags, "--read-only", "--read-only-tmpfs=false")
	}
	for option, values := range map[string][]string{"--cap-drop": s.CapDrop, "--cap-add": s.CapAdd, "--security-opt": s.SecurityOpt, "--tmpfs": s.Tmpfs} {
		for _, v := range values {
			if option == "--security-opt" {
				v = strings.TrimSuffix(v, ":true") // podman spells no-new-privileges without ":true"
			}
			flags = append(flags, option, v)
		}
	}
	for name, value := range s.Environment {
		v := interpolated("${" + name + "}")
		if value != nil {
			v = interpolated(*value)
		}
		if value != nil || v != "" {
			flags = append(flags, "--env", name+"="+v)
		}
	}
	for _, v := range s.Volumes {
		source, rest, _ := strings.Cut(v, ":")
		if strings.HasPrefix(source, "./") {
			source = filepath.Join(dir, source)
			if path.Ext(source) == "" {
				if err := os.Mkdir(source, 0o777); err != nil {
					t.Fatal(err)
				}
				if err := os.Chown(source, 1000, 1000); err != nil {
					t.Fatal(err)
				}
			}
		}
		flags = append(flags, "--volume", source+":"+rest)
	}
	return flags
}

// makeImage builds and loads the image of a manifest as `make image` does.
func makeImage(t *testing.T, dir, manifest string, more []string) {
	t.Helper()
	config, archive := filepath.Join(dir, "image.json"), filepath.Join(dir, "image.tar")
	output(t, binary(t, "agentctl"), "generate", "image", "--system", system(), "-o", config, manifest)
	build := exec.Command("go", append([]string{
		"run", "../image", "-o", archive, "-arch", runtime.GOARCH, "-ref", "localhost/agentbox:runtime-" + system(), "-config", config, "-roots",
		"-add", binary(t, "agentinit") + ":/bin/agentinit", "-add", binary(t, "agentctl") + ":/bin/agentctl", "-add", manifest + ":/etc/agentbox.toml",
	}, more...)...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	mustPodman(t, "load", "-q", "-i", archive)
	if err := os.Remove(archive); err != nil {
		t.Fatal(err)
	}
}
