package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// credentials are the variables that the operator of examples/agentbox.toml must set.
func credentials(name string) (string, bool) {
	credential := strings.HasSuffix(name, "_API_KEY") || strings.HasSuffix(name, "_TOKEN") || name == "CTM_TELEGRAM_CHAT_ID"
	return "present", credential
}

func agentctl(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, bad bytes.Buffer
	code = run(t.Context(), args, credentials, strings.NewReader(""), &out, &bad)
	return out.String(), bad.String(), code
}

// Every example is valid, can be planned, and can be rendered in every format.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.toml")
	if err != nil || len(files) < 2 {
		t.Fatal("no examples", err)
	}
	mesh, err := filepath.Glob("../../examples/mesh/*.toml")
	if err != nil || len(mesh) < 3 {
		t.Fatal("no mesh", err)
	}
	files = append(files, mesh...)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			if _, stderr, code := agentctl(t, "config", "validate", file); code != exitOK {
				t.Errorf("config validate: %d\n%s", code, stderr)
			}
			if out, stderr, code := agentctl(t, "plan", file); code != exitOK || !strings.Contains(out, "WAVE") {
				t.Errorf("plan: %d\n%s", code, stderr)
			}
			for _, g := range generators() {
				if out, stderr, code := agentctl(t, "generate", g.name, file); code != exitOK || out == "" {
					t.Errorf("generate %s: %d\n%s", g.name, code, stderr)
				}
			}
		})
	}
}

// The generated examples match the manifests.
func TestGeneratedExamplesAreCurrent(t *testing.T) {
	const mesh = "../../examples/mesh/"
	fleet := []string{"generate", "kubernetes", "--system=x86_64-linux", "--image=agentbox"}
	for file, args := range map[string][]string{
		"mesh/docker-compose.yml":   {"generate", "compose", "--system=x86_64-linux", mesh + "mesh-host.toml", mesh + "box-a.toml", mesh + "box-b.toml"},
		"mesh/mesh-host.yaml":       slices.Concat(fleet, []string{"--name=mesh-host", mesh + "mesh-host.toml"}),
		"mesh/box-a.yaml":           slices.Concat(fleet, []string{"--name=box-a", mesh + "box-a.toml"}),
		"mesh/box-b.yaml":           slices.Concat(fleet, []string{"--name=box-b", mesh + "box-b.toml"}),
		"../deploy/fleet/host.yaml": slices.Concat(fleet, []string{"--name=mesh-host", mesh + "mesh-host.toml"}),
		"../deploy/fleet/box.yaml":  slices.Concat(fleet, []string{mesh + "box-a.toml"}),

		"docker-compose.yml":           {"generate", "compose", "--system=x86_64-linux", "../../examples/minimal.toml"},
		"../deploy/base/agentbox.yaml": {"generate", "kubernetes", "--system=x86_64-linux", "--image=agentbox", "../../examples/minimal.toml"},
		"kubernetes/agentbox.yaml":     {"generate", "kubernetes", "--system=x86_64-linux", "--pod-monitor=true", "../../examples/minimal.toml"},
	} {
		path := filepath.Join("../../examples", file)
		if os.Getenv("UPDATE_SCRIPTS") != "" {
			if _, stderr, code := agentctl(t, append(args, "-o", path)...); code != exitOK {
				t.Errorf("%v: %d\n%s", args, code, stderr)
			}
		}
		if out, stderr, code := agentctl(t, append(args, "--check", path)...); code != exitOK {
			t.Errorf("%s is stale; UPDATE_SCRIPTS=1 makes it again: %d\n%s%s", path, code, stderr, out)
		}
	}
}

// Several manifests become several boxes of one compose file. Manifests with the same box name are
// refused.
func TestGenerateSeveralBoxes(t *testing.T) {
	dir := t.TempDir()
	write := func(name string) string {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("[programs.true]\ncommand = [\"true\"]\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one, two := write("one.toml"), write("two.toml")
	out, stderr, code := agentctl(t, "generate", "compose", one, two)
	if code != exitOK || !strings.Contains(out, "\n  one:\n") || !strings.Contains(out, "\n  two:\n") || !strings.Contains(out, `"./two.toml:/etc/agentbox.toml:ro"`) {
		t.Errorf("%d %s\n%s", code, stderr, out)
	}
	if n := strings.Count(out, `"9090:9090"`); n != 1 {
		t.Errorf("port 9090 of the host is given %d times", n)
	}
	for want, args := range map[string][]string{
		"are both the box \"one\"": {"compose", one, write("other/one.toml")},
		"names the box \"Two_2\"":  {"compose", one, write("Two_2.toml")},
		"takes at most 1 argument": {"kubernetes", one, two},
		"cannot read":              {"compose", one, filepath.Join(dir, "none.toml")},
	} {
		if out, stderr, code := agentctl(t, append([]string{"generate"}, args...)...); code == exitOK || out != "" || !strings.Contains(stderr, want) {
			t.Errorf("%v: %d, %s%s; want %q", args, code, out, stderr, want)
		}
	}
}

// What a cluster would refuse is refused as a wrong command line.
func TestFlagsOfACluster(t *testing.T) {
	for _, c := range []struct {
		flag string
		good []string
		bad  []string
	}{
		{"--name", []string{"", "a", "box-1", strings.Repeat("a", 52)}, []string{"Box", "a.b", "a_b", "-a", "a-", "1a", strings.Repeat("a", 53)}},
		{"--namespace", []string{"", "1a", strings.Repeat("a", 63)}, []string{"A b", "a.b", "a\nb", strings.Repeat("a", 64)}},
		{"--storage", []string{"", "1", "10Gi", "0.5Gi", "1.5Ti", "500M", "1e9", "20k"}, []string{"lots", "10GB", "0", "-1", "10 Gi", "Gi", "1Ki5", "0.0Gi"}},
	} {
		for _, value := range slices.Concat(c.good, c.bad) {
			want := exitOK
			if slices.Contains(c.bad, value) {
				want = exitUsage
			}
			out, stderr, code := agentctl(t, "generate", "kubernetes", c.flag, value, "../../examples/minimal.toml")
			if code != want || (want == exitUsage) != (out == "" && strings.Contains(stderr, c.flag+" ")) {
				t.Errorf("%s %q: exit status %d, want %d; %s", c.flag, value, code, want, stderr)
			}
		}
	}
}
