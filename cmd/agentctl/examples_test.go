package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// credentials are what the operator of examples/agentbox.toml has to have.
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

// The generated examples are what the manifests say now.
func TestGeneratedExamplesAreCurrent(t *testing.T) {
	for file, args := range map[string][]string{
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
